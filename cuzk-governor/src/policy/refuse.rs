//! Refuse what can never fit, with both numbers, instead of waiting for ever.

use std::time::Duration;

use super::{possible, Action, Situation, State};
use crate::headroom::Headroom;
use crate::setpoints::Setpoints;

/// The best of the recent past is kept in so many pieces.
const PIECES: usize = 8;

/// Since when nothing that waits could fit, and what was admissible at best lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refusal {
    hopeless_since: Option<Duration>,
    /// The least that was asked when jobs were refused; `None` while they are taken.
    refused: Option<u64>,
    best: [u64; PIECES],
    piece: u64,
    /// The limit of the last tick.
    limit: u64,
}

impl Refusal {
    /// What was admissible at best within the last `refuse_after`. A limit that rises is a new
    /// beginning: the margin, which its changes have widened, is not held against those that wait.
    pub(super) fn ceiling(&mut self, headroom: &Headroom, set: &Setpoints) -> u64 {
        let length = (set.refuse_after / PIECES as u32).max(Duration::from_millis(1));
        let piece = (headroom.at.as_nanos() / length.as_nanos()) as u64;
        let passed = piece.saturating_sub(self.piece).min(PIECES as u64);
        for ago in 0..passed {
            self.best[((piece - ago) % PIECES as u64) as usize] = 0;
        }
        self.piece = self.piece.max(piece);
        let mut admissible = headroom.admissible;
        if headroom.limit > std::mem::replace(&mut self.limit, headroom.limit) {
            self.hopeless_since = None;
            admissible = admissible.max(headroom.limit.saturating_sub(headroom.residual));
        }
        let best = &mut self.best[(self.piece % PIECES as u64) as usize];
        *best = admissible.max(*best);
        self.best.into_iter().max().unwrap_or(0)
    }
}

/// Whether jobs are being refused.
pub(super) fn step(state: &mut State, now: &Situation<'_>, actions: &mut Vec<Action>) -> bool {
    let refusal = &mut state.refusal;
    let asked = now.workload.smallest_waiting;
    let possible = possible(now.headroom, now.workload);
    if refusal.refused.is_some_and(|refused| refused <= possible) {
        refusal.refused = None;
        actions.push(Action::Accept);
    }
    let waits = now.workload.running.is_empty() && now.workload.waiting > 0;
    let hopeless = waits && asked > possible && now.headroom.stale_ticks == 0;
    refusal.hopeless_since = hopeless.then(|| refusal.hopeless_since.unwrap_or(now.headroom.at));
    let long = |since: Duration| now.headroom.at >= since + now.set.refuse_after;
    if refusal.hopeless_since.is_some_and(long) {
        refusal.hopeless_since = Some(now.headroom.at);
        refusal.refused = Some(refusal.refused.map_or(asked, |least| least.min(asked)));
        actions.push(Action::Refuse { asked, possible });
    }
    refusal.refused.is_some()
}
