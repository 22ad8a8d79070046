//! Let compiled circuits go that nobody uses: they come back from disk.

use super::{Action, Rung, Situation, State, Step};

pub(super) struct EvictCircuits;

impl Rung for EvictCircuits {
    fn offer(&self, _: &State, now: &Situation<'_>) -> Option<Step> {
        let frees = now.need.min(now.workload.idle_circuits);
        (frees > 0).then_some(Step { action: Action::EvictCircuits(frees), frees })
    }
}
