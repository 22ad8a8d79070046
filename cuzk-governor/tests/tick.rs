//! A tick costs next to nothing: no allocation, little CPU. In a binary of its own, because it
//! counts every allocation of the watcher's thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::Arc;
use std::time::Duration;

use cuzk_governor::budget::MemoryBudget;
use cuzk_governor::governor::{Alarm, Governor, Parts, Plant};
use cuzk_governor::policy::{Action, Workload};
use cuzk_governor::sensor::pressure::Woken;
use cuzk_governor::sensor::{Host, Level, Sample, Sensor, SensorError};
use cuzk_governor::setpoints::Setpoints;

static COUNTED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.get() {
            COUNTED.fetch_add(1, SeqCst);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GIB: u64 = 1 << 30;
/// Long enough for every window to have turned over.
const WARM: u64 = 600;
const MEASURED: u64 = 400;

/// Four levels whose usage wavers; counts its own thread's allocations once warm.
struct Wavering {
    cpu: Vec<Duration>,
    last: Duration,
    done: std::sync::mpsc::Sender<Vec<Duration>>,
}

impl Sensor for Wavering {
    fn sample(&mut self, into: &mut Sample) -> Result<(), SensorError> {
        let cpu = thread_cpu();
        if into.sequence >= WARM && into.sequence < WARM + MEASURED {
            self.cpu.push(cpu - self.last);
        }
        into.sequence += 1;
        into.at += Duration::from_secs(1);
        if into.levels.is_empty() {
            let level = |path: &str| Level {
                path: path.into(),
                limit: Some(100 * GIB),
                usage: 0,
                peak: 0,
                reclaimable: 0,
            };
            into.levels = ["/a/b/c", "/a/b", "/a", "/"].map(level).into();
        }
        for level in &mut into.levels {
            level.usage = 50 * GIB + (into.sequence * 7919 % 4096) * (1 << 20);
            level.peak = level.usage;
        }
        into.host = Host { total: 500 * GIB, available: 400 * GIB };
        match into.sequence {
            WARM => COUNTS.set(true),
            n if n == WARM + MEASURED => {
                COUNTS.set(false);
                let _ = self.done.send(std::mem::take(&mut self.cpu));
            }
            _ => {}
        }
        self.last = thread_cpu();
        Ok(())
    }
}

fn thread_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes into the local it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// So many ticks without a pause.
struct Hurry(u64);

impl Alarm for Hurry {
    fn wait(&mut self, _: Duration, _: std::os::fd::BorrowedFd<'_>) -> Woken {
        if self.0 == 0 {
            return Woken::ByCaller;
        }
        self.0 -= 1;
        Woken::ByTimeout
    }
}

/// Nothing to do, and as many at once as it is told.
struct Quiet(AtomicU32);

impl Plant for Quiet {
    fn workload(&self, into: &mut Workload) {
        into.concurrency = self.0.load(SeqCst);
        into.running.clear();
    }

    fn apply(&self, action: Action) {
        if let Action::Concurrency(most) = action {
            self.0.store(most, SeqCst);
        }
    }
}

#[test]
fn a_steady_tick_allocates_nothing_and_takes_at_most_200_microseconds_of_cpu() {
    let (done, result) = std::sync::mpsc::channel();
    let sensor = Wavering { cpu: Vec::with_capacity(1000), last: Duration::ZERO, done };
    let governor = Governor::start(Parts {
        sensor: Box::new(sensor),
        alarm: Box::new(Hurry(WARM + MEASURED + 10)),
        budget: MemoryBudget::new(0),
        plant: Arc::new(Quiet(AtomicU32::new(64))),
        setpoints: Setpoints::default(),
        observer: None,
    })
    .unwrap();
    let mut cpu = result.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(COUNTED.load(SeqCst), 0, "allocations in {MEASURED} ticks");
    cpu.sort();
    let median = cpu[cpu.len() / 2];
    assert!(median < Duration::from_micros(200), "median {median:?}");
    drop(governor);
}
