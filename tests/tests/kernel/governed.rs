//! The promise itself: a plant that the kernel kills when its budget is a guess lives when it is
//! governed. Both halves are in each test, on the same plant, limit and kernel.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use cuzk_tests::cgroup::Cgroup;
use cuzk_tests::cgroup_or_skip;

use crate::plant::{start, Regime, Running, Work};
use crate::{disk, MIB};

const LIMIT: u64 = 160 * MIB;
/// What operators keep free of a limit, scaled down from the field's 10 GiB of 384.
const GUESS: u64 = 8 * MIB;

/// The kernel killed it for want of memory, and nothing else.
fn assert_killed(running: Running, leaf: &Cgroup) {
    let (status, report) = running.end();
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}, {report:?}");
    assert_eq!(leaf.kills().unwrap(), 1);
}

/// It worked everything off, more than one partition at a time, and nothing was killed.
fn assert_held(running: Running, leaf: &Cgroup) {
    let (status, report) = running.end();
    assert!(status.success(), "{status}, {report:?}, kills {:?}", leaf.kills());
    let report = report.unwrap();
    let (most, shed) = (&report["most_at_once"], &report["shed"]);
    println!("governed: at most {most} at once, {shed} shed");
    assert_eq!(report["finished"], 10, "{report}");
    assert!(report["most_at_once"].as_u64() > Some(1), "{report}");
    assert_eq!(leaf.kills().unwrap(), 0);
}

fn both_halves(name: &str, work: &Work) {
    for regime in [Regime::Static(LIMIT - GUESS), Regime::Governed] {
        let leaf = cgroup_or_skip!(name);
        leaf.limit(LIMIT).unwrap();
        let running = start(&leaf, regime, work);
        match regime {
            Regime::Static(_) => assert_killed(running, &leaf),
            Regime::Governed => assert_held(running, &leaf),
        }
    }
}

#[test]
fn governed_it_lives_below_its_own_limit() {
    both_halves("leaf", &Work::default());
}

#[test]
fn governed_it_lives_with_shmem_that_the_ledger_does_not_know() {
    both_halves("shmem", &Work { shmem: 48 * MIB, ..Work::default() });
}

#[test]
fn governed_it_lives_and_works_in_parallel_while_page_cache_fills_the_limit() {
    let file = disk().join(format!("governed-{}", std::process::id()));
    write(&file, 192 * MIB);
    both_halves("page-cache", &Work { file: Some(file.clone()), ..Work::default() });
    std::fs::remove_file(file).unwrap();
}

#[test]
fn governed_it_lives_below_an_ancestors_limit() {
    for regime in [Regime::Static(2 * LIMIT - GUESS), Regime::Governed] {
        let parent = cgroup_or_skip!("ancestor");
        parent.limit(LIMIT).unwrap();
        let leaf = parent.child("leaf").unwrap();
        leaf.limit(2 * LIMIT).unwrap();
        let running = start(&leaf, regime, &Work::default());
        match regime {
            Regime::Static(_) => assert_killed(running, &leaf),
            Regime::Governed => assert_held(running, &leaf),
        }
    }
}

#[test]
fn governed_it_lives_though_its_limit_is_lowered_while_it_runs() {
    for regime in [Regime::Static(2 * LIMIT - GUESS), Regime::Governed] {
        let leaf = cgroup_or_skip!("lowered");
        leaf.limit(2 * LIMIT).unwrap();
        let mut running = start(&leaf, regime, &Work::default());
        let lowered = leaf.lower(2 * LIMIT, LIMIT, || running.has_ended());
        assert!(lowered.unwrap() || running.has_ended(), "the limit did not come down");
        match regime {
            Regime::Static(_) => assert_killed(running, &leaf),
            Regime::Governed => assert_held(running, &leaf),
        }
    }
}

fn write(path: &PathBuf, bytes: u64) {
    std::fs::write(path, vec![3; bytes as usize]).unwrap();
}
