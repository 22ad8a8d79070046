//! How many partitions at once pay: memory bandwidth, not only capacity, limits real machines.
//!
//! Throughput is measured over windows in which work always waited, from one end of a partition to
//! another, so that a few of them say enough. One partition more is kept if it raised throughput by
//! `climb_gain`, one less if it cost less than that; the other way round it is taken back, and the
//! next try waits twice as long. A step down is compared with the best measured nearby, so small
//! losses cannot add up. Where tasks stalled for memory the next try is less: one, or where they did
//! so most of the time a quarter, for half of what is too much for the page cache is as bad as all.
//!
//! What was learned holds while memory is what it was. A concurrency that memory dictated is no
//! finding: it grows again as room returns. And what paid in less room says nothing of more.

use std::time::Duration;

use super::{hold, Situation, State, CHOKED};
use crate::setpoints::Setpoints;

/// Partitions finished after the one it begins with before a window says anything.
const ENOUGH: u64 = 8;
/// So much more room than when something was found, and it is forgotten.
const ELSEWHERE: f64 = 1.1;
/// The longest wait between two tries, in windows.
const MOST_PATIENCE: u32 = 8;

/// A measurement under way, and what is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Climb {
    window: Option<Window>,
    /// Of the last windows.
    best: Option<Best>,
    /// The most that was found to pay, and the room there was then; `None` before anything was.
    pays: Option<(u32, u64)>,
    /// The concurrency being tried; `None` while nothing is.
    trial: Option<u32>,
    /// Windows until the next try, and after a try that failed.
    rest: u32,
    patience: u32,
    /// Whether the next try is less, and whether most of the time went into stalls.
    down: bool,
    choked: bool,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    /// When a partition last finished, and how many had.
    last: Option<(Duration, u64)>,
    /// The same when it began.
    first: Option<(Duration, u64)>,
    finished: u64,
    ticks: u64,
    running: u64,
    /// Per cent, summed over the ticks.
    stalled: f32,
    /// In force when it began.
    concurrency: u32,
}

/// A concurrency, and its partitions a second.
#[derive(Clone, Copy, Debug)]
struct Best {
    concurrency: u32,
    rate: f64,
}

impl Window {
    fn begin(finished: u64, concurrency: u32) -> Self {
        Self { first: None, last: None, finished, ticks: 0, running: 0, stalled: 0.0, concurrency }
    }

    fn take_in(&mut self, now: &Situation<'_>, running: u32) {
        self.ticks += 1;
        self.running += u64::from(running);
        self.stalled += now.headroom.stalled;
        if now.workload.finished > self.finished {
            self.finished = now.workload.finished;
            self.last = Some((now.headroom.at, self.finished));
            self.first = self.first.or(self.last);
        }
    }

    /// Whether most of the time went into stalls.
    fn choked(&self) -> bool {
        self.stalled > CHOKED * self.ticks as f32
    }

    /// Partitions a second, once enough of them have finished.
    fn rate(&self, set: &Setpoints) -> Option<f64> {
        let ((begin, before), (end, after)) = (self.first?, self.last?);
        let (length, finished) = (end.saturating_sub(begin), after.saturating_sub(before));
        let enough = finished >= ENOUGH && length >= set.climb_window;
        enough.then(|| finished as f64 / length.as_secs_f64())
    }
}

impl Climb {
    /// The concurrency to grow to where memory allows.
    pub(super) fn target(&self, now: &Situation<'_>) -> u32 {
        let known = self.trial.or(self.pays.map(|(concurrency, _)| concurrency));
        known.unwrap_or(now.set.max_concurrency).clamp(1, now.set.max_concurrency)
    }

    /// Whether another concurrency is being tried.
    pub(super) fn tries(&self) -> bool {
        self.trial.is_some()
    }

    /// Takes in a finished window of so many at once, in so much room.
    fn conclude(&mut self, concurrency: u32, rate: f64, gain: f64, room: u64) {
        let best = self.best.unwrap_or(Best { concurrency, rate });
        if self.trial.is_none() {
            self.best = Some(Best { concurrency, rate });
            self.rest = self.rest.saturating_sub(1);
            return;
        }
        let kept = match concurrency.cmp(&best.concurrency) {
            std::cmp::Ordering::Greater => rate > best.rate * (1.0 + gain),
            std::cmp::Ordering::Less => rate > best.rate * (1.0 - gain),
            // Memory did not let it happen.
            std::cmp::Ordering::Equal => false,
        };
        if !kept {
            return self.give_up();
        }
        self.best = Some(Best { concurrency, rate: rate.max(best.rate) });
        self.pays = Some((concurrency, room));
        (self.trial, self.rest, self.patience) = (None, 0, 1);
    }

    fn give_up(&mut self) {
        self.trial = None;
        self.patience = (self.patience * 2).clamp(2, MOST_PATIENCE);
        self.rest = self.patience;
        self.down = !self.down;
    }

    /// Begins the next try if it is time.
    fn explore(&mut self, most: u32) {
        let Some(best) = self.best.filter(|_| self.rest == 0 && self.trial.is_none()) else {
            return;
        };
        let stride = if self.choked { (best.concurrency / 4).max(1) } else { 1 };
        let next =
            if self.down { best.concurrency.saturating_sub(stride) } else { best.concurrency + 1 };
        if (1..=most).contains(&next) {
            self.trial = Some(next);
        } else {
            self.down = !self.down;
        }
    }
}

pub(super) fn step(state: &mut State, now: &Situation<'_>) {
    let found_in = state.climb.pays.map_or(u64::MAX, |(_, room)| (room as f64 * ELSEWHERE) as u64);
    if now.headroom.admissible > found_in {
        state.climb = Climb::default();
    }
    let running = hold::counted(now.workload);
    let concurrency = state.concurrency.unwrap_or(running);
    let busy = now.workload.waiting > 0 && !now.emergency && running <= concurrency;
    let same = |window: &Window| busy && window.concurrency == concurrency;
    let Some(mut window) = state.climb.window.filter(same) else {
        state.climb.window = busy.then(|| Window::begin(now.workload.finished, concurrency));
        return;
    };
    window.take_in(now, running);
    state.climb.window = Some(window);
    let Some(rate) = window.rate(now.set) else { return };
    let at_once = ((window.running + window.ticks / 2) / window.ticks).max(1) as u32;
    state.climb.window = None;
    state.climb.conclude(at_once, rate, now.set.climb_gain, now.headroom.admissible);
    state.climb.choked = window.choked();
    // Unless less was tried here already.
    state.climb.down |= state.climb.choked && state.climb.patience < 2;
    state.climb.explore(now.set.max_concurrency);
    let target = state.climb.target(now);
    let fits = now.headroom.deficit == 0;
    let back = state.climb.best.filter(|_| fits).map_or(0, |best| best.concurrency);
    // Down at once, and back at once from a try of less; up as growth goes.
    state.concurrency = Some(concurrency.max(back).min(target));
}
