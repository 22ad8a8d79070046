//! What each call answers when all is well, and when a name is unknown.

use crate::harness::*;
use cuzk_daemon::wire::{self, await_proof_response::Status as Ended};
use std::time::{Duration, Instant};
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn prove_answers_with_a_proof_that_filecoin_accepts_and_where_the_time_went() {
    let (daemon, mut client) = start(&settings()).await;
    for kind in [WINDOW, WINNING] {
        let submit = Some(request(kind, "prove"));
        let reply = client.prove(wire::ProveRequest { submit }).await.unwrap().into_inner();
        let end = reply.result.unwrap();
        assert_eq!(verified(kind, &end).len(), 192);
        let parts = end.queue_wait_ms + end.srs_load_ms + end.synthesis_ms + end.gpu_compute_ms;
        assert!(end.gpu_compute_ms > 0 && parts <= end.total_ms + 1, "{end:?}");
    }
    let status = status(&mut client).await;
    assert_eq!(status.total_proofs_completed, 2);
    let loaded: Vec<_> = status.loaded_srs.iter().map(|srs| srs.circuit_id.as_str()).collect();
    assert!(loaded.contains(&"wpost-2k") && loaded.contains(&"winning-2k"), "{loaded:?}");
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn await_ends_at_its_time_limit_and_the_job_goes_on() {
    let (daemon, mut client) = start(&settings()).await;
    let job_id = submit(&mut client, request(WINNING, "limit")).await;
    let wait = wire::AwaitProofRequest { job_id: job_id.clone(), timeout_ms: 50 };
    let started = Instant::now();
    let end = client.await_proof(wait).await.unwrap().into_inner();
    assert_eq!((end.status(), end.proof.len()), (Ended::Timeout, 0));
    assert!(started.elapsed() >= Duration::from_millis(50));
    verified(WINNING, &ended(&mut client, &job_id).await);
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_stops_a_running_job_within_a_second_and_gives_its_memory_back() {
    let (daemon, mut client) = start(&settings()).await;
    let job_id = submit(&mut client, request(WINNING, "cancel")).await;
    until(&mut client, "the job runs", |status| status.gpus[0].current_stage == "synthesising")
        .await;

    let started = Instant::now();
    let cancel = wire::CancelProofRequest { job_id: job_id.clone() };
    assert!(client.cancel_proof(cancel.clone()).await.unwrap().into_inner().was_running);
    let end = ended(&mut client, &job_id).await;
    assert_eq!((end.status(), end.proof.len()), (Ended::Cancelled, 0));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());

    let status = status(&mut client).await;
    assert_eq!((counts(&status), status.memory_reserved_bytes), ((0, 0), 0));
    assert!(!client.cancel_proof(cancel).await.unwrap().into_inner().was_running);
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_are_loaded_and_let_go_of_on_request() {
    let (daemon, mut client) = start(&settings()).await;
    let circuit_id = "wpost-2k".to_owned();
    let load = wire::PreloadSrsRequest { circuit_id: circuit_id.clone() };
    assert!(!client.preload_srs(load.clone()).await.unwrap().into_inner().already_loaded);
    assert!(client.preload_srs(load).await.unwrap().into_inner().already_loaded);

    let evict = wire::EvictSrsRequest { circuit_id };
    let gone = client.evict_srs(evict.clone()).await.unwrap().into_inner();
    assert!(gone.was_loaded && gone.freed_bytes > 1 << 20, "{gone:?}");
    assert!(!client.evict_srs(evict).await.unwrap().into_inner().was_loaded);
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_are_refused_by_name() {
    let (daemon, mut client) = start(&settings()).await;
    let unknown =
        "no job j-1: it was never accepted here, or it ended and made room for newer ones";
    let job_id = "j-1".to_owned();
    let wait = wire::AwaitProofRequest { job_id: job_id.clone(), timeout_ms: 1 };
    let answer = refusal(client.await_proof(wait).await);
    assert_eq!(answer, (Code::NotFound, unknown.to_owned()));
    let answer = refusal(client.cancel_proof(wire::CancelProofRequest { job_id }).await);
    assert_eq!(answer, (Code::NotFound, unknown.to_owned()));

    let circuit_id = "porep-1k".to_owned();
    let (code, message) = refusal(client.preload_srs(wire::PreloadSrsRequest { circuit_id }).await);
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.starts_with("circuit_id: unknown circuit \"porep-1k\""), "{message}");
    let circuit_id = String::new();
    let (code, _) = refusal(client.evict_srs(wire::EvictSrsRequest { circuit_id }).await);
    assert_eq!(code, Code::InvalidArgument);
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_prometheus_text() {
    let (daemon, mut client) = start(&settings()).await;
    let text = client.get_metrics(wire::GetMetricsRequest {}).await.unwrap().into_inner();
    let text = text.prometheus_text;
    for line in [
        "# TYPE cuzk_memory_budget_bytes gauge",
        "# TYPE cuzk_governor_usable_bytes gauge",
        "cuzk_queue_jobs{kind=\"porep\",state=\"pending\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    daemon.shutdown(PATIENCE).await;
}
