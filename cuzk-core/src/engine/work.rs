//! What the engine runs: a [`Work`] is a job's content, cut into partitions. Real proofs are one
//! ([`super::prover`]); load tests script others, on real memory, through the very same engine.
//!
//! A partition is run on a thread of its own once its memory is reserved. It goes through its
//! stages with the [`Admitted`] it is given: host work under [`Admitted::host`], device work inside
//! [`Admitted::device`]; between any two chunks of either it asks the checkpoint, which makes it
//! wait for the more urgent and ends it when it is shed or cancelled. Whatever it takes must be
//! gone when it returns.

use std::sync::Arc;
use std::time::Duration;

use cuzk_governor::budget::{Reservation, ReserveError};
use rayon::ThreadPool;

use super::running::Running;
use super::turnstile::{Presence, Turn, Turnstile};
use crate::device::{Checkpoint, Interrupted};
use crate::memory::{Account, PinnedPool, PoolError, ScalarBuf};
use crate::params::ParamsError;
use crate::pipeline::{Footprint, PipelineError, StageTimes};
use crate::proof::{Priority, ProofError, ProofKind};

/// A job's content.
pub trait Work: Send + Sync {
    /// Which queue it is counted in.
    fn kind(&self) -> ProofKind;
    /// How urgent it is.
    fn priority(&self) -> Priority;
    /// The client's idempotency key; empty when it gave none.
    fn request_id(&self) -> &str;
    /// Equal for equal contents.
    fn content_hash(&self) -> blake3::Hash;
    /// Bytes that the content itself holds, as long as the job lives.
    fn body_bytes(&self) -> u64;
    /// How many partitions it has.
    fn partitions(&self) -> usize;
    /// Names what its partitions have in common: what one of them took tells about the next.
    fn path(&self) -> String;
    /// What people call it.
    fn name(&self) -> String {
        self.path()
    }
    /// What one partition takes, from the circuit's counts.
    ///
    /// # Errors
    /// Where the counts cannot be read.
    fn footprint(&self) -> Result<Footprint, ParamsError>;
    /// Makes one partition's result, in the memory that it was admitted with.
    ///
    /// # Errors
    /// [`WorkError`]; after [`WorkError::Interrupted`] and [`WorkError::Again`] it is run again.
    fn run(&self, partition: usize, admitted: &mut Admitted<'_>) -> Result<Vec<u8>, WorkError>;
}

/// Why a partition, and with it the job, has no result.
#[derive(Debug, thiserror::Error)]
pub enum WorkError {
    /// Shed or cancelled at a checkpoint.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The circuit's parameters cannot be used.
    #[error(transparent)]
    Params(ParamsError),
    /// The circuit cannot be built.
    #[error(transparent)]
    Request(#[from] ProofError),
    /// It cannot be proved.
    #[error(transparent)]
    Pipeline(PipelineError),
    /// No buffer.
    #[error(transparent)]
    Buffer(PoolError),
    /// No memory.
    #[error("{needs} bytes of memory for {what} were not to be had: {why}")]
    Memory {
        /// For what.
        what: String,
        /// Bytes asked for.
        needs: u64,
        /// Why not.
        why: ReserveError,
    },
    /// The governor has found that it can never fit.
    #[error("{what} needs {needs} bytes of memory at its peak; at most {possible} bytes can be had with everything else given up: raise the memory limit, or use a larger machine")]
    NeverFits {
        /// The partition.
        what: String,
        /// Bytes it needs.
        needs: u64,
        /// Bytes that could be had.
        possible: u64,
    },
    /// The result is wrong; it is to be made once more.
    #[error("the result is wrong, and to be made once more")]
    Again,
    /// A proof that was made and is wrong.
    #[error("the proof does not verify, {tries} times in a row: {why}")]
    Invalid {
        /// How often it was made.
        tries: u32,
        /// What is known of the reason.
        why: String,
    },
    /// A panic in the circuit's code.
    #[error("proving panicked: {0}")]
    Panicked(String),
    /// No thread.
    #[error("a thread could not be started: {0}")]
    Thread(std::io::Error),
}

impl From<PoolError> for WorkError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Interrupted(interrupted) => Self::Interrupted(interrupted),
            other => Self::Buffer(other),
        }
    }
}

impl From<PipelineError> for WorkError {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Interrupted(interrupted) => Self::Interrupted(interrupted),
            other => Self::Pipeline(other),
        }
    }
}

impl From<ParamsError> for WorkError {
    fn from(error: ParamsError) -> Self {
        match error {
            ParamsError::Interrupted(interrupted) => Self::Interrupted(interrupted),
            other => Self::Params(other),
        }
    }
}

/// A partition that has its memory: what it works with.
pub struct Admitted<'a> {
    pub(super) pool: &'a Arc<PinnedPool>,
    pub(super) turnstile: &'a Turnstile,
    pub(super) threads: &'a ThreadPool,
    pub(super) running: &'a Running,
    pub(super) presence: Presence,
    pub(super) buffers: Reservation,
    pub(super) tell: &'a (dyn Fn(&'static str) + Sync),
    pub(super) tries: u32,
    pub(super) times: StageTimes,
    pub(super) srs_load: Duration,
}

impl Admitted<'_> {
    /// The checkpoint of work on the host: synthesis.
    pub fn host(&self) -> &dyn Checkpoint {
        &self.presence
    }

    /// Does `work` on the device, in its turn, on its threads.
    ///
    /// # Errors
    /// [`Interrupted`] while it waits for the turn.
    pub fn device<R: Send>(
        &self,
        work: impl FnOnce(&Turn<'_>) -> R + Send,
    ) -> Result<R, Interrupted> {
        self.stage("waiting for the device");
        let turn = self.turnstile.enter(self.running.priority, &self.running.stop)?;
        self.stage("computing");
        let account = &self.running.account;
        self.threads.broadcast(|_| Account::charge_thread(Some(account)));
        let result = self.threads.install(|| work(&turn));
        self.threads.broadcast(|_| Account::charge_thread(None));
        Ok(result)
    }

    /// A buffer of `len` scalars, all zero, from the partition's own memory: host work.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn scalars(&mut self, len: usize) -> Result<ScalarBuf, PoolError> {
        let before = self.buffers.bytes();
        let buffer = self.pool.scalars(len, &mut self.buffers, &self.presence);
        self.running.took(before - self.buffers.bytes());
        buffer
    }

    /// How often it was run to its end, this time included.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Enters bytes of its buffers that went back to the pool before its end.
    pub fn gave_back(&self, bytes: u64) {
        self.running.gave_back(bytes);
    }

    /// Says in which stage the partition is.
    pub fn stage(&self, stage: &'static str) {
        (self.tell)(stage);
    }

    /// Enters time spent in stages.
    pub fn spent(&mut self, times: StageTimes) {
        self.times.add(times);
    }

    /// Enters time spent on opening parameters. What that took of the heap tells nothing about the
    /// next partition, which finds them open.
    pub fn spent_opening(&mut self, time: Duration) {
        self.srs_load += time;
        self.running.account.restart_peak();
    }
}
