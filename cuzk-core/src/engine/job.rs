//! A job: one request from acceptance to its proof, and those who wait for it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuzk_governor::budget::Reservation;
use rand::RngCore;

use super::turnstile::StopFlag;
use super::work::Work;
use crate::pipeline::{Footprint, StageTimes};
use crate::proof::Priority;

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
    pub work: Arc<dyn Work>,
    pub priority: Priority,
    pub accepted: Instant,
    /// Place among the jobs of its priority.
    pub place: u64,
    pub stop: StopFlag,
    pub stage: &'static str,
    /// Whether any of its partitions was ever started.
    pub started: bool,
    pub parts: Vec<Part>,
    /// What each partition takes, as the circuit's counts say.
    pub predicted: Footprint,
    pub timings: Timings,
    /// Why it has failed; the job ends when none of its partitions runs any more.
    pub failure: Option<String>,
    pub waiters: HashMap<u64, Waiter>,
    /// What the content's own bytes take.
    pub body: Reservation,
}

/// A partition of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    /// To be run.
    Waiting(Past),
    /// On its way, from the wait for memory to its end.
    Taken(Past),
    /// Its result.
    Done(Vec<u8>),
}

/// What became of a partition before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Past {
    /// Shed so often.
    pub sheds: u32,
    /// Run to a wrong result so often.
    pub tries: u32,
}

impl Job {
    /// The first partition that is to be run.
    pub fn next(&self) -> Option<usize> {
        self.parts.iter().position(|part| matches!(part, Part::Waiting(_)))
    }

    /// Whether any partition is on its way.
    pub fn is_busy(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Taken(_)))
    }

    /// What became of a partition before.
    pub fn past(&self, partition: usize) -> Past {
        match self.parts[partition] {
            Part::Waiting(past) | Part::Taken(past) => past,
            Part::Done(_) => Past::default(),
        }
    }

    /// Partitions without a result.
    pub fn unfinished(&self) -> usize {
        self.parts.iter().filter(|part| !matches!(part, Part::Done(_))).count()
    }

    /// How it ends, if it does now.
    pub fn ending(&mut self) -> Option<JobResult> {
        if self.is_busy() {
            return None;
        }
        if let Some(why) = self.failure.take() {
            return Some(JobResult::Failed(why));
        }
        if self.stop.is_raised() {
            return Some(JobResult::Cancelled);
        }
        let done = |part: &Part| matches!(part, Part::Done(_));
        self.parts.iter().all(done).then(|| {
            let results = self.parts.drain(..).filter_map(|part| match part {
                Part::Done(result) => Some(result),
                Part::Waiting(_) | Part::Taken(_) => None,
            });
            JobResult::Completed(results.flatten().collect())
        })
    }
}
