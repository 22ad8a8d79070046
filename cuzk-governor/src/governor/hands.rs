//! The thread that may be held up by the plant, and the slot between it and the watcher. The
//! lock is held for a swap or a push, never across a call of the plant.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Plant;
use crate::policy::{Action, Workload};

/// More orders than this are not kept: by then they would be out of date.
const MOST_ORDERS: usize = 64;
/// Looked around after so long even if nobody calls.
const IDLE: Duration = Duration::from_secs(1);

pub(super) struct Hands {
    plant: Arc<dyn Plant>,
    slot: Mutex<Slot>,
    /// Something to do; something done.
    wanted: Condvar,
    answered: Condvar,
}

struct Slot {
    orders: VecDeque<Action>,
    asked: bool,
    /// The last workload that the watcher has not taken yet.
    workload: Workload,
    fresh: bool,
    /// Since when the plant has been in a call.
    calling_since: Option<Instant>,
    stop: bool,
}

impl Hands {
    pub(super) fn new(plant: Arc<dyn Plant>) -> Self {
        let slot = Slot {
            orders: VecDeque::with_capacity(MOST_ORDERS),
            asked: false,
            workload: Workload::default(),
            fresh: false,
            calling_since: None,
            stop: false,
        };
        let (wanted, answered) = (Condvar::new(), Condvar::new());
        Self { plant, slot: Mutex::new(slot), wanted, answered }
    }

    /// Asks for the workload, waits a little, and swaps in the newest there is.
    pub(super) fn fetch(&self, into: &mut Workload, patience: Duration) {
        let until = Instant::now() + patience;
        let mut slot = self.slot.lock();
        slot.asked = true;
        self.wanted.notify_one();
        while slot.asked && !slot.stop {
            if self.answered.wait_until(&mut slot, until).timed_out() {
                break;
            }
        }
        if std::mem::take(&mut slot.fresh) {
            std::mem::swap(into, &mut slot.workload);
        }
    }

    /// Hands orders over; how many found no room.
    pub(super) fn order(&self, actions: &[Action]) -> usize {
        let mut slot = self.slot.lock();
        let room = MOST_ORDERS - slot.orders.len();
        let taken = actions.len().min(room);
        slot.orders.extend(&actions[..taken]);
        if taken > 0 {
            self.wanted.notify_one();
        }
        actions.len() - taken
    }

    /// For how long the plant has been in its present call.
    pub(super) fn kept(&self) -> Duration {
        self.slot.lock().calling_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(super) fn stop(&self) {
        self.slot.lock().stop = true;
        self.wanted.notify_one();
        self.answered.notify_one();
    }

    /// The thread's life: orders first, in their order, then the report.
    pub(super) fn run(&self) {
        let mut scratch = Workload::default();
        let mut slot = self.slot.lock();
        while !slot.stop {
            if let Some(action) = slot.orders.pop_front() {
                slot.calling_since = Some(Instant::now());
                parking_lot::MutexGuard::unlocked(&mut slot, || self.carry_out(action));
                slot.calling_since = None;
            } else if slot.asked {
                slot.calling_since = Some(Instant::now());
                parking_lot::MutexGuard::unlocked(&mut slot, || self.plant.workload(&mut scratch));
                slot.calling_since = None;
                std::mem::swap(&mut scratch, &mut slot.workload);
                (slot.asked, slot.fresh) = (false, true);
                self.answered.notify_one();
            } else {
                self.wanted.wait_for(&mut slot, IDLE);
            }
        }
    }

    fn carry_out(&self, action: Action) {
        match action {
            Action::PurgeAllocator => purge_allocator(),
            action => self.plant.apply(action),
        }
    }
}

/// Makes the allocator return what was freed. Only glibc keeps it; others have nothing to be asked for.
pub fn purge_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions; thread-safe in glibc.
    unsafe {
        libc::malloc_trim(0);
    }
}
