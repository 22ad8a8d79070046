//! A request as it came and as it was accepted.
//!
//! Whatever the bytes, [`ProofRequest::parse`] returns: it reads only into types of its own with
//! every length bounded by the message's, checks everything that Filecoin's crates assert later,
//! and names the field at fault. It does not check that the vanilla proof is true: a false one
//! fails in synthesis or in the verification of the finished proof.

use std::fmt;

use blstrs::Scalar;

use super::guard::{building, Guarded};
use super::porep::Porep;
use super::post::Post;
use super::snap::Snap;
use super::{CircuitId, Priority, ProofError, ProofKind};
use crate::circuit::AnyCircuit;

/// Longest `request_id`.
const MAX_REQUEST_ID_BYTES: usize = 512;
/// Longest `vanilla_proof`, and all `vanilla_proofs` together: as long as a message may be.
const MAX_BODY_BYTES: usize = 256 << 20;

/// `SubmitProofRequest` as it came over the wire: its fields, their names and meaning. What a
/// client left out is 0 or empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RawRequest {
    /// The idempotency key; empty for none.
    pub request_id: String,
    /// The wire's number: PoRep 1, SnapDeals 2, WindowPoSt 3, WinningPoSt 4.
    pub proof_kind: i32,
    /// In bytes; 0 leaves it to `registered_proof`.
    pub sector_size: u64,
    /// Filecoin's number of the RegisteredSealProof, -PoStProof or -UpdateProof.
    pub registered_proof: u64,
    /// The wire's number: low 1 … critical 4; 0 for the kind's default.
    pub priority: i32,
    /// PoRep: the output of C1 as JSON.
    pub vanilla_proof: Vec<u8>,
    /// PoSt: one bincode FallbackPoStSectorProof a sector. SnapDeals: one PartitionProof a
    /// partition.
    pub vanilla_proofs: Vec<Vec<u8>>,
    pub sector_number: u64,
    pub miner_id: u64,
    /// PoSt: 32 bytes.
    pub randomness: Vec<u8>,
    /// WindowPoSt: the partition's index in the deadline.
    pub partition_index: u32,
    /// SnapDeals: 32 bytes each.
    pub comm_r_old: Vec<u8>,
    pub comm_r_new: Vec<u8>,
    pub comm_d_new: Vec<u8>,
}

/// A request that cannot be a proof: the caller's mistake, never ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestError {
    /// Where: the wire's field, and the place inside it.
    pub field: String,
    /// What should be there.
    pub expected: String,
    /// What is.
    pub found: String,
}

impl RequestError {
    pub(super) fn new(
        field: impl Into<String>,
        expected: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self { field: field.into(), expected: expected.to_string(), found: format!("{found:#}") }
    }

    /// The same error seen from further out.
    pub(super) fn within(mut self, outer: &str) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{outer}{dot}{}", self.field);
        self
    }
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.field, self.expected, self.found)
    }
}

impl std::error::Error for RequestError {}

/// A request whose every field was checked, ready to be proved partition by partition.
pub struct ProofRequest {
    request_id: String,
    kind: ProofKind,
    priority: Priority,
    circuit_id: CircuitId,
    content: blake3::Hash,
    sector_number: u64,
    miner_id: u64,
    statement: Statement,
}

enum Statement {
    Porep(Porep),
    Post(Post),
    Snap(Snap),
}

/// One partition, ready to be synthesised, and what it proves.
pub struct Partition {
    /// The circuit with its witness. A panic in it is an error from it.
    pub circuit: Box<dyn AnyCircuit>,
    /// The public inputs without the constant one.
    pub inputs: Vec<Scalar>,
}

impl ProofRequest {
    /// Checks a request; see the module for what that means.
    pub fn parse(raw: &RawRequest) -> Result<Self, RequestError> {
        let kind = kind(raw.proof_kind)?;
        let priority = priority(raw.priority, kind)?;
        check_lengths(raw, kind)?;
        let (statement, sector_size) = match kind {
            ProofKind::PorepSealCommit => {
                let porep = Porep::parse(raw)?;
                let size = porep.sector_size();
                (Statement::Porep(porep), size)
            }
            ProofKind::WinningPost | ProofKind::WindowPostPartition => {
                let post = Post::parse(raw, kind)?;
                let size = post.sector_size();
                (Statement::Post(post), size)
            }
            ProofKind::SnapDealsUpdate => {
                let snap = Snap::parse(raw)?;
                let size = snap.sector_size();
                (Statement::Snap(snap), size)
            }
        };
        Ok(Self {
            request_id: raw.request_id.clone(),
            kind,
            priority,
            circuit_id: CircuitId { kind, sector_size },
            content: content(raw, kind),
            sector_number: raw.sector_number,
            miner_id: raw.miner_id,
            statement,
        })
    }

    /// The client's idempotency key; empty when it gave none.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// What it proves.
    pub fn kind(&self) -> ProofKind {
        self.kind
    }

    /// How urgent it is.
    pub fn priority(&self) -> Priority {
        self.priority
    }

    /// The circuit, and so the parameters, that all its partitions need.
    pub fn circuit_id(&self) -> CircuitId {
        self.circuit_id
    }

    /// Which sector, as the client said; the proof does not depend on it.
    pub fn sector_number(&self) -> u64 {
        self.sector_number
    }

    /// Whose sector, as the client said.
    pub fn miner_id(&self) -> u64 {
        self.miner_id
    }

    /// A hash of all that determines the proof. Two requests with one id and different contents are
    /// different attempts.
    pub fn content_hash(&self) -> blake3::Hash {
        self.content
    }

    /// How many partitions, each 192 bytes of the proof.
    pub fn partitions(&self) -> usize {
        match &self.statement {
            Statement::Porep(porep) => porep.partitions(),
            Statement::Post(_) => 1,
            Statement::Snap(snap) => snap.partitions(),
        }
    }

    /// Host memory that the request occupies.
    pub fn memory_bytes(&self) -> u64 {
        match &self.statement {
            Statement::Porep(porep) => porep.memory_bytes(),
            Statement::Post(post) => post.memory_bytes(),
            Statement::Snap(snap) => snap.memory_bytes(),
        }
    }

    /// Builds one partition's circuit; copies that partition's vanilla proofs and no others.
    pub fn partition(&self, index: usize) -> Result<Partition, ProofError> {
        let count = self.partitions();
        if index >= count {
            return Err(ProofError::NoSuchPartition { index, count });
        }
        let Partition { circuit, inputs } = building(self.circuit_id, || match &self.statement {
            Statement::Porep(porep) => porep.partition(index),
            Statement::Post(post) => post.partition(),
            Statement::Snap(snap) => snap.partition(index),
        })?;
        Ok(Partition { circuit: Box::new(Guarded(circuit)), inputs })
    }
}

impl fmt::Debug for ProofRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProofRequest")
            .field("request_id", &self.request_id)
            .field("circuit_id", &format_args!("{}", self.circuit_id))
            .field("priority", &self.priority)
            .field("content", &self.content.to_hex())
            .finish_non_exhaustive()
    }
}

/// The prover id of a miner: its id as an unsigned LEB128 varint, left-aligned in 32 bytes.
pub fn prover_id(mut miner_id: u64) -> [u8; 32] {
    let mut id = [0; 32];
    for byte in &mut id {
        *byte = (miner_id & 0x7f) as u8;
        miner_id >>= 7;
        if miner_id == 0 {
            break;
        }
        *byte |= 0x80;
    }
    id
}

fn kind(number: i32) -> Result<ProofKind, RequestError> {
    ProofKind::ALL
        .into_iter()
        .find(|kind| kind.wire_number() == number)
        .ok_or_else(|| RequestError::new("proof_kind", "a kind, 1 to 4", number))
}

fn priority(number: i32, kind: ProofKind) -> Result<Priority, RequestError> {
    match number {
        0 => Ok(kind.default_priority()),
        1 => Ok(Priority::Low),
        2 => Ok(Priority::Normal),
        3 => Ok(Priority::High),
        4 => Ok(Priority::Critical),
        _ => Err(RequestError::new("priority", "0 to 4", number)),
    }
}

fn check_lengths(raw: &RawRequest, kind: ProofKind) -> Result<(), RequestError> {
    if raw.request_id.len() > MAX_REQUEST_ID_BYTES {
        let expected = format!("at most {MAX_REQUEST_ID_BYTES} bytes");
        return Err(RequestError::new("request_id", expected, raw.request_id.len()));
    }
    let (field, bytes, other, other_is_empty) = match kind {
        ProofKind::PorepSealCommit => {
            let bytes = raw.vanilla_proof.len();
            ("vanilla_proof", bytes, "vanilla_proofs", raw.vanilla_proofs.is_empty())
        }
        _ => {
            let bytes = raw.vanilla_proofs.iter().map(Vec::len).sum();
            ("vanilla_proofs", bytes, "vanilla_proof", raw.vanilla_proof.is_empty())
        }
    };
    if bytes == 0 || bytes > MAX_BODY_BYTES {
        let expected = format!("1 to {MAX_BODY_BYTES} bytes for {kind}");
        return Err(RequestError::new(field, expected, bytes));
    }
    if !other_is_empty {
        let expected = format!("nothing for {kind}, which has {field}");
        return Err(RequestError::new(other, expected, "something"));
    }
    Ok(())
}

/// Exactly 32 bytes.
pub(super) fn bytes_32(field: &str, bytes: &[u8]) -> Result<[u8; 32], RequestError> {
    bytes.try_into().map_err(|_| RequestError::new(field, "32 bytes", bytes.len()))
}

/// Whether a number, 0 when not given, is what another part of the request says it is.
pub(super) fn agree(field: &str, given: u64, is: u64, says: &str) -> Result<(), RequestError> {
    if given == 0 || given == is {
        return Ok(());
    }
    Err(RequestError::new(field, format!("{is}, as {says} has it"), given))
}

/// Hashes what determines the proof, each part behind its length; not who asks, nor how urgently.
fn content(raw: &RawRequest, kind: ProofKind) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(kind.name().as_bytes());
    part(&raw.registered_proof.to_le_bytes());
    part(&raw.sector_number.to_le_bytes());
    part(&raw.miner_id.to_le_bytes());
    part(&raw.partition_index.to_le_bytes());
    for bytes in [&raw.randomness, &raw.comm_r_old, &raw.comm_r_new, &raw.comm_d_new] {
        part(bytes);
    }
    part(&raw.vanilla_proof);
    for proof in &raw.vanilla_proofs {
        part(proof);
    }
    hasher.finalize()
}
