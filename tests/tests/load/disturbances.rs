//! One thing that goes wrong, a test. Sizes are small, since an emulated kernel is slow.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::Duration;

use cuzk_tests::cgroup::{Cgroup, Version};
use cuzk_tests::cgroup_or_skip;
use cuzk_tests::load::{End, Job, Load, Neighbour, Process, Role};
use cuzk_tests::memory;
use cuzk_tests::scripted::{Script, CHUNK};
use cuzk_tests::vm;

use crate::{governed, held, start, MIB};

/// 23 MiB, one of which no ledger knows of.
const SCRIPT: Script = Script {
    partitions: 4,
    chunks: 5,
    heap: 2 * MIB,
    hidden: MIB,
    estimate: 1.0,
    synthesis: Duration::from_millis(1000),
    device: Duration::from_millis(100),
    contention: 0.0,
};
const PARTITION: u64 = SCRIPT.chunks as u64 * CHUNK + SCRIPT.heap + SCRIPT.hidden;
/// As on a GPU node: 3.2 partitions.
const SRS: u64 = PARTITION * 16 / 5;
const HIDDEN: u64 = 8 * MIB;
/// Some four partitions at once.
const LIMIT: u64 = 208 * MIB;
/// Until partitions are at work.
const UNDER_WAY: Duration = Duration::from_millis(1500);

fn jobs() -> Vec<Job> {
    // An emulated kernel takes three times as long for them.
    let count = if vm::is_inside() { 3 } else { 6 };
    (0..count).map(|i| Job::scripted(format!("job-{i}"), SCRIPT)).collect()
}

fn under_way(cgroup: &Cgroup, change: impl FnOnce(&mut Load)) -> Process {
    let process = governed(cgroup, jobs(), |load| {
        (load.srs, load.hidden) = (SRS, HIDDEN);
        change(load);
    });
    thread::sleep(UNDER_WAY);
    process
}

fn end(process: Process, cgroup: &Cgroup) -> End {
    let end = held(process, cgroup).end.unwrap();
    assert!(end.most_at_once > 1, "{end:?}");
    end
}

#[test]
fn a_limit_lowered_by_30_percent_and_raised_again_kills_and_loses_nothing() {
    let cgroup = cgroup_or_skip!("lowered");
    cgroup.limit(LIMIT).unwrap();
    let process = under_way(&cgroup, |_| {});
    let low = LIMIT * 7 / 10 / MIB * MIB;
    assert!(cgroup.lower(LIMIT, low, || false).unwrap(), "it does not come down");
    thread::sleep(Duration::from_secs(1));
    cgroup.limit(LIMIT).unwrap();
    assert_eq!(end(process, &cgroup).least_limit, low);
}

#[test]
fn a_neighbour_that_takes_a_quarter_and_frees_it_kills_and_loses_nothing() {
    let cgroup = cgroup_or_skip!("neighbour");
    cgroup.limit(LIMIT).unwrap();
    let process = under_way(&cgroup, |_| {});
    let neighbour = Neighbour {
        bytes: LIMIT / 4,
        grows: Duration::from_millis(1500),
        stays: Duration::from_secs(2),
    };
    let neighbour = start(&cgroup, &Role::Neighbour(neighbour));
    end(process, &cgroup);
    assert!(neighbour.finish(crate::PATIENCE).unwrap().status.success());
}

#[test]
fn a_leak_of_a_hundredth_of_the_limit_a_second_kills_and_loses_nothing() {
    let cgroup = cgroup_or_skip!("leak");
    cgroup.limit(LIMIT).unwrap();
    let process = under_way(&cgroup, |load| load.leak_per_second = LIMIT / 100);
    end(process, &cgroup);
}

#[test]
fn a_file_larger_than_the_limit_read_through_the_page_cache_kills_and_loses_nothing() {
    let cgroup = cgroup_or_skip!("page-cache");
    cgroup.limit(LIMIT).unwrap();
    let file = vm::disk(env!("CARGO_TARGET_TMPDIR")).join(format!("load-{}", std::process::id()));
    write(&file, LIMIT + 32 * MIB);
    let process = under_way(&cgroup, |load| load.reads = Some(file.clone()));
    end(process, &cgroup);
    std::fs::remove_file(file).unwrap();
    assert!(cgroup.peak().unwrap() > LIMIT - MIB, "it did not fill the limit");
}

#[test]
fn memory_high_below_max_is_taken_for_the_limit() {
    let cgroup = cgroup_or_skip!("high");
    if cgroup.version() == Version::V1 {
        return println!("v1 has no memory.high; the VM has");
    }
    cgroup.limit(2 * LIMIT).unwrap();
    cgroup.throttle_above(LIMIT).unwrap();
    let end = end(under_way(&cgroup, |_| {}), &cgroup);
    assert_eq!(end.least_limit, LIMIT);
    let peak = cgroup.peak().unwrap();
    assert!(peak <= LIMIT, "{} MiB above {} MiB", peak / MIB, LIMIT / MIB);
}

/// A file of whose pages nobody is charged yet.
fn write(path: &Path, bytes: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![3; bytes as usize]).unwrap();
    file.sync_all().unwrap();
    memory::forget(path).unwrap();
}
