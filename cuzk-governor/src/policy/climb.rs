//! How many partitions at once pay: memory bandwidth, not only capacity, limits real machines.
//!
//! Partitions that began together end together, so throughput is measured over whole rounds: from one
//! partition's end until as many more have ended as run at once, or a multiple, while work always waits.
//! After a change the first round is of partitions that began before it, and is left out. How far such
//! rates are wrong is learned from two in a row of the same concurrency, and nothing is concluded from less.
//!
//! One partition more is kept if it raised throughput by `climb_gain`, one less if it cost less than
//! that, each beyond what may be error; otherwise it is taken back, and the next try waits twice as
//! long. A step down is compared with the best measured nearby, so small losses cannot add up. Where
//! memory lets no more run, less is tried late, for then it costs most. Where tasks stalled for memory
//! the next try is less: one, or where they did so most of the time a quarter, for half of what is too
//! much for the page cache is as bad as all.
//!
//! What was learned holds while memory is what it was. A concurrency that memory dictated is no
//! finding: it grows again as room returns. And what paid in less room says nothing of more.

use std::cmp::Ordering;
use std::time::Duration;

use super::{hold, Situation, State, CHOKED};
use crate::setpoints::Setpoints;

/// So many partitions must finish at least, after the one it begins with, for a window to say anything.
const ENOUGH: u64 = 6;
/// So much more room than when something was found, and it is forgotten.
const ELSEWHERE: f64 = 1.1;
/// The longest wait between two tries, in windows, and the shortest where memory lets no more run.
const MOST_PATIENCE: u32 = 16;
const FULL_PATIENCE: u32 = 4;

/// A measurement under way, and what is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Climb {
    window: Option<Window>,
    /// Of the last windows.
    best: Option<Best>,
    /// By what share two windows of the same differ; `None` before there were two.
    error: Option<f64>,
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
    /// Partitions that must have finished before it begins.
    settled: u64,
    /// When it began, and how many had finished; `None` before.
    first: Option<(Duration, u64)>,
    /// The last tick, and how many had finished.
    last: (Duration, u64),
    /// The end of the round: so many finished.
    round: u64,
    ticks: u64,
    running: u64,
    /// Per cent, summed over the ticks.
    stalled: f32,
    /// In force when it began.
    concurrency: u32,
}

/// What a window measured.
#[derive(Clone, Copy)]
struct Measured {
    best: Best,
    /// By what share the rate is wrong because time is seen in ticks.
    coarse: f64,
    choked: bool,
}

/// A concurrency, and its partitions a second.
#[derive(Clone, Copy, Debug)]
struct Best {
    concurrency: u32,
    rate: f64,
}

impl Window {
    /// One that begins when so many more have finished.
    fn begin(now: &Situation<'_>, concurrency: u32, after: u32) -> Self {
        let last = (now.headroom.at, now.workload.finished);
        let settled = last.1 + u64::from(after);
        let (ticks, running, stalled) = (0, 0, 0.0);
        Self { settled, first: None, last, round: 0, ticks, running, stalled, concurrency }
    }

    /// Takes in a tick, and at the end of a round that was long enough says what there was. In a
    /// hurry, while all stall, part of a round will do.
    fn take_in(&mut self, now: &Situation<'_>, running: u32, hurry: bool) -> Option<Measured> {
        let before = std::mem::replace(&mut self.last, (now.headroom.at, now.workload.finished));
        let finished = self.last.1;
        let ended = finished > before.1;
        let Some(first) = self.first else {
            if ended && (finished >= self.settled || hurry && now.headroom.stalled > CHOKED) {
                self.first = Some(self.last);
                self.round = finished + whole_rounds(running, ENOUGH);
            }
            return None;
        };
        self.ticks += 1;
        self.running += u64::from(running);
        self.stalled += now.headroom.stalled;
        if hurry && ended && self.choked() {
            self.round = self.round.min(finished.max(first.1 + ENOUGH));
        }
        if finished < self.round {
            return None;
        }
        let measured = self.measure(first, before, now.set);
        while measured.is_none() && self.round <= finished {
            self.round += whole_rounds(self.at_once(), 1);
        }
        measured
    }

    /// What the round shows that has just ended, if it was long enough.
    fn measure(
        &self,
        (begin, from): (Duration, u64),
        (tick, before): (Duration, u64),
        set: &Setpoints,
    ) -> Option<Measured> {
        let (at, finished) = self.last;
        // Of those that ended since the last tick some may be of the next round.
        let part = (self.round - before) as f64 / (finished - before).max(1) as f64;
        let length = (tick + at.saturating_sub(tick).mul_f64(part)).saturating_sub(begin);
        (length >= set.climb_window).then(|| Measured {
            best: Best {
                concurrency: self.at_once(),
                rate: (self.round - from) as f64 / length.as_secs_f64(),
            },
            coarse: set.tick.as_secs_f64() / length.as_secs_f64(),
            choked: self.choked(),
        })
    }

    /// Partitions at once, rounded.
    fn at_once(&self) -> u32 {
        ((self.running + self.ticks / 2) / self.ticks.max(1)).max(1) as u32
    }

    /// Whether most of the time went into stalls.
    fn choked(&self) -> bool {
        self.stalled > CHOKED * self.ticks as f32
    }
}

/// The least multiple of the concurrency that is at least so many.
fn whole_rounds(concurrency: u32, least: u64) -> u64 {
    least.next_multiple_of(u64::from(concurrency.max(1)))
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

    fn tries_less(&self) -> bool {
        self.trial.zip(self.best).is_some_and(|(trial, best)| trial < best.concurrency)
    }

    /// Takes in a finished window, in so much room.
    fn conclude(&mut self, seen: Measured, set: &Setpoints, room: u64) {
        let Best { concurrency, rate } = seen.best;
        if seen.choked && !self.choked {
            // What was found before tasks stalled says nothing of now.
            (self.rest, self.patience) = (0, 0);
        }
        self.choked = seen.choked;
        // Unless less was tried here already.
        self.down |= self.choked && self.patience < 2;
        let best = self.best.unwrap_or(seen.best);
        let change = rate / best.rate - 1.0;
        if self.trial.is_none() {
            if self.best.is_some() && best.concurrency == concurrency {
                let error = self.error.map_or(change.abs(), |error| (error + change.abs()) / 2.0);
                self.error = Some(error.max(seen.coarse));
            }
            self.best = Some(seen.best);
            self.rest = self.rest.saturating_sub(1);
            return;
        }
        let error = self.error.unwrap_or(0.0);
        let kept = match concurrency.cmp(&best.concurrency) {
            Ordering::Greater => change > set.climb_gain.max(error),
            Ordering::Less => change > error - set.climb_gain,
            Ordering::Equal => return self.give_up(FULL_PATIENCE),
        };
        if !kept {
            return self.give_up(2);
        }
        self.best = Some(Best { concurrency, rate: rate.max(best.rate) });
        self.pays = Some((concurrency, room));
        (self.trial, self.rest, self.patience) = (None, 0, 1);
    }

    fn give_up(&mut self, least: u32) {
        self.trial = None;
        self.patience = (self.patience * 2).clamp(least, MOST_PATIENCE);
        self.rest = self.patience;
        self.down = !self.down;
    }

    /// Begins the next try if it is time.
    fn explore(&mut self, most: u32) {
        let known = self.error.is_some() || self.choked;
        let ready = known && self.rest == 0 && self.trial.is_none();
        let Some(best) = self.best.filter(|_| ready) else {
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
        state.climb.window = busy.then(|| Window::begin(now, concurrency, running));
        return;
    };
    // But for a try of less, where all stall a rough figure at once beats a good one late.
    let hurry = !state.climb.tries_less();
    let measured = window.take_in(now, running, hurry);
    state.climb.window = Some(window);
    let Some(measured) = measured else { return };
    state.climb.window = Some(Window::begin(now, concurrency, 0));
    state.climb.conclude(measured, now.set, now.headroom.admissible);
    state.climb.explore(now.set.max_concurrency);
    let target = state.climb.target(now);
    let fits = now.headroom.deficit == 0;
    let back = state.climb.best.filter(|_| fits).map_or(0, |best| best.concurrency);
    // Down at once, and back at once from a try of less; up as growth goes.
    state.concurrency = Some(concurrency.max(back).min(target));
}
