//! Each proof kind at 2 KiB: ours against bellperson's public prover.
//!
//! Same circuits, same parameters, same threads, from the circuit's first constraint to the proof;
//! verification is outside the clock, on both sides. The sides alternate, each run in a process of
//! its own so that peaks can be told apart. Prints a table, then one line of JSON.
//!
//! `cargo bench -p cuzk-benches --bench prover -- [--kind porep] [--runs 3]`

use std::collections::BTreeMap;
use std::env;
use std::process::Command;
use std::time::Instant;

use anyhow::{bail, ensure, Context, Result};
use bellpepper_core::{Circuit, ConstraintSystem, LinearCombination, SynthesisError};
use bellperson::groth16::{create_random_proof_batch, Parameters};
use blstrs::{Bls12, Scalar};
use cuzk_benches::{machine, median, params_dir, PeakWatch};
use cuzk_core::circuit::{AnyCircuit, ConstraintSink, Matrices, Synthesizer};
use cuzk_core::device::Unhindered;
use cuzk_core::memory::{PinnedPool, Plain};
use cuzk_core::params::{dev, Params};
use cuzk_core::proof::{Partition, ProofKind, ProofRequest};
use cuzk_core::sample::Sample;
use cuzk_core::{groth16, pipeline};
use cuzk_governor::budget::{Ask, MemoryBudget};
use serde::{Deserialize, Serialize};

const THREADS: usize = 2;

/// One proof by one side.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Run {
    seconds: f64,
    synthesis: f64,
    quotient: f64,
    msm: f64,
    peak_anonymous: u64,
    peak_resident: u64,
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let value = |name: &str| {
        args.iter().position(|arg| arg == name).and_then(|i| args.get(i + 1)).map(String::as_str)
    };
    env::set_var("RAYON_NUM_THREADS", THREADS.to_string());
    env::set_var("FIL_PROOFS_PARAMETER_CACHE", params_dir());
    let kind: Option<ProofKind> = value("--kind").map(str::parse).transpose()?;
    if let Some(side) = value("--side") {
        let kind = kind.context("--side needs --kind")?;
        println!("{}", serde_json::to_string(&one_run(side, kind)?)?);
        return Ok(());
    }
    let kinds = kind.map_or(ProofKind::ALL.to_vec(), |kind| vec![kind]);
    let runs = value("--runs").map(str::parse).transpose()?;
    compare(&kinds, runs)
}

/// Alternates the sides, a process a run.
fn compare(kinds: &[ProofKind], runs: Option<usize>) -> Result<()> {
    println!("{}, {THREADS} threads, 2 KiB sectors, medians", machine());
    println!(
        "{:<13} {:>4} {:>10} {:>12} {:>6} {:>9} {:>9} {:>7} {:>7}  peak MiB ours / bellperson (anonymous; resident)",
        "kind", "runs", "ours s", "bellperson s", "ratio", "ratio min", "ratio max", "synth", "msm"
    );
    let mut ratios = BTreeMap::new();
    let mut peaks = BTreeMap::new();
    for &kind in kinds {
        ensure_params(kind)?;
        let runs = runs.unwrap_or(match kind {
            ProofKind::PorepSealCommit | ProofKind::SnapDealsUpdate => 3,
            ProofKind::WindowPostPartition | ProofKind::WinningPost => 7,
        });
        let mut pairs = Vec::new();
        for _ in 0..runs {
            pairs.push((child("ours", kind)?, child("bellperson", kind)?));
        }
        let ours = |of: fn(&Run) -> f64| median(pairs.iter().map(|(run, _)| of(run)).collect());
        let theirs = |of: fn(&Run) -> f64| median(pairs.iter().map(|(_, run)| of(run)).collect());
        let mut each: Vec<f64> = pairs.iter().map(|(a, b)| a.seconds / b.seconds).collect();
        each.sort_by(f64::total_cmp);
        let ratio = median(each.clone());
        let mib = |bytes: f64| (bytes / (1 << 20) as f64).round();
        let anonymous: fn(&Run) -> f64 = |run| run.peak_anonymous as f64;
        let resident: fn(&Run) -> f64 = |run| run.peak_resident as f64;
        println!(
            "{:<13} {runs:>4} {:>10.2} {:>12.2} {ratio:>6.3} {:>9.3} {:>9.3} {:>7.2} {:>7.2}  {} / {}; {} / {}",
            kind.to_string(),
            ours(|run| run.seconds),
            theirs(|run| run.seconds),
            each[0],
            each[each.len() - 1],
            ours(|run| run.synthesis),
            ours(|run| run.msm),
            mib(ours(anonymous)),
            mib(theirs(anonymous)),
            mib(ours(resident)),
            mib(theirs(resident)),
        );
        let name = short_name(kind);
        ratios.insert(name, (ratio * 1000.0).round() / 1000.0);
        peaks.insert(
            name,
            serde_json::json!({
                "ours": {"anonymous": ours(anonymous), "resident": ours(resident)},
                "bellperson": {"anonymous": theirs(anonymous), "resident": theirs(resident)},
            }),
        );
    }
    println!(
        "{}",
        serde_json::json!({
            "bench": "prover", "machine": machine(), "threads": THREADS,
            "ratio": ratios, "peak_bytes": peaks,
        })
    );
    Ok(())
}

fn short_name(kind: ProofKind) -> &'static str {
    match kind {
        ProofKind::PorepSealCommit => "porep",
        ProofKind::SnapDealsUpdate => "update",
        ProofKind::WindowPostPartition => "window",
        ProofKind::WinningPost => "winning",
    }
}

fn ensure_params(kind: ProofKind) -> Result<()> {
    let request = request(kind)?;
    let params = dev::ensure(&[request.circuit_id()], &params_dir(), &mut |_| {}, &Unhindered)?;
    // The native file is made before the clock starts, as a daemon has it from its first proof on.
    params.open(&request.circuit_id(), &mut |_| {}, &Unhindered)?;
    Ok(())
}

fn child(side: &str, kind: ProofKind) -> Result<Run> {
    let output = Command::new(env::current_exe()?)
        .args(["--side", side, "--kind", &kind.to_string()])
        .output()
        .with_context(|| format!("cannot start the {side} run"))?;
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "the {side} run of {kind} failed: {err}");
    let line = out.lines().last().context("the run printed nothing")?;
    serde_json::from_str(line).with_context(|| format!("the run printed `{line}`"))
}

fn request(kind: ProofKind) -> Result<ProofRequest> {
    Ok(ProofRequest::parse(&Sample::make(1)?.request(kind))?)
}

/// One proof, after one to warm up where that is cheap, in this process.
fn one_run(side: &str, kind: ProofKind) -> Result<Run> {
    let request = request(kind)?;
    let prove = match side {
        "ours" => ours,
        "bellperson" => bellperson,
        other => bail!("--side is `ours` or `bellperson`, found `{other}`"),
    };
    if matches!(kind, ProofKind::WindowPostPartition | ProofKind::WinningPost) {
        prove(&request)?;
    }
    prove(&request)
}

fn ours(request: &ProofRequest) -> Result<Run> {
    let srs = Params::new(params_dir()).open(&request.circuit_id(), &mut |_| {}, &Unhindered)?;
    let pool = PinnedPool::new(4 << 30, 4 << 20, Box::new(Plain))?;
    let needs = pipeline::footprint(&srs.header().counts, THREADS, &pool).total();
    let mut memory = MemoryBudget::new(needs).try_reserve(Ask::new("partition", needs))?;
    let threads = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build()?;
    let Partition { circuit, inputs } = request.partition(0)?;
    let watch = PeakWatch::start();
    let started = Instant::now();
    let (proof, times) = threads.install(|| {
        let rng = &mut rand::rngs::OsRng;
        pipeline::prove(circuit, Matrices::Circuit, &srs, &pool, &mut memory, &Unhindered, rng)
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let (peak_anonymous, peak_resident) = watch.finish();
    ensure!(groth16::verify(srs.vk(), &proof.to_bytes(), &[inputs])?, "our proof is invalid");
    Ok(Run {
        seconds,
        synthesis: times.synthesis.as_secs_f64(),
        quotient: times.quotient.as_secs_f64(),
        msm: (times.witness_msm + times.h_msm).as_secs_f64(),
        peak_anonymous,
        peak_resident,
    })
}

fn bellperson(request: &ProofRequest) -> Result<Run> {
    let store = Params::new(params_dir());
    let file = store.params_path(&request.circuit_id().file_stem()?);
    let params = Parameters::<Bls12>::build_mapped_parameters(file, false)?;
    let key = store.verifying_key(&request.circuit_id().file_stem()?)?;
    let Partition { circuit, inputs } = request.partition(0)?;
    let watch = PeakWatch::start();
    let started = Instant::now();
    let proofs =
        create_random_proof_batch(vec![ForBellperson(circuit)], &params, &mut rand::rngs::OsRng)?;
    let seconds = started.elapsed().as_secs_f64();
    let (peak_anonymous, peak_resident) = watch.finish();
    let mut bytes = Vec::new();
    proofs[0].write(&mut bytes)?;
    ensure!(groth16::verify(&key, &bytes, &[inputs])?, "bellperson's proof is invalid");
    Ok(Run { seconds, synthesis: 0.0, quotient: 0.0, msm: 0.0, peak_anonymous, peak_resident })
}

/// The same circuit, synthesised into bellperson's own prover.
struct ForBellperson(Box<dyn AnyCircuit>);

impl Circuit<Scalar> for ForBellperson {
    fn synthesize<CS: ConstraintSystem<Scalar>>(self, cs: &mut CS) -> Result<(), SynthesisError> {
        let mut sink = PassOn { cs };
        self.0.synthesize(&mut Synthesizer::new(&mut sink))
    }
}

struct PassOn<'a, CS> {
    cs: &'a mut CS,
}

impl<CS: ConstraintSystem<Scalar>> ConstraintSink for PassOn<'_, CS> {
    fn wants_values(&self) -> bool {
        true
    }

    fn input(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.cs.alloc_input(|| "", || value.ok_or(SynthesisError::AssignmentMissing)).map(drop)
    }

    fn aux(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.cs.alloc(|| "", || value.ok_or(SynthesisError::AssignmentMissing)).map(drop)
    }

    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        c: LinearCombination<Scalar>,
    ) {
        self.cs.enforce(|| "", |_| a, |_| b, |_| c);
    }
}
