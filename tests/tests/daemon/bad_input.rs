//! Every field of a request, wrong in every way that a caller can think of: each is refused with
//! INVALID_ARGUMENT and a text that names the field, what was expected and what was found.

use crate::harness::*;
use base64::{engine::general_purpose::STANDARD, Engine as _};
use cuzk_core::proof::ProofKind;
use cuzk_daemon::config::{Count, Settings, Size};
use cuzk_daemon::wire::SubmitProofRequest;
use cuzk_daemon::wire::{self, await_proof_response::Status as Ended};
use tonic::codegen::{http, Service};
use tonic::{body::Body, transport::Endpoint, Code, Status};

const POREP: ProofKind = ProofKind::PorepSealCommit;
const SNAP: ProofKind = ProofKind::SnapDealsUpdate;

/// A good request of that kind, spoilt by `spoil`, and the refusal.
type Case = (ProofKind, fn(&mut SubmitProofRequest), &'static str);

/// Edits the PoRep's JSON wrapper.
fn wrapper(request: &mut SubmitProofRequest, edit: impl FnOnce(&mut serde_json::Value)) {
    let mut json = serde_json::from_slice(&request.vanilla_proof).unwrap();
    edit(&mut json);
    request.vanilla_proof = serde_json::to_vec(&json).unwrap();
}

const CASES: &[Case] = &[
    // What every kind has.
    (WINDOW, |r| r.request_id = "x".repeat(513), "request_id: expected at most 512 bytes, found 513"),
    (WINDOW, |r| r.proof_kind = 0, "proof_kind: expected a kind, 1 to 4, found 0"),
    (WINDOW, |r| r.proof_kind = 5, "proof_kind: expected a kind, 1 to 4, found 5"),
    (WINDOW, |r| r.proof_kind = -1, "proof_kind: expected a kind, 1 to 4, found -1"),
    (WINDOW, |r| r.priority = 5, "priority: expected 0 to 4, found 5"),
    (WINDOW, |r| r.priority = -7, "priority: expected 0 to 4, found -7"),
    // PoRep.
    (POREP, |r| r.vanilla_proof.clear(), "vanilla_proof: expected 1 to 268435456 bytes for porep, found 0"),
    (POREP, |r| r.vanilla_proofs = vec![vec![1]], "vanilla_proofs: expected nothing for porep, which has vanilla_proof, found something"),
    (POREP, |r| r.vanilla_proof = b"{\"SectorNum\": 1".to_vec(), "vanilla_proof: expected C1 output as JSON, found EOF while parsing an object at line 1 column 15"),
    (POREP, |r| r.vanilla_proof = b"\xff\xfe".to_vec(), "vanilla_proof: expected C1 output as JSON, found expected value at line 1 column 1"),
    (POREP, |r| r.vanilla_proof = b"{}".to_vec(), "vanilla_proof: expected C1 output as JSON, found missing field `registered_proof` at line 1 column 2"),
    (POREP, |r| wrapper(r, |json| json["Phase1Out"] = "?".into()), "vanilla_proof.Phase1Out: expected standard base64, found Invalid symbol 63, offset 0."),
    (POREP, |r| wrapper(r, |json| json["Phase1Out"] = "e30=".into()), "vanilla_proof.Phase1Out: expected C1 output as JSON, found missing field `registered_proof` at line 1 column 2"),
    (POREP, |r| wrapper(r, |json| json["SectorSize"] = 4096.into()), "vanilla_proof.SectorSize: expected 2048, as Phase1Out has it, found 4096"),
    (POREP, |r| r.sector_size = 32 << 30, "sector_size: expected 2048, as vanilla_proof has it, found 34359738368"),
    (POREP, |r| r.sector_size = 1, "sector_size: expected 2048, as vanilla_proof has it, found 1"),
    (POREP, |r| r.registered_proof = 8, "registered_proof: expected 5, the vanilla proof's StackedDrg2KiBV1_1, found 8"),
    (POREP, |r| r.registered_proof = u64::MAX, "registered_proof: expected 5, the vanilla proof's StackedDrg2KiBV1_1, found 18446744073709551615"),
    (POREP, |r| r.sector_number += 1, "sector_number: expected 12, as vanilla_proof.SectorNum has it, found 13"),
    (POREP, |r| wrapper(r, |json| json["SectorNum"] = 77.into()), "sector_number: expected 77, as vanilla_proof.SectorNum has it, found 12"),
    (POREP, |r| r.miner_id += 1, "vanilla_proof.replica_id: expected 150d0af00f2906312d643c697d9428ce7ff6c31254d51894f42ac1fed9911733, of miner_id 1001, sector 12, found 8e28edae0d65314348f9463bb5efd32cc3604d7e473f4e6530499462d7a78f11"),
    // WinningPoSt and WindowPoSt.
    (WINNING, |r| r.vanilla_proofs.clear(), "vanilla_proofs: expected 1 to 268435456 bytes for winning-post, found 0"),
    (WINNING, |r| r.vanilla_proof = b"{}".to_vec(), "vanilla_proof: expected nothing for winning-post, which has vanilla_proofs, found something"),
    (WINNING, |r| r.vanilla_proofs[0].clear(), "vanilla_proofs: expected 1 to 268435456 bytes for winning-post, found 0"),
    (WINNING, |r| r.vanilla_proofs[0].truncate(1000), "vanilla_proofs[0]: expected a vanilla proof in bincode, found 1000 bytes: io error: unexpected end of file"),
    (WINNING, |r| r.vanilla_proofs[0].push(0), "vanilla_proofs[0]: expected a vanilla proof in bincode, found 36817 bytes: Slice had bytes remaining after deserialization"),
    (WINNING, |r| r.vanilla_proofs[0].fill(0xff), "vanilla_proofs[0]: expected a vanilla proof in bincode, found 36816 bytes: 32 bytes that are no field element"),
    (WINNING, |r| r.vanilla_proofs = vec![r.vanilla_proofs[0].clone(); 2], "vanilla_proofs: expected 1 to 1 sectors for StackedDrgWinning2KiBV1, found 2"),
    (WINNING, |r| r.randomness.clear(), "randomness: expected 32 bytes, found 0"),
    (WINNING, |r| r.randomness.truncate(31), "randomness: expected 32 bytes, found 31"),
    (WINNING, |r| r.randomness.push(0), "randomness: expected 32 bytes, found 33"),
    (WINNING, |r| r.randomness = vec![0; 1 << 20], "randomness: expected 32 bytes, found 1048576"),
    (WINNING, |r| r.randomness.fill(0xff), "randomness: expected a field element (clear the two top bits of the last byte), found ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"),
    (WINNING, |r| r.registered_proof = 10, "registered_proof: expected a RegisteredPoStProof of winning-post, found 10"),
    (WINNING, |r| r.registered_proof = 15, "registered_proof: expected a RegisteredPoStProof of winning-post, found 15"),
    (WINNING, |r| r.sector_size = 8 << 20, "sector_size: expected 2048, as registered_proof has it, found 8388608"),
    (WINDOW, |r| r.vanilla_proofs.clear(), "vanilla_proofs: expected 1 to 268435456 bytes for window-post, found 0"),
    (WINDOW, |r| r.vanilla_proof = b"{}".to_vec(), "vanilla_proof: expected nothing for window-post, which has vanilla_proofs, found something"),
    (WINDOW, |r| r.vanilla_proofs[0].truncate(1000), "vanilla_proofs[0]: expected a vanilla proof in bincode, found 1000 bytes: io error: unexpected end of file"),
    (WINDOW, |r| r.randomness.truncate(31), "randomness: expected 32 bytes, found 31"),
    (WINDOW, |r| r.randomness.push(0), "randomness: expected 32 bytes, found 33"),
    (WINDOW, |r| r.randomness = vec![0; 1 << 20], "randomness: expected 32 bytes, found 1048576"),
    (WINDOW, |r| r.registered_proof = 0, "registered_proof: expected a RegisteredPoStProof of window-post, found 0"),
    (WINDOW, |r| r.partition_index = 3000, "partition_index: expected below 3000, found 3000"),
    (WINDOW, |r| r.partition_index = u32::MAX, "partition_index: expected below 3000, found 4294967295"),
    (WINDOW, |r| r.sector_size = 32 << 30, "sector_size: expected 2048, as registered_proof has it, found 34359738368"),
    // SnapDeals.
    (SNAP, |r| r.vanilla_proofs.clear(), "vanilla_proofs: expected 1 to 268435456 bytes for snap, found 0"),
    (SNAP, |r| r.vanilla_proof = b"{}".to_vec(), "vanilla_proof: expected nothing for snap, which has vanilla_proofs, found something"),
    (SNAP, |r| r.vanilla_proofs.push(vec![1]), "vanilla_proofs: expected 1 partitions for 2 KiB, found 2"),
    (SNAP, |r| r.vanilla_proofs[0].truncate(99), "vanilla_proofs[0]: expected a vanilla proof in bincode, found 99 bytes: io error: unexpected end of file"),
    (SNAP, |r| r.vanilla_proofs[0].fill(0xff), "vanilla_proofs[0]: expected a vanilla proof in bincode, found 15064 bytes: 32 bytes that are no field element"),
    (SNAP, |r| r.registered_proof = 5, "registered_proof: expected a RegisteredUpdateProof, found 5"),
    (SNAP, |r| r.sector_size = 8 << 20, "sector_size: expected 2048, as registered_proof has it, found 8388608"),
    (SNAP, |r| r.comm_r_old.clear(), "comm_r_old: expected 32 bytes, found 0"),
    (SNAP, |r| r.comm_r_old.truncate(31), "comm_r_old: expected 32 bytes, found 31"),
    (SNAP, |r| r.comm_r_old.push(1), "comm_r_old: expected 32 bytes, found 33"),
    (SNAP, |r| r.comm_r_old = vec![1; 1 << 20], "comm_r_old: expected 32 bytes, found 1048576"),
    (SNAP, |r| r.comm_r_new.push(1), "comm_r_new: expected 32 bytes, found 33"),
    (SNAP, |r| r.comm_r_new.fill(0xff), "comm_r_new: expected a commitment, a non-zero field element, found ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"),
    (SNAP, |r| r.comm_d_new.clear(), "comm_d_new: expected 32 bytes, found 0"),
    (SNAP, |r| r.comm_d_new.truncate(31), "comm_d_new: expected 32 bytes, found 31"),
    (SNAP, |r| r.comm_d_new.push(1), "comm_d_new: expected 32 bytes, found 33"),
    (SNAP, |r| r.comm_d_new.fill(0), "comm_d_new: expected a commitment, a non-zero field element, found 0000000000000000000000000000000000000000000000000000000000000000"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_field_that_is_wrong_is_named() {
    let (daemon, mut client) = start(&settings()).await;
    let mut wrong = Vec::new();
    for (number, (kind, spoil, expected)) in CASES.iter().enumerate() {
        let mut spoilt = request(*kind, "bad");
        spoil(&mut spoilt);
        match client.submit_proof(spoilt).await {
            Ok(_) => wrong.push(format!("case {number}, {expected}: accepted")),
            Err(refusal) => {
                let found = (refusal.code(), refusal.message());
                if found != (Code::InvalidArgument, expected) {
                    wrong.push(format!("case {number}, {expected}: {found:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(counts(&status(&mut client).await), (0, 0), "nothing was accepted");
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_can_never_fit_is_refused_with_both_numbers() {
    let budget = Size(16 << 20);
    let (daemon, mut client) = start(&Settings { memory_budget: budget, ..settings() }).await;
    let (code, message) = refusal(client.submit_proof(request(WINNING, "large")).await);
    assert_eq!(code, Code::FailedPrecondition);
    let numbers: Vec<u64> = message.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [needs, has] = numbers[..] else { panic!("two numbers: {message}") };
    assert!(needs > has && has <= budget.0, "{message}");
    assert!(message.starts_with("a winning-2k partition needs "), "{message}");
    assert!(message.contains("(16777216 in all): raise `memory_budget`"), "{message}");
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_when_to_come_back() {
    let (daemon, mut client) = start(&Settings { max_jobs: Count(1), ..settings() }).await;
    submit(&mut client, request(WINNING, "first")).await;
    let refusal = client.submit_proof(request(WINDOW, "second")).await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted);
    let pushback = refusal.metadata().get("grpc-retry-pushback-ms").expect("a retry hint");
    let seconds = pushback.to_str().unwrap().parse::<u64>().unwrap() / 1000;
    let expected = format!("the queue is full (1 jobs): try again in {seconds} s");
    assert_eq!(refusal.message(), expected);
    daemon.shutdown(std::time::Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_parameters_is_refused_with_the_files_that_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let params_dir = folder.path().to_owned();
    let native_dir = params_dir.join("native");
    let (daemon, mut client) = start(&Settings { params_dir, native_dir, ..settings() }).await;
    let (code, message) = refusal(client.submit_proof(request(WINDOW, "none")).await);
    assert_eq!(code, Code::FailedPrecondition);
    let looked = format!("looked for {}/v28-", folder.path().display());
    assert!(message.starts_with("no parameters for circuit "), "{message}");
    assert!(message.contains(&looked) && message.contains("`cuzk params dev`"), "{message}");
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prove_request_without_its_submit_is_refused() {
    let (daemon, mut client) = start(&settings()).await;
    let answer = refusal(client.prove(wire::ProveRequest { submit: None }).await);
    assert_eq!(answer, (Code::InvalidArgument, "submit: missing".to_owned()));
    daemon.shutdown(PATIENCE).await;
}

/// Bodies of SubmitProof that hold no request, and what is found there.
const BODIES: &[(&str, &str)] = &[
    ("", "Missing request message."),
    ("\0\0", "Unexpected EOF decoding stream."),
    ("\0\0\0\0\x04abc", "Unexpected EOF decoding stream."),
    ("\x01\0\0\0\0", "protocol error: received message with compressed-flag but no grpc-encoding was specified"),
    ("\x07\0\0\0\0", "protocol error: received message with invalid compression flag: 7 (valid flags are 0 and 1), while sending request"),
    ("\0\0\0\0\x03abc", "failed to decode Protobuf message: buffer underflow"),
    // A request_id of half a character.
    ("\0\0\0\0\x04\n\x01é", "failed to decode Protobuf message: SubmitProofRequest.request_id: invalid string value: data is not UTF-8 encoded"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_no_request_is_the_callers_fault() {
    let (daemon, mut client) = start(&settings()).await;
    let server = format!("http://{}", daemon.addresses()[0]);
    let mut channel = Endpoint::from_shared(server).unwrap().connect().await.unwrap();
    for (body, found) in BODIES {
        let mut call = http::Request::post("/cuzk.v1.ProvingEngine/SubmitProof");
        call = call.header("content-type", "application/grpc").header("te", "trailers");
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        let answer = channel.call(call.body(Body::new(body.to_string())).unwrap()).await.unwrap();
        let answer = Status::from_header_map(answer.headers()).expect("a refusal");
        let expected = format!("body: expected one request, not compressed, found: {found}");
        assert_eq!((answer.code(), answer.message()), (Code::InvalidArgument, &*expected));
    }
    status(&mut client).await;
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vanilla_proof_that_is_false_fails_with_the_constraint_it_breaks() {
    let (daemon, mut client) = start(&settings()).await;
    let mut false_one = request(WINNING, "false");
    // The last node of the last path: the shape is right, the hashes are not.
    let proof = &mut false_one.vanilla_proofs[0];
    let at = proof.len() - 100;
    proof[at] ^= 1;
    let job_id = submit(&mut client, false_one).await;
    let end = ended(&mut client, &job_id).await;
    assert_eq!((end.status(), end.proof.len()), (Ended::Failed, 0));
    let reason = "the proof does not verify, 2 times in a row: the witness is unsatisfied at row ";
    assert!(end.error_message.starts_with(reason), "{}", end.error_message);
    assert_eq!(status(&mut client).await.total_proofs_failed, 1);
    daemon.shutdown(PATIENCE).await;
}

/// Needs the PoRep's parameters, which other tests make too, and two proofs: the slow one here.
#[tokio::test(flavor = "multi_thread")]
async fn a_c1_output_whose_proof_cannot_verify_fails_with_the_constraint_it_breaks() {
    cuzk_tests::parameters::development(&[POREP]);
    let (daemon, mut client) = start(&settings()).await;
    let mut false_one = request(POREP, "false-c1");
    wrapper(&mut false_one, |json| {
        let inner = STANDARD.decode(json["Phase1Out"].as_str().unwrap()).unwrap();
        let mut inner: serde_json::Value = serde_json::from_slice(&inner).unwrap();
        let opening = &mut inner["vanilla_proofs"]["StackedDrg2KiBV1"][0][0]["comm_r_last_proof"];
        let byte = &mut opening["data"]["Single"]["path"]["path"][0]["hashes"][0][0];
        *byte = (byte.as_u64().unwrap() ^ 1).into();
        json["Phase1Out"] = STANDARD.encode(serde_json::to_vec(&inner).unwrap()).into();
    });
    let job_id = submit(&mut client, false_one).await;
    let end = ended(&mut client, &job_id).await;
    assert_eq!((end.status(), end.proof.len()), (Ended::Failed, 0));
    let reason = "the proof does not verify, 2 times in a row: the witness is unsatisfied at row ";
    assert!(end.error_message.starts_with(reason), "{}", end.error_message);
    daemon.shutdown(PATIENCE).await;
}
