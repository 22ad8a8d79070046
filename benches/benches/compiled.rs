//! Each proof kind at 2 KiB: synthesis in full against a witness times the recorded matrices.
//!
//! The same circuit, from its first variable to the last value of A and B, two threads. The sides
//! alternate; the file is in the page cache (`cold`: it is not, and the disk is part of the time).
//! Recording is from a blank circuit; its peak is anonymous memory beyond what the process held
//! before. Prints a table, then one line of JSON.
//!
//! `cargo bench --bench compiled -- [--kind porep] [--runs 5]`

use std::env;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use blstrs::Scalar;
use cuzk_benches::{machine, median, PeakWatch};
use cuzk_core::circuit::compiled::{record, Compiled, Identity};
use cuzk_core::circuit::{synthesize, Matrices, Synthesized};
use cuzk_core::device::Unhindered;
use cuzk_core::params::CircuitSize;
use cuzk_core::proof::{ProofKind, ProofRequest};
use cuzk_core::sample::Sample;
use ff::Field;
use rayon::ThreadPool;
use serde::{Deserialize, Serialize};

const THREADS: usize = 2;

/// What was measured of one kind; seconds and bytes.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    plain: f64,
    compiled: f64,
    cold: f64,
    record: f64,
    record_peak: u64,
    file: u64,
    terms: u64,
    coefficients: u64,
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let value = |name: &str| {
        args.iter().position(|arg| arg == name).and_then(|i| args.get(i + 1)).map(String::as_str)
    };
    let runs = value("--runs").map(str::parse).transpose()?.unwrap_or(5);
    let kind: Option<ProofKind> = value("--kind").map(str::parse).transpose()?;
    if let (Some(kind), true) = (kind, args.iter().any(|arg| arg == "--child")) {
        println!("{}", serde_json::to_string(&measure(kind, runs)?)?);
        return Ok(());
    }
    println!("{}, {THREADS} threads, 2 KiB sectors, medians of {runs}", machine());
    println!(
        "{:<13} {:>8} {:>10} {:>7} {:>7} {:>9} {:>9} {:>11} {:>10} {:>13}",
        "kind",
        "plain s",
        "compiled s",
        "cold s",
        "ratio",
        "record s",
        "peak MiB",
        "on disk MiB",
        "bytes/term",
        "coefficients"
    );
    let mut rows = serde_json::Map::new();
    for kind in kind.map_or(ProofKind::ALL.to_vec(), |kind| vec![kind]) {
        // A process of its own: its peak is its own, too.
        let row = child(kind, runs)?;
        let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
        println!(
            "{:<13} {:>8.3} {:>10.3} {:>7.3} {:>7.3} {:>9.2} {:>9.1} {:>11.2} {:>10.2} {:>13}",
            kind.to_string(),
            row.plain,
            row.compiled,
            row.cold,
            row.compiled / row.plain,
            row.record,
            mib(row.record_peak),
            mib(row.file),
            row.file as f64 / row.terms as f64,
            row.coefficients,
        );
        rows.insert(kind.to_string(), serde_json::to_value(row)?);
    }
    let line = serde_json::json!({
        "bench": "compiled", "machine": machine(), "threads": THREADS, "rows": rows,
    });
    println!("{line}");
    Ok(())
}

fn child(kind: ProofKind, runs: usize) -> Result<Row> {
    let output = Command::new(env::current_exe()?)
        .args(["--child", "--kind", &kind.to_string(), "--runs", &runs.to_string()])
        .output()
        .context("cannot start a measurement")?;
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "measuring {kind} failed: {err}");
    let line = out.lines().last().context("the measurement printed nothing")?;
    serde_json::from_str(line).with_context(|| format!("the measurement printed `{line}`"))
}

fn measure(kind: ProofKind, runs: usize) -> Result<Row> {
    let request = ProofRequest::parse(&Sample::make(1)?.request(kind))?;
    let id = request.circuit_id();
    let size = CircuitSize::of(id.blank()?)?;
    let identity = Identity { circuit: id.file_stem()?, counts: size.counts() };
    let folder = tempfile::tempdir_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../target"))?;
    let path = folder.path().join("circuit.csr");

    let (record, record_peak) =
        recording(|| Ok(record(id.blank()?, &path, identity.clone(), &Unhindered)?))?;
    let threads = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build()?;
    let mut bench = Bench::new(request, size, threads);
    let compiled = Compiled::open(&path, &identity)?;
    let (mut plain, mut fast, mut cold) = (vec![], vec![], vec![]);
    for _ in 0..runs {
        let (seconds, expected) = bench.run(Matrices::Circuit)?;
        plain.push(seconds);
        let values = bench.hash();
        let (seconds, found) = bench.run(Matrices::Compiled(&compiled))?;
        fast.push(seconds);
        ensure!(expected == found && values == bench.hash(), "the results differ");
        // Unmapped pages only can be dropped.
        drop_page_cache(&path)?;
        let opened = Compiled::open(&path, &identity)?;
        cold.push(bench.run(Matrices::Compiled(&opened))?.0);
    }
    Ok(Row {
        plain: median(plain),
        compiled: median(fast),
        cold: median(cold),
        record,
        record_peak,
        file: compiled.size_bytes(),
        terms: compiled.sizes().terms,
        coefficients: compiled.sizes().coefficients,
    })
}

/// Seconds, and the peak of anonymous memory beyond what was there before.
fn recording(record: impl FnOnce() -> Result<()>) -> Result<(f64, u64)> {
    // SAFETY: gives back free memory, and touches nothing that is in use.
    unsafe { libc::malloc_trim(0) };
    let (before, _) = PeakWatch::start().finish();
    let watch = PeakWatch::start();
    let started = Instant::now();
    record()?;
    let seconds = started.elapsed().as_secs_f64();
    Ok((seconds, watch.finish().0.saturating_sub(before)))
}

fn drop_page_cache(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    // SAFETY: a call on an open descriptor, without pointers.
    let dropped = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    ensure!(dropped == 0, "the page cache of {} is not dropped", path.display());
    Ok(())
}

/// A circuit's buffers.
struct Bench {
    request: ProofRequest,
    inputs: usize,
    a: Vec<Scalar>,
    b: Vec<Scalar>,
    aux: Vec<Scalar>,
    threads: ThreadPool,
}

impl Bench {
    fn new(request: ProofRequest, size: CircuitSize, threads: ThreadPool) -> Self {
        // Not zeros, which the kernel hands out untouched: a pool's buffers have their pages.
        let buffer = |len| vec![Scalar::ONE; len];
        let (a, b, aux) = (buffer(size.domain()), buffer(size.domain()), buffer(size.aux));
        Self { request, inputs: size.inputs, a, b, aux, threads }
    }

    fn run(&mut self, matrices: Matrices<'_, '_>) -> Result<(f64, Synthesized)> {
        let circuit = self.request.partition(0)?.circuit;
        let Self { inputs, a, b, aux, threads, .. } = self;
        let started = Instant::now();
        let synthesized =
            threads.install(|| synthesize(circuit, matrices, a, b, aux, *inputs, &Unhindered))?;
        Ok((started.elapsed().as_secs_f64(), synthesized))
    }

    /// Of everything in the buffers.
    fn hash(&self) -> [u64; 3] {
        use std::hash::{DefaultHasher, Hash, Hasher};
        [&self.a, &self.b, &self.aux].map(|scalars| {
            let mut hasher = DefaultHasher::new();
            scalars.iter().for_each(|scalar| scalar.to_bytes_le().hash(&mut hasher));
            hasher.finish()
        })
    }
}
