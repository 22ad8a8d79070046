//! Transforms between a polynomial's coefficients and its values on a power-of-two domain.
//!
//! A transform is one to three passes over memory. A pass does up to `PASS_LEVELS` butterfly
//! levels at once on tiles that fit a core's L2: a group of lanes (eight neighbouring columns, or
//! eight rows) times `2^bits` elements. Coefficients are bit-reversed inside, values natural, so
//! that no pass has to reorder anything.
//!
//! All butterflies are `(u, v) -> (u + w v, u - w v)`. At level `l`, block `b` of `2^l` multiplies by
//! `w = root(2^(l+1))^reverse(b, l)`: the polynomial mod `x^h - c^2` falls into mod `x^(h/2) - c` and mod
//! `x^(h/2) + c`. Within a tile that is a table entry, which all tiles share, times a factor of the
//! lane and level: nothing here is as large as the domain.

use blstrs::Scalar;
use ff::{Field, PrimeField};

use super::batches::{in_batches, workers, Shared};
pub use super::lanes::Kernel;
use super::lanes::{self, as_groups, Job, Lanes, Line, Twiddle, MAX_LEVELS, MAX_WIDTH};
use super::reversal::{self, Unscale, SIDE_BITS};
use crate::device::{Checkpoint, Interrupted};

/// Most levels of a pass: `2^11` groups of eight are 640 KiB.
const PASS_LEVELS: u32 = 11;

/// Below this many levels a domain cannot be cut into two passes of full groups.
const GROUPED_LEVELS: u32 = 6;

/// The `2^k` points `x` with `x^(2^k) = 1`, in the order of the powers of their generator.
#[derive(Debug)]
pub struct Domain {
    log2_size: u32,
    kernel: Kernel,
    /// From the lowest position bit to the highest.
    passes: Vec<Pass>,
    forward: Roots,
    inverse: Roots,
}

/// A domain that the field has no roots of unity for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a domain of 2^{log2_size} was asked for, and 2^{max} is the largest with a coset on which x^n = -1",
    max = Domain::MAX_LOG2_SIZE
)]
pub struct DomainTooLarge {
    /// The size asked for.
    pub log2_size: u32,
}

/// Where a polynomial is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Points {
    /// At the domain's points, `x^n = 1`.
    Domain,
    /// At the points between them, `x^n = -1`.
    Coset,
}

/// Levels done together: position bits `low .. low + bits`.
#[derive(Debug, Clone, Copy)]
struct Pass {
    low: u32,
    bits: u32,
}

/// The direction of a transform: which end of the position the levels start from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Natural order in, bit-reversed out: from the highest bit down.
    ToReversed,
    /// Bit-reversed order in, natural out: from the lowest bit up.
    ToNatural,
}

impl Domain {
    /// The largest domain's size: the field has roots of order `2^32`, and the coset takes one doubling.
    pub const MAX_LOG2_SIZE: u32 = Scalar::S - 1;

    /// A domain of `2^log2_size` points, for the fastest arithmetic that this processor has.
    ///
    /// # Errors
    /// [`DomainTooLarge`] above [`Domain::MAX_LOG2_SIZE`].
    pub fn new(log2_size: u32) -> Result<Self, DomainTooLarge> {
        Self::with_kernel(log2_size, Kernel::best())
    }

    /// A domain whose transforms use the given arithmetic (the results are the same bits).
    ///
    /// # Errors
    /// [`DomainTooLarge`] above [`Domain::MAX_LOG2_SIZE`].
    pub fn with_kernel(log2_size: u32, kernel: Kernel) -> Result<Self, DomainTooLarge> {
        Self::cut(log2_size, kernel, PASS_LEVELS)
    }

    fn cut(log2_size: u32, kernel: Kernel, pass_levels: u32) -> Result<Self, DomainTooLarge> {
        if log2_size > Self::MAX_LOG2_SIZE {
            return Err(DomainTooLarge { log2_size });
        }
        let kernel = if log2_size < GROUPED_LEVELS { Kernel::Single } else { kernel };
        let passes = passes(log2_size, pass_levels);
        let table_bits = passes.iter().map(|pass| pass.bits).fold(SIDE_BITS, u32::max);
        Ok(Self {
            log2_size,
            kernel,
            passes,
            forward: Roots::new(Scalar::ROOT_OF_UNITY, table_bits, kernel),
            inverse: Roots::new(Scalar::ROOT_OF_UNITY_INV, table_bits, kernel),
        })
    }

    /// The binary logarithm of the number of points.
    pub fn log2_size(&self) -> u32 {
        self.log2_size
    }

    /// The number of points, `n`: the length of every vector given to this domain.
    pub fn size(&self) -> usize {
        1 << self.log2_size
    }

    /// Coefficients to values on the domain, natural order, in place.
    ///
    /// # Errors
    /// [`Interrupted`]: the vector then holds nothing of use.
    ///
    /// # Panics
    /// If the vector's length is not the domain's size (so do all transforms).
    pub fn fft(&self, x: &mut [Scalar], checkpoint: &dyn Checkpoint) -> Result<(), Interrupted> {
        reversal::reverse(x, checkpoint, |_, _| ())?;
        self.evaluate(x, Points::Domain, checkpoint)
    }

    /// Values on the domain to coefficients, natural order, in place.
    ///
    /// # Errors
    /// [`Interrupted`]: the vector then holds nothing of use.
    pub fn ifft(&self, x: &mut [Scalar], checkpoint: &dyn Checkpoint) -> Result<(), Interrupted> {
        self.interpolate(x, checkpoint)?;
        let unscale = Unscale::domain(self, self.size_inverse());
        reversal::reverse(x, checkpoint, |tile, values| unscale.apply(tile, values))
    }

    /// Coefficients to values on the coset where `x^n = -1`: at `g w^i`, where `g^2 = w`.
    ///
    /// # Errors
    /// [`Interrupted`]: the vector then holds nothing of use.
    pub fn coset_fft(
        &self,
        x: &mut [Scalar],
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), Interrupted> {
        reversal::reverse(x, checkpoint, |_, _| ())?;
        self.evaluate(x, Points::Coset, checkpoint)
    }

    /// Values on the coset where `x^n = -1` to coefficients, natural order, in place.
    ///
    /// # Errors
    /// [`Interrupted`]: the vector then holds nothing of use.
    pub fn coset_ifft(
        &self,
        x: &mut [Scalar],
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), Interrupted> {
        self.interpolate(x, checkpoint)?;
        let unscale = Unscale::coset(self, self.size_inverse());
        reversal::reverse(x, checkpoint, |tile, values| unscale.apply(tile, values))
    }

    /// Bit-reversed coefficients to values in natural order.
    pub(super) fn evaluate(
        &self,
        x: &mut [Scalar],
        points: Points,
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), Interrupted> {
        self.transform(x, Order::ToNatural, &self.forward, points, checkpoint)
    }

    /// Values in natural order to `n` times the coefficients, bit-reversed. From the coset's values:
    /// to `n g^k` times coefficient `k`.
    pub(super) fn interpolate(
        &self,
        x: &mut [Scalar],
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), Interrupted> {
        self.transform(x, Order::ToReversed, &self.inverse, Points::Domain, checkpoint)
    }

    pub(super) fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// The roots with negative exponents, which undo an evaluation.
    pub(super) fn inverse(&self) -> &Roots {
        &self.inverse
    }

    /// `1 / n`.
    pub(super) fn size_inverse(&self) -> Scalar {
        Scalar::TWO_INV.pow_vartime([u64::from(self.log2_size)])
    }

    fn transform(
        &self,
        x: &mut [Scalar],
        order: Order,
        roots: &Roots,
        points: Points,
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), Interrupted> {
        assert_eq!(x.len(), self.size(), "a vector's length is its domain's size");
        let groups = roots.table.len();
        let mut workers = workers(|| lanes::scratch(groups));
        let mut run = |pass| {
            let sweep = Sweep { domain: self, pass, order, roots, points };
            sweep.run(x, &mut workers, checkpoint)
        };
        match order {
            Order::ToReversed => self.passes.iter().rev().try_for_each(|&pass| run(pass)),
            Order::ToNatural => self.passes.iter().try_for_each(|&pass| run(pass)),
        }
    }
}

/// As few passes of at most `pass_levels` as possible, of equal lengths if possible.
fn passes(log2_size: u32, pass_levels: u32) -> Vec<Pass> {
    let count = match log2_size {
        0..GROUPED_LEVELS => 1,
        _ => log2_size.div_ceil(pass_levels).max(2),
    };
    let mut low = 0;
    (0..count)
        .map(|i| {
            let bits = (log2_size - low) / (count - i);
            let pass = Pass { low, bits };
            low += bits;
            pass
        })
        .collect()
}

/// Roots of unity in one direction.
#[derive(Debug)]
pub(super) struct Roots {
    /// A primitive root of order `2^i` at `i`.
    ladder: [Scalar; Scalar::S as usize + 1],
    /// For a block `b` of any level `l`: `root(2^(l+1))^reverse(b, l)`, which does not depend on `l`.
    table: Vec<Twiddle>,
}

impl Roots {
    fn new(root: Scalar, table_bits: u32, kernel: Kernel) -> Self {
        let mut ladder = [root; Scalar::S as usize + 1];
        for i in (1..ladder.len()).rev() {
            ladder[i - 1] = ladder[i].square();
        }
        let mut table = vec![Scalar::ONE];
        for bit in 0..table_bits as usize {
            table.extend_from_within(..);
            let half = table.len() / 2;
            table[half..].iter_mut().for_each(|w| *w *= ladder[bit + 2]);
        }
        Self { ladder, table: table.into_iter().map(|w| kernel.twiddle(w)).collect() }
    }

    /// The multipliers of the blocks of any level.
    pub(super) fn table(&self) -> &[Twiddle] {
        &self.table
    }

    /// `root(2^order)^exponent`.
    pub(super) fn power(&self, order: u32, exponent: usize) -> Scalar {
        (0..order)
            .filter(|bit| exponent >> bit & 1 == 1)
            .map(|bit| self.ladder[(order - bit) as usize])
            .product()
    }
}

/// One pass over a vector.
struct Sweep<'a> {
    domain: &'a Domain,
    pass: Pass,
    order: Order,
    roots: &'a Roots,
    points: Points,
}

/// What each lane multiplies the table by, a row for each of the pass's levels.
type Factors = [[Twiddle; MAX_WIDTH]; PASS_LEVELS as usize];

impl Sweep<'_> {
    fn run(
        &self,
        x: &mut [Scalar],
        workers: &mut [Vec<Line>],
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), Interrupted> {
        let kernel = self.domain.kernel;
        let tile = kernel.width() << self.pass.bits;
        let tiles = x.len() / tile;
        let x = Shared::new(x);
        in_batches(workers, tiles, tile, checkpoint, |scratch, i| {
            let (first, lane_stride) = self.place(i);
            kernel.run(Tile {
                // SAFETY: a tile's first place is within the vector.
                data: unsafe { x.at(first) },
                lane_stride,
                stride: 1 << self.pass.low,
                bits: self.pass.bits,
                order: self.order,
                table: &self.roots.table,
                factors: self.factors(first, lane_stride),
                scratch,
            });
        })
    }

    /// The first position of a tile, and the distance of its lanes: rows for the lowest bits, columns above.
    fn place(&self, tile: usize) -> (usize, usize) {
        let Pass { low, bits } = self.pass;
        let width = self.domain.kernel.width();
        if low == 0 {
            return ((tile * width) << bits, 1 << bits);
        }
        let per_block = (1 << low) / width;
        (((tile / per_block) << (low + bits)) + tile % per_block * width, 1)
    }

    fn factors(&self, first: usize, lane_stride: usize) -> Option<Factors> {
        let Pass { low, bits } = self.pass;
        let done = match self.order {
            Order::ToReversed => self.domain.log2_size - low - bits,
            Order::ToNatural => low,
        };
        if done == 0 && self.points == Points::Domain {
            return None;
        }
        let mut factors = [[Twiddle(Scalar::ONE); MAX_WIDTH]; PASS_LEVELS as usize];
        for lane in 0..self.domain.kernel.width() {
            let position = first + lane * lane_stride;
            let exponent = match self.order {
                Order::ToReversed => reverse(position >> (low + bits), done),
                Order::ToNatural => position & ((1 << low) - 1),
            };
            let mut w = match self.points {
                Points::Domain => self.roots.power(done + bits, exponent),
                Points::Coset => self.roots.power(done + bits + 1, 2 * exponent + 1),
            };
            for level in factors[..bits as usize].iter_mut().rev() {
                level[lane] = self.domain.kernel.twiddle(w);
                w = w.square();
            }
        }
        Some(factors)
    }
}

/// The lowest `bits` bits of `x` in reverse.
pub(super) fn reverse(x: usize, bits: u32) -> usize {
    x.reverse_bits().checked_shr(usize::BITS - bits).unwrap_or(0)
}

/// One group of lanes, `2^bits` elements each, through all levels of a pass.
struct Tile<'a> {
    data: *mut Scalar,
    lane_stride: usize,
    stride: usize,
    bits: u32,
    order: Order,
    table: &'a [Twiddle],
    factors: Option<Factors>,
    scratch: &'a mut [Line],
}

impl Job for Tile<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        const { assert!(PASS_LEVELS <= MAX_LEVELS) };
        let groups = &mut as_groups::<L>(self.scratch)[..1 << self.bits];
        // The levels run from natural to reversed order; the other way round they want it mirrored.
        let place = |i| match self.order {
            Order::ToReversed => i,
            Order::ToNatural => reverse(i, self.bits),
        };
        for i in 0..groups.len() {
            // SAFETY: the tile lies within the vector, and no other tile has any of its places.
            groups[place(i)] = unsafe { L::load(self.data.add(i * self.stride), self.lane_stride) };
        }
        let twiddles = Twiddles { table: self.table, factors: self.factors.as_ref() };
        let mut level = 0;
        if self.bits % 2 == 1 {
            single_level(groups, twiddles);
            level = 1;
        }
        while level < self.bits as usize {
            double_level(groups, level, twiddles);
            level += 2;
        }
        for i in 0..groups.len() {
            // SAFETY: as for the loads.
            unsafe { groups[place(i)].store(self.data.add(i * self.stride), self.lane_stride) };
        }
    }
}

/// The multipliers of a tile.
#[derive(Clone, Copy)]
struct Twiddles<'a> {
    table: &'a [Twiddle],
    factors: Option<&'a Factors>,
}

impl Twiddles<'_> {
    #[inline(always)]
    fn at<L: Lanes>(self, level: usize, block: usize) -> L {
        let w = L::splat(self.table[block]);
        match self.factors {
            None => w,
            Some(factors) => w.scale(L::each(&factors[level])),
        }
    }
}

/// Level 0, which is one block.
#[inline(always)]
fn single_level<L: Lanes>(groups: &mut [L], twiddles: Twiddles<'_>) {
    let w = twiddles.at::<L>(0, 0);
    let (upper, lower) = groups.split_at_mut(groups.len() / 2);
    for (u, v) in upper.iter_mut().zip(lower) {
        L::butterfly(u, v, &w);
    }
}

/// Two levels in one sweep over the tile.
#[inline(always)]
fn double_level<L: Lanes>(groups: &mut [L], level: usize, twiddles: Twiddles<'_>) {
    let quarter = groups.len() >> (level + 2);
    for (block, groups) in groups.chunks_exact_mut(4 * quarter).enumerate() {
        let w = twiddles.at::<L>(level, block);
        let w0 = twiddles.at::<L>(level + 1, 2 * block);
        let w1 = twiddles.at::<L>(level + 1, 2 * block + 1);
        let (upper, lower) = groups.split_at_mut(2 * quarter);
        let (x0, x1) = upper.split_at_mut(quarter);
        let (x2, x3) = lower.split_at_mut(quarter);
        for i in 0..quarter {
            let (mut a, mut b, mut c, mut d) = (x0[i], x1[i], x2[i], x3[i]);
            L::butterfly(&mut a, &mut c, &w);
            L::butterfly(&mut b, &mut d, &w);
            L::butterfly(&mut a, &mut b, &w0);
            L::butterfly(&mut c, &mut d, &w1);
            (x0[i], x1[i], x2[i], x3[i]) = (a, b, c, d);
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
