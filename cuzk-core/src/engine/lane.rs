//! A lane: the thread that admits the partitions of one priority, oldest job first, and hands each to
//! a thread of its own once its memory is reserved.
//!
//! Only lanes take memory for partitions, one at a time each, and the budget serves the more urgent
//! first. What a more urgent partition lacks is taken from less urgent ones: they are shed. So nobody
//! waits for memory that somebody less urgent holds.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cuzk_governor::budget::{self, Ask, Reservation, ReserveError};
use cuzk_governor::governor::purge_allocator;
use cuzk_governor::policy;
use parking_lot::Mutex;

use super::job::{Part, Past};
use super::running::{shed_class, Running};
use super::turnstile::{Presence, StopFlag};
use super::work::{Admitted, Work, WorkError};
use super::{EngineError, JobId, Shared, State, REQUESTS};
use crate::device::Interrupted;
use crate::memory::Account;
use crate::pipeline::{Footprint, StageTimes};
use crate::proof::Priority;

/// How long a lane sleeps before it looks again whether it has work, or memory, should a wake-up ever be
/// lost, and whom it could shed.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The same for a critical partition: while it waits, all others pause, and hold what they have.
const LOOK_AGAIN_CRITICAL: Duration = Duration::from_millis(250);

/// How long memory is waited for while nothing runs that could give any back: longer than the slowest
/// message that was let in before may take to arrive, so only a leak can make it take longer.
const MEMORY_DEADLINE: Duration = Duration::from_secs(600);

/// Partitions of critical priority that run at once: one on the device, one before it.
const CRITICAL_AT_ONCE: usize = 2;

/// Starts the lane of `priority`.
pub(super) fn spawn(
    shared: Arc<Shared>,
    priority: Priority,
) -> Result<JoinHandle<()>, EngineError> {
    thread::Builder::new()
        .name(format!("lane-{priority}"))
        .spawn(move || Lane { shared, priority }.run())
        .map_err(|why| EngineError::Thread(why.to_string()))
}

struct Lane {
    shared: Arc<Shared>,
    priority: Priority,
}

/// A partition that was taken from its job.
#[derive(Clone)]
pub(super) struct Taken {
    pub job: JobId,
    pub partition: usize,
    work: Arc<dyn Work>,
    predicted: Footprint,
    past: Past,
    /// Its own, and raised with its job's.
    stop: StopFlag,
}

/// A run of a partition that is over.
pub(super) struct Ran {
    pub id: u64,
    /// On opening parameters, and in stages.
    pub spent: Option<(Duration, StageTimes)>,
}

/// What a partition was admitted with.
struct Memory {
    asked: Footprint,
    buffers: Reservation,
    heap: Reservation,
}

impl Lane {
    fn run(self) {
        while let Some(taken) = self.next() {
            let presence = self.shared.turnstile.arrive(self.priority, &taken.stop);
            let admitted = self.admit(&taken);
            self.shared.state.lock().admitting[self.priority as usize] = false;
            match admitted {
                Ok(running) => self.start(taken, presence, running),
                Err(why) => self.shared.returned(&taken, Err(why), None),
            }
        }
    }

    /// The next partition of this lane's oldest job, once it may be admitted; `None` when the engine
    /// closes and no job is left.
    fn next(&self) -> Option<Taken> {
        let mut state = self.shared.state.lock();
        loop {
            let open = state.may_start(self.priority);
            let mine = (state.jobs.values_mut())
                .filter(|job| job.priority == self.priority && !job.stop.is_raised())
                .filter_map(|job| job.next().map(|partition| (job, partition)));
            if let Some((job, partition)) = mine.min_by_key(|(job, _)| job.place).filter(|_| open) {
                let past = job.past(partition);
                job.parts[partition] = Part::Taken(past);
                job.stage = "waiting for memory";
                let taken = Taken {
                    job: job.id.clone(),
                    partition,
                    work: Arc::clone(&job.work),
                    predicted: job.predicted,
                    past,
                    stop: job.stop.child(),
                };
                state.admitting[self.priority as usize] = true;
                return Some(taken);
            }
            if state.closing && state.jobs.is_empty() {
                return None;
            }
            self.shared.changed.wait_for(&mut state, LOOK_AGAIN);
        }
    }

    /// Reserves a partition's memory and enters it among those that run.
    fn admit(&self, taken: &Taken) -> Result<(Arc<Running>, Reservation), WorkError> {
        let Memory { asked, buffers, heap } = self.reserve(taken)?;
        let mut state = self.shared.state.lock();
        if taken.stop.is_raised() {
            return Err(Interrupted.into());
        }
        state.next_run += 1;
        let running = Arc::new(Running {
            id: state.next_run,
            job: taken.job.clone(),
            priority: self.priority,
            shed: shed_class(self.priority, taken.past.sheds),
            stop: taken.stop.clone(),
            since: Instant::now(),
            asked: asked.total(),
            account: Arc::default(),
            heap: Mutex::new(heap),
            buffers: AtomicU64::new(0),
        });
        if let Some(job) = state.jobs.get_mut(&taken.job) {
            if !std::mem::replace(&mut job.started, true) {
                job.timings.queue_wait = job.accepted.elapsed();
            }
        }
        state.running.push(Arc::clone(&running));
        Ok((running, buffers))
    }

    /// Takes the memory; idle chunks and less urgent partitions make room if they must.
    fn reserve(&self, taken: &Taken) -> Result<Memory, WorkError> {
        let shared = &self.shared;
        let (path, what) = (taken.work.path(), format!("a {} partition", taken.work.name()));
        let cancelled = || taken.stop.is_raised();
        let look_again = match self.priority {
            Priority::Critical => LOOK_AGAIN_CRITICAL,
            _ => LOOK_AGAIN,
        };
        let mut nothing_ran_since = Instant::now();
        let mut deadline = nothing_ran_since; // at once, the first time
        loop {
            let state = shared.state.lock();
            let possible = state.possible;
            if !state.running.is_empty() {
                nothing_ran_since = Instant::now();
            }
            drop(state);
            let asked = shared.ask(&path, taken.predicted, possible);
            let needs = asked.total();
            if let Some(possible) = possible.filter(|&possible| needs > possible) {
                return Err(WorkError::NeverFits { what, needs, possible });
            }
            let ask = Ask::new("partition", needs).at(urgency(self.priority));
            let why = match shared.budget.reserve_unless(ask, deadline, &cancelled) {
                Ok(mut heap) => {
                    let buffers = heap.split(asked.buffers).ok_or(Interrupted)?;
                    return Ok(Memory { asked, buffers, heap });
                }
                Err(why) => why,
            };
            if cancelled() {
                return Err(Interrupted.into());
            }
            if matches!(why, ReserveError::NeverFits { .. } | ReserveError::Closed)
                || nothing_ran_since.elapsed() >= MEMORY_DEADLINE
            {
                return Err(WorkError::Memory { what, needs, why });
            }
            shared.make_room(self.priority, needs);
            deadline = Instant::now() + look_again;
        }
    }

    /// Hands a partition to a thread of its own.
    fn start(
        &self,
        taken: Taken,
        presence: Presence,
        (running, buffers): (Arc<Running>, Reservation),
    ) {
        let (shared, again) = (Arc::clone(&self.shared), taken.clone());
        let id = running.id;
        let thread = thread::Builder::new()
            .name(format!("partition-{id}"))
            .spawn(move || run(&shared, &taken, presence, running, buffers));
        if let Err(why) = thread {
            let ran = Ran { id, spent: None };
            self.shared.returned(&again, Err(WorkError::Thread(why)), Some(ran));
        }
    }
}

/// A partition's life on its thread, and what is left of it.
fn run(
    shared: &Arc<Shared>,
    taken: &Taken,
    presence: Presence,
    running: Arc<Running>,
    buffers: Reservation,
) {
    let tell = |stage| {
        if let Some(job) = shared.state.lock().jobs.get_mut(&taken.job) {
            job.stage = stage;
        }
    };
    let mut admitted = Admitted {
        pool: &shared.pool,
        turnstile: &shared.turnstile,
        threads: &shared.threads[running.priority as usize],
        presence,
        running: &running,
        buffers,
        tell: &tell,
        tries: taken.past.tries + 1,
        times: StageTimes::default(),
        srs_load: Duration::ZERO,
    };
    Account::charge_thread(Some(&running.account));
    // Filecoin's crates assert on what they do not expect, and a request's vanilla proofs reach
    // them: a panic there is that job's failure, nobody else's.
    let working = AssertUnwindSafe(|| taken.work.run(taken.partition, &mut admitted));
    let result = panic::catch_unwind(working)
        .unwrap_or_else(|payload| Err(WorkError::Panicked(message(&*payload))));
    Account::charge_thread(None);
    let spent = (admitted.srs_load, admitted.times);
    drop(admitted);
    give_back(shared, taken, &running, &result);
    shared.returned(taken, result, Some(Ran { id: running.id, spent: Some(spent) }));
}

/// Has a partition's memory leave the process, so that its reservation can end.
fn give_back(
    shared: &Shared,
    taken: &Taken,
    running: &Running,
    result: &Result<Vec<u8>, WorkError>,
) {
    let (path, peak) = (taken.work.path(), running.account.peak());
    match result {
        Ok(_) => shared.learned.measure(&path, taken.predicted, peak),
        // One that outgrew what it was admitted with asks for more the next time: else it would be
        // shed again.
        Err(WorkError::Interrupted(_))
            if peak > shared.learned.ask(&path, taken.predicted, u64::MAX).heap =>
        {
            shared.learned.measure(&path, taken.predicted, peak + peak / 8);
        }
        Err(_) => {}
    }
    if result.is_err() {
        // Shed or failed: what it used is not for the next one to reuse.
        shared.pool.release_idle(running.asked);
    }
    purge_allocator();
    let mut heap = running.heap.lock();
    let bytes = heap.bytes();
    heap.release(bytes);
}

impl State {
    /// Whether a partition of this priority may be started now, as far as numbers go.
    fn may_start(&self, priority: Priority) -> bool {
        let is_critical = |running: &&Arc<Running>| running.priority == Priority::Critical;
        let critical = self.running.iter().filter(is_critical).count();
        if priority == Priority::Critical {
            return critical < CRITICAL_AT_ONCE;
        }
        if self.admitting[Priority::Critical as usize] {
            return false;
        }
        let running = self.running.len() - critical;
        let rivals = priority as usize + 1..Priority::Critical as usize;
        let more_urgent = rivals.clone().filter(|&rival| self.admitting[rival]).count();
        let waits = self.jobs.values().any(|job| {
            rivals.contains(&(job.priority as usize))
                && !job.stop.is_raised()
                && job.next().is_some()
        });
        !waits && running + more_urgent < self.concurrency as usize
    }
}

impl Shared {
    /// What to reserve for a partition: what requests hold is not to be had, its own job's among them.
    pub(super) fn ask(&self, path: &str, predicted: Footprint, possible: Option<u64>) -> Footprint {
        let requests = self.budget.reserved(REQUESTS);
        let most = self.budget.usage().total.saturating_sub(requests);
        self.learned.ask(path, predicted, most.min(possible.unwrap_or(u64::MAX)))
    }

    /// Has idle chunks and less urgent partitions give back what is missing for `bytes`.
    fn make_room(&self, priority: Priority, bytes: u64) {
        let usage = self.budget.usage();
        let missing = (usage.reserved + bytes).saturating_sub(usage.total);
        let mut missing = missing.saturating_sub(self.pool.release_idle(missing));
        let state = self.state.lock();
        let less_urgent = state.running.iter().filter(|running| running.priority < priority);
        let mut victims: Vec<_> = less_urgent.map(|running| (running.view(), running)).collect();
        victims.sort_by(|(a, _), (b, _)| policy::cheaper(a, b));
        let mut shed = false;
        for (_, running) in victims {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(running.asked);
            running.stop.raise();
            shed = true;
        }
        drop(state);
        if shed {
            self.turnstile.nudge();
        }
    }
}

pub(super) fn urgency(priority: Priority) -> budget::Priority {
    match priority {
        Priority::Low => budget::Priority::Low,
        Priority::Normal => budget::Priority::Normal,
        Priority::High => budget::Priority::High,
        Priority::Critical => budget::Priority::Critical,
    }
}

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}
