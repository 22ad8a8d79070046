//! Affine additions by the hundred with one inversion for all (Montgomery's trick, lane by lane):
//! six products an addition, eight at once. Equal, opposite and infinite points are told apart by a
//! slow path that a mask leads to, in the same pass.

use super::lanes::{Coordinate, Lanes, WideLanes};
use crate::device::cpu::fp52::{Fp52, ONE};
use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};

/// Additions that share an inversion.
pub(super) const BATCH: usize = 2048;

/// An affine point; infinity has all limbs zero, which no point on the curves does.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Point<const D: usize> {
    pub(super) x: Coordinate<D>,
    pub(super) y: Coordinate<D>,
}

impl<const D: usize> Point<D> {
    pub(super) const INFINITY: Self = Self { x: [Fp52::ZERO; D], y: [Fp52::ZERO; D] };

    /// The coordinates of all of `points`.
    pub(super) fn components(points: &mut [Self]) -> &mut [Fp52] {
        let len = size_of_val(points) / size_of::<Fp52>();
        // SAFETY: a point is 2·D elements and nothing else.
        unsafe { std::slice::from_raw_parts_mut(points.as_mut_ptr().cast(), len) }
    }

    pub(super) fn is_infinity(&self) -> bool {
        self.x.iter().chain(&self.y).all(Fp52::is_zero_limbs)
    }
}

/// One of the two points of an addition: where it lies, and whether its negative is meant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Term<const D: usize>(*const Point<D>);

// SAFETY: following the pointer is unsafe anyway.
unsafe impl<const D: usize> Send for Term<D> {}

impl<const D: usize> Term<D> {
    pub(super) fn new(point: *const Point<D>, negative: bool) -> Self {
        Self(point.wrapping_byte_add(usize::from(negative)))
    }

    pub(super) fn point(self) -> *const Point<D> {
        self.0.map_addr(|address| address & !1)
    }

    pub(super) fn negative(self) -> bool {
        self.0.addr() & 1 == 1
    }
}

/// An addition to be done: `*sum = a + b`. The sum may replace one of its own terms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addition<const D: usize> {
    pub(super) a: Term<D>,
    pub(super) b: Term<D>,
    pub(super) sum: *mut Point<D>,
}

/// What the first pass leaves to the second, for eight additions.
struct Step<const D: usize> {
    /// The product of the denominators before.
    before: Lanes<D>,
    denominator: Lanes<D>,
    special: Special,
}

/// Lanes that are no ordinary addition.
#[derive(Clone, Copy, Default)]
struct Special {
    /// Twice the first point.
    double: u8,
    /// The first point as it is.
    first: u8,
    /// The second point as it is.
    second: u8,
    /// Infinity.
    none: u8,
}

/// Collects additions that do not depend on one another and does them a batch at a time.
pub(super) struct Adder<const D: usize> {
    additions: Vec<Addition<D>>,
    steps: Vec<Step<D>>,
    /// Two different points, and where their sum may go: they fill the last eight up.
    padding: Box<[Point<D>; 3]>,
}

// SAFETY: pointers are followed only between `push` and `finish`, whose caller vouches for them.
unsafe impl<const D: usize> Send for Adder<D> {}

impl<const D: usize> Adder<D> {
    /// The memory that one takes.
    pub(super) const BYTES: usize = BATCH * size_of::<Addition<D>>()
        + BATCH / 8 * size_of::<Step<D>>()
        + 3 * size_of::<Point<D>>();

    pub(super) fn new() -> Self {
        let mut padding = Box::new([Point::INFINITY; 3]);
        padding[0].x[0] = ONE;
        padding[1].y[0] = ONE;
        Self { additions: Vec::with_capacity(BATCH), steps: Vec::with_capacity(BATCH / 8), padding }
    }

    /// Adds now or later, by [`Self::finish`] at the latest.
    ///
    /// # Safety
    /// Until then the terms are valid for reads, the sum is valid for writes, and no other addition
    /// pushed since the last `finish` reads or writes the sum.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    #[inline]
    pub(super) unsafe fn push(&mut self, addition: Addition<D>) {
        self.additions.push(addition);
        if self.additions.len() == BATCH {
            self.finish();
        }
    }

    /// Does what is left to do.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    pub(super) fn finish(&mut self) {
        while !self.additions.len().is_multiple_of(8) {
            let (a, b) = (Term::new(&self.padding[0], false), Term::new(&self.padding[1], false));
            self.additions.push(Addition { a, b, sum: &mut self.padding[2] });
        }
        if !self.additions.is_empty() {
            let product = self.denominators();
            self.sums(product);
        }
        self.additions.clear();
        self.steps.clear();
    }

    /// Fills the steps and returns the product of all denominators.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn denominators(&mut self) -> Lanes<D> {
        let mut before = Lanes::one();
        for (i, eight) in self.additions.chunks_exact(8).enumerate() {
            for soon in self.additions.iter().skip(8 * i + LOOK_AHEAD).take(8) {
                prefetch(soon);
            }
            // SAFETY: `push` was promised valid points.
            let (x1, x2) = unsafe { (gather_x(eight, |e| e.a), gather_x(eight, |e| e.b)) };
            let difference = x2.wide().minus(&x1.wide());
            let mut step =
                Step { before, denominator: difference.factor(), special: Special::default() };
            if difference.maybe_zero() | x1.zero_lowest() | x2.zero_lowest() != 0 {
                step.single_out(eight);
            }
            before = before.times(&step.denominator);
            self.steps.push(step);
        }
        before
    }

    /// Inverts the product and unrolls it from the back.
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn sums(&self, product: Lanes<D>) {
        let mut inverse = product.invert();
        for (eight, step) in self.additions.chunks_exact(8).zip(&self.steps).rev() {
            let reciprocal = inverse.times(&step.before);
            inverse = inverse.times(&step.denominator);
            // SAFETY: `push` was promised valid points.
            let (x1, x2) = unsafe { (gather_x(eight, |e| e.a), gather_x(eight, |e| e.b)) };
            // SAFETY: as above.
            let (y1, y2) = unsafe { (gather_y(eight, |e| e.a), gather_y(eight, |e| e.b)) };
            let mut numerator = y2.minus(&y1).factor();
            if step.special.double != 0 {
                let square = x1.square();
                let tripled = square.plus(&square).plus(&square).factor();
                numerator = numerator.blend(step.special.double, &tripled);
            }
            let slope = reciprocal.times(&numerator);
            let mut x = slope.square().minus(&x1.wide()).minus(&x2.wide()).reduce();
            let mut y = slope.mul(&x1.wide().minus(&x.wide()).factor()).minus(&y1).reduce();
            if step.special.any() {
                (x, y) = step.special.choose((x, y), (x1, y1), (x2, y2));
            }
            // SAFETY: `push` was promised sums that nothing else touches.
            unsafe {
                x.scatter(each(eight, |e| (&raw mut (*e.sum).x)));
                y.scatter(each(eight, |e| (&raw mut (*e.sum).y)));
            }
        }
    }
}

impl<const D: usize> Step<D> {
    /// Finds the lanes that are no ordinary addition and gives them a denominator of their own.
    #[cold]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn single_out(&mut self, eight: &[Addition<D>]) {
        // SAFETY: `push` was promised valid points.
        let (x1, x2) = unsafe { (gather_x(eight, |e| e.a), gather_x(eight, |e| e.b)) };
        // SAFETY: as above.
        let (y1, y2) = unsafe { (gather_y(eight, |e| e.a), gather_y(eight, |e| e.b)) };
        let infinite1 = x1.zero_limbs() & y1.zero_limbs();
        let infinite2 = x2.zero_limbs() & y2.zero_limbs();
        let same_x = x2.wide().minus(&x1.wide()).zeros() & !infinite1 & !infinite2;
        let opposite = same_x & y1.plus(&y2).zeros();
        self.special = Special {
            double: same_x & !opposite,
            first: infinite2 & !infinite1,
            second: infinite1 & !infinite2,
            none: opposite | infinite1 & infinite2,
        };
        let Special { double, first, second, none } = self.special;
        self.denominator = self
            .denominator
            .blend(double, &y1.plus(&y1).factor())
            .blend(first | second | none, &Lanes::one());
    }
}

impl Special {
    fn any(self) -> bool {
        self.double | self.first | self.second | self.none != 0
    }

    #[cold]
    #[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
    fn choose<const D: usize>(
        self,
        (x, y): (Lanes<D>, Lanes<D>),
        (x1, y1): (Lanes<D>, WideLanes<D>),
        (x2, y2): (Lanes<D>, WideLanes<D>),
    ) -> (Lanes<D>, Lanes<D>) {
        let x = x.blend(self.first, &x1).blend(self.second, &x2).blend(self.none, &Lanes::zero());
        let y = y
            .blend(self.first, &y1.reduce())
            .blend(self.second, &y2.reduce())
            .blend(self.none, &Lanes::zero());
        (x, y)
    }
}

/// `f` of each of eight.
#[inline(always)]
fn each<T, U>(eight: &[T], f: impl Fn(&T) -> U) -> [U; 8] {
    [0, 1, 2, 3, 4, 5, 6, 7].map(|i| f(&eight[i]))
}

/// # Safety
/// The terms are valid for reads.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
#[inline]
unsafe fn gather_x<const D: usize>(
    eight: &[Addition<D>],
    term: impl Fn(&Addition<D>) -> Term<D>,
) -> Lanes<D> {
    // SAFETY: valid by the caller's word.
    unsafe { Lanes::gather(each(eight, |e| &raw const (*term(e).point()).x)) }
}

/// With the terms' signs.
///
/// # Safety
/// The terms are valid for reads.
#[target_feature(enable = "avx512f,avx512dq,avx512ifma")]
#[inline]
unsafe fn gather_y<const D: usize>(
    eight: &[Addition<D>],
    term: impl Fn(&Addition<D>) -> Term<D>,
) -> WideLanes<D> {
    let signs = each(eight, |e| u8::from(term(e).negative()));
    let mask = signs.iter().rev().fold(0, |mask, sign| mask << 1 | sign);
    // SAFETY: valid by the caller's word.
    let y = unsafe { Lanes::gather(each(eight, |e| &raw const (*term(e).point()).y)) };
    y.wide().negate(mask)
}

/// Additions ahead whose points are fetched.
const LOOK_AHEAD: usize = 64;

#[inline(always)]
fn prefetch<const D: usize>(addition: &Addition<D>) {
    for term in [addition.a, addition.b] {
        for line in 0..2 * D {
            // SAFETY: a hint; it cannot fault.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(term.point().cast::<i8>().wrapping_add(64 * line))
            };
        }
    }
}
