//! The end of a daemon: jobs get their time, waiting clients their answer.

use crate::harness::*;
use cuzk_daemon::wire::{self, await_proof_response::Status as Ended};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_is_finished_within_the_grace() {
    let (daemon, mut client) = start(&settings()).await;
    let job_id = submit(&mut client, request(WINNING, "grace")).await;
    let waiting = tokio::spawn(async move { ended(&mut client, &job_id).await });
    let mut other = connect(&daemon).await;
    until(&mut other, "the job runs", |status| counts(status) == (0, 1)).await;
    daemon.shutdown(PATIENCE).await;
    verified(WINNING, &waiting.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_grace_waiting_clients_are_told_that_their_job_is_cancelled() {
    let (daemon, mut client) = start(&settings()).await;
    let address = daemon.addresses()[0].clone();
    let job_id = submit(&mut client, request(WINNING, "no-grace")).await;
    let waiting = tokio::spawn(async move { ended(&mut client, &job_id).await });
    let mut other = connect(&daemon).await;
    until(&mut other, "the job runs", |status| counts(status) == (0, 1)).await;
    drop(other);

    let started = Instant::now();
    daemon.shutdown(Duration::ZERO).await;
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!(waiting.await.unwrap().status(), Ended::Cancelled);
    assert!(cuzk_daemon::client::connect(&address).await.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_during_the_shutdown_is_asked_to_come_back() {
    let (daemon, mut client) = start(&settings()).await;
    daemon.engine().shutdown(Instant::now());
    let status = client.submit_proof(request(WINDOW, "late")).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
    assert_eq!(status.message(), "the daemon is shutting down: try again when it has restarted");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "15000");
    let _ = client.get_status(wire::GetStatusRequest {}).await.expect("status still answers");
    daemon.shutdown(Duration::ZERO).await;
}
