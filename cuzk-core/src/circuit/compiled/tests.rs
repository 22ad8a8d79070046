//! What compiled circuits promise, on Filecoin's own at 2 KiB and on a small one.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bellpepper_core::{Circuit, ConstraintSystem, SynthesisError};
use blstrs::Scalar;
use ff::Field;
use rand::{Rng, SeedableRng};
use rand_xorshift::XorShiftRng;
use tempfile::TempDir;

use super::*;
use crate::circuit::{synthesize, AnyCircuit, Matrices, SynthesizeError, Synthesized};
use crate::device::{Checkpoint, Interrupted, Unhindered};
use crate::params::CircuitSize;
use crate::proof::{ProofKind, ProofRequest};
use crate::sample::Sample;

/// A folder with one recording, and the size of its circuit.
struct Recording {
    folder: TempDir,
    identity: Identity,
    size: CircuitSize,
}

impl Recording {
    fn of(name: &str, size: CircuitSize) -> Self {
        let identity = Identity { circuit: name.into(), counts: size.counts() };
        Self { folder: tempfile::tempdir().unwrap(), identity, size }
    }

    /// Recorded from a blank circuit.
    fn blank(name: &str, blank: impl Fn() -> Box<dyn AnyCircuit>) -> Self {
        let this = Self::of(name, CircuitSize::of(blank()).unwrap());
        this.record(blank()).unwrap();
        this
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("circuit.csr")
    }

    fn record(&self, circuit: Box<dyn AnyCircuit>) -> Result<(), CompiledError> {
        record(circuit, &self.path(), self.identity.clone(), &Unhindered)
    }

    fn open(&self) -> Result<Compiled, CompiledError> {
        Compiled::open(&self.path(), &self.identity)
    }

    fn synthesize(
        &self,
        circuit: Box<dyn AnyCircuit>,
        matrices: Matrices<'_, '_>,
    ) -> Result<Everything, SynthesizeError> {
        let zeros = |len| vec![Scalar::ZERO; len];
        let (mut a, mut b) = (zeros(self.size.domain()), zeros(self.size.domain()));
        let mut aux = zeros(self.size.aux);
        let inputs = self.size.inputs;
        let synthesized =
            synthesize(circuit, matrices, &mut a, &mut b, &mut aux, inputs, &Unhindered)?;
        Ok(Everything { a, b, aux, synthesized })
    }

    /// What is wrong with the file when it is opened and used.
    fn fault(&self, circuit: Box<dyn AnyCircuit>) -> Option<CompiledError> {
        let compiled = match self.open() {
            Ok(compiled) => compiled,
            Err(error) => return Some(error),
        };
        match self.synthesize(circuit, Matrices::Compiled(&compiled)) {
            Err(SynthesizeError::Compiled(error)) => Some(error),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    }
}

/// Whatever a synthesis leaves.
#[derive(PartialEq)]
struct Everything {
    a: Vec<Scalar>,
    b: Vec<Scalar>,
    aux: Vec<Scalar>,
    synthesized: Synthesized,
}

impl Everything {
    /// Equal, without a million scalars in the message when not.
    fn assert_is(&self, other: &Self) {
        let differs = |x: &[Scalar], y: &[Scalar]| x.iter().zip(y).position(|(x, y)| x != y);
        assert_eq!(differs(&self.aux, &other.aux), None, "witness");
        assert_eq!(differs(&self.a, &other.a), None, "A");
        assert_eq!(differs(&self.b, &other.b), None, "B");
        assert!(self == other, "inputs, counts or densities");
    }
}

fn request(kind: ProofKind, seed: u64) -> ProofRequest {
    ProofRequest::parse(&Sample::make(seed).unwrap().request(kind)).unwrap()
}

fn circuit(request: &ProofRequest) -> Box<dyn AnyCircuit> {
    request.partition(0).unwrap().circuit
}

/// Recorded from a blank circuit and from one proof's, used by another's.
fn compiled_is_plain(kind: ProofKind) {
    let [first, second] = [1, 2].map(|seed| request(kind, seed));
    let id = first.circuit_id();
    let blank = Recording::blank("blank", || id.blank().unwrap());
    let compiled = blank.open().unwrap();
    for request in [&first, &second] {
        let plain = blank.synthesize(circuit(request), Matrices::Circuit).unwrap();
        let fast = blank.synthesize(circuit(request), Matrices::Compiled(&compiled)).unwrap();
        fast.assert_is(&plain);
    }

    let proof = Recording::of("blank", blank.size);
    let mut recorder =
        Recorder::begin(&proof.path(), proof.identity.clone(), &Unhindered).unwrap().unwrap();
    let plain = blank.synthesize(circuit(&first), Matrices::Circuit).unwrap();
    let recorded = proof.synthesize(circuit(&first), Matrices::Recorded(&mut recorder)).unwrap();
    recorded.assert_is(&plain);
    let whole = recorder.finish().unwrap();
    assert!(!proof.path().exists(), "it appears before it is published");
    whole.publish().unwrap();
    let [blank, proof] = [blank, proof].map(|recording| fs::read(recording.path()).unwrap());
    assert!(blank == proof, "the structure depends on the witness");
}

#[test]
fn a_compiled_winning_post_is_the_plain_one_bit_for_bit() {
    compiled_is_plain(ProofKind::WinningPost);
}

#[test]
fn a_compiled_window_post_is_the_plain_one_bit_for_bit() {
    compiled_is_plain(ProofKind::WindowPostPartition);
}

#[test]
fn a_compiled_snap_update_is_the_plain_one_bit_for_bit() {
    compiled_is_plain(ProofKind::SnapDealsUpdate);
}

#[test]
fn a_compiled_porep_is_the_plain_one_bit_for_bit() {
    compiled_is_plain(ProofKind::PorepSealCommit);
}

#[test]
fn a_recording_pays_for_every_kind_and_not_when_it_is_read_longer_than_it_saves() {
    // The bench's figures: bytes, milliseconds.
    for (bytes, plain) in [(22_465_650, 1206), (13_067_726, 853), (506_455, 69), (1_886_654, 206)] {
        assert!(pays(bytes, Duration::from_millis(plain)), "{bytes} bytes, {plain} ms");
    }
    assert!(!pays(100_000_000, Duration::from_secs(2)), "reading takes 1 s, and 0.9 s are saved");
    assert!(!pays(u64::MAX, Duration::ZERO));
}

/// Powers of a secret; `rows` of them, of which the last is public. Nothing that is satisfied: each
/// row has a coefficient of its own, and terms that cancel out.
#[derive(Clone, Copy)]
struct Powers {
    secret: Option<Scalar>,
    rows: usize,
}

impl Circuit<Scalar> for Powers {
    fn synthesize<CS: ConstraintSystem<Scalar>>(self, cs: &mut CS) -> Result<(), SynthesisError> {
        let secret = self.secret.ok_or(SynthesisError::AssignmentMissing);
        let mut power = secret.as_ref().copied().unwrap_or_default();
        let first = cs.alloc(|| "secret", || secret)?;
        let mut last = first;
        for row in 0..self.rows {
            power *= self.secret.unwrap_or_default();
            let next = cs.alloc(|| "power", || Ok(power))?;
            let k = Scalar::from(row as u64);
            cs.enforce(
                || "times",
                |lc| lc + last + (k, first) - CS::one(),
                |lc| lc + first + (k, last) - (k, last),
                |lc| lc + next,
            );
            last = next;
        }
        let public = cs.alloc_input(|| "public", || Ok(power))?;
        cs.enforce(|| "is public", |lc| lc + last, |lc| lc + CS::one(), |lc| lc + public);
        Ok(())
    }
}

fn powers(rows: usize) -> Box<dyn AnyCircuit> {
    Box::new(Powers { secret: Some(Scalar::from(3)), rows })
}

fn recorded(rows: usize) -> Recording {
    Recording::blank("powers", || Box::new(Powers { secret: None, rows }))
}

#[test]
fn a_recording_of_many_blocks_is_used_whole() {
    let recording = recorded(200_000);
    let compiled = recording.open().unwrap();
    let Sizes { blocks, coefficients, .. } = *compiled.sizes();
    assert!(blocks > 2 && coefficients == 1 << 16, "{:?}", compiled.sizes());
    let plain = recording.synthesize(powers(200_000), Matrices::Circuit).unwrap();
    let fast = recording.synthesize(powers(200_000), Matrices::Compiled(&compiled)).unwrap();
    fast.assert_is(&plain);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let parallel = pool
        .install(|| recording.synthesize(powers(200_000), Matrices::Compiled(&compiled)).unwrap());
    parallel.assert_is(&plain);
}

/// Puts other bytes in a file's place; a mapped file is never written.
fn replace(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn any_flipped_bit_that_a_proof_reads_is_an_error_that_names_the_file() {
    let recording = recorded(20_000);
    let path = recording.path();
    let whole = fs::read(&path).unwrap();
    let plain = recording.synthesize(powers(20_000), Matrices::Circuit).unwrap();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = XorShiftRng::seed_from_u64(seed);
    let mut harmless = 0;
    for _ in 0..200 {
        let bit = rng.gen_range(0..whole.len() * 8);
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        replace(&path, &bytes);
        match recording.fault(powers(20_000)) {
            Some(error) => {
                let message = error.to_string();
                assert!(message.contains(path.to_str().unwrap()), "bit {bit}: {message}");
            }
            // Between a bitmap's end and its page's.
            None => {
                harmless += 1;
                let compiled = recording.open().unwrap();
                let fast =
                    recording.synthesize(powers(20_000), Matrices::Compiled(&compiled)).unwrap();
                fast.assert_is(&plain);
            }
        }
    }
    println!("{harmless} of 200 bits are padding");
    assert!(harmless < 100, "most bits are not checked");
}

#[test]
fn a_file_of_another_length_is_refused_when_opened() {
    let recording = recorded(1000);
    let path = recording.path();
    let whole = fs::read(&path).unwrap();
    for length in [0, 1, 4095, 4096, whole.len() - 1, whole.len() + 1] {
        let mut bytes = whole.clone();
        bytes.resize(length, 0);
        replace(&path, &bytes);
        let message = recording.open().unwrap_err().to_string();
        let expected = format!("a file of {length} bytes where ");
        assert!(message.contains(&expected), "{message}");
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
    fs::remove_file(&path).unwrap();
    let message = recording.open().unwrap_err().to_string();
    assert!(message.contains("cannot open"), "{message}");
}

#[test]
fn what_is_no_file_is_refused_before_the_work() {
    let recording = Recording::of("powers", recorded(10).size);
    fs::create_dir(recording.path()).unwrap();
    for refused in [recording.open().map(drop), recording.record(powers(10))] {
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("found a folder, expected a file"), "{message}");
    }
}

#[test]
fn a_file_of_another_circuit_version_or_kind_is_refused_when_opened() {
    let recording = recorded(1000);
    let mut other = recording.identity.clone();
    other.circuit = "v28-other".into();
    let message = Compiled::open(&recording.path(), &other).unwrap_err().to_string();
    assert!(
        message.contains("circuit powers") && message.contains("circuit v28-other"),
        "{message}"
    );

    let mut other = recording.identity.clone();
    other.counts.a += 1;
    let message = Compiled::open(&recording.path(), &other).unwrap_err().to_string();
    let a = recording.identity.counts.a;
    assert!(message.contains(&format!("a: {a},")), "{message}");
    assert!(message.contains(&format!("a: {},", a + 1)), "{message}");

    let mut bytes = fs::read(recording.path()).unwrap();
    bytes[8] = 9;
    replace(&recording.path(), &bytes);
    let message = recording.open().unwrap_err().to_string();
    assert!(message.contains("version 9 where version 1 was expected"), "{message}");
    bytes[0] = b'C';
    replace(&recording.path(), &bytes);
    let message = recording.open().unwrap_err().to_string();
    assert!(message.contains("magic \"Cuzk-csr\""), "{message}");
}

#[test]
fn a_circuit_that_is_not_the_recorded_one_is_refused() {
    let recording = recorded(1000);
    let compiled = recording.open().unwrap();
    let refused = recording.synthesize(powers(999), Matrices::Compiled(&compiled)).err().unwrap();
    let message = refused.to_string();
    assert!(message.contains("the circuit has 1000 variables, the recording 1001"), "{message}");
}

#[test]
fn a_circuit_that_is_not_the_parameters_is_not_recorded() {
    let recording = recorded(1000);
    for rows in [10, 999, 1001, 3000] {
        let other = Recording::of("powers", recording.size);
        let error = other.record(powers(rows)).unwrap_err();
        assert!(matches!(error, CompiledError::OtherCircuit { .. }), "{rows}: {error}");
        assert_eq!(fs::read_dir(other.folder.path()).unwrap().count(), 0, "debris");
    }
}

#[test]
fn a_good_recording_is_kept_and_a_damaged_one_is_made_again() {
    let recording = recorded(1000);
    let written = |path| fs::metadata(path).unwrap().modified().unwrap();
    let first = written(recording.path());
    recording.record(powers(1000)).unwrap();
    assert_eq!(written(recording.path()), first, "recorded twice");
    replace(&recording.path(), b"cuzk-csr");
    recording.record(powers(1000)).unwrap();
    recording.open().unwrap();
    assert!(recording.fault(powers(1000)).is_none());
}

#[test]
fn what_is_not_published_leaves_nothing_and_nobody_waits_for_it() {
    let blank = recorded(1000);
    let proof = Recording::of("powers", blank.size);
    let begin = || Recorder::begin(&proof.path(), proof.identity.clone(), &Unhindered).unwrap();
    let mut recorder = begin().unwrap();
    proof.synthesize(powers(1000), Matrices::Recorded(&mut recorder)).unwrap();
    let whole = recorder.finish().unwrap();
    assert_eq!(whole.size_bytes(), fs::metadata(blank.path()).unwrap().len());
    assert!(begin().is_none(), "two record at once");
    drop(whole);
    assert_eq!(fs::read_dir(proof.folder.path()).unwrap().count(), 0, "debris");
    assert!(begin().is_some());
}

/// Lets so much pass, then interrupts.
struct After(std::sync::atomic::AtomicUsize);

impl After {
    fn checks(count: usize) -> Self {
        Self(count.into())
    }
}

impl Checkpoint for After {
    fn check(&self) -> Result<(), Interrupted> {
        use std::sync::atomic::Ordering::Relaxed;
        let left = self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.map(drop).map_err(|_| Interrupted)
    }
}

#[test]
fn an_interrupted_recording_leaves_nothing() {
    let size = recorded(200_000).size;
    for checks in 0..3 {
        let other = Recording::of("powers", size);
        let checkpoint = After::checks(checks);
        let error = record(powers(200_000), &other.path(), other.identity.clone(), &checkpoint)
            .unwrap_err();
        assert!(matches!(error, CompiledError::Interrupted(_)), "{error}");
        assert_eq!(fs::read_dir(other.folder.path()).unwrap().count(), 0, "debris");
    }
}

#[test]
fn an_evaluation_is_interrupted_between_blocks() {
    let recording = recorded(200_000);
    let compiled = recording.open().unwrap();
    let mut checks = 0;
    let interrupted = loop {
        let (mut a, mut b) = ([(); 2].map(|()| vec![Scalar::ZERO; recording.size.domain()])).into();
        let mut aux = vec![Scalar::ZERO; recording.size.aux];
        let checkpoint = After::checks(checks);
        let matrices = Matrices::Compiled(&compiled);
        let inputs = recording.size.inputs;
        match synthesize(powers(200_000), matrices, &mut a, &mut b, &mut aux, inputs, &checkpoint) {
            Err(SynthesizeError::Stopped(_)) => checks += 1,
            Err(other) => panic!("{other}"),
            Ok(_) => break checks,
        }
    };
    // One each 8192 variables, and at least one a batch of blocks.
    assert!(interrupted > 200_000 / 8192 + 1, "{interrupted}");
}
