//! Give pinned chunks back that nobody uses: they cost only the time to pin them again.

use super::{Action, Rung, Situation, State, Step};

pub(super) struct FreeIdle;

impl Rung for FreeIdle {
    fn offer(&self, _: &State, now: &Situation<'_>) -> Option<Step> {
        let frees = now.need.min(now.workload.idle_bytes);
        (frees > 0).then_some(Step { action: Action::FreeIdleChunks(frees), frees })
    }

    fn is_cheap(&self) -> bool {
        true
    }
}
