//! Take back what the ladder gave up, pin the SRS where there is room beside the page cache that
//! mapped files live in, and return idle chunks that the next partition has no use for, since they
//! would only crowd that cache out. One step at a time, with a pause between two, and a pause after
//! the last tick that was short. Slower than the retreat.

use super::{Action, Situation, State};

/// Pinned at most, in one step.
const SLICE: u64 = 4 << 30;

pub(super) fn step(state: &mut State, now: &Situation<'_>, actions: &mut Vec<Action>) {
    let at = now.headroom.at;
    let pause = now.set.grow_cooldown;
    let rested =
        [state.short_at, state.grown_at].into_iter().flatten().all(|when| at >= when + pause);
    if !rested {
        return;
    }
    let before = (state.concurrency, actions.len());
    let surplus = now.workload.idle_bytes.saturating_sub(now.workload.smallest_waiting);
    if surplus > 0 && now.workload.waiting > 0 {
        actions.push(Action::FreeIdleChunks(surplus));
    } else if now.headroom.stalled <= now.set.pressure_hold {
        take_back(state, now, actions);
    }
    if before != (state.concurrency, actions.len()) {
        state.grown_at = Some(at);
    }
}

/// One partition more at once, and a slice of the SRS beside it if there is room for both. Pinned
/// SRS yields to a partition that would be tried, for it is usable where it is mapped.
fn take_back(state: &mut State, now: &Situation<'_>, actions: &mut Vec<Action>) {
    let room = now.spare().saturating_sub(now.share(now.set.grow_above));
    let wanted = state.climb.target(now);
    let concurrency = state.concurrency.unwrap_or(wanted);
    let mut beyond = room.saturating_sub(now.workload.smallest_waiting);
    if concurrency < wanted && beyond > 0 {
        state.concurrency = Some(concurrency + 1);
        beyond = beyond.saturating_sub(now.workload.smallest_waiting);
    } else if concurrency < wanted && state.climb.tries() {
        let lacks = now.workload.smallest_waiting.saturating_sub(room) + 1;
        if lacks <= now.workload.idle_srs {
            actions.push(Action::UnpinSrs(lacks));
        }
        return;
    }
    let pin = now.workload.unpinned_srs.min(beyond).min(SLICE);
    // Before anything runs, nobody knows what partitions and files take.
    let known = !now.workload.running.is_empty() && beyond >= now.workload.file_cache;
    if pin > 0 && known {
        actions.push(Action::PinSrs(pin));
    }
}
