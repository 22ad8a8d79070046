//! Make the allocator return what was freed. How much comes back is known only afterwards, so
//! half of it is counted on. In an emergency it is done whatever the allocator says of itself: it
//! does not see what threads and drivers keep.

use super::{Action, Rung, Situation, State, Step};

pub(super) struct Purge;

/// Not worth a walk through every arena.
const LEAST: u64 = 1 << 20;

impl Rung for Purge {
    fn offer(&self, _: &State, now: &Situation<'_>) -> Option<Step> {
        let frees = now.headroom.allocator_free / 2;
        let unseen = now.emergency || now.headroom.stale_ticks > 0;
        (frees >= LEAST || unseen).then_some(Step { action: Action::PurgeAllocator, frees })
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn is_blind(&self) -> bool {
        true
    }
}
