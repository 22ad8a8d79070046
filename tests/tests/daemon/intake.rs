//! Large messages: how large they may be, and that they wait for memory without holding up others.

use crate::harness::*;
use cuzk_daemon::config::Size;
use cuzk_daemon::intake::MIN_ALLOWANCE;
use cuzk_daemon::wire;
use std::time::Duration;
use tonic::Code;

fn porep(bytes: usize) -> wire::SubmitProofRequest {
    wire::SubmitProofRequest {
        proof_kind: wire::ProofKind::PorepSealCommit.into(),
        vanilla_proof: vec![b'x'; bytes],
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_300_mib_is_refused_with_both_numbers() {
    let (daemon, client) = start(&settings()).await;
    let mut client = client.max_encoding_message_size(usize::MAX);
    let (code, message) = refusal(client.submit_proof(porep(300 << 20)).await);
    assert_eq!(code, Code::InvalidArgument);
    let expected = "message of 314572808 bytes; the limit is 268435456 bytes (256 MiB)";
    assert_eq!(message, expected);
    daemon.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_255_mib_is_read() {
    let (daemon, mut client) = start(&settings()).await;
    let (code, message) = refusal(client.submit_proof(porep(255 << 20)).await);
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.starts_with("vanilla_proof: "), "it was parsed: {message}");
    daemon.shutdown(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_messages_take_turns_and_status_answers_meanwhile() {
    let settings =
        cuzk_daemon::config::Settings { request_memory: Size(MIN_ALLOWANCE), ..settings() };
    let (daemon, client) = start(&settings).await;
    // Together three times what may be held at once, on one connection.
    let mut sending = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let mut client = client.clone();
        sending.spawn(async move { refusal(client.submit_proof(porep(64 << 20)).await) });
    }
    let mut client = client;
    let mut answers = 0;
    while answers < 12 {
        tokio::select! {
            Some(answer) = sending.join_next() => {
                let (code, message) = answer.unwrap();
                assert_eq!(code, Code::InvalidArgument, "{message}");
                assert!(message.starts_with("vanilla_proof: "), "{message}");
                answers += 1;
            }
            status = tokio::time::timeout(Duration::from_secs(5), status(&mut client)) => {
                status.expect("status answers while messages wait");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    daemon.shutdown(Duration::ZERO).await;
}
