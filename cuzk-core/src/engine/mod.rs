//! Jobs, their partitions, and who may work when and in how much memory.
//!
//! A job's content is a [`Work`]. Its partitions are admitted by the lane of its priority, one
//! after the other, when fewer run than the governor allows and their memory is reserved; then each
//! goes through its stages on a thread of its own, so that the stages of several overlap: while one
//! has the device, others synthesise. The turnstile decides who has the device, and lets the
//! more urgent overtake at the next checkpoint. A partition that is shed gives its memory back and
//! starts over when its place in the queue comes up again.
//!
//! Nothing large is kept outside the budget: a request's bytes are reserved when its job is accepted,
//! a partition's memory when it is admitted. The engine is the governor's plant.

mod circuits;
mod job;
mod lane;
mod learned;
mod plant;
mod prover;
mod running;
mod srs;
mod status;
#[cfg(test)]
mod tests;
mod turnstile;
mod work;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cuzk_governor::budget::MemoryBudget;
use cuzk_governor::governor::{Governor, Observer, Parts, Plant};
use cuzk_governor::sensor::kernel::KernelSensor;
use cuzk_governor::sensor::pressure::Trigger;
use cuzk_governor::sensor::resolve::Root;
use cuzk_governor::setpoints::Setpoints;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rayon::{ThreadPool, ThreadPoolBuilder};

pub use job::{JobId, JobResult, Outcome, Timings};
pub use srs::{SrsStatus, Tier};
pub use status::{EngineStatus, QueueStatus, RunningJob};
pub use work::{Admitted, Work, WorkError};

use crate::memory::{best_provider, PinnedPool};
use crate::params::{Params, ParamsError};
use crate::pipeline::Footprint;
use crate::proof::{CircuitId, Priority, ProofKind, ProofRequest};
use circuits::OpenCircuits;
use job::{Job, Part, Past, Waiter};
use lane::{Ran, Taken};
use learned::Learned;
use prover::{Prover, Proving};
use running::Running;
use srs::OpenSrs;
use turnstile::{StopFlag, Turnstile};

/// Bytes of one pool chunk.
const CHUNK_BYTES: usize = 4 << 20;

/// So small a part of the memory for request bodies is kept for critical ones.
const KEPT_FOR_CRITICAL: u64 = 8;

/// The ledger's line of what requests hold.
const REQUESTS: &str = "request";

/// How long a governor may take to end.
const LAST_ORDERS: Duration = Duration::from_secs(2);

/// How long the governor's first decision is waited for, beyond a tick.
const FIRST_DECISION: Duration = Duration::from_secs(5);

/// What the engine needs to know.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Filecoin's parameter files.
    pub params_dir: PathBuf,
    /// Native parameter files; beside Filecoin's when `None`.
    pub native_dir: Option<PathBuf>,
    /// Threads that compute.
    pub threads: usize,
    /// Partitions that may run at once, those of critical priority not counted, until a governor says
    /// otherwise.
    pub concurrency: u32,
    /// Bytes that the engine may hold in all, mapped parameters (which the kernel can reclaim) apart.
    pub memory_budget: u64,
    /// Jobs that may wait or run at a time.
    pub max_jobs: usize,
    /// Ended jobs whose outcome is kept for clients that ask later.
    pub keep_finished: usize,
}

/// Why the engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No threads.
    #[error("a thread could not be started: {0}")]
    Thread(String),
    /// No address space.
    #[error("{asked} bytes of address space for buffers were refused: {source} (is RLIMIT_AS set? `ulimit -v` shows it)")]
    AddressSpace {
        /// Bytes asked for.
        asked: u64,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A setting that cannot work.
    #[error("{0}")]
    Config(String),
}

/// Why a job was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The job needs more than there will ever be.
    #[error("{what} needs {needs} bytes of memory at its peak; the budget has {has} bytes for it ({total} in all): raise `memory_budget`, or use a larger machine")]
    NeverFits {
        /// The partition or the request.
        what: String,
        /// Bytes it needs.
        needs: u64,
        /// Bytes there are for it.
        has: u64,
        /// Bytes of the whole budget.
        total: u64,
    },
    /// Full for now.
    #[error("{what} is full ({limit}): try again in {} s", retry_after.as_secs())]
    Full {
        /// What is full.
        what: &'static str,
        /// Its bound.
        limit: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Shutting down.
    #[error("the daemon is shutting down: try again when it has restarted")]
    Closing,
    /// The circuit's parameters cannot be used.
    #[error(transparent)]
    Params(#[from] ParamsError),
}

/// No such job, or it ended so long ago that its outcome is forgotten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no job {0}: it was never accepted here, or it ended and made room for newer ones")]
pub struct UnknownJob(pub JobId);

/// An accepted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// To await or cancel it by.
    pub job_id: JobId,
    /// Jobs before it, running ones included.
    pub queue_position: u32,
    /// Whether it is an earlier job of the same request id and content.
    pub joined: bool,
}

/// The engine. Dropping it cancels everything.
pub struct Engine {
    shared: Arc<Shared>,
    lanes: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    config: EngineConfig,
    started: Instant,
    budget: MemoryBudget,
    /// The share of the budget that request bodies may take; partitions have the rest for sure.
    body_share: u64,
    pool: Arc<PinnedPool>,
    prover: Arc<Prover>,
    learned: Learned,
    turnstile: Arc<Turnstile>,
    /// The device's threads, a pool a priority: one that was overtaken stands still with work in its
    /// threads.
    threads: Vec<ThreadPool>,
    governor: Mutex<Option<Governor>>,
    state: Mutex<State>,
    /// A job came, ended, or the engine closes.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: HashMap<JobId, Job>,
    finished: HashMap<JobId, Finished>,
    finished_order: VecDeque<JobId>,
    /// The latest attempt of each request id.
    by_request: HashMap<String, Attempt>,
    running: Vec<Arc<Running>>,
    /// Partitions that may run at once, critical ones not counted.
    concurrency: u32,
    /// Whether the lane of a priority waits for memory.
    admitting: [bool; Priority::ALL.len()],
    /// Numbers partitions as they are started.
    next_run: u64,
    partitions_done: u64,
    sheds: u64,
    /// While jobs are refused for their size: the most that a partition can have.
    possible: Option<u64>,
    body_bytes: u64,
    next_place: u64,
    next_waiter: u64,
    closing: bool,
    completed: u64,
    failed: u64,
}

struct Attempt {
    job_id: JobId,
    content: blake3::Hash,
}

struct Finished {
    outcome: Arc<Outcome>,
    request_id: String,
}

/// Calls back when its job ends; dropping it means not to be called.
pub struct Watch {
    shared: Arc<Shared>,
    job_id: JobId,
    waiter: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(job) = self.shared.state.lock().jobs.get_mut(&self.job_id) {
            job.waiters.remove(&self.waiter);
        }
    }
}

impl Engine {
    /// Starts the lanes.
    ///
    /// # Errors
    /// [`EngineError`]: a setting that cannot work, or the kernel refuses.
    pub fn start(config: EngineConfig) -> Result<Arc<Self>, EngineError> {
        if config.threads == 0 || config.max_jobs == 0 || config.concurrency == 0 {
            let why = "threads, concurrency and max_jobs must be at least 1";
            return Err(EngineError::Config(why.into()));
        }
        // Twice the budget: a run of chunks can be found although others lie in between.
        let space = config.memory_budget.saturating_mul(2).max(1 << 30);
        let pool = PinnedPool::new(space, CHUNK_BYTES, best_provider())
            .map_err(|source| EngineError::AddressSpace { asked: space, source })?;
        let mut params = Params::new(&config.params_dir);
        if let Some(native_dir) = &config.native_dir {
            params = params.with_native_dir(native_dir);
        }
        let learned = Learned::open(params.native_dir());
        let prover = Prover {
            circuits: OpenCircuits::new(params.clone()),
            params: OpenSrs::new(params),
            pool: Arc::clone(&pool),
            threads: config.threads,
        };
        let shared = Arc::new(Shared {
            started: Instant::now(),
            budget: MemoryBudget::new(config.memory_budget),
            body_share: (config.memory_budget / 16).min(2 << 30),
            pool,
            prover: Arc::new(prover),
            learned,
            turnstile: Arc::default(),
            threads: device_threads(config.threads)?,
            governor: Mutex::default(),
            state: Mutex::new(State { concurrency: config.concurrency, ..State::default() }),
            changed: Condvar::new(),
            config,
        });
        let mut lanes = Vec::new();
        for priority in Priority::ALL {
            lanes.push(lane::spawn(Arc::clone(&shared), priority)?);
        }
        Ok(Arc::new(Self { shared, lanes: Mutex::new(lanes) }))
    }

    /// Has a governor size the budget, the concurrency and the pool from now on, by what the kernel
    /// leaves this process. Returns after its first decision. `observer` is shown every tick.
    ///
    /// # Errors
    /// What the kernel does not show, or a thread that cannot be started.
    pub fn govern(&self, setpoints: Setpoints, observer: Option<Observer>) -> io::Result<()> {
        let sensor = KernelSensor::open(Root::default()).map_err(io::Error::other)?;
        let (stall, window) = (setpoints.trigger_stall, setpoints.trigger_window);
        let alarm = Trigger::arm(&Root::default(), sensor.hierarchy(), stall, window);
        self.shared.pool.keep_idle(self.shared.budget.clone());
        let tick = setpoints.tick;
        let governor = Governor::start(Parts {
            sensor: Box::new(sensor),
            alarm: Box::new(alarm),
            budget: self.shared.budget.clone(),
            plant: self.plant(),
            setpoints,
            observer,
        })?;
        let deadline = Instant::now() + tick + FIRST_DECISION;
        while governor.status().ticks == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        *self.shared.governor.lock() = Some(governor);
        Ok(())
    }

    /// Accepts a request, or finds the job that it repeats.
    ///
    /// The same request id with the same content joins the job that is queued, running or
    /// completed; after a failure or cancellation, and with other content, it is a new attempt.
    ///
    /// # Errors
    /// [`SubmitError`]; the request is not kept then.
    pub fn submit(&self, request: ProofRequest) -> Result<Submitted, SubmitError> {
        let prover = Arc::clone(&self.shared.prover);
        self.submit_work(Arc::new(Proving { request, prover }))
    }

    /// The same for work of any sort.
    ///
    /// # Errors
    /// [`SubmitError`]; the work is not kept then.
    pub fn submit_work(&self, work: Arc<dyn Work>) -> Result<Submitted, SubmitError> {
        let shared = &self.shared;
        let content = work.content_hash();
        if let Some(joined) = shared.find_attempt(&shared.state.lock(), &*work, &content) {
            return Ok(joined);
        }
        // Outside the lock: it may have to read a file's header.
        let predicted = work.footprint()?;
        shared.check_it_can_ever_fit(&*work, predicted)?;

        let mut state = shared.state.lock();
        if state.closing {
            return Err(SubmitError::Closing);
        }
        if let Some(joined) = shared.find_attempt(&state, &*work, &content) {
            return Ok(joined);
        }
        let job = shared.accept(&mut state, work, predicted)?;
        let (job_id, work) = (job.id.clone(), Arc::clone(&job.work));
        let request_id = work.request_id().to_owned();
        tracing::info!(job = %job_id, request = request_id, kind = %work.kind(),
            priority = ?job.priority, "job.accepted");
        metrics::counter!("cuzk_jobs_accepted_total", "kind" => work.kind().to_string())
            .increment(1);
        if !request_id.is_empty() {
            let attempt = Attempt { job_id: job_id.clone(), content };
            state.by_request.insert(request_id, attempt);
        }
        state.jobs.insert(job_id.clone(), job);
        shared.changed.notify_all();
        let queue_position = state.position(&job_id);
        Ok(Submitted { job_id, queue_position, joined: false })
    }

    /// Calls `then` once with the job's outcome, at once if it has ended, unless the returned
    /// [`Watch`] is dropped before. `then` must not block.
    ///
    /// # Errors
    /// [`UnknownJob`].
    pub fn watch(
        &self,
        job_id: &JobId,
        then: impl FnOnce(Arc<Outcome>) + Send + 'static,
    ) -> Result<Watch, UnknownJob> {
        let mut state = self.shared.state.lock();
        let waiter = state.next_waiter;
        state.next_waiter += 1;
        if let Some(finished) = state.finished.get(job_id) {
            let outcome = Arc::clone(&finished.outcome);
            drop(state);
            then(outcome);
        } else if let Some(job) = state.jobs.get_mut(job_id) {
            job.waiters.insert(waiter, Box::new(then));
        } else {
            return Err(UnknownJob(job_id.clone()));
        }
        Ok(Watch { shared: Arc::clone(&self.shared), job_id: job_id.clone(), waiter })
    }

    /// Blocks until the job ends; `None` when `deadline` passes first.
    ///
    /// # Errors
    /// [`UnknownJob`].
    pub fn wait(
        &self,
        job_id: &JobId,
        deadline: Instant,
    ) -> Result<Option<Arc<Outcome>>, UnknownJob> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let _watch = self.watch(job_id, move |outcome| {
            let _ = sender.send(outcome);
        })?;
        Ok(receiver.recv_deadline(deadline).ok())
    }

    /// Ends a job: at once if it waits, at its next checkpoint if it runs. Returns whether it ran.
    /// A job that has ended stays as it is.
    ///
    /// # Errors
    /// [`UnknownJob`].
    pub fn cancel(&self, job_id: &JobId) -> Result<bool, UnknownJob> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let Some(job) = state.jobs.get(job_id) else {
            let known = state.finished.contains_key(job_id);
            return if known { Ok(false) } else { Err(UnknownJob(job_id.clone())) };
        };
        job.stop.raise();
        if job.is_busy() {
            drop(state);
            shared.turnstile.nudge();
            shared.budget.nudge();
            return Ok(true);
        }
        let (started, mut timings) = (job.started, job.timings);
        if !started {
            timings.queue_wait = job.accepted.elapsed();
        }
        let ended = shared.end(&mut state, job_id, JobResult::Cancelled, timings);
        drop(state);
        ended.tell();
        Ok(started)
    }

    /// Opens a circuit's parameters, converting them if need be, so that its next proof need not.
    /// Returns whether they were open.
    ///
    /// # Errors
    /// [`ParamsError`].
    pub fn preload(&self, circuit: CircuitId) -> Result<bool, ParamsError> {
        let open = self.shared.prover.params.opened(circuit).is_some();
        self.shared.prover.params.open(circuit, &crate::device::Unhindered)?;
        Ok(open)
    }

    /// Closes a circuit's parameters when no proof uses them. Returns the bytes unmapped, `None`
    /// when they were not open.
    pub fn evict(&self, circuit: CircuitId) -> Option<u64> {
        let prover = &self.shared.prover;
        let parameters = prover.params.close(circuit)?;
        Some(parameters + prover.circuits.close(circuit).unwrap_or(0))
    }

    /// Accepts nothing more, lets jobs finish until `deadline`, then cancels what is left and ends
    /// the lanes.
    pub fn shutdown(&self, deadline: Instant) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state.closing = true;
        while !state.jobs.is_empty() && !shared.changed.wait_until(&mut state, deadline).timed_out()
        {
        }
        let left: Vec<JobId> = state.jobs.keys().cloned().collect();
        drop(state);
        for job_id in left {
            let _ = self.cancel(&job_id);
        }
        shared.changed.notify_all();
        for lane in self.lanes.lock().drain(..) {
            let _ = lane.join();
        }
        let governor = shared.governor.lock().take();
        let stopped = governor.map(|governor| governor.stop(Instant::now() + LAST_ORDERS));
        if let Some(Err(error)) = stopped {
            tracing::warn!(%error, "governor.left_behind");
        }
    }

    /// A look at everything.
    pub fn status(&self) -> EngineStatus {
        status::read(&self.shared)
    }

    /// The engine as a governor sees it: for who governs it otherwise than by [`Engine::govern`].
    pub fn plant(&self) -> Arc<dyn Plant> {
        Arc::clone(&self.shared) as _
    }

    /// The ledger of all memory.
    pub fn budget(&self) -> &MemoryBudget {
        &self.shared.budget
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(Instant::now());
    }
}

/// A job that has ended, and whom to tell once the lock is released.
#[must_use]
struct Ended {
    outcome: Arc<Outcome>,
    waiters: Vec<Waiter>,
}

impl Ended {
    fn tell(self) {
        for waiter in self.waiters {
            waiter(Arc::clone(&self.outcome));
        }
    }
}

impl Shared {
    fn check_it_can_ever_fit(
        &self,
        work: &dyn Work,
        predicted: Footprint,
    ) -> Result<(), SubmitError> {
        let total = self.config.memory_budget.max(self.budget.usage().total);
        let never =
            |what: String, needs, has| Err(SubmitError::NeverFits { what, needs, has, total });
        let possible = self.state.lock().possible.unwrap_or(u64::MAX);
        let has = (total - self.body_share).min(possible);
        let needs = self.learned.ask(&work.path(), predicted, has).total();
        if needs > has {
            return never(format!("a {} partition", work.name()), needs, has);
        }
        let body = work.body_bytes();
        let share = self.bodies_at(work.priority());
        if body > share {
            return never("the request itself".into(), body, share);
        }
        Ok(())
    }

    /// Bytes that all request bodies may take together when one of this priority is added.
    fn bodies_at(&self, priority: Priority) -> u64 {
        match priority {
            Priority::Critical => self.body_share,
            _ => self.body_share - self.body_share / KEPT_FOR_CRITICAL,
        }
    }

    fn find_attempt(
        &self,
        state: &MutexGuard<'_, State>,
        work: &dyn Work,
        content: &blake3::Hash,
    ) -> Option<Submitted> {
        let attempt = state.by_request.get(work.request_id())?;
        if attempt.content != *content {
            return None;
        }
        let job_id = attempt.job_id.clone();
        let completed =
            |finished: &Finished| matches!(finished.outcome.result, JobResult::Completed(_));
        let queue_position = match state.jobs.get(&job_id) {
            Some(job) if job.stop.is_raised() => return None,
            Some(_) => state.position(&job_id),
            None if state.finished.get(&job_id).is_some_and(completed) => 0,
            None => return None,
        };
        Some(Submitted { job_id, queue_position, joined: true })
    }

    fn accept(
        &self,
        state: &mut State,
        work: Arc<dyn Work>,
        predicted: Footprint,
    ) -> Result<Job, SubmitError> {
        let full = |what, limit| {
            Err(SubmitError::Full { what, limit, retry_after: Duration::from_secs(30) })
        };
        if state.jobs.len() >= self.config.max_jobs {
            return full("the queue", format!("{} jobs", self.config.max_jobs));
        }
        let bytes = work.body_bytes();
        let share = self.bodies_at(work.priority());
        if state.body_bytes + bytes > share {
            return full("the memory for waiting requests", format!("{share} bytes"));
        }
        // It has been received, so it is there, however full of partitions the memory may be.
        let body = self.budget.enter(REQUESTS, bytes);
        state.body_bytes += bytes;
        state.next_place += 1;
        Ok(Job {
            id: JobId::fresh(),
            priority: work.priority(),
            accepted: Instant::now(),
            place: state.next_place,
            stop: StopFlag::default(),
            stage: "queued",
            started: false,
            parts: vec![Part::Waiting(Past::default()); work.partitions()],
            predicted,
            timings: Timings::default(),
            failure: None,
            waiters: HashMap::new(),
            body,
            work,
        })
    }

    /// Moves a job to the finished ones. Counts it, logs it, forgets the oldest.
    fn end(
        &self,
        state: &mut State,
        job_id: &JobId,
        result: JobResult,
        mut timings: Timings,
    ) -> Ended {
        if let Some(job) = state.jobs.get(job_id) {
            timings.total = job.accepted.elapsed();
        }
        let outcome = Arc::new(Outcome { result, timings });
        let Some(job) = state.jobs.remove(job_id) else {
            return Ended { outcome, waiters: vec![] };
        };
        state.body_bytes -= job.body.bytes();
        let kind = job.work.kind().to_string();
        let ending = match &outcome.result {
            JobResult::Completed(_) => {
                state.completed += 1;
                "completed"
            }
            JobResult::Failed(why) => {
                state.failed += 1;
                tracing::error!(job = %job_id, kind, why, "job.failed");
                "failed"
            }
            JobResult::Cancelled => "cancelled",
        };
        tracing::info!(job = %job_id, kind, ending, total_ms = timings.total.as_millis() as u64, "job.ended");
        metrics::counter!("cuzk_jobs_ended_total", "kind" => kind.clone(), "ending" => ending)
            .increment(1);
        metrics::histogram!("cuzk_job_seconds", "kind" => kind).record(timings.total.as_secs_f64());

        let request_id = job.work.request_id().to_owned();
        state
            .finished
            .insert(job_id.clone(), Finished { outcome: Arc::clone(&outcome), request_id });
        state.finished_order.push_back(job_id.clone());
        while state.finished_order.len() > self.config.keep_finished {
            state.forget_oldest();
        }
        self.changed.notify_all();
        Ended { outcome, waiters: job.waiters.into_values().collect() }
    }

    /// Takes a partition back from the one who ran it, or who could not.
    fn returned(&self, taken: &Taken, result: Result<Vec<u8>, WorkError>, ran: Option<Ran>) {
        let (job_id, partition) = (&taken.job, taken.partition);
        let mut state = self.state.lock();
        if let Some(ran) = &ran {
            // With the part's return, under one lock: a lane that looks in between would give its place
            // to a younger job.
            state.running.retain(|running| running.id != ran.id);
        }
        let done = result.is_ok();
        let Some(job) = state.jobs.get_mut(job_id) else { return };
        if let Some((srs_load, times)) = ran.and_then(|ran| ran.spent) {
            job.timings.srs_load += srs_load;
            job.timings.add(times);
        }
        let mut past = job.past(partition);
        let mut shed = false;
        job.parts[partition] = match result {
            Ok(result) => Part::Done(result),
            Err(WorkError::Interrupted(_)) if !job.stop.is_raised() => {
                past.sheds += 1;
                shed = true;
                job.stage = "shed";
                tracing::info!(job = %job_id, partition, sheds = past.sheds, "partition.shed");
                metrics::counter!("cuzk_partitions_shed_total").increment(1);
                Part::Waiting(past)
            }
            Err(WorkError::Again) => {
                past.tries += 1;
                Part::Waiting(past)
            }
            Err(why) => {
                if !matches!(why, WorkError::Interrupted(_)) {
                    job.failure.get_or_insert_with(|| why.to_string());
                    job.stop.raise();
                }
                Part::Waiting(past)
            }
        };
        let ending = job.ending().map(|result| (result, job.timings));
        state.partitions_done += u64::from(done);
        state.sheds += u64::from(shed);
        let ended = ending.map(|(result, timings)| self.end(&mut state, job_id, result, timings));
        drop(state);
        self.changed.notify_all();
        self.turnstile.nudge();
        if let Some(ended) = ended {
            ended.tell();
        }
    }
}

/// The device's pools of threads, by priority.
fn device_threads(threads: usize) -> Result<Vec<ThreadPool>, EngineError> {
    let pool = |priority: Priority| {
        ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(move |i| format!("{priority}-{i}"))
            .build()
            .map_err(|why| EngineError::Thread(why.to_string()))
    };
    Priority::ALL.into_iter().map(pool).collect()
}

impl State {
    /// Jobs that go before this one.
    fn position(&self, job_id: &JobId) -> u32 {
        let Some(job) = self.jobs.get(job_id) else { return 0 };
        let before = |other: &&Job| {
            other.priority > job.priority
                || other.priority == job.priority && other.place < job.place
        };
        self.jobs.values().filter(before).count() as u32
    }

    /// Of the partitions that wait for memory, one of the least footprint; of all that wait, while none
    /// does. Later ones stand behind those, however small they are.
    fn smallest_waiting(&self) -> Option<(String, Footprint)> {
        let smallest = |waits: &dyn Fn(&Job) -> bool| {
            let waiting = self.jobs.values().filter(|job| waits(job));
            waiting.min_by_key(|job| job.predicted.total())
        };
        let job = smallest(&|job| self.is_admitting(job))
            .or_else(|| smallest(&|job| job.next().is_some()))?;
        Some((job.work.path(), job.predicted))
    }

    /// Whether a partition of `job` waits for memory.
    fn is_admitting(&self, job: &Job) -> bool {
        let taken = job.parts.iter().filter(|part| matches!(part, Part::Taken(_))).count();
        taken > self.running.iter().filter(|running| running.job == job.id).count()
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.finished_order.pop_front() else { return };
        let Some(finished) = self.finished.remove(&oldest) else { return };
        if self.by_request.get(&finished.request_id).is_some_and(|a| a.job_id == oldest) {
            self.by_request.remove(&finished.request_id);
        }
    }

    fn count(&self, kind: ProofKind, running: bool) -> u32 {
        let is = |job: &&Job| job.work.kind() == kind && job.started == running;
        self.jobs.values().filter(is).count() as u32
    }
}
