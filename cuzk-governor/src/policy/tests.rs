use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A limit of 100 GiB, 60 of them reserved and resident, 30 spare after a margin of 10.
fn roomy(at: u64) -> Headroom {
    Headroom {
        sequence: at,
        at: seconds(at),
        limit: 100 * GIB,
        usable: 40 * GIB,
        reserved: 60 * GIB,
        resident: 60 * GIB,
        margin: 10 * GIB,
        admissible: 90 * GIB,
        ..Headroom::default()
    }
}

/// The same, but short of so many GiB, although everything resident still fits.
fn short_of(at: u64, gib: u64) -> Headroom {
    let (admissible, deficit) = ((60 - gib) * GIB, gib * GIB);
    Headroom { admissible, deficit, usable: (10 - gib) * GIB, ..roomy(at) }
}

/// The limit is a second away.
fn emergency(at: u64, gib: u64) -> Headroom {
    Headroom { time_to_limit: Some(seconds(1)), growth: GIB, ..short_of(at, gib) }
}

fn partition(id: u64, held: u64, work: u64) -> Partition {
    Partition {
        id,
        priority: Priority::Normal,
        shed: Shed::Freely,
        held: held * GIB,
        to_come: 0,
        work: seconds(work),
    }
}

/// Four partitions at once, nothing idle.
fn busy() -> Workload {
    let running = (1..=4).map(|id| partition(id, 10, 100 - 10 * id)).collect();
    Workload { running, concurrency: 4, ..Workload::default() }
}

/// Something on every rung.
fn idle_everywhere() -> Workload {
    Workload {
        idle_bytes: GIB,
        idle_chunks: 64,
        file_cache: GIB,
        idle_circuits: GIB,
        idle_srs: GIB,
        ..busy()
    }
}

/// Decides tick after tick; what was ordered at each, without the concurrency.
struct Run {
    state: State,
    set: Setpoints,
    decision: Decision,
    concurrency: u32,
}

impl Run {
    fn new() -> Self {
        let set = Setpoints { max_concurrency: 4, ..Setpoints::default() };
        Self { state: State::new(), set, decision: Decision::default(), concurrency: 4 }
    }

    fn tick(&mut self, headroom: Headroom, workload: &Workload) -> Vec<Action> {
        let workload = Workload { concurrency: self.concurrency, ..workload.clone() };
        let mut actions = Vec::new();
        let Self { state, set, .. } = self;
        self.decision = decide(state, &headroom, &workload, set, &mut actions);
        actions.retain(|action| match action {
            Action::Concurrency(most) => {
                self.concurrency = *most;
                false
            }
            _ => true,
        });
        actions
    }
}

#[test]
fn while_everything_fits_nothing_is_ordered_and_all_that_is_admissible_is_admitted() {
    let mut run = Run::new();
    assert_eq!(run.tick(roomy(1), &idle_everywhere()), []);
    assert_eq!((run.decision.total, run.decision.mode), (90 * GIB, Mode::Steady));
}

#[test]
fn the_retreat_goes_down_one_rung_a_tick_the_cheapest_first() {
    let mut run = Run::new();
    let workload = idle_everywhere();
    let mut tick = |at| {
        let tight = Headroom { allocator_free: 2 * GIB, stalled: 50.0, ..short_of(at, 9) };
        run.tick(tight, &workload)
    };
    assert_eq!(tick(1), [Action::FreeIdleChunks(GIB)]);
    assert_eq!(tick(2), [Action::DropFileCache(GIB)]);
    assert_eq!(tick(3), [Action::PurgeAllocator]);
    // The first rung has rested by now and is still the cheapest.
    assert_eq!(tick(4), [Action::FreeIdleChunks(GIB)]);
    let set = Setpoints { reaction: seconds(60), ..Setpoints::default() };
    let mut run = Run { set, ..Run::new() };
    let mut tick = |at| run.tick(short_of(at, 9), &workload);
    assert_eq!(tick(1), [Action::FreeIdleChunks(GIB)]);
    assert_eq!(tick(2), [Action::EvictCircuits(GIB)], "file cache only helps a strained kernel");
    assert_eq!(tick(3), [Action::UnpinSrs(GIB)]);
    assert_eq!(tick(4), []);
}

#[test]
fn bytes_on_their_way_back_are_not_asked_for_twice() {
    let mut run = Run::new();
    let workload = Workload { idle_bytes: 20 * GIB, idle_circuits: 20 * GIB, ..busy() };
    assert_eq!(run.tick(short_of(1, 5), &workload), [Action::FreeIdleChunks(5 * GIB)]);
    assert_eq!(run.tick(short_of(2, 5), &workload), []);
    assert_eq!(run.tick(short_of(3, 6), &workload), [Action::EvictCircuits(GIB)]);
    assert_eq!(run.tick(short_of(4, 6), &workload), [Action::FreeIdleChunks(5 * GIB)]);
}

#[test]
fn two_steps_down_keep_their_distance_except_in_an_emergency() {
    let mut run = Run::new();
    let soon = |headroom| Headroom { at: seconds(1) + Duration::from_millis(100), ..headroom };
    assert_eq!(run.tick(short_of(1, 5), &idle_everywhere()), [Action::FreeIdleChunks(GIB)]);
    assert_eq!(run.tick(soon(short_of(2, 5)), &idle_everywhere()), []);
    assert_ne!(run.tick(soon(emergency(3, 5)), &idle_everywhere()), []);
}

#[test]
fn nothing_new_starts_while_memory_is_short() {
    let mut run = Run::new();
    let two = Workload { running: busy().running[..2].to_vec(), ..busy() };
    run.tick(short_of(1, 5), &two);
    assert_eq!((run.concurrency, run.decision.mode), (2, Mode::Retreating));
    let none = Workload { running: vec![], idle_bytes: 9 * GIB, ..busy() };
    run.tick(short_of(2, 5), &none);
    let two = Workload { running: busy().running[..2].to_vec(), waiting: 9, ..busy() };
    run.tick(short_of(20, 5), &two);
    assert_eq!(run.concurrency, 1, "one may always run");
}

#[test]
fn work_is_thrown_away_only_when_promises_do_not_fit_for_a_reaction_time() {
    let mut run = Run::new();
    for at in 1..60 {
        assert_eq!(run.tick(short_of(at, 5), &busy()), [], "the margin alone is short");
    }
    let overdrawn = |at| Headroom { usable: 4 * GIB, promised: 5 * GIB, ..short_of(at, 6) };
    assert_eq!(run.tick(overdrawn(61), &busy()), []);
    assert_eq!(run.tick(overdrawn(63), &busy()), []);
    assert_eq!(run.tick(overdrawn(64), &busy()), [Action::Shed(4)]);
    assert_eq!(run.tick(overdrawn(65), &busy()), [], "its 10 GiB are on their way");
}

#[test]
fn a_deeply_used_margin_also_costs_work() {
    let mut run = Run::new();
    let deep = |at| Headroom { usable: 4 * GIB, ..short_of(at, 6) };
    assert_eq!(run.tick(deep(1), &busy()), []);
    assert_eq!(run.tick(deep(4), &busy()), [Action::Shed(4)]);
}

#[test]
fn shed_is_the_lowest_priority_then_most_bytes_for_the_work_then_the_youngest() {
    let shed = |running: Vec<Partition>| {
        let workload = Workload { running, ..busy() };
        Run::new().tick(emergency(1, 2), &workload)[1..].to_vec()
    };
    let low = Partition { priority: Priority::Low, ..partition(9, 1, 1_000) };
    assert_eq!(shed(vec![partition(1, 50, 1), low]), [Action::Shed(9)]);
    assert_eq!(shed(vec![partition(1, 10, 100), partition(2, 40, 300)])[0], Action::Shed(2));
    assert_eq!(shed(vec![partition(1, 10, 100), partition(2, 5, 50)])[0], Action::Shed(2));
    let to_come = Partition { to_come: 30 * GIB, ..partition(3, 10, 100) };
    assert_eq!(shed(vec![partition(1, 20, 100), to_come])[0], Action::Shed(3));
}

#[test]
fn a_winning_post_is_never_shed_nor_the_last_one_running_while_it_can_go_on() {
    let only = Workload { running: vec![partition(1, 50, 1)], ..busy() };
    assert_eq!(Run::new().tick(emergency(1, 5), &only), [Action::PurgeAllocator]);
    let never = |id| Partition { shed: Shed::Never, to_come: 90 * GIB, ..partition(id, 50, 1) };
    let winning = Workload { running: vec![never(1), never(2)], ..busy() };
    assert_eq!(Run::new().tick(emergency(1, 5), &winning), [Action::PurgeAllocator]);
}

#[test]
fn the_last_one_running_goes_if_the_limit_is_at_hand_and_what_it_needs_will_not_be_there() {
    let only = Partition { to_come: 3 * GIB, ..partition(1, 50, 1) };
    let alone = |idle_bytes| Workload { running: vec![only], idle_bytes, ..busy() };
    let doomed = [Action::PurgeAllocator, Action::Shed(1)];
    assert_eq!(
        Run::new().tick(emergency(1, 5), &alone(0)),
        doomed,
        "3 to come, 3 grow, 5 are left"
    );
    let freed = Run::new().tick(emergency(1, 5), &alone(5 * GIB));
    assert!(!freed.contains(&Action::Shed(1)), "half of 5 GiB that come back are enough");
    let deep = |at| Headroom { usable: GIB, ..short_of(at, 9) };
    let mut run = Run::new();
    for at in 1..20 {
        assert_eq!(run.tick(deep(at), &alone(0)), [], "there is time");
    }
}

#[test]
fn a_window_post_is_shed_only_in_an_emergency_and_after_all_others() {
    let window = |id| Partition { shed: Shed::InEmergency, ..partition(id, 10, 1) };
    let windows = Workload { running: vec![window(1), window(2)], ..busy() };
    let mut run = Run::new();
    let deep = |at| Headroom { usable: GIB, ..short_of(at, 9) };
    for at in 1..20 {
        assert_eq!(run.tick(deep(at), &windows), []);
    }
    assert_eq!(run.tick(emergency(20, 9), &windows), [Action::PurgeAllocator, Action::Shed(2)]);
    let mixed = Workload { running: vec![window(1), partition(2, 1, 999)], ..busy() };
    assert_eq!(Run::new().tick(emergency(1, 1), &mixed)[1], Action::Shed(2));
}

#[test]
fn an_emergency_takes_as_many_rungs_at_once_as_it_needs_and_no_more() {
    let mut run = Run::new();
    let actions = run.tick(emergency(1, 5), &idle_everywhere());
    let cheap = [
        Action::FreeIdleChunks(GIB),
        Action::DropFileCache(GIB),
        Action::PurgeAllocator,
        Action::EvictCircuits(GIB),
        Action::UnpinSrs(GIB),
    ];
    assert_eq!(actions[..5], cheap);
    let shed = [Action::Shed(4), Action::Shed(3), Action::Shed(2)];
    assert_eq!(actions[5..], shed, "a quarter of 3 and of 30 GiB is more than 8");
    assert_eq!(run.decision.mode, Mode::Emergency);
    let calm = Headroom { growth: 0, ..emergency(2, 5) };
    assert_eq!(run.tick(calm, &idle_everywhere()), [], "33 are on their way");
}

#[test]
fn what_gives_nothing_back_by_itself_is_not_repeated_within_a_reaction_time() {
    let mut run = Run::new();
    let only = Workload { running: vec![partition(1, 50, 1)], ..busy() };
    assert_eq!(run.tick(emergency(1, 5), &only), [Action::PurgeAllocator]);
    assert_eq!(run.tick(emergency(2, 5), &only), []);
    assert_eq!(run.tick(emergency(4, 5), &only), [Action::PurgeAllocator]);
}

#[test]
fn a_near_limit_is_an_emergency_also_while_all_promises_fit() {
    let shed = [Action::PurgeAllocator, Action::Shed(4), Action::Shed(3), Action::Shed(2)];
    let mut run = Run::new();
    let leak = Headroom { time_to_limit: Some(seconds(2)), growth: 5 * GIB, ..roomy(1) };
    assert_eq!(run.tick(leak, &busy()), shed);
    assert_eq!(run.decision.mode, Mode::Emergency);
    let mut run = Run::new();
    let cut = Headroom { usable: 2 * GIB, promised: 3 * GIB, ..short_of(1, 8) };
    assert_eq!(run.tick(cut, &busy()), shed, "a limit was cut, and nothing grows");
    assert_eq!(run.decision.mode, Mode::Emergency);
}

#[test]
fn a_limit_cut_below_what_is_promised_is_an_emergency_in_that_tick() {
    let before = |limit| Headroom { limit: limit * GIB, ..roomy(1) };
    let after = Headroom { usable: 9 * GIB, promised: 12 * GIB, ..short_of(2, 1) };
    let mode = |first: Headroom, then: Headroom| {
        let mut run = Run::new();
        run.tick(first, &busy());
        run.tick(then, &busy());
        run.decision.mode
    };
    assert_eq!(mode(before(111), after), Mode::Emergency);
    assert_eq!(mode(before(109), after), Mode::Retreating, "by less than the margin");
    let fits = Headroom { promised: 8 * GIB, ..after };
    assert_eq!(mode(before(111), fits), Mode::Retreating, "what is promised fits");
}

#[test]
fn a_standstill_that_lasts_is_an_emergency() {
    let mut run = Run::new();
    let windows = |n| {
        let window = |id| Partition { shed: Shed::InEmergency, ..partition(id, 10, 1) };
        Workload { running: (1..=n).map(window).collect(), ..busy() }
    };
    let still = |at| {
        let promised = 9 * GIB;
        Headroom { usable: 8 * GIB, promised, stalled: 90.0, ..short_of(at, 2) }
    };
    for at in 1..31 {
        assert_eq!(run.tick(still(at), &windows(2)), [], "{at}");
    }
    assert_eq!(run.tick(still(31), &windows(2)), [Action::PurgeAllocator, Action::Shed(2)]);
    assert_eq!(run.tick(still(32), &windows(1)), [], "what was done is waited for");
    for at in 33..61 {
        assert_eq!(run.tick(still(at), &windows(1)), [], "{at}");
    }
    assert_eq!(run.tick(still(61), &windows(1)), [Action::PurgeAllocator, Action::Shed(1)]);
}

#[test]
fn near_the_limit_overdue_bytes_are_counted_on_less_and_less_and_not_at_all_if_all_stall() {
    let near = |at| Headroom { growth: GIB / 3, ..emergency(at, 1) };
    let shed = |actions: &[Action]| {
        actions.iter().filter(|action| matches!(action, Action::Shed(_))).count()
    };
    let mut run = Run::new();
    assert_eq!(shed(&run.tick(near(1), &busy())), 1, "2 GiB are needed, a quarter of 10 comes");
    assert_eq!(shed(&run.tick(near(2), &busy())), 0, "some 7 are believed");
    let more = Headroom { growth: GIB, ..near(3) };
    assert_eq!(shed(&run.tick(more, &busy())), 1, "some 3 are believed, and 4 are needed");
    let mut run = Run::new();
    run.tick(near(1), &busy());
    let at = seconds(1) + Duration::from_millis(100);
    let choked = Headroom { at, stalled: 90.0, ..near(2) };
    assert_eq!(shed(&run.tick(choked, &busy())), 1);
}

#[test]
fn cache_is_dropped_where_all_stall_and_nothing_finishes_although_there_is_room() {
    let workload = Workload { file_cache: 20 * GIB, ..busy() };
    let still = |at| Headroom { promised: 8 * GIB, stalled: 90.0, ..roomy(at) };
    let mut run = Run::new();
    for at in 1..31 {
        assert_eq!(run.tick(still(at), &workload), []);
    }
    assert_eq!(run.tick(still(31), &workload), [Action::DropFileCache(8 * GIB)]);
    assert_eq!(run.tick(still(32), &workload), []);
    let mut run = Run::new();
    for at in 1..100 {
        let gets_on = Workload { finished: at / 20, ..workload.clone() };
        assert_eq!(run.tick(still(at), &gets_on), [], "something finishes");
    }
    let mut run = Run::new();
    for at in 1..100 {
        let tight = Headroom { promised: 8 * GIB, growth: 20 * GIB, ..still(at) };
        assert_eq!(run.tick(tight, &workload), [], "the limit would be reached the faster");
    }
}

#[test]
fn while_no_sample_is_fresh_only_the_allocator_is_purged_and_nothing_starts() {
    let mut run = Run::new();
    let workload = Workload { running: busy().running[..3].to_vec(), ..idle_everywhere() };
    let stale = |at| Headroom { stale_ticks: at as u32, ..short_of(at, 9) };
    assert_eq!(run.tick(stale(1), &workload), [Action::PurgeAllocator]);
    assert_eq!(run.concurrency, 3);
    assert_eq!(run.tick(stale(2), &workload), [], "not twice within a reaction time");
    assert_eq!(run.tick(short_of(3, 9), &workload), [Action::FreeIdleChunks(GIB)]);
}

#[test]
fn while_no_sample_is_fresh_and_the_limit_is_near_all_is_given_back_that_costs_no_work() {
    // 20 GiB a second are 80 within the reaction and a second of silence, and 40 are there.
    let stale = |left| Headroom {
        stale_ticks: 1,
        growth: 20 * GIB,
        time_to_limit: Some(seconds(left)),
        ..roomy(2)
    };
    let workload = Workload { idle_bytes: 30 * GIB, idle_circuits: 50 * GIB, ..busy() };
    let given = [
        Action::FreeIdleChunks(30 * GIB),
        Action::PurgeAllocator,
        // A quarter of what was freed counts so near the limit.
        Action::EvictCircuits(65 * GIB / 2),
    ];
    assert_eq!(Run::new().tick(stale(2), &workload), given);
    assert_eq!(Run::new().tick(stale(3), &workload), [Action::PurgeAllocator], "not so near");
    assert_eq!(
        Run::new().tick(stale(0), &busy()),
        [Action::PurgeAllocator],
        "no partition is shed"
    );
}

#[test]
fn what_costs_next_to_nothing_is_given_back_before_memory_is_short() {
    // 30 GiB are spare, and 36 will be gone within a reaction time.
    let soon = |at| Headroom { growth: 12 * GIB, ..roomy(at) };
    let workload = idle_everywhere();
    let mut run = Run::new();
    assert_eq!(run.tick(soon(1), &workload), [Action::FreeIdleChunks(GIB)]);
    let keeps = |at| Headroom { allocator_free: 2 * GIB, ..soon(at) };
    assert_eq!(run.tick(keeps(2), &workload), [Action::PurgeAllocator]);
    assert_eq!(run.tick(keeps(3), &workload), [], "circuits and SRS stay until it is short");
    let slow = Headroom { growth: 9 * GIB, allocator_free: 2 * GIB, ..roomy(1) };
    assert_eq!(Run::new().tick(slow, &workload), [], "27 GiB will do");
}

#[test]
fn concurrency_comes_back_slower_than_it_went() {
    let mut run = Run::new();
    let one = Workload { running: vec![partition(1, 10, 5)], waiting: 9, ..busy() };
    run.tick(short_of(1, 5), &one);
    assert_eq!(run.concurrency, 1);
    let mut seen = vec![];
    for at in 2..50 {
        run.tick(roomy(at), &one);
        seen.push(run.concurrency);
    }
    seen.dedup();
    assert_eq!(seen, [1, 2, 3, 4]);
    let mut run = Run::new();
    run.tick(short_of(1, 5), &one);
    let tight = |at| Headroom { admissible: 61 * GIB, ..roomy(at) };
    let stalling = |at| Headroom { stalled: 90.0, ..roomy(at) };
    for at in 2..50 {
        run.tick(tight(at), &one);
        run.tick(stalling(at), &one);
    }
    assert_eq!(run.concurrency, 1, "too little is spare, or tasks stall");
}

#[test]
fn the_srs_is_pinned_in_slices_where_there_is_room() {
    let mut run = Run::new();
    let workload = Workload { unpinned_srs: 40 * GIB, ..busy() };
    assert_eq!(run.tick(roomy(1), &workload), [Action::PinSrs(4 * GIB)]);
    assert_eq!(run.tick(roomy(2), &workload), []);
    assert_eq!(run.tick(roomy(11), &workload), [Action::PinSrs(4 * GIB)]);
    let waiting = Workload { waiting: 1, smallest_waiting: 28 * GIB, ..workload };
    assert_eq!(run.tick(roomy(21), &waiting), [], "what waits comes first");
    let cached = Workload { waiting: 0, file_cache: 29 * GIB, ..waiting };
    assert_eq!(run.tick(roomy(31), &cached), [], "it would crowd out what is cached");
    let none = Workload { running: vec![], unpinned_srs: GIB, ..busy() };
    assert_eq!(Run::new().tick(roomy(1), &none), [], "what the first partition takes is not known");
}

#[test]
fn idle_chunks_that_the_next_partition_has_no_use_for_are_returned() {
    let mut run = Run::new();
    let waiting = Workload {
        waiting: 1,
        smallest_waiting: 2 * GIB,
        idle_bytes: 5 * GIB,
        unpinned_srs: GIB,
        ..busy()
    };
    assert_eq!(run.tick(roomy(1), &waiting), [Action::FreeIdleChunks(3 * GIB)]);
    assert_eq!(run.tick(roomy(2), &waiting), [], "growth and this take turns");
    let idle = Workload { waiting: 0, smallest_waiting: 0, ..waiting };
    assert_eq!(run.tick(roomy(11), &idle), [Action::PinSrs(GIB)]);
}

#[test]
fn what_is_idle_is_given_up_if_that_lets_the_only_partition_run() {
    let lonely = Workload {
        running: vec![],
        waiting: 1,
        smallest_waiting: 50 * GIB,
        idle_circuits: 26 * GIB,
        ..busy()
    };
    let and_a_little = Action::EvictCircuits(22 * GIB);
    assert_eq!(Run::new().tick(roomy(1), &lonely), [and_a_little]);
    let hopeless = Workload { smallest_waiting: 57 * GIB, ..lonely };
    assert_eq!(Run::new().tick(roomy(1), &hopeless), [], "that would not be enough");
}

#[test]
fn what_can_never_fit_is_refused_with_both_numbers_and_taken_again_when_it_can() {
    let mut run = Run::new();
    let hopeless = Workload { running: vec![], waiting: 1, smallest_waiting: 50 * GIB, ..busy() };
    for at in 1..31 {
        assert_eq!(run.tick(roomy(at), &hopeless), []);
    }
    let refuse = Action::Refuse { asked: 50 * GIB, possible: 30 * GIB };
    assert_eq!(run.tick(roomy(31), &hopeless), [refuse]);
    assert_eq!(run.decision.mode, Mode::Refusing);
    for at in 32..61 {
        assert_eq!(run.tick(roomy(at), &hopeless), []);
    }
    let less = Workload { smallest_waiting: 60 * GIB, ..hopeless };
    let refuse = Action::Refuse { asked: 60 * GIB, possible: 30 * GIB };
    assert_eq!(run.tick(roomy(61), &less), [refuse], "whoever came back since is told as well");
    let idle = Workload { running: vec![], ..busy() };
    assert_eq!(run.tick(roomy(62), &idle), []);
    let more = Headroom { admissible: 110 * GIB, ..roomy(63) };
    assert_eq!(run.tick(more, &idle), [Action::Accept]);
    assert_eq!(run.decision.mode, Mode::Steady);
}

#[test]
fn a_limit_that_rises_gives_those_that_wait_another_while() {
    let mut run = Run::new();
    let hopeless = Workload { running: vec![], waiting: 1, smallest_waiting: 50 * GIB, ..busy() };
    for at in 1..31 {
        assert_eq!(run.tick(roomy(at), &hopeless), []);
    }
    // The margin is still as wide as the change before has made it.
    let raised = |at| Headroom { limit: 130 * GIB, ..roomy(at) };
    for at in 31..61 {
        assert_eq!(run.tick(raised(at), &hopeless), [], "at {at}");
        assert!(at > 57 || run.decision.ceiling == 130 * GIB, "at {at}");
    }
    assert_eq!(run.tick(raised(61), &hopeless).len(), 1);
}

#[test]
fn the_ceiling_remembers_the_best_of_the_last_while() {
    let mut run = Run::new();
    let with = |at, gib| Headroom { admissible: gib * GIB, ..roomy(at) };
    run.tick(with(1, 200), &busy());
    assert_eq!(run.decision.ceiling, 200 * GIB);
    run.tick(with(20, 90), &busy());
    assert_eq!((run.decision.ceiling, run.decision.total), (200 * GIB, 90 * GIB));
    run.tick(with(40, 90), &busy());
    assert_eq!(run.decision.ceiling, 90 * GIB);
}

/// Partitions a second that a machine gives at `n` at once.
fn settle(rate: fn(u32) -> f64, begin: u32) -> u32 {
    let set = Setpoints { max_concurrency: 20, ..Setpoints::default() };
    let mut run = Run { set, concurrency: begin, ..Run::new() };
    let mut done = 0.0;
    for at in 1..20_000 {
        done += rate(run.concurrency);
        let running = (0..u64::from(run.concurrency)).map(|id| partition(id, 1, 1)).collect();
        let workload = Workload { running, waiting: 99, finished: done as u64, ..busy() };
        run.tick(roomy(at), &workload);
    }
    run.concurrency
}

#[test]
fn concurrency_climbs_down_from_where_more_of_it_does_not_pay() {
    let knee_at_eight = |n: u32| f64::from(n.min(8)) / 10.0 - f64::from(n) * 1e-3;
    assert!((7..=9).contains(&settle(knee_at_eight, 4)), "{}", settle(knee_at_eight, 4));
    let always_pays = |n: u32| f64::from(n) / 10.0;
    assert!((19..=20).contains(&settle(always_pays, 4)), "{}", settle(always_pays, 4));
}

#[test]
fn what_paid_in_little_room_is_forgotten_when_room_comes_back() {
    let set = Setpoints { max_concurrency: 20, ..Setpoints::default() };
    let mut run = Run { set, concurrency: 8, ..Run::new() };
    let mut done = 0.0;
    let mut tick = |run: &mut Run, at, admissible, rate: f64, stalled| {
        done += rate;
        let running = (0..u64::from(run.concurrency)).map(|id| partition(id, 1, 1)).collect();
        let workload = Workload { running, waiting: 99, finished: done as u64, ..busy() };
        run.tick(Headroom { admissible: admissible * GIB, stalled, ..roomy(at) }, &workload);
    };
    for at in 1..3000 {
        // The page cache has no room beside more than three.
        let slow = run.concurrency > 3;
        let rate = if slow { 0.1 } else { f64::from(run.concurrency) / 10.0 };
        let stalled = if slow { 80.0 } else { 5.0 };
        tick(&mut run, at, 90, rate, stalled);
    }
    assert!((2..=4).contains(&run.concurrency), "{}", run.concurrency);
    for at in 3000..3300 {
        let rate = f64::from(run.concurrency) / 10.0;
        tick(&mut run, at, 180, rate, 0.0);
    }
    assert!(run.concurrency >= 19, "{}: one every ten seconds, as at the start", run.concurrency);
}

#[test]
fn where_most_time_goes_into_stalls_concurrency_falls_in_larger_steps() {
    let mut run = Run { concurrency: 16, ..Run::new() };
    run.set.max_concurrency = 16;
    let mut seen = vec![];
    for at in 1..400 {
        let running = (0..u64::from(run.concurrency)).map(|id| partition(id, 1, 1)).collect();
        let workload = Workload { running, waiting: 99, finished: at / 6, ..busy() };
        run.tick(Headroom { stalled: 80.0, ..roomy(at) }, &workload);
        seen.push(run.concurrency);
    }
    seen.dedup();
    assert_eq!(seen[..4], [16, 12, 9, 7]);
}

#[test]
fn pinned_srs_yields_to_a_partition_that_is_tried() {
    let set = Setpoints { max_concurrency: 4, ..Setpoints::default() };
    let mut run = Run { set, concurrency: 3, ..Run::new() };
    let mut ordered = vec![];
    for at in 1..200 {
        let running = (0..3).map(|id| partition(id, 20, 1)).collect();
        let workload = Workload {
            running,
            waiting: 9,
            smallest_waiting: 34 * GIB,
            idle_srs: 10 * GIB,
            finished: at / 6,
            ..busy()
        };
        ordered.extend(run.tick(roomy(at), &workload));
    }
    // 30 GiB are spare, and 2 of them stay so.
    assert_eq!(ordered[..1], [Action::UnpinSrs(6 * GIB + 1)]);
}

/// Anything that a forecaster could say.
fn any_headroom() -> impl Strategy<Value = Headroom> {
    let bytes = 0..100 * GIB;
    let figures = (bytes.clone(), bytes.clone(), bytes.clone(), bytes);
    let rest = (0..8u64, 0..3u32, prop::option::of(0..10u64), 0.0f32..100.0);
    (figures, rest).prop_map(|((residual, reserved, resident, margin), rest)| {
        let (growth, stale_ticks, left, stalled) = rest;
        let resident = resident.min(reserved);
        let limit = 100 * GIB;
        let admissible = limit.saturating_sub(residual + margin);
        Headroom {
            stale_ticks,
            limit,
            usable: limit.saturating_sub(residual + resident),
            reserved,
            resident,
            promised: reserved - resident,
            residual,
            margin,
            admissible,
            deficit: reserved.saturating_sub(admissible),
            growth: growth * GIB,
            time_to_limit: left.map(seconds),
            stalled,
            ..Headroom::default()
        }
    })
}

fn any_workload() -> impl Strategy<Value = Workload> {
    let tier = prop_oneof![Just(Shed::Freely), Just(Shed::InEmergency), Just(Shed::Never)];
    let running = prop::collection::vec((tier, 0..20u64, 0..500u64), 0..8);
    let bytes = || 0..30 * GIB;
    let idle = (bytes(), bytes(), bytes(), bytes(), bytes());
    (running, idle, 0..5u32, bytes()).prop_map(|(running, idle, waiting, smallest_waiting)| {
        let (idle_bytes, file_cache, idle_circuits, idle_srs, unpinned_srs) = idle;
        let partition = |(id, (shed, held, work))| Partition { shed, ..partition(id, held, work) };
        Workload {
            running: (0..).zip(running).map(partition).collect(),
            waiting,
            smallest_waiting,
            idle_chunks: 1,
            idle_bytes,
            file_cache,
            idle_circuits,
            idle_srs,
            unpinned_srs,
            ..busy()
        }
    })
}

proptest! {
    #[test]
    fn whatever_happens_the_rules_hold(
        past in prop::collection::vec((any_headroom(), any_workload()), 1..60),
    ) {
        let mut run = Run::new();
        for (at, (headroom, workload)) in (1..).zip(past) {
            let headroom = Headroom { sequence: at, at: seconds(at), ..headroom };
            let actions = run.tick(headroom, &workload);
            let emergency = run.decision.mode == Mode::Emergency;
            prop_assert!(run.concurrency >= 1);
            prop_assert_eq!(run.decision.total, headroom.admissible);
            prop_assert!(run.decision.ceiling >= run.decision.total);
            let steps = actions.iter().filter(|a| {
                !matches!(a, Action::Refuse { .. } | Action::Accept)
            });
            prop_assert!(emergency || steps.clone().count() <= 1, "{:?}", actions);
            let near = headroom.time_to_limit.is_some_and(|left| left < run.set.reaction);
            let blind = |step: &Action| match step {
                Action::Shed(_) => false,
                step => near || *step == Action::PurgeAllocator,
            };
            prop_assert!(headroom.stale_ticks == 0 || steps.clone().all(blind), "{:?}", actions);
            let mut left = workload.running.len();
            for action in &actions {
                if let Action::Shed(id) = action {
                    let victim = workload.running.iter().find(|p| p.id == *id);
                    let tier = victim.map(|p| p.shed);
                    prop_assert!(tier == Some(Shed::Freely)
                        || emergency && tier == Some(Shed::InEmergency));
                    left -= 1;
                    prop_assert!(left >= 1 || emergency, "the last one was shed");
                }
            }
        }
    }

    /// The same state, and then less room: no more is admitted, and no more may run.
    #[test]
    fn less_headroom_never_admits_more(
        past in prop::collection::vec((any_headroom(), any_workload()), 0..20),
        now in any_headroom(), workload in any_workload(), less in 0..50 * GIB,
    ) {
        let mut run = Run::new();
        let mut at = 0;
        for (headroom, workload) in past {
            at += 1;
            run.tick(Headroom { sequence: at, at: seconds(at), ..headroom }, &workload);
        }
        let now = Headroom { sequence: at + 1, at: seconds(at + 1), ..now };
        let admissible = now.admissible.saturating_sub(less);
        let deficit = now.reserved.saturating_sub(admissible);
        let usable = now.usable.saturating_sub(less);
        let tight = Headroom { admissible, usable, deficit, ..now };
        let mut other = Run { state: run.state.clone(), set: run.set.clone(), ..run };
        run.tick(now, &workload);
        other.tick(tight, &workload);
        prop_assert!(other.decision.total <= run.decision.total);
        prop_assert!(other.decision.ceiling <= run.decision.ceiling);
        prop_assert!(other.concurrency <= run.concurrency);
    }
}
