//! The file's layout: which circuit it is of, how much of it there is, where that lies.
//!
//! Page 0 is the header (little-endian, its last 32 bytes its own BLAKE3 checksum). Three bitmaps
//! follow, each on a page of its own: which aux variables occur in A, which inputs in B, which aux
//! in B. Then the blocks of rows, the dictionary of coefficients (32 bytes each), and the index (40
//! bytes a block: its size, its rows, its checksum). The sizes in the header determine where each
//! begins and where the file ends.

use std::path::Path;

use blake3::Hash;

use super::CompiledError;
use crate::params::{Counts, Srs};

/// A header's first bytes.
const MAGIC: [u8; 8] = *b"cuzk-csr";
/// Raised whenever a byte of the file comes to mean something else.
const VERSION: u64 = 1;
/// The header's size, and what bitmaps are aligned to.
pub(super) const PAGE: u64 = 4096;
const SEALED: usize = PAGE as usize - 32;
/// Cache identifiers have about 110 characters.
const MAX_CIRCUIT: usize = 1024;
/// Bytes of an entry of the index.
pub(super) const ENTRY: usize = 40;

/// Which circuit a file is of: that of these parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The circuit's cache identifier.
    pub circuit: String,
    /// How many points of each query its parameters hold.
    pub counts: Counts,
}

impl Identity {
    /// The circuit that these are the parameters of.
    pub fn of(srs: &Srs) -> Self {
        Self { circuit: srs.header().circuit.clone(), counts: srs.header().counts }
    }

    fn counts(&self) -> [u64; 6] {
        let Counts { ic, h, l, a, b_g1, b_g2 } = self.counts;
        [ic, h, l, a, b_g1, b_g2]
    }
}

/// How much of a circuit there is in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Constraints.
    pub rows: u64,
    /// Non-zero coefficients of A and B together.
    pub terms: u64,
    /// Bytes of all rows.
    pub row_bytes: u64,
    /// Blocks of rows.
    pub blocks: u64,
    /// Entries of the dictionary of coefficients.
    pub coefficients: u64,
}

/// The parts that have a checksum in the header, in the checksums' order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Part {
    AAux,
    BInputs,
    BAux,
    Coefficients,
    Index,
}

impl Part {
    pub const ALL: [Self; 5] =
        [Self::AAux, Self::BInputs, Self::BAux, Self::Coefficients, Self::Index];

    pub const fn name(self) -> &'static str {
        match self {
            Self::AAux => "the variables in A",
            Self::BInputs => "the inputs in B",
            Self::BAux => "the variables in B",
            Self::Coefficients => "the coefficients",
            Self::Index => "the index",
        }
    }
}

/// A part's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub offset: u64,
    pub bytes: u64,
}

/// Where everything lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub parts: [Extent; 5],
    /// Of the first block.
    pub rows: u64,
    pub end: u64,
}

impl Layout {
    pub fn of(counts: &Counts, sizes: &Sizes) -> Self {
        let mut end = PAGE;
        let mut place = |bytes: u64, align: u64| {
            let offset = end.next_multiple_of(align);
            end = offset + bytes;
            Extent { offset, bytes }
        };
        let bitmap = |bits: u64| bits.div_ceil(64) * 8;
        let a_aux = place(bitmap(counts.l), PAGE);
        let b_inputs = place(bitmap(counts.ic), PAGE);
        let b_aux = place(bitmap(counts.l), PAGE);
        let rows = place(sizes.row_bytes, PAGE).offset;
        let coefficients = place(sizes.coefficients * 32, 1);
        let index = place(sizes.blocks * ENTRY as u64, 1);
        Self { parts: [a_aux, b_inputs, b_aux, coefficients, index], rows, end }
    }
}

/// What the first page says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub identity: Identity,
    pub sizes: Sizes,
    pub checksums: [Hash; 5],
}

impl Header {
    pub fn layout(&self) -> Layout {
        Layout::of(&self.identity.counts, &self.sizes)
    }

    /// As page 0.
    pub fn encode(&self) -> Vec<u8> {
        let Sizes { rows, terms, row_bytes, blocks, coefficients } = self.sizes;
        let mut page = MAGIC.to_vec();
        page.extend(VERSION.to_le_bytes());
        for number in self.identity.counts().into_iter().chain([rows, terms, row_bytes]) {
            page.extend(number.to_le_bytes());
        }
        page.extend(blocks.to_le_bytes());
        page.extend(coefficients.to_le_bytes());
        self.checksums.iter().for_each(|checksum| page.extend(checksum.as_bytes()));
        page.extend((self.identity.circuit.len() as u64).to_le_bytes());
        page.extend(self.identity.circuit.as_bytes());
        page.resize(SEALED, 0);
        page.extend(blake3::hash(&page).as_bytes());
        page
    }

    /// Of a whole file.
    pub fn decode(path: &Path, file: &[u8]) -> Result<Self, CompiledError> {
        let bytes = file.len() as u64;
        let wrong = |found: String, expected: String| CompiledError::Header {
            path: path.into(),
            found,
            expected,
        };
        let Some(page) = file.first_chunk::<{ PAGE as usize }>() else {
            return Err(wrong(format!("a file of {bytes} bytes"), format!("at least {PAGE}")));
        };
        let mut rest = &page[..];
        let magic: [u8; 8] = take(&mut rest);
        if magic != MAGIC {
            let text = |magic: [u8; 8]| format!("magic {:?}", String::from_utf8_lossy(&magic));
            return Err(wrong(text(magic), text(MAGIC)));
        }
        let version = number(&mut rest);
        if version != VERSION {
            return Err(wrong(format!("version {version}"), format!("version {VERSION}")));
        }
        let (found, expected) = (blake3::hash(&page[..SEALED]), &page[SEALED..]);
        if found.as_bytes() != expected {
            return Err(wrong(format!("header checksum {found}"), hex::encode(expected)));
        }
        // From here on the page is as it was written; what follows guards against a writer's bug.
        let numbers: [u64; 11] = std::array::from_fn(|_| number(&mut rest));
        let [ic, h, l, a, b_g1, b_g2, rows, terms, row_bytes, blocks, coefficients] = numbers;
        if numbers.iter().any(|number| *number > 1 << 48) {
            return Err(wrong(format!("sizes {numbers:?}"), "plausible ones".into()));
        }
        let checksums = Part::ALL.map(|_| Hash::from_bytes(take(&mut rest)));
        let length = (number(&mut rest) as usize).min(MAX_CIRCUIT);
        let circuit = String::from_utf8_lossy(&rest[..length]).into_owned();
        let counts = Counts { ic, h, l, a, b_g1, b_g2 };
        let sizes = Sizes { rows, terms, row_bytes, blocks, coefficients };
        let header = Self { identity: Identity { circuit, counts }, sizes, checksums };
        let end = header.layout().end;
        if bytes != end {
            return Err(wrong(format!("a file of {bytes} bytes"), format!("{end} bytes")));
        }
        Ok(header)
    }

    /// Whether it is a file of that circuit.
    pub fn require(&self, path: &Path, expected: &Identity) -> Result<(), CompiledError> {
        if self.identity == *expected {
            return Ok(());
        }
        let text = |identity: &Identity| {
            let Identity { circuit, counts } = identity;
            format!("circuit {circuit} of {counts:?}")
        };
        let (found, expected) = (text(&self.identity), text(expected));
        Err(CompiledError::Header { path: path.into(), found, expected })
    }
}

/// The next bytes of a page that is longer than all its fields.
fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&rest[..N]);
    *rest = &rest[N..];
    field
}

fn number(rest: &mut &[u8]) -> u64 {
    u64::from_le_bytes(take(rest))
}

/// A block's place, and the rows it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub offset: u64,
    pub bytes: u32,
    pub rows: u32,
    pub checksum: Hash,
}

impl Block {
    /// As an entry of the index, which leaves the offset out: blocks follow each other.
    pub fn encode(&self) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        entry[..4].copy_from_slice(&self.bytes.to_le_bytes());
        entry[4..8].copy_from_slice(&self.rows.to_le_bytes());
        entry[8..].copy_from_slice(self.checksum.as_bytes());
        entry
    }

    /// From entries of the index; the first block begins at `offset`.
    pub fn decode_all(index: &[u8], mut offset: u64) -> Vec<Self> {
        let decode = |mut entry: &[u8]| {
            let bytes = u32::from_le_bytes(take(&mut entry));
            let rows = u32::from_le_bytes(take(&mut entry));
            let block = Self { offset, bytes, rows, checksum: Hash::from_bytes(take(&mut entry)) };
            offset += u64::from(bytes);
            block
        };
        index.chunks_exact(ENTRY).map(decode).collect()
    }
}
