//! The native SRS file: points as devices want them, memory-mapped so that the kernel may take its
//! pages back and read them again.
//!
//! Page 0 is the header (little-endian; see [`Header`]), then the verifying key as a `.vk` file has
//! it, then h, l, a, b_g1, b_g2 as blst's affine Montgomery words (96 and 192 bytes a point), each
//! section on a page of its own and with a BLAKE3 checksum in the header, which has one too.
//!
//! Assumes that nobody writes into a native file once it has its name: we make it beside that and
//! rename, so a mapping keeps the file it began with. Someone else who truncates it while it is
//! mapped ends the process with SIGBUS; no check at open can prevent that.

use std::{
    fs::File,
    io,
    ops::Range,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use blake3::Hash;
use blstrs::{G1Affine, G2Affine};
use memmap2::{Mmap, UncheckedAdvice};

use super::{
    filecoin::{parse_vk, Digest, Stamp},
    open_file,
    point::{from_bytes, Point},
    Counts, ParamsError, Progress, Query,
};
use crate::{device::Checkpoint, groth16::VerifyingKey, memory::check};

/// A header's first bytes.
const MAGIC: [u8; 8] = *b"cuzk-srs";
/// Raised whenever a byte of the file comes to mean something else.
const VERSION: u32 = 1;
/// The header's size, and what sections are aligned to.
pub(super) const PAGE: u64 = 4096;
/// The header's last bytes are its own checksum.
const SEALED: usize = PAGE as usize - 32;
/// Cache identifiers have about 110 characters.
const MAX_CIRCUIT: usize = 1024;
const DEVELOPMENT: u32 = 1;
/// A verifying key with more public inputs than this is not one: Filecoin's largest has thousands.
const MAX_IC: u64 = 1 << 24;

/// A section's place and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub offset: u64,
    pub bytes: u64,
    pub checksum: Hash,
}

/// What the first page says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The circuit's cache identifier.
    pub circuit: String,
    /// Whether the parameters are insecure ones for development.
    pub development: bool,
    /// The `.params` file it was made from, as it was then.
    pub source: Stamp,
    /// That file's digest.
    pub digest: Digest,
    /// Points of each section.
    pub counts: Counts,
    /// The verifying key's place, then the queries'.
    pub(super) extents: [Extent; 6],
}

/// Where the sections of a file with so many points lie (their checksums are still to come), and
/// how long it is.
pub(super) fn layout(counts: &Counts) -> ([Extent; 6], u64) {
    let vk = 868 + 96 * counts.ic;
    let [h, l, a, b_g1, b_g2] = Query::ALL.map(|query| counts.of(query) * query.point_bytes());
    let mut end = PAGE;
    let extents = [vk, h, l, a, b_g1, b_g2].map(|bytes| {
        let offset = end.next_multiple_of(PAGE);
        end = offset + bytes;
        Extent { offset, bytes, checksum: Hash::from_bytes([0; 32]) }
    });
    (extents, end)
}

impl Header {
    /// As page 0.
    pub(super) fn encode(&self) -> [u8; PAGE as usize] {
        let since_epoch = self.source.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut page = Vec::with_capacity(PAGE as usize);
        page.extend(MAGIC);
        page.extend(VERSION.to_le_bytes());
        page.extend(if self.development { DEVELOPMENT } else { 0 }.to_le_bytes());
        page.extend(self.source.bytes.to_le_bytes());
        page.extend(since_epoch.as_secs().to_le_bytes());
        page.extend(u64::from(since_epoch.subsec_nanos()).to_le_bytes());
        page.extend(self.digest.0);
        for count in [self.counts.ic].into_iter().chain(Query::ALL.map(|q| self.counts.of(q))) {
            page.extend(count.to_le_bytes());
        }
        for extent in &self.extents {
            page.extend(extent.offset.to_le_bytes());
            page.extend(extent.bytes.to_le_bytes());
            page.extend(extent.checksum.as_bytes());
        }
        page.extend((self.circuit.len() as u64).to_le_bytes());
        page.extend(self.circuit.as_bytes());
        page.resize(SEALED, 0);
        page.extend(blake3::hash(&page).as_bytes());
        let mut sealed = [0; PAGE as usize];
        sealed.copy_from_slice(&page);
        sealed
    }

    /// From page 0 of `path`, which is `bytes` long.
    fn decode(path: &Path, page: &[u8], bytes: u64) -> Result<Self, ParamsError> {
        let wrong = |found: String, expected: String| ParamsError::NativeHeader {
            path: path.into(),
            found,
            expected,
        };
        let mut fields = Fields(page);
        let magic: [u8; 8] = fields.take();
        if magic != MAGIC {
            return Err(wrong(
                format!("magic {:?}", String::from_utf8_lossy(&magic)),
                format!("{:?}", String::from_utf8_lossy(&MAGIC)),
            ));
        }
        let version = fields.u32();
        if version != VERSION {
            return Err(wrong(format!("version {version}"), format!("version {VERSION}")));
        }
        let (checksum, expected) = (blake3::hash(&page[..SEALED]), &page[SEALED..]);
        if checksum.as_bytes() != expected {
            return Err(wrong(format!("header checksum {checksum}"), hex::encode(expected)));
        }
        // From here on the page is as it was written; what follows guards against a writer's bug.
        let development = fields.u32() & DEVELOPMENT != 0;
        let source_bytes = fields.u64();
        let since_epoch =
            Duration::from_secs(fields.u64()).saturating_add(Duration::from_nanos(fields.u64()));
        let modified = SystemTime::UNIX_EPOCH
            .checked_add(since_epoch)
            .ok_or_else(|| wrong("a time out of range".into(), "a file's time".into()))?;
        let digest = Digest(fields.take());
        let mut counts = Counts { ic: fields.u64(), ..Counts::default() };
        for query in Query::ALL {
            *counts.of_mut(query) = fields.u64();
        }
        let extents = [(); 6].map(|()| Extent {
            offset: fields.u64(),
            bytes: fields.u64(),
            checksum: Hash::from_bytes(fields.take()),
        });
        let largest = Query::ALL.map(|q| counts.of(q)).into_iter().max().unwrap_or(0);
        if counts.ic > MAX_IC || largest > u64::from(u32::MAX) {
            return Err(wrong(format!("{counts:?}"), "plausible counts".into()));
        }
        let (mut expected, end) = layout(&counts);
        expected.iter_mut().zip(&extents).for_each(|(e, found)| e.checksum = found.checksum);
        if expected != extents {
            return Err(wrong(format!("sections {extents:?}"), format!("{expected:?}")));
        }
        if bytes != end {
            return Err(wrong(format!("a file of {bytes} bytes"), format!("{end} bytes")));
        }
        let length = (fields.u64() as usize).min(MAX_CIRCUIT);
        let circuit = String::from_utf8_lossy(&fields.0[..length]).into_owned();
        let source = Stamp { bytes: source_bytes, modified };
        Ok(Self { circuit, development, source, digest, counts, extents })
    }

    fn extent(&self, query: Query) -> &Extent {
        &self.extents[1 + query as usize]
    }
}

/// Takes a header page apart. The page is longer than all its fields.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.0[..N]);
        self.0 = &self.0[N..];
        field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// A circuit's parameters, mapped from a native file.
#[derive(Debug)]
pub struct Srs {
    path: PathBuf,
    file: File,
    map: Mmap,
    header: Header,
    vk: VerifyingKey,
}

impl Srs {
    /// Maps the native file of `circuit`. Checks the header, the size and the verifying key, not
    /// the points' checksums ([`Srs::verify`] does), so it is quick for any size.
    ///
    /// # Errors
    /// [`ParamsError`] when it cannot be read, is damaged, of another version or circuit.
    pub fn open(path: &Path, circuit: &str) -> Result<Self, ParamsError> {
        let srs = Self::open_any(path)?;
        if srs.header.circuit != circuit {
            return Err(ParamsError::NativeHeader {
                path: path.into(),
                found: format!("circuit {}", srs.header.circuit),
                expected: format!("circuit {circuit}"),
            });
        }
        Ok(srs)
    }

    /// As [`Srs::open`], for whatever circuit the file says it is.
    ///
    /// # Errors
    /// As [`Srs::open`].
    pub fn open_any(path: &Path) -> Result<Self, ParamsError> {
        let (file, stat) = open_file(path)?;
        let bytes = stat.len();
        if bytes == 0 {
            return Err(ParamsError::Empty { path: path.into() });
        }
        if bytes < PAGE {
            let (path, section) = (path.into(), "header");
            let (offset, expected, found) = (0, PAGE, bytes);
            return Err(ParamsError::Truncated { path, section, offset, expected, found });
        }
        // SAFETY: native files are never written once they have their name (see above), so the
        // bytes stay what they are while they are mapped.
        let map = unsafe { Mmap::map(&file) }.map_err(ParamsError::io(path, "map"))?;
        let header = Header::decode(path, &map[..PAGE as usize], bytes)?;
        let vk = bytes_of(&map, &header.extents[0]);
        verify(path, "verifying key", vk, &header.extents[0], &mut |_| Ok(()))?;
        let vk = parse_vk(path, vk)?;
        Ok(Self { path: path.into(), file, map, header, vk })
    }

    /// Checks the checksums of all points: reads the whole file.
    ///
    /// # Errors
    /// [`ParamsError::Checksum`] for the first section that is damaged.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(Progress),
        checkpoint: &dyn Checkpoint,
    ) -> Result<(), ParamsError> {
        let mut watched = |done| {
            progress(Progress {
                step: "verify native file".into(),
                done,
                total: self.size_bytes(),
            });
            Ok(checkpoint.check()?)
        };
        for query in Query::ALL {
            let extent = self.header.extent(query);
            let bytes = bytes_of(&self.map, extent);
            verify(&self.path, query.name(), bytes, extent, &mut watched)?;
        }
        Ok(())
    }

    /// The verifying key.
    pub fn vk(&self) -> &VerifyingKey {
        &self.vk
    }

    /// The points of h.
    pub fn h(&self) -> &[G1Affine] {
        self.points(Query::H)
    }

    /// The points of l.
    pub fn l(&self) -> &[G1Affine] {
        self.points(Query::L)
    }

    /// The points of a.
    pub fn a(&self) -> &[G1Affine] {
        self.points(Query::A)
    }

    /// The points of b in G1.
    pub fn b_g1(&self) -> &[G1Affine] {
        self.points(Query::BG1)
    }

    /// The points of b in G2.
    pub fn b_g2(&self) -> &[G2Affine] {
        self.points(Query::BG2)
    }

    /// What the header says.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The file's size: what is resident at most when all of it is.
    pub fn size_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads `bytes` (a range of the file, in whole pages) and keeps them in memory until
    /// [`Srs::unpin`].
    ///
    /// # Errors
    /// The kernel's answer: mostly that RLIMIT_MEMLOCK does not allow it.
    pub fn pin(&self, bytes: Range<usize>) -> io::Result<()> {
        let bytes = self.within(bytes);
        // SAFETY: a range of the live mapping; locking changes no byte of it.
        check(unsafe { libc::mlock(self.map[bytes.clone()].as_ptr().cast(), bytes.len()) })
    }

    /// Leaves these bytes to the kernel again.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn unpin(&self, bytes: Range<usize>) -> io::Result<()> {
        let bytes = self.within(bytes);
        // SAFETY: as above.
        check(unsafe { libc::munlock(self.map[bytes.clone()].as_ptr().cast(), bytes.len()) })
    }

    /// Takes these bytes' pages out of the process and of the page cache, unless they are pinned; they
    /// are read again when used again. Only a wish, whatever the kernel makes of it.
    pub fn drop_pages(&self, bytes: Range<usize>) {
        let bytes = self.within(bytes);
        // SAFETY: dropping pages of a shared file mapping that is never written loses nothing: a
        // later access reads the same bytes from the file.
        let unmapped = unsafe {
            self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len())
        };
        let (start, length) = (bytes.start as libc::off_t, bytes.len() as libc::off_t);
        // SAFETY: only takes integers; the descriptor is open as long as `self` is.
        let dropped = unsafe {
            libc::posix_fadvise(self.file.as_raw_fd(), start, length, libc::POSIX_FADV_DONTNEED)
        };
        if unmapped.is_err() || dropped != 0 {
            tracing::debug!(?unmapped, dropped, "srs drop refused");
        }
    }

    /// Where points lie in the file, in bytes; what is beyond the section's end is left out.
    pub fn byte_range(&self, query: Query, points: Range<usize>) -> Range<usize> {
        let extent = self.header.extent(query);
        let at = |point: usize| {
            let inside = (point as u64).saturating_mul(query.point_bytes()).min(extent.bytes);
            (extent.offset + inside) as usize
        };
        at(points.start)..at(points.end).max(at(points.start))
    }

    /// Whole pages inside the file.
    fn within(&self, bytes: Range<usize>) -> Range<usize> {
        let page = PAGE as usize;
        let end = bytes.end.min(self.map.len());
        (bytes.start / page * page).min(end)..end
    }

    fn points<P: Point>(&self, query: Query) -> &[P] {
        // Sections lie on pages and are whole points long: `Header::decode` saw to that.
        from_bytes(bytes_of(&self.map, self.header.extent(query))).unwrap_or(&[])
    }
}

/// Within the map: the header was checked against its length.
fn bytes_of<'a>(map: &'a Mmap, extent: &Extent) -> &'a [u8] {
    &map[extent.offset as usize..][..extent.bytes as usize]
}

/// Whether a section's bytes are those that were written.
fn verify(
    path: &Path,
    section: &'static str,
    bytes: &[u8],
    extent: &Extent,
    watched: &mut dyn FnMut(u64) -> Result<(), ParamsError>,
) -> Result<(), ParamsError> {
    const CHUNK: usize = 16 << 20;
    let mut hasher = blake3::Hasher::new();
    for (i, chunk) in bytes.chunks(CHUNK).enumerate() {
        watched(extent.offset + (i * CHUNK) as u64)?;
        hasher.update(chunk);
    }
    let found = hasher.finalize();
    if found == extent.checksum {
        return Ok(());
    }
    let (expected, found) = (extent.checksum.to_string(), found.to_string());
    Err(ParamsError::Checksum { path: path.into(), section, expected, found })
}
