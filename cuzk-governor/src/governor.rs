//! The governor's threads, and what they govern: a [`Plant`].
//!
//! The *watcher* samples, decides, and sets the budget's total: every tick, and at once when
//! the alarm rings. It takes no lock that a worker can hold long, keeps its files open, and
//! allocates nothing while nothing changes. The *hands* call the plant: they ask for the
//! workload and carry the orders over. A plant that blocks stops the hands only; the watcher
//! then reports it, decides on the last workload it knows, and still holds the lever that
//! matters most, the budget. Every order is logged with its figures before it is handed over,
//! for SIGKILL leaves no trace.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::budget::{MemoryBudget, Usage};
use crate::headroom::{Forecaster, Headroom};
use crate::policy::{self, Action, Decision, State, Workload};
use crate::sensor::pressure::{Trigger, Woken};
use crate::sensor::{Sample, Sensor};
use crate::setpoints::Setpoints;

use figures::Figures;
pub use hands::purge_allocator;
use hands::Hands;

mod figures;
mod hands;
#[cfg(all(test, not(loom)))]
mod tests;

/// For how long the watcher waits for a fresh workload before it decides on the last one.
const PATIENCE: Duration = Duration::from_millis(10);
/// Between two ticks at least, however often the alarm rings or however late the last one was.
const EARLIEST: Duration = Duration::from_millis(25);
/// Wanted of the scheduler; without the privilege it stays as it is.
const NICE: libc::c_int = -10;
/// So many orders are remembered for the status.
const REMEMBERED: usize = 32;

/// What is governed. Both calls come from the hands, one at a time, never from the watcher.
pub trait Plant: Send + Sync {
    /// Reports the present work into `into`, reusing its storage. Every field is set anew.
    fn workload(&self, into: &mut Workload);

    /// Does it, or begins to. The next sample tells how much it helped.
    fn apply(&self, action: Action);
}

/// What rings between two ticks.
pub trait Alarm: Send {
    /// Sleeps until memory gets short, until `wake` is readable, or for `timeout`.
    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>) -> Woken;
}

impl Alarm for Trigger {
    fn wait(&mut self, timeout: Duration, wake: BorrowedFd<'_>) -> Woken {
        Trigger::wait(self, timeout, Some(wake))
    }
}

/// Everything about one tick, for whoever records it. Its orders are not yet handed over.
#[derive(Clone, Copy, Debug)]
pub struct Tick<'a> {
    /// The reading.
    pub sample: &'a Sample,
    /// The ledger at that instant.
    pub usage: &'a Usage,
    /// The last known workload.
    pub workload: &'a Workload,
    /// What is left.
    pub headroom: &'a Headroom,
    /// What was decided.
    pub decision: &'a Decision,
    /// What is ordered.
    pub actions: &'a [Action],
}

/// Is shown every tick, on the watcher's thread: it must not block.
pub type Observer = Box<dyn FnMut(&Tick<'_>) + Send>;

/// What a governor is made of.
pub struct Parts {
    /// Reads the kernel.
    pub sensor: Box<dyn Sensor>,
    /// Rings between ticks.
    pub alarm: Box<dyn Alarm>,
    /// The ledger it sets the total of.
    pub budget: MemoryBudget,
    /// What it governs.
    pub plant: Arc<dyn Plant>,
    /// The knobs.
    pub setpoints: Setpoints,
    /// Whoever records.
    pub observer: Option<Observer>,
}

/// An order that was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deed {
    /// What was ordered.
    pub action: Action,
    /// The figures that caused it.
    pub headroom: Headroom,
}

/// What the governor is about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// Ticks so far.
    pub ticks: u64,
    /// The last headroom.
    pub headroom: Headroom,
    /// The last decision.
    pub decision: Decision,
    /// For how long the plant has not come back from a call; zero while it does.
    pub stuck: Duration,
    /// The last orders, oldest first.
    pub deeds: Vec<Deed>,
}

/// A thread did not end in time. It is left to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the governor's {thread} did not end within {waited:?}: the plant does not return")]
pub struct StopError {
    /// Which.
    pub thread: &'static str,
    /// For how long it was waited for.
    pub waited: Duration,
}

/// A running governor. Dropped, it ends by itself, without being waited for.
pub struct Governor {
    published: Arc<Mutex<Published>>,
    hands: Arc<Hands>,
    wake: UnixStream,
    threads: [(&'static str, JoinHandle<()>); 2],
}

impl Governor {
    /// Starts the threads. The first tick comes at once.
    pub fn start(parts: Parts) -> io::Result<Self> {
        let (wake, woken) = UnixStream::pair()?;
        let hands = Arc::new(Hands::new(parts.plant));
        let published = Arc::new(Mutex::new(Published::default()));
        let mut watcher = Watcher {
            sensor: parts.sensor,
            alarm: parts.alarm,
            budget: parts.budget,
            hands: hands.clone(),
            set: parts.setpoints,
            observer: parts.observer,
            published: published.clone(),
            figures: Figures::register(),
            sample: Sample::default(),
            forecaster: Forecaster::new(),
            workload: Workload::default(),
            state: State::new(),
            actions: Vec::with_capacity(64),
            blind: false,
            stuck: false,
        };
        let watch = move || watcher.run(&woken);
        let watcher = thread::Builder::new().name("cuzk-governor".into()).spawn(watch)?;
        let carry = {
            let hands = hands.clone();
            move || hands.run()
        };
        let carrier = thread::Builder::new().name("cuzk-gov-hands".into()).spawn(carry)?;
        let threads = [("watcher", watcher), ("hands", carrier)];
        Ok(Self { published, hands, wake, threads })
    }

    /// What it is about.
    pub fn status(&self) -> Status {
        let published = *self.published.lock();
        Status {
            ticks: published.ticks,
            headroom: published.headroom,
            decision: published.decision,
            stuck: published.stuck,
            deeds: published.deeds(),
        }
    }

    /// Ends both threads and waits for them until `deadline`.
    pub fn stop(self, deadline: Instant) -> Result<(), StopError> {
        let begun = Instant::now();
        self.signal();
        for (thread, handle) in &self.threads {
            while !handle.is_finished() {
                if Instant::now() >= deadline {
                    return Err(StopError { thread, waited: begun.elapsed() });
                }
                thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    fn signal(&self) {
        self.hands.stop();
        // A full or closed pipe means that it was told already.
        let _ = (&self.wake).write(&[1]);
    }
}

impl Drop for Governor {
    fn drop(&mut self) {
        self.signal();
    }
}

/// The last tick, as the status shows it. Copied whole, so that the lock is held briefly.
#[derive(Clone, Copy, Default)]
struct Published {
    ticks: u64,
    headroom: Headroom,
    decision: Decision,
    stuck: Duration,
    deeds: [Option<Deed>; REMEMBERED],
    given: usize,
}

impl Published {
    fn remember(&mut self, deed: Deed) {
        self.deeds[self.given % REMEMBERED] = Some(deed);
        self.given += 1;
    }

    fn deeds(&self) -> Vec<Deed> {
        let slots = self.given..self.given + REMEMBERED;
        slots.filter_map(|slot| self.deeds[slot % REMEMBERED]).collect()
    }
}

struct Watcher {
    sensor: Box<dyn Sensor>,
    alarm: Box<dyn Alarm>,
    budget: MemoryBudget,
    hands: Arc<Hands>,
    set: Setpoints,
    observer: Option<Observer>,
    published: Arc<Mutex<Published>>,
    figures: Figures,
    sample: Sample,
    forecaster: Forecaster,
    workload: Workload,
    state: State,
    actions: Vec<Action>,
    /// Whether the last sample failed, and whether the plant is reported as stuck: said once.
    blind: bool,
    stuck: bool,
}

impl Watcher {
    fn run(&mut self, woken: &UnixStream) {
        raise_priority();
        let mut next = Instant::now();
        loop {
            let begun = Instant::now();
            // The last line of defence: a governor that ended would leave the budget as it is.
            if panic::catch_unwind(AssertUnwindSafe(|| self.tick())).is_err() {
                tracing::error!("governor.tick_panicked");
                metrics::counter!("cuzk_governor_panics_total").increment(1);
            }
            next = (next + self.set.tick).max(begun + EARLIEST.min(self.set.tick));
            let left = next.saturating_duration_since(Instant::now());
            match self.alarm.wait(left, woken.as_fd()) {
                Woken::ByCaller => return,
                Woken::ByPressure => {
                    thread::sleep(EARLIEST.saturating_sub(begun.elapsed()));
                    next = Instant::now();
                }
                Woken::ByTimeout => {}
            }
        }
    }

    fn tick(&mut self) {
        self.look();
        let usage = self.budget.usage();
        let headroom = self.forecaster.observe(&self.sample, &usage, &self.set);
        self.hands.fetch(&mut self.workload, if self.stuck { Duration::ZERO } else { PATIENCE });
        let decision = policy::decide(
            &mut self.state,
            &headroom,
            &self.workload,
            &self.set,
            &mut self.actions,
        );
        self.budget.set_total(decision.total);
        self.budget.set_ceiling(decision.ceiling);
        for action in &self.actions {
            figures::log(action, &headroom, &self.workload);
        }
        if let Some(observer) = &mut self.observer {
            let (sample, workload, actions) = (&self.sample, &self.workload, &self.actions[..]);
            let decision = &decision;
            observer(&Tick {
                sample,
                usage: &usage,
                workload,
                headroom: &headroom,
                decision,
                actions,
            });
        }
        let stuck = self.watch_plant();
        self.publish(headroom, decision, stuck);
        self.figures.show(&headroom, &decision, &usage, stuck);
        let dropped = self.hands.order(&self.actions);
        self.figures.count(&self.actions, dropped);
    }

    /// Takes a sample; a failure leaves the last one, which is stale then.
    fn look(&mut self) {
        match self.sensor.sample(&mut self.sample) {
            Ok(()) => self.blind = false,
            Err(error) => {
                if !std::mem::replace(&mut self.blind, true) {
                    tracing::error!(%error, "governor cannot sample: the margin grows until it can");
                }
            }
        }
    }

    /// For how long the plant has kept the hands, if too long.
    fn watch_plant(&mut self) -> Duration {
        let kept = self.hands.kept();
        let stuck = kept >= self.set.watchdog;
        if stuck && !self.stuck {
            tracing::error!(?kept, "plant does not return: governing by the budget alone");
        }
        self.stuck = stuck;
        if stuck {
            kept
        } else {
            Duration::ZERO
        }
    }

    fn publish(&self, headroom: Headroom, decision: Decision, stuck: Duration) {
        let mut published = self.published.lock();
        published.ticks += 1;
        (published.headroom, published.decision, published.stuck) = (headroom, decision, stuck);
        for &action in &self.actions {
            published.remember(Deed { action, headroom });
        }
    }
}

fn raise_priority() {
    // SAFETY: takes numbers only; who = 0 is the calling thread, on Linux.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(%error, "governor keeps its scheduling priority");
    }
}
