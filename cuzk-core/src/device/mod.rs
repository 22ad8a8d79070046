//! Where transforms and multi-exponentiations run.
//!
//! Work is cut into chunks of at most a few hundred milliseconds; between any two of them the
//! device asks its [`Checkpoint`], which may make it wait (a more urgent proof goes first) or end it.

pub mod cpu;

use std::ops::Range;

/// Asked between any two chunks of work.
pub trait Checkpoint: Sync {
    /// Returns when the work may go on; blocks while something more urgent runs.
    ///
    /// # Errors
    /// [`Interrupted`] when the work was cancelled or shed: drop everything and return it.
    fn check(&self) -> Result<(), Interrupted>;

    /// Whether memory is so short that pages of files are better dropped as soon as they were read.
    fn is_strained(&self) -> bool {
        false
    }

    /// Told by a multi-exponentiation that it will not look at these points again.
    fn has_read(&self, _points: Range<usize>) {}
}

/// The work was cancelled or shed at a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the work was interrupted")]
pub struct Interrupted;

/// A checkpoint that never interrupts: benches, tests, one-shot commands.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unhindered;

impl Checkpoint for Unhindered {
    fn check(&self) -> Result<(), Interrupted> {
        Ok(())
    }
}
