//! Every knob of the governor, typed: `CUZK_GOV_*`.

use std::time::Duration;

/// The knobs. [`Setpoints::default`] is the `balanced` profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Setpoints {
    /// Between two samples.
    pub tick: Duration,
    /// From a decision until its memory is back: what an emergency is measured against.
    pub reaction: Duration,
    /// Good news is believed after so many ticks; bad news at once.
    pub trust_ticks: u32,
    /// Of the forecast errors, for the learned margin.
    pub margin_quantile: f64,
    /// The margin is never below this share of the limit.
    pub margin_floor: f64,
    /// The margin until enough has been seen, as a share of the limit.
    pub margin_start: f64,
    /// Ticks until the learned margin is relied on alone.
    pub warmup_ticks: u32,
    /// An operator's own limit in bytes on what the process may use, beside the kernel's.
    pub limit: Option<u64>,
    /// Share of the machine's memory left to others.
    pub host_reserve: f64,
    /// Grow only while so large a share of the limit stays spare.
    pub grow_above: f64,
    /// Between two steps of the retreat.
    pub retreat_cooldown: Duration,
    /// Between two steps of growth, and from the last retreat to the first growth.
    pub grow_cooldown: Duration,
    /// The fewest and most partitions at once.
    pub max_concurrency: u32,
    /// A throughput is measured for so long before concurrency moves.
    pub climb_window: Duration,
    /// One more partition at once must raise the throughput by this share, or is taken back.
    pub climb_gain: f64,
    /// Per cent stalled for memory above which nothing grows.
    pub pressure_hold: f32,
    /// The pressure trigger: stalled for so long…
    pub trigger_stall: Duration,
    /// …within this window.
    pub trigger_window: Duration,
    /// Jobs that cannot fit are refused after so long without progress.
    pub refuse_after: Duration,
    /// A plant that has not answered for so long is reported as stuck.
    pub watchdog: Duration,
}

impl Default for Setpoints {
    fn default() -> Self {
        Self {
            tick: Duration::from_secs(1),
            reaction: Duration::from_secs(3),
            trust_ticks: 3,
            margin_quantile: 0.999,
            margin_floor: 0.02,
            margin_start: 0.05,
            warmup_ticks: 60,
            limit: None,
            host_reserve: 0.02,
            grow_above: 0.02,
            retreat_cooldown: Duration::from_secs(1),
            grow_cooldown: Duration::from_secs(10),
            max_concurrency: 64,
            climb_window: Duration::from_secs(60),
            climb_gain: 0.02,
            pressure_hold: 10.0,
            trigger_stall: Duration::from_millis(150),
            trigger_window: Duration::from_secs(1),
            refuse_after: Duration::from_secs(30),
            watchdog: Duration::from_secs(5),
        }
    }
}
