//! The engine as a plant: what it reports, what it does when it is told to, and that its memory is gone
//! afterwards.

use std::thread;
use std::time::{Duration, Instant};

use cuzk_core::engine::{Engine, JobId, Tier};
use cuzk_core::proof::{CircuitId, ProofKind, RawRequest, SectorSize};
use cuzk_governor::budget::{Ask, Priority, Reservation};
use cuzk_governor::policy::{Action, Partition, Workload};
use cuzk_governor::setpoints::Setpoints;
use cuzk_tests::cgroup::Cgroup;
use cuzk_tests::{memory, parameters, skip};

use super::{child, engine, engine_with, proof, sample, submit, told, turn, until_stage, PATIENCE};

const POREP: ProofKind = ProofKind::PorepSealCommit;
const WINNING: ProofKind = ProofKind::WinningPost;
const WINDOW: ProofKind = ProofKind::WindowPostPartition;
const MIB: u64 = 1 << 20;

fn workload(engine: &Engine) -> Workload {
    let mut workload = Workload::default();
    engine.plant().workload(&mut workload);
    workload
}

/// This process's memory that no file can give back, in bytes.
fn resident() -> u64 {
    memory::resident().anonymous
}

/// The partition that runs, when it holds so much.
fn until_held(engine: &Engine, bytes: u64) -> Partition {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match workload(engine).running.first() {
            Some(partition) if partition.held >= bytes => return *partition,
            seen => assert!(Instant::now() < deadline, "{seen:?}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Stands in line for the whole budget but so much, has the memory given up, and gets it: how long that
/// took, and what nobody else gets until it is dropped.
fn all_but(engine: &Engine, left: u64, give_up: impl FnOnce()) -> (Duration, Reservation) {
    let budget = engine.budget();
    let all = Ask::new("test", budget.usage().total - left).at(Priority::Critical);
    let deadline = Instant::now() + PATIENCE;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| budget.reserve(all, deadline).unwrap());
        while budget.usage().waiting == 0 {
            thread::yield_now();
        }
        let started = Instant::now();
        give_up();
        let got = waiting.join().unwrap();
        (started.elapsed(), got)
    })
}

fn status_of(engine: &Engine, kind: ProofKind) -> cuzk_core::engine::SrsStatus {
    let circuit = CircuitId { kind, sector_size: SectorSize::KiB2 };
    engine.status().srs.into_iter().find(|srs| srs.circuit == circuit).unwrap()
}

#[test]
fn a_governed_engine_proves_and_its_memory_is_gone_afterwards() {
    let _turn = turn();
    let engine = engine_with(&[WINNING, WINDOW], |config| config.memory_budget = 4 << 30);
    let sample = sample();
    let named =
        |kind, i: usize| RawRequest { request_id: format!("{kind}-{i}"), ..sample.request(kind) };
    proof(&engine, &submit(&engine, &named(WINNING, 0))); // what is loaded once is loaded now
    let idle = resident();
    engine.govern(Setpoints::default(), None).unwrap();
    let jobs: Vec<JobId> = (1..5)
        .flat_map(|i| [WINNING, WINDOW].map(|kind| submit(&engine, &named(kind, i))))
        .collect();
    assert!(jobs.iter().all(|job| !proof(&engine, job).is_empty()));
    let status = engine.status().governor.expect("it is governed");
    assert!(status.ticks > 0 && status.headroom.limit > 0, "{status:?}");
    // Idle chunks are on the books, and leave when they are ordered to.
    engine.plant().apply(Action::FreeIdleChunks(u64::MAX));
    engine.plant().apply(Action::UnpinSrs(u64::MAX));
    let winning = status_of(&engine, WINNING).pinned;
    assert_eq!(engine.budget().usage().reserved, winning);
    let now = resident();
    assert!(now < idle + 64 * MIB, "{} MiB, idle it was {}", now / MIB, idle / MIB);
}

#[test]
fn the_report_tells_what_runs_what_waits_and_what_each_would_free() {
    let _turn = turn();
    let engine = engine_with(&[WINDOW], |config| config.concurrency = 1);
    let sample = sample();
    let named = |i: usize| RawRequest { request_id: i.to_string(), ..sample.request(WINDOW) };
    let jobs: Vec<JobId> = (0..3).map(|i| submit(&engine, &named(i))).collect();
    let mut seen = workload(&engine);
    while seen.running.first().is_none_or(|partition| partition.held == 0) {
        seen = workload(&engine);
    }
    assert_eq!((seen.running.len(), seen.waiting, seen.concurrency), (1, 2, 1), "{seen:?}");
    let partition = seen.running[0];
    // What is reserved beside the partition are the requests' bytes.
    let beside = engine.budget().usage().reserved - (partition.held + partition.to_come);
    assert!(beside < MIB, "{beside} bytes beside {partition:?}");
    assert!(partition.held > 0 && seen.smallest_waiting > 0, "{seen:?}");
    jobs.iter().for_each(|job| drop(proof(&engine, job)));
    let seen = workload(&engine);
    assert_eq!((seen.running.len(), seen.waiting, seen.finished), (0, 0, 3), "{seen:?}");
}

#[test]
fn a_shed_partition_keeps_its_place_and_its_memory_is_gone_within_half_a_second() {
    let _turn = turn();
    let engine = engine_with(&[POREP], |config| config.concurrency = 1);
    let sample = sample();
    let named = |i: usize| RawRequest { request_id: i.to_string(), ..sample.request(POREP) };
    let before = resident();
    let jobs: Vec<JobId> = (0..2).map(|i| submit(&engine, &named(i))).collect();
    for stage in ["synthesising", "computing"] {
        until_stage(&engine, &jobs[0], stage);
        let victim = until_held(&engine, 300 * MIB);
        thread::sleep(Duration::from_millis(100));
        // Whoever is next is to stay out: only then does nothing hold memory in between.
        let (took, _all) = all_but(&engine, 64 * MIB, || {
            engine.plant().apply(Action::Shed(victim.id));
        });
        let (held, left) = (victim.held / MIB, resident().saturating_sub(before) / MIB);
        println!("shed while {stage} with {held} MiB: {left} MiB are left after {took:?}");
        assert!(took < Duration::from_millis(500), "still on the books at {stage}: {took:?}");
        assert!(left < 32, "{left} of {held} MiB are still in the process at {stage}");
    }
    // It is counted when it is back in its place, after its memory is gone.
    let deadline = Instant::now() + Duration::from_secs(5);
    while engine.status().partitions_shed < 2 {
        assert!(Instant::now() < deadline, "{:?}", engine.status());
        thread::sleep(Duration::from_millis(1));
    }
    // It was shed twice, and still comes before the job that arrived after it.
    proof(&engine, &jobs[0]);
    assert!(engine.status().queues[0].pending + engine.status().queues[0].in_progress == 1);
    engine.cancel(&jobs[1]).unwrap();
}

#[test]
fn what_is_refused_has_both_numbers_and_is_taken_again_when_there_is_room() {
    let _turn = turn();
    let engine = engine(&[WINDOW]);
    let sample = sample();
    let possible = 1 << 20;
    engine.plant().apply(Action::Refuse { asked: 2 << 20, possible });
    let refused = engine.submit(super::parsed(&sample.request(WINDOW))).unwrap_err().to_string();
    assert!(refused.contains(&possible.to_string()), "{refused}");
    engine.plant().apply(Action::Accept);
    proof(&engine, &submit(&engine, &sample.request(WINDOW)));
}

/// Set for the process that loads and pins; holds the folder of parameters.
const CHILD: &str = "CUZK_TEST_PIN";

#[test]
#[ignore = "run by the test that limits it, in a process of its own"]
fn child_pins_the_poreps_parameters() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let engine = engine_with(&[POREP], |config| config.memory_budget = 4 << 30);
    let circuit = CircuitId { kind: POREP, sector_size: SectorSize::KiB2 };
    assert!(!engine.preload(circuit).unwrap());
    while status_of(&engine, POREP).tier != Tier::Hot {
        let before = status_of(&engine, POREP).pinned;
        engine.plant().apply(Action::PinSrs(u64::MAX));
        let srs = status_of(&engine, POREP);
        assert!(srs.pinned > before, "pinning came to a halt at {} of {}", srs.pinned, srs.bytes);
        assert_eq!(engine.budget().usage().resident, srs.pinned);
    }
    let size = status_of(&engine, POREP).bytes;
    engine.plant().apply(Action::UnpinSrs(u64::MAX));
    assert_eq!((status_of(&engine, POREP).pinned, engine.budget().usage().reserved), (0, 0));
    assert_eq!(engine.evict(circuit), Some(size));
    println!("bytes={size}");
}

#[test]
fn loading_and_pinning_parameters_peaks_at_one_copy_and_one_chunk() {
    let _turn = turn();
    let cgroup = match Cgroup::create("pin") {
        Ok(cgroup) => cgroup,
        Err(why) => return skip(format_args!("{why:#}")),
    };
    parameters::development(&[POREP]);
    parameters::forget(POREP);
    let mut command = child("governed::child_pins_the_poreps_parameters", CHILD, "1");
    let output = cgroup.spawn(&mut command).unwrap().wait_with_output().unwrap();
    let bytes: u64 = told(&output, "bytes=").expect("it pins and unpins");
    let peak = cgroup.peak().unwrap();
    println!("parameters of {} MiB: peak {} MiB", bytes / MIB, peak / MIB);
    // A chunk is 32 MiB; the process itself, its thread stacks and page tables take their part.
    assert!(peak < bytes + 32 * MIB + 48 * MIB, "{} MiB for {}", peak / MIB, bytes / MIB);
}
