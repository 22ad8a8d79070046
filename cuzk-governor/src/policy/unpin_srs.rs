//! Unpin SRS that nobody needs pinned: it stays usable from the mapped file, slower.

use super::{Action, Rung, Situation, State, Step};

pub(super) struct UnpinSrs;

impl Rung for UnpinSrs {
    fn offer(&self, _: &State, now: &Situation<'_>) -> Option<Step> {
        let frees = now.need.min(now.workload.idle_srs);
        (frees > 0).then_some(Step { action: Action::UnpinSrs(frees), frees })
    }
}
