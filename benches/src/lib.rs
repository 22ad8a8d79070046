//! What the benches share: the machine's name, medians, peaks of memory, where parameters are kept.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cuzk_tests::memory::resident;

/// The processor and how many of it, for the head of a table.
pub fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(':').nth(1)).unwrap_or("unknown processor").trim();
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    format!("{cpus} × {model}")
}

/// The middle value (the lower of two middle ones); 0 of nothing.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Where benches and tests find or make development parameters: beside the build's output.
pub fn params_dir() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/development-parameters"))
}

/// Watches this process's memory from a thread of its own, every 10 ms.
pub struct PeakWatch {
    stop: Arc<AtomicBool>,
    peaks: Arc<[AtomicU64; 2]>,
    thread: Option<JoinHandle<()>>,
}

impl PeakWatch {
    /// Starts watching.
    pub fn start() -> Self {
        let (stop, peaks) = (Arc::<AtomicBool>::default(), Arc::<[AtomicU64; 2]>::default());
        let (stopped, seen) = (Arc::clone(&stop), Arc::clone(&peaks));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let now = resident();
                seen[0].fetch_max(now.anonymous, Ordering::Relaxed);
                seen[1].fetch_max(now.all, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(10));
            }
        });
        Self { stop, peaks, thread: Some(thread) }
    }

    /// The peaks in bytes: anonymous memory, and all resident memory (mapped files included).
    pub fn finish(mut self) -> (u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        (self.peaks[0].load(Ordering::Relaxed), self.peaks[1].load(Ordering::Relaxed))
    }
}
