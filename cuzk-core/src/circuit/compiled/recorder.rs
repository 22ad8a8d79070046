//! Records a circuit's constraints in a file while they stream past.
//!
//! Whatever the circuit's size, it holds one block of rows, two mebibytes of bitmaps, the dictionary
//! and 40 bytes an earlier block. What it has written is flushed to disk every 64 MiB, so that dirty
//! pages stay few as well. The PoRep of 32 GiB (130 million rows) is recorded inside a cgroup of 256
//! MiB: 6.3 MiB of anonymous memory, 70 s, 1.0 GiB on disk.
//!
//! The file appears under its name when it is complete and published, or not at all.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bellpepper_core::{LinearCombination, SynthesisError};
use blstrs::Scalar;
use ff::Field;

use super::bitmap::FileBitmap;
use super::format::{Block, Header, Identity, Layout, Part, Sizes};
use super::rows::Encoder;
use super::{Compiled, CompiledError};
use crate::circuit::{AnyCircuit, ConstraintSink};
use crate::device::Checkpoint;
use crate::params::atomic::AtomicFile;
use crate::params::ParamsError;

/// A block ends with the first row that makes it this long: about a millisecond's work.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes between two flushes to disk.
const SYNC_EVERY: u64 = 64 << 20;

/// A recording on its way.
pub struct Recorder<'a> {
    output: Output,
    checkpoint: &'a dyn Checkpoint,
    identity: Identity,
    /// Of [`Part::AAux`], [`Part::BInputs`] and [`Part::BAux`].
    bitmaps: [FileBitmap; 3],
    encoder: Encoder,
    block_rows: u32,
    index: Vec<u8>,
    inputs: u64,
    aux: u64,
    sizes: Sizes,
    failed: Option<CompiledError>,
}

/// A whole recording under its temporary name. Dropped, it is gone.
pub struct Recorded {
    output: Output,
    header: Header,
}

/// Records a blank circuit in `path`, unless a good recording of it is there, or somebody else makes one.
///
/// # Errors
/// [`CompiledError`] when the circuit is not that of the parameters, or the file cannot be written.
pub fn record(
    circuit: Box<dyn AnyCircuit>,
    path: &Path,
    identity: Identity,
    checkpoint: &dyn Checkpoint,
) -> Result<(), CompiledError> {
    let Some(mut recorder) = Recorder::begin(path, identity, checkpoint)? else { return Ok(()) };
    let done = circuit.synthesize_into(&mut recorder);
    if recorder.failed.is_none() {
        done?;
    }
    recorder.finish()?.publish().map(drop)
}

impl<'a> Recorder<'a> {
    /// Begins to record in `path`, whose folder exists; `None` when a good recording of the circuit is
    /// there, or somebody else makes one.
    ///
    /// # Errors
    /// [`CompiledError`] when the file cannot be written.
    pub fn begin(
        path: &Path,
        identity: Identity,
        checkpoint: &'a dyn Checkpoint,
    ) -> Result<Option<Self>, CompiledError> {
        let Some(target) = AtomicFile::try_begin(path)? else { return Ok(None) };
        match Compiled::open(path, &identity) {
            Ok(_) => return Ok(None),
            // It could not be replaced in the end.
            Err(error @ CompiledError::File(ParamsError::NoFile { .. })) => return Err(error),
            Err(_) => {}
        }
        let layout = Layout::of(&identity.counts, &Sizes::default());
        let output = Output { target, at: layout.rows, unsynced: 0 };
        output.target.reserve(layout.rows)?;
        Ok(Some(Self {
            output,
            checkpoint,
            identity,
            bitmaps: [Part::AAux, Part::BInputs, Part::BAux]
                .map(|part| FileBitmap::new(layout.parts[part as usize])),
            encoder: Encoder::new(),
            block_rows: 0,
            index: vec![],
            inputs: 0,
            aux: 0,
            sizes: Sizes::default(),
            failed: None,
        }))
    }

    /// The next public input, the constant one first.
    pub fn record_input(&mut self) {
        self.inputs += 1;
    }

    /// The next auxiliary variable.
    pub fn record_aux(&mut self) {
        self.aux += 1;
    }

    /// The next constraint, only over variables recorded before. What goes wrong is told by
    /// [`Recorder::finish`].
    pub fn record_row(&mut self, a: &LinearCombination<Scalar>, b: &LinearCombination<Scalar>) {
        if self.failed.is_none() {
            self.failed = self.row(a, b).err();
        }
    }

    /// Ends it, if all went well and the circuit was that of the parameters.
    ///
    /// # Errors
    /// [`CompiledError`]: the first thing that went wrong since the beginning.
    pub fn finish(mut self) -> Result<Recorded, CompiledError> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        self.end_block()?;
        let Self { mut output, identity, bitmaps, encoder, index, inputs, aux, mut sizes, .. } =
            self;
        let [a_aux, b_inputs, b_aux] = bitmaps;
        let finish = |bitmap: FileBitmap| {
            bitmap.finish(output.target.file()).map_err(|error| output.refused(error))
        };
        let ((a_aux, in_a), (b_inputs, inputs_in_b)) = (finish(a_aux)?, finish(b_inputs)?);
        let (b_aux, aux_in_b) = finish(b_aux)?;
        let counts = &identity.counts;
        for (what, expected, found) in [
            ("inputs", counts.ic, inputs),
            ("variables", counts.l, aux),
            ("rows of its domain", counts.h + 1, sizes.rows.next_power_of_two()),
            ("variables in A", counts.a, inputs + in_a),
            ("variables in B", counts.b_g1, inputs_in_b + aux_in_b),
        ] {
            output.require(what, expected, found)?;
        }
        let coefficients: Vec<u8> =
            encoder.coefficients().iter().flat_map(Scalar::to_bytes_le).collect();
        sizes.coefficients = encoder.coefficients().len() as u64;
        output.append(&coefficients)?;
        output.append(&index)?;
        let checksums = [a_aux, b_inputs, b_aux, blake3::hash(&coefficients), blake3::hash(&index)];
        Ok(Recorded { output, header: Header { identity, sizes, checksums } })
    }

    fn row(
        &mut self,
        a: &LinearCombination<Scalar>,
        b: &LinearCombination<Scalar>,
    ) -> Result<(), CompiledError> {
        // Their bits would be outside the bitmaps.
        if self.inputs > self.identity.counts.ic {
            self.output.require("inputs", self.identity.counts.ic, self.inputs)?;
        }
        if self.aux > self.identity.counts.l {
            self.output.require("variables", self.identity.counts.l, self.aux)?;
        }
        let [a_aux, b_inputs, b_aux] = &mut self.bitmaps;
        let file = self.output.target.file();
        mark(a_aux, file, a.iter_aux())
            .and_then(|()| mark(b_inputs, file, b.iter_inputs()))
            .and_then(|()| mark(b_aux, file, b.iter_aux()))
            .map_err(|error| self.output.refused(error))?;
        self.sizes.terms += self.encoder.row(a, b);
        self.sizes.rows += 1;
        self.block_rows += 1;
        if self.encoder.bytes().len() >= BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<(), CompiledError> {
        self.checkpoint.check()?;
        let bytes = self.encoder.bytes();
        let block = Block {
            offset: self.output.at,
            bytes: bytes.len() as u32,
            rows: std::mem::take(&mut self.block_rows),
            checksum: blake3::hash(bytes),
        };
        self.output.append(bytes)?;
        self.encoder.clear();
        self.index.extend(block.encode());
        self.sizes.row_bytes += u64::from(block.bytes);
        self.sizes.blocks += 1;
        Ok(())
    }
}

impl Recorded {
    /// The file's size, when it appears.
    pub fn size_bytes(&self) -> u64 {
        self.header.layout().end
    }

    /// Makes the file appear. One that was made beside a proof is to be trusted once that verifies.
    ///
    /// # Errors
    /// [`CompiledError`] when it cannot be written.
    pub fn publish(self) -> Result<Sizes, CompiledError> {
        self.output.commit(&self.header)?;
        Ok(self.header.sizes)
    }
}

fn mark<'a>(
    bitmap: &mut FileBitmap,
    file: &File,
    mut terms: impl Iterator<Item = (&'a usize, &'a Scalar)>,
) -> io::Result<()> {
    terms.try_for_each(|(i, coefficient)| match *coefficient == Scalar::ZERO {
        true => Ok(()),
        false => bitmap.set(file, *i as u64),
    })
}

impl ConstraintSink for Recorder<'_> {
    fn wants_values(&self) -> bool {
        false
    }

    fn wants_c(&self) -> bool {
        false
    }

    fn input(&mut self, _: Option<Scalar>) -> Result<(), SynthesisError> {
        self.record_input();
        Ok(())
    }

    fn aux(&mut self, _: Option<Scalar>) -> Result<(), SynthesisError> {
        self.record_aux();
        match &self.failed {
            None => Ok(()),
            Some(_) => Err(io::Error::from(io::ErrorKind::Interrupted).into()),
        }
    }

    fn enforce(
        &mut self,
        a: LinearCombination<Scalar>,
        b: LinearCombination<Scalar>,
        _: LinearCombination<Scalar>,
    ) {
        self.record_row(&a, &b);
    }
}

impl fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, sizes, failed, .. } = self;
        f.debug_struct("Recorder")
            .field("of", identity)
            .field("so_far", sizes)
            .field("failed", failed)
            .finish()
    }
}

/// The file under its temporary name.
struct Output {
    target: AtomicFile,
    /// Where the next bytes go.
    at: u64,
    unsynced: u64,
}

impl Output {
    fn append(&mut self, bytes: &[u8]) -> Result<(), CompiledError> {
        let file = self.target.file();
        file.write_all_at(bytes, self.at).map_err(|error| self.refused(error))?;
        self.at += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_EVERY {
            self.unsynced = 0;
            file.sync_data().map_err(|error| self.refused(error))?;
        }
        Ok(())
    }

    fn commit(self, header: &Header) -> Result<(), CompiledError> {
        let file = self.target.file();
        file.write_all_at(&header.encode(), 0).map_err(|error| self.refused(error))?;
        Ok(self.target.commit()?)
    }

    fn require(&self, what: &'static str, expected: u64, found: u64) -> Result<(), CompiledError> {
        let path = self.target.partial().into();
        match expected == found {
            true => Ok(()),
            false => Err(CompiledError::OtherCircuit { path, what, expected, found }),
        }
    }

    fn refused(&self, error: io::Error) -> CompiledError {
        ParamsError::space(self.target.partial(), self.at)(error).into()
    }
}
