//! Cancel a partition, to be started again later: the dearest rung, and the only one that
//! throws work away. Of the lowest priority, the one that frees most bytes for a second of work
//! lost; the youngest of equals. The last one that runs goes only where the limit is at hand and what
//! it still needs is not there: the kernel would take it, and all else with it.

use std::cmp::Ordering;

use super::{Action, Partition, Rung, Shed, Situation, State, Step};

pub(super) struct ShedOne;

impl Rung for ShedOne {
    fn offer(&self, state: &State, now: &Situation<'_>) -> Option<Step> {
        if !(now.short || now.emergency) || now.need == 0 {
            return None;
        }
        let runs = |partition: &&Partition| !state.being_shed(partition.id);
        let running = now.workload.running.iter().filter(runs);
        let least = |tier| running.clone().filter(|p| p.shed == tier).min_by(|a, b| cheaper(a, b));
        let in_need = || least(Shed::InEmergency).filter(|_| now.emergency);
        let victim = least(Shed::Freely).or_else(in_need)?;
        if running.count() < 2 && !(now.emergency && doomed(victim, state, now)) {
            return None;
        }
        Some(Step { action: Action::Shed(victim.id), frees: freed(victim) })
    }

    fn is_waste(&self) -> bool {
        true
    }
}

/// Whether it cannot go on: what it still needs is not there and will not be.
fn doomed(partition: &Partition, state: &State, now: &Situation<'_>) -> bool {
    let back = state.fading_credit(now.headroom.at, now.set.reaction) / 2;
    let room = now.headroom.usable.max(now.headroom.margin / 4).saturating_add(back);
    now.stuck || partition.to_come.saturating_add(now.coming) > room
}

/// Bytes that its reservation gives back.
fn freed(partition: &Partition) -> u64 {
    partition.held.saturating_add(partition.to_come)
}

/// The one that costs less to lose first: of the lower priority, then of more bytes freed for a second
/// of work lost, then the younger.
pub fn cheaper(a: &Partition, b: &Partition) -> Ordering {
    let product = |x: &Partition, y: &Partition| u128::from(freed(x)) * y.work.as_nanos().max(1);
    let cheapness = product(b, a).cmp(&product(a, b));
    a.priority.cmp(&b.priority).then(cheapness).then(a.work.cmp(&b.work)).then(b.id.cmp(&a.id))
}
