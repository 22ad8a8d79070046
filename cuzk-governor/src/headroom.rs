//! A sample of the kernel and the ledger's promises, put together: how much is really left.

use std::time::Duration;

use crate::budget::Usage;
use crate::sensor::Sample;
use crate::setpoints::Setpoints;

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
    /// The limit at the tightest level (the machine's total where no level limits).
    pub limit: u64,
    /// What can still be touched at the tightest level before something is killed.
    pub usable: u64,
    /// Reserved bytes that are known to be resident.
    pub resident: u64,
    /// Reserved bytes that are not resident yet: they will come.
    pub promised: u64,
    /// Unreclaimable bytes at the tightest level that the ledger knows nothing of.
    pub residual: u64,
    /// Kept free for what was not foretold; see [`crate::headroom`].
    pub margin: u64,
    /// The total the ledger may hold: resident + usable − margin.
    pub admissible: u64,
    /// Promises and margin that do not fit: promised + margin − usable, 0 when they fit.
    pub deficit: u64,
    /// Until the limit at the present unforetold growth; `None` while nothing grows.
    pub time_to_limit: Option<Duration>,
    /// Per cent of the last tick in which some task stalled for memory.
    pub stalled: f32,
    /// Kills by the kernel since the previous sample.
    pub kills: u64,
    /// Freed bytes that the allocator keeps.
    pub allocator_free: u64,
}

/// Learns how wrong one-tick forecasts are, and states the headroom tick by tick.
#[derive(Clone, Debug, Default)]
pub struct Forecaster {}

impl Forecaster {
    /// A forecaster that knows nothing yet and so keeps the starting margin.
    pub fn new(_setpoints: &Setpoints) -> Self {
        Self {}
    }

    /// Takes in a sample and the ledger's figures of the same instant. Call it once a tick,
    /// also when the sensor gave nothing new: the margin then grows. Allocates nothing unless
    /// the number of levels changed.
    pub fn observe(&mut self, _sample: &Sample, _ledger: &Usage, _set: &Setpoints) -> Headroom {
        Headroom::default()
    }
}
