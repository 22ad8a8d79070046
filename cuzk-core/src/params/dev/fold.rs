//! A circuit's polynomials at a secret point: A_i(tau), B_i(tau), C_i(tau) of every variable i, summed
//! up while the blank circuit streams past. No matrix is stored: row j of the constraints adds its
//! coefficients times the j-th Lagrange polynomial at tau.

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;
use ff::{Field, PrimeField};
use rayon::prelude::*;

use crate::{
    circuit::{AnyCircuit, ConstraintSink},
    params::CircuitSize,
};

/// The polynomials of all variables at tau, the inputs' before the others'.
pub(super) struct Folded {
    pub a: Vec<Scalar>,
    pub b: Vec<Scalar>,
    pub c: Vec<Scalar>,
}

/// Folds a circuit of the given size.
pub(super) fn fold(
    circuit: Box<dyn AnyCircuit>,
    size: &CircuitSize,
    tau: &Scalar,
) -> Result<Folded, SynthesisError> {
    let zeros = || vec![Scalar::ZERO; size.inputs + size.aux];
    let mut fold = Fold {
        lagrange: lagrange(size, tau)?,
        row: 0,
        inputs: size.inputs,
        matrices: [zeros(), zeros(), zeros()],
    };
    circuit.synthesize_into(&mut fold)?;
    let [a, b, c] = fold.matrices;
    Ok(Folded { a, b, c })
}

struct Fold {
    /// L_j(tau), one a constraint.
    lagrange: Vec<Scalar>,
    row: usize,
    inputs: usize,
    matrices: [Vec<Scalar>; 3],
}

impl ConstraintSink for Fold {
    fn wants_values(&self) -> bool {
        false
    }

    fn input(&mut self, _: Option<Scalar>) -> Result<(), SynthesisError> {
        Ok(())
    }

    fn aux(&mut self, _: Option<Scalar>) -> Result<(), SynthesisError> {
        Ok(())
    }

    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        c: LinearCombination<Scalar>,
    ) {
        let weight = self.lagrange[self.row];
        for (sums, terms) in self.matrices.iter_mut().zip([a, b, c]) {
            let mut add = |variable: usize, coefficient: &Scalar| {
                sums[variable] += weight * coefficient;
            };
            terms.iter_inputs().for_each(|(input, coefficient)| add(*input, coefficient));
            terms.iter_aux().for_each(|(aux, coefficient)| add(self.inputs + aux, coefficient));
        }
        self.row += 1;
    }
}

/// The first Lagrange polynomials of the domain of n = 2^k elements at tau, as many as there are
/// constraints: L_j(tau) = w^j (tau^n − 1) / (n (tau − w^j)).
fn lagrange(size: &CircuitSize, tau: &Scalar) -> Result<Vec<Scalar>, SynthesisError> {
    const CHUNK: usize = 1 << 14;
    let n = size.domain() as u64;
    let root = root_of_unity(n.trailing_zeros())?;
    let common: Option<Scalar> = Scalar::from(n).invert().into();
    let common = common.ok_or(SynthesisError::DivisionByZero)? * vanishing(size, tau);
    let mut values = vec![Scalar::ZERO; size.constraints];
    values.par_chunks_mut(CHUNK).enumerate().try_for_each(|(i, values)| {
        let first = root.pow_vartime([(i * CHUNK) as u64]);
        let mut power = first;
        for value in values.iter_mut() {
            *value = *tau - power;
            power *= root;
        }
        invert_all(values)?;
        let mut power = common * first;
        for value in values {
            *value *= power;
            power *= root;
        }
        Ok::<(), SynthesisError>(())
    })?;
    Ok(values)
}

/// Z(tau) = tau^n − 1.
pub(super) fn vanishing(size: &CircuitSize, tau: &Scalar) -> Scalar {
    tau.pow_vartime([size.domain() as u64]) - Scalar::ONE
}

/// Of order 2^k.
fn root_of_unity(k: u32) -> Result<Scalar, SynthesisError> {
    if k > Scalar::S {
        return Err(SynthesisError::PolynomialDegreeTooLarge);
    }
    Ok((k..Scalar::S).fold(Scalar::ROOT_OF_UNITY, |root, _| root.square()))
}

/// Inverts all with one inversion; a zero among them is an error.
fn invert_all(values: &mut [Scalar]) -> Result<(), SynthesisError> {
    let mut product = Scalar::ONE;
    let before: Vec<Scalar> = values
        .iter()
        .map(|value| {
            let before = product;
            product *= value;
            before
        })
        .collect();
    let inverse: Option<Scalar> = product.invert().into();
    let mut inverse = inverse.ok_or(SynthesisError::DivisionByZero)?;
    for (value, before) in values.iter_mut().zip(before).rev() {
        let inverted = inverse * before;
        inverse *= *value;
        *value = inverted;
    }
    Ok(())
}
