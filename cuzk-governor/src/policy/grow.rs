//! Take back what the ladder gave up, pin the SRS where there is room, and return idle chunks that
//! the next partition has no use for, since they would only crowd out the page cache that mapped
//! files live in. One step at a time, with a pause between two, and a pause after the last tick
//! that was short. Slower than the retreat.

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

/// One partition more at once, and a slice of the SRS beside it if there is room for both.
fn take_back(state: &mut State, now: &Situation<'_>, actions: &mut Vec<Action>) {
    let room = now.spare().saturating_sub(now.share(now.set.grow_above));
    let wanted = state.climb.target(now);
    let concurrency = state.concurrency.unwrap_or(wanted);
    let mut beyond = room.saturating_sub(now.workload.smallest_waiting);
    if concurrency < wanted && beyond > 0 {
        state.concurrency = Some(concurrency + 1);
        beyond = beyond.saturating_sub(now.workload.smallest_waiting);
    }
    let pin = now.workload.unpinned_srs.min(beyond).min(SLICE);
    if pin > 0 {
        actions.push(Action::PinSrs(pin));
    }
}
