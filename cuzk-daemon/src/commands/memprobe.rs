//! `cuzk memprobe`: how much memory can really be had, found by taking it.
//!
//! A child process takes it, so that a misjudgement costs the child. If a daemon answers, no more
//! than a share of what it has not reserved is taken, slowly, and only while it does not need it.

use super::{block_on, print, print_json, CommandError};
use crate::{address::Address, client, wire};
use bytesize::ByteSize;
use cuzk_governor::{
    probe::{serve, Ended, Found, Probe, Touched},
    sensor::resolve::Root,
};
use std::process::Command;

/// Shown below `--help`.
pub const EXAMPLES: &str = "\
Examples:
  cuzk memprobe                       as far as 1 GiB below the nearest limit
  cuzk memprobe --at-most 64GiB       enough to know that 64 GiB can be had
  cuzk memprobe --stop-short 4GiB --json";

/// How to probe.
#[derive(clap::Args)]
pub struct MemprobeArgs {
    /// Stop with so much left at the nearest limit
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    stop_short: ByteSize,
    /// Take no more than this
    #[arg(long, value_name = "SIZE")]
    at_most: Option<ByteSize>,
    /// Of what a running daemon has not reserved, take so many per cent at most
    #[arg(long, value_name = "PERCENT", default_value_t = 25,
          value_parser = clap::value_parser!(u64).range(1..=100))]
    share: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The hidden command that the child runs.
pub const CHILD: &str = "memprobe-child";

/// Probes and prints what was found. `server` is where a daemon may be running.
pub fn run(args: &MemprobeArgs, server: &Address) -> Result<(), CommandError> {
    let probe = Probe {
        stop_short: args.stop_short.as_u64(),
        at_most: args.at_most.map(|size| size.as_u64()),
        share_of_spare: args.share,
        ..Probe::default()
    };
    let this = std::env::current_exe()
        .map_err(|source| CommandError::File { path: "/proc/self/exe".into(), source })?;
    let mut child = Command::new(this);
    child.arg(CHILD);
    let mut spare = || unreserved(server).unwrap_or(0);
    let daemon = match unreserved(server) {
        Ok(bytes) => {
            eprintln!("a daemon at {server} has {} unreserved: it goes first", ByteSize(bytes));
            Some(&mut spare as &mut dyn FnMut() -> u64)
        }
        Err(CommandError::Unreachable(_)) => None,
        Err(error) => return Err(error),
    };
    let found = probe
        .run(&Root::default(), &mut child, daemon)
        .map_err(|error| CommandError::Failed(error.to_string()))?;
    if args.json {
        let json = serde_json::to_value(&found);
        return print_json(&json.map_err(|error| CommandError::Failed(error.to_string()))?);
    }
    print(&as_text(&found))
}

/// The child: takes as it is told.
pub fn run_child() -> Result<(), CommandError> {
    serve(std::io::stdin().lock(), std::io::stdout(), &mut Touched::default())
        .map_err(|error| CommandError::Failed(error.to_string()))
}

/// What the daemon has not reserved of its budget.
fn unreserved(server: &Address) -> Result<u64, CommandError> {
    block_on(async {
        let mut client = client::connect(server).await?;
        let status = client.get_status(wire::GetStatusRequest {}).await?.into_inner();
        Ok(status.memory_budget_bytes.saturating_sub(status.memory_reserved_bytes))
    })
}

fn as_text(found: &Found) -> String {
    let size = |bytes: u64| ByteSize(bytes).to_string();
    let ended = match &found.ended {
        Ended::StoppedShort { left } => format!("stopped short, with {} left", size(*left)),
        Ended::Capped => "no more was allowed".to_owned(),
        Ended::GaveWay { left } => format!("gave way to others, with {} left", size(*left)),
        Ended::Refused { chunk, reason } => format!("{} more were refused: {reason}", size(*chunk)),
        Ended::TooSlow { chunk } => format!("{} more were not had in time", size(*chunk)),
        Ended::Killed { chunk, for_memory: true } => {
            format!("the kernel killed the child for memory at {} more", size(*chunk))
        }
        Ended::Killed { chunk, for_memory: false } => {
            format!("the child was killed at {} more, by whom is not counted here", size(*chunk))
        }
    };
    format!(
        "foretold  {}\nhad       {} in {:.1} s\nended     {ended}\n",
        size(found.foretold),
        size(found.had),
        found.seconds
    )
}
