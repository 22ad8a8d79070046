//! A partition's life: synthesise ▸ l, a, b multi-exponentiations ▸ quotient ▸ h multi-exponentiation
//! ▸ finish, with a checkpoint between any two chunks.
//!
//! At most two domain-sized vectors and the witness live at once: the witness is gone before the
//! quotient, whose one more vector (a ∘ b on the rows in use) takes its room. All of them come from
//! the pool and are paid for by the partition's reservation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpepper_core::SynthesisError;
use blstrs::{G1Projective, Scalar};
use cuzk_governor::budget::Reservation;
use ff::Field;
use group::Group;
use rand::RngCore;

use crate::circuit::{AnyCircuit, Assignment, Stopped, Synthesized};
use crate::device::cpu::domain::{Domain, DomainTooLarge};
use crate::device::cpu::msm::{self, Scalars};
use crate::device::cpu::quotient::quotient;
use crate::device::{Checkpoint, Interrupted};
use crate::groth16::{Proof, Queries};
use crate::memory::{PinnedPool, PoolError};
use crate::params::{Counts, Srs};

/// Host memory that synthesis of one partition needs beside the vectors: its challenges' Merkle
/// paths, hash states and linear combinations.
const SYNTHESIS_BYTES: u64 = 24 << 20;

/// Why a partition has no proof.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// Cancelled or shed.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The circuit cannot be synthesised from this request's vanilla proof.
    #[error("the circuit cannot be synthesised: {0}")]
    Synthesis(#[from] SynthesisError),
    /// Circuit and parameters do not belong together.
    #[error("{params}: {what} {expected} in the parameters, {found} in the circuit: these are the parameters of another circuit")]
    WrongCircuit {
        /// The parameter file.
        params: String,
        /// What differs.
        what: &'static str,
        /// In the parameters.
        expected: usize,
        /// In the circuit.
        found: usize,
    },
    /// More rows, inputs or variables than the parameters have room for.
    #[error("{params}: {why}")]
    TooLarge {
        /// The parameter file.
        params: String,
        /// What there is too much of.
        why: Stopped,
    },
    /// No buffer.
    #[error(transparent)]
    Memory(#[from] PoolError),
    /// The domain is larger than the field allows.
    #[error(transparent)]
    Domain(#[from] DomainTooLarge),
}

/// Where a partition's time went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTimes {
    /// Witness and evaluations.
    pub synthesis: Duration,
    /// l, a and b multi-exponentiations.
    pub witness_msm: Duration,
    /// Transforms.
    pub quotient: Duration,
    /// h multi-exponentiation.
    pub h_msm: Duration,
}

impl StageTimes {
    /// All that runs on the device.
    pub fn compute(&self) -> Duration {
        self.witness_msm + self.quotient + self.h_msm
    }
}

/// Scalars of the third buffer, which holds the witness, and later a ∘ b on the rows in use. Rows
/// are not known before synthesis: Filecoin's circuits have within a thousandth as many as variables.
fn third_len(counts: &Counts) -> usize {
    let variables = (counts.l + counts.ic) as usize;
    (variables + variables / 16).min(counts.h as usize + 1)
}

/// What a partition of a circuit of these counts holds at its peak, in bytes, with buffers in whole
/// chunks of `pool`: two vectors, the larger of witness and rows in use, and the scratch of one
/// multi-exponentiation.
pub fn footprint(counts: &Counts, threads: usize, pool: &PinnedPool) -> u64 {
    let domain = counts.h as usize + 1;
    let scalars = |n: usize| pool.rounded((n * size_of::<Scalar>()) as u64);
    let msm = msm::scratch_bytes(96, domain, threads).max(msm::scratch_bytes(
        192,
        counts.b_g2 as usize,
        threads,
    ));
    2 * scalars(domain) + scalars(third_len(counts)) + msm + SYNTHESIS_BYTES
}

/// Proves one partition. `memory` must hold [`footprint`] bytes; the calling thread's rayon pool
/// does the work. The proof is not verified here.
pub fn prove(
    circuit: Box<dyn AnyCircuit>,
    srs: &Srs,
    pool: &Arc<PinnedPool>,
    memory: &mut Reservation,
    checkpoint: &dyn Checkpoint,
    rng: &mut (dyn RngCore + Send),
) -> Result<(Proof, StageTimes), PipelineError> {
    let domain = Domain::new((srs.h().len() + 1).trailing_zeros())?;
    let mut a = pool.scalars(domain.size(), memory)?;
    let mut b = pool.scalars(domain.size(), memory)?;
    let mut third = pool.scalars(third_len(&srs.header().counts), memory)?;
    let mut times = StageTimes::default();

    let witness = &mut third[..srs.l().len()];
    let synthesized = timed(&mut times.synthesis, || {
        synthesize(circuit, srs, &mut a, &mut b, witness, checkpoint)
    })?;
    let mut queries =
        timed(&mut times.witness_msm, || witness_queries(srs, &synthesized, witness, checkpoint))?;
    third.truncate(synthesized.rows);
    timed(&mut times.quotient, || quotient(&domain, &mut a, b, third, checkpoint))?;
    queries.h = timed(&mut times.h_msm, || {
        msm::msm_g1(srs.h(), Scalars::all(&a[..srs.h().len()]), checkpoint)
    })?;

    let (r, s) = (Scalar::random(&mut *rng), Scalar::random(&mut *rng));
    Ok((queries.finish(srs.vk(), r, s), times))
}

/// Fills `a`, `b` and `witness`, and sees that the circuit is the parameters' one.
fn synthesize(
    circuit: Box<dyn AnyCircuit>,
    srs: &Srs,
    a: &mut [Scalar],
    b: &mut [Scalar],
    witness: &mut [Scalar],
    checkpoint: &dyn Checkpoint,
) -> Result<Synthesized, PipelineError> {
    let params = || srs.path().display().to_string();
    let stopped = |why| match why {
        Stopped::Interrupted(interrupted) => PipelineError::Interrupted(interrupted),
        why => PipelineError::TooLarge { params: params(), why },
    };
    let mut sink = Assignment::new(a, b, witness, srs.vk().ic.len(), checkpoint);
    if let Err(error) = circuit.synthesize_into(&mut sink) {
        return Err(sink.stopped().map_or(PipelineError::Synthesis(error), stopped));
    }
    let synthesized = sink.finish().map_err(stopped)?;
    let room = third_len(&srs.header().counts);
    if synthesized.rows > room {
        return Err(stopped(Stopped::TooLarge { what: "constraints", room }));
    }
    let b_len = synthesized.b_inputs.ones() + synthesized.b_aux.ones();
    for (what, expected, found) in [
        ("inputs", srs.vk().ic.len(), synthesized.inputs.len()),
        ("variables", srs.l().len(), synthesized.aux),
        ("variables in A", srs.a().len(), synthesized.inputs.len() + synthesized.a_aux.ones()),
        ("variables in B", srs.b_g1().len(), b_len),
    ] {
        if expected != found {
            return Err(PipelineError::WrongCircuit { params: params(), what, expected, found });
        }
    }
    Ok(synthesized)
}

/// The multi-exponentiations that need the witness: all but h.
fn witness_queries(
    srs: &Srs,
    circuit: &Synthesized,
    witness: &[Scalar],
    checkpoint: &dyn Checkpoint,
) -> Result<Queries, Interrupted> {
    let in_b =
        || Scalars::dense(&circuit.inputs, &circuit.b_inputs).then_dense(witness, &circuit.b_aux);
    let in_a = Scalars::all(&circuit.inputs).then_dense(witness, &circuit.a_aux);
    Ok(Queries {
        h: G1Projective::identity(),
        l: msm::msm_g1(srs.l(), Scalars::all(witness), checkpoint)?,
        a: msm::msm_g1(srs.a(), in_a, checkpoint)?,
        b_g1: msm::msm_g1(srs.b_g1(), in_b(), checkpoint)?,
        b_g2: msm::msm_g2(srs.b_g2(), in_b(), checkpoint)?,
    })
}

fn timed<T>(time: &mut Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    *time = started.elapsed();
    result
}
