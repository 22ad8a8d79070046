//! How big a circuit is, and so how many points of each query its parameters hold.

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;

use super::Counts;
use crate::circuit::{AnyCircuit, ConstraintSink, Density};

/// A circuit's size, the constant one and the `x · 0 = 0` constraints a public input included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CircuitSize {
    /// Public inputs.
    pub inputs: usize,
    /// Witness variables.
    pub aux: usize,
    /// Constraints.
    pub constraints: usize,
    /// Variables with a non-zero coefficient in some A.
    pub dense_a: usize,
    /// Variables with a non-zero coefficient in some B.
    pub dense_b: usize,
}

impl CircuitSize {
    /// Counts a blank circuit; nothing of it is stored but two bits a variable.
    ///
    /// # Errors
    /// What the circuit's own synthesis fails with.
    pub fn of(circuit: Box<dyn AnyCircuit>) -> Result<Self, SynthesisError> {
        let mut counter = Counter::default();
        circuit.synthesize_into(&mut counter)?;
        Ok(Self {
            inputs: counter.a_inputs.len(),
            aux: counter.a_aux.len(),
            constraints: counter.constraints,
            dense_a: counter.a_inputs.ones() + counter.a_aux.ones(),
            dense_b: counter.b_inputs.ones() + counter.b_aux.ones(),
        })
    }

    /// The evaluation domain's size, 2^k.
    pub fn domain(&self) -> usize {
        self.constraints.next_power_of_two()
    }

    /// How many points of each query the circuit's parameters hold.
    pub fn counts(&self) -> Counts {
        Counts {
            ic: self.inputs as u64,
            h: self.domain() as u64 - 1,
            l: self.aux as u64,
            a: self.dense_a as u64,
            b_g1: self.dense_b as u64,
            b_g2: self.dense_b as u64,
        }
    }
}

/// Two bits a variable: whether it has a non-zero coefficient in A, in B.
#[derive(Default)]
struct Counter {
    a_inputs: Density,
    a_aux: Density,
    b_inputs: Density,
    b_aux: Density,
    constraints: usize,
}

impl ConstraintSink for Counter {
    fn wants_values(&self) -> bool {
        false
    }

    fn wants_c(&self) -> bool {
        false
    }

    fn input(&mut self, _: Option<Scalar>) -> Result<(), SynthesisError> {
        self.a_inputs.push();
        self.b_inputs.push();
        Ok(())
    }

    fn aux(&mut self, _: Option<Scalar>) -> Result<(), SynthesisError> {
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
        self.a_inputs.mark(a.iter_inputs());
        self.a_aux.mark(a.iter_aux());
        self.b_inputs.mark(b.iter_inputs());
        self.b_aux.mark(b.iter_aux());
        self.constraints += 1;
    }
}
