use proptest::prelude::*;

use super::*;
use crate::sensor::{Events, Host, Level, Pressure, Resident, Stall};

const GIB: u64 = 1 << 30;

/// A leaf limited to 100 GiB below a root without limit, on a machine of 1 TiB.
fn sample(sequence: u64, usage: u64) -> Sample {
    let level = |path: &str, limit, usage| Level {
        path: path.into(),
        limit,
        usage,
        peak: usage,
        reclaimable: 0,
    };
    Sample {
        sequence,
        at: Duration::from_secs(sequence),
        levels: vec![level("/leaf", Some(100 * GIB), usage), level("/", None, usage)],
        host: Host { total: 1024 * GIB, available: 1024 * GIB - usage },
        ..Sample::default()
    }
}

fn ledger(reserved: u64, resident: u64) -> Usage {
    Usage { total: 0, reserved, resident, waiting: 0 }
}

/// Without a margin of any kind but the smallest, and without patience.
fn bare() -> Setpoints {
    Setpoints { margin_floor: 0.0, margin_start: 0.0, trust_ticks: 1, ..Setpoints::default() }
}

/// Shows usages tick by tick, with nothing in the ledger; the last headroom.
fn watch(set: &Setpoints, usages: impl IntoIterator<Item = u64>) -> Headroom {
    let mut forecaster = Forecaster::new();
    let nothing = ledger(0, 0);
    let observe = |(at, usage)| forecaster.observe(&sample(at, usage), &nothing, set);
    (1..).zip(usages).map(observe).last().unwrap_or_default()
}

#[test]
fn the_figures_add_up_by_hand() {
    let headroom = Forecaster::new().observe(
        &sample(1, 70 * GIB),
        &ledger(80 * GIB, 60 * GIB),
        &Setpoints { margin_floor: 0.01, margin_start: 0.0, ..Setpoints::default() },
    );
    let margin = GIB + SMALLEST_MARGIN;
    assert_eq!(headroom.bound, Bound::Level(0));
    assert_eq!((headroom.limit, headroom.usable), (100 * GIB, 30 * GIB));
    assert_eq!((headroom.promised, headroom.residual), (20 * GIB, 10 * GIB));
    assert_eq!((headroom.margin, headroom.admissible), (margin, 90 * GIB - margin));
    assert_eq!(headroom.deficit, 0);
    assert_eq!(headroom.admissible, headroom.resident + headroom.usable - headroom.margin);
}

#[test]
fn an_ancestor_with_less_left_binds_though_its_limit_is_larger() {
    let mut tight = sample(1, 10 * GIB);
    tight.levels[1].limit = Some(200 * GIB);
    tight.levels[1].usage = 195 * GIB;
    let headroom = Forecaster::new().observe(&tight, &ledger(0, 0), &bare());
    assert_eq!((headroom.bound, headroom.usable), (Bound::Level(1), 5 * GIB));
}

#[test]
fn the_machine_binds_where_no_level_does() {
    let mut free = sample(1, 10 * GIB);
    free.levels[0].limit = None;
    free.host.available = 50 * GIB;
    let set = Setpoints { host_reserve: 0.0, ..bare() };
    let headroom = Forecaster::new().observe(&free, &ledger(0, 0), &set);
    assert_eq!((headroom.bound, headroom.usable), (Bound::Host, 50 * GIB));
}

#[test]
fn the_operators_own_limit_binds_with_and_without_a_cgroup() {
    let set = Setpoints { limit: Some(20 * GIB), ..bare() };
    let mut plain = sample(1, 15 * GIB);
    let headroom = Forecaster::new().observe(&plain, &ledger(0, 0), &set);
    assert_eq!((headroom.bound, headroom.usable), (Bound::Operator, 5 * GIB));
    plain.levels.clear();
    plain.own = Resident { anon: 10 * GIB, shmem: 7 * GIB, ..Resident::default() };
    let headroom = Forecaster::new().observe(&plain, &ledger(0, 0), &set);
    assert_eq!((headroom.bound, headroom.usable), (Bound::Operator, 3 * GIB));
}

#[test]
fn page_cache_is_not_usage() {
    let mut cached = sample(1, 100 * GIB);
    cached.levels[0].reclaimable = 90 * GIB;
    let headroom = Forecaster::new().observe(&cached, &ledger(0, 0), &bare());
    assert_eq!(headroom.usable, 90 * GIB);
}

#[test]
fn before_the_first_reading_nothing_is_admitted() {
    let headroom = Forecaster::new().observe(&Sample::default(), &ledger(0, 0), &bare());
    assert_eq!((headroom.admissible, headroom.stale_ticks), (0, 1));
}

#[test]
fn a_fall_of_the_residual_is_believed_late_and_a_rise_at_once() {
    let set = Setpoints { trust_ticks: 3, ..bare() };
    let usable = |gibs: &[u64]| watch(&set, gibs.iter().map(|gib| gib * GIB)).usable / GIB;
    assert_eq!(usable(&[50, 60]), 40);
    assert_eq!(usable(&[60, 0]), 40, "a sensor that suddenly says nothing is used lies");
    assert_eq!(usable(&[60, 0, 0]), 40);
    assert_eq!(usable(&[60, 0, 0, 0]), 100);
}

#[test]
fn a_raised_limit_is_believed_late_and_a_lowered_one_at_once() {
    let set = Setpoints { trust_ticks: 2, ..bare() };
    let limits = |limits: &[u64]| {
        let mut forecaster = Forecaster::new();
        let mut last = Headroom::default();
        for (at, &limit) in (1..).zip(limits) {
            let mut sample = sample(at, 0);
            sample.levels[0].limit = Some(limit);
            last = forecaster.observe(&sample, &ledger(0, 0), &set);
        }
        last.limit
    };
    assert_eq!(limits(&[100, 50]), 50);
    assert_eq!(limits(&[50, 100]), 50);
    assert_eq!(limits(&[50, 100, 100]), 100);
}

#[test]
fn usage_below_what_the_process_itself_holds_is_not_believed() {
    let mut lying = sample(1, 0);
    lying.own = Resident { anon: 30 * GIB, shmem: 20 * GIB, file: 90 * GIB, locked: 9 * GIB };
    let headroom = Forecaster::new().observe(&lying, &ledger(0, 0), &bare());
    assert_eq!(headroom.usable, 50 * GIB);
    let headroom = Forecaster::new().observe(&sample(1, 0), &ledger(60 * GIB, 60 * GIB), &bare());
    assert_eq!(headroom.usable, 40 * GIB, "nor below what the ledger knows is resident");
}

#[test]
fn one_jump_is_covered_once_and_a_steady_leak_for_the_whole_reaction() {
    let set = Setpoints { reaction: Duration::from_secs(4), margin_quantile: 1.0, ..bare() };
    let jump = (0..100).map(|tick| if tick < 50 { 0 } else { GIB });
    assert_eq!(watch(&set, jump).margin, GIB);
    let leak = (0..80).map(|tick| tick * GIB);
    assert_eq!(watch(&set, leak).margin, 4 * GIB);
}

#[test]
fn what_the_ledger_foretold_is_no_error_and_a_late_fall_neither() {
    let set = bare();
    let mut forecaster = Forecaster::new();
    let same = [(10, 10); 5];
    let steps = same.into_iter().chain([(40, 40), (40, 20), (20, 20), (50, 50)]);
    for (at, (usage, resident)) in (1..).zip(steps) {
        let ledger = ledger(60 * GIB, resident * GIB);
        let headroom = forecaster.observe(&sample(at, usage * GIB), &ledger, &set);
        assert_eq!(headroom.margin, SMALLEST_MARGIN);
        assert_eq!((headroom.growth, headroom.time_to_limit), (0, None), "tick {at}");
    }
}

#[test]
fn a_peak_between_samples_is_learned_but_cache_that_came_and_went_is_not() {
    let set = Setpoints { margin_quantile: 1.0, reaction: Duration::from_secs(1), ..bare() };
    let margin = |peak: u64, reclaimable: [u64; 2]| {
        let mut forecaster = Forecaster::new();
        let mut last = Headroom::default();
        for (at, reclaimable) in (1..).zip(reclaimable) {
            let mut sample = sample(at, 10 * GIB + reclaimable * GIB);
            sample.levels[0].reclaimable = reclaimable * GIB;
            sample.levels[0].peak = peak * GIB;
            last = forecaster.observe(&sample, &ledger(0, 0), &set);
        }
        last.margin
    };
    assert_eq!(margin(13, [0, 0]), 3 * GIB);
    assert_eq!(margin(90, [80, 0]), SMALLEST_MARGIN);
}

#[test]
fn the_starting_margin_fades_as_errors_are_learned() {
    let set = Setpoints { margin_start: 0.1, warmup_ticks: 10, ..bare() };
    let margin = |ticks| watch(&set, std::iter::repeat_n(0, ticks)).margin;
    assert_eq!(margin(1), 10 * GIB);
    assert_eq!(margin(6), 5 * GIB);
    assert_eq!(margin(11), SMALLEST_MARGIN);
}

#[test]
fn early_samples_are_part_of_their_tick() {
    let set = Setpoints { margin_quantile: 1.0, reaction: Duration::from_secs(1), ..bare() };
    let mut forecaster = Forecaster::new();
    let mut last = Headroom::default();
    for step in 0..9 {
        let mut sample = sample(1 + step, step * GIB);
        sample.at = Duration::from_millis(250 * step);
        last = forecaster.observe(&sample, &ledger(0, 0), &set);
    }
    assert_eq!(last.margin, 4 * GIB);
}

#[test]
fn what_came_within_a_moment_is_no_flood() {
    let mut forecaster = Forecaster::new();
    let mut growth = |sequence, milliseconds, gibs, stalled_us| {
        let mut sample = sample(sequence, gibs * GIB);
        sample.at = Duration::from_millis(milliseconds);
        let some = Stall { total_us: stalled_us, ..Stall::default() };
        sample.pressure = Some(Pressure { some, ..Pressure::default() });
        let headroom = forecaster.observe(&sample, &ledger(0, 0), &bare());
        (headroom.growth / GIB, headroom.stalled)
    };
    growth(1, 1000, 10, 0);
    growth(2, 2000, 10, 0);
    assert_eq!(growth(3, 2001, 11, 1000), (4, 0.4));
    assert_eq!(growth(4, 2500, 12, 1000).0, 4, "two within half a second");
    assert_eq!(growth(5, 3000, 12, 1000).0, 2, "of the whole tick");
}

#[test]
fn a_silent_sensor_makes_the_margin_grow_and_time_go_on() {
    let set = bare();
    let mut forecaster = Forecaster::new();
    let reading = sample(1, 10 * GIB);
    for stale in 0..5 {
        let headroom = forecaster.observe(&reading, &ledger(0, 0), &set);
        assert_eq!(headroom.stale_ticks, stale);
        assert_eq!(headroom.margin, SMALLEST_MARGIN * (1 + u64::from(stale)));
        assert_eq!(headroom.at, Duration::from_secs(1 + u64::from(stale)));
    }
    let headroom = forecaster.observe(&sample(7, 10 * GIB), &ledger(0, 0), &set);
    assert_eq!((headroom.stale_ticks, headroom.margin), (0, SMALLEST_MARGIN));
}

#[test]
fn time_to_limit_counts_unforetold_growth_and_promises_that_do_not_fit() {
    let headroom = watch(&bare(), [10 * GIB, 12 * GIB]);
    assert_eq!(headroom.growth, 2 * GIB);
    assert_eq!(headroom.time_to_limit, Some(Duration::from_secs(44)));
    let foretold = |reserved| {
        let mut forecaster = Forecaster::new();
        forecaster.observe(&sample(1, 50 * GIB), &ledger(reserved, 50 * GIB), &bare());
        forecaster.observe(&sample(2, 60 * GIB), &ledger(reserved, 60 * GIB), &bare())
    };
    assert_eq!(foretold(100 * GIB).time_to_limit, None);
    assert_eq!(foretold(120 * GIB).time_to_limit, Some(Duration::from_secs(4)));
}

#[test]
fn silence_brings_the_limit_nearer() {
    let mut forecaster = Forecaster::new();
    forecaster.observe(&sample(1, 10 * GIB), &ledger(0, 0), &bare());
    let last = sample(2, 20 * GIB);
    let left = [8, 7, 6].map(|seconds| Some(Duration::from_secs(seconds)));
    for left in left {
        let headroom = forecaster.observe(&last, &ledger(0, 0), &bare());
        assert_eq!(headroom.time_to_limit, left);
    }
}

#[test]
fn growth_that_comes_in_bursts_counts_over_the_reaction_and_a_spike_does_not() {
    let set = Setpoints { reaction: Duration::from_secs(8), ..bare() };
    let growth = |usage: fn(u64) -> u64, ticks| {
        watch(&set, (0..ticks).map(|tick| usage(tick) * GIB)).growth / (GIB / 100)
    };
    let bursts = |tick| 16 * (tick / 8);
    assert_eq!(growth(bursts, 32), 200, "none was in the last seven ticks");
    let spike = |tick| if tick == 24 { 16 } else { 0 };
    assert!(growth(spike, 32) < 13, "what smoothing leaves of it");
}

#[test]
fn a_deficit_is_all_that_is_lacking_though_it_is_more_than_was_reserved() {
    let set = bare();
    let observe = |usage, reserved| {
        Forecaster::new().observe(&sample(1, usage * GIB), &ledger(reserved * GIB, 0), &set)
    };
    let full = observe(110, 5);
    assert_eq!((full.admissible, full.deficit), (0, 15 * GIB + SMALLEST_MARGIN));
    assert_eq!(observe(90, 5).deficit, 0);
    assert_eq!(observe(96, 5).deficit, GIB + SMALLEST_MARGIN);
}

#[test]
fn stalls_and_kills_are_counted_since_the_last_sample() {
    let mut forecaster = Forecaster::new();
    let mut reading = sample(1, 0);
    let stall =
        |total_us| Some(Pressure { some: Stall { total_us, avg10: 0.0 }, full: Stall::default() });
    reading.pressure = stall(5_000_000);
    reading.events = Events { oom_kill: 3, ..Events::default() };
    let first = forecaster.observe(&reading, &ledger(0, 0), &bare());
    assert_eq!((first.stalled, first.kills), (0.0, 0), "what was before us is not our doing");
    reading.sequence = 2;
    reading.at += Duration::from_secs(2);
    reading.pressure = stall(5_500_000);
    reading.events.oom_kill = 4;
    let second = forecaster.observe(&reading, &ledger(0, 0), &bare());
    assert_eq!((second.stalled, second.kills), (25.0, 1));
    assert_eq!(forecaster.observe(&reading, &ledger(0, 0), &bare()).kills, 0);
}

#[test]
fn the_floor_stays_a_share_of_the_largest_limit_unless_that_is_long_past() {
    let set = Setpoints { margin_floor: 0.1, ..bare() };
    let mut forecaster = Forecaster::new();
    let mut margin = |sequence, limit: u64| {
        let mut reading = sample(sequence, 0);
        reading.levels[0].limit = Some(limit * GIB);
        forecaster.observe(&reading, &ledger(0, 0), &set).margin - (16 << 20)
    };
    assert_eq!(margin(1, 80), 8 * GIB);
    assert_eq!(margin(2, 40), 8 * GIB, "nobody grows more slowly for it");
    assert_eq!(margin(3, 10), 4 * GIB, "of four times the present one");
}

proptest! {
    /// The same past, and then less room in one way or another: never more is admitted.
    #[test]
    fn less_headroom_never_admits_more(
        past in prop::collection::vec(0..90u64, 1..40),
        usage in 0..100u64, more in 0..50u64, less in 0..100u64, resident in 0..60u64,
    ) {
        let mut forecaster = Forecaster::new();
        let set = Setpoints::default();
        let ledger = ledger(70 * GIB, resident * GIB);
        let mut at = 0;
        for gib in past {
            at += 1;
            forecaster.observe(&sample(at, gib * GIB), &ledger, &set);
        }
        let now = sample(at + 1, usage * GIB);
        let mut fuller = sample(at + 1, (usage + more) * GIB);
        let open = forecaster.clone().observe(&now, &ledger, &set);
        let tight = forecaster.clone().observe(&fuller, &ledger, &set);
        prop_assert!(tight.admissible <= open.admissible);
        prop_assert!(tight.usable <= open.usable);
        fuller.levels[0].limit = Some((100 - less) * GIB);
        let lowered = forecaster.observe(&fuller, &ledger, &set);
        prop_assert!(lowered.admissible <= tight.admissible);
        prop_assert!(lowered.admissible <= lowered.limit);
    }
}

/// Mostly sensible numbers, and some that no machine has.
fn any_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..200 * GIB, any::<u64>(), (0..3u64).prop_map(|less| u64::MAX - less)]
}

prop_compose! {
    fn any_sample()(
        figures in prop::array::uniform12(any_bytes()), limited in any::<bool>(),
    ) -> Sample {
        let [usage, peak, reclaimable, limit, total, available, anon, shmem, kills, total_us, free, in_use] = figures;
        let some = Stall { total_us, ..Stall::default() };
        let mut sample = sample(0, 0);
        sample.levels[0] = Level { limit: limited.then_some(limit),
            usage,
            peak, reclaimable, ..sample.levels[0].clone() };
        sample.host = Host { total, available };
        sample.own = Resident { anon, shmem, ..Resident::default() };
        sample.events = Events { oom_kill: kills, ..Events::default() };
        sample.pressure = Some(Pressure { some, ..Pressure::default() });
        sample.allocator = crate::sensor::Allocator { free, in_use };
        sample
    }
}

proptest! {
    /// Whatever sensors say, ledger and plant being sane, the governor goes on.
    #[test]
    fn no_figure_of_a_kernel_ends_the_governor(
        samples in prop::collection::vec((any_sample(), 0..200u64, 0..100u64), 1..30),
        milliseconds in prop::collection::vec(0..3000u64, 30),
    ) {
        let (mut forecaster, mut state) = (Forecaster::new(), crate::policy::State::new());
        let set = Setpoints::default();
        let mut actions = Vec::new();
        let mut at = Duration::ZERO;
        for ((sequence, (mut sample, reserved, resident)), more) in (1..).zip(samples).zip(milliseconds) {
            at += Duration::from_millis(more);
            (sample.sequence, sample.at) = (sequence, at);
            let ledger = ledger(reserved * GIB, resident.min(reserved) * GIB);
            let headroom = forecaster.observe(&sample, &ledger, &set);
            let partition = crate::policy::Partition {
                id: sequence,
                priority: crate::budget::Priority::Normal,
                shed: crate::policy::Shed::Freely,
                held: resident * GIB,
                to_come: GIB,
                work: Duration::from_secs(1),
            };
            let workload = crate::policy::Workload {
                running: vec![partition; (sequence % 3) as usize],
                waiting: 2,
                smallest_waiting: 10 * GIB,
                idle_bytes: GIB,
                idle_srs: GIB,
                ..crate::policy::Workload::default()
            };
            crate::policy::decide(&mut state, &headroom, &workload, &set, &mut actions);
        }
    }
}

#[test]
fn what_the_ledger_gives_up_in_silence_is_not_believed_to_have_left() {
    let mut forecaster = Forecaster::new();
    let seen = sample(1, 70 * GIB);
    forecaster.observe(&seen, &ledger(60 * GIB, 60 * GIB), &bare());
    let silent = forecaster.observe(&seen, &ledger(40 * GIB, 40 * GIB), &bare());
    assert_eq!((silent.residual, silent.usable), (30 * GIB, 30 * GIB));
    let fresh = forecaster.observe(&sample(2, 50 * GIB), &ledger(40 * GIB, 40 * GIB), &bare());
    assert_eq!((fresh.residual, fresh.usable), (10 * GIB, 50 * GIB));
}
