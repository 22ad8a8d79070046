//! Drop page cache that is ours. It counts as usable already, so this gives nothing back; it
//! spares the kernel the reclaim where that has become slow enough to stall tasks.

use super::{Action, Rung, Situation, State, Step};

pub(super) struct DropCache;

impl Rung for DropCache {
    fn offer(&self, _: &State, now: &Situation<'_>) -> Option<Step> {
        let strained = now.emergency || now.headroom.stalled > now.set.pressure_hold;
        let bytes = now.need.min(now.workload.file_cache);
        (strained && bytes > 0).then_some(Step { action: Action::DropFileCache(bytes), frees: 0 })
    }
}
