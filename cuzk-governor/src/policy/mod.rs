//! What to do about the headroom: a pure function of state, headroom, workload and setpoints.
//!
//! No clock, no I/O, no allocation in the steady state: time comes in with the headroom, so
//! the simulator and the tests drive exactly the code that runs in production.
//!
//! While promises and margin fit, it grows, slowly, and gives up what costs next to nothing if
//! growth would soon make them not fit. When they do not, it holds, and goes down the ladder
//! (`RUNGS`), one rung a tick: what a step will give back is credited for the reaction time, so that
//! nothing is done twice for the same bytes, and a rung that was used rests as long. Work is thrown
//! away only when the promises do not fit even without the margin, and that for a reaction time.
//! Only in an emergency does it take as many rungs at once as are needed: if the limit is nearer
//! than the reaction time, if it was cut below what is promised, or if all have long stood still
//! for want of memory.
//!
//! While no sample is fresh, nobody sees what a step gives back: only a purge is ordered then, or,
//! if at the last known growth the limit is nearer than the reaction time, all that costs no work.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::budget::Priority;
use crate::headroom::Headroom;
use crate::setpoints::Setpoints;

pub use shed::cheaper;

mod climb;
mod drop_cache;
mod evict_circuits;
mod free_idle;
mod grow;
mod hold;
mod purge;
mod refuse;
mod shed;
#[cfg(test)]
mod tests;
mod unpin_srs;

/// The ladder, cheapest first. To add a rung is to add a file and a line here.
const RUNGS: [&dyn Rung; 6] = [
    &free_idle::FreeIdle,
    &drop_cache::DropCache,
    &purge::Purge,
    &evict_circuits::EvictCircuits,
    &unpin_srs::UnpinSrs,
    &shed::ShedOne,
];

/// Per cent stalled above which what is freed is taken by others at once.
const CHOKED: f32 = 50.0;

/// In an emergency one part in so many of what a step frees is counted on.
const IN_TIME: u64 = 4;

/// A way to give memory back.
trait Rung: Sync {
    /// The next step here, if there is anything to give. Asked again in an emergency, until
    /// it gives nothing or enough is given.
    fn offer(&self, state: &State, now: &Situation<'_>) -> Option<Step>;

    /// Whether it costs so little that it is done before memory is short.
    fn is_cheap(&self) -> bool {
        false
    }

    /// Whether it throws work away.
    fn is_waste(&self) -> bool {
        false
    }

    /// Whether it does no harm where nobody sees what it gives back.
    fn is_blind(&self) -> bool {
        false
    }
}

/// A step down and the bytes that it gives back within the reaction time.
struct Step {
    action: Action,
    frees: u64,
}

/// What the plant says it is doing. Filled by the plant, reused from tick to tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Partitions being worked on.
    pub running: Vec<Partition>,
    /// The most partitions the plant would run at once at present (the last
    /// [`Action::Concurrency`] it took in, or what it started with).
    pub concurrency: u32,
    /// Partitions finished since the start.
    pub finished: u64,
    /// Partitions accepted and not started.
    pub waiting: u32,
    /// Bytes that the smallest waiting partition must still reserve; 0 when none waits.
    pub smallest_waiting: u64,
    /// Pinned chunks that nobody uses.
    pub idle_chunks: u64,
    /// Their bytes.
    pub idle_bytes: u64,
    /// Page cache of files that only we read and can drop.
    pub file_cache: u64,
    /// Bytes of compiled circuits that no running partition uses.
    pub idle_circuits: u64,
    /// Pinned bytes of SRS that no running partition needs pinned.
    pub idle_srs: u64,
    /// Bytes of SRS that are mapped only, and would be faster pinned.
    pub unpinned_srs: u64,
}

/// A partition that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// The plant's number for it; another one after it was shed and started again.
    pub id: u64,
    /// Of its job.
    pub priority: Priority,
    /// When it may be shed.
    pub shed: Shed,
    /// Bytes it holds, which shedding it would free.
    pub held: u64,
    /// Bytes it has been promised beyond `held`.
    pub to_come: u64,
    /// Work lost if it were shed now.
    pub work: Duration,
}

/// When a partition may be shed to save the process. The last one running never is. One that
/// was shed twice already is best reported as `InEmergency`, so that it ends one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shed {
    /// Whenever nothing cheaper is left.
    Freely,
    /// Only if the limit is nearer than the reaction time (WindowPoSt).
    InEmergency,
    /// Never (WinningPoSt).
    Never,
}

/// An order to the plant. Bytes are what is wanted; doing less is no error, the next sample
/// tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Run at most so many partitions at once, not counting those that are never shed; those
    /// that run are not touched.
    Concurrency(u32),
    /// Pin up to so many bytes of SRS.
    PinSrs(u64),
    /// Give idle pinned chunks back to the kernel.
    FreeIdleChunks(u64),
    /// Drop the page cache of files that are ours.
    DropFileCache(u64),
    /// Make the allocator return what was freed.
    PurgeAllocator,
    /// Let go of compiled circuits that no running partition uses.
    EvictCircuits(u64),
    /// Unpin SRS slices that no running partition needs.
    UnpinSrs(u64),
    /// Cancel this partition and put it back into the queue.
    Shed(u64),
    /// Refuse waiting partitions that need more than `possible`, and new ones like them.
    Refuse {
        /// What the smallest waiting partition needs.
        asked: u64,
        /// The most that could be had with everything else given up.
        possible: u64,
    },
    /// Take new jobs again.
    Accept,
}

impl Action {
    /// Its name in logs and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Action::Concurrency(_) => "concurrency",
            Action::PinSrs(_) => "pin_srs",
            Action::FreeIdleChunks(_) => "free_idle_chunks",
            Action::DropFileCache(_) => "drop_file_cache",
            Action::PurgeAllocator => "purge_allocator",
            Action::EvictCircuits(_) => "evict_circuits",
            Action::UnpinSrs(_) => "unpin_srs",
            Action::Shed(_) => "shed",
            Action::Refuse { .. } => "refuse",
            Action::Accept => "accept",
        }
    }
}

/// What to do now. The actions themselves are in the vector handed to [`decide`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// The ledger's total from now on ([`crate::budget::MemoryBudget::set_total`]).
    pub total: u64,
    /// Its ceiling ([`crate::budget::MemoryBudget::set_ceiling`]): what was admissible at best
    /// within the last [`Setpoints::refuse_after`].
    pub ceiling: u64,
    /// In a word.
    pub mode: Mode,
}

/// What the policy is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Everything fits.
    #[default]
    Steady,
    /// Promises and margin do not fit; memory is being given back.
    Retreating,
    /// The limit is nearer than the reaction time.
    Emergency,
    /// Nothing that waits can ever fit.
    Refusing,
}

/// What the policy remembers from tick to tick.
#[derive(Clone, Debug)]
pub struct State {
    /// The most partitions at once, at present and as throughput would have it.
    concurrency: Option<u32>,
    climb: climb::Climb,
    /// The last step down.
    stepped_at: Option<Duration>,
    /// The last time that memory was short, and that something grew.
    short_at: Option<Duration>,
    grown_at: Option<Duration>,
    /// The limit of the last tick.
    limit: u64,
    /// Since when promises do not fit even without a margin.
    short_since: Option<Duration>,
    /// Since when all tasks stall although promises fit, or since the last remedy, and how many
    /// partitions had finished then.
    choked: Option<(Duration, u64)>,
    /// Until when each rung rests.
    rests: [Duration; RUNGS.len()],
    /// Bytes on their way back, and until when they are counted on.
    credits: Vec<(Duration, u64)>,
    /// Partitions told to stop, and until when that is believed.
    shed: Vec<(Duration, u64)>,
    refusal: refuse::Refusal,
}

impl State {
    /// The most steps remembered; older ones are over by then.
    const MOST: usize = 256;

    /// Nothing done yet.
    pub fn new() -> Self {
        Self {
            concurrency: None,
            climb: climb::Climb::default(),
            stepped_at: None,
            short_at: None,
            grown_at: None,
            limit: 0,
            short_since: None,
            choked: None,
            rests: [Duration::ZERO; RUNGS.len()],
            credits: Vec::with_capacity(Self::MOST),
            shed: Vec::with_capacity(Self::MOST),
            refusal: refuse::Refusal::default(),
        }
    }

    fn forget(&mut self, at: Duration) {
        self.credits.retain(|&(until, _)| at < until);
        self.shed.retain(|&(until, _)| at < until);
    }

    fn credit(&self) -> u64 {
        self.credits.iter().fold(0, |sum, &(_, bytes)| bytes.saturating_add(sum))
    }

    /// The same, believed less the longer it has not come: near the limit there is no waiting for
    /// the last of it.
    fn fading_credit(&self, at: Duration, reaction: Duration) -> u64 {
        let left = |until: Duration| until.saturating_sub(at).as_secs_f64();
        let share = |until| (left(until) / reaction.as_secs_f64().max(1e-3)).min(1.0);
        let faded = |&(until, bytes): &(Duration, u64)| (bytes as f64 * share(until)) as u64;
        self.credits.iter().map(faded).fold(0, u64::saturating_add)
    }

    fn being_shed(&self, id: u64) -> bool {
        self.shed.iter().any(|&(_, shed)| shed == id)
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// What the rungs look at.
struct Situation<'a> {
    headroom: &'a Headroom,
    workload: &'a Workload,
    set: &'a Setpoints,
    /// Bytes to give back, less those on their way.
    need: u64,
    /// Bytes that will be gone by the time that they are back.
    coming: u64,
    /// Whether the limit is nearer than the reaction time.
    near: bool,
    emergency: bool,
    /// Whether nobody has got on for long.
    stuck: bool,
    /// Whether work may be thrown away for it.
    short: bool,
}

impl Situation<'_> {
    fn share(&self, share: f64) -> u64 {
        (share * self.headroom.limit as f64) as u64
    }

    /// What could be newly reserved.
    fn spare(&self) -> u64 {
        self.headroom.admissible.saturating_sub(self.headroom.reserved)
    }
}

/// Decides. `actions` is cleared first; its capacity is reused.
pub fn decide(
    state: &mut State,
    headroom: &Headroom,
    workload: &Workload,
    set: &Setpoints,
    actions: &mut Vec<Action>,
) -> Decision {
    actions.clear();
    state.forget(headroom.at);
    let concurrency = *state.concurrency.get_or_insert(workload.concurrency.max(1));
    let ceiling = state.refusal.ceiling(headroom, set);
    let now = assess(state, headroom, workload, set);
    if headroom.deficit > 0 {
        hold::step(state, &now);
    }
    drop_cache::unclog(state, &now, actions);
    if now.need > 0 {
        retreat(state, &now, actions);
    } else if !ease(state, &now, actions) && headroom.deficit == 0 && headroom.stale_ticks == 0 {
        grow::step(state, &now, actions);
    }
    climb::step(state, &now);
    let refusing = refuse::step(state, &now, actions);
    announce(state, workload, concurrency, actions);
    let mode = match (now.emergency, refusing, now.need > 0) {
        (true, ..) => Mode::Emergency,
        (_, true, _) => Mode::Refusing,
        (.., true) => Mode::Retreating,
        _ => Mode::Steady,
    };
    Decision { total: headroom.admissible, ceiling, mode }
}

fn assess<'a>(
    state: &mut State,
    headroom: &'a Headroom,
    workload: &'a Workload,
    set: &'a Setpoints,
) -> Situation<'a> {
    let near = headroom.time_to_limit.is_some_and(|left| left < set.reaction);
    // A limit that was cut is reached without any growth.
    let cut = state.limit.saturating_sub(headroom.limit) > headroom.margin
        && headroom.promised > headroom.usable;
    state.limit = headroom.limit;
    let reached = headroom.promised > headroom.usable && headroom.usable < headroom.margin / 4;
    let overdrawn = headroom.promised > headroom.usable || headroom.usable < headroom.margin / 2;
    state.short_since = overdrawn.then(|| state.short_since.unwrap_or(headroom.at));
    let short_for =
        |long: Duration| state.short_since.is_some_and(|since| headroom.at >= since + long);
    let hasty = near || cut || reached || (headroom.deficit > 0 && headroom.usable == 0);
    // Nobody gets on, and waiting does not help.
    let stuck = headroom.stalled > CHOKED && short_for(set.refuse_after);
    let emergency = hasty || stuck;
    // What is given back now helps a reaction time later; by then so much more is gone.
    let silence = set.tick * headroom.stale_ticks;
    let coming = (headroom.growth as f64 * (set.reaction + silence).as_secs_f64()) as u64;
    // The margin of a silent sensor is no measure of what is missing.
    let lacking = match headroom.stale_ticks {
        0 => headroom.deficit.saturating_add(coming),
        _ => headroom.promised.saturating_add(coming).saturating_sub(headroom.usable),
    };
    let wanted = if emergency || headroom.deficit > 0 { lacking } else { 0 };
    // Where all tasks stall, others take what comes back as it comes: growth looks slower than the
    // hunger behind it, and nothing that is on its way can be counted on.
    let credit = match (hasty, headroom.stalled > CHOKED) {
        (true, true) => 0,
        (true, false) => state.fading_credit(headroom.at, set.reaction),
        (false, _) => state.credit(),
    };
    let need = wanted.saturating_sub(credit).max(starved(headroom, workload, set));
    let short = short_for(set.reaction);
    if stuck {
        state.short_since = Some(headroom.at);
    }
    Situation { headroom, workload, set, need, coming, near, emergency, stuck, short }
}

/// What the smallest partition lacks while nothing runs at all: progress is never zero if
/// giving up something idle lets one run. A little more than that: what is there just so is gone
/// before it is back.
fn starved(headroom: &Headroom, workload: &Workload, set: &Setpoints) -> u64 {
    let asked = workload.smallest_waiting;
    let waits = workload.running.is_empty() && workload.waiting > 0;
    let lacks = headroom.reserved.saturating_add(asked).saturating_sub(headroom.admissible);
    if waits && lacks > 0 && asked <= possible(headroom, workload) {
        lacks.saturating_add((set.grow_above * headroom.limit as f64) as u64)
    } else {
        0
    }
}

/// What a partition could have with everything idle given up.
fn possible(headroom: &Headroom, workload: &Workload) -> u64 {
    let idle = workload
        .idle_bytes
        .saturating_add(workload.idle_circuits)
        .saturating_add(workload.idle_srs);
    headroom.admissible.saturating_sub(headroom.reserved.saturating_sub(idle))
}

/// One step down, or in an emergency as many as it takes.
fn retreat(state: &mut State, now: &Situation<'_>, actions: &mut Vec<Action>) {
    let Headroom { at, stale_ticks, .. } = *now.headroom;
    let paused = state.stepped_at.is_some_and(|when| at < when + now.set.retreat_cooldown);
    let blind = stale_ticks > 0;
    if blind && !now.near {
        ease(state, now, actions);
        return;
    }
    if paused && !now.emergency {
        return;
    }
    let mut given = 0;
    for (at_rung, rung) in RUNGS.iter().enumerate() {
        if at < state.rests[at_rung] && !now.emergency || blind && rung.is_waste() {
            continue;
        }
        while let Some(step) = rung.offer(state, &Situation { need: now.need - given, ..*now }) {
            // What gives nothing back by itself is not repeated, however near the limit.
            if at < state.rests[at_rung] && step.frees == 0 {
                break;
            }
            take(state, now, at_rung, &step, actions);
            // Near the limit what comes back too late does not count, and how fast it comes is not known.
            let counted = if now.emergency { step.frees / IN_TIME } else { step.frees };
            given += counted.min(now.need - given);
            if !now.emergency || given == now.need {
                return;
            }
            if at < state.rests[at_rung] {
                break;
            }
        }
    }
}

/// What costs next to nothing, before memory is short: if growth would make it so within a reaction
/// time, or if a silent sensor leaves open where freed memory went. Whether anything was ordered.
fn ease(state: &mut State, now: &Situation<'_>, actions: &mut Vec<Action>) -> bool {
    let Headroom { at, stale_ticks, reserved, admissible, .. } = *now.headroom;
    let need = reserved
        .saturating_add(now.coming)
        .saturating_sub(admissible)
        .saturating_sub(state.credit());
    if need == 0 {
        return false;
    }
    for (at_rung, rung) in RUNGS.iter().enumerate() {
        let apt = if stale_ticks > 0 { rung.is_blind() } else { rung.is_cheap() };
        if !apt || at < state.rests[at_rung] {
            continue;
        }
        if let Some(step) = rung.offer(state, &Situation { need, ..*now }) {
            take(state, now, at_rung, &step, actions);
            return true;
        }
    }
    false
}

/// Enters a step into the books and orders it.
fn take(
    state: &mut State,
    now: &Situation<'_>,
    at_rung: usize,
    step: &Step,
    actions: &mut Vec<Action>,
) {
    let until = now.headroom.at + now.set.reaction;
    state.stepped_at = Some(now.headroom.at);
    if step.frees > 0 && state.credits.len() < State::MOST {
        state.credits.push((until, step.frees));
    }
    actions.push(step.action);
    match step.action {
        // The next victim is another one, so this rung need not rest.
        Action::Shed(id) if state.shed.len() < State::MOST => state.shed.push((until, id)),
        _ => state.rests[at_rung] = until,
    }
}

/// Tells the plant the concurrency, if it changed or the plant has not taken it in.
fn announce(state: &State, workload: &Workload, before: u32, actions: &mut Vec<Action>) {
    let concurrency = state.concurrency.unwrap_or(before);
    if concurrency != before || concurrency != workload.concurrency {
        actions.push(Action::Concurrency(concurrency));
    }
}
