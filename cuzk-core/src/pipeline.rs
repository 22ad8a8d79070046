//! A partition's life: synthesise, on one thread of the host; then, on all threads of the device, l, a,
//! b multi-exponentiations ▸ quotient ▸ h multi-exponentiation ▸ finish. A checkpoint between any two
//! chunks of either.
//!
//! At most two domain-sized vectors and the witness live at once: the witness is gone before the
//! quotient, whose one more vector (a ∘ b on the rows in use) takes its room. All of them come from
//! the pool and are paid for by the partition's reservation.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellpepper_core::SynthesisError;
use blstrs::{G1Projective, Scalar};
use cuzk_governor::budget::Reservation;
use cuzk_governor::governor::purge_allocator;
use ff::Field;
use group::Group;
use rand::RngCore;

use crate::circuit::compiled::CompiledError;
use crate::circuit::{self, AnyCircuit, Matrices, Stopped, SynthesizeError, Synthesized};
use crate::device::cpu::domain::{Domain, DomainTooLarge};
use crate::device::cpu::msm::{self, Scalars};
use crate::device::cpu::quotient::quotient;
use crate::device::{Checkpoint, Interrupted};
use crate::groth16::{Proof, Queries};
use crate::memory::{PinnedPool, PoolError, ScalarBuf};
use crate::params::{Counts, Query, Srs};

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
    /// The compiled circuit cannot be used: prove without, and record it again.
    #[error(transparent)]
    Compiled(CompiledError),
    /// No buffer.
    #[error(transparent)]
    Memory(PoolError),
    /// The domain is larger than the field allows.
    #[error(transparent)]
    Domain(#[from] DomainTooLarge),
}

impl From<PoolError> for PipelineError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Interrupted(interrupted) => Self::Interrupted(interrupted),
            other => Self::Memory(other),
        }
    }
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
    /// Adds another partition's.
    pub fn add(&mut self, other: StageTimes) {
        self.synthesis += other.synthesis;
        self.witness_msm += other.witness_msm;
        self.quotient += other.quotient;
        self.h_msm += other.h_msm;
    }

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

/// Bytes that a partition takes at its peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// In the pool's chunks: known to the byte, and never less than this.
    pub buffers: u64,
    /// Beside them, on the heap: an estimate, which measurements correct.
    pub heap: u64,
}

impl Footprint {
    /// Both.
    pub fn total(&self) -> u64 {
        self.buffers + self.heap
    }
}

/// What a partition of a circuit of these counts holds at its peak, with buffers in whole chunks of
/// `pool`: two vectors and the larger of witness and rows in use; beside them three density bitmaps and
/// the larger of what synthesis takes and the scratch of one multi-exponentiation.
pub fn footprint(counts: &Counts, threads: usize, pool: &PinnedPool) -> Footprint {
    let domain = counts.h as usize + 1;
    let scalars = |n: usize| pool.rounded((n * size_of::<Scalar>()) as u64);
    let g1 = msm::scratch_bytes(96, domain, threads);
    let g2 = msm::scratch_bytes(192, counts.b_g2 as usize, threads);
    let densities = 3 * (counts.l + counts.ic).div_ceil(8);
    Footprint {
        buffers: 2 * scalars(domain) + scalars(third_len(counts)),
        heap: SYNTHESIS_BYTES.max(g1).max(g2) + densities,
    }
}

/// A partition's vectors, empty.
#[derive(Debug)]
pub struct Buffers {
    domain: Domain,
    a: ScalarBuf,
    b: ScalarBuf,
    third: ScalarBuf,
}

impl Buffers {
    /// Vectors for a partition of this circuit; `buffer` makes one of so many scalars.
    ///
    /// # Errors
    /// Where `buffer` has one, or the domain is too large.
    pub fn new(
        srs: &Srs,
        mut buffer: impl FnMut(usize) -> Result<ScalarBuf, PoolError>,
    ) -> Result<Self, PipelineError> {
        let domain = Domain::new((srs.h().len() + 1).trailing_zeros())?;
        let (a, b) = (buffer(domain.size())?, buffer(domain.size())?);
        Ok(Self { domain, a, b, third: buffer(third_len(&srs.header().counts))? })
    }
}

/// A synthesised partition: its vectors and its witness.
#[derive(Debug)]
pub struct Evaluated {
    buffers: Buffers,
    circuit: Synthesized,
    took: Duration,
}

impl Evaluated {
    /// How long it took.
    pub fn took(&self) -> Duration {
        self.took
    }
}

/// Proves one partition. `memory` must hold the [`Footprint::buffers`]; the calling thread's rayon
/// pool does the work. The proof is not verified here.
pub fn prove(
    circuit: Box<dyn AnyCircuit>,
    matrices: Matrices<'_, '_>,
    srs: &Srs,
    pool: &Arc<PinnedPool>,
    memory: &mut Reservation,
    checkpoint: &dyn Checkpoint,
    rng: &mut (dyn RngCore + Send),
) -> Result<(Proof, StageTimes), PipelineError> {
    let buffers = Buffers::new(srs, |len| pool.scalars(len, memory, checkpoint))?;
    compute(synthesize(circuit, matrices, srs, buffers, checkpoint)?, srs, checkpoint, rng)
}

/// The host's part: witness and evaluations, on the calling thread.
pub fn synthesize(
    circuit: Box<dyn AnyCircuit>,
    matrices: Matrices<'_, '_>,
    srs: &Srs,
    mut buffers: Buffers,
    checkpoint: &dyn Checkpoint,
) -> Result<Evaluated, PipelineError> {
    let started = Instant::now();
    let Buffers { a, b, third, .. } = &mut buffers;
    let circuit = evaluate(circuit, matrices, srs, a, b, &mut third[..srs.l().len()], checkpoint)?;
    // Its many small blocks leave the process before the device's scratch comes.
    purge_allocator();
    Ok(Evaluated { buffers, circuit, took: started.elapsed() })
}

/// The device's part, on the calling thread's rayon pool. The proof is not verified here.
pub fn compute(
    evaluated: Evaluated,
    srs: &Srs,
    checkpoint: &dyn Checkpoint,
    rng: &mut (dyn RngCore + Send),
) -> Result<(Proof, StageTimes), PipelineError> {
    let Evaluated { buffers: Buffers { domain, mut a, b, mut third }, circuit, took } = evaluated;
    let mut times = StageTimes { synthesis: took, ..StageTimes::default() };
    let witness = &third[..srs.l().len()];
    let mut queries =
        timed(&mut times.witness_msm, || witness_queries(srs, &circuit, witness, checkpoint))?;
    third.truncate(circuit.rows);
    timed(&mut times.quotient, || quotient(&domain, &mut a, b, third, checkpoint))?;
    queries.h = timed(&mut times.h_msm, || {
        let reading = Reading { srs, query: Query::H, checkpoint };
        msm::msm_g1(srs.h(), Scalars::all(&a[..srs.h().len()]), &reading)
    })?;

    let (r, s) = (Scalar::random(&mut *rng), Scalar::random(&mut *rng));
    Ok((queries.finish(srs.vk(), r, s), times))
}

/// Fills `a`, `b` and `witness`, and sees that the circuit is the parameters' one.
fn evaluate(
    circuit: Box<dyn AnyCircuit>,
    matrices: Matrices<'_, '_>,
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
    let max_inputs = srs.vk().ic.len();
    let synthesized = circuit::synthesize(circuit, matrices, a, b, witness, max_inputs, checkpoint)
        .map_err(|error| match error {
            SynthesizeError::Stopped(why) => stopped(why),
            SynthesizeError::Circuit(error) => PipelineError::Synthesis(error),
            SynthesizeError::Compiled(error) => PipelineError::Compiled(error),
        })?;
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
    let reading = |query| Reading { srs, query, checkpoint };
    Ok(Queries {
        h: G1Projective::identity(),
        l: msm::msm_g1(srs.l(), Scalars::all(witness), &reading(Query::L))?,
        a: msm::msm_g1(srs.a(), in_a, &reading(Query::A))?,
        b_g1: msm::msm_g1(srs.b_g1(), in_b(), &reading(Query::BG1))?,
        b_g2: msm::msm_g2(srs.b_g2(), in_b(), &reading(Query::BG2))?,
    })
}

/// A checkpoint that drops the parameters' pages behind the multi-exponentiation that reads them, while
/// memory is short.
struct Reading<'a> {
    srs: &'a Srs,
    query: Query,
    checkpoint: &'a dyn Checkpoint,
}

impl Checkpoint for Reading<'_> {
    fn check(&self) -> Result<(), Interrupted> {
        self.checkpoint.check()
    }

    fn has_read(&self, points: Range<usize>) {
        if self.checkpoint.is_strained() {
            self.srs.drop_pages(self.srs.byte_range(self.query, points));
        }
    }
}

fn timed<T>(time: &mut Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    *time = started.elapsed();
    result
}
