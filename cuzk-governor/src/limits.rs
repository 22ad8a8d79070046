//! memcheck: what memory this process is promised, by every level and the host, and by whom least.
//!
//! Promises only: what can really be had is for [`crate::probe`] to find out. All figures are of one
//! instant and in bytes; nothing here is kept up to date.

use std::fmt;
use std::path::Path;

use bytesize::ByteSize;
use serde::Serialize;

use crate::sensor::file::KernelFile;
use crate::sensor::kernel::KernelSensor;
use crate::sensor::resolve::{Hierarchy, Root, Version};
use crate::sensor::{Level, Sample, Sensor, SensorError};

/// What is promised.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Promises {
    /// Whose interface tells of the cgroups; `None` where only the host limits.
    pub cgroup: Option<Version>,
    /// Every bound: the process's own cgroup first, the host last.
    pub bounds: Vec<Bound>,
    /// The bound with the least left.
    pub tightest: String,
    /// What is left there.
    pub left: u64,
    /// Swap of the machine.
    pub swap_total: u64,
    /// RLIMIT_MEMLOCK; `None` where it is unlimited.
    pub lockable: Option<u64>,
    /// What an operator should know beyond the figures.
    pub notes: Vec<String>,
}

/// One bound on the process's memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// The cgroup's folder, `host`, `rlimit:as`, …
    pub name: String,
    /// `None` where nothing is limited.
    pub limit: Option<u64>,
    /// What counts against it, page cache included.
    pub usage: u64,
    /// The part of it that the kernel can take back.
    pub reclaimable: u64,
    /// limit − (usage − reclaimable).
    pub left: Option<u64>,
    /// What may be swapped out here (v2).
    pub swap_limit: Option<u64>,
}

/// What is left at a level; `None` where nothing is limited.
pub fn left(level: &Level) -> Option<u64> {
    level.limit.map(|limit| limit.saturating_sub(level.unreclaimable()))
}

/// Reads all that is promised to this process.
pub fn check(root: &Root) -> Result<Promises, SensorError> {
    let mut sensor = KernelSensor::open(root.clone())?;
    let mut sample = Sample::default();
    sensor.sample(&mut sample)?;
    let mut promises = Promises::of(&sample, sensor.hierarchy());
    promises.look_closer(root, sensor.hierarchy())?;
    Ok(promises)
}

impl Promises {
    fn of(sample: &Sample, hierarchy: &Hierarchy) -> Self {
        let mut bounds: Vec<_> = sample.levels.iter().map(Bound::of).collect();
        bounds.push(Bound {
            name: "host".into(),
            limit: Some(sample.host.total),
            usage: sample.host.total.saturating_sub(sample.host.available),
            reclaimable: 0,
            left: Some(sample.host.available),
            swap_limit: None,
        });
        let least = bounds.iter().filter_map(|bound| Some((bound.left?, &bound.name))).min();
        let (left, tightest) =
            least.map_or((0, String::new()), |(left, name)| (left, name.clone()));
        let cgroup = hierarchy.memory.as_ref().map(|tree| tree.version);
        Self { cgroup, bounds, tightest, left, swap_total: 0, lockable: None, notes: Vec::new() }
    }

    /// Adds what a sample does not hold.
    fn look_closer(&mut self, root: &Root, hierarchy: &Hierarchy) -> Result<(), SensorError> {
        let mut meminfo = KernelFile::new(root.join("/proc/meminfo"));
        self.swap_total = meminfo.read_required()?.field("SwapTotal").unwrap_or(0);
        let mut limits = KernelFile::new(root.join("/proc/self/limits"));
        self.lockable = limits.read_required()?.field("Max locked memory");
        if self.bounds.iter().all(|bound| bound.limit.is_none() || bound.name == "host") {
            self.notes.push("no limit below the host's memory is visible from here".into());
        }
        for folder in hierarchy.memory.iter().flat_map(|tree| &tree.levels) {
            self.look_closer_at(root, folder)?;
        }
        Ok(())
    }

    fn look_closer_at(&mut self, root: &Root, folder: &Path) -> Result<(), SensorError> {
        let name = folder.to_string_lossy();
        let read = |file: &str| KernelFile::new(root.join(folder).join(file));
        let limit = |file: &str| match read(file).read()? {
            Some(contents) => contents.limit(),
            None => Ok(None),
        };
        if let (Some(high), max) = (limit("memory.high")?, limit("memory.max")?) {
            if max.is_none_or(|max| high < max) {
                let high = ByteSize(high);
                self.notes
                    .push(format!("{name}: memory.high ({high}) throttles before memory.max"));
            }
        }
        if kills_all_at_once(root, folder)? {
            self.notes
                .push(format!("{name}: memory.oom.group is 1: a kill takes all in it at once"));
        }
        let control = read("memory.oom_control").read()?.and_then(|c| c.field("oom_kill_disable"));
        if control == Some(1) {
            self.notes
                .push(format!("{name}: oom_kill_disable is 1: at the limit it hangs instead"));
        }
        let swap_limit = limit("memory.swap.max")?;
        if let Some(bound) = self.bounds.iter_mut().find(|bound| bound.name == name) {
            bound.swap_limit = swap_limit;
        }
        Ok(())
    }
}

/// Whether the kernel, once it kills in this cgroup, kills all of it.
pub(crate) fn kills_all_at_once(root: &Root, folder: &Path) -> Result<bool, SensorError> {
    let mut file = KernelFile::new(root.join(folder).join("memory.oom.group"));
    Ok(file.read()?.map(|contents| contents.number()).transpose()? == Some(1))
}

impl Bound {
    fn of(level: &Level) -> Self {
        Self {
            name: level.path.to_string(),
            limit: level.limit,
            usage: level.usage,
            reclaimable: level.reclaimable,
            left: left(level),
            swap_limit: None,
        }
    }
}

impl fmt::Display for Promises {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |bytes: u64| ByteSize(bytes).to_string();
        let limit =
            |bytes: Option<u64>| bytes.map_or("none".into(), |bytes| ByteSize(bytes).to_string());
        let width = self.bounds.iter().map(|bound| bound.name.len()).max().unwrap_or(0);
        let mut row = |name: &str, cells: [&str; 4]| {
            let [one, two, three, four] = cells;
            writeln!(out, "{name:width$}  {one:>10}  {two:>10}  {three:>11}  {four:>10}")
        };
        row("bound", ["limit", "used", "reclaimable", "left"])?;
        for bound in &self.bounds {
            let (most, left) = (limit(bound.limit), limit(bound.left));
            row(&bound.name, [&most, &bytes(bound.usage), &bytes(bound.reclaimable), &left])?;
        }
        writeln!(out, "\ntightest: {}, {} left", self.tightest, ByteSize(self.left))?;
        writeln!(out, "swap: {}, lockable: {}", ByteSize(self.swap_total), limit(self.lockable))?;
        for note in &self.notes {
            writeln!(out, "note: {note}")?;
        }
        Ok(())
    }
}
