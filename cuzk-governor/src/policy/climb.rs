//! How many partitions at once pay: memory bandwidth, not only capacity, limits real machines.
//!
//! Throughput is measured over windows in which work always waited. One partition more is kept
//! if it raised the best throughput by `climb_gain`, one less if it cost less than that; the
//! other way round it is taken back, and the next try waits twice as long. The comparison is
//! with the best ever measured nearby, not with the last step, so small losses cannot add up.

use std::time::Duration;

use super::{hold, Situation, State};

/// Partitions finished before a window says anything.
const ENOUGH: u64 = 16;
/// The longest wait between two tries, in windows.
const MOST_PATIENCE: u32 = 32;

/// A measurement under way, and what is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Climb {
    window: Option<Window>,
    best: Option<Best>,
    /// The concurrency being tried; `None` while nothing is.
    trial: Option<u32>,
    /// Windows until the next try, and after a try that failed.
    rest: u32,
    patience: u32,
    /// Whether the next try is one less.
    down: bool,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    since: Duration,
    finished: u64,
    ticks: u64,
    running: u64,
    /// In force when it began.
    concurrency: u32,
}

/// The concurrency that pays best, and its partitions a second.
#[derive(Clone, Copy, Debug)]
struct Best {
    concurrency: u32,
    rate: f64,
}

impl Climb {
    /// The concurrency to grow to where memory allows.
    pub(super) fn target(&self, now: &Situation<'_>) -> u32 {
        let known = self.trial.or(self.best.map(|best| best.concurrency));
        known.unwrap_or(now.set.max_concurrency).clamp(1, now.set.max_concurrency)
    }

    /// Takes in a finished window of so many at once.
    fn conclude(&mut self, concurrency: u32, rate: f64, gain: f64) {
        let Some(best) = self.best else {
            self.best = Some(Best { concurrency, rate });
            return;
        };
        let kept = match concurrency.cmp(&best.concurrency) {
            std::cmp::Ordering::Greater => rate > best.rate * (1.0 + gain),
            std::cmp::Ordering::Less => rate > best.rate * (1.0 - gain),
            std::cmp::Ordering::Equal => {
                self.best = Some(Best { rate: (best.rate + rate) / 2.0, ..best });
                self.rest = self.rest.saturating_sub(1);
                // A try of more that memory did not let happen.
                if self.trial.is_some() {
                    self.give_up();
                }
                return;
            }
        };
        if kept {
            self.best = Some(Best { concurrency, rate: rate.max(best.rate) });
            (self.trial, self.rest, self.patience) = (None, 0, 1);
        } else {
            self.give_up();
        }
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
        let next = if self.down { best.concurrency - 1 } else { best.concurrency + 1 };
        if (1..=most).contains(&next) {
            self.trial = Some(next);
        } else {
            self.down = !self.down;
        }
    }
}

pub(super) fn step(state: &mut State, now: &Situation<'_>) {
    let running = hold::counted(now.workload);
    let concurrency = state.concurrency.unwrap_or(running);
    let busy = now.workload.waiting > 0 && now.need == 0 && running <= concurrency;
    let same = |window: &Window| busy && window.concurrency == concurrency;
    let Some(mut window) = state.climb.window.filter(same) else {
        let (since, finished) = (now.headroom.at, now.workload.finished);
        let fresh = Window { since, finished, ticks: 0, running: 0, concurrency };
        state.climb.window = busy.then_some(fresh);
        return;
    };
    window.ticks += 1;
    window.running += u64::from(running);
    state.climb.window = Some(window);
    let finished = now.workload.finished.saturating_sub(window.finished);
    let length = now.headroom.at.saturating_sub(window.since);
    if finished < ENOUGH || length < now.set.climb_window {
        return;
    }
    let at_once = ((window.running + window.ticks / 2) / window.ticks).max(1) as u32;
    state.climb.window = None;
    state.climb.conclude(at_once, finished as f64 / length.as_secs_f64(), now.set.climb_gain);
    state.climb.explore(now.set.max_concurrency);
    let target = state.climb.target(now);
    if target < concurrency {
        state.concurrency = Some(target);
    }
}
