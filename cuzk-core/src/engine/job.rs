//! A job: one request from acceptance to its proof, and those who wait for it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuzk_governor::budget::Reservation;
use rand::RngCore;

use super::turnstile::StopFlag;
use crate::groth16::PROOF_BYTES;
use crate::pipeline::StageTimes;
use crate::proof::{Priority, ProofRequest};

/// Names a job: 32 hexadecimal digits, unique and not to be guessed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(String);

impl JobId {
    pub(super) fn fresh() -> Self {
        let mut bytes = [0; 16];
        rand::rngs::OsRng.fill_bytes(&mut bytes);
        Self(hex::encode(bytes))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for JobId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The proof or why there is none.
    pub result: JobResult,
    /// Where the time went.
    pub timings: Timings,
}

/// The proof or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobResult {
    /// Verified; 192 bytes a partition, in order.
    Completed(Vec<u8>),
    /// With what is known of the reason.
    Failed(String),
    /// By a client, or by shutdown.
    Cancelled,
}

/// Where a job's time went, its partitions added up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// From acceptance to the first partition's start.
    pub queue_wait: Duration,
    /// Opening (and perhaps converting) parameters.
    pub srs_load: Duration,
    /// Synthesis.
    pub synthesis: Duration,
    /// Transforms and multi-exponentiations.
    pub compute: Duration,
    /// From acceptance to the end.
    pub total: Duration,
}

impl Timings {
    pub(super) fn add(&mut self, times: StageTimes) {
        self.synthesis += times.synthesis;
        self.compute += times.compute();
    }
}

/// Told once, when the job ends.
pub(super) type Waiter = Box<dyn FnOnce(Arc<Outcome>) + Send>;

/// A job that has not ended.
pub(super) struct Job {
    pub id: JobId,
    pub request: Arc<ProofRequest>,
    pub priority: Priority,
    pub accepted: Instant,
    /// Place among the jobs of its priority.
    pub place: u64,
    pub stop: StopFlag,
    pub stage: &'static str,
    pub running: bool,
    pub waiters: HashMap<u64, Waiter>,
    /// What the request's own bytes take.
    pub body: Reservation,
}

/// What a lane keeps of a job between its partitions.
#[derive(Default)]
pub(super) struct Progress {
    pub proof: Vec<u8>,
    pub timings: Timings,
}

impl Progress {
    /// The next partition to prove.
    pub fn next(&self) -> usize {
        self.proof.len() / PROOF_BYTES
    }
}
