//! Start nothing new: as many partitions at once as run now, at least one. It gives nothing
//! back, so it is no step; it ends what would make things worse, at once and on every tick that
//! is short, and it outlives them: growth takes it back slowly.

use super::{Partition, Shed, Situation, State, Workload};

pub(super) fn step(state: &mut State, now: &Situation<'_>) {
    let most = counted(now.workload);
    state.concurrency = Some(state.concurrency.map_or(most, |present| present.min(most)));
    state.short_at = Some(now.headroom.at);
}

/// Partitions that count against the concurrency, at least one.
pub(super) fn counted(workload: &Workload) -> u32 {
    let counts = |partition: &&Partition| partition.shed != Shed::Never;
    workload.running.iter().filter(counts).count().max(1) as u32
}
