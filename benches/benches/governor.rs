//! What governing costs: the ledger against a plain mutex counter, a decision, a whole tick on
//! this machine's kernel. Two things that are compared take turns; medians are shown. The last
//! line is JSON. Run with `cargo bench -p cuzk-benches --bench governor`.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use cuzk_benches::median;
use cuzk_governor::budget::{Ask, MemoryBudget, Priority, Usage};
use cuzk_governor::headroom::Forecaster;
use cuzk_governor::policy::{decide, Partition, Shed, State, Workload};
use cuzk_governor::sensor::kernel::KernelSensor;
use cuzk_governor::sensor::resolve::Root;
use cuzk_governor::sensor::{Host, Level, Sample, Sensor};
use cuzk_governor::setpoints::Setpoints;
use parking_lot::Mutex;

const GIB: u64 = 1 << 30;
/// Turns of each side.
const TURNS: usize = 7;
const OPS: u64 = 400_000;
const THREADS: u64 = 64;

fn main() -> anyhow::Result<()> {
    let budget = MemoryBudget::new(1 << 50);
    let counter = Mutex::new(0u64);
    let reserve = || drop(black_box(budget.try_reserve(Ask::new("bench", 4096))));
    // The least that any ledger must do: add under a lock, subtract under it again.
    let count = || {
        *black_box(&counter).lock() += 4096;
        *black_box(&counter).lock() -= 4096;
    };
    let [ledger, plain] = take_turns([&|| alone(&reserve), &|| alone(&count)]);
    let [ledger_64, plain_64] = take_turns([&|| crowd(&reserve), &|| crowd(&count)]);
    let decision = decision_nanos();
    let tick = tick_micros()?;

    println!("{:44} {:>12} {:>12} {:>7}", "", "ledger", "counter", "ratio");
    let line = |name, ledger: f64, plain: f64| {
        println!("{name:44} {ledger:9.1} ns {plain:9.1} ns {:7.2}", ledger / plain);
    };
    line("reserve + release, one thread", ledger, plain);
    line("reserve + release, 64 threads", ledger_64, plain_64);
    println!("{:44} {decision:9.1} ns", "headroom + decision, 5 levels, 20 partitions");
    println!("{:44} {tick:9.1} µs", "tick on this kernel, CPU time");
    let json = serde_json::json!({
        "reserve_release_ns": ledger,
        "mutex_counter_ns": plain,
        "reserve_release_64_threads_ns": ledger_64,
        "mutex_counter_64_threads_ns": plain_64,
        "ratio_64_threads": ledger_64 / plain_64,
        "decision_ns": decision,
        "tick_cpu_us": tick,
    });
    println!("{json}");
    Ok(())
}

/// Medians of two measurements that take turns.
fn take_turns(sides: [&dyn Fn() -> f64; 2]) -> [f64; 2] {
    let mut seen = [vec![], vec![]];
    for _ in 0..TURNS {
        for (side, seen) in sides.iter().zip(&mut seen) {
            seen.push(side());
        }
    }
    seen.map(median)
}

/// Nanoseconds an operation.
fn alone(op: &dyn Fn()) -> f64 {
    let begun = Instant::now();
    (0..OPS).for_each(|_| op());
    begun.elapsed().as_nanos() as f64 / OPS as f64
}

/// Nanoseconds an operation, wall time, with many threads at it.
fn crowd(op: &(dyn Fn() + Sync)) -> f64 {
    let barrier = Barrier::new(THREADS as usize + 1);
    std::thread::scope(|scope| {
        let work = || {
            barrier.wait();
            (0..OPS / THREADS).for_each(|_| op());
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        barrier.wait();
        let begun = Instant::now();
        threads.into_iter().for_each(|thread| drop(thread.join()));
        begun.elapsed().as_nanos() as f64 / OPS as f64
    })
}

/// A headroom and a decision, with usage that wavers.
fn decision_nanos() -> f64 {
    let set = Setpoints::default();
    let (mut forecaster, mut state) = (Forecaster::new(), State::new());
    let partition = |id| Partition {
        id,
        priority: Priority::Normal,
        shed: Shed::Freely,
        held: GIB,
        to_come: GIB,
        work: Duration::from_secs(id),
    };
    let running = (0..20).map(partition).collect();
    let workload = Workload { running, concurrency: 20, waiting: 5, ..Workload::default() };
    let level = |path: &str| Level {
        path: path.into(),
        limit: Some(100 * GIB),
        usage: 0,
        peak: 0,
        reclaimable: 0,
    };
    let mut sample = Sample {
        levels: ["/a/b/c/d", "/a/b/c", "/a/b", "/a", "/"].map(level).into(),
        host: Host { total: 500 * GIB, available: 400 * GIB },
        ..Sample::default()
    };
    let usage = Usage { total: 0, reserved: 40 * GIB, resident: 20 * GIB, waiting: 0 };
    let mut actions = Vec::with_capacity(64);
    let mut rounds = vec![];
    for round in 0..20_000u64 {
        sample.sequence += 1;
        sample.at += set.tick;
        for level in &mut sample.levels {
            level.usage = 50 * GIB + (round * 7919 % 4096) * (1 << 20);
            level.peak = level.usage;
        }
        let begun = Instant::now();
        let headroom = forecaster.observe(&sample, &usage, &set);
        black_box(decide(&mut state, &headroom, &workload, &set, &mut actions));
        rounds.push(begun.elapsed().as_nanos() as f64);
    }
    median(rounds)
}

/// Everything that a tick does on the watcher's thread but the metrics.
fn tick_micros() -> anyhow::Result<f64> {
    let set = Setpoints::default();
    let mut sensor = KernelSensor::open(Root::default())?;
    let budget = MemoryBudget::new(0);
    let (mut forecaster, mut state) = (Forecaster::new(), State::new());
    let (mut sample, workload) = (Sample::default(), Workload::default());
    let mut actions = Vec::with_capacity(64);
    let mut rounds = vec![];
    for _ in 0..2_000 {
        let begun = thread_cpu();
        sensor.sample(&mut sample)?;
        let headroom = forecaster.observe(&sample, &budget.usage(), &set);
        let decision = decide(&mut state, &headroom, &workload, &set, &mut actions);
        budget.set_total(decision.total);
        budget.set_ceiling(decision.ceiling);
        rounds.push((thread_cpu() - begun).as_secs_f64() * 1e6);
    }
    Ok(median(rounds))
}

fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into the local it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
