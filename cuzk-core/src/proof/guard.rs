//! The one border where a panic is caught.
//!
//! Filecoin's circuits assert what they assume of a vanilla proof, on its values too (SnapDeals'
//! compares labels while synthesising). A request's shape is checked beforehand, so what still
//! panics in there is a vanilla proof that is false: an error of the request, not of the process.
//! Needs `panic = "unwind"`, the default.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};

use bellpepper_core::SynthesisError;
use storage_proofs_core::error::Result as FilecoinResult;

use super::{CircuitId, ProofError};
use crate::circuit::{AnyCircuit, Synthesizer};

/// Runs Filecoin's code that builds something for `circuit`.
pub(super) fn building<T>(
    circuit: CircuitId,
    build: impl FnOnce() -> FilecoinResult<T>,
) -> Result<T, ProofError> {
    // Nothing outlives a panic in here: `build` only reads what it captures.
    match catch_unwind(AssertUnwindSafe(build)) {
        Ok(Ok(built)) => Ok(built),
        Ok(Err(reason)) => Err(ProofError::circuit(circuit, reason)),
        Err(panic) => Err(ProofError::circuit(circuit, message(&*panic))),
    }
}

/// A circuit whose synthesis fails where it would panic.
pub(super) struct Guarded(pub(super) Box<dyn AnyCircuit>);

impl AnyCircuit for Guarded {
    fn synthesize(self: Box<Self>, cs: &mut Synthesizer<'_>) -> Result<(), SynthesisError> {
        // The sink is half filled after a panic as it is after any other error: of no use.
        catch_unwind(AssertUnwindSafe(|| self.0.synthesize(cs))).unwrap_or_else(|panic| {
            let reason = format!("the vanilla proof is false: {}", message(&*panic));
            Err(SynthesisError::IoError(std::io::Error::other(reason)))
        })
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panicked")
}
