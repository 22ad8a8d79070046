//! Drop page cache that is ours. It counts as usable already, so this gives nothing back; it
//! spares the kernel the reclaim where that has become slow enough to stall tasks. Not where the
//! limit would be reached by those that it lets go on: they are better slow.

use super::{Action, Rung, Situation, State, Step, CHOKED};

pub(super) struct DropCache;

impl Rung for DropCache {
    fn offer(&self, _: &State, now: &Situation<'_>) -> Option<Step> {
        let strained = now.emergency || now.headroom.stalled > now.set.pressure_hold;
        let bytes = now.need.min(now.workload.file_cache);
        (strained && bytes > 0 && fits(now))
            .then_some(Step { action: Action::DropFileCache(bytes), frees: 0 })
    }
}

/// Whether there is room for all that is promised, and for what grows beside it.
fn fits(now: &Situation<'_>) -> bool {
    now.headroom.promised.saturating_add(now.coming) <= now.headroom.usable
}

/// Memory is there, and all tasks wait for the kernel to take it from the page cache, so long that
/// nothing finishes: what is promised would take that place anyway, so it is made at once.
pub(super) fn unclog(state: &mut State, now: &Situation<'_>, actions: &mut Vec<Action>) {
    let choked = now.headroom.stalled > CHOKED && now.headroom.promised > 0 && fits(now);
    let (at, finished) = (now.headroom.at, now.workload.finished);
    let same = |&(_, before): &(_, u64)| choked && before == finished;
    let Some((since, _)) = state.choked.filter(same) else {
        state.choked = choked.then_some((at, finished));
        return;
    };
    let bytes = now.headroom.promised.min(now.workload.file_cache);
    if bytes > 0 && at >= since + now.set.refuse_after {
        actions.push(Action::DropFileCache(bytes));
        state.choked = Some((at, finished));
    }
}
