//! Filecoin's `.params` and `.vk` files, read as untrusted input.
//!
//! A `.vk` is alpha_g1, beta_g1, beta_g2, gamma_g2, delta_g1, delta_g2, a u32 and so many ic points.
//! A `.params` is that, then a u32 count and the points of h, l, a, b_g1 and b_g2. Integers are
//! big-endian, points uncompressed (96 or 192 bytes). Counts are believed only where the file's size
//! bears them out; a point only when it is on the curve. The verifying key's few points are also
//! checked to be in the group of prime order; for the millions of others the published digest is.

use std::{
    fs::{File, Metadata},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use blake2b_simd::State;
use blstrs::{G1Affine, G2Affine};
use rayon::prelude::*;

use super::{
    open_file,
    point::{as_bytes, Point},
    Counts, ParamsError, PointFault, Progress, Query,
};
use crate::{device::Checkpoint, groth16::VerifyingKey};

/// Bytes read at a time; whole points of either group.
const CHUNK: usize = 3 << 20;
/// What `ParamsFile::stream` holds: two chunks of the file and one of decoded points.
pub const STREAM_BYTES: u64 = 3 * CHUNK as u64;

const ALPHA_G1: usize = 0;
const BETA_G1: usize = 96;
const BETA_G2: usize = 192;
const GAMMA_G2: usize = 384;
const DELTA_G1: usize = 576;
const DELTA_G2: usize = 672;
const IC_COUNT: usize = 864;
const IC: usize = 868;

/// Identifies a file's content the way Filecoin publishes it: the first 16 bytes of its BLAKE2b-512.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    pub(super) fn of(state: &State) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&state.finalize().as_bytes()[..16]);
        Self(digest)
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// A file's size and time: what tells cheaply that it is still the one it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub bytes: u64,
    /// When it was last written.
    pub modified: SystemTime,
}

impl Stamp {
    pub(super) fn of(stat: &Metadata, path: &Path) -> Result<Self, ParamsError> {
        let modified = stat.modified().map_err(ParamsError::io(path, "stat"))?;
        // A native file's header knows no time before.
        Ok(Self { bytes: stat.len(), modified: modified.max(UNIX_EPOCH) })
    }
}

/// An open `.params` file whose verifying key and layout have been checked, but not its points:
/// `ParamsFile::stream` checks those.
#[derive(Debug)]
pub struct ParamsFile {
    source: Source,
    vk: VerifyingKey,
    vk_bytes: Vec<u8>,
    counts: Counts,
}

/// Takes a parameter file's points in order, in native form.
pub(super) trait PointSink: Send {
    fn points(&mut self, query: Query, bytes: &[u8]) -> Result<(), ParamsError>;
}

/// Only checks.
impl PointSink for () {
    fn points(&mut self, _: Query, _: &[u8]) -> Result<(), ParamsError> {
        Ok(())
    }
}

impl ParamsFile {
    /// Opens and checks all but the points: cheap for any size.
    ///
    /// # Errors
    /// [`ParamsError`] when it cannot be read, its verifying key is invalid, or its counts do not
    /// add up to its size.
    pub fn open(path: &Path) -> Result<Self, ParamsError> {
        let source = Source::open(path)?;
        let (vk, vk_bytes) = source.verifying_key()?;
        let mut counts = Counts { ic: vk.ic.len() as u64, ..Counts::default() };
        let mut end = vk_bytes.len() as u64;
        for query in Query::ALL {
            let count = source.count(query.name(), end)?;
            *counts.of_mut(query) = count;
            end += 4;
            let bytes = count * query.point_bytes();
            source.require(query.name(), end, bytes)?;
            end += bytes;
        }
        source.require_end(end)?;
        Ok(Self { source, vk, vk_bytes, counts })
    }

    /// How long a file with so many points is.
    pub fn bytes(counts: &Counts) -> u64 {
        let section = |query: Query| 4 + counts.of(query) * query.point_bytes();
        IC as u64 + 96 * counts.ic + Query::ALL.into_iter().map(section).sum::<u64>()
    }

    /// Refuses parameters of another circuit.
    ///
    /// # Errors
    /// [`ParamsError::Count`] for the first section with another number of points than `expected`.
    pub fn require_counts(&self, circuit: &str, expected: &Counts) -> Result<(), ParamsError> {
        self.counts.require(&self.source.path, circuit, expected)
    }

    /// The verifying key.
    pub fn vk(&self) -> &VerifyingKey {
        &self.vk
    }

    /// The verifying key as the file has it, which is all of a `.vk` file.
    pub fn vk_bytes(&self) -> &[u8] {
        &self.vk_bytes
    }

    /// Points of each section.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The file's size and time.
    pub fn stamp(&self) -> Stamp {
        self.source.stamp
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// Reads everything once, in order, decodes and checks every point on all threads and hands
    /// them to `sink`. Holds [`STREAM_BYTES`]. Returns the digest of the whole file.
    pub(super) fn stream(
        &self,
        sink: &mut dyn PointSink,
        progress: &mut dyn FnMut(Progress),
        checkpoint: &dyn Checkpoint,
    ) -> Result<Digest, ParamsError> {
        let mut feed = Feed { source: &self.source, offset: 0, digest: State::new() };
        let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
        for part in (0..self.vk_bytes.len()).step_by(CHUNK) {
            feed.fill(&mut buffers[0][..CHUNK.min(self.vk_bytes.len() - part)])?;
        }
        for query in Query::ALL {
            feed.fill(&mut buffers[0][..4])?;
            let mut watched = |done| {
                progress(Progress {
                    step: "read parameters".into(),
                    done,
                    total: self.stamp().bytes,
                });
                checkpoint.check()
            };
            let count = self.counts.of(query);
            let path = &self.source.path;
            let first = feed.offset;
            let mut section = SectionStream { path, query, first, count, sink: &mut *sink };
            match query {
                Query::BG2 => section.run::<G2Affine>(&mut feed, &mut buffers, &mut watched)?,
                _ => section.run::<G1Affine>(&mut feed, &mut buffers, &mut watched)?,
            }
        }
        Ok(Digest::of(&feed.digest))
    }

    /// Checks every point, and returns the file's digest.
    ///
    /// # Errors
    /// [`ParamsError`] for the first bad point, or when it cannot be read.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(Progress),
        checkpoint: &dyn Checkpoint,
    ) -> Result<Digest, ParamsError> {
        self.stream(&mut (), progress, checkpoint)
    }
}

/// Reads a `.vk` file, or the verifying key that a `.params` file begins with.
///
/// # Errors
/// [`ParamsError`] when it cannot be read, is not exactly as long as it says, or holds a bad point.
pub fn read_vk(path: &Path) -> Result<VerifyingKey, ParamsError> {
    let source = Source::open(path)?;
    let (vk, bytes) = source.verifying_key()?;
    if path.extension().is_none_or(|extension| extension != "params") {
        source.require_end(bytes.len() as u64)?;
    }
    Ok(vk)
}

/// The verifying key in `bytes`, which are all of it. `path` is for messages.
pub(super) fn parse_vk(path: &Path, bytes: &[u8]) -> Result<VerifyingKey, ParamsError> {
    let point = VkPoint { path, bytes };
    let ic = bytes[IC..].chunks_exact(96).enumerate();
    Ok(VerifyingKey {
        alpha_g1: point.at::<G1Affine>("alpha_g1", 0, ALPHA_G1)?,
        beta_g1: point.at::<G1Affine>("beta_g1", 0, BETA_G1)?,
        beta_g2: point.at::<G2Affine>("beta_g2", 0, BETA_G2)?,
        gamma_g2: point.at::<G2Affine>("gamma_g2", 0, GAMMA_G2)?,
        delta_g1: point.at::<G1Affine>("delta_g1", 0, DELTA_G1)?,
        delta_g2: point.at::<G2Affine>("delta_g2", 0, DELTA_G2)?,
        ic: ic.map(|(i, _)| point.at("ic", i as u64, IC + i * 96)).collect::<Result<_, _>>()?,
    })
}

struct VkPoint<'a> {
    path: &'a Path,
    bytes: &'a [u8],
}

impl VkPoint<'_> {
    fn at<P: Point>(
        &self,
        section: &'static str,
        index: u64,
        offset: usize,
    ) -> Result<P, ParamsError> {
        P::decode(&self.bytes[offset..offset + P::BYTES])
            .and_then(|point| match point.in_subgroup() {
                true => Ok(point),
                false => Err(PointFault::NotInSubgroup),
            })
            .map_err(|fault| ParamsError::Point {
                path: self.path.into(),
                section,
                index,
                offset: offset as u64,
                fault,
            })
    }
}

/// An open file and its size, for reads whose failure names the section.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

impl Source {
    fn open(path: &Path) -> Result<Self, ParamsError> {
        let (file, stat) = open_file(path)?;
        let stamp = Stamp::of(&stat, path)?;
        if stamp.bytes == 0 {
            return Err(ParamsError::Empty { path: path.into() });
        }
        Ok(Self { path: path.into(), file, stamp })
    }

    /// Refuses a section that the file has no room for.
    fn require(&self, section: &'static str, offset: u64, bytes: u64) -> Result<(), ParamsError> {
        let found = self.stamp.bytes.saturating_sub(offset);
        if found >= bytes {
            return Ok(());
        }
        let path = self.path.clone();
        Err(ParamsError::Truncated { path, section, offset, expected: bytes, found })
    }

    fn require_end(&self, end: u64) -> Result<(), ParamsError> {
        if end == self.stamp.bytes {
            return Ok(());
        }
        let path = self.path.clone();
        Err(ParamsError::TrailingBytes { path, expected: end, found: self.stamp.bytes })
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<(), ParamsError> {
        self.file.read_exact_at(bytes, offset).map_err(ParamsError::io(&self.path, "read"))
    }

    fn count(&self, section: &'static str, offset: u64) -> Result<u64, ParamsError> {
        self.require(section, offset, 4)?;
        let mut count = [0; 4];
        self.read(&mut count, offset)?;
        Ok(u32::from_be_bytes(count).into())
    }

    fn verifying_key(&self) -> Result<(VerifyingKey, Vec<u8>), ParamsError> {
        self.require("verifying key", 0, IC as u64)?;
        let bytes = 96 * self.count("ic", IC_COUNT as u64)?;
        self.require("ic", IC as u64, bytes)?;
        let mut all = vec![0; IC + bytes as usize];
        self.read(&mut all, 0)?;
        Ok((parse_vk(&self.path, &all)?, all))
    }
}

/// Reads a file from its beginning and digests what passes.
struct Feed<'a> {
    source: &'a Source,
    offset: u64,
    digest: State,
}

impl Feed<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ParamsError> {
        self.source.read(bytes, self.offset)?;
        self.digest.update(bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

/// One section on its way: while a chunk is decoded and handed on, the next is read and digested.
struct SectionStream<'a> {
    path: &'a Path,
    query: Query,
    /// The section's first point is here.
    first: u64,
    count: u64,
    sink: &'a mut dyn PointSink,
}

impl SectionStream<'_> {
    fn run<P: Point>(
        &mut self,
        feed: &mut Feed<'_>,
        buffers: &mut [Vec<u8>; 2],
        watched: &mut dyn FnMut(u64) -> Result<(), crate::device::Interrupted>,
    ) -> Result<(), ParamsError> {
        let bytes = self.count * P::BYTES as u64;
        let chunk = |from: u64| (bytes - from).min(CHUNK as u64) as usize;
        let [current, next] = buffers;
        let mut points = vec![P::default(); chunk(0) / P::BYTES];
        let mut from = 0;
        feed.fill(&mut current[..chunk(0)])?;
        while from < bytes {
            watched(self.first + from)?;
            let here = chunk(from);
            let ahead = from + here as u64;
            let (read, handed_on) = rayon::join(
                || feed.fill(&mut next[..chunk(ahead)]),
                || self.hand_on(&current[..here], from, &mut points[..here / P::BYTES]),
            );
            // A bad point is the better news than a read error behind it.
            handed_on?;
            read?;
            std::mem::swap(current, next);
            from = ahead;
        }
        Ok(())
    }

    /// Decodes a chunk that begins `from` bytes into the section.
    fn hand_on<P: Point>(
        &mut self,
        encoded: &[u8],
        from: u64,
        points: &mut [P],
    ) -> Result<(), ParamsError> {
        let bad = points
            .par_iter_mut()
            .zip(encoded.par_chunks_exact(P::BYTES))
            .with_min_len(256)
            .map(|(point, encoded)| P::decode(encoded).map(|decoded| *point = decoded))
            .enumerate()
            .find_first(|(_, decoded)| decoded.is_err());
        if let Some((i, Err(fault))) = bad {
            let offset = from + (i * P::BYTES) as u64;
            return Err(ParamsError::Point {
                path: self.path.into(),
                section: self.query.name(),
                index: offset / P::BYTES as u64,
                offset: self.first + offset,
                fault,
            });
        }
        self.sink.points(self.query, as_bytes(points))
    }
}
