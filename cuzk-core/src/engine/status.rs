//! What the engine looks like from outside, at one instant.

use std::time::Duration;

use cuzk_governor::governor::{self, Governor};

use super::{JobId, Shared, SrsStatus};
use crate::memory::PoolStatus;
use crate::proof::ProofKind;

/// The engine at one instant.
#[derive(Debug, Clone)]
pub struct EngineStatus {
    /// Where proofs are computed.
    pub device: String,
    /// Jobs by kind: every job that has not ended is in exactly one of them.
    pub queues: Vec<QueueStatus>,
    /// Jobs that run, or wait for a more urgent one.
    pub running: Vec<RunningJob>,
    /// Parameters that are open or on disk in native form.
    pub srs: Vec<SrsStatus>,
    /// Jobs with a verified proof since the start.
    pub completed: u64,
    /// Jobs without one since the start; cancelled ones are not counted.
    pub failed: u64,
    /// Since the start.
    pub uptime: Duration,
    /// The pool's chunks.
    pub pool: PoolStatus,
    /// Where the pool's pages come from.
    pub pool_provider: &'static str,
    /// Bytes that may be reserved.
    pub budget_total: u64,
    /// Bytes that are.
    pub budget_reserved: u64,
    /// Partitions that may run at once, critical ones not counted.
    pub concurrency: u32,
    /// Partitions that run.
    pub partitions_running: u32,
    /// Partitions that were shed since the start.
    pub partitions_shed: u64,
    /// What the governor is about, if there is one.
    pub governor: Option<governor::Status>,
}

/// One kind's jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueStatus {
    /// The kind.
    pub kind: ProofKind,
    /// Accepted, not started.
    pub pending: u32,
    /// Started, not ended.
    pub in_progress: u32,
}

/// A job that has started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningJob {
    /// Its id.
    pub job_id: JobId,
    /// Its kind.
    pub kind: ProofKind,
    /// What it does now.
    pub stage: &'static str,
    /// Since it was accepted.
    pub age: Duration,
}

pub(super) fn read(shared: &Shared) -> EngineStatus {
    let usage = shared.budget.usage();
    let state = shared.state.lock();
    let queues = ProofKind::ALL.map(|kind| QueueStatus {
        kind,
        pending: state.count(kind, false),
        in_progress: state.count(kind, true),
    });
    let running = state.jobs.values().filter(|job| job.started).map(|job| RunningJob {
        job_id: job.id.clone(),
        kind: job.work.kind(),
        stage: job.stage,
        age: job.accepted.elapsed(),
    });
    let (running, completed, failed) = (running.collect(), state.completed, state.failed);
    let (partitions_running, partitions_shed) = (state.running.len() as u32, state.sheds);
    let concurrency = state.concurrency;
    drop(state);
    EngineStatus {
        device: format!("CPU, {} threads", shared.config.threads),
        queues: queues.to_vec(),
        running,
        srs: shared.prover.status(),
        completed,
        failed,
        uptime: shared.started.elapsed(),
        pool: shared.pool.status(),
        pool_provider: shared.pool.provider(),
        budget_total: usage.total,
        budget_reserved: usage.reserved,
        concurrency,
        partitions_running,
        partitions_shed,
        governor: shared.governor.lock().as_ref().map(Governor::status),
    }
}
