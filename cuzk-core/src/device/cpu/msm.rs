//! Multi-scalar multiplications over host threads: Σ scalarᵢ · pointᵢ.
//!
//! Points come as a slice, usually a memory-mapped file larger than memory: they are read front to
//! back exactly once, and every window of a chunk is done while the chunk is hot. Scalars come in
//! Montgomery form and are converted a block at a time. Zeros cost nothing, ones one addition: in
//! Filecoin's big circuits 97 % of the witness is either.

#[cfg(target_arch = "x86_64")]
mod adder;
#[cfg(target_arch = "x86_64")]
mod ifma;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod pages;
mod portable;
mod scalars;
#[cfg(test)]
mod tests;

pub use scalars::Scalars;

use crate::device::{Checkpoint, Interrupted};
use blstrs::{G1Affine, G1Projective, G2Affine, G2Projective};

/// Σ scalarᵢ · pointᵢ in G1, on the current rayon pool.
///
/// # Errors
/// [`Interrupted`] when the checkpoint says so.
///
/// # Panics
/// When there are not exactly as many points as scalars.
pub fn msm_g1(
    points: &[G1Affine],
    scalars: Scalars<'_>,
    checkpoint: &dyn Checkpoint,
) -> Result<G1Projective, Interrupted> {
    assert_eq!(points.len(), scalars.len(), "one point a scalar");
    #[cfg(target_arch = "x86_64")]
    if ifma_pays(points.len()) {
        return ifma::msm(points, scalars, checkpoint);
    }
    portable::msm::<portable::G1>(points, scalars, checkpoint)
}

/// Σ scalarᵢ · pointᵢ in G2, on the current rayon pool.
///
/// # Errors
/// [`Interrupted`] when the checkpoint says so.
///
/// # Panics
/// When there are not exactly as many points as scalars.
pub fn msm_g2(
    points: &[G2Affine],
    scalars: Scalars<'_>,
    checkpoint: &dyn Checkpoint,
) -> Result<G2Projective, Interrupted> {
    assert_eq!(points.len(), scalars.len(), "one point a scalar");
    #[cfg(target_arch = "x86_64")]
    if ifma_pays(points.len()) {
        return ifma::msm(points, scalars, checkpoint);
    }
    portable::msm::<portable::G2>(points, scalars, checkpoint)
}

/// [`msm_g1`] as processors without AVX-512 IFMA do it: to compare with.
///
/// # Errors
/// [`Interrupted`] when the checkpoint says so.
///
/// # Panics
/// When there are not exactly as many points as scalars.
pub fn portable_msm_g1(
    points: &[G1Affine],
    scalars: Scalars<'_>,
    checkpoint: &dyn Checkpoint,
) -> Result<G1Projective, Interrupted> {
    assert_eq!(points.len(), scalars.len(), "one point a scalar");
    portable::msm::<portable::G1>(points, scalars, checkpoint)
}

/// [`msm_g2`] as processors without AVX-512 IFMA do it: to compare with.
///
/// # Errors
/// [`Interrupted`] when the checkpoint says so.
///
/// # Panics
/// When there are not exactly as many points as scalars.
pub fn portable_msm_g2(
    points: &[G2Affine],
    scalars: Scalars<'_>,
    checkpoint: &dyn Checkpoint,
) -> Result<G2Projective, Interrupted> {
    assert_eq!(points.len(), scalars.len(), "one point a scalar");
    portable::msm::<portable::G2>(points, scalars, checkpoint)
}

/// The most memory that [`msm_g1`] (points of 96 bytes) or [`msm_g2`] (192) of `n` points takes
/// besides its arguments on `threads` threads.
pub fn scratch_bytes(point_bytes: usize, n: usize, threads: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if ifma_pays(n) {
        return if point_bytes > 96 {
            ifma::scratch_bytes::<G2Affine, 2>(n, threads)
        } else {
            ifma::scratch_bytes::<G1Affine, 1>(n, threads)
        };
    }
    portable::scratch_bytes(point_bytes, n, threads)
}

/// Whether the fast path can be had and is the faster one.
#[cfg(target_arch = "x86_64")]
fn ifma_pays(points: usize) -> bool {
    points >= 64 && super::fp52::available()
}
