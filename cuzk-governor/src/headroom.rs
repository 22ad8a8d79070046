//! A sample of the kernel and the ledger's promises, put together: how much is really left.
//!
//! Every level of the hierarchy, the machine, and the operator's own limit are *bounds*. At
//! each of them, with `resident` from the ledger:
//!
//! ```text
//! residual   = unreclaimable usage − resident           the greatest of the last trust_ticks;
//!              while no sample is fresh also what resident fell by since: nobody saw it leave
//! usable     = limit − residual − resident              the least limit of the last trust_ticks
//! error      = rise of the usage in a tick − rise of resident     (each at least 0)
//! margin     = floor·largest + 16 MiB, or if more: Q(quantile) + (h − 1)·Q(0.9) of the last 512
//!              errors, h = reaction / tick; fading from start·limit in the warm-up;
//!              times 1 + stale ticks
//! admissible = limit − residual − margin
//! deficit    = reserved + residual + margin − limit, if that is positive
//! growth     = unforetold bytes a second at the bound that is reached first: of the present tick,
//!              halved from tick to tick, or if more the rise of the residual over the reaction,
//!              each end the lesser of two ticks
//! ```
//!
//! The bound with the least admissible is the one that counts. Source of the margin: until a
//! decision has given memory back, h ticks pass; one of them may be as bad as the worst seen,
//! the others as bad as bad ones usually are. So a jump is covered once, and a steady leak of r
//! a tick by h·r. The floor covers what no reading shows: charges that the kernel keeps per CPU
//! in batches of 64 pages, and statistics that it may update two seconds late. It is a share of the
//! largest limit there was, up to four times the present one: a limit that is cut makes nobody
//! else on the machine grow more slowly.
//!
//! Where it fails: growth faster than any in the window, before it was ever seen (the floor is
//! all there is then); a quantile below 1 ignores the very worst ticks of eight minutes by
//! design; residency reported late is learned as error, which costs room and is safe; a sensor
//! that reports too little for longer than `trust_ticks` is believed, down to what the ledger
//! and the process's own figures contradict.

use std::time::Duration;

use crate::budget::Usage;
use crate::sensor::Sample;
use crate::setpoints::Setpoints;

use learned::{Errors, Recent};

mod learned;
#[cfg(test)]
mod tests;

/// Below any share of a limit: batched charges and late statistics of some dozens of CPUs.
const SMALLEST_MARGIN: u64 = 16 << 20;
/// The floor is a share of the largest limit there was, at most so many times the present one.
const FORMER: u64 = 4;
/// What an ordinary bad tick is.
const ORDINARY: f64 = 0.9;
/// Samples closer than this together, in ticks, are of the same tick.
const SAME_TICK: f64 = 0.9;
/// A rate is over this part of a tick at least: over less, one chunk that came is a flood.
const SHORTEST: f64 = 0.25;

/// What is left, and how sure of it we are. All figures in bytes.
///
/// `admissible` is the total that the ledger may hold, so what may be newly reserved is
/// `admissible - reserved`; it falls below `reserved` when promises no longer fit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Headroom {
    /// The sample's number.
    pub sequence: u64,
    /// The sample's time, moved on by the ticks for which the sensor has been silent.
    pub at: Duration,
    /// Ticks since the last fresh sample; 0 when this one is fresh.
    pub stale_ticks: u32,
    /// Whose limit is the tightest.
    pub bound: Bound,
    /// That limit.
    pub limit: u64,
    /// What can still be touched at the tightest bound before something is killed.
    pub usable: u64,
    /// What the ledger has reserved.
    pub reserved: u64,
    /// Reserved bytes that are known to be resident.
    pub resident: u64,
    /// Reserved bytes that are not resident yet: they will come.
    pub promised: u64,
    /// Unreclaimable bytes at the tightest bound that the ledger knows nothing of.
    pub residual: u64,
    /// Kept free for what was not foretold; see [`crate::headroom`].
    pub margin: u64,
    /// The total the ledger may hold: limit − residual − margin.
    pub admissible: u64,
    /// Promises and margin that do not fit: reserved + residual + margin − limit, 0 when they fit.
    pub deficit: u64,
    /// Bytes a second of growth at the bound that it reaches first: what was not foretold, and
    /// what was if its promises do not fit.
    pub growth: u64,
    /// Until that bound is reached at that growth, less the ticks for which the sensor has been
    /// silent; `None` while nothing grows.
    pub time_to_limit: Option<Duration>,
    /// Per cent of the time since the previous sample in which some task stalled for memory.
    pub stalled: f32,
    /// Kills by the kernel since the previous sample.
    pub kills: u64,
    /// Freed bytes that the allocator keeps.
    pub allocator_free: u64,
}

/// What limits us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// The machine's memory.
    #[default]
    Host,
    /// The operator's own limit ([`Setpoints::limit`]).
    Operator,
    /// This one of [`Sample::levels`].
    Level(usize),
}

/// Learns how wrong one-tick forecasts are, and states the headroom tick by tick.
#[derive(Clone, Debug)]
pub struct Forecaster {
    /// Of the host, the operator's limit, and then every level.
    watches: Vec<Watch>,
    previous: Previous,
    headroom: Headroom,
}

/// Of the last fresh sample.
#[derive(Clone, Copy, Debug, Default)]
struct Previous {
    at: Duration,
    resident: u64,
    stalled_us: u64,
    kills: u64,
}

/// One reading of one bound.
#[derive(Clone, Copy, Debug)]
struct Reading {
    limit: Option<u64>,
    unreclaimable: u64,
    /// The greatest that `unreclaimable` can have been since the last sample.
    peak: u64,
    reclaimable: u64,
}

/// What is remembered of one bound.
#[derive(Clone, Debug)]
struct Watch {
    /// `None` before the first reading.
    last: Option<Reading>,
    residuals: Recent,
    limits: Recent,
    /// The least residual of every tick that is over, and of the one that is not.
    lows: Recent,
    open_low: u64,
    /// The largest limit there was.
    largest: u64,
    errors: Errors,
    /// Error and growth of the tick that is not over yet, and how much of it has passed.
    open_error: u64,
    open_growth: u64,
    open_ticks: f64,
    /// Unforetold bytes a second: now, and halved from tick to tick.
    growth: f64,
    smooth_growth: f64,
}

/// What a watch says about its bound.
#[derive(Clone, Copy)]
struct View {
    limit: u64,
    usable: u64,
    residual: u64,
    margin: u64,
    admissible: u64,
}

/// What passed since the last fresh sample.
#[derive(Clone, Copy)]
struct Step {
    ticks: f64,
    /// Seconds of a tick.
    tick: f64,
    /// By how much the ledger's resident bytes rose.
    foretold: u64,
    resident: u64,
}

impl Forecaster {
    /// A forecaster that knows nothing yet and so keeps the starting margin.
    pub fn new() -> Self {
        Self {
            watches: vec![Watch::new(), Watch::new()],
            previous: Previous::default(),
            headroom: Headroom::default(),
        }
    }

    /// Takes in a sample and the ledger's figures of the same instant. Call it once a tick,
    /// also when the sensor gave nothing new: the margin then grows. Allocates nothing unless
    /// the number of levels changed.
    pub fn observe(&mut self, sample: &Sample, ledger: &Usage, set: &Setpoints) -> Headroom {
        let fresh = sample.sequence != self.headroom.sequence;
        let stale_ticks = if fresh { 0 } else { self.headroom.stale_ticks.saturating_add(1) };
        let foretold_rate = if fresh { self.learn(sample, ledger, set) } else { 0.0 };
        let (bound, view) = self.tightest(ledger, set, stale_ticks);
        let promised = ledger.reserved.saturating_sub(ledger.resident);
        let silence = set.tick * stale_ticks;
        let (time_to_limit, growth) = self.race(ledger, set, foretold_rate, silence);
        self.headroom = Headroom {
            sequence: sample.sequence,
            at: sample.at + silence,
            stale_ticks,
            bound,
            limit: view.limit,
            usable: view.usable,
            reserved: ledger.reserved,
            resident: ledger.resident,
            promised,
            residual: view.residual,
            margin: view.margin,
            admissible: view.admissible,
            deficit: view.lacks(ledger.reserved),
            growth,
            time_to_limit,
            stalled: self.headroom.stalled,
            kills: if fresh { self.headroom.kills } else { 0 },
            allocator_free: sample.allocator.free,
        };
        self.headroom
    }

    /// Shows a fresh sample to every watch; the rate at which resident bytes rose.
    fn learn(&mut self, sample: &Sample, ledger: &Usage, set: &Setpoints) -> f64 {
        let seconds = sample.at.saturating_sub(self.previous.at).as_secs_f64().max(1e-3);
        let step = Step {
            ticks: seconds / set.tick.as_secs_f64(),
            tick: set.tick.as_secs_f64(),
            foretold: ledger.resident.saturating_sub(self.previous.resident),
            resident: ledger.resident,
        };
        let watches = 2 + sample.levels.len();
        if self.watches.len() != watches {
            self.watches.truncate(2);
            self.watches.resize_with(watches, Watch::new);
        }
        for (at, watch) in self.watches.iter_mut().enumerate() {
            watch.learn(read(sample, set, at), step);
        }
        self.note_events(sample, step.ticks.max(SHORTEST) * step.tick);
        self.previous.at = sample.at;
        self.previous.resident = ledger.resident;
        step.foretold as f64 / (step.ticks.max(SHORTEST) * step.tick)
    }

    fn note_events(&mut self, sample: &Sample, seconds: f64) {
        let first = self.headroom.sequence == 0;
        let stalled_us = sample.pressure.map_or(0, |pressure| pressure.some.total_us);
        let stalled = stalled_us.saturating_sub(self.previous.stalled_us);
        let kills = sample.events.oom_kill.saturating_sub(self.previous.kills);
        self.headroom.stalled = if first { 0.0 } else { (stalled as f64 / seconds / 1e4) as f32 };
        self.headroom.kills = if first { 0 } else { kills };
        self.previous.stalled_us = stalled_us;
        self.previous.kills = sample.events.oom_kill;
    }

    fn tightest(&self, ledger: &Usage, set: &Setpoints, stale: u32) -> (Bound, View) {
        // Nobody has seen it leave.
        let unseen = match stale {
            0 => 0,
            _ => self.previous.resident.saturating_sub(ledger.resident),
        };
        let views = self.watches.iter().enumerate();
        views
            .filter_map(|(at, watch)| Some((bound(at), watch.view(ledger, set, stale, unseen)?)))
            .min_by_key(|(_, view)| (view.admissible, view.usable))
            .unwrap_or((Bound::Host, View::NOTHING))
    }

    /// Which bound is reached first, when, and how fast.
    fn race(
        &self,
        ledger: &Usage,
        set: &Setpoints,
        foretold_rate: f64,
        silence: Duration,
    ) -> (Option<Duration>, u64) {
        let promised = ledger.reserved.saturating_sub(ledger.resident);
        let mut first = (None, 0);
        for watch in &self.watches {
            let Some(view) = watch.view(ledger, set, 0, 0) else { continue };
            let foretold = if promised > view.usable { foretold_rate } else { 0.0 };
            let unforetold = watch.growth.max(watch.smooth_growth).max(watch.trend(set));
            let growth = unforetold + foretold;
            if growth < 1.0 {
                continue;
            }
            let left = Duration::from_secs_f64((view.usable as f64 / growth).min(1e9))
                .saturating_sub(silence);
            if first.0.is_none_or(|shortest| left < shortest) {
                first = (Some(left), growth as u64);
            }
        }
        first
    }
}

impl Default for Forecaster {
    fn default() -> Self {
        Self::new()
    }
}

fn bound(at: usize) -> Bound {
    match at {
        0 => Bound::Host,
        1 => Bound::Operator,
        level => Bound::Level(level - 2),
    }
}

/// The reading of the bound at this place. What the process and its cgroup say of the same
/// memory is compared, and the greater believed.
fn read(sample: &Sample, set: &Setpoints, at: usize) -> Reading {
    let own = sample.own.anon.saturating_add(sample.own.shmem);
    let level = |level: &crate::sensor::Level, limit, least: u64| Reading {
        limit,
        unreclaimable: level.unreclaimable().max(least),
        peak: level.peak.max(level.usage),
        reclaimable: level.reclaimable,
    };
    let plain = |limit, used| Reading { limit, unreclaimable: used, peak: used, reclaimable: 0 };
    match (bound(at), sample.levels.first()) {
        (Bound::Host, _) => {
            let limit = sample.host.total as f64 * (1.0 - set.host_reserve);
            let used = sample.host.total.saturating_sub(sample.host.available);
            plain(Some(limit as u64), used)
        }
        (Bound::Operator, Some(leaf)) => level(leaf, set.limit, own),
        (Bound::Operator, None) => plain(set.limit, own),
        (Bound::Level(0), Some(leaf)) => level(leaf, leaf.limit, own),
        (Bound::Level(i), _) => level(&sample.levels[i], sample.levels[i].limit, 0),
    }
}

impl View {
    /// Before anything was read nothing is admitted.
    const NOTHING: View = View { limit: 0, usable: 0, residual: 0, margin: 0, admissible: 0 };

    /// What must be given back until promises and margin fit: more than is reserved where the rest
    /// alone does not fit.
    fn lacks(&self, reserved: u64) -> u64 {
        let taken = reserved.saturating_add(self.residual).saturating_add(self.margin);
        taken.saturating_sub(self.limit)
    }
}

impl Watch {
    fn new() -> Self {
        Self {
            last: None,
            residuals: Recent::default(),
            limits: Recent::default(),
            lows: Recent::default(),
            open_low: u64::MAX,
            largest: 0,
            errors: Errors::new(),
            open_error: 0,
            open_growth: 0,
            open_ticks: 0.0,
            growth: 0.0,
            smooth_growth: 0.0,
        }
    }

    fn learn(&mut self, reading: Reading, step: Step) {
        let residual = reading.unreclaimable.saturating_sub(step.resident);
        self.residuals.push(residual);
        self.open_low = self.open_low.min(residual);
        self.limits.push(reading.limit.unwrap_or(u64::MAX));
        self.largest = self.largest.max(reading.limit.unwrap_or(0));
        if let Some(last) = self.last {
            let growth =
                |to: u64| to.saturating_sub(last.unreclaimable.saturating_add(step.foretold));
            self.open_growth = self.open_growth.saturating_add(growth(reading.unreclaimable));
            self.open_error = self.open_error.saturating_add(growth(reading.highest(last)));
            self.open_ticks += step.ticks;
            let seconds = self.open_ticks.max(SHORTEST) * step.tick;
            self.growth = self.open_growth as f64 / seconds;
            self.smooth_growth = (self.smooth_growth + self.growth) / 2.0;
            if self.open_ticks >= SAME_TICK {
                self.close_tick();
            }
        }
        self.last = Some(reading);
    }

    fn close_tick(&mut self) {
        self.errors.push(std::mem::take(&mut self.open_error));
        self.lows.push(std::mem::replace(&mut self.open_low, u64::MAX));
        (self.open_growth, self.open_ticks) = (0, 0.0);
    }

    /// Bytes a second by which the residual rose over the reaction. What is forgotten and what is
    /// reported late make it swing from tick to tick, so each end is the lesser of two ticks.
    fn trend(&self, set: &Setpoints) -> f64 {
        let ticks = set.reaction_ticks().min(Recent::MOST - 2);
        let low = |ago| Some(self.lows.before(ago)?.min(self.lows.before(ago + 1)?));
        let (Some(now), Some(then)) = (low(0), low(ticks)) else { return 0.0 };
        now.saturating_sub(then) as f64 / (ticks as f64 * set.tick.as_secs_f64())
    }

    /// How much is left at this bound, so many bytes that the ledger gave up being there still; `None`
    /// if it limits nothing.
    fn view(&self, ledger: &Usage, set: &Setpoints, stale: u32, unseen: u64) -> Option<View> {
        let trusted = set.trust_ticks as usize;
        let limit = Some(self.limits.min(trusted)).filter(|&limit| limit < u64::MAX)?;
        let residual = self.residuals.max(trusted).saturating_add(unseen);
        let margin = self.margin(limit, set).saturating_mul(1 + u64::from(stale));
        let unclaimed = limit.saturating_sub(residual);
        Some(View {
            limit,
            usable: unclaimed.saturating_sub(ledger.resident),
            residual,
            margin,
            admissible: unclaimed.saturating_sub(margin),
        })
    }

    fn margin(&self, limit: u64, set: &Setpoints) -> u64 {
        let share = |share: f64| (share * limit as f64) as u64;
        let later = set.reaction_ticks() as f64 - 1.0;
        let ordinary = self.errors.quantile(ORDINARY) as f64;
        let learned =
            self.errors.quantile(set.margin_quantile).saturating_add((later * ordinary) as u64);
        let cold = 1.0 - (self.errors.len() as f64 / f64::from(set.warmup_ticks.max(1))).min(1.0);
        let machine = self.largest.min(limit.saturating_mul(FORMER));
        let floor = SMALLEST_MARGIN.saturating_add((set.margin_floor * machine as f64) as u64);
        learned.max(floor).max(share(set.margin_start * cold))
    }
}

impl Reading {
    /// The greatest that the unreclaimable part can have been since `last`. Cache that went in
    /// between was part of the peak.
    fn highest(&self, last: Reading) -> u64 {
        let peak = self.peak.saturating_sub(self.reclaimable.max(last.reclaimable));
        peak.max(self.unreclaimable)
    }
}
