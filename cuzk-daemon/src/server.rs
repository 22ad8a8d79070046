//! A running daemon: an engine, and the servers that lead to it.

use crate::{
    address::Address,
    config::{Settings, Switch},
    incoming::{connections, Places, MAX_CONNECTIONS, MAX_SILENCE},
    intake::{Intake, MAX_MESSAGE},
    listen::{self, ListenError, Listener, SocketFile},
    service::Service,
    telemetry,
    wire::proving_engine_server::ProvingEngineServer,
};
use cuzk_core::engine::{Engine, EngineConfig, EngineError};
use cuzk_governor::sim::trace;
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::{watch, Semaphore},
    task::{spawn_blocking, JoinError, JoinSet},
    time::timeout,
};
use tonic::transport::{self, server::Router, Server};
use tower::layer::util::{Identity, Stack};

/// Calls that one connection may have open; a call that awaits a proof is open for long.
const MAX_STREAMS: u32 = 1024;

/// How much of a call's body may be on its way unread.
const STREAM_WINDOW: u32 = 64 << 10;

/// A connection that does not answer for so long is dead.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Partitions at once before the governor says otherwise: while one computes on all threads, another
/// synthesises on one.
const CONCURRENCY: u32 = 2;

/// The threads of a processor are the device's, too: more partitions than that only stand in line.
fn most_at_once(threads: usize) -> u32 {
    u32::try_from(threads).unwrap_or(u32::MAX - 1) + 1
}

/// After the jobs have ended: how long clients may take to fetch the answers.
const DRAIN: Duration = Duration::from_secs(2);

/// A daemon that answers calls until it is shut down.
pub struct Daemon {
    engine: Arc<Engine>,
    addresses: Vec<Address>,
    servers: JoinSet<Result<(), transport::Error>>,
    stop: watch::Sender<()>,
    _sockets: Vec<SocketFile>,
}

/// Why a daemon does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// It cannot prove.
    #[error("the proving engine does not start: {0}")]
    Engine(#[from] EngineError),
    /// It cannot be governed.
    #[error("the governor does not start: {0}; `--governor off` does without it")]
    Governor(std::io::Error),
    /// The governor's trace cannot be written.
    #[error("governor_trace: {path} cannot be written: {source}")]
    Trace {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Its start ended in a panic.
    #[error("the proving engine does not start: {0}")]
    Lost(#[from] JoinError),
    /// A socket that was opened is not usable.
    #[error("a listening socket failed: {0}")]
    Socket(#[from] std::io::Error),
}

/// The engine as the settings ask for it, governed if they say so.
pub fn start_engine(settings: &Settings) -> Result<Arc<Engine>, StartError> {
    let engine = Engine::start(EngineConfig {
        params_dir: settings.params_dir.clone(),
        native_dir: Some(settings.native_dir.clone()),
        threads: settings.threads.0,
        concurrency: CONCURRENCY,
        memory_budget: settings.memory_budget.0,
        max_jobs: settings.max_jobs.0,
        keep_finished: settings.keep_finished.0,
    })?;
    if settings.governor == Switch::On {
        let mut set = settings.setpoints.clone();
        set.max_concurrency = set.max_concurrency.min(most_at_once(settings.threads.0));
        if settings.memory_budget_is_set {
            let budget = settings.memory_budget.0;
            set.limit = Some(set.limit.map_or(budget, |limit| limit.min(budget)));
        }
        let trace = &settings.governor_trace;
        let traced = (!trace.as_os_str().is_empty()).then(|| trace::recorder(trace)).transpose();
        let observer =
            traced.map_err(|source| StartError::Trace { path: trace.clone(), source })?;
        engine.govern(set, observer).map_err(StartError::Governor)?;
    }
    Ok(engine)
}

impl Daemon {
    /// Opens all sockets, starts the engine, and answers calls from then on.
    pub async fn start(settings: &Settings) -> Result<Daemon, StartError> {
        telemetry::start_metrics();
        let mut listeners = Vec::new();
        for address in &settings.listen {
            listeners.push(listen::open(address).await?);
        }
        let for_engine = settings.clone();
        let engine = spawn_blocking(move || start_engine(&for_engine)).await;
        let mut daemon = Daemon {
            engine: engine??,
            addresses: Vec::new(),
            servers: JoinSet::new(),
            stop: watch::Sender::new(()),
            _sockets: Vec::new(),
        };
        let intake = Intake::new(settings.request_memory.0, daemon.engine.budget().clone());
        let places = Places::new(Semaphore::new(MAX_CONNECTIONS));
        for listener in listeners {
            daemon.serve(listener, places.clone(), intake.clone())?;
        }
        Ok(daemon)
    }

    fn serve(
        &mut self,
        mut listener: Listener,
        places: Places,
        intake: Intake,
    ) -> Result<(), StartError> {
        let router = router(Service::new(self.engine.clone()), intake);
        let mut stop = self.stop.subscribe();
        let stopped = async move { drop(stop.changed().await) };
        self.addresses.push(listener.address()?);
        self._sockets.extend(listener.take_file());
        let incoming = connections(listener, places, MAX_SILENCE);
        self.servers.spawn(router.serve_with_incoming_shutdown(incoming, stopped));
        Ok(())
    }

    /// Where it listens, with the ports that the kernel chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The engine behind it.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Stops accepting at once, lets jobs go on for up to `grace`, cancels what is left then, and
    /// hands every waiting client its answer.
    pub async fn shutdown(mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        self.stop.send_replace(());
        let engine = self.engine.clone();
        if let Err(error) = spawn_blocking(move || engine.shutdown(deadline)).await {
            tracing::error!(event = "shutdown_failed", %error);
        }
        let drained = async { while self.servers.join_next().await.is_some() {} };
        if timeout(DRAIN, drained).await.is_err() {
            tracing::warn!(event = "connections_cut", "clients kept their connections open");
        }
    }
}

fn router(service: Service, intake: Intake) -> Router<Stack<Intake, Identity>> {
    let service = ProvingEngineServer::new(service)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        // Room for every stream's window: bodies that wait for memory stall no other call.
        .initial_connection_window_size(MAX_STREAMS * STREAM_WINDOW)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .layer(intake)
        .add_service(service)
}
