//! Take back what the ladder gave up, and pin the SRS where there is room: one step at a time,
//! with a pause between two, and a pause after the last tick that was short. Slower than the retreat.

use super::{Action, Situation, State};

/// Pinned at most, in one step.
const SLICE: u64 = 4 << 30;

pub(super) fn step(state: &mut State, now: &Situation<'_>, actions: &mut Vec<Action>) {
    let at = now.headroom.at;
    let pause = now.set.grow_cooldown;
    let rested =
        [state.short_at, state.grown_at].into_iter().flatten().all(|when| at >= when + pause);
    let reserve = now.share(now.set.grow_above);
    let room = now.spare().saturating_sub(reserve);
    if !rested || room == 0 || now.headroom.stalled > now.set.pressure_hold {
        return;
    }
    let wanted = state.climb.target(now);
    let concurrency = state.concurrency.unwrap_or(wanted);
    let beyond = room.saturating_sub(now.workload.smallest_waiting);
    let pin = now.workload.unpinned_srs.min(beyond).min(SLICE);
    if concurrency < wanted && beyond > 0 {
        state.concurrency = Some(concurrency + 1);
    } else if pin > 0 {
        actions.push(Action::PinSrs(pin));
    } else {
        return;
    }
    state.grown_at = Some(at);
}
