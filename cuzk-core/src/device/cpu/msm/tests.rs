//! Every path against the definition, over sizes and structures that have traps in them.

use super::*;
use crate::circuit::Density;
use crate::device::Unhindered;
use blstrs::Scalar;
use ff::Field;
use group::{Curve, Group};
use rand::{rngs::StdRng, Rng, SeedableRng};

fn naive<G: Group<Scalar = Scalar>, A: Copy + Into<G>>(points: &[A], scalars: &[Scalar]) -> G {
    points.iter().zip(scalars).map(|(p, s)| (*p).into() * s).sum()
}

#[test]
fn empty_is_the_identity() {
    let none = Scalars::all(&[]);
    assert_eq!(msm_g1(&[], none.clone(), &Unhindered), Ok(G1Projective::identity()));
    assert_eq!(msm_g2(&[], none, &Unhindered), Ok(G2Projective::identity()));
}

#[test]
fn sums_are_those_of_the_definition() {
    let mut rng = StdRng::seed_from_u64(1);
    for n in [1, 2, 3, 31, 32, 33, 300] {
        let scalars: Vec<_> = (0..n).map(|_| Scalar::random(&mut rng)).collect();
        let g1: Vec<_> = (0..n).map(|_| G1Projective::random(&mut rng).to_affine()).collect();
        let g2: Vec<_> = (0..n).map(|_| G2Projective::random(&mut rng).to_affine()).collect();
        assert_eq!(msm_g1(&g1, Scalars::all(&scalars), &Unhindered), Ok(naive(&g1, &scalars)));
        assert_eq!(msm_g2(&g2, Scalars::all(&scalars), &Unhindered), Ok(naive(&g2, &scalars)));
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
    let points: Vec<_> = kept.iter().map(|_| G1Projective::random(&mut rng).to_affine()).collect();
    let scalars = Scalars::all(&inputs).then_dense(&aux, &density);
    assert_eq!(msm_g1(&points, scalars, &Unhindered), Ok(naive(&points, &kept)));
}
