use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bellperson::domain::EvaluationDomain;
use proptest::prelude::*;

use super::super::domain::tests::{kernels, random_scalars, Limit};
use super::*;
use crate::device::Unhindered;

/// A satisfied instance: `rows` values of A and B, zero up to the domain's size.
fn instance(domain: &Domain, rows: usize, seed: u64) -> [Vec<Scalar>; 2] {
    [seed, !seed].map(|seed| {
        let mut x = random_scalars(rows, seed);
        x.resize(domain.size(), Scalar::ZERO);
        x
    })
}

fn ours(domain: &Domain, rows: usize, [mut a, b]: [Vec<Scalar>; 2]) -> Vec<Scalar> {
    let scratch = vec![Scalar::from(7); rows];
    quotient(domain, &mut a, b, scratch, &Unhindered).unwrap();
    a
}

/// `(A B - C) / Z` on bellperson's coset: seven transforms, three vectors.
fn plain([a, b]: [Vec<Scalar>; 2]) -> Vec<Scalar> {
    let worker = &Default::default();
    let c = a.iter().zip(&b).map(|(a, b)| a * b).collect();
    let [mut a, b, c] = [a, b, c].map(|x| {
        let mut x = EvaluationDomain::from_coeffs(x).unwrap();
        x.ifft(worker, &mut None).unwrap();
        x.coset_fft(worker, &mut None).unwrap();
        x
    });
    a.mul_assign(worker, &b);
    a.sub_assign(worker, &c);
    a.divide_by_z_on_coset(worker);
    a.icoset_fft(worker, &mut None).unwrap();
    a.into_coeffs()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn quotient_is_that_of_seven_transforms(
        log2_size in 0u32..14, part in 0.0..=1.0, seed: u64,
    ) {
        for kernel in kernels() {
            let domain = Domain::with_kernel(log2_size, kernel).unwrap();
            let rows = (part * domain.size() as f64) as usize;
            let instance = instance(&domain, rows, seed);
            prop_assert!(ours(&domain, rows, instance.clone()) == plain(instance));
        }
    }
}

#[test]
fn quotient_has_degree_at_most_n_minus_2() {
    let domain = Domain::new(12).unwrap();
    let h = ours(&domain, domain.size(), instance(&domain, domain.size(), 1));
    assert_eq!(h[domain.size() - 1], Scalar::ZERO);
    assert_ne!(h[domain.size() - 2], Scalar::ZERO);
}

#[test]
fn room_for_the_products_is_given_back_before_the_last_two_transforms() {
    #[derive(Default)]
    struct Watch {
        given_back: AtomicBool,
        asked_since: AtomicUsize,
    }
    impl Checkpoint for Watch {
        fn check(&self) -> Result<(), Interrupted> {
            let since = usize::from(self.given_back.load(Ordering::Relaxed));
            self.asked_since.fetch_add(since, Ordering::Relaxed);
            Ok(())
        }
    }
    struct Room<'a>(Vec<Scalar>, &'a Watch);
    impl AsMut<[Scalar]> for Room<'_> {
        fn as_mut(&mut self) -> &mut [Scalar] {
            &mut self.0
        }
    }
    impl Drop for Room<'_> {
        fn drop(&mut self) {
            self.1.given_back.store(true, Ordering::Relaxed);
        }
    }

    let domain = Domain::new(12).unwrap();
    let [mut a, b] = instance(&domain, domain.size(), 1);
    let watch = Watch::default();
    let room = Room(vec![Scalar::ZERO; domain.size()], &watch);
    quotient(&domain, &mut a, b, room, &watch).unwrap();
    // Two passes for each transform, one for the reversal.
    assert_eq!(watch.asked_since.into_inner(), 5);
}

#[test]
fn quotient_ends_at_the_checkpoint_that_interrupts_it() {
    let domain = Domain::new(8).unwrap();
    let [a, b] = instance(&domain, 200, 1);
    let run = |limit| {
        let checkpoint = Limit { limit, asked: AtomicUsize::new(0) };
        let scratch = vec![Scalar::ZERO; 200];
        let result = quotient(&domain, &mut a.clone(), b.clone(), scratch, &checkpoint);
        (result, checkpoint.asked.into_inner())
    };
    let (_, asked) = run(usize::MAX);
    for limit in 0..asked {
        assert_eq!(run(limit), (Err(Interrupted), limit + 1));
    }
}
