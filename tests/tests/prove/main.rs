//! Real proofs on the real engine: every kind, verified by two verifiers; urgency, cancellation and
//! shedding; the memory it takes, in a cgroup too.
//!
//! The tests take turns: they measure time, and a proof uses all processors. One
//! mutex, taken by [`turn`].

mod engine;
mod governed;
mod kinds;
mod memory;
mod recordings;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuzk_core::engine::{Engine, EngineConfig, JobId, JobResult, Outcome};
use cuzk_core::proof::{ProofKind, ProofRequest, RawRequest};
use cuzk_core::sample::Sample;
use cuzk_tests::parameters;

/// Longer than any proof here takes on two slow processors.
const PATIENCE: Duration = Duration::from_secs(300);

/// What a test holds while it runs.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn config(params_dir: &Path) -> EngineConfig {
    EngineConfig {
        params_dir: params_dir.to_path_buf(),
        native_dir: None,
        threads: 2,
        concurrency: 2,
        memory_budget: 1 << 30,
        max_jobs: 100,
        keep_finished: 100,
    }
}

/// An engine that can prove these kinds at 2 KiB.
fn engine(kinds: &[ProofKind]) -> Arc<Engine> {
    engine_with(kinds, |_| {})
}

fn engine_with(kinds: &[ProofKind], change: impl FnOnce(&mut EngineConfig)) -> Arc<Engine> {
    let params_dir = parameters::development(kinds);
    // Filecoin's verifiers read it once, before anything else here can have made them do so.
    std::env::set_var("FIL_PROOFS_PARAMETER_CACHE", &params_dir);
    let mut config = config(&params_dir);
    change(&mut config);
    Engine::start(config).expect("the engine starts")
}

fn parsed(raw: &RawRequest) -> ProofRequest {
    ProofRequest::parse(raw).expect("a sample is well formed")
}

fn submit(engine: &Engine, raw: &RawRequest) -> JobId {
    engine.submit(parsed(raw)).expect("it is accepted").job_id
}

fn outcome(engine: &Engine, job: &JobId) -> Arc<Outcome> {
    let deadline = Instant::now() + PATIENCE;
    engine.wait(job, deadline).expect("the job is known").expect("it ends in time")
}

fn proof(engine: &Engine, job: &JobId) -> Vec<u8> {
    match &outcome(engine, job).result {
        JobResult::Completed(proof) => proof.clone(),
        other => panic!("no proof: {other:?}"),
    }
}

/// Waits until the job's stage is this one.
fn until_stage(engine: &Engine, job: &JobId, stage: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = engine.status();
        if status.running.iter().any(|running| running.job_id == *job && running.stage == stage) {
            return;
        }
        assert!(Instant::now() < deadline, "job {job} is not at {stage}: {:?}", status.running);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn sample() -> Sample {
    Sample::make(7).expect("a sector can be sealed")
}

/// One of this program's ignored tests, to be run as a process of its own with `key` in its environment.
fn child(test: &str, key: &str, value: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a test has a program"));
    command.args([test, "--exact", "--ignored", "--nocapture"]).env(key, value);
    command.stdout(Stdio::piped());
    command
}

/// What such a process printed after `key`.
fn told<T: FromStr>(output: &Output, key: &str) -> Option<T> {
    let text = String::from_utf8_lossy(&output.stdout);
    // The test runner writes on the same line before it.
    let (_, value) = text.split_once(key)?;
    value.split_whitespace().next()?.parse().ok()
}
