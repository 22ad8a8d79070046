//! How far an estimate of a partition's memory is to be trusted.
//!
//! An estimate is wrong until a partition has been measured: until then it is asked for with the
//! whole [`DOUBT`] on top, afterwards with the worst ratio of late and a little, more while few were
//! measured: the worst of few is not bad. It assumes that the work of one kind is alike; give
//! every kind a [`Trust`] of its own.

use serde::{Deserialize, Serialize};

/// Estimates are taken to be wrong by at most this share before anything was measured.
pub const DOUBT: f64 = 0.3;
/// On top of the worst ratio seen.
const SLACK: f64 = 0.03;
/// And this, divided by how many were measured.
const FEW: f64 = 0.07;
/// Ratios remembered.
const MEMORY: usize = 16;

/// What measurements have said about one kind's estimates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trust {
    ratios: [f64; MEMORY],
    measured: usize,
}

impl Trust {
    /// What to reserve for a partition that is estimated at so many bytes.
    pub fn ask(&self, estimate: u64) -> u64 {
        let worst = self.ratios.iter().fold(0.0, |a: f64, &b| a.max(b));
        let factor = match self.measured {
            0 => 1.0 + DOUBT,
            measured => worst + SLACK + FEW / measured as f64,
        };
        (estimate as f64 * factor) as u64
    }

    /// Whether anything was measured yet.
    pub fn measured(&self) -> bool {
        self.measured > 0
    }

    /// Takes in what a partition held at its peak.
    pub fn measure(&mut self, estimate: u64, peak: u64) {
        if estimate > 0 {
            self.ratios[self.measured % MEMORY] = peak as f64 / estimate as f64;
            self.measured += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmeasured_estimates_are_doubted_and_measured_ones_are_asked_for_as_measured() {
        let mut trust = Trust::default();
        assert_eq!(trust.ask(1000), 1300);
        trust.measure(1000, 800);
        assert_eq!(trust.ask(1000), 900);
        trust.measure(1000, 1100);
        assert_eq!(trust.ask(1000), 1165);
    }

    #[test]
    fn the_worst_is_forgotten_after_a_while() {
        let mut trust = Trust::default();
        trust.measure(1000, 2000);
        for _ in 0..MEMORY {
            trust.measure(1000, 1000);
        }
        assert_eq!(trust.ask(1000), 1034);
    }
}
