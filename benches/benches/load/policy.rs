//! Who says how much may run at once, and how well that goes.

use std::collections::BTreeSet;
use std::env;
use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{bail, Result};
use cuzk_tests::cgroup::Cgroup;
use cuzk_tests::load::{Job, Load, Process, Regime, Role, Run};
use serde::Serialize;

use crate::workload::Workload;

/// Nothing limits it: more than this machine has.
const UNLIMITED: u64 = 16 << 30;
/// More at once than pays.
const MANY: u32 = 16;
/// What operators leave free of 342 GiB is 10.
const LEFT_FREE: f64 = 10.0 / 342.0;
/// After a kill a static budget is cut by this share, so often at most.
const CUT: f64 = 0.1;
const CUTS: u32 = 8;
/// Nothing here takes as long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(240);

/// Who says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The governor.
    Governed,
    /// The limit less a share, as operators set it.
    Static,
    /// Nobody.
    Ungoverned,
    /// Static, restarted with a tenth less after each kill, with the jobs that are left.
    Retry,
    /// The fixed concurrency that is best without a kill, known beforehand.
    Oracle,
}

impl Policy {
    /// All of them; the oracle last.
    pub const ALL: [Self; 5] =
        [Self::Static, Self::Retry, Self::Ungoverned, Self::Governed, Self::Oracle];

    fn name(self) -> &'static str {
        match self {
            Self::Governed => "governed",
            Self::Static => "static",
            Self::Ungoverned => "ungoverned",
            Self::Retry => "retry",
            Self::Oracle => "oracle",
        }
    }

    /// Works the workload off in this limit.
    pub fn run(self, workload: &Workload, limit: u64) -> Result<Row> {
        let left = (limit as f64 * (1.0 - LEFT_FREE)) as u64;
        let fixed = |budget| Regime::Fixed { budget, concurrency: MANY };
        let once = |regime| Trial { workload, limit, regime }.run();
        let tried = match self {
            Self::Governed => once(Regime::Governed(workload.pace))?,
            Self::Static => once(fixed(left))?,
            Self::Ungoverned => once(fixed(UNLIMITED))?,
            Self::Retry => retry(workload, limit, left)?,
            Self::Oracle => sweep(workload, limit)?,
        };
        Ok(tried.row(self, workload, limit))
    }
}

/// A run, or several of the same jobs.
#[derive(Debug, Default)]
struct Tried {
    accepted: BTreeSet<String>,
    finished: BTreeSet<String>,
    refused: usize,
    seconds: f64,
    kills: u64,
    peak: u64,
    at_once: u32,
    shed: u32,
}

impl Tried {
    /// Proofs an hour.
    fn rate(&self) -> f64 {
        if self.finished.is_empty() {
            return 0.0;
        }
        self.finished.len() as f64 * 3600.0 / self.seconds
    }

    fn enter(&mut self, run: Run, cgroup: &Cgroup) -> Result<()> {
        for (job, why) in run.failed.iter().chain(&run.refused) {
            eprintln!("{job} has no proof: {why}");
        }
        if !run.status.success() && !run.killed() {
            bail!("the process failed: {}", run.status);
        }
        self.accepted.extend(run.accepted);
        self.finished.extend(run.finished.into_iter().map(|(job, _)| job));
        self.refused += run.refused.len();
        self.seconds += run.seconds;
        self.kills += cgroup.kills()?;
        self.peak = self.peak.max(cgroup.peak()?);
        if let Some(end) = run.end {
            self.at_once = end.most_at_once;
            self.shed = end.shed;
        }
        Ok(())
    }

    fn row(self, policy: Policy, workload: &Workload, limit: u64) -> Row {
        Row {
            workload: workload.name,
            limit,
            policy,
            proofs_per_hour: self.rate(),
            seconds: self.seconds,
            kills: self.kills,
            lost: self.accepted.difference(&self.finished).count(),
            refused: self.refused,
            peak: self.peak,
            at_once: self.at_once,
            shed: self.shed,
            share_of_oracle: None,
        }
    }
}

/// One process with all the jobs.
struct Trial<'a> {
    workload: &'a Workload,
    limit: u64,
    regime: Regime,
}

impl Trial<'_> {
    fn run(&self) -> Result<Tried> {
        let mut tried = Tried::default();
        self.run_some((self.workload.jobs)(self.limit), &mut tried)?;
        Ok(tried)
    }

    /// A process with these jobs; the seconds until it was ready.
    fn run_some(&self, jobs: Vec<Job>, into: &mut Tried) -> Result<f64> {
        let Workload { srs, hidden, .. } = *self.workload;
        (self.workload.prepare)();
        let cgroup = Cgroup::create("load")?;
        cgroup.limit(self.limit)?;
        let load = Load { regime: self.regime, srs, hidden, leak_per_second: 0, reads: None, jobs };
        let started = Instant::now();
        let command = Command::new(env::current_exe()?);
        let mut process = Process::start(Some(&cgroup), command, &Role::Load(load))?;
        process.until_ready(PATIENCE)?;
        let ready = started.elapsed().as_secs_f64();
        into.enter(process.finish(PATIENCE)?, &cgroup)?;
        Ok(ready)
    }
}

/// A static budget, cut after each kill.
fn retry(workload: &Workload, limit: u64, budget: u64) -> Result<Tried> {
    let mut tried = Tried::default();
    let mut budget = budget;
    for cut in 0..=CUTS {
        let mut jobs = (workload.jobs)(limit);
        jobs.retain(|job| !tried.finished.contains(&job.name));
        let kills = tried.kills;
        let regime = Regime::Fixed { budget, concurrency: MANY };
        let ready = Trial { workload, limit, regime }.run_some(jobs, &mut tried)?;
        tried.seconds += if cut > 0 { ready } else { 0.0 };
        if tried.kills == kills {
            break;
        }
        budget = (budget as f64 * (1.0 - CUT)) as u64;
    }
    Ok(tried)
}

/// The best fixed concurrency: upwards while it pays, downwards while it is killed.
fn sweep(workload: &Workload, limit: u64) -> Result<Tried> {
    let fixed = |concurrency| Regime::Fixed { budget: UNLIMITED, concurrency };
    let trial = |concurrency| -> Result<Option<Tried>> {
        let tried = Trial { workload, limit, regime: fixed(concurrency) }.run()?;
        Ok((tried.kills == 0).then_some(Tried { at_once: concurrency, ..tried }))
    };
    let mut concurrency = (workload.sweep_from)(limit);
    let mut best = trial(concurrency)?;
    while best.is_none() && concurrency > 1 {
        concurrency -= 1;
        best = trial(concurrency)?;
    }
    let Some(mut best) = best else { return Ok(Tried::default()) };
    while concurrency < MANY {
        concurrency += 1;
        match trial(concurrency)? {
            Some(next) if next.rate() > best.rate() => best = next,
            _ => break,
        }
    }
    Ok(best)
}

/// A line of the table.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was worked off.
    pub workload: &'static str,
    /// Bytes.
    pub limit: u64,
    /// Who said how much at once.
    pub policy: Policy,
    /// Finished jobs, over the time until the last one.
    pub proofs_per_hour: f64,
    /// That time.
    pub seconds: f64,
    /// By the kernel.
    pub kills: u64,
    /// Jobs accepted and never finished.
    pub lost: usize,
    /// Jobs not accepted.
    pub refused: usize,
    /// Bytes charged to the cgroup at most, page cache included.
    pub peak: u64,
    /// Partitions at once at most, where known.
    pub at_once: u32,
    /// Partitions that were shed.
    pub shed: u32,
    /// Throughput against the oracle's, where that could run.
    pub share_of_oracle: Option<f64>,
}

impl Row {
    /// The table's head.
    pub const HEAD: &'static str =
        "limit MiB  policy      proofs/h  seconds  kills  lost  refused  peak/limit  at once  shed  share of oracle";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = self.share_of_oracle.map_or("-".to_owned(), |share| format!("{share:.2}"));
        let at_once = if self.at_once == 0 { "-".into() } else { self.at_once.to_string() };
        write!(
            f,
            "{:>9}  {:<10} {:>9.0} {:>8.1} {:>6} {:>5} {:>8} {:>11.2} {:>8} {:>5} {:>16}",
            self.limit >> 20,
            self.policy.name(),
            self.proofs_per_hour,
            self.seconds,
            self.kills,
            self.lost,
            self.refused,
            self.peak as f64 / self.limit as f64,
            at_once,
            self.shed,
            share,
        )
    }
}
