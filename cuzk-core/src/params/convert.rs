//! From a `.params` file to a native file, as one stream: nothing is held but a few chunks.

use std::os::unix::fs::FileExt;

use blake3::Hasher;

use super::{
    atomic::AtomicFile,
    filecoin::{Digest, ParamsFile, PointSink},
    native::{layout, Extent, Header},
    ParamsError, Progress, Query,
};
use crate::device::Checkpoint;

/// Dirty pages never grow beyond this: in a small memory cgroup they would stall everybody.
const SYNC_EVERY: u64 = 256 << 20;

/// What becomes a native file.
pub(super) struct Conversion<'a> {
    pub source: &'a ParamsFile,
    pub circuit: &'a str,
    pub development: bool,
}

impl Conversion<'_> {
    /// Writes the native file into `target` and makes it appear, if `accept` agrees to the digest
    /// of the source, which is only known at the end.
    pub fn write(
        &self,
        target: AtomicFile,
        accept: impl FnOnce(Digest) -> Result<(), ParamsError>,
        progress: &mut dyn FnMut(Progress),
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), ParamsError> {
        let counts = *self.source.counts();
        let (extents, end) = layout(&counts);
        target.reserve(end)?;
        let hashers = extents.map(|_| Hasher::new());
        let mut writer = Writer { target, extents, hashers, end, written: [0; 6], unsynced: 0 };
        writer.put(0, self.source.vk_bytes())?;
        let digest = self.source.stream(&mut writer, progress, checkpoint)?;
        accept(digest)?;
        let header = Header {
            circuit: self.circuit.into(),
            development: self.development,
            source: self.source.stamp(),
            digest,
            counts,
            extents: writer.sealed_extents(),
        };
        writer.write_at(&header.encode(), 0)?;
        writer.target.commit()
    }
}

/// Puts sections in their places and sums them up.
struct Writer {
    target: AtomicFile,
    extents: [Extent; 6],
    hashers: [Hasher; 6],
    /// Bytes of each section so far.
    written: [u64; 6],
    unsynced: u64,
    end: u64,
}

impl Writer {
    fn put(&mut self, section: usize, bytes: &[u8]) -> Result<(), ParamsError> {
        self.write_at(bytes, self.extents[section].offset + self.written[section])?;
        self.hashers[section].update(bytes);
        self.written[section] += bytes.len() as u64;
        self.unsynced += bytes.len() as u64;
        if self.unsynced >= SYNC_EVERY {
            self.unsynced = 0;
            self.target
                .file()
                .sync_data()
                .map_err(ParamsError::space(self.target.partial(), self.end))?;
        }
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), ParamsError> {
        self.target
            .file()
            .write_all_at(bytes, offset)
            .map_err(ParamsError::space(self.target.partial(), self.end))
    }

    fn sealed_extents(&self) -> [Extent; 6] {
        let mut extents = self.extents;
        for (extent, hasher) in extents.iter_mut().zip(&self.hashers) {
            extent.checksum = hasher.finalize();
        }
        extents
    }
}

impl PointSink for Writer {
    fn points(&mut self, query: Query, bytes: &[u8]) -> Result<(), ParamsError> {
        self.put(1 + query as usize, bytes)
    }
}
