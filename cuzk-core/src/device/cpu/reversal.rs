//! Bit reversal in place, with a hook for what has to be done to every value on the way.
//!
//! The vector is swapped in pairs of square tiles, up to 16 × 16: rows of 512 bytes, so that neither
//! side of the swap wastes cache lines.

use blstrs::Scalar;

use super::batches::{in_batches, workers, Shared};
use super::domain::{reverse as reverse_bits, Domain};
use super::lanes::{Job, Kernel, Lanes, Twiddle};
use crate::device::{Checkpoint, Interrupted};

/// Most position bits of a tile's side.
pub(super) const SIDE_BITS: u32 = 4;

/// How a vector of `2^bits` falls into tiles: position = row ‖ tile ‖ column.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiling {
    bits: u32,
    side_bits: u32,
}

impl Tiling {
    pub(super) fn new(bits: u32) -> Self {
        Self { bits, side_bits: (bits / 2).min(SIDE_BITS) }
    }

    /// Rows of a tile, and columns.
    pub(super) fn side(self) -> usize {
        1 << self.side_bits
    }

    /// The position of a row's first value.
    pub(super) fn row(self, tile: usize, row: usize) -> usize {
        (row << (self.bits - self.side_bits)) + (tile << self.side_bits)
    }

    fn tile_bits(self) -> u32 {
        self.bits - 2 * self.side_bits
    }
}

/// Moves the value at every position to the bit-reversed position, after `hook(tile, values)` worked
/// on it: `values` are a tile's rows (see [`Tiling`]) as they lay in `x`.
pub(super) fn reverse(
    x: &mut [Scalar],
    checkpoint: &dyn Checkpoint,
    hook: impl Fn(usize, &mut [Scalar]) + Sync,
) -> Result<(), Interrupted> {
    let tiling = Tiling::new(x.len().ilog2());
    let values = tiling.side() * tiling.side();
    let mut workers = workers(|| [(); 2].map(|()| vec![Scalar::default(); values]));
    let tiles = 1 << tiling.tile_bits();
    let x = Shared::new(x);
    in_batches(&mut workers, tiles, 2 * values, checkpoint, |[ours, theirs], tile| {
        let partner = reverse_bits(tile, tiling.tile_bits());
        if partner < tile {
            return;
        }
        // SAFETY: the worker that has the lower tile of a pair is the only one to touch either.
        unsafe {
            read(x, tiling, tile, ours);
            hook(tile, ours);
            if partner != tile {
                read(x, tiling, partner, theirs);
                hook(partner, theirs);
                write(x, tiling, tile, theirs);
            }
            write(x, tiling, partner, ours);
        }
    })
}

/// # Safety
/// No other thread writes this tile.
unsafe fn read(x: Shared, tiling: Tiling, tile: usize, values: &mut [Scalar]) {
    for (row, values) in values.chunks_exact_mut(tiling.side()).enumerate() {
        // SAFETY: a row lies within the vector; the caller vouches for other threads.
        unsafe {
            x.at(tiling.row(tile, row)).copy_to_nonoverlapping(values.as_mut_ptr(), values.len());
        }
    }
}

/// Writes `values`, reversed in row and column, as rows of `tile`.
///
/// # Safety
/// No other thread reads or writes this tile.
unsafe fn write(x: Shared, tiling: Tiling, tile: usize, values: &[Scalar]) {
    let side = tiling.side();
    for row in 0..side {
        let column = reverse_bits(row, tiling.side_bits);
        // SAFETY: a row lies within the vector; the caller vouches for other threads.
        let to = unsafe { std::slice::from_raw_parts_mut(x.at(tiling.row(tile, row)), side) };
        for (i, to) in to.iter_mut().enumerate() {
            *to = values[reverse_bits(i, tiling.side_bits) * side + column];
        }
    }
}

/// Turns what [`Domain::interpolate`] gives into coefficients: the factor that a tile's values want.
pub(super) struct Unscale<'a> {
    kernel: Kernel,
    scale: Scalar,
    coset: Option<Coset<'a>>,
}

/// `g^-k` for the coefficient `k` at each position, `k = reverse(column ‖ tile ‖ row)`, as a product.
struct Coset<'a> {
    domain: &'a Domain,
    tiling: Tiling,
    rows: Vec<Scalar>,
}

impl<'a> Unscale<'a> {
    /// After an interpolation from the domain; coefficients come multiplied by `n scale`.
    pub(super) fn domain(domain: &Domain, scale: Scalar) -> Self {
        Self { kernel: domain.kernel(), scale, coset: None }
    }

    /// After an interpolation from the coset; coefficients come multiplied by `n scale`.
    pub(super) fn coset(domain: &'a Domain, scale: Scalar) -> Self {
        let tiling = Tiling::new(domain.log2_size());
        let row = |row| {
            domain.inverse().power(domain.log2_size() + 1, reverse_bits(row, tiling.side_bits))
        };
        let rows = (0..tiling.side()).map(row).collect();
        Self { kernel: domain.kernel(), scale, coset: Some(Coset { domain, tiling, rows }) }
    }

    /// Multiplies a tile's values.
    pub(super) fn apply(&self, tile: usize, values: &mut [Scalar]) {
        let Some(coset) = &self.coset else {
            let w = self.kernel.twiddle(self.scale);
            return self.kernel.run(Scale { values, w, columns: None });
        };
        let (tiling, roots) = (coset.tiling, coset.domain.inverse());
        let exponent = reverse_bits(tile, tiling.tile_bits()) << tiling.side_bits;
        let of_tile = self.scale * roots.power(coset.domain.log2_size() + 1, exponent);
        for (values, of_row) in values.chunks_exact_mut(tiling.side()).zip(&coset.rows) {
            let w = self.kernel.twiddle(of_tile * of_row);
            self.kernel.run(Scale { values, w, columns: Some(roots.table()) });
        }
    }
}

/// Multiplies by one factor, and by a factor of each column.
struct Scale<'a> {
    values: &'a mut [Scalar],
    w: Twiddle,
    columns: Option<&'a [Twiddle]>,
}

impl Job for Scale<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (i, values) in self.values.chunks_exact_mut(L::WIDTH).enumerate() {
            let mut w = L::splat(self.w);
            if let Some(columns) = self.columns {
                w = L::each(&columns[i * L::WIDTH..]).scale(w);
            }
            // SAFETY: each chunk holds one group.
            unsafe { L::load(values.as_ptr(), 1).scale(w).store(values.as_mut_ptr(), 1) };
        }
    }
}
