//! Each proof kind at 2 KiB: synthesis in full against a witness times the recorded matrices.
//!
//! The same circuit, from its first variable to the last value of A and B, the rows on one thread (as
//! beside a busy device) and on two. The sides alternate; the file is in the page cache (`cold`: it
//! is not, and the disk is part of the time). Recording is from a blank circuit; its peak is
//! anonymous memory beyond what the process held before. Prints a table, then one line of JSON.
//!
//! `cargo bench --bench compiled -- [--kind porep] [--runs 5]`; with `--record porep-32g` it only
//! records, a circuit of any size.

use std::env;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{ensure, Context, Result};
use blstrs::Scalar;
use cuzk_benches::{machine, median, PeakWatch};
use cuzk_core::circuit::compiled::{record, Compiled, Identity, Sizes};
use cuzk_core::circuit::{synthesize, Matrices, Synthesized};
use cuzk_core::device::Unhindered;
use cuzk_core::params::CircuitSize;
use cuzk_core::proof::{CircuitId, ProofKind, ProofRequest};
use cuzk_core::sample::Sample;
use cuzk_tests::memory::forget;
use ff::Field;
use serde::{Deserialize, Serialize};

/// What was measured of one kind; seconds and bytes.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    plain: f64,
    compiled: f64,
    compiled_on_two: f64,
    cold: f64,
    recording: Recording,
}

/// What recording took.
#[derive(Debug, Serialize, Deserialize)]
struct Recording {
    seconds: f64,
    peak: u64,
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
    if let Some(id) = value("--record") {
        let recording = record_only(id.parse()?)?;
        println!("{id}: {recording}");
        println!(
            "{}",
            serde_json::json!({"bench": "compiled", "circuit": id, "recording": recording})
        );
        return Ok(());
    }
    println!("{}, 2 KiB sectors, medians of {runs}", machine());
    println!(
        "{:<13} {:>8} {:>10} {:>8} {:>7} {:>7}  recording",
        "kind", "plain s", "compiled s", "on two s", "cold s", "ratio"
    );
    let mut rows = serde_json::Map::new();
    for kind in kind.map_or(ProofKind::ALL.to_vec(), |kind| vec![kind]) {
        // A process of its own: its peak is its own, too.
        let row = child(kind, runs)?;
        println!(
            "{:<13} {:>8.3} {:>10.3} {:>8.3} {:>7.3} {:>7.3}  {}",
            kind.to_string(),
            row.plain,
            row.compiled,
            row.compiled_on_two,
            row.cold,
            row.compiled / row.plain,
            row.recording,
        );
        rows.insert(kind.to_string(), serde_json::to_value(row)?);
    }
    println!("{}", serde_json::json!({"bench": "compiled", "machine": machine(), "rows": rows}));
    Ok(())
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, peak, file, terms, coefficients } = self;
        let mib = |bytes: &u64| *bytes as f64 / (1 << 20) as f64;
        let (peak, on_disk, density) = (mib(peak), mib(file), *file as f64 / *terms as f64);
        write!(
            f,
            "{seconds:.2} s, peak {peak:.1} MiB, {on_disk:.2} MiB on disk, {terms} terms \
             ({density:.2} bytes each, {coefficients} coefficients)"
        )
    }
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
    let size = CircuitSize::of(request.circuit_id().blank()?)?;
    let folder = folder()?;
    let path = folder.path().join("circuit.csr");
    let identity = Identity { circuit: request.circuit_id().file_stem()?, counts: size.counts() };
    let recording = recorded(request.circuit_id(), &path, &identity)?;
    let mut compiled = Compiled::open(&path, &identity)?;
    let two = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
    let mut bench = Bench::new(request, size);
    let (mut plain, mut alone, mut on_two, mut cold) = (vec![], vec![], vec![], vec![]);
    for _ in 0..runs {
        let (seconds, expected) = bench.run(Matrices::Circuit)?;
        plain.push(seconds);
        let values = bench.hash();
        let (seconds, found) = bench.run(Matrices::Compiled(&compiled))?;
        alone.push(seconds);
        ensure!(expected == found && values == bench.hash(), "the results differ");
        on_two.push(two.install(|| bench.run(Matrices::Compiled(&compiled)))?.0);
        // Pages that are mapped nowhere.
        drop(compiled);
        forget(&path)?;
        compiled = Compiled::open(&path, &identity)?;
        cold.push(bench.run(Matrices::Compiled(&compiled))?.0);
    }
    Ok(Row {
        plain: median(plain),
        compiled: median(alone),
        compiled_on_two: median(on_two),
        cold: median(cold),
        recording,
    })
}

fn record_only(id: CircuitId) -> Result<Recording> {
    let counts = CircuitSize::of(id.blank()?)?.counts();
    let identity = Identity { circuit: id.file_stem()?, counts };
    let folder = folder()?;
    recorded(id, &folder.path().join("circuit.csr"), &identity)
}

/// On a real disk, as the build's output is.
fn folder() -> Result<tempfile::TempDir> {
    Ok(tempfile::tempdir_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../target"))?)
}

fn recorded(id: CircuitId, path: &Path, identity: &Identity) -> Result<Recording> {
    // SAFETY: gives back free memory, and touches nothing that is in use.
    unsafe { libc::malloc_trim(0) };
    let (before, _) = PeakWatch::start().finish();
    let watch = PeakWatch::start();
    let started = Instant::now();
    record(id.blank()?, path, identity.clone(), &Unhindered)?;
    let seconds = started.elapsed().as_secs_f64();
    let peak = watch.finish().0.saturating_sub(before);
    let compiled = Compiled::open(path, identity)?;
    let Sizes { terms, coefficients, .. } = *compiled.sizes();
    Ok(Recording { seconds, peak, file: compiled.size_bytes(), terms, coefficients })
}

/// A circuit's buffers.
struct Bench {
    request: ProofRequest,
    inputs: usize,
    a: Vec<Scalar>,
    b: Vec<Scalar>,
    aux: Vec<Scalar>,
}

impl Bench {
    fn new(request: ProofRequest, size: CircuitSize) -> Self {
        // Not zeros, which the kernel hands out untouched: a pool's buffers have their pages.
        let buffer = |len| vec![Scalar::ONE; len];
        let (a, b, aux) = (buffer(size.domain()), buffer(size.domain()), buffer(size.aux));
        Self { request, inputs: size.inputs, a, b, aux }
    }

    fn run(&mut self, matrices: Matrices<'_, '_>) -> Result<(f64, Synthesized)> {
        let circuit = self.request.partition(0)?.circuit;
        let Self { inputs, a, b, aux, .. } = self;
        let started = Instant::now();
        let synthesized = synthesize(circuit, matrices, a, b, aux, *inputs, &Unhindered)?;
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
