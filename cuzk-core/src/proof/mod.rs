//! The proof kinds: from a request to circuits and public inputs.
//!
//! [`RawRequest`] is what a client sent, [`ProofRequest`] what survived validation: nothing in the
//! first may make the process panic or allocate without bound, and what is built from the second is
//! the circuit Filecoin's own crates define (nothing of them is rewritten here). All circuit code
//! is monomorphised in this module and leaves it as [`AnyCircuit`](crate::circuit::AnyCircuit).

mod circuit_id;
mod guard;
mod porep;
mod post;
mod registered;
mod request;
mod snap;
mod vanilla;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod production;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

pub use circuit_id::{CircuitId, SectorSize};
pub use request::{prover_id, Partition, ProofRequest, RawRequest, RequestError};

/// What a proof proves; one queue each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProofKind {
    /// PoRep C2.
    PorepSealCommit,
    /// SnapDeals' empty sector update.
    SnapDealsUpdate,
    /// One partition of WindowPoSt.
    WindowPostPartition,
    /// WinningPoSt.
    WinningPost,
}

impl ProofKind {
    /// Every kind, in the order of the wire's numbers.
    pub const ALL: [Self; 4] = [
        Self::PorepSealCommit,
        Self::SnapDealsUpdate,
        Self::WindowPostPartition,
        Self::WinningPost,
    ];

    /// The name people see and type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PorepSealCommit => "porep",
            Self::SnapDealsUpdate => "snap",
            Self::WindowPostPartition => "window-post",
            Self::WinningPost => "winning-post",
        }
    }

    /// The wire's number: PoRep 1, SnapDeals 2, WindowPoSt 3, WinningPoSt 4.
    pub const fn wire_number(self) -> i32 {
        self as i32 + 1
    }

    /// The priority of a request that names none: a missed WinningPoSt loses a block within the
    /// epoch, a missed WindowPoSt costs a fault fee within the deadline, the rest can wait.
    pub const fn default_priority(self) -> Priority {
        match self {
            Self::WinningPost => Priority::Critical,
            Self::WindowPostPartition => Priority::High,
            Self::PorepSealCommit | Self::SnapDealsUpdate => Priority::Normal,
        }
    }
}

impl fmt::Display for ProofKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ProofKind {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        match name {
            "porep" => Ok(Self::PorepSealCommit),
            "snap" | "update" => Ok(Self::SnapDealsUpdate),
            "window-post" | "window" => Ok(Self::WindowPostPartition),
            "winning-post" | "winning" => Ok(Self::WinningPost),
            _ => Err(NameError::new("proof kind", name, "porep, snap, window-post, winning-post")),
        }
    }
}

/// How urgent a job is; greater goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// Whenever nothing else waits.
    Low,
    /// Sealing and updates.
    Normal,
    /// Due within a deadline.
    High,
    /// Due within an epoch.
    Critical,
}

impl Priority {
    /// Every priority, the least urgent first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Normal, Self::High, Self::Critical];

    /// The name people see and type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Priority {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        match name {
            "low" => Ok(Self::Low),
            "normal" => Ok(Self::Normal),
            "high" => Ok(Self::High),
            "critical" => Ok(Self::Critical),
            _ => Err(NameError::new("priority", name, "low, normal, high, critical")),
        }
    }
}

/// A name that names nothing here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {found:?}; known: {known}")]
pub struct NameError {
    what: &'static str,
    found: String,
    known: &'static str,
}

impl NameError {
    fn new(what: &'static str, found: &str, known: &'static str) -> Self {
        Self { what, found: found.chars().take(64).collect(), known }
    }
}

/// A circuit could not be built, though its request was well formed.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// There is no such partition.
    #[error("partition {index} asked for, the proof has {count}")]
    NoSuchPartition {
        /// The partition asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Filecoin's crates refused the statement or the vanilla proof.
    #[error("building the {circuit} circuit: {reason}")]
    Circuit {
        /// The circuit.
        circuit: CircuitId,
        /// What they said.
        reason: String,
    },
}

impl ProofError {
    fn circuit(circuit: CircuitId, reason: impl fmt::Display) -> Self {
        Self::Circuit { circuit, reason: format!("{reason:#}") }
    }
}
