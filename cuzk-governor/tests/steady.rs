//! In the steady state a sample of this very machine allocates nothing and costs little.
//!
//! Alone in its test binary, which counts the allocations of each thread: the test harness has
//! threads, too, and they allocate when they like.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use cuzk_governor::sensor::kernel::KernelSensor;
use cuzk_governor::sensor::resolve::Root;
use cuzk_governor::sensor::{Sample, Sensor};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

fn cpu_time_us() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours and lives until the call returns.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}

#[test]
fn a_steady_sample_allocates_nothing_and_takes_under_200_us_of_cpu() {
    let mut sensor = KernelSensor::open(Root::default()).unwrap();
    let mut sample = Sample::default();
    for _ in 0..3 {
        sensor.sample(&mut sample).unwrap();
    }
    const ROUNDS: u64 = 200;
    let (allocations, before) = (ALLOCATIONS.get(), cpu_time_us());
    for _ in 0..ROUNDS {
        sensor.sample(&mut sample).unwrap();
    }
    let each = (cpu_time_us() - before) / ROUNDS;
    assert_eq!(ALLOCATIONS.get() - allocations, 0);
    println!("{each} us of CPU a sample, {} levels", sample.levels.len());
    assert!(each < 200, "{each} us of CPU a sample");
}
