//! What the recent past teaches about one bound: extremes of the last ticks, quantiles of the
//! last errors. Fixed storage, so that learning allocates nothing.

/// The last few values of something, for their extremes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    values: [u64; Recent::MOST],
    filled: usize,
    next: usize,
}

impl Recent {
    /// The most that are kept.
    pub(super) const MOST: usize = 16;

    pub(super) fn push(&mut self, value: u64) {
        self.values[self.next] = value;
        self.next = (self.next + 1) % Self::MOST;
        self.filled = (self.filled + 1).min(Self::MOST);
    }

    /// The last `n` of them, newest first.
    fn last(&self, n: usize) -> impl Iterator<Item = u64> + '_ {
        let back = move |i| self.values[(self.next + Self::MOST - 1 - i) % Self::MOST];
        (0..n.min(self.filled)).map(back)
    }

    /// The one before the last `n`, if it is kept.
    pub(super) fn before(&self, n: usize) -> Option<u64> {
        self.last(n + 1).nth(n)
    }

    /// The greatest of the last `n`; 0 of none.
    pub(super) fn max(&self, n: usize) -> u64 {
        self.last(n).max().unwrap_or(0)
    }

    /// The smallest of the last `n`; all there is of none.
    pub(super) fn min(&self, n: usize) -> u64 {
        self.last(n).min().unwrap_or(u64::MAX)
    }
}

/// The last errors, in order of time and of size.
#[derive(Clone, Debug)]
pub(super) struct Errors {
    by_time: Vec<u64>,
    by_size: Vec<u64>,
    next: usize,
}

impl Errors {
    /// The most that are kept: eight and a half minutes of ticks.
    const MOST: usize = 512;

    pub(super) fn new() -> Self {
        let room = || Vec::with_capacity(Self::MOST);
        Self { by_time: room(), by_size: room(), next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.by_size.len()
    }

    pub(super) fn push(&mut self, error: u64) {
        if self.by_time.len() < Self::MOST {
            self.by_time.push(error);
        } else {
            let oldest = std::mem::replace(&mut self.by_time[self.next], error);
            self.next = (self.next + 1) % Self::MOST;
            let at = self.by_size.partition_point(|&size| size < oldest);
            self.by_size.remove(at);
        }
        let at = self.by_size.partition_point(|&size| size < error);
        self.by_size.insert(at, error);
    }

    /// The smallest error that a share `q` of them does not exceed; 0 of none.
    pub(super) fn quantile(&self, q: f64) -> u64 {
        let rank = (q * self.len() as f64).ceil() as usize;
        self.by_size.get(rank.clamp(1, self.len().max(1)) - 1).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_are_of_the_last_few_only() {
        let mut recent = Recent::default();
        assert_eq!((recent.max(3), recent.min(3)), (0, u64::MAX));
        for value in 1..=20 {
            recent.push(value);
        }
        assert_eq!((recent.max(3), recent.min(3)), (20, 18));
        assert_eq!(recent.min(99), 5, "sixteen are kept");
        assert_eq!((recent.before(0), recent.before(15)), (Some(20), Some(5)));
        assert_eq!(recent.before(16), None);
    }

    #[test]
    fn a_quantile_forgets_what_is_older_than_the_window() {
        let mut errors = Errors::new();
        assert_eq!(errors.quantile(0.99), 0);
        errors.push(1_000_000);
        (1..=511).for_each(|error| errors.push(error));
        assert_eq!(errors.quantile(1.0), 1_000_000);
        assert_eq!(errors.quantile(0.5), 256);
        errors.push(0);
        assert_eq!((errors.quantile(1.0), errors.len()), (511, 512));
    }
}
