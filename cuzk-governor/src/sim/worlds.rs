//! Worlds made from a seed, and what must hold in every one of them.
//!
//! All chance is spent here: a [`World`] made from the same seed is the same world. It is unkind on
//! purpose: estimates are wrong by up to 30 %, limits shrink, neighbours grow, libraries leak, sensors
//! fall silent or lie, in any combination.
//!
//! # What counts as avoidable
//! Let the governed plant be killed at `k`, and let `R` be the stated reaction time
//! ([`Setpoints::reaction`]). The same world is run again, governed until a warning; then everything but the
//! one partition that needs the least is ordered away, by the same orders with the same delays, and nothing
//! starts again. If that run lives on for 30 s after `k`, then some policy could have avoided the kill, and
//! the governor is at fault. The warning comes at `k − R`: the reference is clairvoyant, it knows that the
//! kill is coming even where the sensor lies or is silent. One thing nobody can know: that a limit will be
//! cut, in one stroke, before it is cut. So the warning comes no sooner than a tick after the last cut
//! before `k`, or after the end of the silence that it fell into, when a governor that samples every tick
//! has seen it.
//!
//! The reference keeps one partition, for so does the governor where it could fit: a plant that never runs
//! anything is never killed either.
//!
//! # What counts as starvation
//! [`drought_bound`]. No world is exempt. The clock stands still while a level is above its limit, which
//! happens after a cut: the kernel grants nothing to anybody then, however long it takes to get below.

use std::fmt;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::budget::Priority;
use crate::policy::Shed;
use crate::setpoints::Setpoints;
use crate::sim::kernel::Machine;
use crate::sim::run::{run, Outcome, Steering, Unobserved, Until};
use crate::sim::spec::{Event, Job, Neighbour, Overhead, PlantSpec, What, World};

const MIB: u64 = 1 << 20;

/// Makes the world of a seed.
pub fn world(seed: u64) -> World {
    Maker { rng: ChaCha8Rng::seed_from_u64(seed) }.world(seed)
}

/// The rule that a run broke.
#[derive(Debug, Clone, PartialEq)]
pub enum Broken {
    /// Killed, although a policy with the same reaction time would have lived.
    AvoidableKill {
        /// When.
        at: Duration,
    },
    /// Work was there, and for longer than the bound none of it finished or was refused.
    Starved {
        /// How long.
        lasted: Duration,
        /// The bound.
        bound: Duration,
    },
    /// All work had ended, and the ledger was not empty.
    LeftOnBooks {
        /// What was left.
        bytes: u64,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::AvoidableKill { at } => {
                write!(f, "an avoidable kill at {:.2} s", at.as_secs_f64())
            }
            Broken::Starved { lasted, bound } => {
                write!(
                    f,
                    "nothing finished for {:.0} s, the bound is {:.0} s",
                    lasted.as_secs_f64(),
                    bound.as_secs_f64()
                )
            }
            Broken::LeftOnBooks { bytes } => write!(f, "{bytes} bytes were left on the books"),
        }
    }
}

/// What a seed's world showed.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The seed.
    pub seed: u64,
    /// The governed run.
    pub outcome: Outcome,
    /// The rule it broke, if any. A kill that nothing could have avoided breaks none.
    pub broken: Option<Broken>,
}

/// Runs a seed's world, governed, and judges it.
pub fn judge(seed: u64) -> Verdict {
    let world = world(seed);
    let outcome = run(&world, Steering::Governed, Until::Killed, &mut Unobserved);
    let broken = broken(&world, &outcome);
    Verdict { seed, outcome, broken }
}

fn broken(world: &World, outcome: &Outcome) -> Option<Broken> {
    if let Some(&at) = outcome.kills.first() {
        return avoidable(world, at).then_some(Broken::AvoidableKill { at });
    }
    let bound = drought_bound(world);
    if outcome.longest_drought > bound {
        return Some(Broken::Starved { lasted: outcome.longest_drought, bound });
    }
    (outcome.left_on_books > 0).then_some(Broken::LeftOnBooks { bytes: outcome.left_on_books })
}

/// Whether a policy that gave up everything but one partition in time would have lived.
fn avoidable(world: &World, at: Duration) -> bool {
    let mut world = world.clone();
    let Setpoints { reaction, tick, .. } = world.setpoints;
    let cut = |e: &&Event| e.at < at && matches!(e.what, What::Limit { .. });
    let seen = world.events.iter().filter(cut).map(|e| audible(&world, e.at) + tick).max();
    let warned = at.saturating_sub(reaction).max(seen.unwrap_or_default());
    world.horizon = at + Duration::from_secs(30);
    run(&world, Steering::GovernedUntil(warned), Until::Killed, &mut Unobserved).kills.is_empty()
}

/// The first moment from this one on at which the sensor is not silent.
fn audible(world: &World, from: Duration) -> Duration {
    let silence = |e: &Event| match e.what {
        What::SensorStalls(lasts) => Some((e.at, e.at + lasts)),
        _ => None,
    };
    // In order of time: a silence that begins in another one prolongs it.
    world.events.iter().filter_map(silence).fold(from, |at, (begin, end)| {
        if begin <= at && at < end {
            end
        } else {
            at
        }
    })
}

/// The stated bound on starvation: while there is work, a partition finishes or is refused within five times
/// what the longest one takes alone with a cold cache, plus four times the time after which what cannot fit
/// is refused. Where somebody reads a file through the group, its pages may fill the group, and all that a
/// partition allocates has to be reclaimed first: the time for that is added, once.
pub fn drought_bound(world: &World) -> Duration {
    let p = &world.plant;
    let scale = world.jobs.iter().map(|j| j.scale).fold(1.0, f64::max);
    let cold = (p.compiled + p.srs) as f64 / p.disk_per_s as f64;
    let alone = scale * (p.synthesis_s + p.device_s * (1.0 + p.mapped_penalty)) + p.finish_s + cold;
    let peak = world.jobs.iter().flat_map(|j| &j.peaks).max().copied().unwrap_or(0);
    let filled = world.events.iter().any(|e| matches!(e.what, What::ReadsFile { .. }));
    let reclaim = if filled { peak as f64 / world.machine.reclaim_per_s as f64 } else { 0.0 };
    Duration::from_secs_f64(5.0 * alone + reclaim) + world.setpoints.refuse_after * 4
}

struct Maker {
    rng: ChaCha8Rng,
}

impl Maker {
    fn world(&mut self, seed: u64) -> World {
        let total = self.log_uniform(24_000 * MIB, 1_000_000 * MIB);
        let limits = self.limits(total);
        let limit = limits.iter().flatten().copied().min().unwrap_or(total).min(total);
        let plant = self.plant(limit);
        let jobs = self.jobs(limit, &plant);
        let span = Duration::from_secs(240);
        World {
            name: format!("seed {seed}"),
            machine: Machine {
                total,
                reclaim_per_s: self.log_uniform(512 * MIB, 8192 * MIB),
                swap: if self.rng.gen_bool(0.1) { total / 16 } else { 0 },
                swap_per_s: 512 * MIB,
            },
            high: self.rng.gen_bool(0.1).then(|| self.part(limit, 0.8, 0.98)),
            oom_score_adj: self.rng.gen_range(-500..=500),
            in_flight: self.rng.gen_range(1..=6),
            events: self.events(&limits, limit, span),
            neighbours: self.neighbours(total, limit, limits.len(), span),
            setpoints: Setpoints::default(),
            step: Duration::from_millis(250),
            horizon: Duration::from_secs(3600),
            limits,
            plant,
            jobs,
        }
    }

    fn limits(&mut self, total: u64) -> Vec<Option<u64>> {
        let mut above = total;
        let mut limits = Vec::new();
        for _ in 0..self.rng.gen_range(1..=3) {
            let limit = self.part(above, 0.6, 1.0);
            if self.rng.gen_bool(0.7) {
                above = limit;
                limits.push(Some(limit));
            } else {
                limits.push(None);
            }
        }
        limits
    }

    fn plant(&mut self, limit: u64) -> PlantSpec {
        let leaks = self.rng.gen_bool(0.25);
        PlantSpec {
            srs: self.part(limit, 0.02, 0.4),
            compiled: self.part(limit, 0.01, 0.2),
            synthesis_threads: self.rng.gen_range(1..=24),
            synthesis_s: self.rng.gen_range(4.0..25.0),
            contention: self.rng.gen_range(0.0..0.15),
            devices: self.rng.gen_range(1..=4),
            device_s: self.rng.gen_range(0.5..5.0),
            mapped_penalty: self.rng.gen_range(0.0..0.3),
            finish_s: self.rng.gen_range(0.2..2.0),
            disk_per_s: self.log_uniform(limit / 100, limit / 10),
            pin_per_s: self.log_uniform(limit / 100, limit / 5),
            pool_cap: self.rng.gen_bool(0.5).then(|| self.part(limit, 0.0, 0.3)),
            overhead: Overhead {
                base: self.part(limit, 0.002, 0.03),
                per_thread: self.part(limit, 0.0, 0.001),
                per_pinned: self.rng.gen_range(0.0..0.02),
                driver_per_pinned: self.rng.gen_range(0.0..0.01),
                leak_per_s: if leaks { self.part(limit, 0.0, 0.002) } else { 0 },
                leak_limit: self.part(limit, 0.0, 0.3),
            },
            free_delay: self.millis(100, 1000),
            arena_share: self.rng.gen_range(0.0..0.6),
            order_delay: self.millis(50, 500),
            restart_s: 10.0,
        }
    }

    /// A mean partition takes from a thirtieth to nine tenths of the limit.
    fn jobs(&mut self, limit: u64, plant: &PlantSpec) -> Vec<Job> {
        let estimate = self.log_uniform(limit / 30, limit / 10 * 9);
        let wrong = self.rng.gen_range(-0.25..0.25);
        let pinned_share = self.rng.gen_range(0.3..0.95);
        let mut at = Duration::ZERO;
        let mut partitions_left = 40;
        let mut jobs = Vec::new();
        while partitions_left > 0 && jobs.len() < 12 {
            let post = self.rng.gen_range(0..20);
            let (priority, shed, share, scale) = match post {
                0 => (Priority::Critical, Shed::Never, 0.1, 0.1),
                1 => (Priority::High, Shed::InEmergency, 1.0, 1.0),
                _ => (
                    Priority::Normal,
                    Shed::Freely,
                    self.rng.gen_range(0.5..1.0),
                    self.rng.gen_range(0.5..1.0),
                ),
            };
            let partitions =
                if post == 0 { 1 } else { self.rng.gen_range(1..=10).min(partitions_left) };
            let estimate = (estimate as f64 * share) as u64;
            let peaks = (0..partitions)
                .map(|_| (estimate as f64 * (1.0 + wrong + self.rng.gen_range(-0.05..0.05))) as u64)
                .collect();
            jobs.push(Job { at, priority, shed, estimate, peaks, pinned_share, scale });
            partitions_left -= partitions;
            if self.rng.gen_bool(0.5) {
                at += Duration::from_secs_f64(self.rng.gen_range(0.0..3.0) * plant.synthesis_s);
            }
        }
        jobs
    }

    fn events(&mut self, limits: &[Option<u64>], limit: u64, span: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        if self.rng.gen_bool(0.3) {
            let mut bytes = limit;
            let level = self.rng.gen_range(0..limits.len());
            let mut at = self.moment(span);
            for _ in 0..self.rng.gen_range(1..=6) {
                bytes = self.part(bytes, 0.75, 1.0);
                events.push(Event { at, what: What::Limit { level, bytes } });
                at += self.millis(500, 20_000);
            }
        }
        if self.rng.gen_bool(0.3) {
            for _ in 0..self.rng.gen_range(1..=4) {
                let lasts = self.millis(1000, 8000);
                let what = if self.rng.gen_bool(0.5) {
                    What::SensorStalls(lasts)
                } else {
                    What::SensorLies { share: self.rng.gen_range(0.5..1.5), lasts: lasts / 2 }
                };
                events.push(Event { at: self.moment(span), what });
            }
        }
        if self.rng.gen_bool(0.3) {
            let what = What::ReadsFile {
                bytes: self.part(limit, 0.1, 2.0),
                per_s: self.part(limit, 0.002, 0.05),
            };
            events.push(Event { at: self.moment(span), what });
        }
        events.sort_by_key(|event| event.at);
        events
    }

    /// They grow for a while, hold, and shrink again; the fastest take 2 % of the limit a second.
    fn neighbours(
        &mut self,
        total: u64,
        limit: u64,
        levels: usize,
        span: Duration,
    ) -> Vec<Neighbour> {
        let count = if self.rng.gen_bool(0.5) { 0 } else { self.rng.gen_range(1..=3) };
        (0..count)
            .map(|_| {
                let level = self.rng.gen_range(0..=levels);
                let space = if level == 0 { total } else { limit };
                let small = self.part(space, 0.0, 0.05);
                let large = small + self.part(space, 0.0, 0.35);
                let per_s = self.log_uniform(limit / 2000, limit / 50);
                let rise = Duration::from_secs_f64((large - small) as f64 / per_s as f64)
                    + Duration::from_secs(1);
                let start = self.moment(span);
                let hold = self.moment(span);
                let sizes = vec![
                    (Duration::ZERO, small),
                    (start, small),
                    (start + rise, large),
                    (start + rise + hold, large),
                    (start + rise * 2 + hold, small),
                ];
                let oom_score_adj = self.rng.gen_range(-1000..=500);
                Neighbour { level, oom_score_adj, shmem: self.rng.gen_bool(0.3), sizes }
            })
            .collect()
    }

    fn part(&mut self, of: u64, low: f64, high: f64) -> u64 {
        (of as f64 * self.rng.gen_range(low..high)) as u64
    }

    fn log_uniform(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = ((low.max(1) as f64).ln(), (high as f64).ln());
        self.rng.gen_range(low..high).exp() as u64
    }

    fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_millis(self.rng.gen_range(low..high))
    }

    fn moment(&mut self, span: Duration) -> Duration {
        self.millis(1000, span.as_millis() as u64)
    }
}
