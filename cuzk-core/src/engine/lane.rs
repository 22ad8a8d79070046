//! A lane: one thread that proves the jobs of one priority, one after the other.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cuzk_governor::budget::{self, Ask, Reservation, ReserveError};
use rand::rngs::OsRng;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::job::Progress;
use super::turnstile::{StopFlag, Turn};
use super::{EngineError, JobId, JobResult, Shared};
use crate::circuit;
use crate::device::{Checkpoint, Interrupted};
use crate::groth16::{self, Proof};
use crate::params::ParamsError;
use crate::pipeline::{self, PipelineError, StageTimes};
use crate::proof::{Partition, Priority, ProofError, ProofRequest};

/// How long memory is waited for before the checkpoint is asked again.
const MEMORY_WAIT: Duration = Duration::from_millis(100);

/// How long memory is waited for in all: longer than the slowest message that was let in before may
/// take to arrive (later ones stand behind), so only a leak can make it take longer.
const MEMORY_DEADLINE: Duration = Duration::from_secs(600);

/// How often a proof that does not verify is proved.
const TRIES: usize = 2;

/// Why a partition, and with it the job, has no proof.
#[derive(Debug, thiserror::Error)]
enum PartitionError {
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    #[error(transparent)]
    Params(ParamsError),
    #[error(transparent)]
    Request(#[from] ProofError),
    #[error(transparent)]
    Pipeline(PipelineError),
    #[error("{needs} bytes of memory did not become free within {} s: {why}", MEMORY_DEADLINE.as_secs())]
    Memory { needs: u64, why: ReserveError },
    #[error("the proof does not verify, {TRIES} times in a row: {0}")]
    Invalid(String),
    #[error("proving panicked: {0}")]
    Panicked(String),
}

impl From<PipelineError> for PartitionError {
    fn from(error: PipelineError) -> Self {
        match error {
            PipelineError::Interrupted(interrupted) => Self::Interrupted(interrupted),
            other => Self::Pipeline(other),
        }
    }
}

impl From<ParamsError> for PartitionError {
    fn from(error: ParamsError) -> Self {
        match error {
            ParamsError::Interrupted(interrupted) => Self::Interrupted(interrupted),
            other => Self::Params(other),
        }
    }
}

/// Starts the lane of `priority`.
pub(super) fn spawn(
    shared: Arc<Shared>,
    priority: Priority,
) -> Result<JoinHandle<()>, EngineError> {
    let name = format!("lane-{priority}");
    let threads = ThreadPoolBuilder::new()
        .num_threads(shared.config.threads)
        .thread_name(move |i| format!("{priority}-{i}"))
        .build()
        .map_err(|why| EngineError::Thread(why.to_string()))?;
    thread::Builder::new()
        .name(name)
        .spawn(move || Lane { shared, priority, threads }.run())
        .map_err(|why| EngineError::Thread(why.to_string()))
}

struct Lane {
    shared: Arc<Shared>,
    priority: Priority,
    threads: ThreadPool,
}

/// A job as the lane sees it.
struct Taken {
    id: JobId,
    request: Arc<ProofRequest>,
    accepted: Instant,
    stop: StopFlag,
}

impl Lane {
    fn run(self) {
        while let Some(job) = self.next_job() {
            let mut progress = Progress::default();
            progress.timings.queue_wait = job.accepted.elapsed();
            // Filecoin's crates assert on what they do not expect, and a request's vanilla proofs
            // reach them: a panic there is that job's failure, nobody else's.
            let proving = AssertUnwindSafe(|| self.prove(&job, &mut progress));
            let result = match panic::catch_unwind(proving) {
                Ok(Ok(())) => JobResult::Completed(std::mem::take(&mut progress.proof)),
                Ok(Err(PartitionError::Interrupted(_))) => JobResult::Cancelled,
                Ok(Err(why)) => JobResult::Failed(why.to_string()),
                Err(payload) => {
                    JobResult::Failed(PartitionError::Panicked(message(&*payload)).to_string())
                }
            };
            progress.timings.total = job.accepted.elapsed();
            let ended =
                self.shared.end(&mut self.shared.state.lock(), &job.id, result, progress.timings);
            ended.tell();
        }
    }

    /// The oldest job of this lane's priority; `None` when the engine closes and none is left.
    fn next_job(&self) -> Option<Taken> {
        let mut state = self.shared.state.lock();
        loop {
            let mine = state.jobs.values_mut().filter(|job| job.priority == self.priority);
            if let Some(job) = mine.min_by_key(|job| job.place) {
                job.running = true;
                return Some(Taken {
                    id: job.id.clone(),
                    request: Arc::clone(&job.request),
                    accepted: job.accepted,
                    stop: job.stop.clone(),
                });
            }
            if state.closing {
                return None;
            }
            self.shared.changed.wait(&mut state);
        }
    }

    fn prove(&self, job: &Taken, progress: &mut Progress) -> Result<(), PartitionError> {
        while progress.next() < job.request.partitions() {
            let partition = progress.next();
            match self.partition(job, partition, progress) {
                // Shed, not cancelled: its memory is gone, and it starts over.
                Err(PartitionError::Interrupted(_)) if !job.stop.is_raised() => {
                    tracing::info!(job = %job.id, partition, "partition.shed");
                    metrics::counter!("cuzk_partitions_shed_total").increment(1);
                }
                Err(why) => return Err(why),
                Ok(proof) => progress.proof.extend(proof.to_bytes()),
            }
        }
        Ok(())
    }

    /// One partition's verified proof.
    fn partition(
        &self,
        job: &Taken,
        partition: usize,
        progress: &mut Progress,
    ) -> Result<Proof, PartitionError> {
        self.stage(job, "waiting for its turn");
        let stop = job.stop.child();
        let turn = self.shared.turnstile.enter(self.priority, &stop)?;

        self.stage(job, "opening parameters");
        let started = Instant::now();
        let srs = self.shared.params.open(job.request.circuit_id(), &turn)?;
        progress.timings.srs_load += started.elapsed();

        let needs = pipeline::footprint(
            &srs.header().counts,
            self.shared.config.threads,
            &self.shared.pool,
        );
        for attempt in 1..=TRIES {
            // The pool's chunks take a try's reservation over: the next one needs its own.
            self.stage(job, "waiting for memory");
            let mut memory = self.reserve(needs, &turn)?;
            let _holding = Holding::new(&self.shared, self.priority, stop.clone());

            self.stage(job, "proving");
            let Partition { circuit, inputs } = job.request.partition(partition)?;
            let (proof, times) = self.threads.install(|| {
                pipeline::prove(circuit, &srs, &self.shared.pool, &mut memory, &turn, &mut OsRng)
            })?;
            progress.timings.add(times);
            record(job, times);
            if groth16::verify(srs.vk(), &proof.to_bytes(), &[inputs]).is_ok_and(|valid| valid) {
                return Ok(proof);
            }
            tracing::warn!(job = %job.id, partition, attempt, "proof.invalid");
            metrics::counter!("cuzk_proofs_invalid_total").increment(1);
        }
        let again = job.request.partition(partition)?;
        Err(PartitionError::Invalid(circuit::diagnose(again.circuit).to_string()))
    }

    /// Takes `needs` bytes; idle chunks and less urgent partitions make room if they must.
    fn reserve(&self, needs: u64, turn: &Turn<'_>) -> Result<Reservation, PartitionError> {
        let deadline = Instant::now() + MEMORY_DEADLINE;
        let budget = &self.shared.budget;
        let ask = Ask::new("partition", needs).at(urgency(self.priority));
        if let Ok(memory) = budget.try_reserve(ask) {
            return Ok(memory);
        }
        self.shared.pool.trim(0);
        loop {
            match budget.reserve(ask, Instant::now() + MEMORY_WAIT) {
                Ok(memory) => return Ok(memory),
                Err(why) if Instant::now() >= deadline => {
                    return Err(PartitionError::Memory { needs, why })
                }
                Err(_) => self.shared.shed_below(self.priority),
            }
            turn.check()?;
        }
    }

    fn stage(&self, job: &Taken, stage: &'static str) {
        if let Some(job) = self.shared.state.lock().jobs.get_mut(&job.id) {
            job.stage = stage;
        }
    }
}

/// Registers a partition as one that holds memory, for as long as it lives.
struct Holding<'a> {
    shared: &'a Shared,
    shed: StopFlag,
}

impl<'a> Holding<'a> {
    fn new(shared: &'a Shared, priority: Priority, shed: StopFlag) -> Self {
        shared.state.lock().holding.push((priority, shed.clone()));
        Self { shared, shed }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let shed = &self.shed;
        self.shared.state.lock().holding.retain(|(_, other)| !other.is(shed));
    }
}

fn urgency(priority: Priority) -> budget::Priority {
    match priority {
        Priority::Low => budget::Priority::Low,
        Priority::Normal => budget::Priority::Normal,
        Priority::High => budget::Priority::High,
        Priority::Critical => budget::Priority::Critical,
    }
}

fn record(job: &Taken, times: StageTimes) {
    let kind = job.request.kind().to_string();
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

fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}
