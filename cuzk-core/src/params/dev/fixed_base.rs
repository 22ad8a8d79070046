//! Many multiples of one point: a table of its multiples, and additions in affine coordinates that
//! share their inversions.
//!
//! A scalar is cut into signed digits of w bits, so a multiple is the sum of ⌊254/w⌋ + 1 entries
//! (scalars above r/2 are negated first: then 254 bits are enough). A thousand sums advance side by
//! side, digit by digit; the slopes' denominators of one step are inverted together, so an addition
//! costs six products instead of a mixed addition's eleven and a share of the normalisation.

use blstrs::Scalar;
use ff::{Field, PrimeField};
use group::{
    prime::{PrimeCurve, PrimeCurveAffine},
    Curve, Group,
};
use rayon::prelude::*;

use crate::params::point::Point;

/// Scalars advanced together. More would leave the second-level cache, fewer share less.
pub(super) const BATCH: usize = 1024;
/// Larger tables would leave the last-level cache.
const MAX_WINDOW: usize = 16;

/// A table of multiples of one point.
pub(super) struct FixedBase<P> {
    window: usize,
    /// For each window j the multiples d · 2^(window · j), 1 ≤ d ≤ 2^(window − 1).
    table: Vec<P>,
}

impl<P> FixedBase<P>
where
    P: Point + PrimeCurveAffine<Scalar = Scalar>,
    P::Curve: PrimeCurve<Affine = P>,
{
    /// A table for about so many multiples of `base`, which is not infinity.
    pub fn new(base: P::Curve, multiples: usize) -> Self {
        let window = cheapest_window(multiples);
        let half = 1 << (window - 1);
        let mut table = vec![P::default(); windows(window) * half];
        let mut first = base;
        let firsts: Vec<P::Curve> = (0..windows(window))
            .map(|_| {
                let this = first;
                (0..window).for_each(|_| first = first.double());
                this
            })
            .collect();
        table.par_chunks_mut(half).zip(firsts).for_each(|(row, first)| {
            let mut sum = P::Curve::identity();
            let multiples: Vec<P::Curve> = row
                .iter()
                .map(|_| {
                    sum += first;
                    sum
                })
                .collect();
            P::Curve::batch_normalize(&multiples, row);
        });
        Self { window, table }
    }

    /// `out[i]` = `scalars[i]` · base; infinity for zero. Best called with [`BATCH`] scalars.
    pub fn multiples(&self, scalars: &[Scalar], out: &mut [P]) {
        let windows = windows(self.window);
        let digits: Vec<i32> =
            scalars.iter().flat_map(|scalar| signed_digits(scalar, self.window)).collect();
        let mut sums = Sums::new(scalars.len());
        for window in 0..windows {
            for i in 0..scalars.len() {
                let digit = digits[i * windows + window];
                if digit != 0 {
                    sums.add(i, self.entry(window, digit));
                }
            }
            sums.settle();
        }
        out.iter_mut().zip(sums.sums).for_each(|(out, sum)| {
            *out = sum.map_or(P::default(), |(x, y)| P::from_coordinates(x, y));
        });
    }

    /// The coordinates of `digit` · 2^(w · window) · base.
    fn entry(&self, window: usize, digit: i32) -> (P::Coordinate, P::Coordinate) {
        let half = 1 << (self.window - 1);
        let index = window * half + digit.unsigned_abs() as usize - 1;
        let (x, y) = self.table[index].coordinates();
        (x, if digit < 0 { -y } else { y })
    }
}

/// Sums in progress, and one addition to each of them that waits for its slope.
///
/// A sum over lower windows and an entry of this one are never equal or opposite: with the digits
/// of windows below j a sum is less than 2^(wj) in absolute value, an entry at least that, and no
/// multiple of r lies between, as all stay below r. So every denominator is invertible.
struct Sums<F> {
    sums: Vec<Option<(F, F)>>,
    waiting: Vec<Waiting<F>>,
    /// The product of the waiting denominators.
    product: F,
}

struct Waiting<F> {
    sum: usize,
    entry: (F, F),
    denominator: F,
    /// The product of the denominators before this one.
    before: F,
}

impl<F: Field> Sums<F> {
    fn new(count: usize) -> Self {
        Self { sums: vec![None; count], waiting: Vec::with_capacity(count), product: F::ONE }
    }

    /// Adds `entry` to sum `i`, once before each [`Sums::settle`].
    fn add(&mut self, i: usize, entry: (F, F)) {
        match &mut self.sums[i] {
            sum @ None => *sum = Some(entry),
            Some((x, _)) => {
                let denominator = entry.0 - *x;
                self.waiting.push(Waiting { sum: i, entry, denominator, before: self.product });
                self.product *= denominator;
            }
        }
    }

    /// Inverts all denominators at once and completes the additions.
    fn settle(&mut self) {
        let inverse: Option<F> = self.product.invert().into();
        let mut inverse = inverse.expect("no sum meets its own entry or its opposite: see above");
        while let Some(Waiting { sum, entry, denominator, before }) = self.waiting.pop() {
            let slope_denominator = inverse * before;
            inverse *= denominator;
            if let Some((x, y)) = &mut self.sums[sum] {
                let slope = (entry.1 - *y) * slope_denominator;
                let new_x = slope.square() - *x - entry.0;
                *y = slope * (*x - new_x) - *y;
                *x = new_x;
            }
        }
        self.product = F::ONE;
    }
}

/// Digits a scalar of 254 bits has, the last one with room for a carry.
fn windows(window: usize) -> usize {
    254 / window + 1
}

/// Of table and multiples together: an addition in the table costs about three of the others.
fn cheapest_window(multiples: usize) -> usize {
    (2..=MAX_WINDOW)
        .min_by_key(|&window| windows(window) * (multiples + 3 * (1 << (window - 1))))
        .unwrap_or(MAX_WINDOW)
}

/// `scalar` as digits between −2^(window−1) and 2^(window−1), least significant first.
fn signed_digits(scalar: &Scalar, window: usize) -> impl Iterator<Item = i32> {
    let above_half = |bytes: &[u8; 32]| {
        let half = (-Scalar::ONE * Scalar::TWO_INV).to_repr();
        bytes.iter().rev().gt(half.iter().rev())
    };
    let plain = scalar.to_repr();
    let negate = above_half(&plain);
    let bytes = if negate { (-scalar).to_repr() } else { plain };
    let mut carry = 0;
    (0..windows(window)).map(move |j| {
        let digit = bits(&bytes, j * window, window) + carry;
        carry = i32::from(digit > 1 << (window - 1));
        let digit = digit - (carry << window);
        if negate {
            -digit
        } else {
            digit
        }
    })
}

/// `count` ≤ 16 bits from bit `from` on.
fn bits(bytes: &[u8; 32], from: usize, count: usize) -> i32 {
    let mut word = [0; 4];
    let first = (from / 8).min(32);
    let here = (32 - first).min(4);
    word[..here].copy_from_slice(&bytes[first..first + here]);
    ((u32::from_le_bytes(word) >> (from % 8)) & ((1 << count) - 1)) as i32
}

#[cfg(test)]
mod tests {
    use blstrs::{G1Affine, G1Projective, G2Affine, G2Projective};
    use rand::SeedableRng;
    use rand_xorshift::XorShiftRng;

    use super::*;

    fn scalars() -> Vec<Scalar> {
        let mut rng = XorShiftRng::from_seed([7; 16]);
        let half = -Scalar::ONE * Scalar::TWO_INV;
        let mut scalars =
            vec![Scalar::ZERO, Scalar::ONE, -Scalar::ONE, half, half + Scalar::ONE, half.double()];
        scalars.extend((0..254).map(|k| Scalar::from(2).pow_vartime([k])));
        scalars.extend((0..254).map(|k| -Scalar::from(2).pow_vartime([k])));
        scalars.extend((0..64).map(|_| Scalar::random(&mut rng)));
        scalars
    }

    #[test]
    fn multiples_equal_plain_multiplication_for_every_window() {
        let scalars = scalars();
        let expected: Vec<_> =
            scalars.iter().map(|s| (G1Projective::generator() * s).to_affine()).collect();
        // Each number of multiples makes another window the cheapest.
        for multiples in [1, 10, 100, 1 << 10, 1 << 13, 1 << 17, 1 << 23] {
            let table = FixedBase::<G1Affine>::new(G1Projective::generator(), multiples);
            let mut out = vec![G1Affine::default(); scalars.len()];
            table.multiples(&scalars, &mut out);
            assert!(out == expected, "window {}", table.window);
        }
    }

    #[test]
    fn multiples_in_g2_equal_plain_multiplication() {
        let scalars = scalars();
        let table = FixedBase::<G2Affine>::new(G2Projective::generator(), 500);
        let mut out = vec![G2Affine::default(); scalars.len()];
        table.multiples(&scalars, &mut out);
        for (scalar, point) in scalars.iter().zip(out) {
            assert_eq!(point, (G2Projective::generator() * scalar).to_affine());
        }
    }
}
