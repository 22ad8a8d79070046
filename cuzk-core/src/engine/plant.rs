//! The engine as the governor's plant: what it reports each tick, and how it carries orders out.
//!
//! Both come from the governor's hands, so they may take some milliseconds, and the report is also the
//! place where ledger and kernel are reconciled and the pool is brought nearer its target.

use std::time::Duration;

use cuzk_governor::governor::Plant;
use cuzk_governor::policy::{Action, Workload};

use super::work::WorkError;
use super::Shared;
use crate::proof::Priority;

/// How long mapped pages are dropped behind their reader after an order to drop file cache.
const STRAIN: Duration = Duration::from_secs(10);

impl Plant for Shared {
    fn workload(&self, into: &mut Workload) {
        let pool = self.pool.settle();
        let state = self.state.lock();
        into.running.clear();
        for running in &state.running {
            running.report();
            into.running.push(running.view());
        }
        into.concurrency = state.concurrency;
        into.finished = state.partitions_done;
        let unfinished: usize = state.jobs.values().map(|job| job.unfinished()).sum();
        into.waiting = unfinished.saturating_sub(state.running.len()) as u32;
        let smallest = if into.waiting > 0 { state.smallest_waiting() } else { None };
        drop(state);
        into.smallest_waiting =
            smallest.map_or(0, |(path, predicted)| self.ask(&path, predicted, None).total());
        into.idle_bytes = pool.idle;
        into.idle_chunks = self.pool.chunks(pool.idle);
        self.prover.params.report(into);
        let (mapped, idle) = self.prover.circuits.mapped_and_idle();
        into.file_cache += mapped;
        into.idle_circuits = idle;
    }

    fn apply(&self, action: Action) {
        match action {
            Action::Concurrency(most) => {
                self.state.lock().concurrency = most.max(1);
                self.changed.notify_all();
            }
            Action::Shed(id) => self.shed(id),
            Action::FreeIdleChunks(bytes) => {
                self.pool.release_idle(bytes);
            }
            Action::Refuse { possible, .. } => self.refuse(possible),
            Action::Accept => self.state.lock().possible = None,
            Action::PinSrs(bytes) => self.prover.params.pin(bytes, &self.budget),
            Action::UnpinSrs(bytes) => self.prover.params.unpin(bytes),
            Action::DropFileCache(_) => {
                self.prover.params.drop_cache();
                self.turnstile.strain(STRAIN);
            }
            Action::EvictCircuits(_) => self.prover.circuits.close_idle(),
            // The governor's own hands do it.
            Action::PurgeAllocator => {}
        }
    }
}

impl Shared {
    /// Ends a partition; it goes back to its place in the queue.
    fn shed(&self, id: u64) {
        let state = self.state.lock();
        let victim = state.running.iter().find(|running| running.id == id);
        if let Some(running) = victim.filter(|running| running.priority != Priority::Critical) {
            running.stop.raise();
        }
        drop(state);
        self.turnstile.nudge();
    }

    /// Ends the jobs whose partitions need more than could be had with everything else given up, and
    /// refuses new ones like them.
    fn refuse(&self, possible: u64) {
        let mut state = self.state.lock();
        state.possible = Some(possible);
        let mut ended = Vec::new();
        let ids: Vec<_> = state.jobs.keys().cloned().collect();
        for id in ids {
            let Some(job) = state.jobs.get_mut(&id).filter(|job| !job.is_busy()) else { continue };
            let needs = self.ask(&job.work.path(), job.predicted, Some(possible)).total();
            if needs > possible {
                let what = format!("a {} partition", job.work.name());
                job.failure = Some(WorkError::NeverFits { what, needs, possible }.to_string());
                let (result, timings) = (job.ending(), job.timings);
                ended.extend(result.map(|result| self.end(&mut state, &id, result, timings)));
            }
        }
        drop(state);
        for ended in ended {
            ended.tell();
        }
    }
}
