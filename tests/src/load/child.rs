//! The process's side: plays its [`Role`] to the end.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cuzk_core::engine::{Engine, EngineConfig, JobResult, SubmitError, Submitted};
use cuzk_core::memory::tune_allocator;
use cuzk_core::proof::{ProofKind, ProofRequest, RawRequest};
use cuzk_core::sample::Sample;
use cuzk_governor::budget::{Ask, MemoryBudget, Reservation};
use cuzk_governor::governor::{Observer, Tick};
use cuzk_governor::policy::Action;

use super::{Content, End, Event, Job, Load, Neighbour, Regime, Role, EVENT, ROLE};
use crate::memory::{resident, Mapping};
use crate::scripted::Scripted;
use crate::{parameters, ticks};

/// Threads of the device.
const THREADS: usize = 2;
/// What an engine could take if nothing limited it; the governor takes its place at once.
const UNLIMITED: u64 = 16 << 30;
/// Memory held from the start comes in such slices.
const SLICE: u64 = 16 << 20;
/// Memory that leaks comes as often.
const DRIP: Duration = Duration::from_millis(50);
/// So long may memory take to leave once its holder is gone.
const LEAVES: Duration = Duration::from_secs(5);
/// Beyond the idle baseline in the end: what allocators keep.
const KEPT: u64 = 64 << 20;

/// Plays this process's role, if it has one; whether it had.
///
/// # Errors
/// Whatever hinders it.
pub fn serve() -> Result<bool> {
    let Ok(role) = std::env::var(ROLE) else { return Ok(false) };
    tune_allocator();
    match serde_json::from_str(&role).context("the role")? {
        Role::Load(load) => work(load)?,
        Role::Neighbour(neighbour) => hold(neighbour),
    }
    Ok(true)
}

fn say(event: &Event) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{EVENT}{}", serde_json::to_string(event)?)?;
    Ok(out.flush()?)
}

fn hold(neighbour: Neighbour) {
    let slices = (neighbour.bytes / SLICE).max(1) as u32;
    let mut held = Vec::new();
    for _ in 0..slices {
        thread::sleep(neighbour.grows / slices);
        held.push(Mapping::touched(neighbour.bytes / u64::from(slices), libc::MAP_PRIVATE));
    }
    thread::sleep(neighbour.stays);
}

/// What the governor's ticks showed.
#[derive(Default)]
struct Seen {
    most_at_once: AtomicU32,
    shed: AtomicU32,
    least_limit: AtomicU64,
}

impl Seen {
    fn observer(self: &Arc<Self>) -> Observer {
        self.least_limit.store(u64::MAX, Ordering::Relaxed);
        let seen = Arc::clone(self);
        Box::new(move |tick: &Tick<'_>| {
            let running = tick.workload.running.len() as u32;
            seen.most_at_once.fetch_max(running, Ordering::Relaxed);
            let shed = tick.actions.iter().filter(|action| matches!(action, Action::Shed(_)));
            seen.shed.fetch_add(shed.count() as u32, Ordering::Relaxed);
            seen.least_limit.fetch_min(tick.headroom.limit, Ordering::Relaxed);
            ticks::trace(tick);
        })
    }
}

fn work(load: Load) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let jobs = Jobs::prepare(&load.jobs, scratch.path())?;
    let seen = Arc::new(Seen::default());
    let idle = resident().anonymous;
    let hidden = (load.hidden > 0).then(|| Mapping::touched(load.hidden, libc::MAP_PRIVATE));
    let engine = start(load.regime, &jobs.params_dir, &seen)?;
    let srs = Srs::load(engine.budget(), load.srs)?;
    say(&Event::Ready)?;
    disturbed(&load, || jobs.run(&engine))?;

    let mut end = End { idle, ..End::default() };
    let beyond = || {
        let status = engine.status();
        let pinned: u64 = status.srs.iter().map(|srs| srs.pinned).sum();
        status.budget_reserved.saturating_sub(load.srs + status.pool.idle + pinned)
    };
    until(|| beyond() == 0);
    end.reserved_after_jobs = beyond();
    drop((srs, hidden));
    let budget = engine.budget().clone();
    engine.shutdown(Instant::now());
    drop(engine);
    until(|| budget.usage().reserved == 0 && resident().anonymous <= idle + KEPT);
    end.reserved_at_end = budget.usage().reserved;
    end.at_end = resident().anonymous;
    end.most_at_once = seen.most_at_once.load(Ordering::Relaxed);
    end.shed = seen.shed.load(Ordering::Relaxed);
    end.least_limit = seen.least_limit.load(Ordering::Relaxed);
    say(&Event::End(end))
}

fn until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + LEAVES;
    while !holds() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
}

fn start(regime: Regime, params_dir: &Path, seen: &Arc<Seen>) -> Result<Arc<Engine>> {
    let (memory_budget, concurrency) = match regime {
        Regime::Governed(pace) => (UNLIMITED, pace.setpoints().max_concurrency),
        Regime::Fixed { budget, concurrency } => (budget, concurrency),
    };
    let engine = Engine::start(EngineConfig {
        params_dir: params_dir.to_path_buf(),
        native_dir: None,
        threads: THREADS,
        concurrency,
        memory_budget,
        max_jobs: 1000,
        keep_finished: 1000,
    })?;
    if let Regime::Governed(pace) = regime {
        engine.govern(pace.setpoints(), Some(seen.observer()))?;
    }
    Ok(engine)
}

/// Pinned parameters, of no circuit.
struct Srs {
    _held: Vec<Mapping>,
    _reserved: Option<Reservation>,
}

impl Srs {
    fn load(budget: &MemoryBudget, bytes: u64) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { _held: vec![], _reserved: None });
        }
        let mut reserved = budget.reserve(Ask::new("srs", bytes), Instant::now() + LEAVES)?;
        let mut held = Vec::new();
        let mut there = 0;
        while there < bytes {
            let slice = SLICE.min(bytes - there);
            held.push(Mapping::touched(slice, libc::MAP_PRIVATE));
            there += slice;
            reserved.report_resident(there);
        }
        Ok(Self { _held: held, _reserved: Some(reserved) })
    }
}

/// Does `work` while memory leaks and files are read, if they are to.
fn disturbed(load: &Load, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let over = AtomicBool::new(false);
    let goes_on = || !over.load(Ordering::Relaxed);
    thread::scope(|scope| {
        if load.leak_per_second > 0 {
            scope.spawn(|| leak(load.leak_per_second, goes_on));
        }
        if let Some(file) = &load.reads {
            scope.spawn(|| while goes_on() && read(file).is_ok() {});
        }
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}

fn leak(per_second: u64, goes_on: impl Fn() -> bool) {
    let mut lost = Vec::new();
    while goes_on() {
        thread::sleep(DRIP);
        let drip = (per_second as f64 * DRIP.as_secs_f64()) as u64;
        lost.push(Mapping::touched(drip, libc::MAP_PRIVATE));
    }
}

fn read(file: &Path) -> std::io::Result<()> {
    let mut file = File::open(file)?;
    let mut block = vec![0; 1 << 20];
    while file.read(&mut block)? > 0 {}
    Ok(())
}

/// Jobs that can be submitted.
struct Jobs<'a> {
    jobs: Vec<&'a Job>,
    params_dir: PathBuf,
    sample: Option<Sample>,
}

impl<'a> Jobs<'a> {
    /// With parameters and a sector, if there are real ones among them.
    fn prepare(jobs: &'a [Job], scratch: &Path) -> Result<Self> {
        let is_real = |job: &&Job| matches!(job.content, Content::Real);
        let kinds: BTreeSet<ProofKind> = jobs.iter().filter(is_real).map(|job| job.kind).collect();
        let kinds: Vec<_> = kinds.into_iter().collect();
        let real = !kinds.is_empty();
        let params_dir = if real { parameters::development(&kinds) } else { scratch.to_path_buf() };
        std::env::set_var("FIL_PROOFS_PARENT_CACHE", scratch.join("parents"));
        std::env::set_var("FIL_PROOFS_PARAMETER_CACHE", &params_dir);
        let sample = real.then(|| Sample::make(7)).transpose()?;
        let mut jobs: Vec<_> = jobs.iter().collect();
        jobs.sort_by_key(|job| job.after);
        Ok(Self { jobs, params_dir, sample })
    }

    /// Submits each at its time and says what becomes of it; returns when all have ended.
    fn run(&self, engine: &Engine) -> Result<()> {
        let (happens, happened) = mpsc::channel();
        let watches = Mutex::new(Vec::new());
        let start = Instant::now();
        thread::scope(|scope| {
            let watches = &watches;
            scope.spawn(move || {
                for job in &self.jobs {
                    thread::sleep(job.after.saturating_sub(start.elapsed()));
                    let watch = self.bring(job, engine, &happens);
                    watches.lock().map(|mut watches| watches.push(watch)).ok();
                }
            });
            // Ends when neither the submitting thread nor any watch is left to say anything.
            happened.into_iter().try_for_each(|event| say(&event))
        })
    }

    fn bring(
        &self,
        job: &Job,
        engine: &Engine,
        happens: &mpsc::Sender<Event>,
    ) -> Option<cuzk_core::engine::Watch> {
        let name = job.name.clone();
        let submitted = match self.submit(job, engine) {
            Ok(submitted) => submitted,
            Err(why) => {
                let _ = happens.send(Event::Refused { job: name, why: why.to_string() });
                return None;
            }
        };
        let _ = happens.send(Event::Accepted { job: name.clone() });
        let (happens, since) = (happens.clone(), Instant::now());
        let then = move |outcome: Arc<cuzk_core::engine::Outcome>| {
            ticks::trace_end(&name, &outcome);
            let event = match &outcome.result {
                JobResult::Completed(_) => {
                    Event::Finished { job: name, seconds: since.elapsed().as_secs_f64() }
                }
                other => Event::Failed { job: name, why: format!("{other:?}") },
            };
            let _ = happens.send(event);
        };
        engine.watch(&submitted.job_id, then).ok()
    }

    fn submit(&self, job: &Job, engine: &Engine) -> Result<Submitted, SubmitError> {
        let name = job.name.clone();
        match (&job.content, &self.sample) {
            (Content::Scripted(script), _) => {
                let script = script.clone();
                engine.submit_work(Arc::new(Scripted { name, kind: job.kind, script }))
            }
            (Content::Real, Some(sample)) => {
                let raw = RawRequest { request_id: name, ..sample.request(job.kind) };
                engine.submit(ProofRequest::parse(&raw).expect("a sample is well formed"))
            }
            (Content::Real, None) => unreachable!("prepared"),
        }
    }
}
