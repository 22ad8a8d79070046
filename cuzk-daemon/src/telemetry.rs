//! What operators see: log lines (tracing) and metrics (Prometheus text). There is one recorder a
//! process, so that several servers in one process (tests, the demo) share it.

use crate::config::{LogFormat, Settings};
use cuzk_core::engine::EngineStatus;
use metrics::gauge;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::{io::IsTerminal, sync::OnceLock, time::Duration};
use tracing_subscriber::{filter::ParseError, EnvFilter};

/// How often samples are folded, should nobody ask for the metrics.
const UPKEEP: Duration = Duration::from_secs(5);

/// Upper bounds of the histograms, in seconds.
const BUCKETS: [f64; 12] =
    [0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 150.0, 600.0, 3600.0];

/// Starts logging to stderr, once a process.
pub fn start_logging(settings: &Settings) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(&settings.log)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second start keeps the first one's choice.
    let _ = match settings.log_format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    Ok(())
}

/// Starts the recorder, once a process. Must be called within the async runtime.
pub fn start_metrics() {
    let started = HANDLE.get().is_some();
    let handle = recorder();
    if !started {
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP);
            loop {
                ticks.tick().await;
                handle.run_upkeep();
            }
        });
    }
}

/// The metrics as text, with the gauges as of `status`.
pub fn render(status: &EngineStatus) -> String {
    let handle = recorder();
    gauge!("cuzk_uptime_seconds").set(status.uptime.as_secs_f64());
    gauge!("cuzk_memory_budget_bytes").set(status.budget_total as f64);
    gauge!("cuzk_memory_reserved_bytes").set(status.budget_reserved as f64);
    gauge!("cuzk_proofs_completed").set(status.completed as f64);
    gauge!("cuzk_proofs_failed").set(status.failed as f64);
    for queue in &status.queues {
        let kind = queue.kind.to_string();
        let jobs = [("pending", queue.pending), ("in_progress", queue.in_progress)];
        for (state, count) in jobs {
            gauge!("cuzk_queue_jobs", "kind" => kind.clone(), "state" => state).set(count);
        }
    }
    handle.render()
}

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

fn recorder() -> &'static PrometheusHandle {
    HANDLE.get_or_init(|| {
        let recorder = PrometheusBuilder::new()
            .set_buckets(&BUCKETS)
            .expect("there are buckets")
            .build_recorder();
        let handle = recorder.handle();
        // Fails only if somebody else in this process records; then there is nothing to render.
        let _ = metrics::set_global_recorder(recorder);
        handle
    })
}
