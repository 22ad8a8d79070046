//! Jobs, priorities, and the lanes that run them.
//!
//! There is one lane a priority: an OS thread that takes its oldest job and proves it partition by
//! partition. A turnstile decides which lane computes: a more urgent one overtakes at the next
//! checkpoint. Whoever holds the turn may take memory; if it does not fit beside what overtaken lanes
//! hold, their partitions are shed: they give their memory back and start over when their turn comes.
//! So memory is never waited for by one lane that another, waiting lane holds.
//!
//! Nothing large is kept outside the budget: request bodies are reserved when a job is accepted, a
//! partition's buffers when it starts.

mod job;
mod lane;
mod srs;
mod status;
mod turnstile;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cuzk_governor::budget::{Ask, MemoryBudget};
use parking_lot::{Condvar, Mutex, MutexGuard};

pub use job::{JobId, JobResult, Outcome, Timings};
pub use srs::{SrsStatus, Tier};
pub use status::{EngineStatus, QueueStatus, RunningJob};

use crate::memory::{PinnedPool, Plain};
use crate::params::{Params, ParamsError};
use crate::pipeline;
use crate::proof::{CircuitId, Priority, ProofKind, ProofRequest};
use job::{Job, Waiter};
use srs::OpenSrs;
use turnstile::{StopFlag, Turnstile};

/// Bytes of one pool chunk.
const CHUNK_BYTES: usize = 4 << 20;

/// What the engine needs to know.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Filecoin's parameter files.
    pub params_dir: PathBuf,
    /// Native parameter files; beside Filecoin's when `None`.
    pub native_dir: Option<PathBuf>,
    /// Threads that compute.
    pub threads: usize,
    /// Bytes that the engine may hold in all, mapped parameters (which the kernel can reclaim) apart.
    pub memory_budget: u64,
    /// Jobs that may wait or run at a time.
    pub max_jobs: usize,
    /// Ended jobs whose outcome is kept for clients that ask later.
    pub keep_finished: usize,
}

/// Why the engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No threads.
    #[error("a thread could not be started: {0}")]
    Thread(String),
    /// No address space.
    #[error("{asked} bytes of address space for buffers were refused: {source} (is RLIMIT_AS set? `ulimit -v` shows it)")]
    AddressSpace {
        /// Bytes asked for.
        asked: u64,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A setting that cannot work.
    #[error("{0}")]
    Config(String),
}

/// Why a job was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The job needs more than there will ever be.
    #[error("{what} needs {needs} bytes of memory at its peak; the budget has {has} bytes for it ({total} in all): raise `memory_budget`, or use a larger machine")]
    NeverFits {
        /// The partition or the request.
        what: String,
        /// Bytes it needs.
        needs: u64,
        /// Bytes there are for it.
        has: u64,
        /// Bytes of the whole budget.
        total: u64,
    },
    /// Full for now.
    #[error("{what} is full ({limit}): try again in {} s", retry_after.as_secs())]
    Full {
        /// What is full.
        what: &'static str,
        /// Its bound.
        limit: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Shutting down.
    #[error("the daemon is shutting down: try again when it has restarted")]
    Closing,
    /// The circuit's parameters cannot be used.
    #[error(transparent)]
    Params(#[from] ParamsError),
}

/// No such job, or it ended so long ago that its outcome is forgotten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no job {0}: it was never accepted here, or it ended and made room for newer ones")]
pub struct UnknownJob(pub JobId);

/// An accepted job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// To await or cancel it by.
    pub job_id: JobId,
    /// Jobs before it, running ones included.
    pub queue_position: u32,
    /// Whether it is an earlier job of the same request id and content.
    pub joined: bool,
}

/// The engine. Dropping it cancels everything.
pub struct Engine {
    shared: Arc<Shared>,
    lanes: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    config: EngineConfig,
    started: Instant,
    budget: MemoryBudget,
    /// The share of the budget that request bodies may take; partitions have the rest for sure.
    body_share: u64,
    pool: Arc<PinnedPool>,
    params: OpenSrs,
    turnstile: Turnstile,
    state: Mutex<State>,
    /// A job came, ended, or the engine closes.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: HashMap<JobId, Job>,
    finished: HashMap<JobId, Finished>,
    finished_order: VecDeque<JobId>,
    /// The latest attempt of each request id.
    by_request: HashMap<String, Attempt>,
    /// Partitions that hold memory, and how to make them give it back.
    holding: Vec<(Priority, StopFlag)>,
    body_bytes: u64,
    next_place: u64,
    next_waiter: u64,
    closing: bool,
    completed: u64,
    failed: u64,
}

struct Attempt {
    job_id: JobId,
    content: blake3::Hash,
}

struct Finished {
    outcome: Arc<Outcome>,
    request_id: String,
}

/// Calls back when its job ends; dropping it means not to be called.
pub struct Watch {
    shared: Arc<Shared>,
    job_id: JobId,
    waiter: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(job) = self.shared.state.lock().jobs.get_mut(&self.job_id) {
            job.waiters.remove(&self.waiter);
        }
    }
}

impl Engine {
    /// Starts the lanes.
    ///
    /// # Errors
    /// [`EngineError`]: a setting that cannot work, or the kernel refuses.
    pub fn start(config: EngineConfig) -> Result<Arc<Self>, EngineError> {
        if config.threads == 0 || config.max_jobs == 0 {
            return Err(EngineError::Config("threads and max_jobs must be at least 1".into()));
        }
        // Twice the budget: a run of chunks can be found although others lie in between.
        let space = config.memory_budget.saturating_mul(2).max(1 << 30);
        let pool = PinnedPool::new(space, CHUNK_BYTES, Box::new(Plain))
            .map_err(|source| EngineError::AddressSpace { asked: space, source })?;
        let mut params = Params::new(&config.params_dir);
        if let Some(native_dir) = &config.native_dir {
            params = params.with_native_dir(native_dir);
        }
        let shared = Arc::new(Shared {
            started: Instant::now(),
            budget: MemoryBudget::new(config.memory_budget),
            body_share: (config.memory_budget / 16).min(2 << 30),
            pool,
            params: OpenSrs::new(params),
            turnstile: Turnstile::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            config,
        });
        let mut lanes = Vec::new();
        for priority in Priority::ALL {
            lanes.push(lane::spawn(Arc::clone(&shared), priority)?);
        }
        Ok(Arc::new(Self { shared, lanes: Mutex::new(lanes) }))
    }

    /// Accepts a request, or finds the job that it repeats.
    ///
    /// The same request id with the same content joins the job that is queued, running or
    /// completed; after a failure or cancellation, and with other content, it is a new attempt.
    ///
    /// # Errors
    /// [`SubmitError`]; the request is not kept then.
    pub fn submit(&self, request: ProofRequest) -> Result<Submitted, SubmitError> {
        let shared = &self.shared;
        let content = request.content_hash();
        if let Some(joined) = shared.find_attempt(&shared.state.lock(), &request, &content) {
            return Ok(joined);
        }
        // Outside the lock: it may have to read a file's header.
        let partition = shared.partition_bytes(request.circuit_id())?;
        shared.check_it_can_ever_fit(&request, partition)?;

        let mut state = shared.state.lock();
        if state.closing {
            return Err(SubmitError::Closing);
        }
        if let Some(joined) = shared.find_attempt(&state, &request, &content) {
            return Ok(joined);
        }
        let job = shared.accept(&mut state, request)?;
        let job_id = job.id.clone();
        if !job.request.request_id().is_empty() {
            let attempt = Attempt { job_id: job_id.clone(), content };
            state.by_request.insert(job.request.request_id().to_owned(), attempt);
        }
        tracing::info!(job = %job_id, request = job.request.request_id(), kind = %job.request.kind(),
            priority = ?job.priority, "job.accepted");
        metrics::counter!("cuzk_jobs_accepted_total", "kind" => job.request.kind().to_string())
            .increment(1);
        state.jobs.insert(job_id.clone(), job);
        shared.changed.notify_all();
        let queue_position = state.position(&job_id);
        Ok(Submitted { job_id, queue_position, joined: false })
    }

    /// Calls `then` once with the job's outcome, at once if it has ended, unless the returned
    /// [`Watch`] is dropped before. `then` must not block.
    ///
    /// # Errors
    /// [`UnknownJob`].
    pub fn watch(
        &self,
        job_id: &JobId,
        then: impl FnOnce(Arc<Outcome>) + Send + 'static,
    ) -> Result<Watch, UnknownJob> {
        let mut state = self.shared.state.lock();
        let waiter = state.next_waiter;
        state.next_waiter += 1;
        if let Some(finished) = state.finished.get(job_id) {
            let outcome = Arc::clone(&finished.outcome);
            drop(state);
            then(outcome);
        } else if let Some(job) = state.jobs.get_mut(job_id) {
            job.waiters.insert(waiter, Box::new(then));
        } else {
            return Err(UnknownJob(job_id.clone()));
        }
        Ok(Watch { shared: Arc::clone(&self.shared), job_id: job_id.clone(), waiter })
    }

    /// Blocks until the job ends; `None` when `deadline` passes first.
    ///
    /// # Errors
    /// [`UnknownJob`].
    pub fn wait(
        &self,
        job_id: &JobId,
        deadline: Instant,
    ) -> Result<Option<Arc<Outcome>>, UnknownJob> {
        let (sender, receiver) = crossbeam_channel::bounded(1);
        let _watch = self.watch(job_id, move |outcome| {
            let _ = sender.send(outcome);
        })?;
        Ok(receiver.recv_deadline(deadline).ok())
    }

    /// Ends a job: at once if it waits, at its next checkpoint if it runs. Returns whether it ran.
    /// A job that has ended stays as it is.
    ///
    /// # Errors
    /// [`UnknownJob`].
    pub fn cancel(&self, job_id: &JobId) -> Result<bool, UnknownJob> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let Some(job) = state.jobs.get(job_id) else {
            let known = state.finished.contains_key(job_id);
            return if known { Ok(false) } else { Err(UnknownJob(job_id.clone())) };
        };
        job.stop.raise();
        if job.running {
            drop(state);
            shared.turnstile.nudge();
            return Ok(true);
        }
        let timings = Timings {
            queue_wait: job.accepted.elapsed(),
            total: job.accepted.elapsed(),
            ..Default::default()
        };
        let ended = shared.end(&mut state, job_id, JobResult::Cancelled, timings);
        drop(state);
        ended.tell();
        Ok(false)
    }

    /// Opens a circuit's parameters, converting them if need be, so that its next proof need not.
    /// Returns whether they were open.
    ///
    /// # Errors
    /// [`ParamsError`].
    pub fn preload(&self, circuit: CircuitId) -> Result<bool, ParamsError> {
        let open = self.shared.params.opened(circuit).is_some();
        self.shared.params.open(circuit, &crate::device::Unhindered)?;
        Ok(open)
    }

    /// Closes a circuit's parameters when no proof uses them. Returns the bytes unmapped, `None`
    /// when they were not open.
    pub fn evict(&self, circuit: CircuitId) -> Option<u64> {
        self.shared.params.close(circuit)
    }

    /// Accepts nothing more, lets jobs finish until `deadline`, then cancels what is left and ends
    /// the lanes.
    pub fn shutdown(&self, deadline: Instant) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state.closing = true;
        while !state.jobs.is_empty() && !shared.changed.wait_until(&mut state, deadline).timed_out()
        {
        }
        let left: Vec<JobId> = state.jobs.keys().cloned().collect();
        drop(state);
        for job_id in left {
            let _ = self.cancel(&job_id);
        }
        shared.changed.notify_all();
        for lane in self.lanes.lock().drain(..) {
            let _ = lane.join();
        }
    }

    /// A look at everything.
    pub fn status(&self) -> EngineStatus {
        status::read(&self.shared)
    }

    /// The ledger of all memory.
    pub fn budget(&self) -> &MemoryBudget {
        &self.shared.budget
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(Instant::now());
    }
}

/// A job that has ended, and whom to tell once the lock is released.
#[must_use]
struct Ended {
    outcome: Arc<Outcome>,
    waiters: Vec<Waiter>,
}

impl Ended {
    fn tell(self) {
        for waiter in self.waiters {
            waiter(Arc::clone(&self.outcome));
        }
    }
}

impl Shared {
    /// What a partition of this circuit takes at its peak.
    fn partition_bytes(&self, circuit: CircuitId) -> Result<u64, ParamsError> {
        let counts = self.params.counts(circuit)?;
        Ok(pipeline::footprint(&counts, self.config.threads, &self.pool))
    }

    fn check_it_can_ever_fit(
        &self,
        request: &ProofRequest,
        partition: u64,
    ) -> Result<(), SubmitError> {
        let total = self.config.memory_budget;
        let never =
            |what: String, needs, has| Err(SubmitError::NeverFits { what, needs, has, total });
        let has = total - self.body_share;
        if partition > has {
            return never(format!("a {} partition", request.circuit_id()), partition, has);
        }
        let body = request.memory_bytes();
        if body > self.body_share {
            return never("the request itself".into(), body, self.body_share);
        }
        Ok(())
    }

    fn find_attempt(
        &self,
        state: &MutexGuard<'_, State>,
        request: &ProofRequest,
        content: &blake3::Hash,
    ) -> Option<Submitted> {
        let attempt = state.by_request.get(request.request_id())?;
        if attempt.content != *content {
            return None;
        }
        let job_id = attempt.job_id.clone();
        let completed =
            |finished: &Finished| matches!(finished.outcome.result, JobResult::Completed(_));
        let queue_position = match state.jobs.get(&job_id) {
            Some(job) if job.stop.is_raised() => return None,
            Some(_) => state.position(&job_id),
            None if state.finished.get(&job_id).is_some_and(completed) => 0,
            None => return None,
        };
        Some(Submitted { job_id, queue_position, joined: true })
    }

    fn accept(&self, state: &mut State, request: ProofRequest) -> Result<Job, SubmitError> {
        let full = |what, limit| {
            Err(SubmitError::Full { what, limit, retry_after: Duration::from_secs(30) })
        };
        if state.jobs.len() >= self.config.max_jobs {
            return full("the queue", format!("{} jobs", self.config.max_jobs));
        }
        let bytes = request.memory_bytes();
        let room = self.body_share - state.body_bytes;
        let body = match bytes <= room {
            true => self.budget.try_reserve(Ask::new("request", bytes)).ok(),
            false => None,
        };
        let Some(body) = body else {
            return full("the memory for waiting requests", format!("{} bytes", self.body_share));
        };
        state.body_bytes += bytes;
        state.next_place += 1;
        Ok(Job {
            id: JobId::fresh(),
            priority: request.priority(),
            accepted: Instant::now(),
            place: state.next_place,
            stop: StopFlag::default(),
            stage: "queued",
            running: false,
            waiters: HashMap::new(),
            body,
            request: Arc::new(request),
        })
    }

    /// Moves a job to the finished ones. Counts it, logs it, forgets the oldest.
    fn end(&self, state: &mut State, job_id: &JobId, result: JobResult, timings: Timings) -> Ended {
        let outcome = Arc::new(Outcome { result, timings });
        let Some(job) = state.jobs.remove(job_id) else {
            return Ended { outcome, waiters: vec![] };
        };
        state.body_bytes -= job.body.bytes();
        let kind = job.request.kind().to_string();
        let ending = match &outcome.result {
            JobResult::Completed(_) => {
                state.completed += 1;
                "completed"
            }
            JobResult::Failed(why) => {
                state.failed += 1;
                tracing::error!(job = %job_id, kind, why, "job.failed");
                "failed"
            }
            JobResult::Cancelled => "cancelled",
        };
        tracing::info!(job = %job_id, kind, ending, total_ms = timings.total.as_millis() as u64, "job.ended");
        metrics::counter!("cuzk_jobs_ended_total", "kind" => kind.clone(), "ending" => ending)
            .increment(1);
        metrics::histogram!("cuzk_job_seconds", "kind" => kind).record(timings.total.as_secs_f64());

        let request_id = job.request.request_id().to_owned();
        state
            .finished
            .insert(job_id.clone(), Finished { outcome: Arc::clone(&outcome), request_id });
        state.finished_order.push_back(job_id.clone());
        while state.finished_order.len() > self.config.keep_finished {
            state.forget_oldest();
        }
        self.changed.notify_all();
        Ended { outcome, waiters: job.waiters.into_values().collect() }
    }

    /// Has every partition less urgent than `priority` give its memory back and start over later.
    fn shed_below(&self, priority: Priority) {
        let state = self.state.lock();
        for (_, shed) in state.holding.iter().filter(|(theirs, _)| *theirs < priority) {
            shed.raise();
        }
        drop(state);
        self.turnstile.nudge();
    }
}

impl State {
    /// Jobs that go before this one.
    fn position(&self, job_id: &JobId) -> u32 {
        let Some(job) = self.jobs.get(job_id) else { return 0 };
        let before = |other: &&Job| {
            other.priority > job.priority
                || other.priority == job.priority && other.place < job.place
        };
        self.jobs.values().filter(before).count() as u32
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.finished_order.pop_front() else { return };
        let Some(finished) = self.finished.remove(&oldest) else { return };
        if self.by_request.get(&finished.request_id).is_some_and(|a| a.job_id == oldest) {
            self.by_request.remove(&finished.request_id);
        }
    }

    fn count(&self, kind: ProofKind, running: bool) -> u32 {
        let is = |job: &&Job| job.request.kind() == kind && job.running == running;
        self.jobs.values().filter(is).count() as u32
    }
}
