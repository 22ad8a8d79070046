use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use rand::SeedableRng;
use rand_xorshift::XorShiftRng;

use super::*;
use crate::device::Unhindered;

/// Random values with the extremes of every limb pattern among them.
pub(in crate::device::cpu) fn random_scalars(count: usize, seed: u64) -> Vec<Scalar> {
    let mut rng = XorShiftRng::seed_from_u64(seed);
    (0..count)
        .map(|i| match i % 8 {
            0 => -Scalar::ONE,
            1 => Scalar::ZERO,
            _ => Scalar::random(&mut rng),
        })
        .collect()
}

pub(in crate::device::cpu) fn kernels() -> Vec<Kernel> {
    vec![Kernel::Portable, Kernel::best()]
}

/// The values of a polynomial at `shift w^i`, one by one.
fn naive(coefficients: &[Scalar], shift: Scalar) -> Vec<Scalar> {
    let order = coefficients.len().ilog2();
    let w = (order..Scalar::S).fold(Scalar::ROOT_OF_UNITY, |w, _| w.square());
    let mut x = shift;
    (0..coefficients.len())
        .map(|_| {
            let value = coefficients.iter().rfold(Scalar::ZERO, |sum, c| sum * x + c);
            x *= w;
            value
        })
        .collect()
}

/// The `2n`-th root whose square generates the domain of `n = 2^log2_size` points.
fn coset_shift(log2_size: u32) -> Scalar {
    (log2_size + 1..Scalar::S).fold(Scalar::ROOT_OF_UNITY, |w, _| w.square())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn transforms_agree_with_evaluating_point_by_point(
        log2_size in 0u32..10, pass_levels in 4u32..=PASS_LEVELS, seed: u64,
    ) {
        let x = random_scalars(1 << log2_size, seed);
        for kernel in kernels() {
            let domain = Domain::cut(log2_size, kernel, pass_levels).unwrap();
            let mut values = x.clone();
            domain.fft(&mut values, &Unhindered).unwrap();
            prop_assert_eq!(values, naive(&x, Scalar::ONE));
            let mut values = x.clone();
            domain.coset_fft(&mut values, &Unhindered).unwrap();
            prop_assert_eq!(values, naive(&x, coset_shift(log2_size)));
        }
    }

    #[test]
    fn inverse_transforms_give_the_coefficients_back(
        log2_size in 0u32..15, pass_levels in 4u32..=PASS_LEVELS, seed: u64,
    ) {
        let x = random_scalars(1 << log2_size, seed);
        for kernel in kernels() {
            let domain = Domain::cut(log2_size, kernel, pass_levels).unwrap();
            let mut y = x.clone();
            domain.fft(&mut y, &Unhindered).unwrap();
            domain.ifft(&mut y, &Unhindered).unwrap();
            prop_assert!(x == y);
            domain.coset_fft(&mut y, &Unhindered).unwrap();
            domain.coset_ifft(&mut y, &Unhindered).unwrap();
            prop_assert!(x == y);
        }
    }

    #[test]
    fn kernels_and_pass_lengths_give_the_same_bits(
        log2_size in 6u32..17, pass_levels in 4u32..PASS_LEVELS, seed: u64,
    ) {
        let x = random_scalars(1 << log2_size, seed);
        let bits = |kernel, pass_levels| {
            let domain = Domain::cut(log2_size, kernel, pass_levels).unwrap();
            let mut y = x.clone();
            domain.coset_fft(&mut y, &Unhindered).unwrap();
            domain.ifft(&mut y, &Unhindered).unwrap();
            y.into_iter().map(|y| blst::blst_fr::from(y).l).collect::<Vec<_>>()
        };
        let expected = bits(Kernel::Portable, PASS_LEVELS);
        prop_assert!(expected == bits(Kernel::best(), PASS_LEVELS));
        prop_assert!(expected == bits(Kernel::best(), pass_levels));
    }
}

#[test]
fn longest_passes_keep_values_in_range() {
    // Two passes of eleven levels, fed with the largest values that there are.
    let log2_size = 2 * PASS_LEVELS;
    let domain = Domain::new(log2_size).unwrap();
    assert!(domain.passes.iter().all(|pass| pass.bits == PASS_LEVELS));
    let mut x = vec![-Scalar::ONE; domain.size()];
    domain.coset_fft(&mut x, &Unhindered).unwrap();
    // -(x^n - 1) / (x - 1) at the coset's points is 2 / (x - 1).
    let (mut point, w) = (coset_shift(log2_size), coset_shift(log2_size - 1));
    for value in x {
        assert_eq!(value * (point - Scalar::ONE), Scalar::from(2));
        point *= w;
    }
}

#[test]
fn domain_beyond_the_field_is_refused_with_both_sizes() {
    let error = Domain::new(32).unwrap_err();
    assert_eq!(error, DomainTooLarge { log2_size: 32 });
    assert!(error.to_string().contains("2^32") && error.to_string().contains("2^31"), "{error}");
    assert_eq!(Domain::new(31).unwrap().size(), 1 << 31);
}

#[test]
fn tables_stay_small_whatever_the_domain() {
    for log2_size in 0..=Domain::MAX_LOG2_SIZE {
        let domain = Domain::new(log2_size).unwrap();
        let entries = domain.forward.table.len() + domain.inverse.table.len();
        assert!(entries * size_of::<Twiddle>() <= 128 << 10, "2^{log2_size}: {entries} entries");
    }
}

/// Ends the work at its `limit`-th question.
pub(in crate::device::cpu) struct Limit {
    pub(in crate::device::cpu) limit: usize,
    pub(in crate::device::cpu) asked: AtomicUsize,
}

impl Checkpoint for Limit {
    fn check(&self) -> Result<(), Interrupted> {
        match self.asked.fetch_add(1, Ordering::Relaxed) < self.limit {
            true => Ok(()),
            false => Err(Interrupted),
        }
    }
}

#[test]
fn transform_ends_at_the_checkpoint_that_interrupts_it() {
    let domain = Domain::new(21).unwrap();
    let mut x = random_scalars(domain.size(), 1);
    let checkpoint = Limit { limit: usize::MAX, asked: AtomicUsize::new(0) };
    domain.fft(&mut x, &checkpoint).unwrap();
    let asked = checkpoint.asked.into_inner();
    let batches = domain.size() / (1 << 18) / rayon::current_num_threads();
    assert!(asked >= 3 * batches, "asked {asked} times in three sweeps of {batches} batches");
    for limit in [0, 1, asked - 1] {
        let checkpoint = Limit { limit, asked: AtomicUsize::new(0) };
        assert_eq!(domain.fft(&mut x, &checkpoint), Err(Interrupted));
        assert_eq!(checkpoint.asked.into_inner(), limit + 1);
    }
}
