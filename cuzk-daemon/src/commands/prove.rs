//! `cuzk prove`: one proof from files, by an engine in this process or by a daemon.

use super::{block_on, print, print_json, request::RequestArgs, CommandError};
use crate::{
    address::Address,
    client,
    config::Settings,
    file::write_atomically,
    progress::{note, Stages},
    server::start_engine,
    service::answer,
    wire::{self, await_proof_response::Status as Ended},
};
use clap::Args;
use cuzk_core::{
    engine::{Engine, JobId},
    proof::{ProofRequest, RawRequest},
};
use std::{path::PathBuf, time::Duration};

/// Shown under `cuzk prove --help`.
pub const EXAMPLES: &str = "\
Examples:
  cuzk prove c1.json -o proof.bin --params-dir /var/tmp/filecoin-proof-parameters
  cuzk prove c1.json --server 127.0.0.1:9820 --request-id porep-1234-7
  cuzk prove sector7.vanilla --kind winning-post --registered-proof 0 --sector-number 7 \\
             --miner-id 1234 --randomness 0909...09

Without -o the proof is printed as hexadecimal digits. Interrupting it cancels the job.";

/// How often a running job is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The flags of `cuzk prove`.
#[derive(Args)]
pub struct ProveArgs {
    #[command(flatten)]
    request: RequestArgs,
    /// Write the proof's bytes to this file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Let this daemon prove it (HOST:PORT or unix:///path) instead of this process
    #[arg(long, value_name = "ADDRESS")]
    server: Option<Address>,
    /// Print times and the proof (hexadecimal) as JSON
    #[arg(long)]
    json: bool,
}

impl ProveArgs {
    /// Whether a daemon is to do the work.
    pub fn is_remote(&self) -> bool {
        self.server.is_some()
    }
}

/// Makes the proof and puts it where it was asked for.
pub fn run(args: &ProveArgs, settings: &Settings) -> Result<(), CommandError> {
    let request = args.request.read()?;
    let result = match &args.server {
        Some(server) => block_on(remotely(server, request))?,
        None => here(settings, request)?,
    };
    match result.status() {
        Ended::Completed => {}
        Ended::Cancelled => return Err(CommandError::Interrupted),
        _ => return Err(CommandError::Failed(format!("no proof: {}", result.error_message))),
    }
    if let Some(path) = &args.output {
        write_atomically(path, &result.proof)
            .map_err(|source| CommandError::File { path: path.clone(), source })?;
    }
    if args.json {
        return print_json(&as_json(&result));
    }
    note(&format!(
        "proved in {:.2} s (waited {:.2}, parameters {:.2}, synthesis {:.2}, compute {:.2})",
        seconds(result.total_ms),
        seconds(result.queue_wait_ms),
        seconds(result.srs_load_ms),
        seconds(result.synthesis_ms),
        seconds(result.gpu_compute_ms),
    ));
    match args.output {
        Some(_) => Ok(()),
        None => print(&format!("{}\n", hex::encode(&result.proof))),
    }
}

async fn remotely(
    server: &Address,
    request: wire::SubmitProofRequest,
) -> Result<wire::AwaitProofResponse, CommandError> {
    let mut client = client::connect(server).await?;
    let job_id = client.submit_proof(request).await?.into_inner().job_id;
    note(&format!("job {job_id} on {server}"));
    let wait = wire::AwaitProofRequest { job_id: job_id.clone(), timeout_ms: 0 };
    let mut canceller = client.clone();
    tokio::select! {
        result = client.await_proof(wait) => Ok(result?.into_inner()),
        _ = tokio::signal::ctrl_c() => {
            let cancel = wire::CancelProofRequest { job_id };
            client::short(canceller.cancel_proof(cancel)).await?;
            Err(CommandError::Interrupted)
        }
    }
}

fn here(
    settings: &Settings,
    request: wire::SubmitProofRequest,
) -> Result<wire::AwaitProofResponse, CommandError> {
    let request = ProofRequest::parse(&RawRequest::from(request))?;
    let engine = start_engine(settings)?;
    let submitted = engine.submit(request).map_err(|e| CommandError::Failed(e.to_string()))?;
    block_on(follow(&engine, &submitted.job_id))
}

/// Waits for a job of this process, and says what it is doing.
async fn follow(engine: &Engine, job: &JobId) -> Result<wire::AwaitProofResponse, CommandError> {
    let mut stages = Stages::new();
    let (sender, mut ended) = tokio::sync::oneshot::channel();
    let _watch = engine
        .watch(job, move |outcome| drop(sender.send(outcome)))
        .map_err(|error| CommandError::Failed(error.to_string()))?;
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            outcome = &mut ended => {
                let outcome = outcome.map_err(|_| CommandError::Interrupted)?;
                return Ok(answer(job, Some(&outcome)));
            }
            _ = tokio::signal::ctrl_c() => drop(engine.cancel(job)),
            _ = looks.tick() => {
                let running = engine.status().running;
                if let Some(job) = running.iter().find(|running| running.job_id == *job) {
                    stages.show(job.stage);
                }
            }
        }
    }
}

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

fn as_json(result: &wire::AwaitProofResponse) -> serde_json::Value {
    serde_json::json!({
        "job_id": result.job_id,
        "proof": hex::encode(&result.proof),
        "queue_wait_ms": result.queue_wait_ms,
        "srs_load_ms": result.srs_load_ms,
        "synthesis_ms": result.synthesis_ms,
        "gpu_compute_ms": result.gpu_compute_ms,
        "total_ms": result.total_ms,
    })
}
