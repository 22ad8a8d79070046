//! The prover's sink: a circuit's witness, and A and B evaluated row by row as they stream past.
//!
//! Nothing is stored but what the proof needs: two domain-sized vectors, the witness, three density
//! bitmaps. C is never evaluated: for a satisfied witness it is the product of A and B, and for an
//! unsatisfied one the proof is invalid either way and verification catches it.

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;
use ff::Field;

use super::{ConstraintSink, Density, Stopped, Witness};
use crate::device::Checkpoint;

/// What [`Assignment`] fills: slices of the length that the parameters call for.
pub struct Assignment<'a> {
    witness: Witness<'a>,
    a: &'a mut [Scalar],
    b: &'a mut [Scalar],
    a_aux: Density,
    b_inputs: Density,
    b_aux: Density,
}

/// A synthesised circuit, less the vectors that the caller owns.
#[derive(Debug, PartialEq, Eq)]
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
    /// size, all zero) and the auxiliary variables to `aux`.
    pub fn new(
        a: &'a mut [Scalar],
        b: &'a mut [Scalar],
        aux: &'a mut [Scalar],
        max_inputs: usize,
        checkpoint: &'a dyn Checkpoint,
    ) -> Self {
        let (a_aux, b_aux) = (Density::with_capacity(aux.len()), Density::with_capacity(aux.len()));
        let witness = Witness::new(aux, max_inputs, checkpoint);
        Self { witness, a, b, a_aux, b_inputs: Density::default(), b_aux }
    }

    /// The result, or why there is none although the circuit itself had no complaint.
    pub fn finish(self) -> Result<Synthesized, Stopped> {
        match self.stopped() {
            Some(why) => Err(why),
            None => Ok(Synthesized {
                rows: self.witness.rows(),
                aux: self.witness.aux_values().len(),
                inputs: self.witness.into_inputs(),
                a_aux: self.a_aux,
                b_inputs: self.b_inputs,
                b_aux: self.b_aux,
            }),
        }
    }

    /// Why synthesis returned an error, when it was this sink's doing.
    pub fn stopped(&self) -> Option<Stopped> {
        self.witness.stopped()
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
        self.witness.input(value)?;
        self.b_inputs.push();
        Ok(())
    }

    fn aux(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.witness.aux(value)?;
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
        let row = self.witness.rows();
        if row == self.a.len() {
            self.witness.stop(Stopped::TooLarge { what: "constraints", room: self.a.len() });
            return;
        }
        self.a[row] = evaluate(&a, &self.witness);
        self.a_aux.mark(a.iter_aux());
        self.b[row] = evaluate(&b, &self.witness);
        self.b_inputs.mark(b.iter_inputs());
        self.b_aux.mark(b.iter_aux());
        self.witness.skip();
    }
}

/// The combination's value.
fn evaluate(lc: &LinearCombination<Scalar>, witness: &Witness<'_>) -> Scalar {
    let mut sum = Scalar::ZERO;
    lc.iter_inputs().for_each(|(i, k)| add_term(&mut sum, &witness.input_values()[*i], k));
    lc.iter_aux().for_each(|(i, k)| add_term(&mut sum, &witness.aux_values()[*i], k));
    sum
}

/// Adds `value · coefficient`. Most coefficients are 1 or −1 and most values 0 or 1, so a product
/// is seldom needed.
#[inline]
pub(super) fn add_term(sum: &mut Scalar, value: &Scalar, coefficient: &Scalar) {
    if *value == Scalar::ZERO {
    } else if *value == Scalar::ONE {
        *sum += coefficient;
    } else if *coefficient == Scalar::ONE {
        *sum += value;
    } else {
        *sum += *value * coefficient;
    }
}
