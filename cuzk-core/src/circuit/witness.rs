//! A circuit's variables, without its constraints.
//!
//! The lengths come from the parameters. A circuit that wants more variables than they have is
//! another circuit: synthesis ends with an error instead of a wrong proof.

use std::io;

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;

use super::ConstraintSink;
use crate::device::{Checkpoint, Interrupted};

/// Variables between two looks at the checkpoint: some milliseconds of synthesis.
const CHECKPOINT_EVERY: usize = 1 << 13;

/// A sink of values alone: constraints are counted, their closures never called.
pub struct Witness<'a> {
    aux: &'a mut [Scalar],
    aux_len: usize,
    inputs: Vec<Scalar>,
    max_inputs: usize,
    rows: usize,
    checkpoint: &'a dyn Checkpoint,
    stopped: Option<Stopped>,
}

/// Why a synthesis ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Cancelled or shed at a checkpoint.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    /// The circuit does not belong to the parameters.
    #[error("the circuit has more {what} than the {room} its parameters are made for: these are the parameters of another circuit")]
    TooLarge {
        /// Rows, inputs or variables.
        what: &'static str,
        /// How many the parameters have room for.
        room: usize,
    },
}

impl<'a> Witness<'a> {
    /// A sink that writes the auxiliary variables to `aux`.
    pub fn new(aux: &'a mut [Scalar], max_inputs: usize, checkpoint: &'a dyn Checkpoint) -> Self {
        Self { aux, aux_len: 0, inputs: vec![], max_inputs, rows: 0, checkpoint, stopped: None }
    }

    /// The public inputs so far, the constant one first.
    pub fn input_values(&self) -> &[Scalar] {
        &self.inputs
    }

    /// The auxiliary variables so far.
    pub fn aux_values(&self) -> &[Scalar] {
        &self.aux[..self.aux_len]
    }

    /// Constraints so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Why synthesis returned an error, when it was a sink's doing, or why its result is none
    /// although the circuit itself had no complaint.
    pub fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    /// The public inputs, to keep.
    pub fn into_inputs(self) -> Vec<Scalar> {
        self.inputs
    }

    /// From now on the synthesis has failed.
    pub(super) fn stop(&mut self, why: impl Into<Stopped>) -> SynthesisError {
        self.stopped = Some(why.into());
        io::Error::from(io::ErrorKind::Interrupted).into()
    }
}

impl ConstraintSink for Witness<'_> {
    fn wants_values(&self) -> bool {
        true
    }

    fn wants_constraints(&self) -> bool {
        false
    }

    fn input(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        if self.inputs.len() == self.max_inputs {
            return Err(self.stop(Stopped::TooLarge { what: "inputs", room: self.max_inputs }));
        }
        self.inputs.push(value.ok_or(SynthesisError::AssignmentMissing)?);
        Ok(())
    }

    fn aux(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        if self.stopped.is_some() || self.aux_len == self.aux.len() {
            let why = Stopped::TooLarge { what: "variables", room: self.aux.len() };
            return Err(self.stop(self.stopped.unwrap_or(why)));
        }
        if self.aux_len.is_multiple_of(CHECKPOINT_EVERY) {
            self.checkpoint.check().map_err(|why| self.stop(why))?;
        }
        self.aux[self.aux_len] = value.ok_or(SynthesisError::AssignmentMissing)?;
        self.aux_len += 1;
        Ok(())
    }

    fn enforce(
        &mut self,
        _: LinearCombination<Scalar>,
        _: LinearCombination<Scalar>,
        _: LinearCombination<Scalar>,
    ) {
        self.rows += 1;
    }

    fn skip(&mut self) {
        self.rows += 1;
    }
}
