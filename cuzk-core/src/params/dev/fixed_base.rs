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

/// Scalars advanced together: enough for their inversion to cost nothing, few enough for the cache.
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
    /// What a table for about so many multiples takes.
    pub fn bytes(multiples: usize) -> u64 {
        let window = cheapest_window(multiples);
        (windows(window) * (1 << (window - 1)) * size_of::<P>()) as u64
    }

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
        let half = 1 << (self.window - 1);
        let mut digits = vec![0; scalars.len() * windows(self.window)];
        for (i, scalar) in scalars.iter().enumerate() {
            let of_windows = digits.iter_mut().skip(i).step_by(scalars.len());
            of_windows.zip(signed_digits(scalar, self.window)).for_each(|(to, digit)| *to = digit);
        }
        let mut sums = Sums::new(scalars.len());
        let mut entries = Vec::with_capacity(scalars.len());
        for (row, digits) in self.table.chunks_exact(half).zip(digits.chunks(scalars.len().max(1)))
        {
            // Gathered first: these loads miss the near caches, and here none waits for another.
            entries.clear();
            let index = |digit: &i32| digit.unsigned_abs().max(1) as usize - 1;
            entries.extend(digits.iter().map(|digit| row[index(digit)].coordinates()));
            sums.add(digits, &entries);
        }
        out.iter_mut().zip(sums.sums).for_each(|(out, sum)| {
            *out = sum.map_or(P::default(), |(x, y)| P::from_coordinates(x, y));
        });
    }
}

/// Sums in progress, all of which take their next entry together.
///
/// A sum over lower windows and an entry of this one are never equal or opposite: with the digits
/// of windows below j a sum is less than 2^(wj) in absolute value, an entry at least that, and no
/// multiple of r lies between, as all stay below r. So every denominator is invertible.
struct Sums<F> {
    sums: Vec<Option<(F, F)>>,
    /// Additions that wait for their slope: which sum, and the product of the denominators before.
    waiting: Vec<(usize, F)>,
}

impl<F: Field> Sums<F> {
    fn new(count: usize) -> Self {
        Self { sums: vec![None; count], waiting: Vec::with_capacity(count) }
    }

    /// Adds to each sum its entry, with the sign of its digit; nothing where the digit is zero.
    fn add(&mut self, digits: &[i32], entries: &[(F, F)]) {
        let signed = |digit: i32, y: F| if digit < 0 { -y } else { y };
        let mut product = F::ONE;
        for (i, (digit, (entry_x, entry_y))) in digits.iter().zip(entries).enumerate() {
            match &mut self.sums[i] {
                _ if *digit == 0 => {}
                sum @ None => *sum = Some((*entry_x, signed(*digit, *entry_y))),
                Some((x, _)) => {
                    self.waiting.push((i, product));
                    product *= *entry_x - *x;
                }
            }
        }
        let inverse: Option<F> = product.invert().into();
        let mut inverse = inverse.expect("no sum meets its own entry or its opposite: see above");
        while let Some((i, before)) = self.waiting.pop() {
            let Some((x, y)) = &mut self.sums[i] else { continue };
            let (entry_x, entry_y) = entries[i];
            let slope = (signed(digits[i], entry_y) - *y) * (inverse * before);
            inverse *= entry_x - *x;
            let new_x = slope.square() - *x - entry_x;
            *y = slope * (*x - new_x) - *y;
            *x = new_x;
        }
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
