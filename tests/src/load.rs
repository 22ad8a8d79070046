//! A process that works off a load, and the one that watches it do so: for tests and the load bench.
//!
//! The process is the very program that starts it, called again with its [`Role`] in the
//! environment, usually inside a cgroup; that program calls [`serve`] first thing. It says what
//! happens in JSON, a line an event, at once: what it said before it is killed is known.

mod child;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use cuzk_core::proof::ProofKind;
use cuzk_governor::setpoints::Setpoints;
use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::scripted::Script;

pub use child::serve;

/// Holds the role, as JSON.
const ROLE: &str = "CUZK_TEST_ROLE";
/// What every event's line has before it; test runners print, too.
const EVENT: &str = "load: ";

/// What a process is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Role {
    /// To work.
    Load(Load),
    /// To hold memory beside one that does.
    Neighbour(Neighbour),
}

/// Jobs, who says how many may run at once, and what beside them takes memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    /// Who says.
    pub regime: Regime,
    /// Bytes held from before the first job until after the last, on the ledger: a pinned SRS.
    pub srs: u64,
    /// Held before the engine starts, and unknown to the ledger: a driver, arenas.
    pub hidden: u64,
    /// Bytes lost a second while jobs run.
    pub leak_per_second: u64,
    /// A file read over and over while jobs run, for its page cache.
    pub reads: Option<PathBuf>,
    /// The jobs.
    pub jobs: Vec<Job>,
}

/// Who says how much may run at once.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Regime {
    /// The governor.
    Governed(Pace),
    /// An operator, once and for all.
    Fixed {
        /// Bytes.
        budget: u64,
        /// Partitions at once.
        concurrency: u32,
    },
}

/// How fast the governed work moves memory.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub enum Pace {
    /// As in production, on so many threads.
    Production {
        /// More partitions than these and one do not pay.
        threads: u32,
    },
    /// Partitions of seconds instead of minutes: ticks and cooldowns are shortened as much.
    Scaled,
}

impl Pace {
    /// The knobs.
    pub fn setpoints(self) -> Setpoints {
        let millis = Duration::from_millis;
        match self {
            Self::Production { threads } => {
                Setpoints { max_concurrency: threads + 1, ..Setpoints::default() }
            }
            Self::Scaled => Setpoints {
                tick: millis(50),
                reaction: millis(150),
                retreat_cooldown: millis(50),
                grow_cooldown: millis(500),
                climb_window: millis(3000),
                refuse_after: millis(5000),
                ..Setpoints::default()
            },
        }
    }
}

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    /// Unique.
    pub name: String,
    /// In whose queue it is, with whose urgency.
    #[serde(with = "by_name")]
    pub kind: ProofKind,
    /// When it comes, from the start.
    pub after: Duration,
    /// What it is.
    pub content: Content,
}

impl Job {
    /// A PoRep of scripted partitions, there from the start.
    pub fn scripted(name: String, script: Script) -> Self {
        let (kind, after) = (ProofKind::PorepSealCommit, Duration::ZERO);
        Self { name, kind, after, content: Content::Scripted(script) }
    }
}

/// What a job is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Content {
    /// As a script says.
    Scripted(Script),
    /// A proof about a 2 KiB sector, with development parameters.
    Real,
}

/// Memory that comes and goes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Neighbour {
    /// Bytes.
    pub bytes: u64,
    /// Until all of it is there.
    pub grows: Duration,
    /// For how long it stays.
    pub stays: Duration,
}

/// What a process says.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Event {
    /// All that is held from the start is there; jobs come now.
    Ready,
    Accepted {
        job: String,
    },
    Refused {
        job: String,
        why: String,
    },
    Finished {
        job: String,
        seconds: f64,
    },
    Failed {
        job: String,
        why: String,
    },
    End(End),
}

/// How it was in the end.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct End {
    /// The most partitions at once that a governor saw.
    pub most_at_once: u32,
    /// Partitions that it had shed.
    pub shed: u32,
    /// The least limit that it saw.
    pub least_limit: u64,
    /// Bytes reserved after the last job, neither for an SRS nor for idle chunks.
    pub reserved_after_jobs: u64,
    /// Bytes reserved when the engine had ended.
    pub reserved_at_end: u64,
    /// Anonymous memory of the idle process, before anything was held.
    pub idle: u64,
    /// The same in the end.
    pub at_end: u64,
}

/// A process that was started.
pub struct Process {
    child: Child,
    said: Receiver<(Instant, Event)>,
    run: Run,
    ready: Option<Instant>,
}

/// What became of it.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub status: ExitStatus,
    /// Jobs that it took.
    pub accepted: Vec<String>,
    /// Jobs that it refused, and why.
    pub refused: Vec<(String, String)>,
    /// Jobs that it finished, and the seconds from their acceptance.
    pub finished: Vec<(String, f64)>,
    /// Jobs without a result, and why.
    pub failed: Vec<(String, String)>,
    /// From the first job until the last one was finished, or until it was killed.
    pub seconds: f64,
    /// What it said last, if it was not killed.
    pub end: Option<End>,
}

impl Run {
    /// Whether somebody killed it.
    pub fn killed(&self) -> bool {
        self.status.signal() == Some(libc::SIGKILL)
    }

    /// Jobs that were accepted and never finished.
    pub fn lost(&self) -> usize {
        self.accepted.len() - self.finished.len()
    }
}

impl Process {
    /// Starts `command`, which must come to [`serve`], inside `cgroup` if there is one.
    ///
    /// # Errors
    /// The system's.
    pub fn start(cgroup: Option<&Cgroup>, mut command: Command, role: &Role) -> Result<Self> {
        command.env(ROLE, serde_json::to_string(role)?).stdout(Stdio::piped());
        let mut child = match cgroup {
            Some(cgroup) => cgroup.spawn(&mut command)?,
            None => command.spawn().with_context(|| format!("cannot start {command:?}"))?,
        };
        let lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        let (say, said) = mpsc::channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let event = line.split_once(EVENT).map(|(_, event)| serde_json::from_str(event));
                if let Some(Ok(event)) = event {
                    let _ = say.send((Instant::now(), event));
                }
            }
        });
        let run = Run {
            status: ExitStatus::from_raw(0),
            accepted: vec![],
            refused: vec![],
            finished: vec![],
            failed: vec![],
            seconds: 0.0,
            end: None,
        };
        Ok(Self { child, said, run, ready: None })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until jobs come.
    ///
    /// # Errors
    /// When they do not within `patience`.
    pub fn until_ready(&mut self, patience: Duration) -> Result<()> {
        let deadline = Instant::now() + patience;
        while self.ready.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok((at, event)) => self.enter(at, event),
                Err(why) => bail!("the process is not ready: {why}, {:?}", self.child.try_wait()),
            }
        }
        Ok(())
    }

    /// Waits for its end, and ends it when that does not come within `patience`.
    ///
    /// # Errors
    /// When it had to be ended.
    pub fn finish(mut self, patience: Duration) -> Result<Run> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok((at, event)) => self.enter(at, event),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.child.kill()?;
                    self.child.wait()?;
                    bail!("the process did not end within {patience:?}: {:?}", self.run);
                }
            }
        }
        self.run.status = self.child.wait()?;
        if let (true, Some(ready)) = (self.run.killed(), self.ready) {
            self.run.seconds = ready.elapsed().as_secs_f64();
        }
        Ok(self.run)
    }

    fn enter(&mut self, at: Instant, event: Event) {
        let run = &mut self.run;
        match event {
            Event::Ready => self.ready = Some(at),
            Event::Accepted { job } => run.accepted.push(job),
            Event::Refused { job, why } => run.refused.push((job, why)),
            Event::Failed { job, why } => run.failed.push((job, why)),
            Event::Finished { job, seconds } => {
                run.finished.push((job, seconds));
                run.seconds = self.ready.map_or(0.0, |ready| (at - ready).as_secs_f64());
            }
            Event::End(end) => run.end = Some(end),
        }
    }
}

/// A kind as people write it.
mod by_name {
    use cuzk_core::proof::ProofKind;
    use serde::{de::Error, Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(kind: &ProofKind, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(kind)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ProofKind, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
