//! Urgency, cancellation, shedding, idempotency, refusals.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cuzk_core::engine::{Engine, JobResult, SubmitError};
use cuzk_core::proof::{Priority, ProofKind, ProofRequest, RawRequest};
use cuzk_governor::budget::Ask;
use cuzk_tests::scripted::{Script, Scripted};

use super::{engine, engine_with, outcome, parsed, proof, sample, submit, turn, until_stage};

const WINNING: ProofKind = ProofKind::WinningPost;
const WINDOW: ProofKind = ProofKind::WindowPostPartition;
const POREP: ProofKind = ProofKind::PorepSealCommit;

fn with_priority(raw: RawRequest, priority: Priority) -> RawRequest {
    RawRequest { priority: priority as i32 + 1, ..raw }
}

/// A job of one partition, of so many chunks and a second.
fn scripted(name: String, kind: ProofKind, chunks: u32) -> Arc<Scripted> {
    let script = Script {
        partitions: 1,
        chunks,
        heap: 0,
        hidden: 0,
        estimate: 1.0,
        synthesis: Duration::from_secs(1),
        device: Duration::ZERO,
        contention: 0.0,
    };
    Arc::new(Scripted { name, kind, script })
}

fn reserved_falls_to_zero_within(engine: &Engine, limit: Duration) {
    let deadline = Instant::now() + limit;
    while engine.budget().usage().reserved > 0 {
        let usage = engine.budget().usage();
        assert!(Instant::now() < deadline, "after {limit:?}: {usage:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_winning_post_overtakes_a_porep_and_waits_for_it_less_than_a_second() {
    let _turn = turn();
    let engine = engine(&[WINNING, POREP]);
    let sample = sample();
    let winning = sample.request(WINNING);
    proof(&engine, &submit(&engine, &winning)); // its parameters are open now

    let porep = submit(&engine, &sample.request(POREP));
    until_stage(&engine, &porep, "synthesising");
    for delay in [0, 1000, 2000] {
        thread::sleep(Duration::from_millis(delay));
        let urgent = RawRequest { request_id: format!("urgent-{delay}"), ..winning.clone() };
        let started = Instant::now();
        let urgent = submit(&engine, &urgent);
        until_stage(&engine, &urgent, "synthesising");
        let held_up = started.elapsed();
        assert!(held_up < Duration::from_secs(1), "the PoRep held it up for {held_up:?}");
        proof(&engine, &urgent);
    }
    assert_eq!(engine.status().running.len(), 1, "the PoRep is still at it");

    let started = Instant::now();
    assert!(engine.cancel(&porep).unwrap());
    reserved_falls_to_zero_within(&engine, Duration::from_secs(1));
    assert_eq!(outcome(&engine, &porep).result, JobResult::Cancelled);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn a_partition_in_the_way_of_a_more_urgent_one_is_shed_and_starts_over() {
    let _turn = turn();
    let budget = 120 << 20; // either of them, not both
    let engine = engine_with(&[WINNING, WINDOW], |config| config.memory_budget = budget);
    let sample = sample();
    let slow = submit(&engine, &with_priority(sample.request(WINNING), Priority::Low));
    until_stage(&engine, &slow, "synthesising");
    let urgent = submit(&engine, &with_priority(sample.request(WINDOW), Priority::Critical));
    assert!(sample.verify_with_filecoin(WINDOW, &proof(&engine, &urgent)).unwrap());
    assert!(sample.verify_with_filecoin(WINNING, &proof(&engine, &slow)).unwrap());
    reserved_falls_to_zero_within(&engine, Duration::from_secs(1));
}

#[test]
fn a_job_that_can_never_fit_is_refused_with_both_numbers() {
    let _turn = turn();
    let engine = engine_with(&[WINNING], |config| config.memory_budget = 16 << 20);
    match engine.submit(parsed(&sample().request(WINNING))) {
        Err(SubmitError::NeverFits { needs, has, total, .. }) => {
            assert!(needs > has && has <= total && total == 16 << 20);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(engine.budget().usage().reserved, 0);
}

#[test]
fn the_same_request_joins_and_other_content_is_a_new_attempt() {
    let _turn = turn();
    let engine = engine(&[WINDOW]);
    let raw = sample().request(WINDOW);
    let first = engine.submit(parsed(&raw)).unwrap();
    let again = engine.submit(parsed(&raw)).unwrap();
    assert!(!first.joined && again.joined && first.job_id == again.job_id);
    let other = cuzk_core::sample::Sample::make(8).unwrap().request(WINDOW);
    let other = RawRequest { request_id: raw.request_id.clone(), ..other };
    let attempt = engine.submit(parsed(&other)).unwrap();
    assert!(!attempt.joined && attempt.job_id != first.job_id);
    let proofs = [proof(&engine, &first.job_id), proof(&engine, &attempt.job_id)];
    assert_ne!(proofs[0], proofs[1]);
    let stored = engine.submit(parsed(&other)).unwrap();
    assert!(stored.joined && stored.job_id == attempt.job_id);
    assert_eq!(proof(&engine, &stored.job_id), proofs[1]);
}

#[test]
fn a_proof_that_cannot_verify_fails_and_says_which_constraint() {
    let _turn = turn();
    let engine = engine(&[WINDOW]);
    let raw = sample().request(WINDOW);
    // Somewhere in the middle lies the sibling of a node on a challenge's path: well formed, wrong.
    let middle = raw.vanilla_proofs[0].len() / 2;
    let damaged = (middle..middle + 64).find_map(|i| {
        let mut raw = raw.clone();
        raw.vanilla_proofs[0][i] ^= 1;
        ProofRequest::parse(&raw).ok()
    });
    let job = engine.submit(damaged.expect("one that is well formed")).unwrap().job_id;
    match &outcome(&engine, &job).result {
        JobResult::Failed(why) => {
            assert!(why.contains("does not verify") && why.contains("unsatisfied at row"), "{why}");
        }
        other => panic!("{other:?}"),
    }
    let status = engine.status();
    assert_eq!((status.completed, status.failed), (0, 1));
    assert_eq!(engine.budget().usage().reserved, 0);
}

#[test]
fn queues_count_every_job_once_until_it_ends_and_the_bound_holds() {
    let _turn = turn();
    let engine = engine_with(&[WINDOW], |config| config.max_jobs = 5);
    let raw = sample().request(WINDOW);
    let named = |i: usize| RawRequest { request_id: format!("window-{i}"), ..raw.clone() };
    let jobs: Vec<_> = (0..5).map(|i| submit(&engine, &named(i))).collect();
    match engine.submit(parsed(&named(5))) {
        Err(SubmitError::Full { retry_after, .. }) => assert!(retry_after > Duration::ZERO),
        other => panic!("{other:?}"),
    }
    let mut left = 5;
    while left > 0 {
        let queue = engine.status().queues.into_iter().find(|queue| queue.kind == WINDOW).unwrap();
        let now = queue.pending + queue.in_progress;
        assert!(now <= left && queue.in_progress <= 2, "{queue:?} after {left}");
        left = now;
        thread::sleep(Duration::from_millis(20));
    }
    assert!(jobs.iter().all(|job| !proof(&engine, job).is_empty()));
    assert_eq!(engine.cancel(&jobs[0]), Ok(false));
}

#[test]
fn jobs_are_accepted_although_a_partition_waits_for_memory() {
    let _turn = turn();
    let engine = engine_with(&[WINDOW], |config| {
        (config.memory_budget, config.concurrency) = (120 << 20, 8); // three at once, not eight
    });
    let raw = sample().request(WINDOW);
    let named = |i: usize| RawRequest { request_id: format!("window-{i}"), ..raw.clone() };
    let mut jobs: Vec<_> = (0..20).map(|i| submit(&engine, &named(i))).collect();
    let deadline = Instant::now() + Duration::from_secs(10);
    while engine.budget().usage().waiting == 0 {
        assert!(Instant::now() < deadline, "nothing waits: {:?}", engine.budget().usage());
    }
    jobs.extend((20..40).map(|i| submit(&engine, &named(i))));
    jobs.iter().for_each(|job| drop(proof(&engine, job)));
}

#[test]
fn a_job_is_accepted_although_partitions_hold_every_byte() {
    let _turn = turn();
    let engine = engine(&[WINDOW]);
    let all = Ask::new("partitions", engine.budget().usage().total);
    let partitions = engine.budget().try_reserve(all).unwrap();
    let job = submit(&engine, &sample().request(WINDOW));
    drop(partitions);
    assert!(!proof(&engine, &job).is_empty());
}

#[test]
fn an_eighth_of_the_memory_for_requests_is_kept_for_critical_ones() {
    let _turn = turn();
    let engine = engine_with(&[], |config| config.memory_budget = 64 << 20); // 4 MiB of it
    let submit = |kind, letter: &str| engine.submit_work(scripted(letter.repeat(1 << 20), kind, 1));
    let jobs: Vec<_> = ["a", "b", "c"].map(|name| submit(POREP, name).unwrap().job_id).into();
    match submit(POREP, "d") {
        Err(SubmitError::Full { limit, .. }) => assert_eq!(limit, "3670016 bytes"),
        other => panic!("{other:?}"),
    }
    let urgent = submit(WINNING, "e").unwrap().job_id;
    for job in jobs.iter().chain([&urgent]) {
        outcome(&engine, job);
    }
    assert_eq!(engine.budget().usage().reserved, 0);
}

#[test]
fn a_critical_partition_has_its_memory_at_once_however_many_fill_it() {
    let _turn = turn();
    let engine = engine_with(&[], |config| {
        (config.memory_budget, config.concurrency) = (256 << 20, 8);
    });
    let submit = |name: &str, i: u32, kind, chunks| {
        engine.submit_work(scripted(format!("{name}-{i}"), kind, chunks)).unwrap().job_id
    };
    let others: Vec<_> = (0..40).map(|i| submit("other", i, POREP, 7 + i % 3)).collect();
    for i in 0..4 {
        thread::sleep(Duration::from_millis(400));
        let urgent = submit("urgent", i, WINNING, 20);
        let waited = outcome(&engine, &urgent).timings.queue_wait;
        assert!(waited < Duration::from_millis(200), "{i}: {waited:?}");
    }
    others.iter().for_each(|job| assert!(engine.cancel(job).is_ok()));
    reserved_falls_to_zero_within(&engine, Duration::from_secs(1));
}

#[test]
fn a_waiting_job_is_cancelled_at_once_and_shutdown_cancels_the_rest() {
    let _turn = turn();
    let engine = engine(&[WINNING]);
    let raw = sample().request(WINNING);
    let named = |i: usize| RawRequest { request_id: format!("winning-{i}"), ..raw.clone() };
    let jobs: Vec<_> = (0..4).map(|i| submit(&engine, &named(i))).collect();
    until_stage(&engine, &jobs[0], "synthesising");
    assert_eq!(engine.cancel(&jobs[3]), Ok(false));
    assert_eq!(outcome(&engine, &jobs[3]).result, JobResult::Cancelled);
    let started = Instant::now();
    engine.shutdown(Instant::now());
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(outcome(&engine, &jobs[0]).result, JobResult::Cancelled);
    assert_eq!(outcome(&engine, &jobs[2]).result, JobResult::Cancelled);
    assert!(matches!(engine.submit(parsed(&named(9))), Err(SubmitError::Closing)));
    assert_eq!(engine.budget().usage().reserved, 0);
}
