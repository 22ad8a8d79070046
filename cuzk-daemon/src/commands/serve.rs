//! `cuzk serve`: the daemon, from its sockets to its orderly end.

use super::{block_on_workers, print, CommandError};
use crate::{config::Settings, open_files, server::Daemon};
use cuzk_core::{engine::Engine, proof::CircuitId};
use std::{io, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{signal, Signal, SignalKind},
    time::sleep,
};

/// Shown under `cuzk serve --help`.
pub const EXAMPLES: &str = "\
Examples:
  cuzk serve
  cuzk serve --listen unix:///run/cuzk.sock --memory-budget 100GiB
  CUZK_PRELOAD=porep-32g,winning-32g cuzk serve --config /etc/cuzk/cuzk.toml

Every flag can also be set in the file (memory_budget = \"100GiB\") and in the environment
(CUZK_MEMORY_BUDGET=100GiB); flags win, then the environment, then the file. `cuzk config` shows
what is in force. SIGTERM lets running jobs go on for shutdown_grace; a second one ends at once.";

/// Who signals a process and then its group (timeout(1), supervisors, shells) means it once.
const ECHO: Duration = Duration::from_millis(250);

/// Serves until a signal ends it.
pub fn run(settings: &Settings) -> Result<(), CommandError> {
    open_files::raise_limit();
    let circuits = settings.preload.iter().map(|circuit| circuit.0).collect();
    block_on_workers(serve(settings, circuits))
}

async fn serve(settings: &Settings, circuits: Vec<CircuitId>) -> Result<(), CommandError> {
    let mut signals = Signals::listen()
        .map_err(|error| CommandError::Failed(format!("cannot listen for signals: {error}")))?;
    let daemon = tokio::select! {
        daemon = Daemon::start(settings) => daemon?,
        _ = signals.next() => return Err(CommandError::Interrupted),
    };
    for address in daemon.addresses() {
        print(&format!("listening on {address}\n"))?;
    }
    preload(daemon.engine().clone(), circuits);

    let name = signals.next().await;
    let grace = settings.shutdown_grace.0;
    tracing::info!(event = "shutdown", signal = name, grace_seconds = grace.as_secs_f64());
    tokio::select! {
        () = daemon.shutdown(grace) => Ok(()),
        () = signals.again() => Err(CommandError::Interrupted),
    }
}

/// In the background: the daemon answers while parameters are being opened.
fn preload(engine: Arc<Engine>, circuits: Vec<CircuitId>) {
    tokio::task::spawn_blocking(move || {
        for circuit in circuits {
            match engine.preload(circuit) {
                Ok(_) => tracing::info!(event = "preloaded", %circuit),
                Err(error) => tracing::error!(event = "preload_failed", %circuit, %error),
            }
        }
    });
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// A second signal, and not the first one's echo.
    async fn again(&mut self) {
        let echo = sleep(ECHO);
        tokio::pin!(echo);
        loop {
            tokio::select! {
                () = &mut echo => break,
                _ = self.next() => {}
            }
        }
        self.next().await;
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
