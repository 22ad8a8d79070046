//! Who computes now: one at a time, the most urgent first.
//!
//! The holder of the [`Turn`] asks at every checkpoint whether somebody more urgent waits, and steps
//! back in line if so, with its old place: it goes on before everyone who came later with the same
//! priority. So a WinningPoSt waits for one chunk of a PoRep, never for the whole of it.
//!
//! While a partition of critical priority is present, on the host or on the device or waiting for its
//! memory, all others pause at their next checkpoint, wherever they are: host work of theirs would
//! take its processors, and those of whoever is to leave for it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::device::{Checkpoint, Interrupted};
use crate::proof::Priority;

/// How long a waiter sleeps before it looks at its stop flag again, should a wake-up ever be lost.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Urgency first, then arrival: the smallest goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    rank: u8,
    arrival: u64,
}

impl Ticket {
    /// As one number that an atomic can hold, in the same order.
    fn packed(self) -> u64 {
        u64::from(self.rank) << 56 | (self.arrival & ((1 << 56) - 1))
    }
}

const NOBODY: u64 = u64::MAX;

fn rank(priority: Priority) -> u8 {
    u8::MAX - priority as u8
}

/// Packed, behind every critical ticket and before all others.
const PAUSE: u64 = ((u8::MAX - Priority::Critical as u8) as u64 + 1) << 56;

/// The one place from which the device is used.
#[derive(Debug)]
pub struct Turnstile {
    line: Mutex<Line>,
    moved: Condvar,
    /// The first in line, packed, or [`PAUSE`]: read without the lock at every checkpoint.
    first: AtomicU64,
    /// See [`Turnstile::strain`]; milliseconds since `start`.
    strained_until: AtomicU64,
    start: Instant,
}

#[derive(Debug, Default)]
struct Line {
    taken: bool,
    /// Partitions of critical priority that are present.
    critical: usize,
    waiting: BTreeSet<Ticket>,
    arrivals: u64,
}

/// Ends somebody's work at its next checkpoint, from outside.
#[derive(Debug, Clone, Default)]
pub struct StopFlag {
    own: Arc<AtomicBool>,
    parent: Option<Arc<AtomicBool>>,
}

impl StopFlag {
    /// A flag that is raised with this one, and can be raised alone: to shed a partition of a job
    /// that goes on.
    pub fn child(&self) -> Self {
        Self { own: Arc::default(), parent: Some(Arc::clone(&self.own)) }
    }

    /// Ends it.
    pub fn raise(&self) {
        self.own.store(true, Ordering::Release);
    }

    /// Whether it is to end.
    pub fn is_raised(&self) -> bool {
        let raised = |flag: &Arc<AtomicBool>| flag.load(Ordering::Acquire);
        raised(&self.own) || self.parent.as_ref().is_some_and(raised)
    }
}

impl Default for Turnstile {
    fn default() -> Self {
        Self {
            line: Mutex::default(),
            moved: Condvar::new(),
            first: AtomicU64::new(NOBODY),
            strained_until: AtomicU64::new(0),
            start: Instant::now(),
        }
    }
}

impl Turnstile {
    /// Waits for the turn.
    ///
    /// # Errors
    /// [`Interrupted`] when `stop` is raised first.
    pub fn enter(&self, priority: Priority, stop: &StopFlag) -> Result<Turn<'_>, Interrupted> {
        let ticket = {
            let mut line = self.line.lock();
            line.arrivals += 1;
            Ticket { rank: rank(priority), arrival: line.arrivals }
        };
        self.wait(ticket, stop)?;
        Ok(Turn {
            turnstile: self,
            ticket,
            stop: stop.clone(),
            held: AtomicBool::new(true),
            stepping: Mutex::new(()),
        })
    }

    /// Has those who read mapped files drop what they have read, for so long.
    pub fn strain(&self, lasts: Duration) {
        let until = (self.start.elapsed() + lasts).as_millis() as u64;
        self.strained_until.fetch_max(until, Ordering::Relaxed);
    }

    fn is_strained(&self) -> bool {
        let until = self.strained_until.load(Ordering::Relaxed);
        until > 0 && (self.start.elapsed().as_millis() as u64) < until
    }

    /// Wakes everyone in line to look at their stop flags.
    pub fn nudge(&self) {
        drop(self.line.lock());
        self.moved.notify_all();
    }

    fn wait(&self, ticket: Ticket, stop: &StopFlag) -> Result<(), Interrupted> {
        let mut line = self.line.lock();
        line.waiting.insert(ticket);
        self.publish(&line);
        let granted = loop {
            if stop.is_raised() {
                break Err(Interrupted);
            }
            let paused = line.critical > 0 && ticket.packed() >= PAUSE;
            if !line.taken && !paused && line.waiting.first() == Some(&ticket) {
                line.taken = true;
                break Ok(());
            }
            self.moved.wait_for(&mut line, LOOK_AGAIN);
        };
        line.waiting.remove(&ticket);
        self.publish(&line);
        drop(line);
        if granted.is_err() {
            self.moved.notify_all();
        }
        granted
    }

    /// Leaves and stands in line again, in one: nobody of a later place goes in between.
    fn step_back(&self, ticket: Ticket) {
        let mut line = self.line.lock();
        line.waiting.insert(ticket);
        line.taken = false;
        self.publish(&line);
        drop(line);
        self.moved.notify_all();
    }

    fn leave(&self) {
        self.line.lock().taken = false;
        self.moved.notify_all();
    }

    fn publish(&self, line: &Line) {
        let first = line.waiting.first().map_or(NOBODY, |ticket| ticket.packed());
        let first = if line.critical > 0 { first.min(PAUSE) } else { first };
        self.first.store(first, Ordering::Release);
    }

    /// Announces a partition that is to work; it is present until the result is dropped.
    pub fn arrive(self: &Arc<Self>, priority: Priority, stop: &StopFlag) -> Presence {
        if priority == Priority::Critical {
            let mut line = self.line.lock();
            line.critical += 1;
            self.publish(&line);
        }
        Presence { turnstile: Arc::clone(self), priority, stop: stop.clone() }
    }

    /// Waits until no critical partition is present.
    fn pause(&self, stop: &StopFlag) -> Result<(), Interrupted> {
        let mut line = self.line.lock();
        while line.critical > 0 {
            if stop.is_raised() {
                return Err(Interrupted);
            }
            self.moved.wait_for(&mut line, LOOK_AGAIN);
        }
        Ok(())
    }
}

/// A partition at work, on the host or on the device, or about to be. Its [`Checkpoint`] is the host's:
/// it pauses while something critical is present.
#[derive(Debug)]
pub struct Presence {
    turnstile: Arc<Turnstile>,
    priority: Priority,
    stop: StopFlag,
}

impl Checkpoint for Presence {
    fn check(&self) -> Result<(), Interrupted> {
        if self.stop.is_raised() {
            return Err(Interrupted);
        }
        let paused = self.turnstile.first.load(Ordering::Acquire) <= PAUSE;
        if paused && self.priority != Priority::Critical {
            self.turnstile.pause(&self.stop)?;
        }
        Ok(())
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        if self.priority == Priority::Critical {
            let mut line = self.turnstile.line.lock();
            line.critical -= 1;
            self.turnstile.publish(&line);
            drop(line);
            self.turnstile.moved.notify_all();
        }
    }
}

/// The right to compute, given up when dropped. Its [`Checkpoint`] lets the more urgent go first.
#[derive(Debug)]
pub struct Turn<'a> {
    turnstile: &'a Turnstile,
    ticket: Ticket,
    stop: StopFlag,
    held: AtomicBool,
    stepping: Mutex<()>,
}

impl Checkpoint for Turn<'_> {
    fn check(&self) -> Result<(), Interrupted> {
        if self.stop.is_raised() {
            return Err(Interrupted);
        }
        if self.goes_on() {
            return Ok(());
        }
        // The first of the work's threads to come here steps back in line; the others wait behind it.
        let _stepping = self.stepping.lock();
        if self.goes_on() {
            return Ok(());
        }
        if !self.held.swap(false, Ordering::AcqRel) {
            return Err(Interrupted); // stopped while it stood in line
        }
        self.turnstile.step_back(self.ticket);
        self.turnstile.wait(self.ticket, &self.stop)?;
        self.held.store(true, Ordering::Release);
        Ok(())
    }

    fn is_strained(&self) -> bool {
        self.turnstile.is_strained()
    }
}

impl Turn<'_> {
    /// Whether the turn is held and nobody more urgent waits.
    fn goes_on(&self) -> bool {
        self.held.load(Ordering::Acquire)
            && self.turnstile.first.load(Ordering::Acquire) >= self.ticket.packed()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if *self.held.get_mut() {
            self.turnstile.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    fn until(what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !condition() {
            assert!(Instant::now() < deadline, "{what} did not happen in 10 s");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_more_urgent_overtakes_at_a_checkpoint_and_the_holder_returns() {
        let turnstile = Turnstile::default();
        let stop = StopFlag::default();
        let slow = turnstile.enter(Priority::Normal, &stop).unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                let _turn = turnstile.enter(Priority::Critical, &stop).unwrap();
                order.lock().push("winning");
            });
            until("the urgent one in line", || turnstile.line.lock().waiting.len() == 1);
            slow.check().unwrap();
            order.lock().push("porep");
        });
        assert_eq!(*order.lock(), ["winning", "porep"]);
    }

    #[test]
    fn the_holder_keeps_its_place_before_later_ones_of_its_priority() {
        let turnstile = Turnstile::default();
        let stop = StopFlag::default();
        let first = turnstile.enter(Priority::Normal, &stop).unwrap();
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for (name, priority) in [("later", Priority::Normal), ("urgent", Priority::High)] {
                let (turnstile, stop, order) = (&turnstile, &stop, &order);
                scope.spawn(move || {
                    let _turn = turnstile.enter(priority, stop).unwrap();
                    order.lock().push(name);
                });
            }
            until("both in line", || turnstile.line.lock().waiting.len() == 2);
            first.check().unwrap();
            order.lock().push("first");
            drop(first);
        });
        assert_eq!(*order.lock(), ["urgent", "first", "later"]);
    }

    #[test]
    fn a_raised_flag_ends_the_wait_and_the_work() {
        let turnstile = Turnstile::default();
        let (stop, other) = (StopFlag::default(), StopFlag::default());
        let turn = turnstile.enter(Priority::Normal, &other).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| turnstile.enter(Priority::Low, &stop).map(drop));
            until("one in line", || turnstile.line.lock().waiting.len() == 1);
            stop.raise();
            turnstile.nudge();
            assert_eq!(waiting.join().unwrap(), Err(Interrupted));
        });
        assert_eq!(turn.check(), Ok(()));
        other.raise();
        assert_eq!(turn.check(), Err(Interrupted));
    }

    #[test]
    fn while_something_critical_is_present_all_others_pause_on_host_and_device() {
        let turnstile = Arc::new(Turnstile::default());
        let (stop, shed) = (StopFlag::default(), StopFlag::default());
        let order = Mutex::new(Vec::new());
        let critical = turnstile.arrive(Priority::Critical, &stop);
        thread::scope(|scope| {
            let (turnstile, stop, raise, order) = (&turnstile, &stop, &shed, &order);
            scope.spawn(move || {
                turnstile.arrive(Priority::High, stop).check().unwrap();
                order.lock().push("host");
            });
            let shed = scope.spawn(move || turnstile.arrive(Priority::Normal, raise).check());
            scope.spawn(move || {
                turnstile.enter(Priority::High, stop).unwrap().check().unwrap();
                order.lock().push("device");
            });
            until("the device's one in line", || turnstile.line.lock().waiting.len() == 1);
            critical.check().unwrap();
            turnstile.enter(Priority::Critical, stop).unwrap().check().unwrap();
            order.lock().push("critical");
            raise.raise();
            turnstile.nudge();
            assert_eq!(shed.join().unwrap(), Err(Interrupted));
            drop(critical);
        });
        assert_eq!(order.lock()[0], "critical");
        assert_eq!(order.lock().len(), 3);
    }

    #[test]
    fn who_steps_back_stands_in_line_before_the_turn_is_free() {
        let turnstile = Turnstile::default();
        let turn = turnstile.enter(Priority::Normal, &StopFlag::default()).unwrap();
        turnstile.step_back(turn.ticket);
        let line = turnstile.line.lock();
        assert!(!line.taken && line.waiting.contains(&turn.ticket));
    }

    #[test]
    fn a_jobs_flag_ends_its_partitions_and_a_partitions_flag_no_other() {
        let job = StopFlag::default();
        let [one, other] = [job.child(), job.child()];
        one.raise();
        assert_eq!([&one, &other, &job].map(StopFlag::is_raised), [true, false, false]);
        job.raise();
        assert!(other.is_raised());
    }

    #[test]
    fn strain_is_felt_for_as_long_as_it_lasts() {
        let turnstile = Turnstile::default();
        let turn = turnstile.enter(Priority::Normal, &StopFlag::default()).unwrap();
        assert!(!turn.is_strained());
        turnstile.strain(Duration::from_secs(3600));
        turnstile.strain(Duration::ZERO);
        assert!(turn.is_strained(), "the longer one counts");
        turnstile.strained_until.store(0, Ordering::Relaxed);
        turnstile.strain(Duration::from_millis(5));
        until("its end", || !turn.is_strained());
    }

    #[test]
    fn at_most_one_holds_the_turn() {
        let turnstile = Turnstile::default();
        let stop = StopFlag::default();
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for i in 0..8 {
                let (turnstile, stop, inside) = (&turnstile, &stop, &inside);
                let priority = [Priority::Low, Priority::Normal, Priority::High][i % 3];
                scope.spawn(move || {
                    for _ in 0..200 {
                        let turn = turnstile.enter(priority, stop).unwrap();
                        for _ in 0..3 {
                            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            turn.check().unwrap();
                        }
                    }
                });
            }
        });
    }
}
