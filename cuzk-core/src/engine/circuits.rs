//! The compiled circuits that are open: recorded by the first proof of a circuit, used by the next ones.
//!
//! A recording never costs a proof: what goes wrong with one is logged, and the circuit is synthesised as
//! ever. It appears only when the proof beside which it was made has verified, and is removed when a
//! proof does not verify with it and does without it. The files are mapped; beside their clean pages each holds a dictionary and an
//! index, of some MiB at most.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::circuit::compiled::{pays, Compiled, CompiledError, Identity, Recorded, Recorder};
use crate::device::Checkpoint;
use crate::params::{Params, Srs};
use crate::proof::CircuitId;

/// How a circuit's matrices are to be had.
pub(super) enum Way<'a> {
    /// From its constraints.
    Plain,
    /// The same, and they are to be recorded.
    Record(Claim<'a>),
    /// From a recording.
    Compiled(Arc<Compiled>),
}

/// A recording made beside a proof of which it is not known yet whether it verifies. Dropped, it is not
/// kept.
pub(super) struct Made<'a> {
    claim: Claim<'a>,
    recorded: Recorded,
}

impl Made<'_> {
    /// The proof verifies: the recording can be trusted as far as it.
    pub fn keep(mut self) {
        let (circuit, bytes) = (self.claim.circuit, self.recorded.size_bytes());
        match self.recorded.publish() {
            Ok(_) => tracing::info!(%circuit, bytes, "compiled_circuit.recorded"),
            Err(error) => self.claim.failed(&error),
        }
    }
}

/// The right to record a circuit, which nobody else has meanwhile. Dropped unused, it is the next proof's.
pub(super) struct Claim<'a> {
    circuits: &'a OpenCircuits,
    circuit: CircuitId,
    path: PathBuf,
    identity: Identity,
    /// It cannot be recorded, or does not pay.
    in_vain: bool,
}

impl<'a> Claim<'a> {
    /// Begins, unless another process records or has recorded it, or it cannot be recorded.
    pub fn begin<'c>(&mut self, checkpoint: &'c dyn Checkpoint) -> Option<Recorder<'c>> {
        let begun = Recorder::begin(&self.path, self.identity.clone(), checkpoint);
        begun.unwrap_or_else(|error| {
            self.failed(&error);
            None
        })
    }

    /// Ends a recording beside a synthesis that took so long. It is kept only where it pays.
    pub fn end(mut self, recorder: Recorder<'_>, synthesis: Duration) -> Option<Made<'a>> {
        match recorder.finish() {
            Ok(recorded) if pays(recorded.size_bytes(), synthesis) => {
                return Some(Made { claim: self, recorded });
            }
            Ok(recorded) => {
                let bytes = recorded.size_bytes();
                tracing::info!(circuit = %self.circuit, bytes, ?synthesis, "compiled_circuit.does_not_pay");
                self.in_vain = true;
            }
            Err(error) => self.failed(&error),
        }
        None
    }

    fn failed(&mut self, error: &CompiledError) {
        if !matches!(error, CompiledError::Interrupted(_)) {
            tracing::warn!(circuit = %self.circuit, %error, "compiled_circuit.not_recorded");
            self.in_vain = true;
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut slots = self.circuits.slots.lock();
        match self.in_vain {
            true => slots.insert(self.circuit, Slot::Without),
            false => slots.remove(&self.circuit),
        };
    }
}

pub(super) struct OpenCircuits {
    params: Params,
    slots: Mutex<BTreeMap<CircuitId, Slot>>,
}

enum Slot {
    Open(Arc<Compiled>),
    /// Somebody has a [`Claim`] to it.
    Recording,
    /// It cannot be recorded, or does not pay; not tried again.
    Without,
}

impl OpenCircuits {
    pub fn new(params: Params) -> Self {
        Self { params, slots: Mutex::default() }
    }

    /// How to synthesise the circuit of these parameters.
    pub fn way(&self, circuit: CircuitId, srs: &Srs) -> Way<'_> {
        let mut slots = self.slots.lock();
        match slots.get(&circuit) {
            Some(Slot::Open(compiled)) => return Way::Compiled(Arc::clone(compiled)),
            Some(Slot::Recording | Slot::Without) => return Way::Plain,
            None => {}
        }
        let identity = Identity::of(srs);
        let path = self.params.compiled_path(&identity.circuit);
        match Compiled::open(&path, &identity) {
            Ok(compiled) => {
                let compiled = Arc::new(compiled);
                slots.insert(circuit, Slot::Open(Arc::clone(&compiled)));
                Way::Compiled(compiled)
            }
            Err(error) => {
                if path.exists() {
                    tracing::warn!(%circuit, %error, "compiled_circuit.recorded_again");
                }
                slots.insert(circuit, Slot::Recording);
                Way::Record(Claim { circuits: self, circuit, path, identity, in_vain: false })
            }
        }
    }

    /// A proof of this circuit verified only when it was made without a recording: the one that is open
    /// is not trusted any more.
    pub fn distrust(&self, circuit: CircuitId) {
        let open = match self.slots.lock().get(&circuit) {
            Some(Slot::Open(compiled)) => Arc::clone(compiled),
            _ => return,
        };
        self.remove(circuit, &open, &"a proof verified only when it was made without it");
    }

    /// A recording is no good: its file is removed, and a later proof makes another. Nothing happens
    /// when somebody else who used it has said so before.
    pub fn remove(&self, circuit: CircuitId, compiled: &Arc<Compiled>, why: &dyn Display) {
        let mut slots = self.slots.lock();
        let is_open = |slot: &Slot| matches!(slot, Slot::Open(open) if Arc::ptr_eq(open, compiled));
        if !slots.get(&circuit).is_some_and(is_open) {
            return;
        }
        slots.remove(&circuit);
        let file = compiled.path().display();
        tracing::error!(%circuit, %file, %why, "compiled_circuit.removed");
        match std::fs::remove_file(compiled.path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%circuit, %error, "compiled_circuit.not_removed");
                slots.insert(circuit, Slot::Without);
            }
            _ => {}
        }
    }

    /// Closes a recording, for the next proof to open it again. Returns the bytes unmapped.
    pub fn close(&self, circuit: CircuitId) -> Option<u64> {
        let mut slots = self.slots.lock();
        let bytes = match slots.get(&circuit)? {
            Slot::Open(compiled) if Arc::strong_count(compiled) == 1 => compiled.size_bytes(),
            _ => return None,
        };
        slots.remove(&circuit);
        Some(bytes)
    }

    /// Closes those that no proof uses.
    pub fn close_idle(&self) {
        let idle = |slot: &Slot| matches!(slot, Slot::Open(open) if Arc::strong_count(open) == 1);
        self.slots.lock().retain(|_, slot| !idle(slot));
    }

    /// Bytes that are mapped, and bytes held beside them by those that no proof uses.
    pub fn mapped_and_idle(&self) -> (u64, u64) {
        let slots = self.slots.lock();
        slots.values().fold((0, 0), |(mapped, idle), slot| match slot {
            Slot::Open(open) if Arc::strong_count(open) == 1 => {
                (mapped + open.size_bytes(), idle + open.held_bytes())
            }
            Slot::Open(open) => (mapped + open.size_bytes(), idle),
            Slot::Recording | Slot::Without => (mapped, idle),
        })
    }

    /// Bytes of the circuit's recording, when it is open.
    pub fn opened(&self, circuit: CircuitId) -> Option<u64> {
        match self.slots.lock().get(&circuit)? {
            Slot::Open(compiled) => Some(compiled.size_bytes()),
            Slot::Recording | Slot::Without => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Unhindered;
    use crate::params::testing::{silent, Folder, Toy};
    use crate::params::NamedCircuit;
    use crate::proof::{ProofKind, SectorSize};

    const CIRCUIT: CircuitId =
        CircuitId { kind: ProofKind::WinningPost, sector_size: SectorSize::KiB2 };
    /// A synthesis beside which any recording pays.
    const SLOW: Duration = Duration::from_secs(3600);

    struct Scene {
        _folder: Folder,
        srs: Srs,
        circuits: OpenCircuits,
        file: PathBuf,
    }

    impl Scene {
        fn new() -> Self {
            let toy = toy();
            let folder = toy.folder();
            let params = folder.params();
            let srs = params.open(&toy, &mut silent, &Unhindered).unwrap();
            let file = params.compiled_path(&toy.stem);
            Self { _folder: folder, srs, circuits: OpenCircuits::new(params), file }
        }

        fn way(&self) -> Way<'_> {
            self.circuits.way(CIRCUIT, &self.srs)
        }

        fn claim(&self) -> Claim<'_> {
            match self.way() {
                Way::Record(claim) => claim,
                _ => panic!("somebody else records, or has recorded"),
            }
        }

        fn record(&self, synthesis: Duration) -> Option<Made<'_>> {
            let mut claim = self.claim();
            let mut recorder = claim.begin(&Unhindered).unwrap();
            toy().blank().unwrap().synthesize_into(&mut recorder).unwrap();
            claim.end(recorder, synthesis)
        }

        fn compiled(&self) -> Arc<Compiled> {
            match self.way() {
                Way::Compiled(compiled) => compiled,
                _ => panic!("it is not recorded"),
            }
        }
    }

    fn toy() -> Toy {
        Toy::of(50)
    }

    #[test]
    fn one_records_at_a_time_and_a_claim_that_is_given_up_is_the_nexts() {
        let scene = Scene::new();
        let claim = scene.claim();
        assert!(matches!(scene.way(), Way::Plain));
        drop(claim);
        drop(scene.claim());
    }

    #[test]
    fn a_recording_that_does_not_pay_or_fails_is_not_tried_again() {
        let scene = Scene::new();
        assert!(scene.record(Duration::ZERO).is_none());
        assert!(matches!(scene.way(), Way::Plain) && !scene.file.exists());

        let scene = Scene::new();
        let mut claim = scene.claim();
        let nothing = claim.begin(&Unhindered).unwrap();
        assert!(claim.end(nothing, SLOW).is_none());
        assert!(matches!(scene.way(), Way::Plain) && !scene.file.exists());
    }

    #[test]
    fn a_recording_is_there_once_its_proof_verifies_and_gone_once_it_is_distrusted() {
        let scene = Scene::new();
        drop(scene.record(SLOW).unwrap());
        assert!(!scene.file.exists());
        let made = scene.record(SLOW).unwrap();
        assert!(!scene.file.exists());
        made.keep();
        let late = scene.compiled();
        assert!(scene.file.exists());
        scene.circuits.distrust(CIRCUIT);
        assert!(!scene.file.exists());
        scene.record(SLOW).unwrap().keep();
        scene.circuits.remove(CIRCUIT, &late, &"late");
        assert!(scene.file.exists(), "it is another one");
    }

    #[test]
    fn a_recording_is_closed_only_when_no_proof_uses_it() {
        let scene = Scene::new();
        scene.record(SLOW).unwrap().keep();
        let compiled = scene.compiled();
        let (bytes, held) = (compiled.size_bytes(), compiled.held_bytes());
        let circuits = &scene.circuits;
        assert_eq!(
            (circuits.opened(CIRCUIT), circuits.mapped_and_idle()),
            (Some(bytes), (bytes, 0))
        );
        circuits.close_idle();
        assert_eq!((circuits.close(CIRCUIT), circuits.opened(CIRCUIT)), (None, Some(bytes)));
        drop(compiled);
        assert_eq!(circuits.mapped_and_idle(), (bytes, held));
        assert_eq!((circuits.close(CIRCUIT), circuits.opened(CIRCUIT)), (Some(bytes), None));
        drop(scene.compiled());
        circuits.close_idle();
        assert_eq!(circuits.mapped_and_idle(), (0, 0));
    }
}
