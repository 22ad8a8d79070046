//! How big a circuit is, and so how many points of each query its parameters hold.

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;
use ff::Field;

use super::Counts;
use crate::circuit::{AnyCircuit, ConstraintSink};

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
            inputs: counter.inputs.len,
            aux: counter.aux.len,
            constraints: counter.constraints,
            dense_a: counter.inputs.count(A) + counter.aux.count(A),
            dense_b: counter.inputs.count(B) + counter.aux.count(B),
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

const A: usize = 0;
const B: usize = 1;

/// One bit a variable and matrix: whether it has a non-zero coefficient there.
#[derive(Default)]
struct Density {
    len: usize,
    bits: [Vec<u64>; 2],
}

impl Density {
    fn push(&mut self) {
        if self.len.is_multiple_of(64) {
            self.bits.iter_mut().for_each(|bits| bits.push(0));
        }
        self.len += 1;
    }

    fn count(&self, matrix: usize) -> usize {
        self.bits[matrix].iter().map(|word| word.count_ones() as usize).sum()
    }

    fn mark<'a>(&mut self, matrix: usize, terms: impl Iterator<Item = (&'a usize, &'a Scalar)>) {
        for (&variable, coefficient) in terms {
            if !coefficient.is_zero_vartime() {
                self.bits[matrix][variable / 64] |= 1 << (variable % 64);
            }
        }
    }
}

#[derive(Default)]
struct Counter {
    inputs: Density,
    aux: Density,
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
        self.inputs.push();
        Ok(())
    }

    fn aux(&mut self, _: Option<Scalar>) -> Result<(), SynthesisError> {
        self.aux.push();
        Ok(())
    }

    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        _: LinearCombination<Scalar>,
    ) {
        for (matrix, terms) in [(A, a), (B, b)] {
            self.inputs.mark(matrix, terms.iter_inputs());
            self.aux.mark(matrix, terms.iter_aux());
        }
        self.constraints += 1;
    }
}
