//! What is simulated, in numbers: a machine, a plant, its jobs, and what happens to them.
//!
//! A [`World`] is complete: the same world and the same steering give the same run, bit by bit. All
//! chance is spent when a world is made (`worlds.rs`) or stated in a file (`scenario.rs`).

use std::time::Duration;

use crate::budget::Priority;
use crate::policy::Shed;
use crate::setpoints::Setpoints;
use crate::sim::kernel::Machine;

/// One gibibyte.
pub const GIB: u64 = 1 << 30;

/// Everything about one run but its steering.
#[derive(Debug, Clone)]
pub struct World {
    /// Its name, for the table and for a replay.
    pub name: String,
    /// The machine.
    pub machine: Machine,
    /// Limits from the host's child down to the plant's own group; `None` is unlimited.
    pub limits: Vec<Option<u64>>,
    /// `memory.high` of the plant's own group.
    pub high: Option<u64>,
    /// `oom_score_adj` of the plant.
    pub oom_score_adj: i64,
    /// The plant.
    pub plant: PlantSpec,
    /// Its jobs, in order of arrival.
    pub jobs: Vec<Job>,
    /// So many jobs are in the queue or in work at most; the next comes in when one is done.
    pub in_flight: u32,
    /// What happens meanwhile.
    pub events: Vec<Event>,
    /// Who else is there.
    pub neighbours: Vec<Neighbour>,
    /// The governor's knobs.
    pub setpoints: Setpoints,
    /// The length of a step; everything faster is not seen.
    pub step: Duration,
    /// Stop then, whatever is left.
    pub horizon: Duration,
}

/// What the plant is made of and how fast its parts are.
#[derive(Debug, Clone, PartialEq)]
pub struct PlantSpec {
    /// Bytes of the SRS.
    pub srs: u64,
    /// Bytes of the compiled circuit.
    pub compiled: u64,
    /// Partitions that can be synthesised at once.
    pub synthesis_threads: u32,
    /// Seconds of one synthesis that runs alone.
    pub synthesis_s: f64,
    /// Each further synthesis slows all by this share (memory bandwidth).
    pub contention: f64,
    /// Devices.
    pub devices: u32,
    /// Seconds of one device stage.
    pub device_s: f64,
    /// A device stage takes longer by this share while the SRS is mapped and not pinned.
    pub mapped_penalty: f64,
    /// Seconds from the device's result to the end of a partition.
    pub finish_s: f64,
    /// Bytes a second that the disk with the SRS and the compiled circuit gives.
    pub disk_per_s: u64,
    /// Bytes a second that can be pinned, and given back.
    pub pin_per_s: u64,
    /// Idle chunks above this are freed at once; `None` keeps them all.
    pub pool_cap: Option<u64>,
    /// Overhead that no ledger knows.
    pub overhead: Overhead,
    /// From `free` until the kernel's figure falls.
    pub free_delay: Duration,
    /// Share of freed private memory that the allocator keeps for a minute unless purged.
    pub arena_share: f64,
    /// From an order until it is carried out.
    pub order_delay: Duration,
    /// After a kill, until the next process begins to load.
    pub restart_s: f64,
}

/// Memory that nobody planned: driver, page tables beside ours, arenas, stacks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overhead {
    /// Whatever runs.
    pub base: u64,
    /// For each synthesis thread that ran, until a purge.
    pub per_thread: u64,
    /// As a share of all pinned bytes.
    pub per_pinned: f64,
    /// The driver's own, on the host and in no group, as a share of all pinned bytes.
    pub driver_per_pinned: f64,
    /// Bytes a second that leak.
    pub leak_per_s: u64,
    /// A leak ends here.
    pub leak_limit: u64,
}

/// A proof to make.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// When it comes in.
    pub at: Duration,
    /// Its priority.
    pub priority: Priority,
    /// When its partitions may be shed.
    pub shed: Shed,
    /// What the ledger is asked for a partition.
    pub estimate: u64,
    /// What each partition really takes at its peak.
    pub peaks: Vec<u64>,
    /// Share of the peak that is pinned, and given back in the device stage.
    pub pinned_share: f64,
    /// Its length beside [`PlantSpec::synthesis_s`] and [`PlantSpec::device_s`].
    pub scale: f64,
}

/// Something that happens at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event {
    /// When.
    pub at: Duration,
    /// What.
    pub what: What,
}

/// What can happen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum What {
    /// The limit of a level (an index into [`World::limits`]) is set anew.
    Limit {
        /// Which level.
        level: usize,
        /// Its new limit.
        bytes: u64,
    },
    /// The sensor repeats its last reading for so long.
    SensorStalls(Duration),
    /// The sensor shows usage at this share of the truth for so long.
    SensorLies {
        /// What is shown of the truth.
        share: f64,
        /// For how long.
        lasts: Duration,
    },
    /// Somebody reads a file of this size once, through the plant's group.
    ReadsFile {
        /// Its size.
        bytes: u64,
        /// How fast.
        per_s: u64,
    },
}

/// Another process that takes memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbour {
    /// The level it lives in: 0 is the host, 1 the first of [`World::limits`], and so on.
    pub level: usize,
    /// Its `oom_score_adj`.
    pub oom_score_adj: i64,
    /// Whether what it holds is shared memory (a tmpfs) rather than private.
    pub shmem: bool,
    /// Its size at moments; between them it moves in a straight line.
    pub sizes: Vec<(Duration, u64)>,
}

impl Neighbour {
    /// The size it wants at a moment.
    pub fn size_at(&self, now: Duration) -> u64 {
        let after = self.sizes.partition_point(|&(at, _)| at <= now);
        let Some(&(t0, b0)) = after.checked_sub(1).and_then(|i| self.sizes.get(i)) else {
            return 0;
        };
        let Some(&(t1, b1)) = self.sizes.get(after) else { return b0 };
        let share = (now - t0).as_secs_f64() / (t1 - t0).as_secs_f64();
        (b0 as f64 + (b1 as f64 - b0 as f64) * share) as u64
    }
}

impl Default for PlantSpec {
    fn default() -> Self {
        Self {
            srs: 44 * GIB,
            compiled: 26 * GIB,
            synthesis_threads: 18,
            synthesis_s: 32.0,
            contention: 0.06,
            devices: 1,
            device_s: 4.05,
            mapped_penalty: 0.1,
            finish_s: 1.0,
            disk_per_s: 3 * GIB,
            pin_per_s: 5 * GIB,
            pool_cap: None,
            overhead: Overhead::default(),
            free_delay: Duration::from_millis(500),
            arena_share: 0.3,
            order_delay: Duration::from_millis(250),
            restart_s: 10.0,
        }
    }
}

impl Default for Overhead {
    fn default() -> Self {
        Self {
            base: 3 * GIB,
            per_thread: 160 << 20,
            per_pinned: 0.005,
            driver_per_pinned: 0.002,
            leak_per_s: 0,
            leak_limit: 0,
        }
    }
}
