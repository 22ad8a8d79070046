//! This process: what it holds by class, and the limits set on it (RLIMIT_AS, RLIMIT_DATA).
//!
//! From `/proc/self/status`, which costs microseconds; `smaps_rollup` is exacter but walks every
//! page table (a second for hundreds of GiB). Kernels 6.2 to 6.16 keep the counters of `status` per
//! CPU and may be off by some MiB a CPU: these figures inform, the cgroup's figures decide.

use std::sync::Arc;

use super::file::{Contents, KernelFile};
use super::resolve::Root;
use super::{Level, Resident, SensorError};

#[derive(Debug)]
pub(crate) struct ProcessFiles {
    status: KernelFile,
    limits: KernelFile,
    address_space: Arc<str>,
    data: Arc<str>,
}

/// A reading of this process.
pub(crate) struct Process {
    pub(crate) resident: Resident,
    pub(crate) address_space: Option<Level>,
    pub(crate) data: Option<Level>,
}

impl ProcessFiles {
    pub(crate) fn new(root: &Root) -> Self {
        Self {
            status: KernelFile::new(root.join("/proc/self/status")),
            limits: KernelFile::new(root.join("/proc/self/limits")),
            address_space: "rlimit:as".into(),
            data: "rlimit:data".into(),
        }
    }

    pub(crate) fn read(&mut self) -> Result<Process, SensorError> {
        let limits = self.limits.read_required()?;
        let status = self.status.read_required()?;
        let level =
            |path, limit, usage| Self::level(path, limits.field(limit), status.field(usage));
        Ok(Process {
            resident: resident(&status)?,
            address_space: level(&self.address_space, "Max address space", "VmSize"),
            data: level(&self.data, "Max data size", "VmData"),
        })
    }

    fn level(path: &Arc<str>, limit: Option<u64>, usage: Option<u64>) -> Option<Level> {
        let (limit, usage) = (limit?, usage?);
        Some(Level {
            path: Arc::clone(path),
            limit: Some(limit),
            usage,
            peak: usage,
            reclaimable: 0,
        })
    }
}

fn resident(status: &Contents<'_>) -> Result<Resident, SensorError> {
    Ok(Resident {
        anon: status.required("RssAnon")?,
        file: status.required("RssFile")?,
        shmem: status.required("RssShmem")?,
        locked: status.field("VmLck").unwrap_or(0),
    })
}
