//! What the kernel says about memory, source by source, in one shape: [`Sample`].
//!
//! A sensor never interprets: limits that mean "none" are `None`, counters are the kernel's
//! own totals since it started counting, and the reclaimable part is stated beside the usage
//! it is part of. Whoever reads a sample takes differences and minima himself.

mod allocator;
mod cgroup_v1;
mod cgroup_v2;
mod counter;
pub(crate) mod file;
mod host;
pub mod kernel;
pub mod pressure;
mod process;
pub mod resolve;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One reading of everything. Reused from tick to tick, so that sampling allocates nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Grows by one with every complete reading; 0 before the first. One that repeats is stale.
    pub sequence: u64,
    /// When the reading was taken, since the sensor was made (monotonic).
    pub at: Duration,
    /// Every level that can bind: the process's own cgroup first, the root last, then
    /// RLIMIT_AS and RLIMIT_DATA where they are set, then strict overcommit.
    pub levels: Vec<Level>,
    /// The whole machine, as this process sees it.
    pub host: Host,
    /// Stall times of the process's own cgroup, else the machine's; `None` without PSI.
    pub pressure: Option<Pressure>,
    /// The kernel's counts of what it did to the process's cgroup.
    pub events: Events,
    /// What this process itself holds, by class.
    pub own: Resident,
    /// What the allocator of this process holds.
    pub allocator: Allocator,
}

/// One level of the hierarchy: a limit and what counts against it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// The cgroup's path (with `:memsw` for memory and swap together), or `rlimit:as`, `rlimit:data`,
    /// `host:commit`.
    #[serde(with = "shared_text")]
    pub path: Arc<str>,
    /// min(high, max) in bytes; `None` where nothing is limited here.
    pub limit: Option<u64>,
    /// Bytes charged to this level, page cache included.
    pub usage: u64,
    /// The greatest `usage` since the previous sample (at least `usage`).
    pub peak: u64,
    /// The part of `usage` that the kernel can take back without swap: active and inactive
    /// file pages and part of the reclaimable slab; never shmem.
    pub reclaimable: u64,
}

impl Level {
    /// Bytes charged here that reclaim cannot give back.
    pub fn unreclaimable(&self) -> u64 {
        self.usage.saturating_sub(self.reclaimable)
    }
}

/// The machine's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// MemTotal.
    pub total: u64,
    /// MemAvailable.
    pub available: u64,
}

/// Stall totals and averages, from `memory.pressure` or `/proc/pressure/memory`; counted anew from 0
/// after a time in which neither could be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pressure {
    /// At least one task waited for memory.
    pub some: Stall,
    /// All tasks waited for memory.
    pub full: Stall,
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stall {
    /// Microseconds stalled, ever.
    pub total_us: u64,
    /// Per cent of the last ten seconds.
    pub avg10: f32,
}

/// Totals of `memory.events` (v1: `memory.oom_control` and `memory.failcnt`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// Processes killed for memory.
    pub oom_kill: u64,
    /// Times that usage was about to pass `memory.max`.
    pub max: u64,
    /// Times that `memory.high` throttled a task.
    pub high: u64,
}

/// Resident bytes of this process by class. Driver memory may be in none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resident {
    /// Private anonymous pages.
    pub anon: u64,
    /// Mapped file pages (reclaimable).
    pub file: u64,
    /// Shared memory, which is where CUDA's pinned memory is charged.
    pub shmem: u64,
    /// Locked pages (part of the classes above).
    pub locked: u64,
}

/// The allocator's own figures, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocator {
    /// Handed out to the program.
    pub in_use: u64,
    /// Freed by the program and kept by the allocator: what a purge can give back at most.
    pub free: u64,
}

/// A source of samples. Called by one thread, once a tick, and at once on a pressure trigger.
pub trait Sensor: Send {
    /// Takes a reading into `into`, reusing its storage: no allocation unless the hierarchy
    /// itself changed. On an error `into` holds the previous complete reading.
    fn sample(&mut self, into: &mut Sample) -> Result<(), SensorError>;
}

/// Why a reading could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the kernel answered.
        source: std::io::Error,
    },
    /// A file's contents are not what the kernel documents.
    #[error("{path}: found {found:?}, expected {expected}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line at fault, shortened.
        found: String,
        /// What should be there.
        expected: &'static str,
    },
}

/// serde's own support for `Arc` is a feature that the rest of the tree does without.
mod shared_text {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(from).map(Arc::from)
    }
}
