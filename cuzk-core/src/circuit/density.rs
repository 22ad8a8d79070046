//! Which variables occur in a matrix: a growing bitmap.

use blstrs::Scalar;
use ff::Field;

/// One bit a variable: whether a matrix has a non-zero coefficient for it. Groth16 parameters hold
/// points for these variables only (a-query, b-query), in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Density {
    words: Vec<u64>,
    len: usize,
    ones: usize,
}

impl Density {
    /// An empty bitmap with room for `bits`.
    pub fn with_capacity(bits: usize) -> Self {
        Self { words: Vec::with_capacity(bits.div_ceil(64)), len: 0, ones: 0 }
    }

    /// A bitmap of `len` variables whose words are these; bits beyond `len` are zero.
    pub(super) fn from_words(words: Vec<u64>, len: usize) -> Self {
        let ones = words.iter().map(|word| word.count_ones() as usize).sum();
        Self { words, len, ones }
    }

    /// The next variable, not seen in the matrix yet.
    #[inline]
    pub fn push(&mut self) {
        if self.len.is_multiple_of(64) {
            self.words.push(0);
        }
        self.len += 1;
    }

    /// Variable `i` occurs.
    #[inline]
    pub fn set(&mut self, i: usize) {
        debug_assert!(i < self.len);
        let (word, bit) = (&mut self.words[i / 64], 1u64 << (i % 64));
        self.ones += usize::from(*word & bit == 0);
        *word |= bit;
    }

    /// The variables of these terms occur, but for those whose coefficient is zero.
    #[inline]
    pub fn mark<'a>(&mut self, terms: impl Iterator<Item = (&'a usize, &'a Scalar)>) {
        for (i, coefficient) in terms {
            if *coefficient != Scalar::ZERO {
                self.set(*i);
            }
        }
    }

    /// Whether variable `i` occurs.
    pub fn get(&self, i: usize) -> bool {
        self.words[i / 64] >> (i % 64) & 1 == 1
    }

    /// How many variables there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many of them occur.
    pub fn ones(&self) -> usize {
        self.ones
    }

    /// The occurring variables in order, 64 to a word.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
}
