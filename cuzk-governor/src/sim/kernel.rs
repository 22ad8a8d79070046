//! A kernel's memory control on virtual time: nested control groups, page cache, reclaim, PSI, and the
//! OOM killer's own choice rule.
//!
//! It assumes that memory is asked for in steps (`charge`), and that one step is short beside the delays
//! it models. Nothing in it is random and nothing reads a clock: the same calls give the same kills.
//! What it leaves out: NUMA, huge pages, `memory.low`/`min`, slab other than page tables, and v1's
//! `EBUSY` when a limit is lowered below usage (here, as in v2, the kernel reclaims and then kills).

use std::time::Duration;

/// A page-table entry of 8 bytes maps a page of 4 KiB.
const BYTES_PER_TABLE_BYTE: u64 = 512;
/// Below this share of the host's memory free, the kernel reclaims in the background (kswapd).
const LOW_WATERMARK: f64 = 0.004;
/// Of what is asked above `memory.high`, a throttled allocator gets one part in this many.
const THROTTLE: u64 = 16;

/// No limit at this level.
pub const UNLIMITED: u64 = u64::MAX;

/// A control group; the first one made is the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupId(usize);

/// A process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pid(usize);

/// A file with pages in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId(usize);

/// What kind of memory a process holds; how it is accounted follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Private memory: charged to the group, part of the resident set.
    Anon,
    /// Shared or pinned memory: charged to the group, resident, never reclaimed.
    Shmem,
    /// What a driver takes for itself: on the host, in no group and in no resident set.
    Driver,
}

/// The constants of one simulated machine.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Physical memory.
    pub total: u64,
    /// Clean pages that reclaim can drop in a second.
    pub reclaim_per_s: u64,
    /// Swap space; slow, and 0 on most proving nodes.
    pub swap: u64,
    /// Bytes a second that can be swapped out.
    pub swap_per_s: u64,
}

/// A kill, as the kernel log would show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kill {
    /// When.
    pub at: Duration,
    /// Who.
    pub victim: Pid,
    /// The group whose limit could not be met.
    pub level: GroupId,
}

#[derive(Debug, Clone)]
struct Group {
    parent: Option<usize>,
    max: u64,
    high: u64,
    usage: u64,
    shmem: u64,
    anon: u64,
    peak: u64,
    pressure: Pressure,
    stall: f64,
    oom_kills: u64,
    max_events: u64,
}

/// Stall information of one group, as `memory.pressure` shows it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Microseconds in which some task waited for memory.
    pub some_total_us: f64,
    /// The same as a share of time, averaged over 10 s.
    pub some_avg10: f64,
    /// The same, averaged over 60 s.
    pub some_avg60: f64,
}

/// What one level of the hierarchy shows to a reader.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelView {
    /// `memory.max`, or physical memory for the host.
    pub max: u64,
    /// `memory.high`.
    pub high: u64,
    /// `memory.current`.
    pub usage: u64,
    /// `memory.peak` since the last call of [`Kernel::reset_peak`].
    pub peak: u64,
    /// `active_file` + `inactive_file`.
    pub file: u64,
    /// `shmem`.
    pub shmem: u64,
    /// `anon`.
    pub anon: u64,
    /// `oom_kill` of `memory.events`.
    pub oom_kills: u64,
    /// `max` of `memory.events`.
    pub max_events: u64,
    /// `memory.pressure`.
    pub pressure: Pressure,
}

/// What `/proc/PID/status` shows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resident {
    /// Private bytes.
    pub anon: u64,
    /// Shared or pinned bytes.
    pub shmem: u64,
}

#[derive(Debug, Clone)]
struct Process {
    group: usize,
    adj: i64,
    alive: bool,
    anon: u64,
    shmem: u64,
    driver: u64,
    swapped: u64,
    leaving: Vec<Leaving>,
}

/// Memory that was freed but that the kernel still counts.
#[derive(Debug, Clone, Copy)]
struct Leaving {
    due: Duration,
    class: Class,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct File {
    group: usize,
    cached: u64,
    used: Duration,
}

/// The simulated kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    machine: Machine,
    now: Duration,
    step: f64,
    reclaim_left: u64,
    swap_left: u64,
    swap_free: u64,
    groups: Vec<Group>,
    processes: Vec<Process>,
    files: Vec<File>,
    kills: Vec<Kill>,
}

impl Kernel {
    /// A machine with nothing running on it.
    pub fn new(machine: Machine) -> Self {
        let host = Group::new(None, machine.total);
        Kernel {
            machine,
            now: Duration::ZERO,
            step: 0.0,
            reclaim_left: 0,
            swap_left: 0,
            swap_free: machine.swap,
            groups: vec![host],
            processes: Vec::new(),
            files: Vec::new(),
            kills: Vec::new(),
        }
    }

    /// The host, the root of every path.
    pub fn host(&self) -> GroupId {
        GroupId(0)
    }

    /// Makes a group below `parent`.
    pub fn add_group(&mut self, parent: GroupId, max: u64) -> GroupId {
        self.groups.push(Group::new(Some(parent.0), max));
        GroupId(self.groups.len() - 1)
    }

    /// Starts a process with nothing resident.
    pub fn spawn(&mut self, group: GroupId, oom_score_adj: i64) -> Pid {
        self.processes.push(Process {
            group: group.0,
            adj: oom_score_adj,
            alive: true,
            anon: 0,
            shmem: 0,
            driver: 0,
            swapped: 0,
            leaving: Vec::new(),
        });
        Pid(self.processes.len() - 1)
    }

    /// Makes a file whose cached pages are charged to `group`.
    pub fn add_file(&mut self, group: GroupId) -> FileId {
        self.files.push(File { group: group.0, cached: 0, used: Duration::ZERO });
        FileId(self.files.len() - 1)
    }

    /// Virtual time since the start.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Every kill so far.
    pub fn kills(&self) -> &[Kill] {
        &self.kills
    }

    /// Whether the process still runs.
    pub fn alive(&self, pid: Pid) -> bool {
        self.processes[pid.0].alive
    }

    /// Advances time: freed memory whose delay is over leaves, limits are enforced, averages move.
    pub fn advance(&mut self, step: Duration) {
        self.now += step;
        self.step = step.as_secs_f64();
        self.reclaim_left = (self.machine.reclaim_per_s as f64 * self.step) as u64;
        self.swap_left = (self.machine.swap_per_s as f64 * self.step) as u64;
        for pid in 0..self.processes.len() {
            self.let_go(pid);
        }
        for group in 0..self.groups.len() {
            self.groups[group].settle_pressure(self.step);
            self.enforce(group);
        }
        self.reclaim_in_background();
        for pid in 0..self.processes.len() {
            self.swap_in(pid);
        }
    }

    /// Lowers or raises a limit; enforced at the next step, as a write to `memory.max` is.
    pub fn set_max(&mut self, group: GroupId, max: u64) {
        self.groups[group.0].max = max;
    }

    /// Sets `memory.high`.
    pub fn set_high(&mut self, group: GroupId, high: u64) {
        self.groups[group.0].high = high;
    }

    /// A process asks for memory. Returns what it got in this step: less than `want` when it was
    /// throttled or had to wait for reclaim, nothing when it was killed.
    pub fn charge(&mut self, pid: Pid, class: Class, want: u64) -> u64 {
        if want == 0 || !self.processes[pid.0].alive {
            return 0;
        }
        let mut granted = want;
        let mut level = Some(self.first_level(pid.0, class));
        while let Some(at) = level {
            granted = self.make_room(at, granted, pid.0);
            if !self.processes[pid.0].alive {
                return 0;
            }
            level = self.groups[at].parent;
        }
        self.account(pid.0, class, granted);
        granted
    }

    /// A process frees memory; the kernel counts it until `delay` is over (freed is not reclaimed).
    pub fn release(&mut self, pid: Pid, class: Class, bytes: u64, delay: Duration) {
        if bytes > 0 && self.processes[pid.0].alive {
            let due = self.now + delay;
            self.processes[pid.0].leaving.push(Leaving { due, class, bytes });
        }
    }

    /// What an allocator's purge does: freed private memory that it still holds leaves after `delay`.
    pub fn purge(&mut self, pid: Pid, delay: Duration) {
        let due = self.now + delay;
        let held = self.processes[pid.0].leaving.iter_mut().filter(|l| l.class == Class::Anon);
        for leaving in held {
            leaving.due = leaving.due.min(due);
        }
    }

    /// Reads `bytes` of a file through the page cache, which grows by what fits. Returns what is cached.
    pub fn read(&mut self, file: FileId, bytes: u64) -> u64 {
        self.files[file.0].used = self.now;
        let mut room = bytes;
        let mut level = Some(self.files[file.0].group);
        while let Some(at) = level {
            let short = room.saturating_sub(self.room_for_cache(at));
            // Cache never kills: it takes the place of older cache or stays out.
            // Half of what can be reclaimed is left to those who allocate.
            let most = short.min(self.reclaim_left / 2);
            let reclaimed = if most > 0 { self.reclaim(at, most, Some(file.0)) } else { 0 };
            self.stall_for_reclaim(self.files[file.0].group, reclaimed);
            room -= short - reclaimed.min(short);
            level = self.groups[at].parent;
        }
        self.files[file.0].cached += room;
        self.add_usage(self.files[file.0].group, room);
        self.files[file.0].cached
    }

    /// Keeps a file's pages young: reclaim takes older ones first.
    pub fn touch(&mut self, file: FileId) {
        self.files[file.0].used = self.now;
    }

    /// Bytes of the file in the page cache.
    pub fn cached(&self, file: FileId) -> u64 {
        self.files[file.0].cached
    }

    /// Drops up to so many bytes of a file's pages (`POSIX_FADV_DONTNEED`); how many there were.
    pub fn drop_cache(&mut self, file: FileId, bytes: u64) -> u64 {
        let bytes = bytes.min(self.files[file.0].cached);
        self.files[file.0].cached -= bytes;
        self.sub_usage(self.files[file.0].group, bytes);
        bytes
    }

    /// What a process holds, as the kernel shows it.
    pub fn resident(&self, pid: Pid) -> Resident {
        let process = &self.processes[pid.0];
        Resident { anon: process.anon, shmem: process.shmem }
    }

    /// Private memory that was freed and is still counted: what a purge can give back.
    pub fn leaving(&self, pid: Pid) -> u64 {
        let leaving = self.processes[pid.0].leaving.iter();
        leaving.filter(|l| l.class == Class::Anon).map(|l| l.bytes).sum()
    }

    /// The group a process is in.
    pub fn group_of(&self, pid: Pid) -> GroupId {
        GroupId(self.processes[pid.0].group)
    }

    /// The level above, up to the host.
    pub fn parent(&self, group: GroupId) -> Option<GroupId> {
        self.groups[group.0].parent.map(GroupId)
    }

    /// Share of the process that sits in swap: its work is slowed by as much.
    pub fn swapped_share(&self, pid: Pid) -> f64 {
        let process = &self.processes[pid.0];
        process.swapped as f64 / (process.swapped + process.anon + process.shmem).max(1) as f64
    }

    /// One level as its files show it.
    pub fn view(&self, group: GroupId) -> LevelView {
        let g = &self.groups[group.0];
        LevelView {
            max: g.max,
            high: g.high,
            usage: g.usage,
            peak: g.peak.max(g.usage),
            file: self.reclaimable(group.0),
            shmem: g.shmem,
            anon: g.anon,
            oom_kills: g.oom_kills,
            max_events: g.max_events,
            pressure: g.pressure,
        }
    }

    /// Starts a new peak at every level (what a write to `memory.peak` does).
    pub fn reset_peak(&mut self) {
        for group in &mut self.groups {
            group.peak = group.usage;
        }
    }

    /// The host's `MemAvailable`.
    pub fn available(&self) -> u64 {
        let host = &self.groups[0];
        (host.room() + self.reclaimable(0)).saturating_sub(self.low_watermark())
    }

    /// Physical memory.
    pub fn total(&self) -> u64 {
        self.machine.total
    }

    fn first_level(&self, pid: usize, class: Class) -> usize {
        match class {
            Class::Driver => 0,
            Class::Anon | Class::Shmem => self.processes[pid].group,
        }
    }

    /// Makes room for `want` at one level, by reclaim, then by killing. Returns what can be had.
    fn make_room(&mut self, level: usize, want: u64, asker: usize) -> u64 {
        let want = self.throttle(level, want, asker);
        let short = want.saturating_sub(self.groups[level].room());
        if short == 0 {
            return want;
        }
        self.groups[level].max_events += 1;
        let reclaimed = self.reclaim(level, short, None);
        self.stall_for_reclaim(self.processes[asker].group, reclaimed);
        if reclaimed >= short {
            return want;
        }
        if self.exhausted(level) {
            self.kill_in(level);
            if !self.processes[asker].alive {
                return 0;
            }
        }
        let granted = want.min(self.groups[level].room());
        self.stall(self.processes[asker].group, 1.0 - granted as f64 / want as f64);
        granted
    }

    /// Above `memory.high` an allocator first reclaims, then sleeps.
    fn throttle(&mut self, level: usize, want: u64, asker: usize) -> u64 {
        let over = (self.groups[level].usage + want).saturating_sub(self.groups[level].high);
        if over == 0 {
            return want;
        }
        let reclaimed = self.reclaim(level, over, None);
        let over = (over - reclaimed.min(over)).min(want);
        let group = self.processes[asker].group;
        self.stall_for_reclaim(group, reclaimed);
        self.stall(group, over as f64 / want as f64);
        want - over + over / THROTTLE
    }

    /// Drops page cache below `level`, oldest first, then swaps. Both are bounded by what a step allows.
    fn reclaim(&mut self, level: usize, want: u64, spare: Option<usize>) -> u64 {
        let dropped = self.drop_oldest(level, want, spare);
        dropped + self.swap_out(level, want - dropped)
    }

    /// The part of it that is page cache.
    fn drop_oldest(&mut self, level: usize, want: u64, spare: Option<usize>) -> u64 {
        let mut left = want.min(self.reclaim_left);
        let budget = left;
        while left > 0 {
            let Some(file) = self.oldest_file(level, spare) else { break };
            let bytes = left.min(self.files[file].cached);
            self.files[file].cached -= bytes;
            self.sub_usage(self.files[file].group, bytes);
            left -= bytes;
        }
        let dropped = budget - left;
        self.reclaim_left -= dropped;
        dropped
    }

    fn oldest_file(&self, level: usize, spare: Option<usize>) -> Option<usize> {
        (0..self.files.len())
            .filter(|&f| {
                self.files[f].cached > 0
                    && spare != Some(f)
                    && self.within(self.files[f].group, level)
            })
            .min_by_key(|&f| self.files[f].used)
    }

    fn swap_out(&mut self, level: usize, want: u64) -> u64 {
        let bytes = want.min(self.swap_left).min(self.swap_free);
        if bytes == 0 {
            return 0;
        }
        let biggest = (0..self.processes.len())
            .filter(|&p| self.processes[p].alive && self.within(self.processes[p].group, level))
            .max_by_key(|&p| self.processes[p].anon);
        let Some(pid) = biggest else { return 0 };
        let bytes = bytes.min(self.processes[pid].anon);
        self.unaccount(pid, Class::Anon, bytes);
        self.processes[pid].swapped += bytes;
        self.swap_left -= bytes;
        self.swap_free -= bytes;
        bytes
    }

    /// What a process runs into comes back, as fast as it went, while there is room at every level or
    /// page cache to make some of.
    fn swap_in(&mut self, pid: usize) {
        let mut bytes = self.processes[pid].swapped.min(self.swap_left);
        let mut level = Some(self.processes[pid].group).filter(|_| bytes > 0);
        while let Some(at) = level {
            let room = |group: &Group| group.max.min(group.high).saturating_sub(group.usage);
            let short = bytes.saturating_sub(room(&self.groups[at]));
            self.drop_oldest(at, short, None);
            bytes = bytes.min(room(&self.groups[at]));
            level = self.groups[at].parent;
        }
        self.processes[pid].swapped -= bytes;
        self.swap_free += bytes;
        self.swap_left -= bytes;
        self.account(pid, Class::Anon, bytes);
    }

    /// Nothing left below `level` that reclaim could take, ever: the kernel kills only then.
    fn exhausted(&self, level: usize) -> bool {
        let swappable = self.swap_free > 0
            && self.processes.iter().any(|p| p.alive && p.anon > 0 && self.within(p.group, level));
        self.reclaimable(level) == 0 && !swappable
    }

    fn reclaimable(&self, level: usize) -> u64 {
        self.files.iter().filter(|f| self.within(f.group, level)).map(|f| f.cached).sum()
    }

    /// The kernel's rule: resident + swap + page tables, plus `oom_score_adj` thousandths of the memory
    /// that the level may use; the highest dies, and who has -1000 never does.
    fn kill_in(&mut self, level: usize) {
        let allowed = self.groups[level].max.min(self.machine.total) + self.machine.swap;
        let victim = (0..self.processes.len())
            .filter(|&p| {
                let process = &self.processes[p];
                process.alive && process.adj > -1000 && self.within(process.group, level)
            })
            .max_by_key(|&p| self.processes[p].badness(allowed));
        let Some(victim) = victim else { return };
        self.kills.push(Kill { at: self.now, victim: Pid(victim), level: GroupId(level) });
        let mut at = Some(self.processes[victim].group);
        while let Some(group) = at {
            self.groups[group].oom_kills += 1;
            at = self.groups[group].parent;
        }
        self.end(Pid(victim));
    }

    /// A process ends, killed or by itself: all that it held is free.
    pub fn end(&mut self, pid: Pid) {
        let process = &self.processes[pid.0];
        let (anon, shmem, driver) = (process.anon, process.shmem, process.driver);
        self.unaccount(pid.0, Class::Anon, anon);
        self.unaccount(pid.0, Class::Shmem, shmem);
        self.unaccount(pid.0, Class::Driver, driver);
        let process = &mut self.processes[pid.0];
        process.alive = false;
        process.leaving.clear();
        self.swap_free += std::mem::take(&mut process.swapped);
    }

    fn enforce(&mut self, level: usize) {
        let over = self.groups[level].usage.saturating_sub(self.groups[level].max);
        if over > 0 && self.reclaim(level, over, None) < over && self.exhausted(level) {
            self.kill_in(level);
        }
    }

    /// Cache stays below `high`, and leaves the host's last pages to those who allocate.
    fn room_for_cache(&self, level: usize) -> u64 {
        let group = &self.groups[level];
        let low = if level == 0 { self.low_watermark() } else { 0 };
        group.max.min(group.high).saturating_sub(group.usage + low)
    }

    fn low_watermark(&self) -> u64 {
        (self.machine.total as f64 * LOW_WATERMARK) as u64
    }

    fn reclaim_in_background(&mut self) {
        let short = self.low_watermark().saturating_sub(self.groups[0].room());
        if short > 0 {
            self.reclaim(0, short, None);
        }
    }

    fn let_go(&mut self, pid: usize) {
        let now = self.now;
        let mut at = 0;
        while at < self.processes[pid].leaving.len() {
            let leaving = self.processes[pid].leaving[at];
            if leaving.due <= now {
                self.processes[pid].leaving.swap_remove(at);
                self.unaccount(pid, leaving.class, leaving.bytes);
            } else {
                at += 1;
            }
        }
    }

    fn account(&mut self, pid: usize, class: Class, bytes: u64) {
        let process = &mut self.processes[pid];
        let tables = process.tables();
        *process.held(class) += bytes;
        let tables = process.tables() - tables;
        let group = self.first_level(pid, class);
        self.add_class(group, class, bytes);
        self.add_usage(group, bytes + tables);
    }

    fn unaccount(&mut self, pid: usize, class: Class, bytes: u64) {
        let process = &mut self.processes[pid];
        let tables = process.tables();
        let held = process.held(class);
        let resident = bytes.min(*held);
        *held -= resident;
        let tables = tables - process.tables();
        if class == Class::Anon {
            let swapped = (bytes - resident).min(process.swapped);
            process.swapped -= swapped;
            self.swap_free += swapped;
        }
        let group = self.first_level(pid, class);
        self.sub_class(group, class, resident);
        self.sub_usage(group, resident + tables);
    }

    fn add_class(&mut self, group: usize, class: Class, bytes: u64) {
        self.up(group, |g| match class {
            Class::Anon => g.anon += bytes,
            Class::Shmem => g.shmem += bytes,
            Class::Driver => {}
        });
    }

    fn sub_class(&mut self, group: usize, class: Class, bytes: u64) {
        self.up(group, |g| match class {
            Class::Anon => g.anon -= bytes,
            Class::Shmem => g.shmem -= bytes,
            Class::Driver => {}
        });
    }

    fn add_usage(&mut self, group: usize, bytes: u64) {
        self.up(group, |g| {
            g.usage += bytes;
            g.peak = g.peak.max(g.usage);
        });
    }

    fn sub_usage(&mut self, group: usize, bytes: u64) {
        self.up(group, |g| g.usage -= bytes);
    }

    /// Reclaim takes the asker's time: a whole step's worth of it fills the step.
    fn stall_for_reclaim(&mut self, group: usize, bytes: u64) {
        let per_step = self.machine.reclaim_per_s as f64 * self.step;
        if bytes > 0 && per_step > 0.0 {
            self.stall(group, bytes as f64 / per_step);
        }
    }

    /// A task of `group` waits for a share of the step; every level above sees it too.
    fn stall(&mut self, group: usize, share: f64) {
        if share > 0.0 {
            self.up(group, |g| g.stall = (g.stall + share).min(1.0));
        }
    }

    fn up(&mut self, group: usize, mut act: impl FnMut(&mut Group)) {
        let mut at = Some(group);
        while let Some(group) = at {
            act(&mut self.groups[group]);
            at = self.groups[group].parent;
        }
    }

    fn within(&self, group: usize, level: usize) -> bool {
        let mut at = Some(group);
        while let Some(group) = at {
            if group == level {
                return true;
            }
            at = self.groups[group].parent;
        }
        false
    }
}

impl Group {
    fn new(parent: Option<usize>, max: u64) -> Self {
        Group {
            parent,
            max,
            high: UNLIMITED,
            usage: 0,
            shmem: 0,
            anon: 0,
            peak: 0,
            pressure: Pressure::default(),
            stall: 0.0,
            oom_kills: 0,
            max_events: 0,
        }
    }

    fn room(&self) -> u64 {
        self.max.saturating_sub(self.usage)
    }

    /// Books the last step's stall and starts the next one's. The averages decay as the kernel's do.
    fn settle_pressure(&mut self, step: f64) {
        let share = std::mem::take(&mut self.stall);
        let p = &mut self.pressure;
        p.some_total_us += share * step * 1e6;
        p.some_avg10 += (100.0 * share - p.some_avg10) * (1.0 - (-step / 10.0).exp());
        p.some_avg60 += (100.0 * share - p.some_avg60) * (1.0 - (-step / 60.0).exp());
    }
}

impl Process {
    fn held(&mut self, class: Class) -> &mut u64 {
        match class {
            Class::Anon => &mut self.anon,
            Class::Shmem => &mut self.shmem,
            Class::Driver => &mut self.driver,
        }
    }

    fn tables(&self) -> u64 {
        (self.anon + self.shmem) / BYTES_PER_TABLE_BYTE
    }

    fn badness(&self, allowed: u64) -> i128 {
        let points = self.anon + self.shmem + self.swapped + self.tables();
        i128::from(points) + i128::from(self.adj) * i128::from(allowed) / 1000
    }
}

#[cfg(test)]
#[path = "kernel_tests.rs"]
mod tests;
