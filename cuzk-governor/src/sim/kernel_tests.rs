//! The rules of the simulated kernel, one a test.

use super::*;

const GIB: u64 = 1 << 30;
const STEP: Duration = Duration::from_millis(250);

/// A host of 100 GiB with a group of 20 GiB on it.
fn kernel() -> (Kernel, GroupId) {
    let mut kernel =
        Kernel::new(Machine { total: 100 * GIB, reclaim_per_s: 4 * GIB, swap: 0, swap_per_s: 0 });
    let group = kernel.add_group(kernel.host(), 20 * GIB);
    kernel.advance(STEP);
    (kernel, group)
}

#[test]
fn what_is_charged_counts_at_every_level_with_its_page_tables() {
    let (mut kernel, group) = kernel();
    let pid = kernel.spawn(group, 0);
    assert_eq!(kernel.charge(pid, Class::Anon, GIB), GIB);
    let expected = GIB + GIB / 512;
    assert_eq!(kernel.view(group).usage, expected);
    assert_eq!(kernel.view(kernel.host()).usage, expected);
}

#[test]
fn driver_memory_counts_on_the_host_and_in_no_group() {
    let (mut kernel, group) = kernel();
    let pid = kernel.spawn(group, 0);
    kernel.charge(pid, Class::Driver, GIB);
    assert_eq!((kernel.view(group).usage, kernel.view(kernel.host()).usage), (0, GIB));
}

#[test]
fn page_cache_makes_room_slowly_and_pressure_rises_and_nothing_is_killed() {
    let (mut kernel, group) = kernel();
    let (pid, file) = (kernel.spawn(group, 0), kernel.add_file(group));
    kernel.read(file, 20 * GIB);
    assert_eq!(kernel.charge(pid, Class::Anon, 4 * GIB), GIB, "what a step can reclaim");
    kernel.advance(STEP);
    assert!(kernel.view(group).pressure.some_avg10 > 0.0);
    assert_eq!(kernel.kills(), []);
}

#[test]
fn shared_memory_is_never_reclaimed_and_the_limit_kills() {
    let (mut kernel, group) = kernel();
    let pid = kernel.spawn(group, 0);
    kernel.charge(pid, Class::Shmem, 19 * GIB);
    kernel.charge(pid, Class::Shmem, 2 * GIB);
    assert!(!kernel.alive(pid));
    assert_eq!(kernel.view(group).oom_kills, 1);
    assert_eq!(kernel.view(group).usage, 0);
}

#[test]
fn the_limit_of_an_ancestor_binds() {
    let (mut kernel, group) = kernel();
    let inner = kernel.add_group(group, UNLIMITED);
    let pid = kernel.spawn(inner, 0);
    kernel.charge(pid, Class::Anon, 21 * GIB);
    assert_eq!(kernel.kills()[0].level, group);
}

#[test]
fn the_largest_is_killed_unless_its_adjustment_says_otherwise() {
    for (adjustment, victim) in [(0, 0), (-800, 1), (-1000, 1)] {
        let (mut kernel, group) = kernel();
        let large = kernel.spawn(group, adjustment);
        let small = kernel.spawn(group, 0);
        kernel.charge(large, Class::Anon, 12 * GIB);
        kernel.charge(small, Class::Anon, 7 * GIB);
        kernel.charge(small, Class::Anon, 2 * GIB);
        assert_eq!(kernel.kills()[0].victim, [large, small][victim], "{adjustment}");
    }
}

#[test]
fn a_limit_cut_below_usage_reclaims_and_then_kills() {
    let (mut kernel, group) = kernel();
    let (pid, file) = (kernel.spawn(group, 0), kernel.add_file(group));
    kernel.charge(pid, Class::Anon, 10 * GIB);
    kernel.read(file, 2 * GIB);
    kernel.set_max(group, 9 * GIB);
    kernel.advance(STEP);
    assert!(kernel.alive(pid), "the cache goes first");
    (0..8).for_each(|_| kernel.advance(STEP));
    assert!(!kernel.alive(pid));
}

#[test]
fn freed_memory_counts_until_its_delay_is_over_or_a_purge() {
    let (mut kernel, group) = kernel();
    let pid = kernel.spawn(group, 0);
    kernel.charge(pid, Class::Anon, 4 * GIB);
    kernel.release(pid, Class::Anon, 2 * GIB, Duration::from_secs(60));
    kernel.advance(STEP);
    assert_eq!((kernel.resident(pid).anon, kernel.leaving(pid)), (4 * GIB, 2 * GIB));
    kernel.purge(pid, STEP);
    kernel.advance(STEP);
    assert_eq!((kernel.resident(pid).anon, kernel.leaving(pid)), (2 * GIB, 0));
}

#[test]
fn above_high_an_allocator_is_throttled_and_not_killed() {
    let (mut kernel, group) = kernel();
    kernel.set_high(group, 10 * GIB);
    let pid = kernel.spawn(group, 0);
    kernel.charge(pid, Class::Anon, 9 * GIB);
    assert!(kernel.charge(pid, Class::Anon, 4 * GIB) < 2 * GIB);
    kernel.advance(STEP);
    assert!(kernel.alive(pid) && kernel.view(group).pressure.some_avg10 > 0.0);
}

#[test]
fn swap_saves_slowly_before_the_kernel_kills() {
    let machine =
        Machine { total: 10 * GIB, reclaim_per_s: GIB, swap: 2 * GIB, swap_per_s: 4 * GIB };
    let mut kernel = Kernel::new(machine);
    let pid = kernel.spawn(kernel.host(), 0);
    kernel.advance(STEP);
    kernel.charge(pid, Class::Anon, 9 * GIB);
    kernel.charge(pid, Class::Anon, 2 * GIB);
    assert!(kernel.alive(pid));
    assert!(kernel.swapped_share(pid) > 0.0);
}

#[test]
fn what_was_swapped_out_comes_back_once_there_is_room() {
    let machine =
        Machine { total: 10 * GIB, reclaim_per_s: GIB, swap: 2 * GIB, swap_per_s: 4 * GIB };
    let mut kernel = Kernel::new(machine);
    let (one, other) = (kernel.spawn(kernel.host(), 0), kernel.spawn(kernel.host(), 0));
    kernel.advance(STEP);
    kernel.charge(one, Class::Anon, 6 * GIB);
    kernel.charge(other, Class::Anon, 5 * GIB);
    assert!(kernel.swapped_share(one) > 0.0);
    kernel.end(other);
    (0..4).for_each(|_| kernel.advance(STEP));
    assert_eq!((kernel.swapped_share(one), kernel.resident(one).anon), (0.0, 6 * GIB));
}

#[test]
fn what_was_swapped_out_comes_back_in_place_of_page_cache() {
    let machine =
        Machine { total: 10 * GIB, reclaim_per_s: GIB, swap: 2 * GIB, swap_per_s: 4 * GIB };
    let mut kernel = Kernel::new(machine);
    let (one, other) = (kernel.spawn(kernel.host(), 0), kernel.spawn(kernel.host(), 0));
    kernel.advance(STEP);
    kernel.charge(one, Class::Anon, 6 * GIB);
    kernel.charge(other, Class::Anon, 5 * GIB);
    assert!(kernel.swapped_share(one) > 0.0);
    let file = kernel.add_file(kernel.host());
    kernel.end(other);
    assert!(kernel.read(file, 5 * GIB) > 4 * GIB);
    (0..8).for_each(|_| kernel.advance(STEP));
    assert_eq!((kernel.swapped_share(one), kernel.resident(one).anon), (0.0, 6 * GIB));
}

#[test]
fn no_more_of_a_file_is_dropped_than_was_asked_for() {
    let (mut kernel, group) = kernel();
    let file = kernel.add_file(group);
    kernel.advance(STEP);
    let cached = kernel.read(file, 3 * GIB);
    assert_eq!(kernel.drop_cache(file, GIB), GIB);
    assert_eq!((kernel.cached(file), kernel.view(group).file), (cached - GIB, cached - GIB));
    assert_eq!(kernel.drop_cache(file, u64::MAX), cached - GIB);
}
