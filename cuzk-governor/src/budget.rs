//! The ledger of everything the process holds or has been promised.

/// Who goes first. Waiting raises it; see [`crate::budget`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Whatever is left.
    Low,
    /// The usual.
    #[default]
    Normal,
    /// Before the usual (WindowPoSt).
    High,
    /// Before everything (WinningPoSt).
    Critical,
}

/// The ledger's sums at one instant, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What may be reserved in all.
    pub total: u64,
    /// What is reserved.
    pub reserved: u64,
    /// What of it is known to be resident.
    pub resident: u64,
    /// What waits for memory, and has not got it.
    pub waiting: u64,
}
