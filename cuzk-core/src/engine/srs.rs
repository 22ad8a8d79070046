//! The parameters that are open: each mapped once, shared by the proofs that read it, and pinned in
//! slices as far as the governor grants it.
//!
//! A mapped file's pages are the kernel's to reclaim and are in no budget. A pinned slice is in the
//! budget from before it is read until it is the kernel's again. WinningPoSt's parameters are pinned
//! first, since it has no time to read them, and given up last: when nothing could run otherwise.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use cuzk_governor::budget::{Ask, MemoryBudget, Reservation};
use cuzk_governor::policy::Workload;
use parking_lot::Mutex;

use crate::device::Checkpoint;
use crate::params::{Counts, Params, ParamsError, Srs};
use crate::proof::{CircuitId, ProofKind};

/// Bytes pinned or unpinned together: what one more copy would ever be too much by.
const SLICE: usize = 32 << 20;
/// Pinned for one order at most: reading it from disk keeps the governor's hands for so long.
const AN_ORDER: u64 = 256 << 20;

/// How ready a circuit's parameters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Pinned whole.
    Hot,
    /// Mapped, perhaps pinned in part: the kernel may reclaim the other pages, and reads them again
    /// when they are used.
    Warm,
    /// A native file on disk, not open.
    Cold,
}

/// One circuit's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SrsStatus {
    /// The circuit.
    pub circuit: CircuitId,
    /// How ready they are.
    pub tier: Tier,
    /// Bytes of the native file.
    pub bytes: u64,
    /// Bytes of it that are pinned.
    pub pinned: u64,
    /// Bytes of the compiled circuit that is mapped beside them; 0 when none is.
    pub compiled: u64,
    /// Proofs that use them now.
    pub users: usize,
}

pub(super) struct OpenSrs {
    params: Params,
    open: Mutex<BTreeMap<CircuitId, Arc<Opened>>>,
    /// The kernel allows no pinning.
    refused: AtomicBool,
}

/// One circuit's parameters, and what pays for their pinned slices: the first so many.
struct Opened {
    circuit: CircuitId,
    /// Dropped first: its pages are unpinned when their reservations end.
    srs: Arc<Srs>,
    pinned: Mutex<Vec<Reservation>>,
}

impl Opened {
    fn users(&self) -> usize {
        Arc::strong_count(&self.srs) - 1
    }

    fn bytes(&self) -> u64 {
        self.srs.size_bytes()
    }

    /// The bytes of slice `i`; empty beyond the end.
    fn slice(&self, i: usize) -> Range<usize> {
        let end = self.bytes() as usize;
        (i * SLICE).min(end)..((i + 1) * SLICE).min(end)
    }

    fn pinned(&self) -> u64 {
        self.slice(self.pinned.lock().len()).start as u64
    }

    fn is_winning(&self) -> bool {
        self.circuit.kind == ProofKind::WinningPost
    }

    /// Pins one more slice; its bytes, 0 when there is none, or no memory for it.
    fn pin(&self, budget: &MemoryBudget) -> std::io::Result<u64> {
        let mut pinned = self.pinned.lock();
        let slice = self.slice(pinned.len());
        let bytes = slice.len() as u64;
        let Ok(mut memory) = budget.try_reserve(Ask::new("srs", bytes)) else { return Ok(0) };
        self.srs.pin(slice)?;
        memory.report_resident(bytes);
        pinned.push(memory);
        Ok(bytes)
    }

    /// Unpins the last slice; its bytes, 0 when there is none.
    fn unpin(&self) -> std::io::Result<u64> {
        let mut pinned = self.pinned.lock();
        let Some(last) = pinned.len().checked_sub(1) else { return Ok(0) };
        self.srs.unpin(self.slice(last))?;
        Ok(pinned.pop().map_or(0, |memory| memory.bytes()))
    }
}

impl OpenSrs {
    pub fn new(params: Params) -> Self {
        Self { params, open: Mutex::default(), refused: AtomicBool::new(false) }
    }

    /// The circuit's parameters if they are open.
    pub fn opened(&self, circuit: CircuitId) -> Option<Arc<Srs>> {
        self.open.lock().get(&circuit).map(|opened| Arc::clone(&opened.srs))
    }

    /// Opens them, converting Filecoin's file first where there is no native one.
    pub fn open(
        &self,
        circuit: CircuitId,
        checkpoint: &dyn Checkpoint,
    ) -> Result<Arc<Srs>, ParamsError> {
        if let Some(srs) = self.opened(circuit) {
            return Ok(srs);
        }
        // Without the lock: a conversion takes minutes. Two that open at once get one file, mapped
        // twice for as long as the loser's proof lasts.
        let srs = Arc::new(self.params.open(&circuit, &mut |_| {}, checkpoint)?);
        let opened = Arc::new(Opened { circuit, srs, pinned: Mutex::default() });
        Ok(Arc::clone(&self.open.lock().entry(circuit).or_insert(opened).srs))
    }

    /// How many points a circuit's parameters have, from the file's header.
    pub fn counts(&self, circuit: CircuitId) -> Result<Counts, ParamsError> {
        match self.opened(circuit) {
            Some(srs) => Ok(srs.header().counts),
            None => self.params.counts(&circuit),
        }
    }

    /// Closes them unless a proof uses them. Returns the bytes unmapped.
    pub fn close(&self, circuit: CircuitId) -> Option<u64> {
        let mut open = self.open.lock();
        let opened = open.get(&circuit).filter(|opened| opened.users() == 0)?;
        let bytes = opened.bytes();
        open.remove(&circuit);
        Some(bytes)
    }

    /// Those that are open, WinningPoSt's first.
    fn all(&self) -> Vec<Arc<Opened>> {
        let mut all: Vec<_> = self.open.lock().values().cloned().collect();
        all.sort_by_key(|opened| (!opened.is_winning(), opened.circuit));
        all
    }

    /// Tells the governor what could be given up or pinned.
    pub fn report(&self, into: &mut Workload) {
        let stands_still = into.running.is_empty() && into.waiting > 0;
        (into.idle_srs, into.unpinned_srs, into.file_cache) = (0, 0, 0);
        for opened in self.all() {
            let (bytes, pinned) = (opened.bytes(), opened.pinned());
            if !opened.is_winning() || stands_still {
                into.idle_srs += pinned;
            }
            if !self.refused.load(Ordering::Relaxed) {
                into.unpinned_srs += bytes - pinned;
            }
            into.file_cache += bytes - pinned;
        }
    }

    /// Pins up to so many bytes, WinningPoSt's first.
    pub fn pin(&self, bytes: u64, budget: &MemoryBudget) {
        let mut left = bytes.min(AN_ORDER);
        for opened in self.all() {
            while left >= SLICE as u64 || opened.bytes() - opened.pinned() <= left {
                match opened.pin(budget) {
                    Ok(0) => break,
                    Ok(bytes) => left = left.saturating_sub(bytes),
                    Err(error) => {
                        let limit = "RLIMIT_MEMLOCK (`ulimit -l`) or CAP_IPC_LOCK";
                        tracing::warn!(%error, limit, "srs.not_pinned");
                        return self.refused.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// Unpins at least so many bytes as far as there are, the least urgent first, WinningPoSt's last.
    pub fn unpin(&self, bytes: u64) {
        let mut left = bytes;
        for opened in self.all().iter().rev() {
            while left > 0 {
                match opened.unpin() {
                    Ok(0) => break,
                    Ok(bytes) => left = left.saturating_sub(bytes),
                    Err(error) => {
                        tracing::warn!(%error, circuit = %opened.circuit, "srs.not_unpinned");
                        break;
                    }
                }
            }
        }
    }

    /// Drops the page cache of parameters that no proof uses.
    pub fn drop_cache(&self) {
        for opened in self.all().iter().filter(|opened| opened.users() == 0) {
            opened.srs.drop_pages(opened.pinned() as usize..opened.bytes() as usize);
        }
    }

    /// Everything that is open, and every native file that is not; without the compiled circuits.
    pub fn status(&self) -> Vec<SrsStatus> {
        let tell = |opened: &Arc<Opened>| {
            let (circuit, bytes, pinned) = (opened.circuit, opened.bytes(), opened.pinned());
            let tier = if pinned == bytes { Tier::Hot } else { Tier::Warm };
            SrsStatus { circuit, tier, bytes, pinned, compiled: 0, users: opened.users() }
        };
        let mut all: Vec<_> = self.all().iter().map(tell).collect();
        let opened = all.len();
        for circuit in CircuitId::all() {
            let Ok(stem) = circuit.file_stem() else { continue };
            if all[..opened].iter().any(|srs| srs.circuit == circuit) {
                continue;
            }
            if let Ok(file) = std::fs::metadata(self.params.native_path(&stem)) {
                let (tier, bytes) = (Tier::Cold, file.len());
                all.push(SrsStatus { circuit, tier, bytes, pinned: 0, compiled: 0, users: 0 });
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Unhindered;
    use crate::engine::lane::urgency;
    use crate::engine::running::shed_class;
    use crate::params::testing::{silent, Folder, Toy};
    use crate::proof::{Priority, SectorSize};
    use cuzk_governor::policy::Partition;
    use std::time::Duration;

    const fn circuit(kind: ProofKind) -> CircuitId {
        CircuitId { kind, sector_size: SectorSize::KiB2 }
    }

    const WINNING: CircuitId = circuit(ProofKind::WinningPost);
    const WINDOW: CircuitId = circuit(ProofKind::WindowPostPartition);

    /// Small parameters under the names of real ones; what is open, and the bytes of each.
    fn two() -> (Folder, OpenSrs, u64) {
        let name = |circuit: CircuitId| circuit.file_stem().unwrap();
        let folder = Toy::of(50).named(name(WINNING)).folder();
        let params = folder.params();
        for circuit in [WINNING, WINDOW] {
            for path in [Params::params_path, Params::vk_path] {
                let (from, to) = (path(&params, &name(WINNING)), path(&params, &name(circuit)));
                if from != to {
                    std::fs::copy(from, to).unwrap();
                }
            }
            let toy = Toy::of(50).named(name(circuit));
            params.open(&toy, &mut silent, &Unhindered).unwrap();
        }
        let open = OpenSrs::new(params);
        let [bytes, other] =
            [WINDOW, WINNING].map(|circuit| open.open(circuit, &Unhindered).unwrap().size_bytes());
        assert_eq!(bytes, other);
        (folder, open, bytes)
    }

    fn tiers(open: &OpenSrs) -> [Tier; 2] {
        let status = open.status();
        let tier = |circuit| status.iter().find(|srs| srs.circuit == circuit).unwrap().tier;
        [tier(WINNING), tier(WINDOW)]
    }

    /// Bytes of a file's mappings that the kernel has locked in memory.
    fn locked(file: &std::path::Path) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut is_of_it = false;
        let mut kib = 0;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("Locked:"), Some(number)) if is_of_it => {
                    kib += number.parse::<u64>().unwrap()
                }
                (Some(key), _) if !key.ends_with(':') => {
                    is_of_it = line.ends_with(file.to_str().unwrap());
                }
                _ => {}
            }
        }
        kib << 10
    }

    #[test]
    fn what_is_pinned_is_locked_until_it_is_unpinned() {
        let (folder, open, bytes) = two();
        let file = folder.params().native_path(&WINDOW.file_stem().unwrap());
        let budget = MemoryBudget::new(2 * bytes);
        assert_eq!(locked(&file), 0);
        open.pin(u64::MAX, &budget);
        assert!(locked(&file) >= bytes / 4096 * 4096, "{} of {bytes}", locked(&file));
        open.unpin(u64::MAX);
        assert_eq!(locked(&file), 0);
    }

    #[test]
    fn winning_is_pinned_first_and_given_up_last_and_the_budget_pays_for_what_is_pinned() {
        let (_folder, open, bytes) = two();
        let budget = MemoryBudget::new(bytes + bytes / 2);
        open.pin(u64::MAX, &budget);
        assert_eq!((tiers(&open), budget.usage().reserved), ([Tier::Hot, Tier::Warm], bytes));
        budget.set_total(2 * bytes);
        open.pin(u64::MAX, &budget);
        assert_eq!((tiers(&open), budget.usage().resident), ([Tier::Hot, Tier::Hot], 2 * bytes));
        open.unpin(bytes);
        assert_eq!((tiers(&open), budget.usage().reserved), ([Tier::Hot, Tier::Warm], bytes));
        let idle = |running: usize, waiting| {
            let partition = Partition {
                id: 1,
                priority: urgency(Priority::Normal),
                shed: shed_class(Priority::Normal, 0),
                held: 0,
                to_come: 0,
                work: Duration::ZERO,
            };
            let running = vec![partition; running];
            let mut workload = Workload { running, waiting, ..Workload::default() };
            open.report(&mut workload);
            workload.idle_srs
        };
        assert_eq!([idle(0, 0), idle(1, 1), idle(0, 1)], [0, 0, bytes]);
        open.unpin(bytes);
        assert_eq!((tiers(&open), budget.usage().reserved), ([Tier::Warm, Tier::Warm], 0));
        assert_eq!(open.close(WINNING), Some(bytes));
        assert_eq!((tiers(&open), budget.usage().reserved), ([Tier::Cold, Tier::Warm], 0));
    }

    #[test]
    fn parameters_in_use_stay_open_and_are_shared() {
        let (_folder, open, bytes) = two();
        let [one, other] = [(); 2].map(|()| open.open(WINDOW, &Unhindered).unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        let users = |circuit| {
            let status = open.status();
            status.iter().find(|srs| srs.circuit == circuit).unwrap().users
        };
        assert_eq!((users(WINDOW), users(WINNING)), (2, 0));
        drop(one);
        assert_eq!(open.close(WINDOW), None);
        drop(other);
        assert_eq!(open.close(WINDOW), Some(bytes));
        assert_eq!(open.close(WINDOW), None, "it is closed");
    }
}
