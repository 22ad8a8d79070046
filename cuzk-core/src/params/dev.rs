//! Development parameters: made here in seconds, with a toxic waste that everybody knows.
//!
//! Anybody can prove anything under them, so they live in a folder of their own with a marker file,
//! and never enter a folder of other parameters. The files are byte for byte those that bellperson's
//! `generate_random_parameters` makes of the same seed, and so Filecoin's own verifiers read them.
//! Memory: three scalars a variable and one a constraint (PoRep 2 KiB: 344 MiB), and the tables.

mod fixed_base;
mod fold;

use std::{
    fs,
    io::{self, Write},
    path::Path,
};

use bellpepper_core::SynthesisError;
use blstrs::{G1Affine, G1Projective, G2Affine, G2Projective, Scalar};
use cuzk_governor::{limits, sensor::resolve::Root};
use ff::Field;
use group::{
    prime::{PrimeCurve, PrimeCurveAffine},
    Curve, Group,
};
use rand::SeedableRng;
use rand_xorshift::XorShiftRng;
use rayon::prelude::*;

use self::{
    fixed_base::{FixedBase, BATCH},
    fold::{fold, vanishing, Folded},
};
use super::{
    atomic::AtomicFile,
    filecoin::{read_vk, ParamsFile},
    point::Point,
    CircuitSize, Counts, NamedCircuit, Params, ParamsError, Progress, DEVELOPMENT_MARKER,
};
use crate::device::Checkpoint;

/// Determines the parameters, all of them: there is no secret.
pub type Seed = [u8; 16];

/// The seed that Filecoin's own tests use.
pub const SEED: Seed = filecoin_proofs::constants::TEST_SEED;

const MARKER_TEXT: &str = "\
The parameters in this folder are for development. They are INSECURE: the secret they were made from
is known, so anybody can forge proofs under them. Never put production parameters here, and never use
this folder for a node of a real network.
";

/// Makes sure that `dir` holds development parameters of these circuits; makes those that are missing
/// or damaged. Safe to call from several processes at once: one makes, the others wait.
///
/// # Errors
/// [`ParamsError`] when `dir` holds other parameters, or something cannot be written.
pub fn ensure<C: NamedCircuit>(
    circuits: &[C],
    dir: &Path,
    progress: &mut dyn FnMut(Progress),
    checkpoint: &dyn Checkpoint,
) -> Result<Params, ParamsError> {
    mark(dir)?;
    let params = Params::new(dir);
    for circuit in circuits {
        let circuit: &dyn NamedCircuit = circuit;
        let stem = circuit.stem()?;
        if is_made(&params, &stem) {
            continue;
        }
        let file = AtomicFile::begin_shown(&params.params_path(&stem), progress, checkpoint)?;
        // Another process may have made it while this one waited for its turn.
        if !is_made(&params, &stem) {
            make(circuit, &params.vk_path(&stem), file, SEED, progress, checkpoint)?;
        }
    }
    Ok(params)
}

/// Makes the development parameters of one circuit in `dir`, over those that may be there.
///
/// # Errors
/// As [`ensure`].
pub fn generate(
    circuit: &dyn NamedCircuit,
    dir: &Path,
    seed: Seed,
    progress: &mut dyn FnMut(Progress),
    checkpoint: &dyn Checkpoint,
) -> Result<(), ParamsError> {
    mark(dir)?;
    let params = Params::new(dir);
    let stem = circuit.stem()?;
    let file = AtomicFile::begin_shown(&params.params_path(&stem), progress, checkpoint)?;
    make(circuit, &params.vk_path(&stem), file, seed, progress, checkpoint)
}

/// Makes `dir` a folder of development parameters, unless it is one of others.
fn mark(dir: &Path) -> Result<(), ParamsError> {
    fs::create_dir_all(dir).map_err(ParamsError::io(dir, "create"))?;
    // Looked at in this order, files that another process makes meanwhile come after their marker.
    let holds_parameters = holds_parameters(dir).map_err(ParamsError::io(dir, "list"))?;
    let marker = dir.join(DEVELOPMENT_MARKER);
    if marker.exists() {
        return Ok(());
    }
    if holds_parameters {
        return Err(ParamsError::Mixed {
            path: dir.into(),
            what: "holds parameter files without the development marker, so they are production's",
        });
    }
    fs::write(&marker, MARKER_TEXT).map_err(ParamsError::io(marker, "write"))
}

fn holds_parameters(dir: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "params" || e == "vk") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether both files are there, of the right length and of one making.
fn is_made(params: &Params, stem: &str) -> bool {
    let file = ParamsFile::open(&params.params_path(stem));
    let vk = read_vk(&params.vk_path(stem));
    matches!((file, vk), (Ok(file), Ok(vk)) if *file.vk() == vk)
}

/// What must stay secret and here does not, in the order in which bellperson draws it.
struct Secret {
    g1: G1Projective,
    g2: G2Projective,
    alpha: Scalar,
    beta: Scalar,
    gamma: Scalar,
    delta: Scalar,
    tau: Scalar,
}

impl Secret {
    fn of(seed: Seed) -> Self {
        let mut rng = XorShiftRng::from_seed(seed);
        let (g1, g2) = (G1Projective::random(&mut rng), G2Projective::random(&mut rng));
        let mut scalar = || Scalar::random(&mut rng);
        let (alpha, beta, gamma, delta, tau) = (scalar(), scalar(), scalar(), scalar(), scalar());
        Self { g1, g2, alpha, beta, gamma, delta, tau }
    }

    /// All of a verifying key but its ic.
    fn vk_points(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let g1 = |bytes: &mut Vec<u8>, scalar: Scalar| {
            bytes.extend((self.g1 * scalar).to_affine().to_uncompressed());
        };
        let g2 = |bytes: &mut Vec<u8>, scalar: Scalar| {
            bytes.extend((self.g2 * scalar).to_affine().to_uncompressed());
        };
        g1(&mut bytes, self.alpha);
        g1(&mut bytes, self.beta);
        g2(&mut bytes, self.beta);
        g2(&mut bytes, self.gamma);
        g1(&mut bytes, self.delta);
        g2(&mut bytes, self.delta);
        bytes
    }
}

/// Makes `file` and the `.vk` at `vk_path`.
fn make(
    circuit: &dyn NamedCircuit,
    vk_path: &Path,
    file: AtomicFile,
    seed: Seed,
    progress: &mut dyn FnMut(Progress),
    checkpoint: &dyn Checkpoint,
) -> Result<(), ParamsError> {
    let secret = Secret::of(seed);
    progress(Progress { step: "count constraints".into(), done: 0, total: 0 });
    let size = circuit.size()?;
    checkpoint.check()?;
    require_memory(circuit, memory_bytes(&size))?;
    let total = ParamsFile::bytes(&size.counts());
    file.reserve(total)?;
    progress(Progress { step: "fold constraints".into(), done: 0, total: 0 });
    let blank = circuit.blank_circuit()?;
    let Folded { mut a, mut b, c } = fold(blank, &size, &secret.tau).map_err(circuit.failed())?;
    checkpoint.check()?;

    let invert = |scalar: Scalar| {
        Option::<Scalar>::from(scalar.invert()).ok_or(SynthesisError::DivisionByZero)
    };
    let per_gamma = invert(secret.gamma).map_err(circuit.failed())?;
    let per_delta = invert(secret.delta).map_err(circuit.failed())?;
    let counts = size.counts();
    let g1 = FixedBase::<G1Affine>::new(secret.g1, g1_points(&counts));
    let g2 = FixedBase::<G2Affine>::new(secret.g2, counts.b_g2 as usize);

    let mixed = |i: usize| secret.beta * a[i] + secret.alpha * b[i] + c[i];
    let mut vk = secret.vk_points();
    vk.extend((size.inputs as u32).to_be_bytes());
    let ic_from = vk.len();
    vk.resize(ic_from + size.inputs * G1Affine::BYTES, 0);
    multiply(&g1, 0, &each(|i| mixed(i) * per_gamma), &mut vk[ic_from..])
        .map_err(circuit.failed())?;

    let mut out = Output { file, circuit, done: 0, total, progress, checkpoint };
    out.put(&vk)?;
    let first_h = vanishing(&size, &secret.tau) * per_delta;
    out.section(&g1, size.domain() - 1, &powers(first_h, secret.tau))?;
    out.section(&g1, size.aux, &each(|i| mixed(size.inputs + i) * per_delta))?;
    drop(c);
    a.retain(|at_tau| !at_tau.is_zero_vartime());
    out.section(&g1, a.len(), &each(|i| a[i]))?;
    drop(a);
    b.retain(|at_tau| !at_tau.is_zero_vartime());
    out.section(&g1, b.len(), &each(|i| b[i]))?;
    out.section(&g2, b.len(), &each(|i| b[i]))?;
    let file = out.file;

    let mut vk_file = AtomicFile::begin(vk_path, checkpoint)?;
    vk_file.write_all(&vk).map_err(ParamsError::space(vk_path, vk.len() as u64))?;
    vk_file.commit()?;
    file.commit()
}

/// What making a circuit's parameters takes at its peak: three scalars a variable, and beside them first
/// one a constraint, then the tables of multiples.
fn memory_bytes(size: &CircuitSize) -> u64 {
    let counts = size.counts();
    let scalars = |count: usize| (count * size_of::<Scalar>()) as u64;
    let tables = FixedBase::<G1Affine>::bytes(g1_points(&counts))
        + FixedBase::<G2Affine>::bytes(counts.b_g2 as usize);
    scalars(3 * (size.inputs + size.aux)) + scalars(size.constraints).max(tables)
}

fn g1_points(counts: &Counts) -> usize {
    (counts.ic + counts.h + counts.l + counts.a + counts.b_g1) as usize
}

/// Refuses before the work what the kernel would kill it for. Where it does not say what is left, the
/// work is tried.
fn require_memory(circuit: &dyn NamedCircuit, needed: u64) -> Result<(), ParamsError> {
    match limits::check(&Root::default()) {
        Ok(promised) if promised.left < needed => {
            let (circuit, bound) = (circuit.stem()?, promised.tightest);
            Err(ParamsError::NoMemory { circuit, needed, available: promised.left, bound })
        }
        _ => Ok(()),
    }
}

/// Fills a part of a vector of scalars, from an index on.
type Scalars<'a> = &'a (dyn Fn(usize, &mut [Scalar]) + Sync);

fn each(scalar: impl Fn(usize) -> Scalar + Sync) -> impl Fn(usize, &mut [Scalar]) + Sync {
    move |first, out| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = scalar(first + i));
    }
}

/// first, first · ratio, first · ratio², …
fn powers(first: Scalar, ratio: Scalar) -> impl Fn(usize, &mut [Scalar]) + Sync {
    move |from, out| {
        let mut power = first * ratio.pow_vartime([from as u64]);
        for out in out {
            *out = power;
            power *= ratio;
        }
    }
}

/// Encoded multiples of the table's point by the scalars from `first` on, as many as fit.
fn multiply<P>(
    table: &FixedBase<P>,
    first: usize,
    scalars: Scalars<'_>,
    encoded: &mut [u8],
) -> Result<(), SynthesisError>
where
    P: Point + PrimeCurveAffine<Scalar = Scalar>,
    P::Curve: PrimeCurve<Affine = P>,
{
    encoded.par_chunks_mut(BATCH * P::BYTES).enumerate().try_for_each(|(batch, encoded)| {
        let mut factors = vec![Scalar::ZERO; encoded.len() / P::BYTES];
        scalars(first + batch * BATCH, &mut factors);
        // Its point would be infinity, which is never stored.
        if factors.iter().any(Scalar::is_zero_vartime) {
            return Err(SynthesisError::UnconstrainedVariable);
        }
        let mut points = vec![P::default(); factors.len()];
        table.multiples(&factors, &mut points);
        for (point, encoded) in points.iter().zip(encoded.chunks_exact_mut(P::BYTES)) {
            point.encode(encoded);
        }
        Ok(())
    })
}

/// The `.params` file on its way.
struct Output<'a> {
    file: AtomicFile,
    circuit: &'a dyn NamedCircuit,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(Progress),
    checkpoint: &'a dyn Checkpoint,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), ParamsError> {
        self.file.write_all(bytes).map_err(ParamsError::space(self.file.partial(), self.total))?;
        self.done += bytes.len() as u64;
        Ok(())
    }

    fn section<P>(
        &mut self,
        table: &FixedBase<P>,
        count: usize,
        scalars: Scalars<'_>,
    ) -> Result<(), ParamsError>
    where
        P: Point + PrimeCurveAffine<Scalar = Scalar>,
        P::Curve: PrimeCurve<Affine = P>,
    {
        /// About a quarter of a second's work on two cores.
        const CHUNK: usize = 1 << 17;
        self.put(&(count as u32).to_be_bytes())?;
        let mut encoded = vec![0; count.min(CHUNK) * P::BYTES];
        for first in (0..count).step_by(CHUNK) {
            self.checkpoint.check()?;
            let encoded = &mut encoded[..(count - first).min(CHUNK) * P::BYTES];
            multiply(table, first, scalars, encoded).map_err(self.circuit.failed())?;
            self.put(encoded)?;
            let (done, total) = (self.done, self.total);
            (self.progress)(Progress { step: "multiply points".into(), done, total });
        }
        Ok(())
    }
}
