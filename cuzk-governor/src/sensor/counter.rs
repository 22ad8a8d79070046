//! Kernel counters and watermarks, made good for taking differences.

/// A total that never falls and never jumps when its source is exchanged for another.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    total: Option<u64>,
    raw: Option<u64>,
}

impl Counter {
    /// Takes a reading in; gives the total.
    pub(crate) fn advance(&mut self, raw: u64) -> u64 {
        let grown = self.raw.replace(raw).map_or(0, |before| raw.saturating_sub(before));
        *self.total.insert(self.total.map_or(raw, |total| total.saturating_add(grown)))
    }

    /// The next reading comes from another source: it adds nothing by itself.
    pub(crate) fn exchange_source(&mut self) {
        self.raw = None;
    }

    /// Nothing is told for now: whoever takes that for zero sees no jump when it is told again.
    pub(crate) fn fall_silent(&mut self) {
        *self = Self { total: Some(0), raw: None };
    }
}

/// What a watermark since the beginning tells about the time since the last sample.
#[derive(Debug, Default)]
pub(crate) struct Watermark(Option<u64>);

impl Watermark {
    /// The highest usage since the last call: where the watermark rose, it rose since then; where
    /// it did not, only `usage` is known.
    pub(crate) fn since_last(&mut self, watermark: u64, usage: u64) -> u64 {
        match self.0.replace(watermark) {
            Some(before) if watermark > before => watermark.max(usage),
            _ => usage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_starts_at_the_kernels_total_and_outlives_its_source() {
        let mut counter = Counter::default();
        assert_eq!(counter.advance(100), 100);
        assert_eq!(counter.advance(103), 103);
        counter.exchange_source();
        assert_eq!(counter.advance(9_000), 103);
        assert_eq!(counter.advance(9_001), 104);
    }

    #[test]
    fn a_counter_that_the_kernel_began_anew_does_not_fall() {
        let mut counter = Counter::default();
        counter.advance(100);
        assert_eq!(counter.advance(2), 100);
        assert_eq!(counter.advance(5), 103);
    }

    #[test]
    fn a_counter_begins_at_zero_after_a_silence() {
        let mut counter = Counter::default();
        counter.advance(100);
        counter.fall_silent();
        assert_eq!(counter.advance(9_000), 0);
        assert_eq!(counter.advance(9_001), 1);
    }

    #[test]
    fn a_watermark_tells_only_of_the_time_in_which_it_rose() {
        let mut watermark = Watermark::default();
        assert_eq!(watermark.since_last(900, 100), 100, "it may have risen long ago");
        assert_eq!(watermark.since_last(900, 110), 110);
        assert_eq!(watermark.since_last(950, 120), 950);
        assert_eq!(watermark.since_last(950, 130), 130);
        assert_eq!(watermark.since_last(40, 30), 30, "somebody has reset it");
        assert_eq!(watermark.since_last(60, 30), 60);
    }
}
