//! Compiled circuits in the engine's hands: when one appears, when it is used, when it is removed; and
//! what recording takes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::{env, fs};

use bellperson::{Circuit, ConstraintSystem, Index, LinearCombination, SynthesisError, Variable};
use blstrs::Scalar;
use cuzk_core::circuit::compiled::{record, Compiled, Identity};
use cuzk_core::circuit::{AnyCircuit, ConstraintSink, Synthesizer};
use cuzk_core::device::{Checkpoint, Interrupted, Unhindered};
use cuzk_core::engine::{Engine, JobResult};
use cuzk_core::params::{Counts, Params};
use cuzk_core::proof::{CircuitId, ProofKind, ProofRequest, RawRequest, SectorSize};
use cuzk_core::sample::Sample;
use cuzk_tests::memory::resident;
use cuzk_tests::{cgroup_or_skip, parameters};
use tempfile::TempDir;

use super::{child, engine_with, outcome, proof, sample, submit, told, turn};

const WINDOW: ProofKind = ProofKind::WindowPostPartition;
const CIRCUIT: CircuitId = CircuitId { kind: WINDOW, sector_size: SectorSize::KiB2 };
const MIB: u64 = 1 << 20;

/// An engine whose native files are in a folder of its own, and a sector.
struct Scene {
    native: TempDir,
    engine: Arc<Engine>,
    sample: Sample,
}

impl Scene {
    fn new() -> Self {
        let native = tempfile::tempdir().unwrap();
        let dir = native.path().to_path_buf();
        let engine = engine_with(&[WINDOW], |config| config.native_dir = Some(dir));
        Self { native, engine, sample: sample() }
    }

    fn params(&self) -> Params {
        Params::new(parameters::development(&[WINDOW])).with_native_dir(self.native.path())
    }

    fn recording(&self) -> PathBuf {
        self.params().compiled_path(&CIRCUIT.file_stem().unwrap())
    }

    /// Records another circuit than the engine would, as the engine would.
    fn record(&self, circuit: Box<dyn AnyCircuit>) -> Vec<u8> {
        let srs = self.params().open(&CIRCUIT, &mut |_| {}, &Unhindered).unwrap();
        let (path, identity) = (self.recording(), Identity::of(&srs));
        record(circuit, &path, identity.clone(), &Unhindered).unwrap();
        Compiled::open(&path, &identity).expect("its checksums are good");
        fs::read(path).unwrap()
    }

    fn request(&self, id: usize) -> RawRequest {
        RawRequest { request_id: id.to_string(), ..self.sample.request(WINDOW) }
    }

    /// Proves, and tells how large the recording is that is open afterwards.
    fn prove(&self, id: usize) -> u64 {
        let proof = proof(&self.engine, &submit(&self.engine, &self.request(id)));
        assert!(self.sample.verify_with_filecoin(WINDOW, &proof).unwrap());
        let srs = self.engine.status().srs;
        srs.iter().find(|srs| srs.circuit == CIRCUIT).unwrap().compiled
    }
}

#[test]
fn the_first_proof_records_the_circuit_the_next_uses_it_and_a_damaged_one_is_replaced() {
    let _turn = turn();
    let scene = Scene::new();
    let recording = scene.recording();
    assert_eq!(scene.prove(0), 0);
    let bytes = fs::metadata(&recording).unwrap().len();
    assert_eq!(scene.prove(1), bytes);

    assert!(scene.engine.evict(CIRCUIT) > Some(bytes));
    let mut damaged = fs::read(&recording).unwrap();
    damaged[bytes as usize / 2] ^= 1;
    fs::write(&recording, damaged).unwrap();
    assert_eq!(scene.prove(2), 0);
    assert!(!recording.exists(), "found damaged and removed");
    assert_eq!(scene.prove(3), 0, "recorded again");
    assert_eq!(scene.prove(4), bytes);
}

/// A circuit of which A is twice what it should be.
struct Doubled(Box<dyn AnyCircuit>);

impl AnyCircuit for Doubled {
    fn synthesize(self: Box<Self>, cs: &mut Synthesizer<'_>) -> Result<(), SynthesisError> {
        self.0.synthesize(cs)
    }

    fn synthesize_into(
        self: Box<Self>,
        sink: &mut dyn ConstraintSink,
    ) -> Result<(), SynthesisError> {
        self.0.synthesize_into(&mut Doubling(sink))
    }
}

struct Doubling<'a>(&'a mut dyn ConstraintSink);

impl ConstraintSink for Doubling<'_> {
    fn wants_values(&self) -> bool {
        self.0.wants_values()
    }

    fn input(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.0.input(value)
    }

    fn aux(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.0.aux(value)
    }

    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        c: LinearCombination<Scalar>,
    ) {
        self.0.enforce(a.clone() + &a, b, c);
    }
}

#[test]
fn a_recording_whose_proof_does_not_verify_is_removed_and_the_proof_made_without_it() {
    let _turn = turn();
    let scene = Scene::new();
    let honest = scene.record(CIRCUIT.blank().unwrap());
    fs::remove_file(scene.recording()).unwrap();
    let poisoned = scene.record(Box::new(Doubled(CIRCUIT.blank().unwrap())));
    assert_ne!(poisoned, honest);

    assert_eq!(scene.prove(0), 0);
    assert!(!scene.recording().exists(), "it is still there");
    assert_eq!(scene.prove(1), 0, "recorded again");
    assert_eq!(fs::read(scene.recording()).unwrap(), honest);
    assert_eq!(scene.prove(2), honest.len() as u64);
    let status = scene.engine.status();
    assert_eq!((status.completed, status.failed), (3, 0));
}

#[test]
fn a_request_that_cannot_be_proved_leaves_no_recording_and_costs_none() {
    let _turn = turn();
    let scene = Scene::new();
    let raw = scene.request(0);
    // Somewhere in the middle lies the sibling of a node on a challenge's path: well formed, wrong.
    let middle = raw.vanilla_proofs[0].len() / 2;
    let damaged = (middle..middle + 64).find_map(|i| {
        let mut raw = raw.clone();
        raw.vanilla_proofs[0][i] ^= 1;
        ProofRequest::parse(&raw).is_ok().then_some(raw)
    });
    let damaged = damaged.expect("one that is well formed");
    let fails = || {
        let result = outcome(&scene.engine, &submit(&scene.engine, &damaged)).result.clone();
        assert!(matches!(result, JobResult::Failed(_)), "{result:?}");
    };
    fails();
    let recording = scene.recording();
    let is_of_it = |path: &Path| path.to_string_lossy().contains(".csr");
    let left = fs::read_dir(scene.native.path()).unwrap().flatten().map(|entry| entry.path());
    assert_eq!(left.filter(|path| is_of_it(path)).count(), 0, "it was kept");
    assert_eq!(scene.prove(1), 0);
    assert!(recording.exists());
    fails();
    assert!(scene.prove(2) > 0 && recording.exists());
}

/// Rows over a million variables: ten terms each, of coefficients that repeat.
#[derive(Clone, Copy)]
struct Terms {
    rows: usize,
}

/// Variables.
const VARIABLES: usize = 1 << 20;
/// Of the rows, in A; B has two.
const IN_A: usize = 8;

impl Terms {
    fn counts(self) -> Counts {
        // And a row for the one input.
        let domain = (self.rows as u64 + 1).next_power_of_two();
        let aux = VARIABLES as u64;
        Counts { ic: 1, h: domain - 1, l: aux, a: 1 + aux, b_g1: aux, b_g2: aux }
    }
}

impl Circuit<Scalar> for Terms {
    fn synthesize<CS: ConstraintSystem<Scalar>>(self, cs: &mut CS) -> Result<(), SynthesisError> {
        for _ in 0..VARIABLES {
            cs.alloc(|| "variable", || Err(SynthesisError::AssignmentMissing))?;
        }
        let term = |row: usize, i: usize| {
            let variable = Variable::new_unchecked(Index::Aux((row + i * 99_991) % VARIABLES));
            (Scalar::from((row % 100 + i + 1) as u64), variable)
        };
        for row in 0..self.rows {
            let sum = |lc, terms: usize| (0..terms).fold(lc, |lc, i| lc + term(row, i));
            cs.enforce(|| "row", |lc| sum(lc, IN_A), |lc| sum(lc, 2), |lc| lc);
        }
        Ok(())
    }
}

/// Sees the most anonymous memory of this process at any checkpoint: the recorder has one a block.
struct Peak(AtomicU64);

impl Checkpoint for Peak {
    fn check(&self) -> Result<(), Interrupted> {
        self.0.fetch_max(resident().anonymous, Ordering::Relaxed);
        Ok(())
    }
}

/// Set for the process that records; holds the file's name.
const CHILD: &str = "CUZK_TEST_RECORD";

#[test]
#[ignore = "run by the test that limits it, in a process of its own"]
fn child_records() {
    let Some(path) = env::var_os(CHILD) else { return };
    let (path, circuit) = (Path::new(&path), Terms { rows: 5_500_000 });
    let identity = Identity { circuit: "terms".into(), counts: circuit.counts() };
    let (before, peak) = (resident().anonymous, Peak(AtomicU64::new(0)));
    record(Box::new(circuit), path, identity.clone(), &peak).unwrap();
    let terms = Compiled::open(path, &identity).unwrap().sizes().terms;
    assert_eq!(terms, 5_500_000 * (IN_A as u64 + 2) + 1);
    println!("took={}", peak.0.into_inner() - before);
}

#[test]
fn recording_55_million_terms_takes_10_mib_and_lives_in_a_quarter_of_the_files_size() {
    const LIMIT: u64 = 32 * MIB;
    let _turn = turn();
    let cgroup = cgroup_or_skip!("record");
    cgroup.limit(LIMIT).unwrap();
    // On a disk: what a memory file system holds cannot be written back.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("terms.csr");
    let mut command = child("recordings::child_records", CHILD, path.to_str().unwrap());
    let output = cgroup.spawn(&mut command).unwrap().wait_with_output().unwrap();
    assert_eq!(cgroup.kills().unwrap(), 0, "the kernel killed it");
    let took: u64 = told(&output, "took=").expect("it records");
    let (bytes, peak) = (fs::metadata(&path).unwrap().len(), cgroup.peak().unwrap());
    println!("{} MiB of file: {} KiB anonymous, peak {} MiB", bytes / MIB, took >> 10, peak / MIB);
    assert!(bytes > 4 * LIMIT, "{bytes} bytes are too few to tell");
    assert!(took < 10 * MIB, "{took} bytes of anonymous memory");
}
