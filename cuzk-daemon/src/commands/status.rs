//! `cuzk status`: what a daemon is doing, as a page for people or JSON for programs.

use super::{block_on, print, print_json, table, CommandError};
use crate::{address::Address, client, wire};
use bytesize::ByteSize;
use std::time::Duration;

/// Orders of the governor that the page shows.
const SHOWN: usize = 8;

/// Prints a daemon's status.
pub fn run(server: &Address, json: bool) -> Result<(), CommandError> {
    let status = block_on(async {
        let mut client = client::connect(server).await?;
        Ok(client::short(client.get_status(wire::GetStatusRequest {})).await?)
    })?;
    if json {
        return print_json(&as_json(&status));
    }
    print(&as_page(server, &status))
}

fn as_page(server: &Address, status: &wire::GetStatusResponse) -> String {
    let size = |bytes| ByteSize(bytes).display().iec().to_string();
    let uptime = humantime::format_duration(Duration::from_secs(status.uptime_seconds));
    let mut lines = Vec::new();
    let mut line = |text: String| lines.push(text);
    line(format!("daemon   {server}, up {uptime}"));
    line(format!(
        "proofs   {} completed, {} failed",
        status.total_proofs_completed, status.total_proofs_failed
    ));
    line(format!(
        "memory   {} of {} reserved",
        size(status.memory_reserved_bytes),
        size(status.memory_budget_bytes)
    ));
    line(format!(
        "pool     {} in use, {} idle, {} pages",
        size(status.pool_used_bytes),
        size(status.pool_idle_bytes),
        status.pool_provider
    ));
    line(format!(
        "work     {} partitions running, at most {} at once, {} shed so far",
        status.partitions_running, status.concurrency, status.partitions_shed
    ));
    for gpu in &status.gpus {
        let doing = match gpu.current_job_id.as_str() {
            "" => "idle".to_owned(),
            job => format!("{} job {job}: {}", gpu.current_proof_kind, gpu.current_stage),
        };
        line(format!("device   {}: {}, {doing}", gpu.ordinal, gpu.name));
    }

    match &status.governor {
        Some(governor) => line(governor_line(governor)),
        None => line("governor off".to_owned()),
    }

    let mut queues = table(["queue", "pending", "in progress"]);
    for queue in &status.queues {
        let counts = [queue.pending.to_string(), queue.in_progress.to_string()];
        queues.add_row([queue.proof_kind.clone()].into_iter().chain(counts));
    }
    line(format!("\n{}", queues.trim_fmt()));

    if !status.loaded_srs.is_empty() {
        let mut loaded = table(["parameters", "tier", "size", "pinned", "compiled", "users"]);
        for srs in &status.loaded_srs {
            let tier = srs.tier().as_str_name().to_lowercase();
            loaded.add_row([
                srs.circuit_id.clone(),
                tier,
                size(srs.size_bytes),
                size(srs.pinned_bytes),
                size(srs.compiled_bytes),
                srs.ref_count.to_string(),
            ]);
        }
        line(format!("\n{}", loaded.trim_fmt()));
    }
    let orders = status.governor.iter().flat_map(|governor| governor.actions.iter().rev());
    let orders: Vec<&str> = orders.take(SHOWN).map(String::as_str).collect();
    if !orders.is_empty() {
        lines.push(format!("\nlast orders, the newest first\n{}", orders.join("\n")));
    }
    lines.join("\n") + "\n"
}

fn governor_line(governor: &wire::GovernorStatus) -> String {
    let size = |bytes| ByteSize(bytes).display().iec().to_string();
    let near = match governor.time_to_limit_ms {
        0 => String::new(),
        left => format!(", limit in {:.0} s", left as f64 / 1000.0),
    };
    let stuck = match governor.stuck_ms {
        0 => String::new(),
        stuck => format!(", the engine has not answered for {:.0} s", stuck as f64 / 1000.0),
    };
    format!(
        "governor {}: {} usable of a limit of {}, {} promised, {} residual, {} margin{near}{stuck}",
        governor.mode,
        size(governor.usable_bytes),
        size(governor.limit_bytes),
        size(governor.promised_bytes),
        size(governor.residual_bytes),
        size(governor.margin_bytes),
    )
}

fn as_json(status: &wire::GetStatusResponse) -> serde_json::Value {
    let gpu = |gpu: &wire::GpuStatus| {
        serde_json::json!({
            "ordinal": gpu.ordinal,
            "name": gpu.name,
            "vram_total_bytes": gpu.vram_total_bytes,
            "vram_free_bytes": gpu.vram_free_bytes,
            "current_job_id": gpu.current_job_id,
            "current_proof_kind": gpu.current_proof_kind,
            "current_stage": gpu.current_stage,
        })
    };
    let srs = |srs: &wire::SrsStatus| {
        serde_json::json!({
            "circuit_id": srs.circuit_id,
            "tier": srs.tier().as_str_name(),
            "size_bytes": srs.size_bytes,
            "ref_count": srs.ref_count,
            "pinned_bytes": srs.pinned_bytes,
            "compiled_bytes": srs.compiled_bytes,
        })
    };
    let queue = |queue: &wire::QueueStatus| {
        serde_json::json!({
            "proof_kind": queue.proof_kind,
            "pending": queue.pending,
            "in_progress": queue.in_progress,
        })
    };
    let governor = |governor: &wire::GovernorStatus| {
        serde_json::json!({
            "ticks": governor.ticks,
            "mode": governor.mode,
            "limit_bytes": governor.limit_bytes,
            "usable_bytes": governor.usable_bytes,
            "promised_bytes": governor.promised_bytes,
            "residual_bytes": governor.residual_bytes,
            "margin_bytes": governor.margin_bytes,
            "admissible_bytes": governor.admissible_bytes,
            "time_to_limit_ms": governor.time_to_limit_ms,
            "stuck_ms": governor.stuck_ms,
            "actions": governor.actions,
        })
    };
    serde_json::json!({
        "gpus": status.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "loaded_srs": status.loaded_srs.iter().map(srs).collect::<Vec<_>>(),
        "queues": status.queues.iter().map(queue).collect::<Vec<_>>(),
        "total_proofs_completed": status.total_proofs_completed,
        "total_proofs_failed": status.total_proofs_failed,
        "uptime_seconds": status.uptime_seconds,
        "pinned_memory_bytes": status.pinned_memory_bytes,
        "pinned_memory_limit_bytes": status.pinned_memory_limit_bytes,
        "memory_reserved_bytes": status.memory_reserved_bytes,
        "memory_budget_bytes": status.memory_budget_bytes,
        "governor": status.governor.as_ref().map(governor),
        "concurrency": status.concurrency,
        "partitions_running": status.partitions_running,
        "partitions_shed": status.partitions_shed,
        "pool_used_bytes": status.pool_used_bytes,
        "pool_idle_bytes": status.pool_idle_bytes,
        "pool_provider": status.pool_provider,
    })
}
