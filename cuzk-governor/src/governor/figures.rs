//! What the governor tells: a log line before every order, and the `cuzk_governor_…` metrics.
//! Handles are registered once, so that showing figures allocates nothing.

use std::time::Duration;

use metrics::{counter, gauge, Counter, Gauge};

use crate::budget::Usage;
use crate::headroom::Headroom;
use crate::policy::{Action, Decision, Mode, Workload};

/// One gauge a figure, one counter an event. Register after the recorder is installed.
pub(super) struct Figures {
    ticks: Counter,
    kills: Counter,
    dropped: Counter,
    usable: Gauge,
    reserved: Gauge,
    resident: Gauge,
    waiting: Gauge,
    promised: Gauge,
    residual: Gauge,
    margin: Gauge,
    admissible: Gauge,
    deficit: Gauge,
    limit: Gauge,
    growth: Gauge,
    stalled: Gauge,
    stale: Gauge,
    stuck: Gauge,
    mode: Gauge,
}

impl Figures {
    pub(super) fn register() -> Self {
        Self {
            ticks: counter!("cuzk_governor_ticks_total"),
            kills: counter!("cuzk_governor_kills_seen_total"),
            dropped: counter!("cuzk_governor_orders_dropped_total"),
            usable: gauge!("cuzk_governor_usable_bytes"),
            reserved: gauge!("cuzk_governor_reserved_bytes"),
            resident: gauge!("cuzk_governor_resident_bytes"),
            waiting: gauge!("cuzk_governor_waiting_bytes"),
            promised: gauge!("cuzk_governor_promised_bytes"),
            residual: gauge!("cuzk_governor_residual_bytes"),
            margin: gauge!("cuzk_governor_margin_bytes"),
            admissible: gauge!("cuzk_governor_admissible_bytes"),
            deficit: gauge!("cuzk_governor_deficit_bytes"),
            limit: gauge!("cuzk_governor_limit_bytes"),
            growth: gauge!("cuzk_governor_growth_bytes_per_second"),
            stalled: gauge!("cuzk_governor_stalled_percent"),
            stale: gauge!("cuzk_governor_stale_ticks"),
            stuck: gauge!("cuzk_governor_plant_stuck_seconds"),
            mode: gauge!("cuzk_governor_mode"),
        }
    }

    pub(super) fn show(
        &self,
        headroom: &Headroom,
        decision: &Decision,
        usage: &Usage,
        stuck: Duration,
    ) {
        self.ticks.increment(1);
        self.kills.increment(headroom.kills);
        let bytes = [
            (&self.usable, headroom.usable),
            (&self.reserved, headroom.reserved),
            (&self.resident, headroom.resident),
            (&self.waiting, usage.waiting),
            (&self.promised, headroom.promised),
            (&self.residual, headroom.residual),
            (&self.margin, headroom.margin),
            (&self.admissible, headroom.admissible),
            (&self.deficit, headroom.deficit),
            (&self.limit, headroom.limit),
            (&self.growth, headroom.growth),
        ];
        for (gauge, bytes) in bytes {
            gauge.set(bytes as f64);
        }
        self.stalled.set(f64::from(headroom.stalled));
        self.stale.set(f64::from(headroom.stale_ticks));
        self.stuck.set(stuck.as_secs_f64());
        self.mode.set(match decision.mode {
            Mode::Steady => 0.0,
            Mode::Retreating => 1.0,
            Mode::Emergency => 2.0,
            Mode::Refusing => 3.0,
        });
    }

    pub(super) fn count(&self, actions: &[Action], dropped: usize) {
        for action in actions {
            counter!("cuzk_governor_actions_total", "action" => action.name()).increment(1);
        }
        if dropped > 0 {
            tracing::warn!(dropped, "plant takes no more orders: they are given up");
            self.dropped.increment(dropped as u64);
        }
    }
}

/// Says what will be ordered, and why.
pub(super) fn log(action: &Action, headroom: &Headroom, workload: &Workload) {
    tracing::info!(
        ?action,
        bound = ?headroom.bound,
        limit = headroom.limit,
        usable = headroom.usable,
        reserved = headroom.reserved,
        resident = headroom.resident,
        promised = headroom.promised,
        residual = headroom.residual,
        margin = headroom.margin,
        admissible = headroom.admissible,
        deficit = headroom.deficit,
        growth = headroom.growth,
        time_to_limit = ?headroom.time_to_limit,
        stalled = headroom.stalled,
        running = workload.running.len(),
        waiting = workload.waiting,
        "governor_orders"
    );
}
