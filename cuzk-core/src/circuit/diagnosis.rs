//! Why a proof did not verify: the first constraint that the witness violates.

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;
use ff::Field;

use super::assignment::add_term;
use super::{AnyCircuit, ConstraintSink};

/// What a look at a circuit's every constraint found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Diagnosis {
    /// All constraints hold: the fault is not in the witness.
    Satisfied {
        /// How many there are.
        rows: usize,
    },
    /// The first constraint that does not hold.
    UnsatisfiedAt {
        /// Its row, from 0.
        row: usize,
    },
    /// The circuit could not be synthesised.
    Failed(String),
}

impl std::fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Satisfied { rows } => write!(f, "the witness satisfies all {rows} constraints"),
            Self::UnsatisfiedAt { row } => write!(f, "the witness is unsatisfied at row {row}"),
            Self::Failed(why) => write!(f, "the circuit cannot be synthesised: {why}"),
        }
    }
}

/// Synthesises `circuit` and checks `a · b = c` row by row. Holds the witness only.
pub fn diagnose(circuit: Box<dyn AnyCircuit>) -> Diagnosis {
    let mut check = RowCheck::default();
    match circuit.synthesize_into(&mut check) {
        Err(why) => Diagnosis::Failed(why.to_string()),
        Ok(()) => match check.unsatisfied {
            Some(row) => Diagnosis::UnsatisfiedAt { row },
            None => Diagnosis::Satisfied { rows: check.rows },
        },
    }
}

#[derive(Default)]
struct RowCheck {
    inputs: Vec<Scalar>,
    aux: Vec<Scalar>,
    rows: usize,
    unsatisfied: Option<usize>,
}

impl RowCheck {
    fn evaluate(&self, lc: &LinearCombination<Scalar>) -> Scalar {
        let mut sum = Scalar::ZERO;
        lc.iter_inputs().for_each(|(i, k)| add_term(&mut sum, &self.inputs[*i], k));
        lc.iter_aux().for_each(|(i, k)| add_term(&mut sum, &self.aux[*i], k));
        sum
    }
}

impl ConstraintSink for RowCheck {
    fn wants_values(&self) -> bool {
        true
    }

    fn input(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.inputs.push(value.ok_or(SynthesisError::AssignmentMissing)?);
        Ok(())
    }

    fn aux(&mut self, value: Option<Scalar>) -> Result<(), SynthesisError> {
        self.aux.push(value.ok_or(SynthesisError::AssignmentMissing)?);
        Ok(())
    }

    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        c: LinearCombination<Scalar>,
    ) {
        if self.unsatisfied.is_none() && self.evaluate(&a) * self.evaluate(&b) != self.evaluate(&c)
        {
            self.unsatisfied = Some(self.rows);
        }
        self.rows += 1;
    }
}
