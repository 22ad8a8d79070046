//! Which circuit, and so which parameter file, a proof needs.
//!
//! A kind and a sector size determine it: Filecoin's identifier (the file's name is its digest)
//! holds neither the API version nor the features, and the number of partitions of non-interactive
//! PoRep was chosen so that each has the interactive one's challenges. So v1, v1_1, synthetic and
//! non-interactive PoRep share one file a size, and both WindowPoSt versions do.

use std::fmt;
use std::str::FromStr;

use storage_proofs_core::parameter_cache::VERSION;

use super::{guard, porep, post, snap, NameError, ProofError, ProofKind};
use crate::circuit::AnyCircuit;

/// A sector size with published parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum SectorSize {
    KiB2,
    MiB8,
    MiB512,
    GiB32,
    GiB64,
}

impl SectorSize {
    /// Every size, smallest first: the order of the registered proofs' numbers.
    pub const ALL: [Self; 5] = [Self::KiB2, Self::MiB8, Self::MiB512, Self::GiB32, Self::GiB64];

    /// In bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::KiB2 => 2 << 10,
            Self::MiB8 => 8 << 20,
            Self::MiB512 => 512 << 20,
            Self::GiB32 => 32 << 30,
            Self::GiB64 => 64 << 30,
        }
    }

    /// In 32-byte nodes: the leaves of its trees.
    pub const fn nodes(self) -> usize {
        (self.bytes() / 32) as usize
    }

    /// The size of so many bytes.
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|size| size.bytes() == bytes)
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::KiB2 => "2k",
            Self::MiB8 => "8m",
            Self::MiB512 => "512m",
            Self::GiB32 => "32g",
            Self::GiB64 => "64g",
        }
    }
}

impl fmt::Display for SectorSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::KiB2 => "2 KiB",
            Self::MiB8 => "8 MiB",
            Self::MiB512 => "512 MiB",
            Self::GiB32 => "32 GiB",
            Self::GiB64 => "64 GiB",
        })
    }
}

/// Calls a function generic over the sector's tree, `f::<Tree>(args…)`, with the tree of a size.
/// Three instances (binary code is large), where `filecoin_proofs::with_shape!` makes four.
macro_rules! with_tree {
    ($size:expr, $f:ident($($arg:expr),* $(,)?)) => {{
        use filecoin_proofs::constants::{SectorShapeBase, SectorShapeSub8, SectorShapeTop2};
        match $size {
            SectorSize::KiB2 | SectorSize::MiB8 | SectorSize::MiB512 => {
                $f::<SectorShapeBase>($($arg),*)
            }
            SectorSize::GiB32 => $f::<SectorShapeSub8>($($arg),*),
            SectorSize::GiB64 => $f::<SectorShapeTop2>($($arg),*),
        }
    }};
}
pub(super) use with_tree;

/// Names a circuit and its parameter file: `porep-32g`, `wpost-32g`, `winning-32g`, `snap-32g`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CircuitId {
    /// The kind of proof.
    pub kind: ProofKind,
    /// The sector size.
    pub sector_size: SectorSize,
}

impl CircuitId {
    /// Every circuit, by kind, then by size.
    pub fn all() -> impl Iterator<Item = Self> {
        ProofKind::ALL.into_iter().flat_map(|kind| {
            SectorSize::ALL.into_iter().map(move |sector_size| Self { kind, sector_size })
        })
    }

    /// The name of its files in FIL_PROOFS_PARAMETER_CACHE without `.params` or `.vk`: `v28-…`.
    pub fn file_stem(self) -> Result<String, ProofError> {
        let identifier = match self.kind {
            ProofKind::PorepSealCommit => porep::cache_identifier(self.sector_size),
            ProofKind::SnapDealsUpdate => snap::cache_identifier(self.sector_size),
            kind => post::cache_identifier(kind, self.sector_size),
        };
        let identifier = identifier.map_err(|reason| ProofError::circuit(self, reason))?;
        Ok(format!("v{VERSION}-{identifier}"))
    }

    /// The circuit without a witness: one partition, for counting its constraints and for making
    /// development parameters. Takes little memory until synthesised.
    pub fn blank(self) -> Result<Box<dyn AnyCircuit>, ProofError> {
        guard::building(self, || match self.kind {
            ProofKind::PorepSealCommit => porep::blank(self.sector_size),
            ProofKind::SnapDealsUpdate => snap::blank(self.sector_size),
            kind => post::blank(kind, self.sector_size),
        })
    }

    const fn prefix(self) -> &'static str {
        match self.kind {
            ProofKind::PorepSealCommit => "porep",
            ProofKind::SnapDealsUpdate => "snap",
            ProofKind::WindowPostPartition => "wpost",
            ProofKind::WinningPost => "winning",
        }
    }
}

impl fmt::Display for CircuitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}-{}", self.prefix(), self.sector_size.suffix()))
    }
}

impl FromStr for CircuitId {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        Self::all().find(|id| id.to_string() == name).ok_or_else(|| {
            NameError::new("circuit", name, "{porep,snap,wpost,winning}-{2k,8m,512m,32g,64g}")
        })
    }
}
