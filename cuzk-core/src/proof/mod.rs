//! The proof kinds: from a request to circuits and public inputs, and back to a verified proof.

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
