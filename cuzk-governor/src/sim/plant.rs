//! A proving plant on the simulated kernel: partitions that ramp up in synthesis, give their pinned
//! chunks back in the device stage, and finish.
//!
//! Memory it asks for comes from the kernel step by step; a partition that gets less than it needs goes
//! on no faster than its memory. It does what it is ordered and decides nothing but the order of its
//! queue: priority, then arrival. Its books are kept in one of two ways ([`Books`]), because the way the
//! published daemon keeps them is one of the things to be compared.

use std::collections::VecDeque;
use std::time::Duration;

use crate::budget::{Ask, MemoryBudget, Reservation, Usage};
use crate::estimate::Trust;
use crate::policy::{Action, Partition, Shed, Workload};
use crate::sim::kernel::{Class, FileId, Kernel, Pid};
use crate::sim::spec::{Job, PlantSpec, World};

/// How long the allocator keeps its share of what was freed.
const ARENA_HOLDS: Duration = Duration::from_secs(60);

/// So often may a partition that does not fit be passed, as in the budget's own queue.
const PASSES: u32 = 16;

/// Pinned memory is unpinned and leaves in so many pieces.
const PIECES: u64 = 4;

/// What the ledger knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Books {
    /// As the published daemon: a partition pins whole vectors at its start; they are off the books when
    /// its device stage begins, idle ones are on nobody's, and SRS and compiled circuit are held for good.
    Published,
    /// As this project: chunks are pinned as they fill, all that is held is on the books until it has
    /// left, idle chunks included; SRS and compiled circuit are mapped files, and pinning the SRS is asked for.
    Whole,
}

/// Where a partition is in its life.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// Not arrived, or in the queue.
    Waiting,
    /// Share done.
    Synthesis(f64),
    /// Synthesised; waits for a device since.
    Ready(Duration),
    /// Share done.
    Device(f64),
    /// Seconds left.
    Finishing(f64),
    /// Its proof share is made.
    Done,
    /// It was told that it can never fit.
    Refused,
}

#[derive(Debug)]
struct Part {
    job: usize,
    peak: u64,
    pinned: u64,
    stage: Stage,
    queued: Duration,
    heap: u64,
    chunks: u64,
    reserved: Option<Reservation>,
    work: f64,
    times_shed: u32,
    passed: u32,
}

/// How the run went so far, for a partition's whole queue.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Progress {
    /// Partitions finished.
    pub finished: u64,
    /// Partitions refused.
    pub refused: u64,
    /// Times a partition was shed.
    pub shed: u64,
    /// Proofs made whole.
    pub proofs: u64,
    /// When the first proof was made.
    pub first_proof: Duration,
    /// When the last proof was made.
    pub last_proof: Duration,
    /// When the last partition finished or was refused.
    pub last_step: Duration,
    /// The longest that a partition was in the queue.
    pub longest_wait: Duration,
}

/// The plant.
#[derive(Debug)]
pub struct Plant {
    spec: PlantSpec,
    books: Books,
    jobs: Vec<Job>,
    left: Vec<usize>,
    parts: Vec<Part>,
    /// Jobs that came in, and the first partition of those that did not.
    arrived: usize,
    first_part: usize,
    in_flight: u32,
    waiting: Vec<usize>,
    running: Vec<usize>,
    orders: VecDeque<(Duration, Action)>,
    budget: MemoryBudget,
    /// What the assets that are held for good, the idle chunks and the pinned SRS have on the books.
    fixed_booked: Option<Reservation>,
    idle_booked: Option<Reservation>,
    srs_booked: Option<Reservation>,
    /// Still on the books, and until when.
    leaving: Vec<(Duration, Reservation)>,
    pid: Pid,
    srs_file: FileId,
    compiled_file: FileId,
    up_at: Duration,
    compiled_held: u64,
    srs_pinned: u64,
    idle: u64,
    overhead: u64,
    driver: u64,
    leaked: u64,
    /// Seconds of the last step that a device was not used for.
    device_spare: f64,
    threads_seen: u32,
    concurrency: u32,
    refuse_above: Option<u64>,
    trust: Trust,
    ceiling: u64,
    progress: Progress,
}

impl Plant {
    /// A plant that has loaded nothing.
    pub fn new(world: &World, books: Books, kernel: &mut Kernel, pid: Pid) -> Self {
        let (spec, jobs, in_flight) = (world.plant.clone(), world.jobs.clone(), world.in_flight);
        let group = kernel.group_of(pid);
        let mut parts = Vec::new();
        for (job, j) in jobs.iter().enumerate() {
            parts.extend(j.peaks.iter().map(|&peak| Part {
                job,
                peak,
                pinned: (peak as f64 * j.pinned_share) as u64,
                stage: Stage::Waiting,
                queued: j.at,
                heap: 0,
                chunks: 0,
                reserved: None,
                work: 0.0,
                times_shed: 0,
                passed: 0,
            }));
        }
        Plant {
            left: jobs.iter().map(|j| j.peaks.len()).collect(),
            spec,
            books,
            jobs,
            parts,
            arrived: 0,
            first_part: 0,
            in_flight,
            waiting: Vec::new(),
            running: Vec::new(),
            orders: VecDeque::new(),
            budget: MemoryBudget::new(0),
            fixed_booked: None,
            idle_booked: None,
            srs_booked: None,
            leaving: Vec::new(),
            pid,
            srs_file: kernel.add_file(group),
            compiled_file: kernel.add_file(group),
            up_at: Duration::ZERO,
            compiled_held: 0,
            srs_pinned: 0,
            idle: 0,
            overhead: 0,
            driver: 0,
            leaked: 0,
            device_spare: 0.0,
            threads_seen: 0,
            concurrency: 1,
            refuse_above: None,
            trust: Trust::default(),
            ceiling: 0,
            progress: Progress::default(),
        }
    }

    /// The process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How it goes.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Partitions running.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Partitions in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The most it would run at once.
    pub fn concurrency(&self) -> u32 {
        self.concurrency
    }

    /// Everything that has or will come in is finished or refused.
    pub fn done(&self) -> bool {
        self.progress.finished + self.progress.refused == self.parts.len() as u64
    }

    /// What the ledger may hold from now on.
    pub fn set_total(&mut self, total: u64) {
        self.budget.set_total(total);
    }

    /// What the ledger may hold at best.
    pub fn set_ceiling(&mut self, ceiling: u64) {
        self.budget.set_ceiling(ceiling);
        self.ceiling = ceiling;
    }

    /// Hands an order over; it is carried out after the order delay.
    pub fn order(&mut self, now: Duration, action: Action) {
        self.orders.push_back((now + self.spec.order_delay, action));
    }

    /// The ledger's sums, with what is resident reported anew.
    pub fn ledger(&mut self) -> Usage {
        let report = |booked: &mut Option<Reservation>, bytes: u64| {
            if let Some(booked) = booked {
                booked.report_resident(bytes);
            }
        };
        for &id in &self.running {
            let part = &mut self.parts[id];
            report(&mut part.reserved, part.heap + part.chunks);
        }
        report(&mut self.fixed_booked, self.srs_pinned + self.compiled_held);
        report(&mut self.srs_booked, self.srs_pinned);
        report(&mut self.idle_booked, self.idle);
        self.budget.usage()
    }

    /// What the governor is told.
    pub fn workload(&self, kernel: &Kernel, into: &mut Workload) {
        into.running.clear();
        into.running.extend(self.running.iter().map(|&id| {
            let part = &self.parts[id];
            let job = &self.jobs[part.job];
            let held = part.heap + part.chunks;
            Partition {
                id: id as u64,
                priority: job.priority,
                // Who was shed twice must end one day.
                shed: match job.shed {
                    Shed::Freely if part.times_shed >= 2 => Shed::InEmergency,
                    shed => shed,
                },
                held,
                to_come: match part.stage {
                    Stage::Synthesis(_) => booked(&part.reserved).saturating_sub(held),
                    _ => 0,
                },
                work: Duration::from_secs_f64(part.work),
            }
        }));
        into.concurrency = self.concurrency;
        into.finished = self.progress.finished;
        into.waiting = self.waiting.len() as u32;
        let may_start = &self.waiting[..self.candidates()];
        into.smallest_waiting = may_start.iter().map(|&p| self.needs(p)).min().unwrap_or(0);
        into.idle_chunks = self.idle / (64 << 20);
        into.idle_bytes = self.idle;
        into.file_cache = kernel.cached(self.srs_file) + kernel.cached(self.compiled_file);
        // Ours is a mapped file: its pages are reclaimable and on no books.
        into.idle_circuits = 0;
        // A device stage goes on from the mapped file, more slowly.
        into.idle_srs = self.srs_pinned;
        into.unpinned_srs = self.spec.srs - booked(&self.srs_booked);
    }

    /// One step of everything.
    pub fn advance(&mut self, kernel: &mut Kernel, step: Duration) {
        let (now, dt) = (kernel.now(), step.as_secs_f64());
        self.take_in(now);
        if !kernel.alive(self.pid) || now < self.up_at {
            return;
        }
        self.leaving.retain(|(due, _)| *due > now);
        while self.orders.front().is_some_and(|&(due, _)| due <= now) {
            if let Some((_, action)) = self.orders.pop_front() {
                self.carry_out(kernel, action);
            }
        }
        if self.load(kernel, dt) {
            self.admit(now);
            self.synthesise(kernel, dt);
            self.run_device(kernel, dt);
            self.finish(kernel, dt);
        }
        self.grow_overhead(kernel, dt);
    }

    /// The process was killed: its work is lost, and a new process starts with the same queue.
    pub fn restart(&mut self, kernel: &mut Kernel, pid: Pid) {
        let now = kernel.now();
        while let Some(&id) = self.running.last() {
            self.requeue(id, now);
        }
        kernel.drop_cache(self.compiled_file, u64::MAX);
        self.pid = pid;
        self.up_at = now + Duration::from_secs_f64(self.spec.restart_s);
        self.orders.clear();
        self.leaving.clear();
        (self.fixed_booked, self.idle_booked, self.srs_booked) = (None, None, None);
        (self.compiled_held, self.srs_pinned, self.idle) = (0, 0, 0);
        (self.overhead, self.driver, self.leaked, self.threads_seen) = (0, 0, 0, 0);
        self.concurrency = 1;
    }

    /// At the end of a run: everything is given back, and what is still on the books is returned.
    pub fn close(&mut self, kernel: &mut Kernel) -> u64 {
        self.free_idle(kernel, u64::MAX);
        self.unpin(kernel, u64::MAX);
        kernel.drop_cache(self.srs_file, u64::MAX);
        kernel.drop_cache(self.compiled_file, u64::MAX);
        self.leaving.clear();
        self.fixed_booked = None;
        self.budget.usage().reserved
    }

    fn take_in(&mut self, now: Duration) {
        while let Some(job) = self.jobs.get(self.arrived) {
            let unfinished = self.left[..self.arrived].iter().filter(|&&left| left > 0).count();
            if job.at > now || unfinished as u32 >= self.in_flight {
                return;
            }
            let first = self.first_part;
            let refused = self.refuse_above.is_some_and(|possible| self.needs(first) > possible);
            self.first_part += job.peaks.len();
            self.arrived += 1;
            for id in first..self.first_part {
                self.parts[id].queued = now;
                if refused {
                    self.refuse(id, now);
                } else {
                    self.enqueue(id);
                }
            }
        }
    }

    fn enqueue(&mut self, id: usize) {
        let key = |p: usize, plant: &Plant| {
            (std::cmp::Reverse(plant.jobs[plant.parts[p].job].priority), p)
        };
        let at = self.waiting.partition_point(|&p| key(p, self) < key(id, self));
        self.waiting.insert(at, id);
    }

    fn refuse(&mut self, id: usize, now: Duration) {
        self.parts[id].stage = Stage::Refused;
        self.left[self.parts[id].job] -= 1;
        self.progress.refused += 1;
        self.progress.last_step = now;
    }

    /// Back into the queue; what it held is gone already or with its process.
    fn requeue(&mut self, id: usize, now: Duration) {
        self.running.retain(|&p| p != id);
        let part = &mut self.parts[id];
        (part.stage, part.queued, part.work) = (Stage::Waiting, now, 0.0);
        (part.heap, part.chunks, part.reserved) = (0, 0, None);
        self.enqueue(id);
    }

    /// Loads what is held for good. The mapped file stays in the cache beside its pinned copy.
    fn load(&mut self, kernel: &mut Kernel, dt: f64) -> bool {
        let per_step = (self.spec.disk_per_s as f64 * dt) as u64;
        if self.books == Books::Whole {
            self.pin(kernel, dt);
            return true;
        }
        if self.fixed_booked.is_none() {
            let ask = Ask::new("fixed", self.spec.srs + self.spec.compiled);
            self.fixed_booked = self.budget.try_reserve(ask).ok();
        }
        let want = (self.spec.srs - self.srs_pinned).min(per_step);
        if want > 0 {
            kernel.read(self.srs_file, want);
            self.srs_pinned += kernel.charge(self.pid, Class::Shmem, want);
            return false;
        }
        let want = (self.spec.compiled - self.compiled_held).min(per_step);
        self.compiled_held += kernel.charge(self.pid, Class::Anon, want);
        want == 0
    }

    fn pin(&mut self, kernel: &mut Kernel, dt: f64) {
        let want = booked(&self.srs_booked)
            .saturating_sub(self.srs_pinned)
            .min((self.spec.pin_per_s as f64 * dt) as u64);
        self.srs_pinned += kernel.charge(self.pid, Class::Shmem, want);
    }

    /// Starts what may start: a free slot, a free thread, and room on the books.
    fn admit(&mut self, now: Duration) {
        let mut threads = self
            .running
            .iter()
            .filter(|&&p| matches!(self.parts[p].stage, Stage::Synthesis(_)))
            .count();
        while (self.running.len() as u32) < self.concurrency
            && (threads as u32) < self.spec.synthesis_threads
        {
            let next = (0..self.candidates()).find(|&at| self.book(self.waiting[at]));
            let Some(at) = next else { return };
            if let Some(first) = self.waiting.first().filter(|_| at > 0) {
                self.parts[*first].passed += 1;
            }
            threads += 1;
            let id = self.waiting.remove(at);
            self.running.push(id);
            let part = &mut self.parts[id];
            part.stage = Stage::Synthesis(0.0);
            let wait = now.saturating_sub(part.queued);
            self.progress.longest_wait = self.progress.longest_wait.max(wait);
        }
    }

    /// So many from the front of the queue may start: those behind one that does not fit may pass it, but
    /// not for ever.
    fn candidates(&self) -> usize {
        let patient = |&&p: &&usize| self.parts[p].passed < PASSES;
        match self.waiting.first().filter(patient) {
            Some(_) => self.waiting.len(),
            None => self.waiting.len().min(1),
        }
    }

    /// What a partition needs to start: its estimate, with what measurements say of estimates. One that
    /// would run alone does with all there is.
    fn needs(&self, id: usize) -> u64 {
        let estimate = self.jobs[self.parts[id].job].estimate;
        let doubted = match self.books {
            Books::Published => estimate,
            Books::Whole => self.trust.ask(estimate),
        };
        if self.running.is_empty() && !self.trust.measured() {
            doubted.min(estimate.max(self.ceiling))
        } else {
            doubted
        }
    }

    /// Reserves for a partition; idle chunks that are on the books already only change hands.
    fn book(&mut self, id: usize) -> bool {
        let asked = self.needs(id);
        let own = asked.min(self.parts[id].pinned).min(self.idle).min(booked(&self.idle_booked));
        let ask = |bytes| Ask::new("partition", bytes);
        let new = match asked - own {
            0 => None,
            bytes => match self.budget.try_reserve(ask(bytes)) {
                Ok(new) => Some(new),
                Err(_) => return false,
            },
        };
        self.idle -= own;
        let part = &mut self.parts[id];
        part.chunks = own;
        part.reserved = new;
        let own = take(&mut self.idle_booked, own);
        put(&mut part.reserved, own);
        true
    }

    fn synthesise(&mut self, kernel: &mut Kernel, dt: f64) {
        let busy = self
            .running
            .iter()
            .filter(|&&p| matches!(self.parts[p].stage, Stage::Synthesis(_)))
            .count();
        if busy == 0 {
            return;
        }
        self.threads_seen = self.threads_seen.max(busy as u32);
        let missing = match self.books {
            Books::Published => 0,
            Books::Whole => self.read_in(kernel, self.compiled_file, self.spec.compiled, dt),
        };
        let alone = self.spec.synthesis_s * (1.0 + self.spec.contention * (busy - 1) as f64);
        let seconds = alone + (missing as f64 * busy as f64) / self.spec.disk_per_s as f64;
        let awake = 1.0 - kernel.swapped_share(self.pid);
        for at in 0..self.running.len() {
            let id = self.running[at];
            let Stage::Synthesis(done) = self.parts[id].stage else { continue };
            let scale = self.jobs[self.parts[id].job].scale;
            let wanted = (done + dt * awake / (seconds * scale)).min(1.0);
            let reached = self.take_memory(kernel, id, wanted).max(done);
            let part = &mut self.parts[id];
            part.work += dt;
            part.stage =
                if reached >= 1.0 { Stage::Ready(kernel.now()) } else { Stage::Synthesis(reached) };
            if reached >= 1.0 {
                let held = part.heap + part.chunks;
                self.trust.measure(self.jobs[part.job].estimate, held);
            }
            if !kernel.alive(self.pid) {
                return;
            }
        }
    }

    /// Takes what a partition needs to be `done`; returns how far its memory carries it.
    fn take_memory(&mut self, kernel: &mut Kernel, id: usize, done: f64) -> f64 {
        let part = &self.parts[id];
        let filled = (part.pinned as f64 * done) as u64;
        let chunks = match self.books {
            // Whole vectors are pinned when synthesis begins, and pinning populates them.
            Books::Published => part.pinned,
            Books::Whole => filled,
        };
        let heap = ((part.peak - part.pinned) as f64 * done) as u64;
        let (want_chunks, want_heap) =
            (chunks.saturating_sub(part.chunks), heap.saturating_sub(part.heap));
        let from_idle = want_chunks.min(self.idle);
        self.idle -= from_idle;
        // The partition's own reservation covers them now.
        drop(take(&mut self.idle_booked, from_idle));
        let got_chunks = from_idle + kernel.charge(self.pid, Class::Shmem, want_chunks - from_idle);
        let got_heap = kernel.charge(self.pid, Class::Anon, want_heap);
        let part = &mut self.parts[id];
        part.chunks += got_chunks;
        part.heap += got_heap;
        let short = (want_chunks + want_heap) - (got_chunks + got_heap);
        if short == 0 {
            done
        } else {
            let carried =
                |held: u64, whole: u64| if whole == 0 { 1.0 } else { held as f64 / whole as f64 };
            carried(part.chunks, part.pinned)
                .min(carried(part.heap, part.peak - part.pinned))
                .min(done)
        }
    }

    fn run_device(&mut self, kernel: &mut Kernel, dt: f64) {
        let mut device_spare = std::mem::take(&mut self.device_spare);
        self.fill_devices(&mut device_spare);
        let busy = self.running.iter().any(|&p| matches!(self.parts[p].stage, Stage::Device(_)));
        if !busy {
            return;
        }
        let unpinned = self.spec.srs - self.srs_pinned;
        let mut seconds = self.spec.device_s
            * (1.0 + self.spec.mapped_penalty * unpinned as f64 / self.spec.srs.max(1) as f64);
        if unpinned > 0 {
            let missing = self.read_in(kernel, self.srs_file, unpinned, dt);
            seconds += missing as f64 / self.spec.disk_per_s as f64;
        }
        device_spare = 0.0;
        let awake = 1.0 - kernel.swapped_share(self.pid);
        for at in 0..self.running.len() {
            let id = self.running[at];
            let Stage::Device(done) = self.parts[id].stage else { continue };
            let scale = self.jobs[self.parts[id].job].scale;
            let done = done + dt * awake / (seconds * scale);
            let part = &mut self.parts[id];
            part.work += dt;
            part.stage = if done >= 1.0 {
                Stage::Finishing(self.spec.finish_s)
            } else {
                Stage::Device(done)
            };
            device_spare += (done - 1.0).max(0.0) * seconds * scale;
            let keep = (part.pinned as f64 * (1.0 - done.min(1.0))) as u64;
            let back = part.chunks.saturating_sub(keep);
            part.chunks -= back;
            if self.books == Books::Whole {
                let moved = take(&mut part.reserved, back);
                put(&mut self.idle_booked, moved);
            }
            self.pool(kernel, back);
        }
        self.device_spare = device_spare.min(dt);
    }

    /// The next partitions begin where the last ones ended, also within a step.
    fn fill_devices(&mut self, spare: &mut f64) {
        let mut busy = self
            .running
            .iter()
            .filter(|&&p| matches!(self.parts[p].stage, Stage::Device(_)))
            .count();
        while (busy as u32) < self.spec.devices {
            let ready = self.running.iter().copied().filter_map(|p| match self.parts[p].stage {
                Stage::Ready(since) => {
                    Some((std::cmp::Reverse(self.jobs[self.parts[p].job].priority), since, p))
                }
                _ => None,
            });
            let Some((_, _, next)) = ready.min() else { return };
            let part = &mut self.parts[next];
            part.stage = Stage::Device(std::mem::take(spare) / self.spec.device_s);
            if self.books == Books::Published {
                drop(take(&mut part.reserved, part.pinned));
            }
            busy += 1;
        }
    }

    fn finish(&mut self, kernel: &mut Kernel, dt: f64) {
        let now = kernel.now();
        for at in (0..self.running.len()).rev() {
            let id = self.running[at];
            let Stage::Finishing(left) = self.parts[id].stage else { continue };
            self.parts[id].stage = Stage::Finishing(left - dt);
            if left > dt {
                continue;
            }
            self.running.remove(at);
            self.free_heap(kernel, id);
            let part = &mut self.parts[id];
            (part.stage, part.reserved) = (Stage::Done, None);
            let job = part.job;
            self.left[job] -= 1;
            self.progress.finished += 1;
            self.progress.last_step = now;
            if self.left[job] == 0 {
                self.progress.proofs += 1;
                if self.progress.proofs == 1 {
                    self.progress.first_proof = now;
                }
                self.progress.last_proof = now;
            }
        }
    }

    /// Reads what is not cached of a mapped file; returns what is still missing of `size`.
    fn read_in(&self, kernel: &mut Kernel, file: FileId, size: u64, dt: f64) -> u64 {
        kernel.touch(file);
        let missing = size.saturating_sub(kernel.cached(file));
        let per_step = (self.spec.disk_per_s as f64 * dt) as u64;
        size.saturating_sub(kernel.read(file, missing.min(per_step)))
    }

    /// Chunks that come back are kept for the next partition, but not above the cap, and not while the
    /// ledger holds more than it may.
    fn pool(&mut self, kernel: &mut Kernel, bytes: u64) {
        self.idle += bytes;
        let usage = self.budget.usage();
        let over = match self.books {
            Books::Whole => usage.reserved.saturating_sub(usage.total),
            Books::Published => 0,
        };
        let above_cap = self.spec.pool_cap.map_or(0, |cap| self.idle.saturating_sub(cap));
        self.free_idle(kernel, over.max(above_cap));
    }

    fn free_idle(&mut self, kernel: &mut Kernel, bytes: u64) {
        let bytes = bytes.min(self.idle);
        self.idle -= bytes;
        let booked = take(&mut self.idle_booked, bytes);
        self.give_back(kernel, Class::Shmem, bytes, booked);
    }

    /// Frees, and keeps on the books what is there of it until the kernel has it back.
    fn give_back(
        &mut self,
        kernel: &mut Kernel,
        class: Class,
        bytes: u64,
        booked: Option<Reservation>,
    ) {
        if bytes == 0 {
            return;
        }
        let unpin = match class {
            Class::Shmem => Duration::from_secs_f64(bytes as f64 / self.spec.pin_per_s as f64),
            Class::Anon | Class::Driver => Duration::ZERO,
        };
        let delay = self.spec.free_delay + unpin;
        let arena = match class {
            Class::Anon => (bytes as f64 * self.spec.arena_share) as u64,
            Class::Shmem | Class::Driver => 0,
        };
        let piece = (bytes - arena) / PIECES;
        let mut booked = booked.filter(|_| self.books == Books::Whole);
        for n in 1..PIECES {
            let part = self.spec.free_delay + unpin * n as u32 / PIECES as u32;
            kernel.release(self.pid, class, piece, part);
            let booked = take(&mut booked, piece);
            self.keep_booked(kernel.now() + part, booked);
        }
        kernel.release(self.pid, class, bytes - arena - piece * (PIECES - 1), delay);
        kernel.release(self.pid, class, arena, ARENA_HOLDS);
        self.keep_booked(kernel.now() + delay, booked);
    }

    fn keep_booked(&mut self, until: Duration, booked: Option<Reservation>) {
        if let Some(mut booked) = booked {
            booked.report_resident(booked.bytes());
            self.leaving.push((until, booked));
        }
    }

    fn free_heap(&mut self, kernel: &mut Kernel, id: usize) {
        let part = &mut self.parts[id];
        let bytes = std::mem::take(&mut part.heap);
        let booked = take(&mut part.reserved, bytes);
        self.give_back(kernel, Class::Anon, bytes, booked);
    }

    fn unpin(&mut self, kernel: &mut Kernel, bytes: u64) {
        let to_come = booked(&self.srs_booked).saturating_sub(self.srs_pinned).min(bytes);
        drop(take(&mut self.srs_booked, to_come));
        let bytes = (bytes - to_come).min(self.srs_pinned);
        self.srs_pinned -= bytes;
        let booked = take(&mut self.srs_booked, bytes);
        self.give_back(kernel, Class::Shmem, bytes, booked);
    }

    fn carry_out(&mut self, kernel: &mut Kernel, action: Action) {
        let now = kernel.now();
        match action {
            Action::Concurrency(most) => self.concurrency = most,
            Action::PinSrs(bytes) => {
                let usage = self.budget.usage();
                let room = usage.total.saturating_sub(usage.reserved);
                let bytes = bytes.min(room).min(self.spec.srs - booked(&self.srs_booked));
                let granted = self.budget.try_reserve(Ask::new("srs", bytes)).ok();
                put(&mut self.srs_booked, granted);
            }
            Action::FreeIdleChunks(bytes) => self.free_idle(kernel, bytes),
            Action::DropFileCache(bytes) => {
                let left = bytes - kernel.drop_cache(self.srs_file, bytes);
                kernel.drop_cache(self.compiled_file, left);
            }
            Action::PurgeAllocator => {
                kernel.purge(self.pid, self.spec.free_delay);
                self.threads_seen = 0;
            }
            Action::EvictCircuits(bytes) => {
                kernel.drop_cache(self.compiled_file, bytes);
            }
            Action::UnpinSrs(bytes) => self.unpin(kernel, bytes),
            Action::Shed(id) => self.shed(kernel, id as usize),
            Action::Refuse { possible, .. } => {
                self.refuse_above = Some(possible);
                let waiting = std::mem::take(&mut self.waiting);
                let (out, stay) = waiting.into_iter().partition(|&p| self.needs(p) > possible);
                self.waiting = stay;
                let out: Vec<usize> = out;
                out.into_iter().for_each(|p| self.refuse(p, now));
            }
            Action::Accept => self.refuse_above = None,
        }
    }

    /// A shed partition's chunks are freed, not pooled: it was shed for its memory.
    fn shed(&mut self, kernel: &mut Kernel, id: usize) {
        if !self.running.contains(&id) {
            return;
        }
        let part = &mut self.parts[id];
        let held = part.heap + part.chunks;
        if held > booked(&part.reserved) {
            // It takes more than it was thought to, and was not at its peak yet.
            self.trust.measure(self.jobs[part.job].estimate, held + held / 8);
        }
        let chunks = std::mem::take(&mut part.chunks);
        let booked = take(&mut part.reserved, chunks);
        self.give_back(kernel, Class::Shmem, chunks, booked);
        self.free_heap(kernel, id);
        self.parts[id].times_shed += 1;
        self.progress.shed += 1;
        self.requeue(id, kernel.now());
    }

    fn grow_overhead(&mut self, kernel: &mut Kernel, dt: f64) {
        let o = self.spec.overhead;
        let pinned = kernel.resident(self.pid).shmem as f64;
        let leak =
            (o.leak_limit.saturating_sub(self.leaked)).min((o.leak_per_s as f64 * dt) as u64);
        self.leaked += kernel.charge(self.pid, Class::Anon, leak);
        let want =
            o.base + o.per_thread * u64::from(self.threads_seen) + (o.per_pinned * pinned) as u64;
        match want.checked_sub(self.overhead) {
            Some(more) => self.overhead += kernel.charge(self.pid, Class::Anon, more),
            None => {
                kernel.release(self.pid, Class::Anon, self.overhead - want, self.spec.free_delay);
                self.overhead = want;
            }
        }
        let want = (o.driver_per_pinned * pinned) as u64;
        match want.checked_sub(self.driver) {
            Some(more) => self.driver += kernel.charge(self.pid, Class::Driver, more),
            None => {
                kernel.release(self.pid, Class::Driver, self.driver - want, self.spec.free_delay);
                self.driver = want;
            }
        }
    }
}

fn booked(reservation: &Option<Reservation>) -> u64 {
    reservation.as_ref().map_or(0, Reservation::bytes)
}

/// Splits up to `bytes` off.
fn take(from: &mut Option<Reservation>, bytes: u64) -> Option<Reservation> {
    let reservation = from.as_mut()?;
    if bytes >= reservation.bytes() {
        return from.take();
    }
    reservation.split(bytes)
}

fn put(into: &mut Option<Reservation>, more: Option<Reservation>) {
    let Some(more) = more else { return };
    match into {
        // Both are of the plant's one budget, so that merging cannot fail.
        Some(held) => drop(held.merge(more)),
        None => *into = Some(more),
    }
}
