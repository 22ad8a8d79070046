//! Many clients, clients that vanish, and clients that say the same thing twice.

use crate::harness::*;
use cuzk_daemon::wire;
use std::collections::BTreeMap;

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_clients_at_once_get_their_proofs() {
    const CLIENTS: usize = 200;
    const JOBS: usize = 4;
    let (daemon, mut client) = start(&settings()).await;
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let mut client = connect(&daemon).await;
        let job = number % JOBS;
        waiting.spawn(async move {
            let submit = Some(request(WINDOW, &format!("crowd-{job}")));
            let reply = client.prove(wire::ProveRequest { submit }).await.expect("an answer");
            (job, reply.into_inner().result.expect("a result"))
        });
    }
    let all = |status: &wire::GetStatusResponse| {
        let (pending, running) = counts(status);
        u64::from(pending + running) + status.total_proofs_completed == JOBS as u64
    };
    until(&mut client, "every job is counted once, however many ask for it", all).await;

    let mut proofs: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
    while let Some(answer) = waiting.join_next().await {
        let (job, end) = answer.unwrap();
        proofs.entry(job).or_default().push(end.proof.clone());
        if proofs[&job].len() == 1 {
            verified(WINDOW, &end);
        }
    }
    for (job, proofs) in &proofs {
        assert_eq!(proofs.len(), CLIENTS / JOBS);
        assert!(proofs.iter().all(|proof| *proof == proofs[0]), "job {job} has several proofs");
    }
    let status = status(&mut client).await;
    assert_eq!((counts(&status), status.total_proofs_completed), ((0, 0), JOBS as u64));
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_and_retries_joins_its_job() {
    let (daemon, mut client) = start(&settings()).await;
    let prove = wire::ProveRequest { submit: Some(request(WINNING, "vanish")) };
    let mut first = connect(&daemon).await;
    let vanishing = tokio::spawn({
        let prove = prove.clone();
        async move { first.prove(prove).await }
    });
    until(&mut client, "its job runs", |status| counts(status) == (0, 1)).await;
    let running = status(&mut client).await.gpus[0].current_job_id.clone();
    vanishing.abort();
    assert!(vanishing.await.unwrap_err().is_cancelled());

    let end = client.prove(prove.clone()).await.unwrap().into_inner().result.unwrap();
    verified(WINNING, &end);
    assert_eq!(end.job_id, running);
    let again = client.prove(prove).await.unwrap().into_inner().result.unwrap();
    assert_eq!((again.job_id, again.proof), (end.job_id, end.proof), "the stored proof");
    assert_eq!(status(&mut client).await.total_proofs_completed, 1);
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_id_with_other_content_is_another_job() {
    let (daemon, mut client) = start(&settings()).await;
    let window = submit(&mut client, request(WINDOW, "same-id")).await;
    let winning = submit(&mut client, request(WINNING, "same-id")).await;
    assert_ne!(window, winning);
    verified(WINDOW, &ended(&mut client, &window).await);
    verified(WINNING, &ended(&mut client, &winning).await);
    daemon.shutdown(PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_an_id_never_join() {
    let (daemon, mut client) = start(&settings()).await;
    let one = submit(&mut client, request(WINDOW, "")).await;
    let two = submit(&mut client, request(WINDOW, "")).await;
    assert_ne!(one, two);
    daemon.shutdown(std::time::Duration::ZERO).await;
}
