//! The compiled circuit: matrices A and B, recorded once, mapped by every later proof.
//!
//! A circuit's structure never depends on its witness. So the first proof, or a blank circuit,
//! streams its rows to a file ([`Recorder`]), and later ones ask the circuit for its witness alone
//! and multiply it with the rows of the mapped file ([`Compiled`]), on all threads. The results are
//! bit for bit those of synthesis in full.

mod bitmap;
mod error;
mod format;
mod mapped;
mod recorder;
mod rows;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use error::CompiledError;
pub use format::{Identity, Sizes};
pub use mapped::Compiled;
pub use recorder::{record, Recorded, Recorder};

/// The least share of a full synthesis that a recording saves, the rows on one thread: SnapDeals'
/// (PoRep 0.47, WinningPoSt 0.67, WindowPoSt 0.75; `cargo bench --bench compiled`).
const SAVED: f64 = 0.45;

/// What a slow disk reads in a second: nothing of the file need be in the page cache.
const DISK_BYTES: f64 = 100e6;

/// Whether a recording of so many bytes is worth keeping, where a full synthesis takes so long: even
/// when it is read from a slow disk, that takes less time than it saves. So it is for each of
/// Filecoin's circuits at 2 KiB: their files have 7 to 19 MB a second of synthesis, and 45 would do.
pub fn pays(file_bytes: u64, full_synthesis: Duration) -> bool {
    Duration::from_secs_f64(file_bytes as f64 / DISK_BYTES) < full_synthesis.mul_f64(SAVED)
}
