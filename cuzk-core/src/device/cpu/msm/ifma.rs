//! The path for processors with AVX-512 IFMA: Pippenger with signed digits and affine buckets.
//!
//! Full-size scalars are collected, with their points in our form, a chunk at a time. A chunk is done
//! window by window: its points are sorted by bucket and each bucket's points are added pairwise,
//! all buckets' pairs of a round together, until one is left. So any distribution of digits takes
//! the same number of additions, and every bucket is read and written once a chunk.

use super::adder::{Adder, Addition, Point, Term};
use super::lanes::{from_blst, to_blst};
use super::pages;
use super::scalars::{is_full, Scalars};
use crate::device::cpu::fp52::{self, Fp52};
use crate::device::{Checkpoint, Interrupted};
use blst::{blst_fp2, blst_p1_affine, blst_p2_affine};
use blstrs::{G1Affine, G1Projective, G2Affine, G2Projective, Scalar};
use ff::Field;
use group::Group;
use parking_lot::Mutex;
use rayon::prelude::*;

/// Full-size points that go through the windows together.
const CHUNK: usize = 1 << 15;
/// Points that one task sorts into zeros, ones and others.
const PART: usize = 1 << 12;

/// A group whose coordinates are D elements of the base field.
pub(super) trait Affine<const D: usize>: Sync {
    type Projective: Group + Send;
    /// The widest window worth its buckets' memory.
    const WIDEST: usize;

    fn unpack(&self) -> Point<D>;
    fn pack(point: &Point<D>) -> Self::Projective;
}

impl Affine<1> for G1Affine {
    type Projective = G1Projective;
    const WIDEST: usize = 15;

    fn unpack(&self) -> Point<1> {
        let blst_p1_affine { x, y } = self.as_ref();
        Point { x: [Fp52::unpack(x)], y: [Fp52::unpack(y)] }
    }

    fn pack(&Point { x: [x], y: [y] }: &Point<1>) -> G1Projective {
        // SAFETY: a point in our form was made on a processor that is able.
        let [x, y] = unsafe { to_blst(&[x, y]) };
        let mut affine = G1Affine::default();
        *affine.as_mut() = blst_p1_affine { x, y };
        affine.into()
    }
}

impl Affine<2> for G2Affine {
    type Projective = G2Projective;
    const WIDEST: usize = 13;

    fn unpack(&self) -> Point<2> {
        let blst_p2_affine { x, y } = self.as_ref();
        Point {
            x: [0, 1].map(|d| Fp52::unpack(&x.fp[d])),
            y: [0, 1].map(|d| Fp52::unpack(&y.fp[d])),
        }
    }

    fn pack(&Point { x: [x0, x1], y: [y0, y1] }: &Point<2>) -> G2Projective {
        // SAFETY: a point in our form was made on a processor that is able.
        let [x0, x1, y0, y1] = unsafe { to_blst(&[x0, x1, y0, y1]) };
        let mut affine = G2Affine::default();
        *affine.as_mut() =
            blst_p2_affine { x: blst_fp2 { fp: [x0, x1] }, y: blst_fp2 { fp: [y0, y1] } };
        affine.into()
    }
}

/// How scalars are cut into signed digits. Scalars above r/2 are negated together with their points,
/// so what is cut is below 2^254 and the top digit cannot overflow.
#[derive(Debug, Clone, Copy)]
struct Plan {
    bits: usize,
    windows: usize,
    /// Half a window's range in every window but the top: added to a scalar once, it makes digits
    /// independent of one another: the range is subtracted again from each.
    offset: [u64; 4],
}

/// r in 64-bit limbs.
const R: [u64; 4] =
    [0xffffffff00000001, 0x53bda402fffe5bfe, 0x3339d80809a1d805, 0x73eda753299d7d48];
const NEGATIVE: u64 = 1 << 63;

impl Plan {
    fn new(bits: usize) -> Self {
        let windows = 255usize.div_ceil(bits);
        let mut offset = [0; 4];
        for window in 0..windows - 1 {
            let bit = window * bits + bits - 1;
            offset[bit / 64] |= 1 << (bit % 64);
        }
        Self { bits, windows, offset }
    }

    /// The cheapest for `n` full-size scalars: every window adds all points and sums its buckets.
    fn cheapest(n: usize, widest: usize) -> Self {
        let cost = |bits: &usize| 255usize.div_ceil(*bits) * (n + (3 << (bits - 1)));
        Self::new((4..=widest).min_by_key(cost).unwrap_or(widest))
    }

    fn buckets(&self) -> usize {
        1 << (self.bits - 1)
    }

    /// Into how many segments a window's buckets are cut to be summed: as many as each has buckets.
    fn log_segments(&self) -> usize {
        (self.bits - 1) / 2
    }

    /// A scalar with the offset added and its sign in the highest bit.
    fn recode(&self, scalar: &Scalar) -> [u64; 4] {
        let limbs = limbs(scalar);
        let negated = subtract(&R, &limbs);
        let negative = negated.iter().rev().lt(limbs.iter().rev());
        let mut sum = add(if negative { &negated } else { &limbs }, &self.offset);
        sum[3] |= if negative { NEGATIVE } else { 0 };
        sum
    }

    /// Window `window`'s digit of a recoded scalar: how far from zero, and whether below.
    #[inline]
    fn digit(&self, recoded: &[u64; 4], window: usize) -> (usize, bool) {
        let first = window * self.bits;
        let (word, bit) = (first / 64, first % 64);
        let high = if bit > 0 && word < 3 { recoded[word + 1] << (64 - bit) } else { 0 };
        let raw =
            ((recoded[word] >> bit | high) & ((1 << self.bits.min(255 - first)) - 1)) as usize;
        let half = if window + 1 < self.windows { self.buckets() } else { 0 };
        (raw.abs_diff(half), (raw < half) != (recoded[3] & NEGATIVE != 0))
    }
}

fn limbs(scalar: &Scalar) -> [u64; 4] {
    let bytes = scalar.to_bytes_le();
    std::array::from_fn(|i| {
        bytes[8 * i..8 * i + 8].iter().rev().fold(0, |limb, byte| limb << 8 | u64::from(*byte))
    })
}

fn add(a: &[u64; 4], b: &[u64; 4]) -> [u64; 4] {
    let mut carry = false;
    std::array::from_fn(|i| {
        let (sum, over) = a[i].overflowing_add(b[i]);
        let (sum, again) = sum.overflowing_add(u64::from(carry));
        carry = over | again;
        sum
    })
}

fn subtract(a: &[u64; 4], b: &[u64; 4]) -> [u64; 4] {
    let mut borrow = false;
    std::array::from_fn(|i| {
        let (difference, under) = a[i].overflowing_sub(b[i]);
        let (difference, again) = difference.overflowing_sub(u64::from(borrow));
        borrow = under | again;
        difference
    })
}

/// Full-size scalars and their points, collected until there are enough.
struct Chunk<const D: usize> {
    points: Vec<Point<D>>,
    scalars: Vec<[u64; 4]>,
    len: usize,
}

/// A task's tools. They outlive the task: allocating them anew would cost as much as their use.
struct Worker<const D: usize> {
    adder: Adder<D>,
    /// A chunk's bucket and sign by point: the window's digit, or [`NO_BUCKET`].
    codes: Vec<u32>,
    /// By bucket, where its next term goes.
    cursors: Vec<u32>,
    /// The terms, bucket by bucket.
    terms: Vec<Term<D>>,
    runs: Vec<Run<D>>,
    /// Sums on their way.
    arena: Vec<Point<D>>,
}

const NO_BUCKET: u32 = u32::MAX;

/// A bucket's terms that are left, and the bucket.
#[derive(Debug, Clone, Copy)]
struct Run<const D: usize> {
    sum: *mut Point<D>,
    start: u32,
    len: u32,
}

// SAFETY: following the pointer is unsafe anyway.
unsafe impl<const D: usize> Send for Run<D> {}

type Spares<const D: usize> = Mutex<Vec<Worker<D>>>;

/// Σ scalarᵢ · pointᵢ.
///
/// # Panics
/// On a processor without the instructions.
pub(super) fn msm<A: Affine<D>, const D: usize>(
    points: &[A],
    mut scalars: Scalars<'_>,
    checkpoint: &dyn Checkpoint,
) -> Result<A::Projective, Interrupted> {
    assert!(fp52::available(), "asked for AVX-512 IFMA on a processor without");
    let plan = Plan::cheapest(scalars.estimate_full().min(points.len()), A::WIDEST);
    let mut buckets = vec![Point::INFINITY; plan.windows * plan.buckets()];
    let mut chunk = Chunk::new(CHUNK.min(points.len()));
    let spares = Mutex::default();
    let mut ones = A::Projective::identity();
    let mut block = Vec::with_capacity(CHUNK.min(points.len()));
    for points in pages::chunks(points, CHUNK, checkpoint) {
        scalars.fill(&mut block);
        let parts = count_full(&block);
        if chunk.len + parts.iter().sum::<usize>() > CHUNK {
            checkpoint.check()?;
            chunk.add_to(&plan, &mut buckets, &spares);
        }
        ones += chunk.collect(&plan, &parts, points, &block, &spares);
    }
    checkpoint.check()?;
    chunk.add_to(&plan, &mut buckets, &spares);
    checkpoint.check()?;
    Ok(ones + total::<A, D>(&plan, &buckets))
}

/// See [`super::scratch_bytes`]: all scalars full-size, all digits of a window in one bucket.
pub(super) fn scratch_bytes<A: Affine<D>, const D: usize>(n: usize, threads: usize) -> u64 {
    let (plan, chunk) = (Plan::cheapest(n, A::WIDEST), CHUNK.min(n));
    let point = size_of::<Point<D>>();
    let buckets = plan.windows * plan.buckets() * point;
    let collected = chunk * (point + 2 * size_of::<Scalar>());
    let terms = chunk + plan.buckets();
    let segment_sums = (2 * plan.windows * point) << plan.log_segments();
    let worker = Adder::<D>::BYTES
        + PART * point
        + chunk * size_of::<u32>()
        + plan.buckets() * (size_of::<u32>() + size_of::<Run<D>>())
        + terms * size_of::<Term<D>>()
        + terms / 2 * point;
    (buckets + collected + segment_sums + threads * worker) as u64
}

/// By part of the block, how many scalars are neither zero nor one.
fn count_full(block: &[Scalar]) -> Vec<usize> {
    block.par_chunks(PART).map(|part| part.iter().filter(|s| is_full(s)).count()).collect()
}

impl<const D: usize> Chunk<D> {
    fn new(capacity: usize) -> Self {
        Self { points: vec![Point::INFINITY; capacity], scalars: vec![[0; 4]; capacity], len: 0 }
    }

    /// Appends the block's full-size scalars with their points; returns the sum of its ones.
    fn collect<A: Affine<D>>(
        &mut self,
        plan: &Plan,
        parts: &[usize],
        points: &[A],
        block: &[Scalar],
        spares: &Spares<D>,
    ) -> A::Projective {
        let (mut free_points, mut free_scalars) =
            (&mut self.points[self.len..], &mut self.scalars[self.len..]);
        let mut targets = Vec::with_capacity(parts.len());
        for part in parts {
            let (points, rest) = free_points.split_at_mut(*part);
            free_points = rest;
            let (scalars, rest) = free_scalars.split_at_mut(*part);
            free_scalars = rest;
            targets.push((points, scalars));
        }
        self.len += parts.iter().sum::<usize>();
        points
            .par_chunks(PART)
            .zip(block.par_chunks(PART))
            .zip(targets)
            .map(|((points, block), (to_points, to_scalars))| {
                let mut to = to_points.iter_mut().zip(to_scalars);
                let mut ones = vec![];
                for (point, scalar) in points.iter().zip(block) {
                    if *scalar == Scalar::ONE {
                        ones.push(point.unpack());
                    } else if !scalar.is_zero_vartime() {
                        if let Some((to_point, to_scalar)) = to.next() {
                            (*to_point, *to_scalar) = (point.unpack(), plan.recode(scalar));
                        }
                    }
                }
                // SAFETY: `msm` asked the processor.
                unsafe {
                    from_blst(Point::components(to_points));
                    from_blst(Point::components(&mut ones));
                }
                let mut worker = spares.lock().pop().unwrap_or_default();
                let sum = worker.sum(&ones);
                spares.lock().push(worker);
                A::pack(&sum)
            })
            .sum()
    }

    /// Empties the chunk into the buckets.
    fn add_to(&mut self, plan: &Plan, buckets: &mut [Point<D>], spares: &Spares<D>) {
        let (points, scalars) = (&self.points[..self.len], &self.scalars[..self.len]);
        let threads = rayon::current_num_threads();
        // As many whole windows as all threads can share evenly; the rest is cut up.
        let whole = plan.windows - plan.windows % threads;
        let tasks: Vec<_> = buckets
            .chunks_mut(plan.buckets())
            .enumerate()
            .flat_map(|(window, buckets)| {
                let parts = if window < whole { 1 } else { threads.min(8) };
                let size = buckets.len().div_ceil(parts);
                let parts = buckets.chunks_mut(size).enumerate();
                parts.map(move |(i, part)| (window, i * size, part))
            })
            .collect();
        tasks.into_par_iter().with_max_len(1).for_each(|(window, first, buckets)| {
            let mut worker = spares.lock().pop().unwrap_or_default();
            worker.add(points, scalars.iter().map(|s| plan.digit(s, window)), first, buckets);
            spares.lock().push(worker);
        });
        self.len = 0;
    }
}

impl<const D: usize> Default for Worker<D> {
    fn default() -> Self {
        Self {
            adder: Adder::new(),
            codes: vec![],
            cursors: vec![],
            terms: vec![],
            runs: vec![],
            arena: vec![],
        }
    }
}

impl<const D: usize> Worker<D> {
    /// The sum of points.
    fn sum(&mut self, points: &[Point<D>]) -> Point<D> {
        let mut sum = [Point::INFINITY];
        self.add(points, points.iter().map(|_| (1, false)), 0, &mut sum);
        sum[0]
    }

    /// Adds each point to the bucket that its digit names; `buckets` begin with number `first`.
    fn add(
        &mut self,
        points: &[Point<D>],
        digits: impl Iterator<Item = (usize, bool)>,
        first: usize,
        buckets: &mut [Point<D>],
    ) {
        self.count(digits, first, buckets.len());
        self.sort(points, buckets);
        self.add_runs();
    }

    /// Notes each point's bucket and counts each bucket's points.
    fn count(&mut self, digits: impl Iterator<Item = (usize, bool)>, first: usize, buckets: usize) {
        self.codes.clear();
        self.cursors.clear();
        self.cursors.resize(buckets, 0);
        for (distance, negative) in digits {
            // Bucket 0 holds digit 1; digit 0 wraps around to none.
            let bucket = distance.wrapping_sub(1 + first);
            let code = match self.cursors.get_mut(bucket) {
                Some(count) => {
                    *count += 1;
                    (bucket << 1) as u32 | u32::from(negative)
                }
                None => NO_BUCKET,
            };
            self.codes.push(code);
        }
    }

    /// Makes a run of what each bucket holds and its points.
    fn sort(&mut self, points: &[Point<D>], buckets: &mut [Point<D>]) {
        self.runs.clear();
        self.terms.clear();
        let mut start = 0;
        for (bucket, count) in buckets.iter_mut().zip(&mut self.cursors) {
            if *count > 0 {
                let held = u32::from(!bucket.is_infinity());
                let len = *count + held;
                let sum = &raw mut *bucket;
                self.runs.push(Run { sum, start, len });
                self.terms.resize((start + len) as usize, Term::new(sum, false));
                *count = start + held;
                start += len;
            }
        }
        for (point, code) in points.iter().zip(&self.codes) {
            if *code != NO_BUCKET {
                let cursor = &mut self.cursors[(code >> 1) as usize];
                self.terms[*cursor as usize] = Term::new(point, code & 1 == 1);
                *cursor += 1;
            }
        }
    }

    /// Adds each run up, pair by pair, into its bucket.
    fn add_runs(&mut self) {
        let sums = self.runs.iter().filter(|run| run.len > 2).map(|run| run.len as usize / 2).sum();
        if self.arena.len() < sums {
            self.arena.resize(sums, Point::INFINITY);
        }
        let arena = self.arena.as_mut_ptr_range();
        let mut free = arena.start;
        while !self.runs.is_empty() {
            let (terms, adder) = (&mut self.terms, &mut self.adder);
            // SAFETY: terms are the chunk's points, buckets and sums of earlier rounds; every sum is its
            // bucket's alone or its pair's. `msm` asked the processor.
            let mut push = |a, b, sum| unsafe { adder.push(Addition { a, b, sum }) };
            self.runs.retain_mut(|run| {
                let terms = &mut terms[run.start as usize..][..run.len as usize];
                match *terms {
                    [a] => push(a, Term::new(&Point::INFINITY, false), run.sum),
                    [a, b] => push(a, b, run.sum),
                    _ => {
                        for pair in 0..terms.len() / 2 {
                            let (a, b) = (terms[2 * pair], terms[2 * pair + 1]);
                            let mut sum = a.point().cast_mut();
                            if !arena.contains(&sum) {
                                sum = free;
                                free = free.wrapping_add(1);
                            }
                            push(a, b, sum);
                            terms[pair] = Term::new(sum, false);
                        }
                        if terms.len() % 2 == 1 {
                            terms[terms.len() / 2] = terms[terms.len() - 1];
                        }
                        run.len = run.len.div_ceil(2);
                        return true;
                    }
                }
                false
            });
            // SAFETY: `msm` asked the processor.
            unsafe { self.adder.finish() };
        }
    }
}

/// Σ over windows and buckets of 2^(window · bits) · (index + 1) · bucket.
fn total<A: Affine<D>, const D: usize>(plan: &Plan, buckets: &[Point<D>]) -> A::Projective {
    let group = plan.windows.div_ceil(rayon::current_num_threads());
    let windows: Vec<_> = buckets
        .par_chunks(group * plan.buckets())
        .flat_map_iter(|buckets| window_sums::<A, D>(plan, buckets))
        .collect();
    windows.into_iter().rev().fold(A::Projective::identity(), |sum, window| {
        (0..plan.bits).fold(sum, |sum, _| sum.double()) + window
    })
}

/// Σ (index + 1) · bucket of each of some windows: by running sums over segments of buckets, all
/// segments of all windows side by side.
fn window_sums<A: Affine<D>, const D: usize>(
    plan: &Plan,
    buckets: &[Point<D>],
) -> Vec<A::Projective> {
    let log_segments = plan.log_segments();
    let log_length = plan.bits - 1 - log_segments;
    let (segments, length) = (1 << log_segments, 1 << log_length);
    let mut running = vec![Point::INFINITY; buckets.len() >> log_length];
    let mut sums = running.clone();
    let mut adder = Adder::new();
    for i in (0..length).rev() {
        for (running, segment) in running.iter_mut().zip(buckets.chunks(length)) {
            let (a, b) = (Term::new(running, false), Term::new(&segment[i], false));
            // SAFETY: points of these vectors and of the buckets; every sum replaces its own term.
            unsafe { adder.push(Addition { a, b, sum: running }) };
        }
        // SAFETY: `msm` asked the processor.
        unsafe { adder.finish() };
        for (sum, running) in sums.iter_mut().zip(&running) {
            let (a, b) = (Term::new(sum, false), Term::new(running, false));
            // SAFETY: points of these vectors and of the buckets; every sum replaces its own term.
            unsafe { adder.push(Addition { a, b, sum }) };
        }
        // SAFETY: `msm` asked the processor.
        unsafe { adder.finish() };
    }
    let of_window = |(running, sums): (&[Point<D>], &[Point<D>])| {
        // A segment's sum counts from its own start: what lies before counts `length` a segment.
        let mut later = A::Projective::identity();
        let mut weighted = A::Projective::identity();
        for running in running[1..].iter().rev() {
            later += A::pack(running);
            weighted += later;
        }
        let weighted = (0..log_length).fold(weighted, |sum, _| sum.double());
        weighted + sums.iter().map(A::pack).sum::<A::Projective>()
    };
    running.chunks(segments).zip(sums.chunks(segments)).map(of_window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{rngs::StdRng, SeedableRng};

    #[test]
    fn digits_make_up_the_scalar_and_name_buckets() {
        let mut rng = StdRng::seed_from_u64(1);
        let half = (Scalar::ZERO - Scalar::ONE) * Scalar::from(2).invert().unwrap();
        let mut scalars = vec![Scalar::ZERO, Scalar::ONE, -Scalar::ONE, half, half + Scalar::ONE];
        scalars.extend((0..255).map(|bit| Scalar::from(2).pow_vartime([bit])));
        scalars.extend((0..255).map(|bit| -Scalar::from(2).pow_vartime([bit]) - Scalar::ONE));
        scalars.extend((0..100).map(|_| Scalar::random(&mut rng)));
        for bits in 4..=15 {
            let plan = Plan::new(bits);
            for scalar in &scalars {
                let recoded = plan.recode(scalar);
                let sum = (0..plan.windows).rev().fold(Scalar::ZERO, |sum, window| {
                    let (distance, negative) = plan.digit(&recoded, window);
                    assert!(distance <= plan.buckets(), "{scalar:?}, {bits} bits, {window}");
                    let digit = Scalar::from(distance as u64);
                    sum * Scalar::from(1 << bits) + if negative { -digit } else { digit }
                });
                assert_eq!(sum, *scalar, "{bits} bits");
            }
        }
    }
}
