//! A partition that runs, as the rest of the engine and the governor see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Instant;

use cuzk_governor::budget::Reservation;
use cuzk_governor::policy::{self, Shed};
use parking_lot::Mutex;

use super::lane::urgency;
use super::turnstile::StopFlag;
use super::JobId;
use crate::memory::Account;
use crate::proof::Priority;

/// Shed so often, a partition is spared outside emergencies, so that it ends one day.
const SPARED_AFTER: u32 = 2;

/// One partition at work.
#[derive(Debug)]
pub(super) struct Running {
    /// Another one each time that a partition is started.
    pub id: u64,
    pub job: JobId,
    pub priority: Priority,
    pub shed: Shed,
    /// Raised to shed it, or with its job's.
    pub stop: StopFlag,
    pub since: Instant,
    /// Bytes that it was admitted with.
    pub asked: u64,
    /// Heap that it holds.
    pub account: Arc<Account>,
    /// What pays for the heap.
    pub heap: Mutex<Reservation>,
    /// Bytes in buffers.
    pub buffers: AtomicU64,
}

impl Running {
    /// Enters bytes taken for buffers.
    pub fn took(&self, bytes: u64) {
        self.buffers.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Enters bytes of buffers given back while it runs on.
    pub fn gave_back(&self, bytes: u64) {
        let less = |held: u64| Some(held.saturating_sub(bytes));
        let _ = self.buffers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Tells the ledger what of the heap is there by now, and has it pay for what is more than was
    /// foreseen as far as it can.
    pub fn report(&self) {
        let held = self.account.held();
        let mut heap = self.heap.lock();
        let missing = held.saturating_sub(heap.bytes());
        if missing > 0 && heap.try_grow(missing).is_err() {
            tracing::debug!(id = self.id, missing, "partition.heap_not_foreseen");
        }
        heap.report_resident(held);
    }

    /// As the policy sees it.
    pub fn view(&self) -> policy::Partition {
        let held = self.buffers.load(Ordering::Relaxed) + self.account.held();
        policy::Partition {
            id: self.id,
            priority: urgency(self.priority),
            shed: self.shed,
            held,
            to_come: self.asked.saturating_sub(held),
            work: self.since.elapsed(),
        }
    }
}

/// When a partition may be shed.
pub(super) fn shed_class(priority: Priority, sheds: u32) -> Shed {
    match priority {
        Priority::Critical => Shed::Never,
        Priority::High => Shed::InEmergency,
        _ if sheds >= SPARED_AFTER => Shed::InEmergency,
        _ => Shed::Freely,
    }
}
