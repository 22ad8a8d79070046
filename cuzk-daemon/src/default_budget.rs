//! What the tightest bound leaves free as the daemon starts: the most that a budget could be. The
//! governor looks every second; without it a tenth is kept back.

use cuzk_governor::sensor::{kernel::KernelSensor, resolve::Root, Sample, Sensor, SensorError};

/// In bytes, rounded down to whole MiB, or why the kernel does not say.
pub fn default_budget() -> Result<u64, SensorError> {
    let mut sample = Sample::default();
    KernelSensor::open(Root::default())?.sample(&mut sample)?;
    let free = |level: &cuzk_governor::sensor::Level| {
        level.limit.map(|limit| limit.saturating_sub(level.unreclaimable()))
    };
    let tightest = sample.levels.iter().filter_map(free).min();
    let bytes = tightest.unwrap_or(u64::MAX).min(sample.host.available);
    Ok(bytes >> MEBI << MEBI)
}

const MEBI: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_no_more_than_what_the_host_has_available() {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
        let available: u64 = line.trim().trim_end_matches("kB").trim().parse().unwrap();
        let budget = default_budget().unwrap();
        assert!(budget > 0 && budget <= available * 1024, "{budget} of {available} KiB");
    }
}
