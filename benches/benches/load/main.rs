//! The load test: proofs an hour, kills and lost jobs under five policies, in real memory cgroups.
//!
//! Every run is a process of its own (this very program) in a fresh cgroup, from 'one partition
//! barely fits' to ample. Where no cgroup can be made it says so and measures nothing. It prints a
//! table, writes an SVG (`target/load.svg`), and ends with one line of JSON; the exit code says
//! whether the bars were met: governed, nothing is killed or lost, and throughput is at least 0.95
//! of the best fixed concurrency's.
//!
//! `cargo bench --bench load [-- --quick] [--workload scripted|real|porep] [--limits 512,704]`

mod chart;
mod policy;
mod workload;

use std::env;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{ensure, Context, Result};
use cuzk_benches::machine;
use cuzk_tests::cgroup::Cgroup;
use cuzk_tests::load;

use policy::{Policy, Row};
use workload::{Length, Workload};

/// Of the oracle's throughput, at least, for whoever is governed.
const SHARE: f64 = 0.95;
/// In a short run, most of which is warming up.
const QUICK_SHARE: f64 = 0.75;

fn main() -> Result<ExitCode> {
    if load::serve()? {
        return Ok(ExitCode::SUCCESS);
    }
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let value = |name: &str| {
        args.iter().position(|arg| arg == name).and_then(|i| args.get(i + 1)).map(String::as_str)
    };
    let quick = args.iter().any(|arg| arg == "--quick");
    if let Err(why) = Cgroup::create("load") {
        cuzk_tests::skip(format_args!("no memory cgroup can be made here: {why:#}"));
        return Ok(ExitCode::SUCCESS);
    }
    let length = if quick { Length::Quick } else { Length::Full };
    let mut workloads = workload::all(length);
    if let Some(name) = value("--workload") {
        workloads.retain(|workload| workload.name == name);
        ensure!(!workloads.is_empty(), "--workload is scripted, real or porep, found {name}");
    }
    if let Some(limits) = value("--limits") {
        let limits = limits.split(',').map(|mib| Ok(mib.parse::<u64>()? << 20));
        let limits = limits.collect::<Result<Vec<_>>>().context("--limits takes MiB")?;
        workloads.iter_mut().for_each(|workload| workload.limits.clone_from(&limits));
    }
    let rows = measure(&workloads)?;
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/load.svg");
    chart::draw(&rows, &chart)?;
    println!("chart: {}", chart.display());
    for_the_readme(&rows);
    let failures = judge(&rows, if quick { QUICK_SHARE } else { SHARE });
    for failure in &failures {
        println!("BAR MISSED: {failure}");
    }
    println!(
        "{}",
        serde_json::json!({
            "bench": "load", "machine": machine(), "quick": quick,
            "bars_met": failures.is_empty(), "rows": rows,
        })
    );
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(workloads: &[Workload]) -> Result<Vec<Row>> {
    println!("{}, cgroup v1 or v2 as it is mounted, a process and a cgroup a run", machine());
    let mut rows = Vec::new();
    for workload in workloads {
        println!("\n{}: {}", workload.name, workload.about);
        println!("{}", Row::HEAD);
        for &limit in &workload.limits {
            let at = rows.len();
            for policy in &workload.policies {
                rows.push(policy.run(workload, limit)?);
            }
            // The oracle ran last.
            let best = rows[at..].iter().find(|row| row.policy == Policy::Oracle);
            let best = best.map(|row| row.proofs_per_hour).filter(|rate| *rate > 0.0);
            for row in &mut rows[at..] {
                row.share_of_oracle = best.map(|best| row.proofs_per_hour / best);
                println!("{row}");
            }
        }
    }
    Ok(rows)
}

/// What of the bars was missed.
fn judge(rows: &[Row], share: f64) -> Vec<String> {
    let governed = rows.iter().filter(|row| row.policy == Policy::Governed);
    let mut failures = Vec::new();
    for row in governed {
        let at = format!("{} at {} MiB, governed", row.workload, row.limit >> 20);
        if row.kills > 0 || row.lost > 0 || row.refused > 0 {
            let (kills, lost, refused) = (row.kills, row.lost, row.refused);
            failures.push(format!("{at}: {kills} kills, {lost} jobs lost, {refused} refused"));
        }
        if let Some(found) = row.share_of_oracle.filter(|found| *found < share) {
            failures.push(format!("{at}: {found:.2} of the oracle's throughput, wanted {share}"));
        }
    }
    failures
}

/// What a PoRep takes in each limit, as Markdown.
fn for_the_readme(rows: &[Row]) {
    let poreps: Vec<_> = rows.iter().filter(|row| row.workload == "porep").collect();
    if poreps.is_empty() {
        return;
    }
    println!("\n| memory limit | one PoRep of 2 KiB | peak, page cache included |\n|---|---|---|");
    for row in poreps {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        println!("| {} | {:.1} s | {} |", mib(row.limit), row.seconds, mib(row.peak));
    }
}
