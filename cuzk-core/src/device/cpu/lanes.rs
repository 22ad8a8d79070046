//! Scalars in groups: the arithmetic of the transforms, once portable, once for AVX-512 IFMA.
//!
//! In memory a scalar always is what blst holds: four 64-bit limbs, Montgomery form, reduced. A
//! [`Lanes`] value is a group of them in registers and may be lazily reduced; what leaves through
//! [`Lanes::store`] is reduced again, so both kernels give the same bits. Code that is generic over
//! `Lanes` and meant to run inside a [`Job`] has to be `#[inline(always)]`: a function that is not
//! inlined into [`Kernel::run`] loses the wide instructions and most of the speed (not the result).

use std::array;

use blstrs::Scalar;

#[cfg(target_arch = "x86_64")]
use super::fr52::Ifma;

/// The widest group; rows of lane constants have this length whatever the kernel's width.
pub(super) const MAX_WIDTH: usize = 8;

/// A multiplier in the form that the kernel which made it multiplies by.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(super) struct Twiddle(pub(super) Scalar);

/// A group of scalars that are worked on together.
pub(super) trait Lanes: Copy {
    /// Scalars in a group.
    const WIDTH: usize;

    /// Brings a multiplier into this kernel's form.
    fn twiddle(w: Scalar) -> Twiddle;

    /// The same multiplier in every lane.
    fn splat(w: Twiddle) -> Self;

    /// A multiplier of its own in every lane: the first of `w`.
    fn each(w: &[Twiddle]) -> Self;

    /// Reads lane `i` from `from + i * stride`.
    ///
    /// # Safety
    /// All of these addresses are valid for reads.
    unsafe fn load(from: *const Scalar, stride: usize) -> Self;

    /// Writes lane `i`, reduced, to `to + i * stride`.
    ///
    /// # Safety
    /// All of these addresses are valid for writes.
    unsafe fn store(self, to: *mut Scalar, stride: usize);

    /// `(u, v)` becomes `(u + w v, u - w v)`; `w` holds multipliers. At most [`MAX_LEVELS`] of them
    /// may follow each other between a load and a store.
    fn butterfly(u: &mut Self, v: &mut Self, w: &Self);

    /// The product with multipliers; of two multipliers it is a multiplier again.
    fn scale(self, w: Self) -> Self;

    /// The product of two values as they were loaded.
    fn product(self, other: Self) -> Self;

    /// The difference of two values that are loaded or scaled.
    fn minus(self, other: Self) -> Self;
}

/// Butterflies that a value may pass between a load and a store.
pub(super) const MAX_LEVELS: u32 = 14;

/// A piece of work for whichever kernel there is. `run` must be `#[inline(always)]`.
pub(super) trait Job {
    /// Does the work with groups of `L`.
    fn run<L: Lanes>(self);
}

/// Which arithmetic a domain uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// One scalar at a time: for domains too small to fill a group.
    Single,
    /// blst's arithmetic, on any processor.
    Portable,
    /// Eight scalars at a time in 52-bit limbs.
    #[cfg(target_arch = "x86_64")]
    Ifma(IfmaFound),
}

/// The proof that this processor has the instructions of [`Kernel::Ifma`].
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IfmaFound(());

impl Kernel {
    /// Scalars in a group.
    pub(super) fn width(self) -> usize {
        match self {
            Self::Single => 1,
            _ => MAX_WIDTH,
        }
    }

    /// The fastest that this processor can do.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512ifma")
        {
            return Self::Ifma(IfmaFound(()));
        }
        Self::Portable
    }

    /// Brings a multiplier into this kernel's form.
    pub(super) fn twiddle(self, w: Scalar) -> Twiddle {
        match self {
            Self::Single | Self::Portable => Portable::<1>::twiddle(w),
            #[cfg(target_arch = "x86_64")]
            Self::Ifma(_) => Ifma::twiddle(w),
        }
    }

    /// Does a piece of work.
    pub(super) fn run(self, job: impl Job) {
        match self {
            Self::Single => job.run::<Portable<1>>(),
            Self::Portable => job.run::<Portable<MAX_WIDTH>>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an `IfmaFound` is made only where the processor has these instructions.
            Self::Ifma(_) => unsafe { run_ifma(job) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
unsafe fn run_ifma(job: impl Job) {
    job.run::<Ifma>();
}

/// blst's arithmetic on groups of `N`, which share their cache lines and their multipliers.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Portable<const N: usize>([Scalar; N]);

impl<const N: usize> Portable<N> {
    #[inline(always)]
    fn zip(self, other: Self, op: impl Fn(Scalar, Scalar) -> Scalar) -> Self {
        Self(array::from_fn(|i| op(self.0[i], other.0[i])))
    }
}

impl<const N: usize> Lanes for Portable<N> {
    const WIDTH: usize = N;

    #[inline(always)]
    fn twiddle(w: Scalar) -> Twiddle {
        Twiddle(w)
    }

    #[inline(always)]
    fn splat(w: Twiddle) -> Self {
        Self([w.0; N])
    }

    #[inline(always)]
    fn each(w: &[Twiddle]) -> Self {
        Self(array::from_fn(|i| w[i].0))
    }

    #[inline(always)]
    unsafe fn load(from: *const Scalar, stride: usize) -> Self {
        // SAFETY: the caller vouches for every lane's address.
        Self(array::from_fn(|i| unsafe { *from.add(i * stride) }))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut Scalar, stride: usize) {
        for (i, x) in self.0.into_iter().enumerate() {
            // SAFETY: the caller vouches for every lane's address.
            unsafe { *to.add(i * stride) = x };
        }
    }

    #[inline(always)]
    fn butterfly(u: &mut Self, v: &mut Self, w: &Self) {
        // Scalar by scalar and in place: copies of whole groups cost as much as the arithmetic.
        for ((u, v), w) in u.0.iter_mut().zip(&mut v.0).zip(&w.0) {
            let mut t = *v;
            t *= w;
            *v = *u;
            *v -= &t;
            *u += &t;
        }
    }

    #[inline(always)]
    fn scale(self, w: Self) -> Self {
        self.zip(w, |x, y| x * y)
    }

    #[inline(always)]
    fn product(self, other: Self) -> Self {
        self.zip(other, |x, y| x * y)
    }

    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.zip(other, |x, y| x - y)
    }
}

/// Memory for groups of any kernel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line([u64; 8]);

/// Lines that a group takes in the widest kernel.
const LINES_PER_GROUP: usize = 5;

/// Room for `groups` groups of any kernel.
pub(super) fn scratch(groups: usize) -> Vec<Line> {
    vec![Line([0; 8]); groups * LINES_PER_GROUP]
}

/// The scratch as groups of one kernel, with whatever was there before.
#[inline(always)]
pub(super) fn as_groups<L: Lanes>(lines: &mut [Line]) -> &mut [L] {
    // SAFETY: every kernel's group is plain integers, aligned to a line at most: any bits are valid.
    unsafe { lines.align_to_mut::<L>().1 }
}

/// `x[i] *= y[i]`, slices of one length.
pub(super) struct Multiply<'a> {
    pub(super) x: &'a mut [Scalar],
    pub(super) y: &'a [Scalar],
}

impl Job for Multiply<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (x, x_rest) = self.x.split_at_mut(self.x.len() / L::WIDTH * L::WIDTH);
        let (y, y_rest) = self.y.split_at(x.len());
        for (x, y) in x.chunks_exact_mut(L::WIDTH).zip(y.chunks_exact(L::WIDTH)) {
            // SAFETY: each chunk holds one group.
            unsafe {
                L::load(x.as_ptr(), 1).product(L::load(y.as_ptr(), 1)).store(x.as_mut_ptr(), 1)
            };
        }
        for (x, y) in x_rest.iter_mut().zip(y_rest) {
            *x *= y;
        }
    }
}
