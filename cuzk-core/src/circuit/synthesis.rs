//! From a circuit to what a proof needs of it, with A and B from whichever place they are had.

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;

use super::compiled::{Compiled, CompiledError, Recorder};
use super::{AnyCircuit, Assignment, ConstraintSink, Stopped, Synthesized, Witness};
use crate::device::{Checkpoint, Interrupted};

/// Where the matrices A and B come from.
#[derive(Debug)]
pub enum Matrices<'a, 'r> {
    /// The circuit's constraints, as they stream past.
    Circuit,
    /// The same, and they are recorded on the way. What goes wrong with that is the recorder's to
    /// tell when it is finished: the proof does not suffer.
    Recorded(&'a mut Recorder<'r>),
    /// An earlier recording: the circuit is only asked for its witness.
    Compiled(&'a Compiled),
}

/// Why a circuit has not become a proof's input.
#[derive(Debug, thiserror::Error)]
pub enum SynthesizeError {
    /// Interrupted, or not the circuit that the vectors are made for.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The circuit's own complaint.
    #[error(transparent)]
    Circuit(#[from] SynthesisError),
    /// The compiled circuit cannot be used: synthesise without, and record again.
    #[error(transparent)]
    Compiled(CompiledError),
}

impl From<CompiledError> for SynthesizeError {
    fn from(error: CompiledError) -> Self {
        match error {
            CompiledError::Interrupted(interrupted) => Self::Stopped(interrupted.into()),
            error => Self::Compiled(error),
        }
    }
}

impl From<Interrupted> for SynthesizeError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Stopped(interrupted.into())
    }
}

/// Writes the auxiliary variables to `aux`, and A's and B's evaluations to `a` and `b` (n scalars
/// each, n the domain's size, all zero).
///
/// # Errors
/// [`SynthesizeError`]; the vectors then hold nothing of use.
pub fn synthesize(
    circuit: Box<dyn AnyCircuit>,
    matrices: Matrices<'_, '_>,
    a: &mut [Scalar],
    b: &mut [Scalar],
    aux: &mut [Scalar],
    max_inputs: usize,
    checkpoint: &dyn Checkpoint,
) -> Result<Synthesized, SynthesizeError> {
    if let Matrices::Compiled(compiled) = matrices {
        let mut witness = Witness::new(aux, max_inputs, checkpoint);
        let done = circuit.synthesize_into(&mut witness);
        unless_stopped(witness.stopped(), done)?;
        return Ok(compiled.evaluate(witness, a, b, checkpoint)?);
    }
    let mut assignment = Assignment::new(a, b, aux, max_inputs, checkpoint);
    let done = match matrices {
        Matrices::Recorded(recorder) => {
            circuit.synthesize_into(&mut Both { assignment: &mut assignment, recorder })
        }
        _ => circuit.synthesize_into(&mut assignment),
    };
    unless_stopped(assignment.stopped(), done)?;
    Ok(assignment.finish()?)
}

/// A sink that stopped says why; the error it stopped the circuit with does not.
fn unless_stopped(
    stopped: Option<Stopped>,
    done: Result<(), SynthesisError>,
) -> Result<(), SynthesizeError> {
    match stopped {
        Some(why) => Err(why.into()),
        None => Ok(done?),
    }
}

/// Proves and records.
struct Both<'s, 'a, 'r> {
    assignment: &'s mut Assignment<'a>,
    recorder: &'s mut Recorder<'r>,
}

impl ConstraintSink for Both<'_, '_, '_> {
    fn wants_values(&self) -> bool {
        true
    }

    fn wants_c(&self) -> bool {
        false
    }

    fn input(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.recorder.record_input();
        self.assignment.input(value)
    }

    fn aux(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.recorder.record_aux();
        self.assignment.aux(value)
    }

    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        c: LinearCombination<Scalar>,
    ) {
        self.recorder.record_row(&a, &b);
        self.assignment.enforce(a, b, c);
    }
}
