//! What partitions really took beside their buffers, so that the next ones ask for that.
//!
//! An estimate is doubted until a partition of its path was measured ([`Trust`]). What was learned is
//! kept in a file beside the native parameters, keyed by path and version of the program, written
//! whole and renamed; a file that cannot be read is started anew. Buffers are never part of it: they
//! are known to the byte, and the floor of every ask.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cuzk_governor::estimate::Trust;
use parking_lot::Mutex;

use crate::device::{Checkpoint, Interrupted};
use crate::params::{AtomicFile, ParamsError};
use crate::pipeline::Footprint;

const FILE: &str = "footprints.json";
/// Paths remembered; a kind and a size each, twice.
const MOST: usize = 256;
/// How long another writer of the file is waited for.
const OTHERS: Duration = Duration::from_secs(1);

/// What was learned, by path.
pub(super) struct Learned {
    file: PathBuf,
    trusts: Mutex<BTreeMap<String, Trust>>,
}

impl Learned {
    /// Reads what earlier runs learned.
    pub fn open(dir: &Path) -> Self {
        let file = dir.join(FILE);
        let trusts = std::fs::read(&file).ok().and_then(|text| {
            serde_json::from_slice(&text)
                .inspect_err(
                    |error| tracing::warn!(file = %file.display(), %error, "footprints.unreadable"),
                )
                .ok()
        });
        Self { trusts: Mutex::new(trusts.unwrap_or_default()), file }
    }

    /// The footprint to reserve where `most` bytes can be had. What was learned makes a partition run
    /// alone if need be, but never refused: no more is asked for than there is, as long as the first
    /// guess fits.
    pub fn ask(&self, path: &str, predicted: Footprint, most: u64) -> Footprint {
        let trust = self.trusts.lock().get(&key(path)).copied().unwrap_or_default();
        let first = Trust::default().ask(predicted.heap);
        let room = most.saturating_sub(predicted.buffers);
        Footprint { heap: trust.ask(predicted.heap).min(first.max(room)), ..predicted }
    }

    /// Takes in a partition's peak on the heap.
    pub fn measure(&self, path: &str, predicted: Footprint, peak: u64) {
        if peak == 0 {
            return; // nobody counts
        }
        let mut trusts = self.trusts.lock();
        let known = trusts.contains_key(&key(path));
        if !known && trusts.len() >= MOST {
            return;
        }
        let trust = trusts.entry(key(path)).or_default();
        let before = trust.ask(predicted.heap);
        trust.measure(predicted.heap, peak);
        metrics::gauge!("cuzk_footprint_heap_bytes", "path" => path.to_owned()).set(peak as f64);
        let moved = trust.ask(predicted.heap).abs_diff(before) > before / 50;
        if !known || moved {
            let text = serde_json::to_vec_pretty(&*trusts);
            drop(trusts);
            self.save(&text.unwrap_or_default());
        }
    }

    fn save(&self, text: &[u8]) {
        if let Err(error) = write(&self.file, text) {
            tracing::warn!(file = %self.file.display(), %error, "footprints.not_kept");
        }
    }
}

fn write(path: &Path, text: &[u8]) -> Result<(), ParamsError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(ParamsError::io(dir, "create"))?;
    let mut file = AtomicFile::begin(path, &Until(Instant::now() + OTHERS))?;
    file.write_all(text).map_err(ParamsError::io(path, "write"))?;
    file.commit()
}

/// Ends a wait for another daemon that writes the same file.
struct Until(Instant);

impl Checkpoint for Until {
    fn check(&self) -> Result<(), Interrupted> {
        (Instant::now() < self.0).then_some(()).ok_or(Interrupted)
    }
}

fn key(path: &str) -> String {
    format!("{path} {}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREDICTED: Footprint = Footprint { buffers: 1000, heap: 100 };

    #[test]
    fn what_was_measured_is_asked_for_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let learned = Learned::open(dir.path());
        assert_eq!(
            learned.ask("winning", PREDICTED, u64::MAX),
            Footprint { buffers: 1000, heap: 130 }
        );
        learned.measure("winning", PREDICTED, 50);
        for learned in [learned, Learned::open(dir.path())] {
            assert_eq!(
                learned.ask("winning", PREDICTED, u64::MAX),
                Footprint { buffers: 1000, heap: 60 }
            );
            assert_eq!(learned.ask("window", PREDICTED, u64::MAX).heap, 130);
        }
    }

    #[test]
    fn what_was_learned_never_asks_for_more_than_there_is_if_the_first_guess_fits() {
        let dir = tempfile::tempdir().unwrap();
        let learned = Learned::open(dir.path());
        learned.measure("winning", PREDICTED, 500);
        let heap = |most| learned.ask("winning", PREDICTED, most).heap;
        assert_eq!([2000, 1510, 1509, 1200, 1100].map(heap), [510, 510, 509, 200, 130]);
    }

    #[test]
    fn a_damaged_file_is_started_anew_and_nothing_counted_teaches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{\"winning").unwrap();
        let learned = Learned::open(dir.path());
        learned.measure("winning", PREDICTED, 0);
        assert_eq!(learned.ask("winning", PREDICTED, u64::MAX).heap, 130);
        learned.measure("winning", PREDICTED, 200);
        assert!(Learned::open(dir.path()).ask("winning", PREDICTED, u64::MAX).heap > 200);
    }

    #[test]
    fn an_estimate_that_moved_is_kept_too_and_another_versions_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let learned = Learned::open(dir.path());
        learned.measure("winning", PREDICTED, 50);
        learned.measure("winning", PREDICTED, 500);
        assert_eq!(Learned::open(dir.path()).ask("winning", PREDICTED, u64::MAX).heap, 506);
        let file = dir.path().join(FILE);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(env!("CARGO_PKG_VERSION"), "0.0.0")).unwrap();
        assert_eq!(Learned::open(dir.path()).ask("winning", PREDICTED, u64::MAX).heap, 130);
    }

    #[test]
    fn no_more_paths_are_remembered_than_there_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let learned = Learned::open(dir.path());
        (0..MOST + 3).for_each(|i| learned.measure(&i.to_string(), PREDICTED, 50));
        assert_eq!(learned.trusts.lock().len(), MOST);
        assert_eq!(learned.ask(&(MOST - 1).to_string(), PREDICTED, u64::MAX).heap, 60);
        assert_eq!(learned.ask(&MOST.to_string(), PREDICTED, u64::MAX).heap, 130);
    }
}
