//! A daemon of one's own for each test, and a sector that all of them prove.

use cuzk_core::proof::ProofKind;
use cuzk_core::sample::Sample;
use cuzk_daemon::client::{self, Client};
use cuzk_daemon::config::{Config, SettingFlags, Settings};
use cuzk_daemon::server::Daemon;
use cuzk_daemon::wire::{self, await_proof_response::Status as Ended};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;
use tonic::{Code, Status};

/// Nothing in these tests takes longer unless it hangs.
pub const PATIENCE: Duration = Duration::from_secs(600);

pub const WINDOW: ProofKind = ProofKind::WindowPostPartition;
pub const WINNING: ProofKind = ProofKind::WinningPost;

/// Where the parameters of the quick kinds are.
pub fn parameters() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| cuzk_tests::parameters::development(&[WINDOW, WINNING])).clone()
}

/// The sector.
pub fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let folder = parameters();
        std::env::set_var("FIL_PROOFS_PARAMETER_CACHE", &folder);
        std::env::set_var("FIL_PROOFS_PARENT_CACHE", folder.join("parents"));
        Sample::make(11).expect("a sector is made")
    })
}

/// A request about the sector, with an id.
pub fn request(kind: ProofKind, id: &str) -> wire::SubmitProofRequest {
    wire::SubmitProofRequest { request_id: id.to_owned(), ..sample().request(kind).into() }
}

/// Settings for a daemon on a port of its own.
pub fn settings() -> Settings {
    let flags = SettingFlags {
        listen: vec!["127.0.0.1:0".to_owned()],
        params_dir: Some(parameters().display().to_string()),
        memory_budget: Some("4GiB".to_owned()),
        threads: Some("2".to_owned()),
        ..SettingFlags::default()
    };
    Config::load(None, &flags).expect("settings are good").settings
}

/// A daemon and a client of it.
pub async fn start(settings: &Settings) -> (Daemon, Client) {
    sample();
    let daemon = Daemon::start(settings).await.expect("the daemon starts");
    let client = connect(&daemon).await;
    (daemon, client)
}

/// One more client, on a connection of its own.
pub async fn connect(daemon: &Daemon) -> Client {
    client::connect(&daemon.addresses()[0]).await.expect("the daemon answers")
}

pub async fn submit(client: &mut Client, request: wire::SubmitProofRequest) -> String {
    client.submit_proof(request).await.expect("the job is accepted").into_inner().job_id
}

/// The job's end; fails the test where it takes forever.
pub async fn ended(client: &mut Client, job_id: &str) -> wire::AwaitProofResponse {
    let timeout_ms = PATIENCE.as_millis() as u64;
    let wait = wire::AwaitProofRequest { job_id: job_id.to_owned(), timeout_ms };
    let end = client.await_proof(wait).await.expect("the job is known").into_inner();
    assert_ne!(end.status(), Ended::Timeout, "job {job_id} did not end in {PATIENCE:?}");
    end
}

/// The proof of a job that has to complete, checked by Filecoin's own code.
pub fn verified(kind: ProofKind, end: &wire::AwaitProofResponse) -> Vec<u8> {
    assert_eq!(end.status(), Ended::Completed, "{}", end.error_message);
    assert!(sample().verify_with_filecoin(kind, &end.proof).expect("a proof"), "{kind}");
    end.proof.clone()
}

pub async fn status(client: &mut Client) -> wire::GetStatusResponse {
    client.get_status(wire::GetStatusRequest {}).await.expect("a status").into_inner()
}

/// (pending, in progress) over all queues.
pub fn counts(status: &wire::GetStatusResponse) -> (u32, u32) {
    let queues = status.queues.iter();
    queues.fold((0, 0), |(p, r), queue| (p + queue.pending, r + queue.in_progress))
}

/// Asks again and again until the condition holds.
pub async fn until(
    client: &mut Client,
    what: &str,
    condition: impl Fn(&wire::GetStatusResponse) -> bool,
) {
    let asking = async {
        while !condition(&status(client).await) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// The refusal's code and text.
pub fn refusal<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.expect_err("a refusal");
    (status.code(), status.message().to_owned())
}
