//! The service: one short method a call of the wire, each a translation to the engine and back.
//! What takes long (parsing a large request, opening parameters) runs on blocking threads; waiting
//! for a proof takes no thread at all.

use crate::{
    error,
    intake::Allowance,
    telemetry,
    wire::{self, await_proof_response::Status as Ended, proving_engine_server::ProvingEngine},
};
use cuzk_core::{
    engine::{Engine, EngineStatus, JobId, JobResult, Outcome, SrsStatus, Submitted, Tier},
    proof::{CircuitId, ProofRequest, RawRequest},
};
use cuzk_governor::governor;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{oneshot, Mutex},
    task::spawn_blocking,
    time::{timeout, Instant},
};
use tonic::{async_trait, Request, Response, Status};

type Reply<T> = Result<Response<T>, Status>;

/// Answers the wire's calls from an engine.
#[derive(Clone)]
pub struct Service {
    engine: Arc<Engine>,
    /// Opening parameters can take minutes of a blocking thread: one call at a time.
    opening: Arc<Mutex<()>>,
}

impl Service {
    /// A service in front of `engine`.
    pub fn new(engine: Arc<Engine>) -> Service {
        Service { engine, opening: Arc::default() }
    }

    async fn accept(
        &self,
        submit: wire::SubmitProofRequest,
        allowance: Option<Allowance>,
    ) -> Result<Submitted, Status> {
        let engine = self.engine.clone();
        blocking("accepting the request", move || {
            let request = ProofRequest::parse(&RawRequest::from(submit));
            drop(allowance);
            let request = request.map_err(error::bad_request)?;
            engine.submit(request).map_err(error::refused)
        })
        .await?
    }

    /// The job's outcome; `None` when the time is over first. To stop waiting does nothing to it.
    async fn outcome(
        &self,
        job: &JobId,
        limit: Option<Duration>,
    ) -> Result<Option<Arc<Outcome>>, Status> {
        let (sender, receiver) = oneshot::channel();
        let watch = self.engine.watch(job, move |outcome| drop(sender.send(outcome)));
        let _watch = watch.map_err(error::unknown_job)?;
        let ended = match limit {
            None => receiver.await,
            Some(limit) => match timeout(limit, receiver).await {
                Ok(ended) => ended,
                Err(_) => return Ok(None),
            },
        };
        ended.map(Some).map_err(|_| error::shutting_down())
    }
}

#[async_trait]
impl ProvingEngine for Service {
    async fn submit_proof(
        &self,
        mut request: Request<wire::SubmitProofRequest>,
    ) -> Reply<wire::SubmitProofResponse> {
        let allowance = request.extensions_mut().remove::<Allowance>();
        let submitted = self.accept(request.into_inner(), allowance).await?;
        Ok(Response::new(wire::SubmitProofResponse {
            job_id: submitted.job_id.to_string(),
            queue_position: submitted.queue_position,
            assigned_gpu: self.engine.status().device,
        }))
    }

    async fn await_proof(
        &self,
        request: Request<wire::AwaitProofRequest>,
    ) -> Reply<wire::AwaitProofResponse> {
        let wire::AwaitProofRequest { job_id, timeout_ms } = request.into_inner();
        let job = JobId::from(job_id);
        let limit = (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms));
        let outcome = self.outcome(&job, limit).await?;
        Ok(Response::new(answer(&job, outcome.as_deref())))
    }

    async fn prove(&self, mut request: Request<wire::ProveRequest>) -> Reply<wire::ProveResponse> {
        let allowance = request.extensions_mut().remove::<Allowance>();
        let submit = request.into_inner().submit;
        let submit = submit.ok_or_else(|| Status::invalid_argument("submit: missing"))?;
        let job = self.accept(submit, allowance).await?.job_id;
        let outcome = self.outcome(&job, None).await?;
        Ok(Response::new(wire::ProveResponse { result: Some(answer(&job, outcome.as_deref())) }))
    }

    async fn cancel_proof(
        &self,
        request: Request<wire::CancelProofRequest>,
    ) -> Reply<wire::CancelProofResponse> {
        let job = JobId::from(request.into_inner().job_id);
        let was_running = self.engine.cancel(&job).map_err(error::unknown_job)?;
        Ok(Response::new(wire::CancelProofResponse { was_running }))
    }

    async fn get_status(
        &self,
        _: Request<wire::GetStatusRequest>,
    ) -> Reply<wire::GetStatusResponse> {
        Ok(Response::new(self.engine.status().into()))
    }

    async fn get_metrics(
        &self,
        _: Request<wire::GetMetricsRequest>,
    ) -> Reply<wire::GetMetricsResponse> {
        let prometheus_text = telemetry::render(&self.engine.status());
        Ok(Response::new(wire::GetMetricsResponse { prometheus_text }))
    }

    async fn preload_srs(
        &self,
        request: Request<wire::PreloadSrsRequest>,
    ) -> Reply<wire::PreloadSrsResponse> {
        let circuit = circuit(&request.into_inner().circuit_id)?;
        let _turn = self.opening.lock().await;
        let started = Instant::now();
        let engine = self.engine.clone();
        let already_loaded = blocking("opening parameters", move || engine.preload(circuit))
            .await?
            .map_err(error::bad_params)?;
        let load_time_ms = milliseconds(started.elapsed());
        Ok(Response::new(wire::PreloadSrsResponse { already_loaded, load_time_ms }))
    }

    async fn evict_srs(
        &self,
        request: Request<wire::EvictSrsRequest>,
    ) -> Reply<wire::EvictSrsResponse> {
        let freed = self.engine.evict(circuit(&request.into_inner().circuit_id)?);
        Ok(Response::new(wire::EvictSrsResponse {
            was_loaded: freed.is_some(),
            freed_bytes: freed.unwrap_or(0),
        }))
    }
}

async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    spawn_blocking(work).await.map_err(|panic| error::internal(what, panic))
}

fn circuit(name: &str) -> Result<CircuitId, Status> {
    name.parse().map_err(|error| Status::invalid_argument(format!("circuit_id: {error}")))
}

/// A job's outcome as the wire says it; none means that the wait ended first.
pub fn answer(job: &JobId, outcome: Option<&Outcome>) -> wire::AwaitProofResponse {
    let job_id = job.to_string();
    let Some(Outcome { result, timings }) = outcome else {
        let status = Ended::Timeout.into();
        return wire::AwaitProofResponse { job_id, status, ..Default::default() };
    };
    let (status, proof, error_message) = match result {
        JobResult::Completed(proof) => (Ended::Completed, proof.clone(), String::new()),
        JobResult::Failed(reason) => (Ended::Failed, Vec::new(), reason.clone()),
        JobResult::Cancelled => (Ended::Cancelled, Vec::new(), "cancelled".to_owned()),
    };
    wire::AwaitProofResponse {
        job_id,
        status: status.into(),
        proof,
        error_message,
        queue_wait_ms: milliseconds(timings.queue_wait),
        srs_load_ms: milliseconds(timings.srs_load),
        synthesis_ms: milliseconds(timings.synthesis),
        gpu_compute_ms: milliseconds(timings.compute),
        total_ms: milliseconds(timings.total),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl From<wire::SubmitProofRequest> for RawRequest {
    fn from(wire: wire::SubmitProofRequest) -> RawRequest {
        RawRequest {
            request_id: wire.request_id,
            proof_kind: wire.proof_kind,
            sector_size: wire.sector_size,
            registered_proof: wire.registered_proof,
            priority: wire.priority,
            vanilla_proof: wire.vanilla_proof,
            vanilla_proofs: wire.vanilla_proofs,
            sector_number: wire.sector_number,
            miner_id: wire.miner_id,
            randomness: wire.randomness,
            partition_index: wire.partition_index,
            comm_r_old: wire.comm_r_old,
            comm_r_new: wire.comm_r_new,
            comm_d_new: wire.comm_d_new,
        }
    }
}

impl From<RawRequest> for wire::SubmitProofRequest {
    fn from(raw: RawRequest) -> wire::SubmitProofRequest {
        wire::SubmitProofRequest {
            request_id: raw.request_id,
            proof_kind: raw.proof_kind,
            sector_size: raw.sector_size,
            registered_proof: raw.registered_proof,
            priority: raw.priority,
            vanilla_proof: raw.vanilla_proof,
            vanilla_proofs: raw.vanilla_proofs,
            sector_number: raw.sector_number,
            miner_id: raw.miner_id,
            randomness: raw.randomness,
            partition_index: raw.partition_index,
            comm_r_old: raw.comm_r_old,
            comm_r_new: raw.comm_r_new,
            comm_d_new: raw.comm_d_new,
        }
    }
}

impl From<EngineStatus> for wire::GetStatusResponse {
    fn from(status: EngineStatus) -> wire::GetStatusResponse {
        // Of the jobs that have started, one computes; the others wait for it.
        let computing = status.running.iter().find(|job| !job.stage.starts_with("waiting"));
        let current = computing.or(status.running.first());
        let gpu = wire::GpuStatus {
            ordinal: 0,
            name: status.device,
            current_job_id: current.map(|job| job.job_id.to_string()).unwrap_or_default(),
            current_proof_kind: current.map(|job| job.kind.to_string()).unwrap_or_default(),
            current_stage: current.map(|job| job.stage.to_owned()).unwrap_or_default(),
            ..Default::default()
        };
        let queue = |queue: &cuzk_core::engine::QueueStatus| wire::QueueStatus {
            proof_kind: queue.kind.to_string(),
            pending: queue.pending,
            in_progress: queue.in_progress,
        };
        wire::GetStatusResponse {
            gpus: vec![gpu],
            loaded_srs: status.srs.iter().map(Into::into).collect(),
            queues: status.queues.iter().map(queue).collect(),
            total_proofs_completed: status.completed,
            total_proofs_failed: status.failed,
            uptime_seconds: status.uptime.as_secs(),
            pinned_memory_bytes: status.pool.used + status.pool.idle,
            pinned_memory_limit_bytes: status.budget_total,
            memory_reserved_bytes: status.budget_reserved,
            memory_budget_bytes: status.budget_total,
            governor: status.governor.as_ref().map(Into::into),
            concurrency: status.concurrency,
            partitions_running: status.partitions_running,
            partitions_shed: status.partitions_shed,
            pool_used_bytes: status.pool.used,
            pool_idle_bytes: status.pool.idle,
            pool_provider: status.pool_provider.to_owned(),
        }
    }
}

impl From<&governor::Status> for wire::GovernorStatus {
    fn from(status: &governor::Status) -> wire::GovernorStatus {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let headroom = &status.headroom;
        let deed = |deed: &governor::Deed| {
            let seconds = deed.headroom.at.as_secs_f64();
            format!("{seconds:.0} s: {:?}", deed.action)
        };
        wire::GovernorStatus {
            ticks: status.ticks,
            mode: format!("{:?}", status.decision.mode).to_lowercase(),
            limit_bytes: headroom.limit,
            usable_bytes: headroom.usable,
            promised_bytes: headroom.promised,
            residual_bytes: headroom.residual,
            margin_bytes: headroom.margin,
            admissible_bytes: headroom.admissible,
            time_to_limit_ms: headroom.time_to_limit.map_or(0, millis),
            stuck_ms: millis(status.stuck),
            actions: status.deeds.iter().map(deed).collect(),
        }
    }
}

impl From<&SrsStatus> for wire::SrsStatus {
    fn from(srs: &SrsStatus) -> wire::SrsStatus {
        let tier = match srs.tier {
            Tier::Hot => wire::srs_status::Tier::Hot,
            Tier::Warm => wire::srs_status::Tier::Warm,
            Tier::Cold => wire::srs_status::Tier::Cold,
        };
        wire::SrsStatus {
            circuit_id: srs.circuit.to_string(),
            tier: tier.into(),
            size_bytes: srs.bytes,
            ref_count: u32::try_from(srs.users).unwrap_or(u32::MAX),
            pinned_bytes: srs.pinned,
            compiled_bytes: srs.compiled,
        }
    }
}
