//! One level of a cgroup v1 memory tree.
//!
//! Of `memory.stat` only the `total_…` figures include the cgroups below, as usage does. Reclaimable
//! slab is not stated on v1 and so counts as usage. Limits on memory and swap together
//! (`memory.memsw`) are a level of their own. Where a file other than usage and limits is of no use,
//! what it would have said is taken for the worse.

use std::path::Path;
use std::sync::Arc;

use super::counter::Watermark;
use super::file::{tighter, Contents, KernelFile};
use super::resolve::Root;
use super::{Level, SensorError};

/// The files of a level, held open.
#[derive(Debug)]
pub(crate) struct LevelV1 {
    path: Arc<str>,
    swap_path: Arc<str>,
    limit: KernelFile,
    usage: KernelFile,
    max_usage: KernelFile,
    stat: KernelFile,
    swap_limit: KernelFile,
    swap_usage: KernelFile,
    failures: KernelFile,
    watermark: Watermark,
    is_topmost: bool,
}

impl LevelV1 {
    pub(crate) fn new(root: &Root, folder: &Path) -> Self {
        let file = |name| KernelFile::new(root.join(folder).join(name));
        Self {
            path: folder.to_string_lossy().into(),
            swap_path: format!("{}:memsw", folder.display()).into(),
            limit: file("memory.limit_in_bytes"),
            usage: file("memory.usage_in_bytes"),
            max_usage: file("memory.max_usage_in_bytes"),
            stat: file("memory.stat"),
            swap_limit: file("memory.memsw.limit_in_bytes"),
            swap_usage: file("memory.memsw.usage_in_bytes"),
            failures: file("memory.failcnt"),
            watermark: Watermark::default(),
            is_topmost: false,
        }
    }

    /// This is the highest level to be seen: the kernel states the tightest limit up to the real
    /// root, so it answers for those that a container does not see, too.
    pub(crate) fn answer_for_unseen(&mut self) {
        self.is_topmost = true;
    }

    /// The level now, `None` where it is gone.
    pub(crate) fn read(&mut self) -> Result<Option<Level>, SensorError> {
        let Some(usage) = self.usage.read()? else { return Ok(None) };
        let usage = usage.number()?;
        let (reclaimable, hierarchical) = self.stat()?;
        let inherited = hierarchical.filter(|_| self.is_topmost);
        let own = self.limit.read()?.map(|limit| limit.number()).transpose()?;
        Ok(Some(Level {
            path: Arc::clone(&self.path),
            limit: tighter(own, inherited),
            usage,
            peak: self.peak(usage),
            reclaimable: reclaimable.min(usage),
        }))
    }

    /// The limit on memory and swap together, where there is one; `memory` is this level's
    /// reading.
    pub(crate) fn read_with_swap(&mut self, memory: &Level) -> Result<Option<Level>, SensorError> {
        let Some(limit) = self.swap_limit.read()? else { return Ok(None) };
        let limit = limit.number()?;
        let Some(usage) = self.swap_usage.read()? else { return Ok(None) };
        let usage = usage.number()?;
        Ok(Some(Level {
            path: Arc::clone(&self.swap_path),
            limit: Some(limit),
            usage,
            peak: usage.max(memory.peak),
            reclaimable: memory.reclaimable.min(usage),
        }))
    }

    /// The maximum is never reset here, for others may be reading it.
    fn peak(&mut self, usage: u64) -> u64 {
        let peak = self.max_usage.read_optional(|contents| contents.number());
        peak.map_or(usage, |peak| self.watermark.since_last(peak, usage))
    }

    /// File pages, and the tightest limit up to the real root. At the topmost level that limit
    /// counts, and so the file is read as one that holds a limit.
    fn stat(&mut self) -> Result<(u64, Option<u64>), SensorError> {
        let parse = |stat: &Contents<'_>| {
            let file = stat
                .required("total_inactive_file")?
                .saturating_add(stat.required("total_active_file")?);
            Ok((file, stat.field("hierarchical_memory_limit")))
        };
        let stat = match self.is_topmost {
            true => self.stat.read()?.map(|stat| parse(&stat)).transpose()?,
            false => self.stat.read_optional(parse),
        };
        Ok(stat.unwrap_or((0, None)))
    }

    /// How often this level's own limit was met.
    pub(crate) fn hits(&mut self) -> Option<u64> {
        self.failures.read_optional(|contents| contents.number())
    }
}

/// Whether what is charged to a cgroup below `folder` is charged to it, too. Kernels since 5.11
/// know no other way.
pub(crate) fn is_hierarchical(root: &Root, folder: &Path) -> bool {
    let mut file = KernelFile::new(root.join(folder).join("memory.use_hierarchy"));
    file.read_optional(|contents| contents.number()) != Some(0)
}
