//! The prover's sink: a circuit's witness, and A and B evaluated row by row as they stream past.
//!
//! Nothing is stored but what the proof needs: two domain-sized vectors, the witness, three density
//! bitmaps. C is never evaluated: for a satisfied witness it is the product of A and B, and for an
//! unsatisfied one the proof is invalid either way and verification catches it.
//!
//! The vectors' lengths come from the parameters. A circuit that wants more rows or variables than
//! they have is another circuit: synthesis ends with an error instead of a wrong proof.

use std::io;

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;
use ff::Field;

use super::{ConstraintSink, Density};
use crate::device::{Checkpoint, Interrupted};

/// Variables between two looks at the checkpoint: some milliseconds of synthesis.
const CHECKPOINT_EVERY: usize = 1 << 13;

/// What [`Assignment`] fills: slices of the length that the parameters call for.
pub struct Assignment<'a> {
    a: &'a mut [Scalar],
    b: &'a mut [Scalar],
    witness: &'a mut [Scalar],
    inputs: Vec<Scalar>,
    max_inputs: usize,
    rows: usize,
    aux: usize,
    a_aux: Density,
    b_inputs: Density,
    b_aux: Density,
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

/// A synthesised circuit, less the vectors that the caller owns.
#[derive(Debug)]
pub struct Synthesized {
    /// The public inputs, the constant one first.
    pub inputs: Vec<Scalar>,
    /// Constraints: rows of the domain that are in use.
    pub rows: usize,
    /// Auxiliary variables.
    pub aux: usize,
    /// Auxiliary variables with a non-zero coefficient in A.
    pub a_aux: Density,
    /// Inputs with a non-zero coefficient in B.
    pub b_inputs: Density,
    /// Auxiliary variables with a non-zero coefficient in B.
    pub b_aux: Density,
}

impl<'a> Assignment<'a> {
    /// A sink that writes A's and B's evaluations to `a` and `b` (n scalars each, n the domain's
    /// size, all zero) and the auxiliary variables to `witness`.
    pub fn new(
        a: &'a mut [Scalar],
        b: &'a mut [Scalar],
        witness: &'a mut [Scalar],
        max_inputs: usize,
        checkpoint: &'a dyn Checkpoint,
    ) -> Self {
        let aux = witness.len();
        Self {
            a,
            b,
            witness,
            inputs: Vec::new(),
            max_inputs,
            rows: 0,
            aux: 0,
            a_aux: Density::with_capacity(aux),
            b_inputs: Density::default(),
            b_aux: Density::with_capacity(aux),
            checkpoint,
            stopped: None,
        }
    }

    /// The result, or why there is none although the circuit itself had no complaint.
    pub fn finish(self) -> Result<Synthesized, Stopped> {
        if let Some(why) = self.stopped {
            return Err(why);
        }
        Ok(Synthesized {
            inputs: self.inputs,
            rows: self.rows,
            aux: self.aux,
            a_aux: self.a_aux,
            b_inputs: self.b_inputs,
            b_aux: self.b_aux,
        })
    }

    /// Why synthesis returned an error, when it was this sink's doing.
    pub fn stopped(&self) -> Option<Stopped> {
        self.stopped
    }

    fn stop(&mut self, why: impl Into<Stopped>) -> SynthesisError {
        self.stopped = Some(why.into());
        io::Error::from(io::ErrorKind::Interrupted).into()
    }
}

impl ConstraintSink for Assignment<'_> {
    fn wants_values(&self) -> bool {
        true
    }

    fn wants_c(&self) -> bool {
        false
    }

    fn input(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        if self.inputs.len() == self.max_inputs {
            return Err(self.stop(Stopped::TooLarge { what: "inputs", room: self.max_inputs }));
        }
        self.inputs.push(value.ok_or(SynthesisError::AssignmentMissing)?);
        self.b_inputs.push();
        Ok(())
    }

    fn aux(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        if self.stopped.is_some() || self.aux == self.witness.len() {
            let why = Stopped::TooLarge { what: "variables", room: self.witness.len() };
            return Err(self.stop(self.stopped.unwrap_or(why)));
        }
        if self.aux.is_multiple_of(CHECKPOINT_EVERY) {
            self.checkpoint.check().map_err(|why| self.stop(why))?;
        }
        self.witness[self.aux] = value.ok_or(SynthesisError::AssignmentMissing)?;
        self.aux += 1;
        self.a_aux.push();
        self.b_aux.push();
        Ok(())
    }

    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        _: LinearCombination<Scalar>,
    ) {
        if self.rows == self.a.len() {
            self.stop(Stopped::TooLarge { what: "constraints", room: self.a.len() });
            return;
        }
        let witness = &self.witness[..self.aux];
        self.a[self.rows] = evaluate(&a, &self.inputs, witness, None, &mut self.a_aux);
        self.b[self.rows] =
            evaluate(&b, &self.inputs, witness, Some(&mut self.b_inputs), &mut self.b_aux);
        self.rows += 1;
    }
}

/// The combination's value; marks the variables that have a non-zero coefficient in it. Most
/// coefficients are 1 or −1 and most values 0 or 1, so a product is seldom needed.
fn evaluate(
    lc: &LinearCombination<Scalar>,
    inputs: &[Scalar],
    aux: &[Scalar],
    mut input_density: Option<&mut Density>,
    aux_density: &mut Density,
) -> Scalar {
    let mut sum = Scalar::ZERO;
    for (i, coefficient) in lc.iter_inputs() {
        if coefficient.is_zero_vartime() {
            continue;
        }
        add_term(&mut sum, &inputs[*i], coefficient);
        if let Some(density) = input_density.as_deref_mut() {
            density.set(*i);
        }
    }
    for (i, coefficient) in lc.iter_aux() {
        if coefficient.is_zero_vartime() {
            continue;
        }
        add_term(&mut sum, &aux[*i], coefficient);
        aux_density.set(*i);
    }
    sum
}

/// Adds `value · coefficient`.
#[inline]
pub(super) fn add_term(sum: &mut Scalar, value: &Scalar, coefficient: &Scalar) {
    if value.is_zero_vartime() {
    } else if *value == Scalar::ONE {
        *sum += coefficient;
    } else if *coefficient == Scalar::ONE {
        *sum += value;
    } else {
        *sum += *value * coefficient;
    }
}
