//! The compiled circuits that are open: recorded by the first proof of a circuit, used by the next ones.
//!
//! A recording never costs a proof: what goes wrong with one is logged, and the circuit is synthesised as
//! ever. The files are mapped; beside their clean pages each holds a dictionary and an index, of some
//! MiB at most.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::circuit::compiled::{pays, Compiled, CompiledError, Identity};
use crate::params::{Params, Srs};
use crate::proof::CircuitId;

/// How a circuit's matrices are to be had.
pub(super) enum Way {
    /// From its constraints.
    Plain,
    /// The same, and they are to be recorded here.
    Record(PathBuf, Identity),
    /// From a recording.
    Compiled(Arc<Compiled>),
}

pub(super) struct OpenCircuits {
    params: Params,
    slots: Mutex<BTreeMap<CircuitId, Slot>>,
}

enum Slot {
    Open(Arc<Compiled>),
    /// Somebody records it.
    Recording,
    /// It cannot be recorded, or does not pay; not tried again.
    Without,
}

impl OpenCircuits {
    pub fn new(params: Params) -> Self {
        Self { params, slots: Mutex::default() }
    }

    /// How to synthesise the circuit of these parameters. Who is told to record has to tell how it went.
    pub fn way(&self, circuit: CircuitId, srs: &Srs) -> Way {
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
                Way::Record(path, identity)
            }
        }
    }

    /// How a recording went, and how long synthesis takes without it; `None` when the proof was
    /// interrupted, so that the next one tries. It is kept only where it pays.
    pub fn recorded(
        &self,
        circuit: CircuitId,
        path: &Path,
        result: Option<Result<Duration, CompiledError>>,
    ) {
        let mut slots = self.slots.lock();
        slots.remove(&circuit);
        match result {
            None | Some(Err(CompiledError::Interrupted(_))) => {}
            Some(Ok(synthesis)) => {
                let bytes = path.metadata().map_or(0, |file| file.len());
                tracing::info!(%circuit, bytes, ?synthesis, "compiled_circuit.recorded");
                if !pays(bytes, synthesis) {
                    tracing::info!(%circuit, "compiled_circuit.does_not_pay");
                    let _ = std::fs::remove_file(path);
                    slots.insert(circuit, Slot::Without);
                }
            }
            Some(Err(error)) => {
                tracing::warn!(%circuit, %error, "compiled_circuit.not_recorded");
                slots.insert(circuit, Slot::Without);
            }
        }
    }

    /// A recording turned out to be damaged: it is removed, and the next proof makes another.
    pub fn damaged(&self, circuit: CircuitId, compiled: &Compiled, error: &CompiledError) {
        tracing::error!(%circuit, %error, "compiled_circuit.damaged");
        self.slots.lock().remove(&circuit);
        if let Err(error) = std::fs::remove_file(compiled.path()) {
            tracing::warn!(%circuit, %error, "compiled_circuit.not_removed");
            self.slots.lock().insert(circuit, Slot::Without);
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
