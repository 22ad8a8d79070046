//! One run: a world, stepped on virtual time, and who steers the plant in it.
//!
//! The governed plant is driven by the very [`policy::decide`] and [`Forecaster`] of production: a
//! sample a tick, at once on a pressure trigger, orders handed over and carried out later.

use std::sync::Arc;
use std::time::Duration;

use crate::governor::Tick;
use crate::headroom::Forecaster;
use crate::policy::{self, Action, Workload};
use crate::sensor::{Allocator, Events, Host, Level, Pressure, Resident, Sample, Stall};
use crate::sim::kernel::{Class, FileId, GroupId, Kernel, Pid, UNLIMITED};
use crate::sim::plant::{Books, Plant, Progress};
use crate::sim::spec::{What, World};

/// Who decides how much runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Steering {
    /// Settings that never change, but after a kill.
    Fixed {
        /// What the ledger may hold.
        total: u64,
        /// Partitions at once.
        concurrency: u32,
        /// How the books are kept.
        books: Books,
        /// Whether the SRS is pinned at the start (with [`Books::Whole`]; the other always pins).
        srs: Srs,
        /// The total is multiplied by this after a kill.
        after_kill: f64,
    },
    /// This crate's policy.
    Governed,
    /// This crate's policy until a moment; from then on everything but one partition is given up. It is
    /// what the best policy could do that learned of the danger at that moment.
    GovernedUntil(Duration),
}

/// Where the SRS lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Srs {
    /// In pinned memory.
    Pinned,
    /// In the page cache, as far as there is room.
    Mapped,
}

/// When a run stops early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// At the first kill of the plant.
    Killed,
    /// Only at the end: a killed plant starts again.
    Done,
}

/// One line of a recording.
#[derive(Debug, Clone, Default)]
pub struct Row {
    /// When.
    pub at: Duration,
    /// Usage at the level with the least room, in bytes.
    pub usage: u64,
    /// The reclaimable part of it.
    pub reclaimable: u64,
    /// Its limit.
    pub limit: u64,
    /// What the ledger holds, and may hold.
    pub ledger: crate::budget::Usage,
    /// Partitions running.
    pub running: u32,
    /// The most that may run.
    pub concurrency: u32,
    /// Partitions in the queue.
    pub waiting: u32,
    /// Per cent stalled.
    pub stalled: f64,
    /// Kills of the plant so far.
    pub kills: u32,
    /// What was ordered since the last line.
    pub actions: Vec<Action>,
}

/// Who is told while a run goes on. Both do nothing unless asked for.
pub trait Observer {
    /// Once a second of virtual time.
    fn row(&mut self, _row: Row) {}
    /// At each decision of the policy.
    fn tick(&mut self, _tick: &Tick<'_>) {}
}

/// Nobody looks on.
pub struct Unobserved;
impl Observer for Unobserved {}

/// How a run ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// When the plant was killed.
    pub kills: Vec<Duration>,
    /// Neighbours killed.
    pub others_killed: usize,
    /// The plant's progress.
    pub progress: Progress,
    /// Whether every job was finished or refused.
    pub done: bool,
    /// Virtual time at the end.
    pub ended: Duration,
    /// The most unreclaimable bytes in the plant's own group.
    pub peak: u64,
    /// On the books after everything was given back.
    pub left_on_books: u64,
    /// The longest stretch in which work was there and no partition finished or was refused, without the
    /// time in which a level was above its limit: the kernel grants nothing to anybody then.
    pub longest_drought: Duration,
    /// Decisions taken.
    pub ticks: u64,
}

impl Outcome {
    /// Proofs in an hour, over the time until the last one was made or the run was cut off.
    pub fn proofs_per_hour(&self) -> f64 {
        let time = if self.done { self.progress.last_proof } else { self.ended };
        match time.as_secs_f64() {
            t if t > 0.0 => self.progress.proofs as f64 * 3600.0 / t,
            _ => 0.0,
        }
    }
}

impl Outcome {
    /// Seconds a proof once the pipeline is full: from the first proof to the last.
    pub fn seconds_a_proof(&self) -> Option<f64> {
        let p = self.progress;
        let more = p.proofs.checked_sub(1).filter(|&more| more > 0)?;
        Some((p.last_proof - p.first_proof).as_secs_f64() / more as f64)
    }
}

/// Runs a world to its end.
pub fn run(
    world: &World,
    steering: Steering,
    until: Until,
    observer: &mut dyn Observer,
) -> Outcome {
    Run::new(world, steering).go(until, observer)
}

struct Run<'w> {
    world: &'w World,
    steering: Steering,
    kernel: Kernel,
    levels: Vec<GroupId>,
    paths: Vec<Arc<str>>,
    plant: Plant,
    neighbours: Vec<(Pid, u64)>,
    scratch: FileId,
    reading: Option<(u64, u64)>,
    next_event: usize,
    stalled_until: Duration,
    lies: Option<(f64, Duration)>,
    sample: Sample,
    workload: Workload,
    actions: Vec<Action>,
    forecaster: Forecaster,
    state: policy::State,
    next_tick: Duration,
    stall_seen: f64,
    outcome: Outcome,
}

impl<'w> Run<'w> {
    fn new(world: &'w World, steering: Steering) -> Self {
        let mut kernel = Kernel::new(world.machine);
        let mut levels = vec![kernel.host()];
        for limit in &world.limits {
            let above = levels[levels.len() - 1];
            levels.push(kernel.add_group(above, limit.unwrap_or(UNLIMITED)));
        }
        let own = levels[levels.len() - 1];
        if let Some(high) = world.high {
            kernel.set_high(own, high);
        }
        let pid = kernel.spawn(own, world.oom_score_adj);
        let neighbours = world
            .neighbours
            .iter()
            .map(|n| {
                let group = kernel.add_group(levels[n.level], UNLIMITED);
                (kernel.spawn(group, n.oom_score_adj), 0)
            })
            .collect();
        let scratch = kernel.add_file(own);
        let books = match steering {
            Steering::Fixed { books, .. } => books,
            Steering::Governed | Steering::GovernedUntil(_) => Books::Whole,
        };
        let plant = Plant::new(world, books, &mut kernel, pid);
        let paths = (0..levels.len()).map(|level| Arc::from(format!("level {level}"))).collect();
        let mut run = Run {
            world,
            steering,
            kernel,
            levels,
            paths,
            plant,
            neighbours,
            scratch,
            reading: None,
            next_event: 0,
            stalled_until: Duration::ZERO,
            lies: None,
            sample: Sample::default(),
            workload: Workload::default(),
            actions: Vec::new(),
            forecaster: Forecaster::new(),
            state: policy::State::new(),
            next_tick: Duration::ZERO,
            stall_seen: 0.0,
            outcome: Outcome::default(),
        };
        run.set_fixed();
        run
    }

    fn set_fixed(&mut self) {
        if let Steering::Fixed { total, concurrency, books, srs, .. } = self.steering {
            self.plant.set_total(total);
            self.plant.order(self.kernel.now(), Action::Concurrency(concurrency));
            if srs == Srs::Pinned && books == Books::Whole {
                self.plant.order(self.kernel.now(), Action::PinSrs(self.world.plant.srs));
            }
        }
    }

    fn go(mut self, until: Until, observer: &mut dyn Observer) -> Outcome {
        let mut last_row = Duration::ZERO;
        let mut since_row = Vec::new();
        let mut finished = 0;
        let mut fruitful = Duration::ZERO;
        while self.kernel.now() < self.world.horizon && !self.plant.done() {
            let now = self.kernel.now();
            self.happen(now);
            self.kernel.advance(self.world.step);
            self.move_neighbours();
            self.plant.advance(&mut self.kernel, self.world.step);
            if !self.kernel.alive(self.plant.pid()) {
                self.outcome.kills.push(self.kernel.now());
                if until == Until::Killed {
                    break;
                }
                self.restart();
            }
            self.steer(observer, &mut since_row);
            let view = self.kernel.view(self.levels[self.levels.len() - 1]);
            self.outcome.peak = self.outcome.peak.max(view.usage - view.file);
            let now = self.kernel.now();
            let progress = self.plant.progress();
            if progress.finished + progress.refused > finished
                || self.plant.running() + self.plant.waiting() == 0
            {
                finished = progress.finished + progress.refused;
                fruitful = now;
            }
            if self.above_limit() {
                fruitful = (fruitful + self.world.step).min(now);
            }
            self.outcome.longest_drought = self.outcome.longest_drought.max(now - fruitful);
            if now >= last_row + Duration::from_secs(1) {
                last_row = now;
                observer.row(self.row(std::mem::take(&mut since_row)));
            }
        }
        self.outcome.done = self.plant.done();
        self.outcome.progress = self.plant.progress();
        self.outcome.ended = self.kernel.now();
        self.outcome.others_killed =
            self.neighbours.iter().filter(|&&(pid, _)| !self.kernel.alive(pid)).count();
        if self.outcome.done {
            self.outcome.left_on_books = self.plant.close(&mut self.kernel);
        }
        self.outcome
    }

    /// Whether a limit was lowered below usage, and the kernel has not got there yet.
    fn above_limit(&self) -> bool {
        self.levels
            .iter()
            .map(|&level| self.kernel.view(level))
            .any(|v| v.usage > v.max.saturating_add(v.max / 100))
    }

    fn happen(&mut self, now: Duration) {
        while let Some(event) = self.world.events.get(self.next_event).filter(|e| e.at <= now) {
            self.next_event += 1;
            match event.what {
                // Level 0 of the world's limits is the first below the host.
                What::Limit { level, bytes } => self.kernel.set_max(self.levels[level + 1], bytes),
                What::SensorStalls(lasts) => self.stalled_until = now + lasts,
                What::SensorLies { share, lasts } => self.lies = Some((share, now + lasts)),
                What::ReadsFile { bytes, per_s } => self.reading = Some((bytes, per_s)),
            }
        }
        if let Some((left, per_s)) = self.reading {
            let bytes = left.min((per_s as f64 * self.world.step.as_secs_f64()) as u64);
            self.kernel.read(self.scratch, bytes);
            self.reading = (left > bytes).then_some((left - bytes, per_s));
        }
    }

    fn move_neighbours(&mut self) {
        let now = self.kernel.now();
        for (spec, (pid, held)) in self.world.neighbours.iter().zip(&mut self.neighbours) {
            let want = spec.size_at(now);
            let class = if spec.shmem { Class::Shmem } else { Class::Anon };
            if want > *held {
                *held += self.kernel.charge(*pid, class, want - *held);
            } else if want < *held {
                self.kernel.release(*pid, class, *held - want, Duration::ZERO);
                *held = want;
            }
        }
    }

    fn restart(&mut self) {
        let own = self.levels[self.levels.len() - 1];
        let pid = self.kernel.spawn(own, self.world.oom_score_adj);
        self.plant.restart(&mut self.kernel, pid);
        if let Steering::Fixed { total, after_kill, .. } = &mut self.steering {
            *total = (*total as f64 * *after_kill) as u64;
        }
        self.set_fixed();
        self.forecaster = Forecaster::new();
        self.state = policy::State::new();
    }

    fn steer(&mut self, observer: &mut dyn Observer, since_row: &mut Vec<Action>) {
        let now = self.kernel.now();
        let until = match self.steering {
            Steering::Fixed { .. } => return,
            Steering::Governed => Duration::MAX,
            Steering::GovernedUntil(moment) => moment,
        };
        if now >= until {
            return self.give_up_all_but_one();
        }
        let stalled = self.kernel.view(self.levels[self.levels.len() - 1]).pressure.some_total_us;
        let triggered =
            stalled - self.stall_seen >= self.world.setpoints.trigger_stall.as_micros() as f64;
        if now < self.next_tick && !triggered {
            return;
        }
        self.next_tick = now + self.world.setpoints.tick;
        self.stall_seen = stalled;
        self.take_sample(now);
        let ledger = self.plant.ledger();
        let headroom = self.forecaster.observe(&self.sample, &ledger, &self.world.setpoints);
        self.plant.workload(&self.kernel, &mut self.workload);
        let decision = policy::decide(
            &mut self.state,
            &headroom,
            &self.workload,
            &self.world.setpoints,
            &mut self.actions,
        );
        self.outcome.ticks += 1;
        observer.tick(&Tick {
            sample: &self.sample,
            usage: &ledger,
            workload: &self.workload,
            headroom: &headroom,
            decision: &decision,
            actions: &self.actions,
        });
        self.plant.set_total(decision.total);
        self.plant.set_ceiling(decision.ceiling);
        for &action in &self.actions {
            self.plant.order(now, action);
        }
        since_row.extend_from_slice(&self.actions);
    }

    /// The clairvoyant's answer: only the partition that needs the least goes on, all else is freed.
    fn give_up_all_but_one(&mut self) {
        let now = self.kernel.now();
        self.plant.workload(&self.kernel, &mut self.workload);
        self.plant.set_total(0);
        self.plant.order(now, Action::Concurrency(1));
        let keep = self.workload.running.iter().min_by_key(|p| p.held + p.to_come).map(|p| p.id);
        for partition in self.workload.running.iter().filter(|p| Some(p.id) != keep) {
            self.plant.order(now, Action::Shed(partition.id));
        }
        for action in [
            Action::FreeIdleChunks(u64::MAX),
            Action::UnpinSrs(u64::MAX),
            Action::PurgeAllocator,
            Action::DropFileCache(u64::MAX),
        ] {
            self.plant.order(now, action);
        }
        // Once is enough: with a total of 0 nothing starts again, and what was freed stays free.
        self.next_tick = Duration::MAX;
    }

    fn take_sample(&mut self, now: Duration) {
        if now < self.stalled_until {
            return;
        }
        let share = self.lies.filter(|&(_, until)| now < until).map_or(1.0, |(share, _)| share);
        let shown = |bytes: u64| (bytes as f64 * share) as u64;
        let total = self.kernel.total();
        self.sample.sequence += 1;
        self.sample.at = now;
        self.sample.levels.clear();
        for at in (0..self.levels.len()).rev() {
            let view = self.kernel.view(self.levels[at]);
            self.sample.levels.push(Level {
                path: Arc::clone(&self.paths[at]),
                limit: Some(view.max.min(view.high)).filter(|&limit| limit < total),
                usage: shown(view.usage),
                peak: shown(view.peak),
                reclaimable: shown(view.file),
            });
        }
        let taken = total - self.kernel.available();
        self.sample.host = Host { total, available: total.saturating_sub(shown(taken)) };
        let own = self.kernel.view(self.levels[self.levels.len() - 1]);
        let stall = Stall {
            total_us: own.pressure.some_total_us as u64,
            avg10: own.pressure.some_avg10 as f32,
        };
        self.sample.pressure = Some(Pressure { some: stall, full: Stall::default() });
        self.sample.events = Events { oom_kill: own.oom_kills, max: own.max_events, high: 0 };
        let held = self.kernel.resident(self.plant.pid());
        self.sample.own = Resident { anon: held.anon, file: 0, shmem: held.shmem, locked: 0 };
        self.sample.allocator =
            Allocator { in_use: held.anon, free: self.kernel.leaving(self.plant.pid()) };
        self.kernel.reset_peak();
    }

    fn row(&mut self, actions: Vec<Action>) -> Row {
        let tightest = self
            .levels
            .iter()
            .map(|&level| self.kernel.view(level))
            .min_by_key(|v| v.max.min(v.high).saturating_sub(v.usage - v.file));
        let Some(view) = tightest else { return Row::default() };
        Row {
            at: self.kernel.now(),
            usage: view.usage,
            reclaimable: view.file,
            limit: view.max.min(view.high),
            ledger: self.plant.ledger(),
            running: self.plant.running() as u32,
            concurrency: self.plant.concurrency(),
            waiting: self.plant.waiting() as u32,
            stalled: view.pressure.some_avg10,
            kills: self.outcome.kills.len() as u32,
            actions,
        }
    }
}
