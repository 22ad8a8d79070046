//! A recorded circuit, mapped, and A and B times a witness.
//!
//! The mapping is in no reservation: its pages are clean, the kernel's to take back and read again.
//! What this holds itself is the dictionary (2 MiB at most) and 64 bytes a block of 256 KiB.
//!
//! Every byte is checked before it is used, each time: header, dictionary and index when the file is
//! opened, blocks and bitmaps when they are read. Checking all of it at open would read the file
//! twice and still trust pages that come from disk a second time; a checksum costs a tenth of
//! decoding what it covers.
//!
//! Assumes that nobody writes into a file once it has its name: a recording is made beside that and
//! renamed. Someone else who truncates it while it is mapped ends the process with SIGBUS.

use std::path::{Path, PathBuf};

use blake3::Hash;
use blstrs::Scalar;
use memmap2::{Advice, Mmap};
use rayon::prelude::*;

use super::format::{Block, Extent, Header, Identity, Part, Sizes};
use super::rows::{Decoder, MAX_COEFFICIENTS};
use super::CompiledError;
use crate::circuit::{Density, Synthesized, Witness};
use crate::device::Checkpoint;
use crate::params::{open_file, ParamsError};

/// Blocks that one thread gets through between two looks at the checkpoint: some 20 ms of work.
const BLOCKS_PER_THREAD: usize = 8;

/// A circuit's matrices A and B. There is no C: the prover never evaluates it, as it is the product
/// of A's and B's values for a satisfied witness.
#[derive(Debug)]
pub struct Compiled {
    path: PathBuf,
    map: Mmap,
    header: Header,
    coefficients: Vec<Scalar>,
    blocks: Vec<Block>,
}

impl Compiled {
    /// Maps the recording of a circuit.
    ///
    /// # Errors
    /// [`CompiledError`] when it cannot be read, is damaged, of another version or circuit.
    pub fn open(path: &Path, expected: &Identity) -> Result<Self, CompiledError> {
        let (file, _) = open_file(path)?;
        // SAFETY: recordings are never written once they have their name (see above), so the bytes
        // stay what they are while they are mapped.
        let map = unsafe { Mmap::map(&file) }.map_err(ParamsError::io(path, "map"))?;
        let header = Header::decode(path, &map)?;
        header.require(path, expected)?;
        let mut compiled =
            Self { path: path.into(), map, header, coefficients: vec![], blocks: vec![] };
        compiled.coefficients = compiled.read_coefficients()?;
        compiled.blocks = compiled.read_index()?;
        Ok(compiled)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's size: what is resident at most when all of it is.
    pub fn size_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Bytes of dictionary and index, which are no part of the mapping.
    pub fn held_bytes(&self) -> u64 {
        (size_of_val(&*self.coefficients) + size_of_val(&*self.blocks)) as u64
    }

    /// How much of a circuit there is in it.
    pub fn sizes(&self) -> &Sizes {
        &self.header.sizes
    }

    /// Writes A times the witness to `a` and B times the witness to `b`, as many scalars as there
    /// are rows, and reads the file in order. The rayon pool that the calling thread belongs to does
    /// the work; one of none does it alone, as the processors are then somebody else's. The
    /// checkpoint is asked on the calling thread while no worker is busy.
    ///
    /// # Errors
    /// [`CompiledError`] when interrupted, when the file is damaged or its circuit is not the
    /// witness's; the vectors then hold nothing of use.
    pub fn evaluate(
        &self,
        witness: Witness<'_>,
        a: &mut [Scalar],
        b: &mut [Scalar],
        checkpoint: &dyn Checkpoint,
    ) -> Result<Synthesized, CompiledError> {
        let Sizes { rows, .. } = self.header.sizes;
        let counts = &self.header.identity.counts;
        self.require("inputs", counts.ic, witness.input_values().len())?;
        self.require("variables", counts.l, witness.aux_values().len())?;
        self.require("constraints", rows, witness.rows())?;
        let room = a.len().min(b.len());
        if room < rows as usize {
            self.require("rows of room", rows, room)?;
        }
        self.evaluate_rows(&witness, a, b, checkpoint)?;
        Ok(Synthesized {
            rows: rows as usize,
            aux: witness.aux_values().len(),
            a_aux: self.density(Part::AAux, counts.l)?,
            b_inputs: self.density(Part::BInputs, counts.ic)?,
            b_aux: self.density(Part::BAux, counts.l)?,
            inputs: witness.into_inputs(),
        })
    }

    fn evaluate_rows(
        &self,
        witness: &Witness<'_>,
        mut a: &mut [Scalar],
        mut b: &mut [Scalar],
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), CompiledError> {
        let (inputs, aux) = (witness.input_values(), witness.aux_values());
        let evaluate = |(block, a, b): (&Block, &mut [Scalar], &mut [Scalar])| {
            let rows = Decoder::new(self.block(block)?, &self.coefficients, inputs, aux);
            rows.fill(a, b).map_err(|found| self.malformed(self.name(block), found))
        };
        let in_a_pool = rayon::current_thread_index().is_some();
        let threads = if in_a_pool { rayon::current_num_threads() } else { 1 };
        let batch = BLOCKS_PER_THREAD * threads;
        self.prefetch(self.blocks.chunks(batch).next());
        let mut batches = self.blocks.chunks(batch).peekable();
        while let Some(batch) = batches.next() {
            checkpoint.check()?;
            self.prefetch(batches.peek().copied());
            let mut work = Vec::with_capacity(batch.len());
            for block in batch {
                let (rows_of_a, rest_of_a) = a.split_at_mut(block.rows as usize);
                let (rows_of_b, rest_of_b) = b.split_at_mut(block.rows as usize);
                work.push((block, rows_of_a, rows_of_b));
                (a, b) = (rest_of_a, rest_of_b);
            }
            if in_a_pool {
                work.into_par_iter().try_for_each(evaluate)?;
            } else {
                work.into_iter().try_for_each(evaluate)?;
            }
        }
        Ok(())
    }

    /// A block's bytes, those that were written.
    fn block(&self, block: &Block) -> Result<&[u8], CompiledError> {
        let extent = Extent { offset: block.offset, bytes: block.bytes.into() };
        self.checked(extent, &block.checksum, || self.name(block))
    }

    fn part(&self, part: Part) -> Result<&[u8], CompiledError> {
        let extent = self.header.layout().parts[part as usize];
        let checksum = &self.header.checksums[part as usize];
        self.checked(extent, checksum, || part.name().into())
    }

    fn checked(
        &self,
        extent: Extent,
        expected: &Hash,
        section: impl FnOnce() -> String,
    ) -> Result<&[u8], CompiledError> {
        // Within the map: header and index were checked against its length.
        let bytes = &self.map[extent.offset as usize..][..extent.bytes as usize];
        let found = blake3::hash(bytes);
        if found == *expected {
            return Ok(bytes);
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        Err(CompiledError::Checksum {
            path: self.path.clone(),
            section: section(),
            expected,
            found,
        })
    }

    fn density(&self, part: Part, bits: u64) -> Result<Density, CompiledError> {
        let word = |word: &[u8]| u64::from_le_bytes(word.try_into().unwrap_or_default());
        let words: Vec<u64> = self.part(part)?.chunks_exact(8).map(word).collect();
        Ok(Density::from_words(words, bits as usize))
    }

    fn read_coefficients(&self) -> Result<Vec<Scalar>, CompiledError> {
        let part = Part::Coefficients;
        if self.header.sizes.coefficients > MAX_COEFFICIENTS as u64 {
            return Err(self.malformed(part.name().into(), "more than there may be"));
        }
        let scalar = |bytes: &[u8]| {
            let bytes = bytes.try_into().ok()?;
            Option::from(Scalar::from_bytes_le(bytes))
        };
        let scalars: Option<_> = self.part(part)?.chunks_exact(32).map(scalar).collect();
        scalars.ok_or_else(|| self.malformed(part.name().into(), "one above the modulus"))
    }

    fn read_index(&self) -> Result<Vec<Block>, CompiledError> {
        let blocks = Block::decode_all(self.part(Part::Index)?, self.header.layout().rows);
        let bytes: u64 = blocks.iter().map(|block| u64::from(block.bytes)).sum();
        let rows: u64 = blocks.iter().map(|block| u64::from(block.rows)).sum();
        let Sizes { rows: all_rows, row_bytes, .. } = self.header.sizes;
        match (rows, bytes) == (all_rows, row_bytes) {
            true => Ok(blocks),
            false => Err(self.malformed(Part::Index.name().into(), "other sums than the header")),
        }
    }

    /// Asks the kernel to read these blocks ahead. Only a hint.
    fn prefetch(&self, blocks: Option<&[Block]>) {
        let Some([first, .., last] | [first @ last]) = blocks else { return };
        let bytes = last.offset + u64::from(last.bytes) - first.offset;
        let (offset, bytes) = (first.offset as usize, bytes as usize);
        if let Err(error) = self.map.advise_range(Advice::WillNeed, offset, bytes) {
            tracing::debug!(%error, "compiled circuit prefetch refused");
        }
    }

    fn name(&self, block: &Block) -> String {
        format!("the block of rows at offset {}", block.offset)
    }

    fn malformed(&self, section: String, found: &'static str) -> CompiledError {
        CompiledError::Malformed { path: self.path.clone(), section, found }
    }

    fn require(
        &self,
        what: &'static str,
        expected: u64,
        found: usize,
    ) -> Result<(), CompiledError> {
        let (path, found) = (self.path.clone(), found as u64);
        match expected == found {
            true => Ok(()),
            false => Err(CompiledError::OtherCircuit { path, what, expected, found }),
        }
    }
}
