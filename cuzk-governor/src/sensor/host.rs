//! The whole machine: `/proc/meminfo`, what ZFS would give back, and strict overcommit.
//!
//! Inside LXC `/proc/meminfo` tells of the container, which is right for the container. Huge pages
//! that are set aside are in neither MemAvailable nor anything else here.

use std::sync::Arc;

use super::file::{Contents, KernelFile};
use super::resolve::Root;
use super::{Host, Level, SensorError};

/// `vm.overcommit_memory` = 2: the kernel refuses mappings beyond CommitLimit.
const NEVER_OVERCOMMIT: u64 = 2;

#[derive(Debug)]
pub(crate) struct HostFiles {
    meminfo: KernelFile,
    overcommit: KernelFile,
    arcstats: KernelFile,
    commit_path: Arc<str>,
}

impl HostFiles {
    pub(crate) fn new(root: &Root) -> Self {
        let file = |path| KernelFile::new(root.join(path));
        Self {
            meminfo: file("/proc/meminfo"),
            overcommit: file("/proc/sys/vm/overcommit_memory"),
            arcstats: file("/proc/spl/kstat/zfs/arcstats"),
            commit_path: "host:commit".into(),
        }
    }

    /// The machine's memory, and under strict overcommit its limit on promises.
    pub(crate) fn read(&mut self) -> Result<(Host, Option<Level>), SensorError> {
        let arc = self.arcstats.read_optional(reclaimable_arc).unwrap_or(0);
        let mode = self.overcommit.read_optional(|contents| contents.number());
        let meminfo = self.meminfo.read_required()?;
        let total = meminfo.required("MemTotal")?;
        let available = meminfo.required("MemAvailable")?.saturating_add(arc).min(total);
        let committed = if mode == Some(NEVER_OVERCOMMIT) {
            let usage = meminfo.required("Committed_AS")?;
            Some(Level {
                path: Arc::clone(&self.commit_path),
                limit: Some(meminfo.required("CommitLimit")?),
                usage,
                peak: usage,
                reclaimable: 0,
            })
        } else {
            None
        };
        Ok((Host { total, available }, committed))
    }
}

/// ZFS keeps its cache outside the page cache: MemAvailable counts it as used although it shrinks to
/// `c_min` on demand.
fn reclaimable_arc(stats: &Contents<'_>) -> Result<u64, SensorError> {
    let value = |key: &'static str| {
        // Lines read `size 4 123456`: a name, a type, a value.
        let value = stats.bytes().split(|&byte| byte == b'\n').find_map(|line| {
            let rest = line.strip_prefix(key.as_bytes())?.strip_prefix(b" ")?;
            std::str::from_utf8(rest.rsplit(|&byte| byte == b' ').next()?).ok()?.parse().ok()
        });
        value.ok_or_else(|| stats.malformed(key))
    };
    let (size, least): (u64, u64) = (value("size")?, value("c_min")?);
    Ok(size.saturating_sub(least))
}
