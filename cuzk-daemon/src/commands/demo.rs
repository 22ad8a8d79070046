//! `cuzk demo`: a fresh 2 KiB sector, proved by a daemon in this process over its own wire, and
//! verified with Filecoin's own code. What it shows is what a storage provider would get, only
//! that the sector is small and the parameters are for development.

use super::{
    block_on_workers,
    params::{development_dir, make},
    print, print_json,
    save::{typed, Kept},
    table, CommandError,
};
use crate::{
    address::Address,
    client::{self, Client},
    config::{Config, SettingFlags, Settings},
    progress::note,
    server::Daemon,
    wire::{self, await_proof_response::Status as Ended},
};
use bytesize::ByteSize;
use clap::Args;
use cuzk_core::{
    params::CircuitSize,
    proof::{CircuitId, ProofKind, SectorSize},
    sample::Sample,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Shown under `cuzk demo --help`.
pub const EXAMPLES: &str = "\
Examples:
  cuzk demo                        WinningPoSt and WindowPoSt, some seconds each
  cuzk demo --kind porep           the big one: minutes, most of them for its parameters
  cuzk demo --kind all --json
  cuzk demo --save sample          keeps requests and proofs, and shows the commands that take them

Development parameters are made on first use and kept; --params-dir says where.";

/// The flags of `cuzk demo`.
#[derive(Args)]
pub struct DemoArgs {
    /// winning-post, window-post, porep, snap or all; several with commas
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    #[arg(default_values = ["winning-post", "window-post"])]
    kind: Vec<String>,
    /// Determines the sector's content
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Keep the requests and proofs in this folder, and show how to prove and verify them again
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What one proof took, and whether it holds.
struct Row {
    kind: ProofKind,
    constraints: usize,
    times: wire::AwaitProofResponse,
    peak_bytes: u64,
    verified: Result<(), String>,
}

/// Proves and verifies; an error unless every proof holds.
pub fn run(args: &DemoArgs, flags: &SettingFlags, file: Option<&Path>) -> Result<(), CommandError> {
    let kinds = kinds(&args.kind)?;
    let own_folder = || Some(development_dir().display().to_string());
    let params_dir = flags.params_dir.clone().or_else(own_folder);
    let config = Config::load(file, &SettingFlags { params_dir, ..flags.clone() })?;
    config.require_machine()?;
    let mut settings = config.settings;
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        CommandError::Failed(format!("{what}: {error}"))
    };
    let folder = tempfile::tempdir().map_err(|error| failed("no temporary folder", &error))?;

    // Filecoin's code reads these once, on first use; no other thread runs yet.
    env::set_var("FIL_PROOFS_PARAMETER_CACHE", &settings.params_dir);
    env::set_var("FIL_PROOFS_PARENT_CACHE", folder.path().join("parents"));
    note("sealing a fresh 2 KiB sector");
    let sample = Sample::make(args.seed).map_err(|error| failed("no sector", &error))?;
    let circuits: Vec<_> = kinds.iter().map(|kind| circuit(*kind)).collect();
    make(&circuits, &settings.params_dir)?;

    settings.listen = vec![Address::Unix(folder.path().join("cuzk.sock"))];
    let rows = block_on_workers(prove_all(&settings, &sample, &kinds))?;
    if let Some(folder) = &args.save {
        save(folder, &sample, &rows, &settings.params_dir)?;
    }
    let bad = rows.iter().filter(|row| row.verified.is_err()).count();
    show(&rows, args.json)?;
    match bad {
        0 => Ok(()),
        bad => Err(CommandError::Failed(format!("{bad} of {} proofs do not hold", rows.len()))),
    }
}

fn kinds(names: &[String]) -> Result<Vec<ProofKind>, CommandError> {
    if names.iter().any(|name| name == "all") {
        return Ok(ProofKind::ALL.to_vec());
    }
    names
        .iter()
        .map(|name| name.parse().map_err(|error| CommandError::Usage(format!("--kind: {error}"))))
        .collect()
}

fn circuit(kind: ProofKind) -> CircuitId {
    CircuitId { kind, sector_size: SectorSize::KiB2 }
}

async fn prove_all(
    settings: &Settings,
    sample: &Sample,
    kinds: &[ProofKind],
) -> Result<Vec<Row>, CommandError> {
    let daemon = Daemon::start(settings).await?;
    let mut client = client::connect(&daemon.addresses()[0]).await?;
    let mut rows = Vec::new();
    for kind in kinds {
        rows.push(prove(&mut client, sample, *kind).await?);
    }
    drop(client);
    daemon.shutdown(settings.shutdown_grace.0).await;
    Ok(rows)
}

async fn prove(client: &mut Client, sample: &Sample, kind: ProofKind) -> Result<Row, CommandError> {
    let constraints = circuit(kind)
        .blank()
        .map_err(|error| error.to_string())
        .and_then(|blank| CircuitSize::of(blank).map_err(|error| error.to_string()))
        .map_err(CommandError::Failed)?
        .constraints;
    note(&format!("proving {kind}: {constraints} constraints"));
    forget_peak();
    let submit = Some(sample.request(kind).into());
    let reply = client.prove(wire::ProveRequest { submit }).await?.into_inner();
    let times = reply.result.unwrap_or_default();
    let peak_bytes = peak_bytes();
    let verified = match times.status() {
        Ended::Completed => match sample.verify_with_filecoin(kind, &times.proof) {
            Ok(true) => Ok(()),
            Ok(false) => Err("Filecoin's verifier rejects the proof".to_owned()),
            Err(error) => Err(error.to_string()),
        },
        _ => Err(times.error_message.clone()),
    };
    Ok(Row { kind, constraints, times, peak_bytes, verified })
}

/// Keeps the requests and proofs, and shows the commands that take them.
fn save(
    folder: &Path,
    sample: &Sample,
    rows: &[Row],
    params_dir: &Path,
) -> Result<(), CommandError> {
    let kept = Kept::in_folder(folder)?;
    let params = format!("--params-dir={}", params_dir.display());
    for row in rows {
        let request = kept.request(row.kind, &sample.request(row.kind))?;
        let request = || request.iter().map(String::as_str).chain([params.as_str()]);
        note(&typed(["cuzk", "prove"].into_iter().chain(request())));
        if row.verified.is_ok() {
            let proof = format!("--proof={}", kept.proof(row.kind, &row.times.proof)?);
            let words = ["cuzk", "verify", &proof].into_iter().chain(request());
            note(&typed(words));
        }
    }
    Ok(())
}

/// Lets the kernel start the process's peak memory over; where it does not, peaks only grow.
fn forget_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn show(rows: &[Row], json: bool) -> Result<(), CommandError> {
    if json {
        let proofs: Vec<_> = rows.iter().map(as_json).collect();
        return print_json(&serde_json::json!({ "proofs": proofs }));
    }
    let seconds = |milliseconds: u64| format!("{:.2}", milliseconds as f64 / 1000.0);
    let mut page = table([
        "kind",
        "constraints",
        "parameters s",
        "synthesis s",
        "compute s",
        "total s",
        "peak memory",
        "verified",
    ]);
    for row in rows {
        page.add_row([
            row.kind.to_string(),
            row.constraints.to_string(),
            seconds(row.times.srs_load_ms),
            seconds(row.times.synthesis_ms),
            seconds(row.times.gpu_compute_ms),
            seconds(row.times.total_ms),
            ByteSize(row.peak_bytes).display().iec().to_string(),
            row.verified.clone().map_or_else(|why| format!("NO: {why}"), |()| "yes".to_owned()),
        ]);
    }
    print(&(page.trim_fmt() + "\n"))
}

fn as_json(row: &Row) -> serde_json::Value {
    serde_json::json!({
        "kind": row.kind.to_string(),
        "constraints": row.constraints,
        "queue_wait_ms": row.times.queue_wait_ms,
        "srs_load_ms": row.times.srs_load_ms,
        "synthesis_ms": row.times.synthesis_ms,
        "compute_ms": row.times.gpu_compute_ms,
        "total_ms": row.times.total_ms,
        "peak_bytes": row.peak_bytes,
        "proof": hex::encode(&row.times.proof),
        "verified": row.verified.is_ok(),
        "error": row.verified.as_ref().err(),
    })
}
