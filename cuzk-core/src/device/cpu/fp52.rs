//! The base field of BLS12-381 eight elements at a time: one a lane, limbs of 52 bits, AVX-512 IFMA.
//!
//! Montgomery form with R = 2^416. 381-bit elements leave 35 bits of slack, so values are only
//! *almost reduced*: an element stands for itself modulo p and is stored as any value in
//! [0, 1.01 p). Between two products values wander further and limbs turn negative; the ranges are
//! stated at each step. Zero and equality are therefore never a plain comparison.

// Several arrays march in step, limb by limb.
#![allow(clippy::needless_range_loop)]

use blst::blst_fp;
use std::arch::x86_64::*;

/// An element outside of vectors: 52-bit limbs, least significant first, almost reduced.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
pub(super) struct Fp52([u64; 8]);

/// Eight elements; limb i of all of them in vector i.
///
#[derive(Clone, Copy)]
pub(super) struct Fp8([__m512i; 8]);

/// Eight values with signed, unnormalised limbs: sums and differences on their way.
#[derive(Clone, Copy)]
pub(super) struct Wide([__m512i; 8]);

const MASK: u64 = (1 << 52) - 1;

/// p in 52-bit limbs.
const P: [u64; 8] = [
    0xeffffffffaaab,
    0xfeb153ffffb9f,
    0x6b0f6241eabff,
    0x12bf6730d2a0f,
    0x764774b84f385,
    0x1ba7b6434bacd,
    0x1ea397fe69a4b,
    0x1a011,
];
/// -1/p modulo 2^52.
const P_INV: i64 = 0x3fffcfffcfffd;
/// 2^448 mod p: from blst's Montgomery form (R = 2^384) to ours.
const FROM_BLST: Fp52 = Fp52([
    0x7fde37dba9366,
    0x4e27525bc342b,
    0x1f5b1e9778489,
    0xb872b2b91b9dc,
    0xb206f497dfcaf,
    0x4137cc89a9b0b,
    0xd9d20d7e39959,
    0x411c,
]);
/// 2^384 mod p: the way back.
const TO_BLST: Fp52 = Fp52([
    0x900000002fffd,
    0xbc40c0002760,
    0x3c758baebf400,
    0x57455f4898575,
    0xd77ce58537052,
    0x71a97a256ec6,
    0xec3fa80e4935c,
    0x15f65,
]);
/// One.
pub(super) const ONE: Fp52 = Fp52([
    0x6480ea8e9b9af,
    0x65766c8fe444f,
    0x8b540fea96f7d,
    0x3b2ee82efd422,
    0xa6723e5f0ade5,
    0xff6eb6fdd4230,
    0xe06ef23c24a25,
    0x14c8e,
]);

/// Column q (three bits, two's complement) of row i: limb i of -q·p.
static MINUS_QP: [[i64; 8]; 8] = {
    let mut rows = [[0; 8]; 8];
    let mut i = 0;
    while i < 64 {
        let q = (i as i64 % 8 + 4) % 8 - 4;
        rows[i / 8][i % 8] = -q * P[i / 8] as i64;
        i += 1;
    }
    rows
};

/// 2^44 / (p / 2^364).
const UNITS_INVERSE: i64 = 165_164_498;

/// Whether this processor has what this file needs.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512ifma")
}

#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
#[inline]
fn splat(limb: i64) -> __m512i {
    _mm512_set1_epi64(limb)
}

/// Repeats an expression with a constant counter. The compiler leaves loops of this size rolled,
/// and the vectors they index in memory.
macro_rules! unroll {
    ($i:ident in [$($n:literal)*] $body:block) => {
        $({ const $i: usize = $n; $body })*
    };
}

/// a·b / 2^416 modulo p, in [0, p + ab/2^416), unnormalised: a row of the product, then the
/// multiple of p that clears its lowest limb, eight times.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
#[inline]
fn montgomery_product(a: &Fp8, b: &Fp8) -> Wide {
    let zero = _mm512_setzero_si512();
    let p_inv = splat(P_INV);
    let mut t = [zero; 9];
    unroll!(I in [0 1 2 3 4 5 6 7] {
        unroll!(J in [0 1 2 3 4 5 6 7] {
            t[J] = _mm512_madd52lo_epu64(t[J], a.0[I], b.0[J]);
        });
        unroll!(J in [0 1 2 3 4 5 6 7] {
            t[J + 1] = _mm512_madd52hi_epu64(t[J + 1], a.0[I], b.0[J]);
        });
        let m = _mm512_madd52lo_epu64(zero, t[0], p_inv);
        unroll!(J in [0 1 2 3 4 5 6 7] {
            t[J] = _mm512_madd52lo_epu64(t[J], m, splat(P[J] as i64));
        });
        let carry = _mm512_srai_epi64::<52>(t[0]);
        unroll!(J in [0 1 2 3 4 5 6 7] {
            t[J] = _mm512_madd52hi_epu64(t[J + 1], m, splat(P[J] as i64));
        });
        t[0] = _mm512_add_epi64(t[0], carry);
        t[8] = zero;
    });
    Wide([t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7]])
}

impl Fp52 {
    pub(super) const ZERO: Self = Self([0; 8]);

    pub(super) fn is_zero_limbs(&self) -> bool {
        self.0 == [0; 8]
    }

    /// The limbs of `x` as they are: in blst's Montgomery form still, [`Fp8::adopted`] comes next.
    pub(super) fn unpack(x: &blst_fp) -> Self {
        let mut limbs = [0; 8];
        for (i, limb) in limbs.iter_mut().enumerate() {
            let (word, bit) = (52 * i / 64, 52 * i % 64);
            *limb = x.l[word] >> bit;
            if bit > 12 && word < 5 {
                *limb |= x.l[word + 1] << (64 - bit);
            }
            *limb &= MASK;
        }
        Self(limbs)
    }

    /// The way back, after [`Fp8::released`]: fully reduced.
    pub(super) fn pack(&self) -> blst_fp {
        let reduced = self.minus_p().unwrap_or(*self).0;
        let mut words = [0; 6];
        for (i, limb) in reduced.iter().enumerate() {
            let (word, bit) = (52 * i / 64, 52 * i % 64);
            words[word] |= limb << bit;
            if bit > 12 && word < 5 {
                words[word + 1] |= limb >> (64 - bit);
            }
        }
        blst_fp { l: words }
    }

    /// The value less p where that is not negative.
    fn minus_p(&self) -> Option<Self> {
        let mut difference = [0; 8];
        let mut carry = 0;
        for (i, limb) in difference.iter_mut().enumerate() {
            let d = self.0[i] as i64 - P[i] as i64 + carry;
            *limb = d as u64 & MASK;
            carry = d >> 52;
        }
        (carry == 0).then_some(Self(difference))
    }
}

/// Transposes eight vectors of eight limbs: elements to lanes, lanes to elements.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
#[inline]
fn transpose(r: [__m512i; 8]) -> [__m512i; 8] {
    let pairs = [
        _mm512_unpacklo_epi64(r[0], r[1]),
        _mm512_unpackhi_epi64(r[0], r[1]),
        _mm512_unpacklo_epi64(r[2], r[3]),
        _mm512_unpackhi_epi64(r[2], r[3]),
        _mm512_unpacklo_epi64(r[4], r[5]),
        _mm512_unpackhi_epi64(r[4], r[5]),
        _mm512_unpacklo_epi64(r[6], r[7]),
        _mm512_unpackhi_epi64(r[6], r[7]),
    ];
    // 128-bit blocks: even ones (0x88) or odd ones (0xdd) of both arguments.
    let halves = [
        _mm512_shuffle_i64x2::<0x88>(pairs[0], pairs[2]),
        _mm512_shuffle_i64x2::<0x88>(pairs[1], pairs[3]),
        _mm512_shuffle_i64x2::<0xdd>(pairs[0], pairs[2]),
        _mm512_shuffle_i64x2::<0xdd>(pairs[1], pairs[3]),
        _mm512_shuffle_i64x2::<0x88>(pairs[4], pairs[6]),
        _mm512_shuffle_i64x2::<0x88>(pairs[5], pairs[7]),
        _mm512_shuffle_i64x2::<0xdd>(pairs[4], pairs[6]),
        _mm512_shuffle_i64x2::<0xdd>(pairs[5], pairs[7]),
    ];
    [
        _mm512_shuffle_i64x2::<0x88>(halves[0], halves[4]),
        _mm512_shuffle_i64x2::<0x88>(halves[1], halves[5]),
        _mm512_shuffle_i64x2::<0x88>(halves[2], halves[6]),
        _mm512_shuffle_i64x2::<0x88>(halves[3], halves[7]),
        _mm512_shuffle_i64x2::<0xdd>(halves[0], halves[4]),
        _mm512_shuffle_i64x2::<0xdd>(halves[1], halves[5]),
        _mm512_shuffle_i64x2::<0xdd>(halves[2], halves[6]),
        _mm512_shuffle_i64x2::<0xdd>(halves[3], halves[7]),
    ]
}

impl Fp8 {
    /// Loads lane i from `from[i]`.
    ///
    /// # Safety
    /// Every pointer is valid for reads.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) unsafe fn gather(from: [*const Fp52; 8]) -> Self {
        let mut rows = [_mm512_setzero_si512(); 8];
        for i in 0..8 {
            // SAFETY: valid by the caller's word, aligned by the type.
            rows[i] = unsafe { _mm512_load_si512(from[i].cast()) };
        }
        Self(transpose(rows))
    }

    /// Stores lane i at `to[i]`.
    ///
    /// # Safety
    /// Every pointer is valid for writes.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) unsafe fn scatter(&self, to: [*mut Fp52; 8]) {
        let rows = transpose(self.0);
        for i in 0..8 {
            // SAFETY: valid by the caller's word, aligned by the type.
            unsafe { _mm512_store_si512(to[i].cast(), rows[i]) };
        }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn load(from: &[Fp52; 8]) -> Self {
        let first = from.as_ptr();
        // SAFETY: the eight elements of an array.
        unsafe { Self::gather([0, 1, 2, 3, 4, 5, 6, 7].map(|i| first.add(i))) }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn store(&self, to: &mut [Fp52; 8]) {
        let first = to.as_mut_ptr();
        // SAFETY: the eight elements of an array.
        unsafe { self.scatter([0, 1, 2, 3, 4, 5, 6, 7].map(|i| first.add(i))) }
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn zero() -> Self {
        Self([_mm512_setzero_si512(); 8])
    }

    /// The same element in every lane.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn splat(x: &Fp52) -> Self {
        let mut limbs = [_mm512_setzero_si512(); 8];
        for i in 0..8 {
            limbs[i] = splat(x.0[i] as i64);
        }
        Self(limbs)
    }

    /// Unpacked elements from blst's Montgomery form to ours.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn adopted(&self) -> Self {
        self.mul(&Self::splat(&FROM_BLST)).carry()
    }

    /// The way back; [`Fp52::pack`] comes next.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn released(&self) -> Self {
        self.mul(&Self::splat(&TO_BLST)).carry()
    }

    /// Factors in [0, 100 p), product in [0, 1.0001 p).
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn mul(&self, other: &Self) -> Wide {
        montgomery_product(self, other)
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn wide(&self) -> Wide {
        Wide(self.0)
    }

    /// Lanes whose limbs are all zero.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn zero_limbs(&self) -> u8 {
        let mut any = self.0[0];
        for i in 1..8 {
            any = _mm512_or_si512(any, self.0[i]);
        }
        _mm512_testn_epi64_mask(any, any)
    }

    /// Lanes whose lowest limb is zero.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn zero_lowest(&self) -> u8 {
        _mm512_testn_epi64_mask(self.0[0], self.0[0])
    }

    /// `other` in the lanes of `mask`.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn blend(&self, mask: u8, other: &Self) -> Self {
        let mut limbs = self.0;
        for i in 0..8 {
            limbs[i] = _mm512_mask_mov_epi64(limbs[i], mask, other.0[i]);
        }
        Self(limbs)
    }
}

impl Wide {
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn zero() -> Self {
        Self([_mm512_setzero_si512(); 8])
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn plus(mut self, other: &Self) -> Self {
        for i in 0..8 {
            self.0[i] = _mm512_add_epi64(self.0[i], other.0[i]);
        }
        self
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn minus(mut self, other: &Self) -> Self {
        for i in 0..8 {
            self.0[i] = _mm512_sub_epi64(self.0[i], other.0[i]);
        }
        self
    }

    /// Negated in the lanes of `mask`.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn negate(mut self, mask: u8) -> Self {
        let zero = _mm512_setzero_si512();
        for i in 0..8 {
            self.0[i] = _mm512_mask_sub_epi64(self.0[i], mask, zero, self.0[i]);
        }
        self
    }

    /// Normalises limbs of a value that is not negative.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn carry(self) -> Fp8 {
        let mut x = self.0;
        for i in 0..7 {
            x[i + 1] = _mm512_add_epi64(x[i + 1], _mm512_srai_epi64::<52>(x[i]));
            x[i] = _mm512_and_si512(x[i], splat(MASK as i64));
        }
        Fp8(x)
    }

    /// From (-8 p, 50 p) to (0, 58 p): fit to be a factor.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn factor(mut self) -> Fp8 {
        for i in 0..8 {
            self.0[i] = _mm512_add_epi64(self.0[i], splat(8 * P[i] as i64));
        }
        self.carry()
    }

    /// From (-3.9 p, 3.9 p) to [0, 1.001 p): fit to be stored.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn reduce(mut self) -> Fp8 {
        // The value in units of 2^364, of which p has 106513.1, less a margin for the limbs below;
        // q = floor of the quotient, so that 0 <= value - q·p < p + 10 units.
        let top = _mm512_add_epi64(self.0[7], _mm512_srai_epi64::<52>(self.0[6]));
        let top = _mm512_sub_epi64(top, splat(8));
        let q = _mm512_srai_epi64::<44>(_mm512_mul_epi32(top, splat(UNITS_INVERSE)));
        for i in 0..8 {
            // SAFETY: a row of eight limbs.
            let row = unsafe { _mm512_loadu_si512(MINUS_QP[i].as_ptr().cast()) };
            self.0[i] = _mm512_add_epi64(self.0[i], _mm512_permutexvar_epi64(q, row));
        }
        self.carry()
    }

    /// Lanes that may be zero modulo p, given the difference of two stored elements: one in 2^50
    /// that is not passes too.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn maybe_zero(&self) -> u8 {
        let lowest = _mm512_and_si512(self.0[0], splat(MASK as i64));
        _mm512_testn_epi64_mask(lowest, lowest)
            | _mm512_cmpeq_epi64_mask(lowest, splat(P[0] as i64))
            | _mm512_cmpeq_epi64_mask(lowest, splat((MASK + 1 - P[0]) as i64))
    }

    /// Lanes whose limbs are all zero.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) fn zero_limbs(&self) -> u8 {
        let mut any = self.0[0];
        for i in 1..8 {
            any = _mm512_or_si512(any, self.0[i]);
        }
        _mm512_testn_epi64_mask(any, any)
    }

    /// Lanes that are zero modulo p, of values in (-8 p, 8 p).
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn zeros(self) -> u8 {
        let x = self.factor();
        let mut zeros = 0;
        for k in 1..16 {
            let mut equal = 0xff;
            let mut multiple = [_mm512_setzero_si512(); 8];
            for i in 0..8 {
                multiple[i] = splat(k * P[i] as i64);
            }
            let multiple = Wide(multiple).carry();
            for i in 0..8 {
                equal &= _mm512_cmpeq_epi64_mask(x.0[i], multiple.0[i]);
            }
            zeros |= equal;
        }
        zeros
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blst::{blst_fp_mul, blst_fp_sub};
    use blstrs::Fp;
    use ff::Field;
    use rand::{rngs::StdRng, SeedableRng};

    fn random(rng: &mut StdRng) -> [blst_fp; 8] {
        std::array::from_fn(|_| Fp::random(&mut *rng).into())
    }

    fn to_lanes(x: &[blst_fp; 8]) -> Fp8 {
        // SAFETY: the tests below ask `available` first.
        unsafe { Fp8::load(&std::array::from_fn(|i| Fp52::unpack(&x[i]))).adopted() }
    }

    fn from_lanes(x: &Fp8) -> [blst_fp; 8] {
        let mut elements = [Fp52::default(); 8];
        // SAFETY: the tests below ask `available` first.
        unsafe { x.released().store(&mut elements) };
        elements.map(|x| x.pack())
    }

    #[test]
    fn products_and_differences_are_those_of_blst() {
        if !available() {
            return;
        }
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..100 {
            let (a, b) = (random(&mut rng), random(&mut rng));
            let (x, y) = (to_lanes(&a), to_lanes(&b));
            // SAFETY: the processor is able.
            let (product, difference, reduced) = unsafe {
                let difference = x.wide().minus(&y.wide());
                (x.mul(&y).carry(), difference.factor(), difference.minus(&y.wide()).reduce())
            };
            let (mut expected, mut minus, mut twice) = (a, a, a);
            for i in 0..8 {
                // SAFETY: blst reads and writes elements.
                unsafe {
                    blst_fp_mul(&mut expected[i], &a[i], &b[i]);
                    blst_fp_sub(&mut minus[i], &a[i], &b[i]);
                    blst_fp_sub(&mut twice[i], &minus[i], &b[i]);
                }
            }
            assert_eq!(from_lanes(&product), expected);
            assert_eq!(from_lanes(&difference), minus);
            assert_eq!(from_lanes(&reduced), twice);
        }
    }
}
