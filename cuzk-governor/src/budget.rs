//! The ledger of everything the process holds or has been promised.
//!
//! Nothing large is allocated outside a [`Reservation`], and one ends only when its memory has
//! left the process; a buffer that goes back to a pool stays reserved by the pool. One mutex
//! guards the sums and the queue. Whoever gives memory back hands it to the waiters himself,
//! under that mutex, so there is no moment at which a wake-up could be lost.
//!
//! # Order, and its bound
//! Waiters are served by rank: the number of their ask, less a lead for their priority
//! (0, 64, 1,024, 65,536 from `Low` to `Critical`). So an ask overtakes those of lower
//! priority, but only such as are younger than its lead: that is the ageing. One that does not
//! fit lets those behind it pass 16 times and then no more, a critical one never: what comes back
//! in small pieces adds up for it. A waiter is therefore served after
//! those ahead of it, at most 65,536 later asks of higher priority, and at most 16 others; or
//! its deadline ends the wait. Growth of what is already held goes before all new asks, since
//! the queue may be waiting for its holder. Two holders that both wait to grow end by deadline.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use sync::{lock, wait, Arc, Condvar, Mutex, MutexGuard};

#[cfg(all(test, loom))]
mod loom;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

/// So often may a waiter that does not fit be passed by those behind it.
const PASSES: u32 = 16;
/// The longest queue; one more is refused as [`ReserveError::Crowded`].
const MAX_WAITERS: usize = 4096;
/// A cancelled wait that nobody nudged ends after so long at most.
const CANCEL_POLL: Duration = Duration::from_millis(200);

/// Who goes first; see [the order](self#order-and-its-bound).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Priority {
    /// Whatever is left.
    Low,
    /// The usual.
    #[default]
    Normal,
    /// Before the usual (WindowPoSt).
    High,
    /// Before everything (WinningPoSt).
    Critical,
}

impl Priority {
    /// How often those behind it may pass.
    fn passes(self) -> u32 {
        if self == Priority::Critical {
            0
        } else {
            PASSES
        }
    }

    /// How many asks younger than this one it may still overtake.
    fn lead(self) -> i64 {
        match self {
            Priority::Low => 0,
            Priority::Normal => 64,
            Priority::High => 1024,
            Priority::Critical => 65_536,
        }
    }
}

/// What is wanted: so many bytes, for what, how urgently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The line of the ledger it is entered on (`srs`, `witness`, `pool`, …).
    pub label: &'static str,
    /// Bytes; never 0.
    pub bytes: u64,
    /// Against other asks.
    pub priority: Priority,
}

impl Ask {
    /// An ask of normal priority.
    pub fn new(label: &'static str, bytes: u64) -> Self {
        Self { label, bytes, priority: Priority::Normal }
    }

    /// The same at another priority.
    pub fn at(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }
}

/// Why nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// More than the whole budget, at its largest.
    #[error("{asked} bytes can never fit: all there is, is {total}; raise the memory limit")]
    NeverFits {
        /// Bytes it would take in all.
        asked: u64,
        /// The most the budget can be.
        total: u64,
    },
    /// Nothing was asked for: an estimate is missing.
    #[error("0 bytes were asked for; state what is needed")]
    Zero,
    /// Does not fit now, and the caller did not want to wait.
    #[error("{asked} bytes do not fit now: {free} are free")]
    Full {
        /// Bytes asked for.
        asked: u64,
        /// Bytes free, perhaps owed to others who wait.
        free: u64,
    },
    /// Did not fit in time.
    #[error("{asked} bytes did not become free within {waited:?}: {free} are free")]
    Deadline {
        /// Bytes asked for.
        asked: u64,
        /// Bytes free at the end.
        free: u64,
        /// How long was waited.
        waited: Duration,
    },
    /// The caller's own condition ended the wait.
    #[error("the wait for {asked} bytes was cancelled")]
    Cancelled {
        /// Bytes asked for.
        asked: u64,
    },
    /// The budget was closed: the process is stopping.
    #[error("the budget is closed: nothing new is started")]
    Closed,
    /// Too many wait already.
    #[error("{waiting} asks wait for memory already; ask again later")]
    Crowded {
        /// How many.
        waiting: usize,
    },
}

/// The ledger's sums at one instant, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// What may be reserved in all, at present.
    pub total: u64,
    /// What is reserved.
    pub reserved: u64,
    /// What of it is known to be resident.
    pub resident: u64,
    /// What waits for memory, and has not got it.
    pub waiting: u64,
}

/// One line of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its name.
    pub label: &'static str,
    /// What is reserved on it.
    pub reserved: u64,
    /// What of it is known to be resident.
    pub resident: u64,
}

/// A budget of bytes. Clones are handles on the same one.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    ledger: Mutex<Ledger>,
}

impl MemoryBudget {
    /// A budget of so many bytes, all free.
    pub fn new(total: u64) -> Self {
        let ledger = Ledger {
            usage: Usage { total, ..Usage::default() },
            ceiling: total,
            closed: false,
            asks: 0,
            lines: Vec::with_capacity(16),
            queue: Vec::new(),
        };
        Self { inner: Arc::new(Inner { ledger: Mutex::new(ledger) }) }
    }

    /// Reserves, waiting until `deadline` if need be.
    pub fn reserve(&self, ask: Ask, deadline: Instant) -> Result<Reservation, ReserveError> {
        self.reserve_unless(ask, deadline, &|| false)
    }

    /// Reserves as [`MemoryBudget::reserve`] does, but gives up once `cancelled` says so. It is
    /// asked under the ledger's lock, so it must not call the budget; make it a flag, set it,
    /// then call [`MemoryBudget::nudge`].
    pub fn reserve_unless(
        &self,
        ask: Ask,
        deadline: Instant,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Reservation, ReserveError> {
        let patience = Patience::Until { deadline, cancelled };
        let line = self.inner.obtain(Claim::of(ask), patience)?;
        Ok(self.reservation(line, ask.bytes))
    }

    /// Reserves at once or not at all. Never passes a waiter that is served first.
    pub fn try_reserve(&self, ask: Ask) -> Result<Reservation, ReserveError> {
        let line = self.inner.obtain(Claim::of(ask), Patience::None)?;
        Ok(self.reservation(line, ask.bytes))
    }

    /// Enters memory that is in use already, such as a message that has been received. It is never
    /// refused and passes everybody; the total may be exceeded by it, and then nothing is granted
    /// until enough has come back. Whoever enters memory bounds it himself.
    pub fn enter(&self, label: &'static str, bytes: u64) -> Reservation {
        let mut ledger = lock(&self.inner.ledger);
        let line = ledger.line(LineRef::Named(label));
        ledger.take(line, bytes);
        drop(ledger);
        let mut entered = self.reservation(line, bytes);
        entered.report_resident(bytes);
        entered
    }

    fn reservation(&self, line: usize, bytes: u64) -> Reservation {
        Reservation { inner: self.inner.clone(), line, bytes, resident: 0 }
    }

    /// Changes what may be reserved in all. Below what is reserved it takes nothing away:
    /// nothing new is granted until enough has come back. Raises the ceiling if it is lower.
    pub fn set_total(&self, total: u64) {
        let mut ledger = lock(&self.inner.ledger);
        ledger.usage.total = total;
        ledger.ceiling = ledger.ceiling.max(total);
        ledger.serve();
    }

    /// Changes what the total may become at best: more than that never fits, and is refused at
    /// once, also if it waits already.
    pub fn set_ceiling(&self, ceiling: u64) {
        let mut ledger = lock(&self.inner.ledger);
        ledger.ceiling = ceiling.max(ledger.usage.total);
        ledger.serve();
    }

    /// Ends every wait and refuses all that comes. What is held stays held.
    pub fn close(&self) {
        let mut ledger = lock(&self.inner.ledger);
        ledger.closed = true;
        ledger.serve();
    }

    /// Makes every waiter look at its `cancelled` again.
    pub fn nudge(&self) {
        for waiter in &lock(&self.inner.ledger).queue {
            waiter.woken.notify_one();
        }
    }

    /// The sums, all of one instant.
    pub fn usage(&self) -> Usage {
        lock(&self.inner.ledger).usage
    }

    /// Bytes that are reserved on a line.
    pub fn reserved(&self, label: &str) -> u64 {
        let ledger = lock(&self.inner.ledger);
        ledger.lines.iter().find(|line| line.label == label).map_or(0, |line| line.reserved)
    }

    /// The lines, all of one instant, into `into`, which is cleared first.
    pub fn lines(&self, into: &mut Vec<Line>) {
        into.clear();
        into.extend_from_slice(&lock(&self.inner.ledger).lines);
    }
}

/// Bytes that are ours until this is dropped. `resident` of them are known to be in memory,
/// which is what makes the rest a promise.
#[must_use = "a reservation that is dropped is given back at once"]
#[derive(Debug)]
pub struct Reservation {
    inner: Arc<Inner>,
    line: usize,
    bytes: u64,
    resident: u64,
}

impl Reservation {
    /// How many.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them are known to be resident.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Takes `more`, waiting until `deadline` if need be.
    pub fn grow(&mut self, more: u64, deadline: Instant) -> Result<(), ReserveError> {
        self.grow_with(more, Patience::Until { deadline, cancelled: &|| false })
    }

    /// Takes `more` at once or not at all.
    pub fn try_grow(&mut self, more: u64) -> Result<(), ReserveError> {
        self.grow_with(more, Patience::None)
    }

    fn grow_with(&mut self, more: u64, patience: Patience<'_>) -> Result<(), ReserveError> {
        let claim = Claim { line: LineRef::Known(self.line), bytes: more, held: self.bytes };
        let claim = Ranked { claim, lead: None, passes: PASSES };
        self.inner.obtain(claim, patience)?;
        self.bytes += more;
        Ok(())
    }

    /// Gives up to `bytes` back and says how many. They are taken to have been resident as far
    /// as any were: to understate what is resident is safe, to overstate it is not.
    pub fn release(&mut self, bytes: u64) -> u64 {
        let bytes = bytes.min(self.bytes);
        let resident = bytes.min(self.resident);
        self.bytes -= bytes;
        self.resident -= resident;
        let mut ledger = lock(&self.inner.ledger);
        ledger.enter_resident(self.line, resident, 0);
        ledger.give_back(self.line, bytes);
        bytes
    }

    /// Moves `bytes` of it into a reservation of their own; `None` if there are fewer. Resident
    /// bytes stay here as far as they fit.
    pub fn split(&mut self, bytes: u64) -> Option<Reservation> {
        let rest = self.bytes.checked_sub(bytes)?;
        let stay = self.resident.min(rest);
        let resident = self.resident - stay;
        (self.bytes, self.resident) = (rest, stay);
        Some(Reservation { inner: self.inner.clone(), line: self.line, bytes, resident })
    }

    /// Takes `other` in, onto this one's line. Gives it back if it is of another budget.
    pub fn merge(&mut self, mut other: Reservation) -> Result<(), Reservation> {
        if !Arc::ptr_eq(&self.inner, &other.inner) {
            return Err(other);
        }
        let (bytes, resident) = (other.bytes, other.resident);
        {
            let mut ledger = lock(&self.inner.ledger);
            ledger.lines[other.line].reserved -= bytes;
            ledger.lines[other.line].resident -= resident;
            ledger.lines[self.line].reserved += bytes;
            ledger.lines[self.line].resident += resident;
        }
        (other.bytes, other.resident) = (0, 0);
        self.bytes += bytes;
        self.resident += resident;
        Ok(())
    }

    /// States how many of the bytes are resident now; more than there are count as all.
    pub fn report_resident(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        lock(&self.inner.ledger).enter_resident(self.line, self.resident, bytes);
        self.resident = bytes;
    }
}

impl Drop for Reservation {
    /// Load-bearing: the only way that most memory comes back
    /// (`tests::dropping_gives_all_back_and_wakes_the_next`).
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.release(self.bytes);
        }
    }
}

/// How long to wait.
#[derive(Clone, Copy)]
enum Patience<'a> {
    None,
    Until { deadline: Instant, cancelled: &'a dyn Fn() -> bool },
}

/// Bytes wanted on a line, on top of `held`.
#[derive(Clone, Copy, Debug)]
struct Claim {
    line: LineRef,
    bytes: u64,
    held: u64,
}

#[derive(Clone, Copy, Debug)]
enum LineRef {
    Named(&'static str),
    Known(usize),
}

/// A claim and its lead; `None` goes before all.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    claim: Claim,
    lead: Option<i64>,
    passes: u32,
}

impl Claim {
    fn of(ask: Ask) -> Ranked {
        let claim = Claim { line: LineRef::Named(ask.label), bytes: ask.bytes, held: 0 };
        Ranked { claim, lead: Some(ask.priority.lead()), passes: ask.priority.passes() }
    }
}

/// What is counted, and who waits. Ordered by (rank, ask).
#[derive(Debug)]
struct Ledger {
    usage: Usage,
    ceiling: u64,
    closed: bool,
    asks: i64,
    lines: Vec<Line>,
    queue: Vec<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    /// (rank, number of the ask): unique, smallest first.
    place: (i64, i64),
    line: usize,
    bytes: u64,
    held: u64,
    /// So often may it be passed yet.
    passes: u32,
    /// Set by whoever serves it; the waiter takes itself out of the queue.
    outcome: Option<Result<(), ReserveError>>,
    woken: Arc<Condvar>,
}

impl Inner {
    /// Enters a claim, or waits until it can be entered; the line it was entered on.
    fn obtain(&self, ranked: Ranked, patience: Patience<'_>) -> Result<usize, ReserveError> {
        let bytes = ranked.claim.bytes;
        let mut ledger = lock(&self.ledger);
        ledger.check(&ranked.claim)?;
        let line = ledger.line(ranked.claim.line);
        ledger.asks += 1;
        if ledger.queue.is_empty() && bytes <= ledger.free() {
            ledger.take(line, bytes);
            return Ok(line);
        }
        match patience {
            Patience::None => ledger.now_or_never(line, ranked),
            Patience::Until { deadline, cancelled } => {
                self.wait(ledger, line, ranked, deadline, cancelled)
            }
        }
        .map(|()| line)
    }

    fn wait(
        &self,
        mut ledger: MutexGuard<'_, Ledger>,
        line: usize,
        ranked: Ranked,
        deadline: Instant,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(), ReserveError> {
        let (begun, asked) = (Instant::now(), ranked.claim.bytes);
        if ledger.queue.len() >= MAX_WAITERS {
            return Err(ReserveError::Crowded { waiting: ledger.queue.len() });
        }
        let (place, woken) = ledger.line_up(line, ranked);
        loop {
            if let Some(outcome) = ledger.outcome(place) {
                return outcome;
            }
            let now = Instant::now();
            if cancelled() {
                ledger.leave(place);
                return Err(ReserveError::Cancelled { asked });
            }
            if now >= deadline {
                ledger.leave(place);
                let free = ledger.free();
                return Err(ReserveError::Deadline { asked, free, waited: now - begun });
            }
            ledger = wait(&woken, ledger, deadline.min(now + CANCEL_POLL));
        }
    }
}

impl Ledger {
    fn free(&self) -> u64 {
        self.usage.total.saturating_sub(self.usage.reserved)
    }

    /// Refuses what no waiting can help.
    fn check(&self, claim: &Claim) -> Result<(), ReserveError> {
        if claim.bytes == 0 {
            return Err(ReserveError::Zero);
        }
        if self.closed {
            return Err(ReserveError::Closed);
        }
        let asked = claim.held.saturating_add(claim.bytes);
        if asked > self.ceiling {
            return Err(ReserveError::NeverFits { asked, total: self.ceiling });
        }
        Ok(())
    }

    fn line(&mut self, line: LineRef) -> usize {
        let label = match line {
            LineRef::Known(line) => return line,
            LineRef::Named(label) => label,
        };
        self.lines.iter().position(|line| line.label == label).unwrap_or_else(|| {
            self.lines.push(Line { label, reserved: 0, resident: 0 });
            self.lines.len() - 1
        })
    }

    fn take(&mut self, line: usize, bytes: u64) {
        self.usage.reserved += bytes;
        self.lines[line].reserved += bytes;
    }

    fn give_back(&mut self, line: usize, bytes: u64) {
        self.usage.reserved -= bytes;
        self.lines[line].reserved -= bytes;
        self.serve();
    }

    fn enter_resident(&mut self, line: usize, was: u64, is: u64) {
        self.usage.resident = self.usage.resident - was + is;
        self.lines[line].resident = self.lines[line].resident - was + is;
    }

    /// Joins the queue at its place and is served at once if it can be.
    fn line_up(&mut self, line: usize, ranked: Ranked) -> ((i64, i64), Arc<Condvar>) {
        let Ranked { claim, lead, passes } = ranked;
        let rank = lead.map_or(i64::MIN, |lead| self.asks - lead);
        let place = (rank, self.asks);
        let woken = Arc::new(Condvar::new());
        let Claim { bytes, held, .. } = claim;
        let at = self.queue.partition_point(|waiter| waiter.place < place);
        let waiter =
            Waiter { place, line, bytes, held, passes, outcome: None, woken: woken.clone() };
        self.queue.insert(at, waiter);
        self.usage.waiting += bytes;
        self.serve();
        (place, woken)
    }

    fn now_or_never(&mut self, line: usize, ranked: Ranked) -> Result<(), ReserveError> {
        let (place, _) = self.line_up(line, ranked);
        self.outcome(place).unwrap_or_else(|| {
            self.leave(place);
            Err(ReserveError::Full { asked: ranked.claim.bytes, free: self.free() })
        })
    }

    fn index(&self, place: (i64, i64)) -> Option<usize> {
        self.queue.binary_search_by_key(&place, |waiter| waiter.place).ok()
    }

    /// The outcome of a waiter that has one, which leaves the queue with it.
    fn outcome(&mut self, place: (i64, i64)) -> Option<Result<(), ReserveError>> {
        let at = self.index(place)?;
        let outcome = self.queue[at].outcome?;
        self.queue.remove(at);
        Some(outcome)
    }

    /// Takes an unserved waiter out; those it held up may go on.
    fn leave(&mut self, place: (i64, i64)) {
        if let Some(at) = self.index(place) {
            self.usage.waiting -= self.queue.remove(at).bytes;
            self.serve();
        }
    }

    /// Serves whoever can be served, in order. Called after every change that may help one.
    fn serve(&mut self) {
        let mut skipped = 0;
        for at in 0..self.queue.len() {
            let Waiter { line, bytes, held, passes, outcome, .. } = self.queue[at];
            if outcome.is_some() {
                continue;
            }
            let claim = Claim { line: LineRef::Known(line), bytes, held };
            if let Err(refusal) = self.check(&claim) {
                self.settle(at, Err(refusal));
            } else if bytes <= self.free() {
                self.take(line, bytes);
                self.settle(at, Ok(()));
                if skipped > 0 && self.count_pass(at) {
                    return;
                }
            } else if passes == 0 {
                return;
            } else {
                skipped += 1;
            }
        }
    }

    fn settle(&mut self, at: usize, outcome: Result<(), ReserveError>) {
        let waiter = &mut self.queue[at];
        waiter.outcome = Some(outcome);
        waiter.woken.notify_one();
        self.usage.waiting -= waiter.bytes;
    }

    /// Counts one more pass against all unserved before `at`; whether one of them is at the end
    /// of its patience.
    fn count_pass(&mut self, at: usize) -> bool {
        let mut ends = false;
        for waiter in self.queue[..at].iter_mut().filter(|waiter| waiter.outcome.is_none()) {
            waiter.passes -= 1;
            ends |= waiter.passes == 0;
        }
        ends
    }
}
