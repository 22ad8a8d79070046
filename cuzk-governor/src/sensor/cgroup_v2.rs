//! One level of a cgroup v2 tree.
//!
//! A level without `memory.current` (the machine's root, or one whose parent does not pass the
//! memory controller on) limits nothing and is no level. Any other file may be missing on an older
//! kernel; what it would have said is then taken for the worse. So it is where a file other than
//! usage and limits is there and of no use.

use std::path::Path;
use std::sync::Arc;

use super::counter::Watermark;
use super::file::{tighter, Contents, KernelFile};
use super::resolve::Root;
use super::{Level, SensorError};

/// The files of a level, held open.
#[derive(Debug)]
pub(crate) struct LevelV2 {
    path: Arc<str>,
    max: KernelFile,
    high: KernelFile,
    current: KernelFile,
    peak: KernelFile,
    stat: KernelFile,
    local_events: KernelFile,
    watermark: Watermark,
}

impl LevelV2 {
    pub(crate) fn new(root: &Root, folder: &Path) -> Self {
        let file = |name| KernelFile::new(root.join(folder).join(name));
        Self {
            path: folder.to_string_lossy().into(),
            max: file("memory.max"),
            high: file("memory.high"),
            current: file("memory.current"),
            peak: file("memory.peak"),
            stat: file("memory.stat"),
            local_events: file("memory.events.local"),
            watermark: Watermark::default(),
        }
    }

    /// The level now, `None` where memory is not accounted at it.
    pub(crate) fn read(&mut self) -> Result<Option<Level>, SensorError> {
        let Some(current) = self.current.read()? else { return Ok(None) };
        let usage = current.number()?;
        Ok(Some(Level {
            path: Arc::clone(&self.path),
            limit: self.limit()?,
            usage,
            peak: self.peak(usage),
            reclaimable: self.reclaimable().min(usage),
        }))
    }

    /// min(high, max): at `high` the kernel throttles until nothing moves, well before it kills.
    fn limit(&mut self) -> Result<Option<u64>, SensorError> {
        let mut limit = None;
        for file in [&mut self.max, &mut self.high] {
            if let Some(contents) = file.read()? {
                limit = tighter(limit, contents.limit()?);
            }
        }
        Ok(limit)
    }

    fn peak(&mut self, usage: u64) -> u64 {
        let peak = self.peak.read_optional(|contents| contents.number());
        peak.map_or(usage, |peak| self.watermark.since_last(peak, usage))
    }

    /// File pages and half of the reclaimable slab: dentries and inodes in use stay, and how many
    /// of them are in use the kernel does not say. Not `file`, of which shmem is a part.
    fn reclaimable(&mut self) -> u64 {
        let stated = self.stat.read_optional(|stat| {
            let slab = stat.field("slab_reclaimable").unwrap_or(0);
            let file =
                stat.required("inactive_file")?.saturating_add(stat.required("active_file")?);
            Ok(file.saturating_add(slab / 2))
        });
        stated.unwrap_or(0)
    }

    /// How often this level's own limits were met: (max, high).
    pub(crate) fn hits(&mut self) -> Option<(u64, u64)> {
        let hits = |events: &Contents<'_>| Ok((events.required("max")?, events.required("high")?));
        self.local_events.read_optional(hits)
    }
}
