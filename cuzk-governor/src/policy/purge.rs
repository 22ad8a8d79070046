//! Make the allocator return what was freed. How much comes back is known only afterwards, so
//! half of it is counted on.

use super::{Action, Rung, Situation, State, Step};

pub(super) struct Purge;

/// Not worth a walk through every arena.
const LEAST: u64 = 1 << 20;

impl Rung for Purge {
    fn offer(&self, _: &State, now: &Situation<'_>) -> Option<Step> {
        let frees = now.headroom.allocator_free / 2;
        (frees >= LEAST).then_some(Step { action: Action::PurgeAllocator, frees })
    }
}
