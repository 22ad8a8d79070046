//! Every path against the definition, over sizes and structures that have traps in them.

use super::*;
use crate::circuit::Density;
use crate::device::Unhindered;
use blstrs::Scalar;
use ff::Field;
use group::{prime::PrimeCurveAffine, Curve, Group};
use proptest::prelude::*;
use rand::{rngs::StdRng, Rng, SeedableRng};
use std::sync::atomic::{AtomicUsize, Ordering};

fn naive<A: PrimeCurveAffine<Scalar = Scalar>>(points: &[A], scalars: &[Scalar]) -> A::Curve {
    points.iter().zip(scalars).map(|(p, s)| *p * s).sum()
}

/// Both groups, both paths, against the definition.
fn check(g1: &[G1Affine], g2: &[G2Affine], scalars: &[Scalar]) {
    let all = || Scalars::all(scalars);
    let (sum1, sum2) = (Ok(naive(g1, scalars)), Ok(naive(g2, scalars)));
    assert_eq!(portable::msm::<portable::G1>(g1, all(), &Unhindered), sum1, "portable G1");
    assert_eq!(portable::msm::<portable::G2>(g2, all(), &Unhindered), sum2, "portable G2");
    #[cfg(target_arch = "x86_64")]
    if crate::device::cpu::fp52::available() {
        assert_eq!(ifma::msm(g1, all(), &Unhindered), sum1, "IFMA G1");
        assert_eq!(ifma::msm(g2, all(), &Unhindered), sum2, "IFMA G2");
    }
}

/// `n` different points: the multiples of `step`.
fn multiples<G: Curve>(step: G, n: usize) -> Vec<G::AffineRepr>
where
    G::AffineRepr: PrimeCurveAffine,
{
    let all: Vec<_> = std::iter::successors(Some(step), |p| Some(*p + step)).take(n).collect();
    let mut affine = vec![G::AffineRepr::identity(); n];
    G::batch_normalize(&all, &mut affine);
    affine
}

#[test]
fn empty_is_the_identity() {
    check(&[], &[], &[]);
}

#[test]
fn sums_are_those_of_the_definition() {
    let mut rng = StdRng::seed_from_u64(1);
    for n in [1, 2, 3, 31, 32, 33, 300] {
        let scalars: Vec<_> = (0..n).map(|_| Scalar::random(&mut rng)).collect();
        let g1: Vec<_> = (0..n).map(|_| G1Projective::random(&mut rng).to_affine()).collect();
        let g2: Vec<_> = (0..n).map(|_| G2Projective::random(&mut rng).to_affine()).collect();
        check(&g1, &g2, &scalars);
    }
}

/// A point as a small multiple of the generator: equal, opposite and infinite ones are frequent.
fn trap_point() -> impl Strategy<Value = i64> {
    prop_oneof![3 => Just(1), 3 => Just(-1), 1 => Just(0), 3 => -3..=3i64, 2 => any::<i32>().prop_map(i64::from)]
}

fn trap_scalar() -> impl Strategy<Value = Scalar> {
    let power = (0..255u64, any::<bool>(), any::<bool>()).prop_map(|(bit, minus, negative)| {
        let power = Scalar::from(2).pow_vartime([bit]) - Scalar::from(u64::from(minus));
        if negative {
            -power
        } else {
            power
        }
    });
    let full = any::<[u64; 8]>().prop_map(|limbs| {
        limbs
            .iter()
            .fold(Scalar::ZERO, |sum, limb| sum * Scalar::from(u64::MAX) + Scalar::from(*limb))
    });
    prop_oneof![
        Just(Scalar::ZERO),
        Just(Scalar::ONE),
        Just(-Scalar::ONE),
        (0..20u64).prop_map(Scalar::from),
        power,
        full,
    ]
}

fn signed<G: Group<Scalar = Scalar>>(multiple: i64) -> G {
    let point = G::generator() * Scalar::from(multiple.unsigned_abs());
    if multiple < 0 {
        -point
    } else {
        point
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn equal_opposite_and_infinite_points_add_up(
        points in prop::collection::vec(trap_point(), 1..100),
        scalars in prop::collection::vec(trap_scalar(), 100),
        only in prop::option::of(trap_scalar()),
    ) {
        let g1: Vec<_> = points.iter().map(|m| signed::<G1Projective>(*m).to_affine()).collect();
        let g2: Vec<_> = points.iter().map(|m| signed::<G2Projective>(*m).to_affine()).collect();
        let scalars = only.map_or(scalars, |only| vec![only; 100]);
        check(&g1, &g2, &scalars[..points.len()]);
    }
}

#[test]
fn all_points_and_scalars_may_be_the_same() {
    let n = 2500;
    let (g1, g2) = (vec![G1Affine::generator(); n], vec![G2Affine::generator(); n]);
    for scalar in [Scalar::ONE, -Scalar::ONE, Scalar::from(3).invert().unwrap()] {
        let sum = Scalar::from(n as u64) * scalar;
        let scalars = vec![scalar; n];
        let all = || Scalars::all(&scalars);
        assert_eq!(msm_g1(&g1, all(), &Unhindered), Ok(G1Projective::generator() * sum));
        assert_eq!(msm_g2(&g2, all(), &Unhindered), Ok(G2Projective::generator() * sum));
    }
}

/// More points than a chunk holds, of witnesses that are mostly zeros and ones and of full ones.
#[test]
fn chunks_add_up() {
    let mut rng = StdRng::seed_from_u64(3);
    let n = 80_000;
    let points = multiples(G1Projective::generator(), n);
    for full in [0.03, 1.0] {
        let scalars: Vec<_> = (0..n)
            .map(|_| match rng.gen_bool(full) {
                true => Scalar::random(&mut rng),
                false => Scalar::from(rng.gen_range(0..2)),
            })
            .collect();
        let weighted = scalars.iter().zip(1u64..).map(|(s, i)| *s * Scalar::from(i));
        let sum = G1Projective::generator() * weighted.sum::<Scalar>();
        let all = || Scalars::all(&scalars);
        assert_eq!(msm_g1(&points, all(), &Unhindered), Ok(sum));
        assert_eq!(portable_msm_g1(&points, all(), &Unhindered), Ok(sum));
    }
}

#[test]
fn the_kth_point_belongs_to_the_kth_set_bit() {
    let mut rng = StdRng::seed_from_u64(2);
    let (inputs, aux): (Vec<_>, Vec<_>) =
        ((0..5).map(|_| Scalar::random(&mut rng)).collect(), (0..200).map(Scalar::from).collect());
    let mut density = Density::default();
    let mut kept = inputs.clone();
    for (i, scalar) in aux.iter().enumerate() {
        density.push();
        if rng.gen() {
            density.set(i);
            kept.push(*scalar);
        }
    }
    let points = multiples(G1Projective::generator(), kept.len());
    let scalars = Scalars::all(&inputs).then_dense(&aux, &density);
    assert_eq!(msm_g1(&points, scalars, &Unhindered), Ok(naive(&points, &kept)));
}

/// Interrupts at the n-th question.
struct InterruptAt(AtomicUsize);

impl Checkpoint for InterruptAt {
    fn check(&self) -> Result<(), Interrupted> {
        match self.0.fetch_sub(1, Ordering::Relaxed) {
            1 => Err(Interrupted),
            _ => Ok(()),
        }
    }
}

#[test]
fn an_interruption_ends_the_work() {
    let n = 70_000;
    let points = multiples(G1Projective::generator(), n);
    let scalars = vec![-Scalar::from(2); n];
    for question in 1..4 {
        let at = || InterruptAt(AtomicUsize::new(question));
        assert_eq!(msm_g1(&points, Scalars::all(&scalars), &at()), Err(Interrupted));
        assert_eq!(portable_msm_g1(&points, Scalars::all(&scalars), &at()), Err(Interrupted));
    }
}
