//! What to do about the headroom: a pure function of state, headroom, workload and setpoints.
//!
//! No clock, no I/O, no allocation in the steady state: time comes in with the headroom, so
//! the simulator and the tests drive exactly the code that runs in production.

use std::time::Duration;

use crate::budget::Priority;
use crate::headroom::Headroom;
use crate::setpoints::Setpoints;

/// What the plant says it is doing. Filled by the plant, reused from tick to tick.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Partitions being worked on.
    pub running: Vec<Partition>,
    /// The most partitions the plant would run at once at present (the last
    /// [`Action::Concurrency`] it took in, or what it started with).
    pub concurrency: u32,
    /// Partitions finished since the start.
    pub finished: u64,
    /// Partitions accepted and not started.
    pub waiting: u32,
    /// Bytes that the smallest waiting partition needs in all; 0 when none waits.
    pub smallest_waiting: u64,
    /// Pinned chunks that nobody uses.
    pub idle_chunks: u64,
    /// Their bytes.
    pub idle_bytes: u64,
    /// Page cache of files that only we read and can drop.
    pub file_cache: u64,
    /// Bytes of compiled circuits that no running partition uses.
    pub idle_circuits: u64,
    /// Pinned bytes of SRS that no running partition needs pinned.
    pub idle_srs: u64,
    /// Bytes of SRS that are mapped only, and would be faster pinned.
    pub unpinned_srs: u64,
}

/// A partition that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The plant's number for it.
    pub id: u64,
    /// Of its job.
    pub priority: Priority,
    /// When it may be shed.
    pub shed: Shed,
    /// Bytes it holds, which shedding it would free.
    pub held: u64,
    /// Bytes it will still take beyond `held`.
    pub to_come: u64,
    /// Work lost if it were shed now.
    pub work: Duration,
}

/// When a partition may be shed to save the process. The last one running never is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shed {
    /// Whenever nothing cheaper is left.
    Freely,
    /// Only if the limit is nearer than the reaction time (WindowPoSt).
    InEmergency,
    /// Never (WinningPoSt).
    Never,
}

/// An order to the plant. Bytes are what is wanted; doing less is no error, the next sample
/// tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run at most so many partitions at once; those running are not touched.
    Concurrency(u32),
    /// Pin up to so many bytes of SRS.
    PinSrs(u64),
    /// Give idle pinned chunks back to the kernel.
    FreeIdleChunks(u64),
    /// Drop the page cache of files that are ours.
    DropFileCache(u64),
    /// Make the allocator return what was freed. Taken by the governor's hands, not the plant.
    PurgeAllocator,
    /// Let go of compiled circuits that no running partition uses.
    EvictCircuits(u64),
    /// Unpin SRS slices that no running partition needs.
    UnpinSrs(u64),
    /// Cancel this partition and put it back into the queue.
    Shed(u64),
    /// Refuse waiting partitions that need more than `possible`, and new ones like them.
    Refuse {
        /// What the smallest waiting partition needs.
        asked: u64,
        /// The most that could be had with everything else given up.
        possible: u64,
    },
    /// Take new jobs again.
    Accept,
}

/// What to do now. The actions themselves are in the vector handed to [`decide`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The ledger's total from now on ([`crate::budget::MemoryBudget::set_total`]).
    pub total: u64,
    /// Whether the limit is nearer than the reaction time.
    pub emergency: bool,
}

/// What the policy remembers from tick to tick.
#[derive(Clone, Debug, Default)]
pub struct State {}

impl State {
    /// Nothing done yet.
    pub fn new(_setpoints: &Setpoints) -> Self {
        Self {}
    }
}

/// Decides. `actions` is cleared first; its capacity is reused.
pub fn decide(
    _state: &mut State,
    headroom: &Headroom,
    _workload: &Workload,
    _setpoints: &Setpoints,
    actions: &mut Vec<Action>,
) -> Decision {
    actions.clear();
    Decision { total: headroom.admissible, emergency: false }
}
