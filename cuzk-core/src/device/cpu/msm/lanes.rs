//! Coordinates eight at a time: of G1 (D = 1, the base field) or of G2 (D = 2, its quadratic
//! extension by u² = -1). The ranges of values are those of [`Fp8`] and [`Wide`].

// Several arrays march in step, limb by limb.
#![allow(clippy::needless_range_loop)]

use crate::device::cpu::fp52::{Fp52, Fp8, Wide, ONE};
use blst::{blst_fp, blst_fp2, blst_fp2_inverse, blst_fp2_mul, blst_fp_eucl_inverse, blst_fp_mul};

/// A stored coordinate, almost reduced.
pub(super) type Coordinate<const D: usize> = [Fp52; D];

/// Eight coordinates, one a lane.
#[derive(Clone, Copy)]
pub(super) struct Lanes<const D: usize>([Fp8; D]);

/// Eight sums or differences of coordinates on their way.
#[derive(Clone, Copy)]
pub(super) struct WideLanes<const D: usize>([Wide; D]);

impl<const D: usize> Lanes<D> {
    /// Loads lane i from `from[i]`.
    ///
    /// # Safety
    /// Every pointer is valid for reads.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) unsafe fn gather(from: [*const Coordinate<D>; 8]) -> Self {
        let mut all = [Fp8::zero(); D];
        for d in 0..D {
            // SAFETY: a component of what the caller says is valid.
            all[d] = unsafe { Fp8::gather(from.map(|p| p.cast::<Fp52>().add(d))) };
        }
        Self(all)
    }

    /// Stores lane i at `to[i]`.
    ///
    /// # Safety
    /// Every pointer is valid for writes.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) unsafe fn scatter(&self, to: [*mut Coordinate<D>; 8]) {
        for d in 0..D {
            // SAFETY: a component of what the caller says is valid.
            unsafe { self.0[d].scatter(to.map(|p| p.cast::<Fp52>().add(d))) };
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn one() -> Self {
        let mut all = [Fp8::zero(); D];
        all[0] = Fp8::splat(&ONE);
        Self(all)
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn zero() -> Self {
        Self([Fp8::zero(); D])
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn wide(&self) -> WideLanes<D> {
        let mut all = [Wide::zero(); D];
        for d in 0..D {
            all[d] = self.0[d].wide();
        }
        WideLanes(all)
    }

    /// The product, every component in (-2.1 p, 1.1 p).
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn mul(&self, other: &Self) -> WideLanes<D> {
        let (a, b) = (&self.0, &other.0);
        let mut all = [a[0].mul(&b[0]); D];
        if D == 2 {
            let (low, high) = (all[0], a[1].mul(&b[1]));
            let a_sum = a[0].wide().plus(&a[1].wide()).carry();
            let b_sum = b[0].wide().plus(&b[1].wide()).carry();
            all[0] = low.minus(&high);
            all[1] = a_sum.mul(&b_sum).minus(&low).minus(&high);
        }
        WideLanes(all)
    }

    /// The product, fit to be a factor.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn times(&self, other: &Self) -> Self {
        if D == 1 {
            return Self([self.0[0].mul(&other.0[0]).carry(); D]);
        }
        self.mul(other).factor()
    }

    /// The square, every component in (-0.1 p, 2.1 p). Components are less than 8 p apart.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn square(&self) -> WideLanes<D> {
        let a = &self.0;
        if D == 1 {
            return WideLanes([a[0].mul(&a[0]); D]);
        }
        let sum = a[0].wide().plus(&a[1].wide()).carry();
        let difference = a[0].wide().minus(&a[1].wide()).factor();
        let mixed = a[0].mul(&a[1]);
        let mut all = [mixed.plus(&mixed); D];
        all[0] = sum.mul(&difference);
        WideLanes(all)
    }

    /// The inverse in every lane; no lane is zero.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn invert(&self) -> Self {
        let mut elements = [[Fp52::default(); 8]; D];
        for d in 0..D {
            self.0[d].released().store(&mut elements[d]);
        }
        let mut lanes = [blst_fp2::default(); 8];
        for (i, lane) in lanes.iter_mut().enumerate() {
            for d in 0..D {
                lane.fp[d] = elements[d][i].pack();
            }
        }
        invert_all(&mut lanes, D);
        let mut all = [Fp8::zero(); D];
        for d in 0..D {
            all[d] = Fp8::load(&lanes.map(|lane| Fp52::unpack(&lane.fp[d]))).adopted();
        }
        Self(all)
    }

    /// Lanes whose limbs are all zero.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn zero_limbs(&self) -> u8 {
        let mut mask = 0xff;
        for d in 0..D {
            mask &= self.0[d].zero_limbs();
        }
        mask
    }

    /// Lanes whose lowest limb is zero.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn zero_lowest(&self) -> u8 {
        self.0[0].zero_lowest()
    }

    /// `other` in the lanes of `mask`.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn blend(&self, mask: u8, other: &Self) -> Self {
        let mut all = self.0;
        for d in 0..D {
            all[d] = all[d].blend(mask, &other.0[d]);
        }
        Self(all)
    }
}

impl<const D: usize> WideLanes<D> {
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn plus(mut self, other: &Self) -> Self {
        for d in 0..D {
            self.0[d] = self.0[d].plus(&other.0[d]);
        }
        self
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn minus(mut self, other: &Self) -> Self {
        for d in 0..D {
            self.0[d] = self.0[d].minus(&other.0[d]);
        }
        self
    }

    /// Negated in the lanes of `mask`.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn negate(mut self, mask: u8) -> Self {
        for d in 0..D {
            self.0[d] = self.0[d].negate(mask);
        }
        self
    }

    /// From (-8 p, 50 p) to (0, 58 p): fit to be a factor.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn factor(self) -> Lanes<D> {
        let mut all = [Fp8::zero(); D];
        for d in 0..D {
            all[d] = self.0[d].factor();
        }
        Lanes(all)
    }

    /// From (-3.9 p, 3.9 p) to [0, 1.001 p): fit to be stored.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn reduce(self) -> Lanes<D> {
        let mut all = [Fp8::zero(); D];
        for d in 0..D {
            all[d] = self.0[d].reduce();
        }
        Lanes(all)
    }

    /// Lanes whose limbs are all zero.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn zero_limbs(&self) -> u8 {
        let mut mask = 0xff;
        for d in 0..D {
            mask &= self.0[d].zero_limbs();
        }
        mask
    }

    /// Lanes that may be zero, given the difference of two stored coordinates.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn maybe_zero(&self) -> u8 {
        self.0[0].maybe_zero()
    }

    /// Lanes that are zero modulo p, of values in (-8 p, 8 p).
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn zeros(self) -> u8 {
        let mut mask = 0xff;
        for d in 0..D {
            mask &= self.0[d].zeros();
        }
        mask
    }
}

/// Inverts eight elements for the price of one: of the base field if `degree` is 1.
fn invert_all(lanes: &mut [blst_fp2; 8], degree: usize) {
    let multiply = |a: &blst_fp2, b: &blst_fp2| {
        let mut product = blst_fp2::default();
        // SAFETY: blst reads and writes field elements.
        unsafe {
            match degree {
                1 => blst_fp_mul(&mut product.fp[0], &a.fp[0], &b.fp[0]),
                _ => blst_fp2_mul(&mut product, a, b),
            }
        }
        product
    };
    let mut products = *lanes;
    for i in 1..8 {
        products[i] = multiply(&products[i - 1], &lanes[i]);
    }
    let mut inverse = blst_fp2::default();
    // SAFETY: blst reads and writes field elements.
    unsafe {
        match degree {
            1 => blst_fp_eucl_inverse(&mut inverse.fp[0], &products[7].fp[0]),
            _ => blst_fp2_inverse(&mut inverse, &products[7]),
        }
    }
    for i in (1..8).rev() {
        let lane = multiply(&inverse, &products[i - 1]);
        inverse = multiply(&inverse, &lanes[i]);
        lanes[i] = lane;
    }
    lanes[0] = inverse;
}

/// Unpacked elements, brought from blst's form to ours where they lie.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
pub(super) fn from_blst(unpacked: &mut [Fp52]) {
    let (eights, rest) = unpacked.as_chunks_mut::<8>();
    for eight in eights {
        Fp8::load(eight).adopted().store(eight);
    }
    let mut eight = [Fp52::default(); 8];
    eight[..rest.len()].copy_from_slice(rest);
    Fp8::load(&eight).adopted().store(&mut eight);
    rest.copy_from_slice(&eight[..rest.len()]);
}

/// The way back of a few.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
pub(super) fn to_blst<const N: usize>(components: &[Fp52; N]) -> [blst_fp; N] {
    let mut eight = [Fp52::default(); 8];
    eight[..N].copy_from_slice(components);
    Fp8::load(&eight).released().store(&mut eight);
    let mut all = [blst_fp::default(); N];
    for (to, from) in all.iter_mut().zip(&eight) {
        *to = from.pack();
    }
    all
}
