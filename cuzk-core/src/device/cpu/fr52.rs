//! Eight scalars at a time with AVX-512 IFMA: five limbs of 52 bits, a limb of all eight in a register.
//!
//! Values are taken as the integers that memory holds, whatever they mean: sums and differences do
//! not care about blst's Montgomery factor `2^256`. Only multipliers are converted, to `w 2^260 mod r`,
//! so that the Montgomery product here, `x y / 2^260`, is exactly `w x`.
//!
//! Between load and store a value is an integer in `[0, 32 r)`, its limbs signed and unreduced. A
//! butterfly takes away and adds at most `2 r`, so [`MAX_LEVELS`](super::lanes::MAX_LEVELS) of them fit.

// SAFETY of every block without a word of its own: it needs the instructions and nothing else, and
// `Kernel::run` enters this module only where `Kernel::best` found them.
#![allow(clippy::undocumented_unsafe_blocks)]

use std::arch::x86_64::*;

use blstrs::Scalar;

use super::lanes::{Lanes, Twiddle};

/// Eight scalars, by limb.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Ifma([__m512i; 5]);

const LIMB: u64 = (1 << 52) - 1;

/// The field's modulus `r`.
const R: [u64; 4] =
    [0xffff_ffff_0000_0001, 0x53bd_a402_fffe_5bfe, 0x3339_d808_09a1_d805, 0x73ed_a753_299d_7d48];
const R52: [u64; 5] = split(R);
/// `2 r`.
const R52_TWICE: [u64; 5] = split(twice(R));
/// `2^260 - r`.
const R52_NEGATED: [u64; 5] = negate(R52);
/// `-1 / r mod 2^52`: `r` is `1 - 2^32` there.
const R_INVERSE: u64 = (1 << 52) - (1 << 32) - 1;
/// `2^98 / (1 + r / 2^208)`: multiplied by a value's top limb it gives `2^98` times the quotient by `r`.
const QUOTIENT: u64 = ((1u128 << 98) / (R52[4] as u128 + 1)) as u64;

const fn split(x: [u64; 4]) -> [u64; 5] {
    [
        x[0] & LIMB,
        (x[0] >> 52 | x[1] << 12) & LIMB,
        (x[1] >> 40 | x[2] << 24) & LIMB,
        (x[2] >> 28 | x[3] << 36) & LIMB,
        x[3] >> 16,
    ]
}

const fn twice(x: [u64; 4]) -> [u64; 4] {
    [x[0] << 1, x[1] << 1 | x[0] >> 63, x[2] << 1 | x[1] >> 63, x[3] << 1 | x[2] >> 63]
}

const fn negate(x: [u64; 5]) -> [u64; 5] {
    // The lowest limb of r is not zero: no carry comes out of it.
    [(1 << 52) - x[0], LIMB - x[1], LIMB - x[2], LIMB - x[3], LIMB - x[4]]
}

impl Lanes for Ifma {
    const WIDTH: usize = 8;

    #[inline(always)]
    fn twiddle(w: Scalar) -> Twiddle {
        Twiddle(w * Scalar::from(16))
    }

    #[inline(always)]
    fn splat(w: Twiddle) -> Self {
        let limbs = blst::blst_fr::from(w.0).l;
        unsafe { Self(from_64(limbs.map(|limb| _mm512_set1_epi64(limb as i64)))) }
    }

    #[inline(always)]
    fn each(w: &[Twiddle]) -> Self {
        let w = &w[..Self::WIDTH];
        // SAFETY: the slice holds eight scalars; a `Twiddle` is one.
        unsafe { Self::load(w.as_ptr().cast(), 1) }
    }

    #[inline(always)]
    unsafe fn load(from: *const Scalar, stride: usize) -> Self {
        // SAFETY: the caller vouches for every lane's address.
        unsafe {
            let pair = |i: usize, j: usize| {
                let low = _mm256_loadu_si256(from.add(i * stride).cast());
                let high = _mm256_loadu_si256(from.add(j * stride).cast());
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
            };
            let (v02, v13, v46, v57) = (pair(0, 2), pair(1, 3), pair(4, 6), pair(5, 7));
            let (even_low, odd_low) =
                (_mm512_unpacklo_epi64(v02, v13), _mm512_unpackhi_epi64(v02, v13));
            let (even_high, odd_high) =
                (_mm512_unpacklo_epi64(v46, v57), _mm512_unpackhi_epi64(v46, v57));
            const EVEN: i32 = 0b10_00_10_00;
            const ODD: i32 = 0b11_01_11_01;
            Self(from_64([
                _mm512_shuffle_i64x2::<EVEN>(even_low, even_high),
                _mm512_shuffle_i64x2::<EVEN>(odd_low, odd_high),
                _mm512_shuffle_i64x2::<ODD>(even_low, even_high),
                _mm512_shuffle_i64x2::<ODD>(odd_low, odd_high),
            ]))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut Scalar, stride: usize) {
        // SAFETY: the caller vouches for every lane's address.
        unsafe {
            let [l0, l1, l2, l3] = to_64(reduce(self.0));
            let (even_low, odd_low) =
                (_mm512_unpacklo_epi64(l0, l1), _mm512_unpackhi_epi64(l0, l1));
            let (even_high, odd_high) =
                (_mm512_unpacklo_epi64(l2, l3), _mm512_unpackhi_epi64(l2, l3));
            let first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
            let second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
            let put = |i: usize, j: usize, pair: __m512i| {
                _mm256_storeu_si256(to.add(i * stride).cast(), _mm512_castsi512_si256(pair));
                let high = _mm512_extracti64x4_epi64::<1>(pair);
                _mm256_storeu_si256(to.add(j * stride).cast(), high);
            };
            put(0, 2, _mm512_permutex2var_epi64(even_low, first, even_high));
            put(1, 3, _mm512_permutex2var_epi64(odd_low, first, odd_high));
            put(4, 6, _mm512_permutex2var_epi64(even_low, second, even_high));
            put(5, 7, _mm512_permutex2var_epi64(odd_low, second, odd_high));
        }
    }

    #[inline(always)]
    fn butterfly(u: &mut Self, v: &mut Self, w: &Self) {
        unsafe {
            let t = montgomery(carry(v.0), w.0);
            *v = Self(minus(u.0, t));
            *u = Self(zip(u.0, t, |x, y| _mm512_add_epi64(x, y)));
        }
    }

    #[inline(always)]
    fn scale(self, w: Self) -> Self {
        unsafe { Self(carry(montgomery(carry(self.0), w.0))) }
    }

    #[inline(always)]
    fn product(self, other: Self) -> Self {
        // Both bring blst's 2^256, and the product loses 2^260: sixteen times one side makes it up.
        unsafe {
            let sixteen = carry(self.0.map(|limb| _mm512_slli_epi64::<4>(limb)));
            Self(montgomery(sixteen, other.0))
        }
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        unsafe { Self(minus(self.0, other.0)) }
    }
}

/// Limbs of 64 bits to limbs of 52.
#[inline(always)]
unsafe fn from_64(x: [__m512i; 4]) -> [__m512i; 5] {
    unsafe {
        let limb = |x| _mm512_and_si512(x, _mm512_set1_epi64(LIMB as i64));
        let or = |x, y| _mm512_or_si512(x, y);
        [
            limb(x[0]),
            limb(or(_mm512_srli_epi64::<52>(x[0]), _mm512_slli_epi64::<12>(x[1]))),
            limb(or(_mm512_srli_epi64::<40>(x[1]), _mm512_slli_epi64::<24>(x[2]))),
            limb(or(_mm512_srli_epi64::<28>(x[2]), _mm512_slli_epi64::<36>(x[3]))),
            _mm512_srli_epi64::<16>(x[3]),
        ]
    }
}

/// Limbs of 52 bits to limbs of 64.
#[inline(always)]
unsafe fn to_64(x: [__m512i; 5]) -> [__m512i; 4] {
    unsafe {
        let or = |x, y| _mm512_or_si512(x, y);
        [
            or(x[0], _mm512_slli_epi64::<52>(x[1])),
            or(_mm512_srli_epi64::<12>(x[1]), _mm512_slli_epi64::<40>(x[2])),
            or(_mm512_srli_epi64::<24>(x[2]), _mm512_slli_epi64::<28>(x[3])),
            or(_mm512_srli_epi64::<36>(x[3]), _mm512_slli_epi64::<16>(x[4])),
        ]
    }
}

#[inline(always)]
unsafe fn constant(x: [u64; 5]) -> [__m512i; 5] {
    unsafe { x.map(|limb| _mm512_set1_epi64(limb as i64)) }
}

#[inline(always)]
fn zip(x: [__m512i; 5], y: [__m512i; 5], op: impl Fn(__m512i, __m512i) -> __m512i) -> [__m512i; 5] {
    [op(x[0], y[0]), op(x[1], y[1]), op(x[2], y[2]), op(x[3], y[3]), op(x[4], y[4])]
}

/// `x - y + 2 r` for `y` up to `2 r`.
#[inline(always)]
unsafe fn minus(x: [__m512i; 5], y: [__m512i; 5]) -> [__m512i; 5] {
    unsafe {
        let raised = zip(x, constant(R52_TWICE), |x, y| _mm512_add_epi64(x, y));
        zip(raised, y, |x, y| _mm512_sub_epi64(x, y))
    }
}

/// The same value with limbs of 52 bits, but for the highest, which has the sign.
#[inline(always)]
unsafe fn carry(mut x: [__m512i; 5]) -> [__m512i; 5] {
    unsafe {
        let mask = _mm512_set1_epi64(LIMB as i64);
        for i in 0..4 {
            x[i + 1] = _mm512_add_epi64(x[i + 1], _mm512_srai_epi64::<52>(x[i]));
            x[i] = _mm512_and_si512(x[i], mask);
        }
        x
    }
}

/// `x y / 2^260` modulo `r`, below `r + x y / 2^260`, for limbs of 52 bits.
#[inline(always)]
unsafe fn montgomery(x: [__m512i; 5], y: [__m512i; 5]) -> [__m512i; 5] {
    unsafe {
        let zero = _mm512_setzero_si512();
        let r = constant(R52);
        let r_inverse = _mm512_set1_epi64(R_INVERSE as i64);
        let mut t = [zero; 6];
        for y in y {
            for j in 0..5 {
                t[j] = _mm512_madd52lo_epu64(t[j], x[j], y);
            }
            // Only the lowest 52 bits of t[0] count, in the product and in m.
            let m = _mm512_madd52lo_epu64(zero, t[0], r_inverse);
            for j in 0..5 {
                t[j] = _mm512_madd52lo_epu64(t[j], m, r[j]);
                t[j + 1] = _mm512_madd52hi_epu64(t[j + 1], x[j], y);
            }
            for j in 0..5 {
                t[j + 1] = _mm512_madd52hi_epu64(t[j + 1], m, r[j]);
            }
            // The lowest limb is a multiple of 2^52 now.
            let carried = _mm512_add_epi64(t[1], _mm512_srli_epi64::<52>(t[0]));
            t = [carried, t[2], t[3], t[4], t[5], zero];
        }
        [t[0], t[1], t[2], t[3], t[4]]
    }
}

/// A value below `32 r` to below `r`, with limbs of 52 bits.
#[inline(always)]
unsafe fn reduce(x: [__m512i; 5]) -> [__m512i; 5] {
    unsafe {
        let mut x = carry(x);
        // The quotient by r, or one less.
        let zero = _mm512_setzero_si512();
        let high = _mm512_madd52hi_epu64(zero, x[4], _mm512_set1_epi64(QUOTIENT as i64));
        let quotient = _mm512_srli_epi64::<46>(high);
        // Adding 2^260 - r so often takes r away as often, but for bits above the highest limb.
        let negated = constant(R52_NEGATED);
        for i in 0..5 {
            x[i] = _mm512_madd52lo_epu64(x[i], quotient, negated[i]);
        }
        for i in 0..4 {
            x[i + 1] = _mm512_madd52hi_epu64(x[i + 1], quotient, negated[i]);
        }
        let mut x = carry(x);
        x[4] = _mm512_and_si512(x[4], _mm512_set1_epi64(LIMB as i64));
        let less = carry(zip(x, constant(R52), |x, y| _mm512_sub_epi64(x, y)));
        let keep = _mm512_movepi64_mask(less[4]);
        zip(less, x, |less, x| _mm512_mask_blend_epi64(keep, less, x))
    }
}
