//! One file a command. What is meant for programs goes to stdout, everything else to stderr.

pub mod cancel;
pub mod config;
pub mod demo;
pub mod governor;
pub mod memcheck;
pub mod memprobe;
pub mod params;
pub mod prove;
pub mod request;
mod save;
pub mod serve;
pub mod simulate;
pub mod status;
pub mod verify;

use crate::{client::Unreachable, config::ConfigError, server::StartError};
use comfy_table::{presets, Table};
use cuzk_core::{engine::EngineError, params::ParamsError, proof::RequestError};
use std::{
    future::Future,
    io::{self, Write},
    path::PathBuf,
    sync::Mutex,
    thread,
};
use tokio::runtime;
use tonic::{Code, Status};

/// Threads that parse requests and open parameters, beside those that compute.
const BLOCKING_THREADS: usize = 16;

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// A flag or an argument is wrong.
    #[error("{0}")]
    Usage(String),
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A file cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The files and flags are no request.
    #[error("this is no request that can be proved: {0}")]
    Request(#[from] RequestError),
    /// Parameters are missing or wrong.
    #[error(transparent)]
    Params(#[from] ParamsError),
    /// Nobody there.
    #[error(transparent)]
    Unreachable(#[from] Unreachable),
    /// The daemon's answer is no.
    #[error("the daemon refused ({code:?}): {message}", code = .0.code(), message = .0.message())]
    Refused(#[from] Status),
    /// The daemon does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The embedded engine does not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The work itself failed.
    #[error("{0}")]
    Failed(String),
    /// The proof proves something else, or nothing.
    #[error("the proof is not valid: {0}")]
    Invalid(String),
    /// By a signal.
    #[error("interrupted")]
    Interrupted,
}

impl CommandError {
    /// What the process says to its caller; `cuzk --help` lists the codes.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Start(_) | Self::Engine(_) | Self::Params(_) => 1,
            Self::Usage(_) | Self::Config(_) | Self::File { .. } | Self::Request(_) => 2,
            Self::Refused(status) => match status.code() {
                Code::InvalidArgument | Code::NotFound => 2,
                Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded => 3,
                _ => 1,
            },
            Self::Unreachable(_) => 3,
            Self::Invalid(_) => 4,
            Self::Interrupted => 130,
        }
    }
}

/// Prints to stdout. A reader that has gone away is no error.
pub fn print(text: &str) -> Result<(), CommandError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CommandError::File { path: "stdout".into(), source: error })
        }
        _ => Ok(()),
    }
}

/// Prints a value as indented JSON.
pub fn print_json(value: &serde_json::Value) -> Result<(), CommandError> {
    print(&format!("{value:#}\n"))
}

/// A table without borders.
pub fn table<const N: usize>(head: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(head);
    table
}

/// Runs what is asynchronous on this thread, and leaves behind what blocks.
pub fn block_on<T>(work: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    run_on(&mut runtime::Builder::new_current_thread(), work)
}

/// The same, with workers that answer many clients at once.
pub fn block_on_workers<T>(
    work: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    let workers = thread::available_parallelism().map_or(1, usize::from);
    require_threads(workers)?;
    run_on(runtime::Builder::new_multi_thread().worker_threads(workers), work)
}

fn run_on<T>(
    builder: &mut runtime::Builder,
    work: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    let runtime = builder
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .map_err(|error| CommandError::Failed(format!("no async runtime: {error}")))?;
    let result = runtime.block_on(work);
    runtime.shutdown_background();
    result
}

/// Whether so many threads can be had: where they cannot, the runtime panics and then hangs.
fn require_threads(count: usize) -> Result<(), CommandError> {
    let gate = Mutex::new(());
    thread::scope(|scope| {
        let closed = gate.lock();
        let started = (0..count).try_for_each(|_| {
            let wait = || drop(gate.lock());
            thread::Builder::new().spawn_scoped(scope, wait).map(drop)
        });
        drop(closed);
        started
    })
    .map_err(|error| {
        CommandError::Failed(format!(
            "{count} threads cannot be had: {error} (is RLIMIT_NPROC set? `ulimit -u` shows it)"
        ))
    })
}
