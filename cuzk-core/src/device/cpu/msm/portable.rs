//! The path for every processor: blst's Pippenger, a tile (one window of one chunk) a task.

use super::{pages, Scalars};
use crate::device::{Checkpoint, Interrupted};
use blst::*;
use blstrs::{G1Affine, G1Projective, G2Affine, G2Projective, Scalar};
use ff::Field;
use group::Group;
use rayon::prelude::*;

/// Scalars are below 2^255.
const SCALAR_BITS: usize = 255;
/// Points a task classifies at once.
const BLOCK: usize = 1 << 12;

/// What this path needs of blst for one of the two groups.
pub(super) trait Blst {
    type Affine: Sync;
    type Projective: Group + Send;
    /// Non-trivial points that are multiplied together.
    const CHUNK: usize;
    /// Bytes of one bucket.
    const BUCKET: usize;

    fn sum(points: &[&Self::Affine]) -> Self::Projective;

    /// One window's part, not yet shifted to its place. `buckets` are zero before and after.
    fn tile(
        points: &[&Self::Affine],
        scalars: &[[u8; 32]],
        buckets: &mut [u64],
        bit0: usize,
        window: usize,
    ) -> Self::Projective;
}

macro_rules! blst_group {
    ($name:ident, $affine:ty, $projective:ty, $chunk:expr, $bucket:expr, $sum:ident, $tile:ident) => {
        pub(super) struct $name;

        impl Blst for $name {
            type Affine = $affine;
            type Projective = $projective;
            const CHUNK: usize = $chunk;
            const BUCKET: usize = $bucket;

            fn sum(points: &[&$affine]) -> $projective {
                let mut sum = <$projective>::identity();
                if !points.is_empty() {
                    // SAFETY: blst reads `points.len()` pointers; references to the transparent
                    // wrappers are such pointers.
                    unsafe { $sum(sum.as_mut(), points.as_ptr().cast(), points.len()) };
                }
                sum
            }

            fn tile(
                points: &[&$affine],
                scalars: &[[u8; 32]],
                buckets: &mut [u64],
                bit0: usize,
                window: usize,
            ) -> $projective {
                assert!(points.len() > 1 && points.len() == scalars.len());
                assert!(buckets.len() * 8 >= $bucket << (window - 1));
                let scalars = [scalars.as_ptr().cast(), std::ptr::null()];
                let mut sum = <$projective>::identity();
                // SAFETY: blst reads as many points as it has pointers, and as many scalars of 32
                // bytes one after the other because the second pointer is null; the buckets are
                // as large as the window needs.
                unsafe {
                    $tile(
                        sum.as_mut(),
                        points.as_ptr().cast(),
                        points.len(),
                        scalars.as_ptr(),
                        SCALAR_BITS,
                        buckets.as_mut_ptr(),
                        bit0,
                        window,
                    );
                }
                sum
            }
        }
    };
}

blst_group!(G1, G1Affine, G1Projective, 1 << 18, 192, blst_p1s_add, blst_p1s_tile_pippenger);
blst_group!(G2, G2Affine, G2Projective, 1 << 17, 384, blst_p2s_add, blst_p2s_tile_pippenger);

pub(super) fn msm<C: Blst>(
    points: &[C::Affine],
    mut scalars: Scalars<'_>,
    checkpoint: &dyn Checkpoint,
) -> Result<C::Projective, Interrupted> {
    let chunk = C::CHUNK.min(points.len());
    let mut block = Vec::with_capacity(chunk);
    let mut total = C::Projective::identity();
    for points in pages::chunks(points, chunk.max(1), checkpoint) {
        checkpoint.check()?;
        scalars.fill(&mut block);
        let (ones, points, scalars) = classify::<C>(points, &block);
        total += ones;
        total += pippenger::<C>(&points, &scalars, checkpoint)?;
    }
    Ok(total)
}

/// The sum of the points with scalar one; the non-trivial points with their scalars.
fn classify<'a, C: Blst>(
    points: &'a [C::Affine],
    scalars: &[Scalar],
) -> (C::Projective, Vec<&'a C::Affine>, Vec<[u8; 32]>) {
    let parts: Vec<_> = points
        .par_chunks(BLOCK)
        .zip(scalars.par_chunks(BLOCK))
        .map(|(points, scalars)| {
            let (mut ones, mut kept, mut factors) = (vec![], vec![], vec![]);
            for (point, scalar) in points.iter().zip(scalars) {
                if *scalar == Scalar::ONE {
                    ones.push(point);
                } else if !scalar.is_zero_vartime() {
                    kept.push(point);
                    factors.push(scalar.to_bytes_le());
                }
            }
            (C::sum(&ones), kept, factors)
        })
        .collect();
    let count = parts.iter().map(|(_, kept, _)| kept.len()).sum();
    let (mut kept, mut factors) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let mut ones = C::Projective::identity();
    for (sum, mut points, mut scalars) in parts {
        ones += sum;
        kept.append(&mut points);
        factors.append(&mut scalars);
    }
    (ones, kept, factors)
}

fn pippenger<C: Blst>(
    points: &[&C::Affine],
    scalars: &[[u8; 32]],
    checkpoint: &dyn Checkpoint,
) -> Result<C::Projective, Interrupted> {
    match (points, scalars) {
        ([], []) => return Ok(C::Projective::identity()),
        // blst's tiles want at least two points.
        ([p], [s]) => return pippenger::<C>(&[p, p], &[*s, [0; 32]], checkpoint),
        _ => {}
    }
    let window = window_bits(points.len());
    // One more when the windows fill the scalar: the top one may carry.
    let windows = SCALAR_BITS / window + 1;
    let buckets = || vec![0u64; (C::BUCKET / 8) << (window - 1)];
    let mut sums = Vec::with_capacity(windows);
    for some in (0..windows).collect::<Vec<_>>().chunks(2 * rayon::current_num_threads()) {
        checkpoint.check()?;
        sums.par_extend(
            some.par_iter().map_init(buckets, |buckets, i| {
                C::tile(points, scalars, buckets, i * window, window)
            }),
        );
    }
    Ok(sums.into_iter().rev().fold(C::Projective::identity(), |sum, part| {
        (0..window).fold(sum, |sum, _| sum.double()) + part
    }))
}

/// As blst chooses.
fn window_bits(n: usize) -> usize {
    match n.ilog2() as usize {
        log @ 13.. => log - 3,
        log @ 9..=12 => log - 2,
        log @ 5..=8 => log - 1,
        _ => 2,
    }
}

/// See [`super::scratch_bytes`].
pub(super) fn scratch_bytes(point_bytes: usize, n: usize, threads: usize) -> u64 {
    let (chunk, bucket) =
        if point_bytes > 96 { (G2::CHUNK, G2::BUCKET) } else { (G1::CHUNK, G1::BUCKET) };
    let chunk = chunk.min(n).max(2);
    // A block in Montgomery form, the parts and the whole of the kept points and their scalars.
    let lists = chunk * (32 + 2 * (8 + 32));
    (lists + threads * (bucket << (window_bits(chunk) - 1))) as u64
}
