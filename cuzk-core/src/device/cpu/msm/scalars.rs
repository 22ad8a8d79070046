//! The scalars of a multiplication: slices one after the other, each whole or thinned by a density.

use crate::circuit::Density;
use blstrs::Scalar;
use ff::Field;

/// Scalars that are looked at for an estimate.
const SAMPLE: usize = 1 << 16;

/// Neither zero nor one.
pub(super) fn is_full(scalar: &Scalar) -> bool {
    *scalar != Scalar::ONE && !scalar.is_zero_vartime()
}

/// Scalars in the order of their points, read as a stream. Clones start where the original stands.
#[derive(Debug, Clone, Default)]
pub struct Scalars<'a> {
    segments: Vec<Segment<'a>>,
    len: usize,
}

#[derive(Debug, Clone)]
struct Segment<'a> {
    rest: &'a [Scalar],
    density: Option<&'a Density>,
    /// The variable that `rest` begins with.
    next: usize,
}

impl<'a> Scalars<'a> {
    /// Every one of `scalars`.
    pub fn all(scalars: &'a [Scalar]) -> Self {
        Self::default().then_all(scalars)
    }

    /// Those of `scalars` that occur: the k-th point belongs to the k-th set bit.
    ///
    /// # Panics
    /// When `density` has another length than `scalars`.
    pub fn dense(scalars: &'a [Scalar], density: &'a Density) -> Self {
        Self::default().then_dense(scalars, density)
    }

    /// These, then every one of `scalars`.
    #[must_use]
    pub fn then_all(mut self, scalars: &'a [Scalar]) -> Self {
        self.segments.push(Segment { rest: scalars, density: None, next: 0 });
        self.len += scalars.len();
        self
    }

    /// These, then those of `scalars` that occur.
    ///
    /// # Panics
    /// When `density` has another length than `scalars`.
    #[must_use]
    pub fn then_dense(mut self, scalars: &'a [Scalar], density: &'a Density) -> Self {
        assert_eq!(scalars.len(), density.len(), "one bit a scalar");
        self.segments.push(Segment { rest: scalars, density: Some(density), next: 0 });
        self.len += density.ones();
        self
    }

    /// How many are left.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// About how many are neither zero nor one: counted in a sample, without regard to densities.
    pub(super) fn estimate_full(&self) -> usize {
        let all: usize = self.segments.iter().map(|segment| segment.rest.len()).sum();
        let step = if all > SAMPLE { all / SAMPLE } else { 1 };
        let sampled =
            |segment: &Segment| segment.rest.iter().step_by(step).filter(|s| is_full(s)).count();
        self.segments.iter().map(sampled).sum::<usize>() * step
    }

    /// Replaces `block` by the next `block.capacity()` scalars; by fewer only at the end.
    pub(super) fn fill(&mut self, block: &mut Vec<Scalar>) {
        block.clear();
        let wanted = block.capacity().min(self.len);
        for segment in &mut self.segments {
            segment.fill(block, wanted);
        }
        self.len -= block.len();
    }
}

impl Segment<'_> {
    fn fill(&mut self, block: &mut Vec<Scalar>, wanted: usize) {
        let Some(density) = self.density else {
            let (now, later) = self.rest.split_at(self.rest.len().min(wanted - block.len()));
            block.extend_from_slice(now);
            self.rest = later;
            return;
        };
        let mut taken = 0;
        while block.len() < wanted && taken < self.rest.len() {
            if density.get(self.next + taken) {
                block.push(self.rest[taken]);
            }
            taken += 1;
        }
        self.rest = &self.rest[taken..];
        self.next += taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_continue_where_the_last_one_ended() {
        let inputs: Vec<_> = (0..5).map(Scalar::from).collect();
        let aux: Vec<_> = (100..300).map(Scalar::from).collect();
        let mut density = Density::default();
        let mut expected = inputs.clone();
        for (i, scalar) in aux.iter().enumerate() {
            density.push();
            if i % 3 == 0 || i > 150 {
                density.set(i);
                expected.push(*scalar);
            }
        }
        let mut scalars = Scalars::all(&inputs).then_dense(&aux, &density).then_all(&inputs);
        expected.extend(inputs.clone());
        let (mut block, mut read) = (Vec::with_capacity(7), vec![]);
        for _ in 0..expected.len().div_ceil(7) {
            scalars.fill(&mut block);
            read.append(&mut block);
        }
        assert!(read == expected && scalars.is_empty());
    }
}
