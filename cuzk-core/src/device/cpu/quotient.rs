//! Groth16's quotient `H = (A B - C) / (x^n - 1)` in two domain-sized vectors and six transforms.
//!
//! With a satisfied witness `C`'s values on the domain are the products of `A`'s and `B`'s, and
//! `A B = low + x^n high` has `C = low + high` and `H = high`. On the coset `x^n = -1` the product is
//! `D = low - high`, so `H = (C - D) / 2`. An unsatisfied witness gives some other polynomial, and a
//! proof that does not verify.

use blstrs::Scalar;
use ff::{Field, PrimeField};

use super::batches::in_chunks;
use super::domain::{Domain, Points};
use super::lanes::{Job, Lanes, Multiply, Twiddle};
use super::reversal::{self, Tiling, Unscale};
use crate::device::{Checkpoint, Interrupted};

/// Leaves the coefficients of `H`, lowest first, in `a`; the last of the `n` is zero.
///
/// `a` and `b` hold the values `A(w^i)` and `B(w^i)`, zero from row `c.len()` on; `c` is room for one
/// scalar per constraint, with any content. At most these three live at once: `c` is dropped after the
/// fourth transform (it may take the witness's room, if that is dropped before), `b` at the end.
///
/// # Errors
/// [`Interrupted`]: `a` then holds nothing of use.
///
/// # Panics
/// If `a` or `b` is not as long as the domain, or `c` is longer.
pub fn quotient(
    domain: &Domain,
    a: &mut [Scalar],
    mut b: impl AsMut<[Scalar]>,
    mut c: impl AsMut<[Scalar]>,
    checkpoint: &dyn Checkpoint,
) -> Result<(), Interrupted> {
    let b = b.as_mut();
    let multiply = |x: &mut _, y: &_| domain.kernel().run(Multiply { x, y });
    let rows = c.as_mut().len();
    in_chunks(c.as_mut(), checkpoint, |c, at| {
        c.copy_from_slice(&a[at.clone()]);
        multiply(c, &b[at]);
    })?;

    for x in [&mut *a, &mut *b] {
        domain.interpolate(x, checkpoint)?;
        domain.evaluate(x, Points::Coset, checkpoint)?;
    }
    in_chunks(a, checkpoint, |a, at| multiply(a, &b[at]))?;

    let (with_rows, without) = b.split_at_mut(rows);
    let products = c.as_mut();
    in_chunks(with_rows, checkpoint, |b, at| b.copy_from_slice(&products[at]))?;
    drop(c);
    in_chunks(without, checkpoint, |b, _| b.fill(Scalar::ZERO))?;

    domain.interpolate(a, checkpoint)?;
    domain.interpolate(b, checkpoint)?;
    half_difference(domain, a, b, checkpoint)
}

/// `(C - D) / 2` in natural order in `d`, from what [`Domain::interpolate`] made of `C`'s values on
/// the domain, and of `n^2` times `D`'s values on the coset.
fn half_difference(
    domain: &Domain,
    d: &mut [Scalar],
    c: &[Scalar],
    checkpoint: &dyn Checkpoint,
) -> Result<(), Interrupted> {
    let tiling = Tiling::new(domain.log2_size());
    let half = domain.size_inverse() * Scalar::TWO_INV;
    let of_c = domain.kernel().twiddle(half);
    let of_d = Unscale::coset(domain, half * domain.size_inverse().square());
    reversal::reverse(d, checkpoint, |tile, d| {
        of_d.apply(tile, d);
        for (row, d) in d.chunks_exact_mut(tiling.side()).enumerate() {
            let c = &c[tiling.row(tile, row)..][..d.len()];
            domain.kernel().run(SubtractFrom { c, w: of_c, d });
        }
    })
}

/// `d = w c - d`, slices of one length and of whole groups.
struct SubtractFrom<'a> {
    c: &'a [Scalar],
    w: Twiddle,
    d: &'a mut [Scalar],
}

impl Job for SubtractFrom<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let w = L::splat(self.w);
        for (c, d) in self.c.chunks_exact(L::WIDTH).zip(self.d.chunks_exact_mut(L::WIDTH)) {
            // SAFETY: each chunk holds one group.
            unsafe {
                let difference = L::load(c.as_ptr(), 1).scale(w).minus(L::load(d.as_ptr(), 1));
                difference.store(d.as_mut_ptr(), 1);
            }
        }
    }
}

#[cfg(test)]
mod tests;
