//! Shows what a governor sees and where jobs spend their time, for whoever asks why it did what it did: `CUZK_TEST_TRACE=1`.

use cuzk_core::engine::Outcome;
use cuzk_governor::governor::Tick;

/// Set by whoever wants to see every tick.
const TRACE: &str = "CUZK_TEST_TRACE";

/// Says how a job ended and what took its time, if anybody wants to see it.
pub fn trace_end(job: &str, outcome: &Outcome) {
    if std::env::var_os(TRACE).is_some() {
        eprintln!("{job} ended: {:?}", outcome.timings);
    }
}

/// Says a tick on stderr, if anybody wants to see it.
pub fn trace(tick: &Tick<'_>) {
    if std::env::var_os(TRACE).is_none() {
        return;
    }
    let mib = |bytes: u64| bytes >> 20;
    let now = tick.headroom;
    eprintln!(
        "{:>6} ms limit {} usable {} promised {} residual {} margin {} reserved {} to limit {:?} {:?} \
         running {} of {} waiting {} idle {} {:?}",
        now.at.as_millis(),
        mib(now.limit),
        mib(now.usable),
        mib(now.promised),
        mib(now.residual),
        mib(now.margin),
        mib(now.reserved),
        now.time_to_limit,
        tick.decision.mode,
        tick.workload.running.len(),
        tick.workload.concurrency,
        tick.workload.waiting,
        mib(tick.workload.idle_bytes),
        tick.actions,
    );
}
