//! A Filecoin proof as the engine's work: from a checked request to verified proofs.

use std::sync::Arc;
use std::time::Instant;

use rand::rngs::OsRng;

use super::circuits::{Made, OpenCircuits, Way};
use super::srs::{OpenSrs, SrsStatus};
use super::work::{Admitted, Work, WorkError};
use crate::circuit::{self, Matrices};
use crate::groth16::{self, Proof};
use crate::memory::PinnedPool;
use crate::params::{ParamsError, Srs};
use crate::pipeline::{self, Buffers, Evaluated, Footprint, PipelineError, StageTimes};
use crate::proof::{Partition, Priority, ProofKind, ProofRequest};

/// How often a proof that does not verify is proved.
const TRIES: u32 = 2;

/// What all proofs share.
pub(super) struct Prover {
    pub params: OpenSrs,
    pub circuits: OpenCircuits,
    pub pool: Arc<PinnedPool>,
    /// Threads of the device.
    pub threads: usize,
}

impl Prover {
    /// What is open of each circuit, and every native file that is not.
    pub fn status(&self) -> Vec<SrsStatus> {
        let mut all = self.params.status();
        for srs in &mut all {
            srs.compiled = self.circuits.opened(srs.circuit).unwrap_or(0);
        }
        all
    }
}

/// A request to be proved.
pub(super) struct Proving {
    pub request: ProofRequest,
    pub prover: Arc<Prover>,
}

impl Work for Proving {
    fn kind(&self) -> ProofKind {
        self.request.kind()
    }

    fn priority(&self) -> Priority {
        self.request.priority()
    }

    fn request_id(&self) -> &str {
        self.request.request_id()
    }

    fn content_hash(&self) -> blake3::Hash {
        self.request.content_hash()
    }

    fn body_bytes(&self) -> u64 {
        self.request.memory_bytes()
    }

    fn partitions(&self) -> usize {
        self.request.partitions()
    }

    fn path(&self) -> String {
        let circuit = self.request.circuit_id();
        let compiled = self.prover.circuits.opened(circuit).is_some();
        format!("{circuit} {}", if compiled { "compiled" } else { "plain" })
    }

    fn name(&self) -> String {
        self.request.circuit_id().to_string()
    }

    fn footprint(&self) -> Result<Footprint, ParamsError> {
        let counts = self.prover.params.counts(self.request.circuit_id())?;
        Ok(pipeline::footprint(&counts, self.prover.threads, &self.prover.pool))
    }

    fn run(&self, partition: usize, admitted: &mut Admitted<'_>) -> Result<Vec<u8>, WorkError> {
        admitted.stage("opening parameters");
        let started = Instant::now();
        let srs = self.prover.params.open(self.request.circuit_id(), admitted.host())?;
        admitted.spent_opening(started.elapsed());
        let Partition { circuit, inputs } = self.request.partition(partition)?;
        let (proof, made) = self.prove(circuit, &srs, admitted)?;
        let proof = proof.to_bytes();
        admitted.stage("verifying");
        if groth16::verify(srs.vk(), &proof, &[inputs]).is_ok_and(|valid| valid) {
            if let Some(recording) = made {
                recording.keep();
            }
            if admitted.tries() > 1 {
                self.prover.circuits.distrust(self.request.circuit_id());
            }
            return Ok(proof.to_vec());
        }
        let tries = admitted.tries();
        tracing::warn!(circuit = %self.request.circuit_id(), partition, tries, "proof.invalid");
        metrics::counter!("cuzk_proofs_invalid_total").increment(1);
        if tries < TRIES {
            return Err(WorkError::Again);
        }
        let again = self.request.partition(partition)?;
        let why = circuit::diagnose(again.circuit).to_string();
        Err(WorkError::Invalid { tries, why })
    }
}

impl Proving {
    fn prove(
        &self,
        circuit: Box<dyn circuit::AnyCircuit>,
        srs: &Srs,
        admitted: &mut Admitted<'_>,
    ) -> Result<(Proof, Option<Made<'_>>), WorkError> {
        admitted.stage("synthesising");
        let (evaluated, made) = self.evaluate(circuit, srs, admitted)?;
        let computed =
            admitted.device(|turn| pipeline::compute(evaluated, srs, turn, &mut OsRng))?;
        let (proof, times) = computed?;
        admitted.spent(times);
        self.record(times);
        Ok((proof, made))
    }

    /// Synthesises, with the matrices from wherever they are had fastest; on a second try from the
    /// circuit alone, as a recording would be as wrong as before.
    fn evaluate(
        &self,
        circuit: Box<dyn circuit::AnyCircuit>,
        srs: &Srs,
        admitted: &mut Admitted<'_>,
    ) -> Result<(Evaluated, Option<Made<'_>>), WorkError> {
        let (id, circuits) = (self.request.circuit_id(), &self.prover.circuits);
        let buffers = Buffers::new(srs, |len| admitted.scalars(len))?;
        let host = admitted.host();
        let synthesize = |matrices| pipeline::synthesize(circuit, matrices, srs, buffers, host);
        let way = if admitted.tries() > 1 { Way::Plain } else { circuits.way(id, srs) };
        match way {
            Way::Plain => Ok((synthesize(Matrices::Circuit)?, None)),
            Way::Compiled(compiled) => match synthesize(Matrices::Compiled(&compiled)) {
                Err(error) if is_recordings_fault(&error) => {
                    circuits.remove(id, &compiled, &error);
                    Err(WorkError::Again)
                }
                other => Ok((other?, None)),
            },
            Way::Record(mut claim) => match claim.begin(host) {
                Some(mut recorder) => {
                    let evaluated = synthesize(Matrices::Recorded(&mut recorder))?;
                    let made = claim.end(recorder, evaluated.took());
                    Ok((evaluated, made))
                }
                None => Ok((synthesize(Matrices::Circuit)?, None)),
            },
        }
    }

    fn record(&self, times: StageTimes) {
        let kind = self.request.kind().to_string();
        let stages = [
            ("synthesis", times.synthesis),
            ("witness_msm", times.witness_msm),
            ("quotient", times.quotient),
            ("h_msm", times.h_msm),
        ];
        for (stage, time) in stages {
            metrics::histogram!("cuzk_stage_seconds", "kind" => kind.clone(), "stage" => stage)
                .record(time.as_secs_f64());
        }
    }
}

/// Whether a synthesis from a recording failed for something that the circuit alone may not have.
fn is_recordings_fault(error: &PipelineError) -> bool {
    use PipelineError::{Compiled, TooLarge, WrongCircuit};
    matches!(error, Compiled(_) | TooLarge { .. } | WrongCircuit { .. })
}
