//! `cuzk cancel`: stops a job of a running daemon.

use super::{block_on, print, CommandError};
use crate::{address::Address, client, wire};

/// Cancels one job.
pub fn run(server: &Address, job_id: String) -> Result<(), CommandError> {
    block_on(async {
        let mut client = client::connect(server).await?;
        let request = wire::CancelProofRequest { job_id: job_id.clone() };
        let was_running = client::short(client.cancel_proof(request)).await?.was_running;
        let state = if was_running { "was running, and stops" } else { "was not running" };
        print(&format!("job {job_id} {state}\n"))
    })
}
