//! Compiled circuits in the engine's hands: when one appears, when it is used, when it is removed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::fs;

use bellperson::{LinearCombination, SynthesisError};
use blstrs::Scalar;
use cuzk_core::circuit::compiled::{record, Compiled, Identity};
use cuzk_core::circuit::{AnyCircuit, ConstraintSink, Synthesizer};
use cuzk_core::device::Unhindered;
use cuzk_core::engine::{Engine, JobResult};
use cuzk_core::params::Params;
use cuzk_core::proof::{CircuitId, ProofKind, ProofRequest, RawRequest, SectorSize};
use cuzk_core::sample::Sample;
use cuzk_tests::parameters;
use tempfile::TempDir;

use super::{engine_with, outcome, proof, sample, submit, turn};

const WINDOW: ProofKind = ProofKind::WindowPostPartition;
const CIRCUIT: CircuitId = CircuitId { kind: WINDOW, sector_size: SectorSize::KiB2 };

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
fn a_recording_appears_only_beside_a_proof_that_verifies() {
    let _turn = turn();
    let scene = Scene::new();
    let raw = scene.request(0);
    // Somewhere in the middle lies the sibling of a node on a challenge's path: well formed, wrong.
    let middle = raw.vanilla_proofs[0].len() / 2;
    let damaged = (middle..middle + 64).find_map(|i| {
        let mut raw = raw.clone();
        raw.vanilla_proofs[0][i] ^= 1;
        ProofRequest::parse(&raw).ok()
    });
    let job = scene.engine.submit(damaged.expect("one that is well formed")).unwrap().job_id;
    let result = outcome(&scene.engine, &job).result.clone();
    assert!(matches!(result, JobResult::Failed(_)), "{result:?}");
    let recording = scene.recording();
    let is_of_it = |path: &Path| path.to_string_lossy().contains(".csr");
    let left = fs::read_dir(scene.native.path()).unwrap().flatten().map(|entry| entry.path());
    assert_eq!(left.filter(|path| is_of_it(path)).count(), 0, "it was kept");
    assert_eq!(scene.prove(1), 0);
    assert!(recording.exists());
}
