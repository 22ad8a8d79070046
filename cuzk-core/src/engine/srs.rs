//! The parameters that are open, each mapped once, shared by the proofs that read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use cuzk_governor::budget::MemoryBudget;
use cuzk_governor::policy::Workload;
use parking_lot::Mutex;

use crate::device::Checkpoint;
use crate::params::{Counts, Params, ParamsError, Srs};
use crate::proof::CircuitId;

/// How ready a circuit's parameters are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// Mapped: the kernel may reclaim their pages, and reads them again when they are used.
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
    /// Proofs that use them now.
    pub users: usize,
}

pub(super) struct OpenSrs {
    params: Params,
    open: Mutex<BTreeMap<CircuitId, Arc<Srs>>>,
}

impl OpenSrs {
    pub fn new(params: Params) -> Self {
        Self { params, open: Mutex::default() }
    }

    /// The circuit's parameters if they are open.
    pub fn opened(&self, circuit: CircuitId) -> Option<Arc<Srs>> {
        self.open.lock().get(&circuit).cloned()
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
        Ok(Arc::clone(self.open.lock().entry(circuit).or_insert(srs)))
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
        let srs = open.get(&circuit).filter(|srs| Arc::strong_count(srs) == 1)?;
        let bytes = srs.size_bytes();
        open.remove(&circuit);
        Some(bytes)
    }

    /// Tells the governor what could be given up or pinned.
    pub fn report(&self, into: &mut Workload) {
        into.idle_circuits = 0;
        into.idle_srs = 0;
        into.unpinned_srs = 0;
        into.file_cache = 0;
    }

    /// Pins up to so many bytes.
    pub fn pin(&self, _bytes: u64, _budget: &MemoryBudget) {}

    /// Unpins up to so many bytes.
    pub fn unpin(&self, _bytes: u64) {}

    /// Drops up to so many bytes of page cache.
    pub fn drop_cache(&self, _bytes: u64) {}

    /// Lets go of up to so many bytes of compiled circuits.
    pub fn evict_circuits(&self, _bytes: u64) {}

    /// Everything that is open, and every native file that is not.
    pub fn status(&self) -> Vec<SrsStatus> {
        let opened: Vec<SrsStatus> = (self.open.lock().iter())
            .map(|(circuit, srs)| SrsStatus {
                circuit: *circuit,
                tier: Tier::Warm,
                bytes: srs.size_bytes(),
                users: Arc::strong_count(srs) - 1,
            })
            .collect();
        let mut all = opened.clone();
        for circuit in CircuitId::all().filter(|c| !opened.iter().any(|srs| srs.circuit == *c)) {
            let Ok(stem) = circuit.file_stem() else { continue };
            if let Ok(file) = std::fs::metadata(self.params.native_path(&stem)) {
                all.push(SrsStatus { circuit, tier: Tier::Cold, bytes: file.len(), users: 0 });
            }
        }
        all
    }
}
