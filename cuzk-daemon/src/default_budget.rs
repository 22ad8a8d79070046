//! The memory budget when none is set: nine tenths of what the tightest bound leaves free as the
//! daemon starts. Provisional: it looks once and keeps a fixed share back; the governor looks
//! every second, and its headroom will take this figure's place.

use cuzk_governor::sensor::{kernel::KernelSensor, resolve::Root, Sample, Sensor};

/// The budget in bytes; `None` where the kernel does not say.
pub fn default_budget() -> Option<u64> {
    let mut sample = Sample::default();
    KernelSensor::open(Root::default()).ok()?.sample(&mut sample).ok()?;
    let free = |level: &cuzk_governor::sensor::Level| {
        level.limit.map(|limit| limit.saturating_sub(level.unreclaimable()))
    };
    let tightest = sample.levels.iter().filter_map(free).min();
    let bytes = tightest.unwrap_or(u64::MAX).min(sample.host.available);
    Some((bytes / 10 * 9) >> MEBI << MEBI)
}

/// Figures are rounded down to whole MiB.
const MEBI: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_less_than_what_the_host_has_available() {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
        let available: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap();
        let budget = default_budget().unwrap();
        assert!(budget > 0 && budget < available * 1024, "{budget} of {available} KiB");
    }
}
