//! Every trap that a memory sensor has fallen into somewhere, as a made-up `/proc` and `/sys`.
//!
//! A fixture is written from scratch by its test, so that the test shows all it depends on. Traps
//! of finding the own cgroup are beside `resolve`, those that only a real kernel sets in
//! `tests/tests/kernel.rs`.

use std::fs;
use std::time::Duration;

use cuzk_governor::sensor::kernel::KernelSensor;
use cuzk_governor::sensor::pressure::{Source, Trigger};
use cuzk_governor::sensor::resolve::{resolve, Root};
use cuzk_governor::sensor::{Host, Level, Pressure, Resident, Sample, Sensor, SensorError, Stall};

const GIB: u64 = 1 << 30;
const NO_LIMIT_V1: u64 = 0x7FFF_FFFF_FFFF_F000;

/// A machine with 64 GiB, of which 48 are available.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new(membership: &str, mountinfo: &str) -> Self {
        let machine = Self { dir: tempfile::tempdir().unwrap() };
        machine.write("/proc/self/cgroup", membership);
        machine.write("/proc/self/mountinfo", mountinfo);
        machine.write(
            "/proc/meminfo",
            format!(
                "MemTotal: {} kB\nMemFree: 1 kB\nMemAvailable: {} kB\nHugePages_Total: 4096\n\
                 CommitLimit: {} kB\nCommitted_AS: {} kB\n",
                64 << 20,
                48 << 20,
                32 << 20,
                8 << 20
            ),
        );
        machine.write(
            "/proc/self/status",
            "Name:\tcuzk\nVmSize:\t 3145728 kB\nVmLck:\t 4 kB\nRssAnon:\t 1048576 kB\n\
             RssFile:\t 2048 kB\nRssShmem:\t 512 kB\nVmData:\t 2097152 kB\n",
        );
        machine.rlimits("unlimited", "unlimited");
        machine
    }

    /// The process in `/a/b` of a v2 tree, with no limit at any level.
    fn v2() -> Self {
        let machine = Self::new(
            "0::/a/b\n",
            "30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        machine.write("/sys/fs/cgroup/memory.stat", "inactive_file 1\nactive_file 1\n");
        for level in ["a", "a/b"] {
            machine.v2_level(level, "max", GIB, "");
        }
        machine
    }

    fn v2_level(&self, level: &str, max: impl ToString, current: u64, stat: &str) {
        let file = |name: &str| format!("/sys/fs/cgroup/{level}/memory.{name}");
        self.write(&file("max"), max.to_string() + "\n");
        self.write(&file("high"), "max\n");
        self.write(&file("current"), format!("{current}\n"));
        self.write(&file("peak"), format!("{current}\n"));
        self.write(&file("events"), "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n");
        self.write(&file("events.local"), "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n");
        self.write(&file("stat"), format!("inactive_file 0\nactive_file 0\n{stat}"));
    }

    /// The process in `/a/b` of a v1 tree, with no limit at any level.
    fn v1() -> Self {
        let machine = Self::new(
            "4:memory:/a/b\n1:name=systemd:/init\n",
            "35 31 0:32 / /sys/fs/cgroup/memory rw shared:17 - cgroup cgroup rw,memory\n",
        );
        for level in ["", "a", "a/b"] {
            machine.v1_level(level, NO_LIMIT_V1, GIB);
        }
        machine
    }

    fn v1_level(&self, level: &str, limit: u64, usage: u64) {
        let file = |name: &str| format!("/sys/fs/cgroup/memory/{level}/memory.{name}");
        self.write(&file("limit_in_bytes"), format!("{limit}\n"));
        self.write(&file("usage_in_bytes"), format!("{usage}\n"));
        self.write(&file("max_usage_in_bytes"), format!("{usage}\n"));
        self.write(&file("use_hierarchy"), "1\n");
        self.write(&file("failcnt"), "0\n");
        self.write(&file("oom_control"), "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
        self.write(
            &file("stat"),
            format!(
                "inactive_file 7\nactive_file 7\nhierarchical_memory_limit {NO_LIMIT_V1}\n\
                 total_inactive_file 1000\ntotal_active_file 24\ntotal_shmem 5000\n"
            ),
        );
    }

    fn rlimits(&self, address_space: &str, data: &str) {
        self.write(
            "/proc/self/limits",
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max data size             {data:<20} unlimited            bytes     \n\
                 Max address space         {address_space:<20} unlimited            bytes     \n"
            ),
        );
    }

    fn root(&self) -> Root {
        Root::at(self.dir.path())
    }

    fn write(&self, path: &str, contents: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.root().join(path)).unwrap();
    }

    fn sensor(&self) -> KernelSensor {
        KernelSensor::open(self.root()).unwrap()
    }

    fn sample(&self) -> Sample {
        take(&mut self.sensor())
    }
}

fn take(sensor: &mut KernelSensor) -> Sample {
    let mut sample = Sample::default();
    sensor.sample(&mut sample).unwrap();
    sample
}

fn paths(sample: &Sample) -> Vec<&str> {
    sample.levels.iter().map(|level| &*level.path).collect()
}

fn limits(sample: &Sample) -> Vec<Option<u64>> {
    sample.levels.iter().map(|level| level.limit).collect()
}

// 2. Limits on ancestors bind.

#[test]
fn each_level_has_its_own_limit_and_its_own_usage() {
    let machine = Machine::v2();
    machine.v2_level("a", 8 * GIB, 7 * GIB, "");
    machine.v2_level("a/b", 10 * GIB, GIB, "");
    let sample = machine.sample();
    assert_eq!(paths(&sample), ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a"]);
    assert_eq!(limits(&sample), [Some(10 * GIB), Some(8 * GIB)]);
    assert_eq!(sample.levels[1].usage, 7 * GIB);
}

#[test]
fn a_level_that_does_not_account_memory_is_none() {
    // The machine's root has memory.stat but no memory.current; a parent that does not pass the
    // controller on leaves its child without any memory file.
    let machine = Machine::v2();
    for name in ["max", "high", "current", "peak", "events", "events.local", "stat"] {
        machine.remove(&format!("/sys/fs/cgroup/a/b/memory.{name}"));
    }
    assert_eq!(paths(&machine.sample()), ["/sys/fs/cgroup/a"]);
}

#[test]
fn on_v1_a_limit_above_the_mount_shows_as_the_hierarchical_limit() {
    let machine = Machine::v1();
    let stat = format!(
        "hierarchical_memory_limit {}\ntotal_inactive_file 0\ntotal_active_file 0\n",
        4 * GIB
    );
    machine.write("/sys/fs/cgroup/memory/memory.stat", stat);
    assert_eq!(machine.sample().levels.last().unwrap().limit, Some(4 * GIB));
}

#[test]
fn on_v1_without_hierarchy_an_ancestor_does_not_bind() {
    let machine = Machine::v1();
    machine.v1_level("a", 2 * GIB, GIB);
    machine.write("/sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
    assert_eq!(paths(&machine.sample()), ["/sys/fs/cgroup/memory/a/b"]);
}

// 3. What means "no limit here".

#[test]
fn the_word_max_the_v1_maximum_and_the_machines_memory_are_no_limits() {
    let v2 = Machine::v2();
    v2.v2_level("a", 64 * GIB, GIB, "");
    assert_eq!(limits(&v2.sample()), [None, None]);
    v2.v2_level("a", 64 * GIB - 4096, GIB, "");
    assert_eq!(limits(&v2.sample()), [None, Some(64 * GIB - 4096)]);
    assert_eq!(limits(&Machine::v1().sample()), [None, None, None]);
}

#[test]
fn a_limit_of_zero_is_a_limit() {
    let machine = Machine::v2();
    machine.v2_level("a/b", 0, 0, "");
    assert_eq!(machine.sample().levels[0].limit, Some(0));
}

// 4. memory.high binds first.

#[test]
fn the_smaller_of_high_and_max_is_the_limit() {
    let machine = Machine::v2();
    machine.v2_level("a/b", 10 * GIB, GIB, "");
    machine.write("/sys/fs/cgroup/a/b/memory.high", format!("{}\n", 6 * GIB));
    assert_eq!(machine.sample().levels[0].limit, Some(6 * GIB));
    machine.write("/sys/fs/cgroup/a/b/memory.high", format!("{}\n", 16 * GIB));
    assert_eq!(machine.sample().levels[0].limit, Some(10 * GIB));
}

// 5. Page cache is reclaimable, shmem is not.

#[test]
fn file_pages_and_half_of_the_slab_are_reclaimable_and_shmem_is_not() {
    let machine = Machine::v2();
    let stat = format!("anon 0\nfile {}\nshmem {}\n", 5 * GIB, 4 * GIB);
    machine.v2_level("a/b", "max", 8 * GIB, &stat);
    let stat = format!(
        "file {}\nshmem {}\nslab_reclaimable 2000\ninactive_file {}\nactive_file 500\n",
        5 * GIB,
        4 * GIB,
        GIB
    );
    machine.write("/sys/fs/cgroup/a/b/memory.stat", stat);
    assert_eq!(machine.sample().levels[0].reclaimable, GIB + 500 + 1000);
}

#[test]
fn on_v1_the_figures_that_include_children_count() {
    assert_eq!(Machine::v1().sample().levels[0].reclaimable, 1024);
}

#[test]
fn never_more_is_reclaimable_than_is_used() {
    // The two files are read one after the other.
    let machine = Machine::v2();
    machine.v2_level("a/b", "max", 100, "");
    machine.write("/sys/fs/cgroup/a/b/memory.stat", "inactive_file 300\nactive_file 0\n");
    let level = &machine.sample().levels[0];
    assert_eq!((level.reclaimable, level.unreclaimable()), (100, 0));
}

// 6. Pinned memory is shmem, and drivers charge the host alone.

#[test]
fn the_own_process_is_told_by_class_and_the_host_apart() {
    let sample = Machine::v2().sample();
    let own = Resident { anon: GIB, file: 2 << 20, shmem: 512 << 10, locked: 4096 };
    assert_eq!(sample.own, own);
    assert_eq!(sample.host, Host { total: 64 * GIB, available: 48 * GIB });
}

// 7. Limits change, files vanish.

#[test]
fn a_limit_changed_while_running_is_seen_in_the_next_sample() {
    let machine = Machine::v2();
    let mut sensor = machine.sensor();
    assert_eq!(take(&mut sensor).levels[0].limit, None);
    machine.write("/sys/fs/cgroup/a/b/memory.max", format!("{GIB}\n"));
    assert_eq!(take(&mut sensor).levels[0].limit, Some(GIB));
}

#[test]
fn a_process_moved_to_another_cgroup_is_followed() {
    let machine = Machine::v2();
    let mut sensor = machine.sensor();
    take(&mut sensor);
    machine.v2_level("c", 3 * GIB, GIB, "");
    machine.write("/sys/fs/cgroup/c/memory.events", "oom_kill 40\n");
    machine.write("/proc/self/cgroup", "0::/c\n");
    let sample = take(&mut sensor);
    assert_eq!(paths(&sample), ["/sys/fs/cgroup/c"]);
    assert_eq!(sample.events.oom_kill, 0, "what was killed there before concerns nobody");
    machine.write("/sys/fs/cgroup/c/memory.events", "oom_kill 41\n");
    assert_eq!(take(&mut sensor).events.oom_kill, 1);
}

#[test]
fn older_kernels_lack_files_and_are_read_without_them() {
    let machine = Machine::v2();
    machine.v2_level("a/b", 2 * GIB, GIB, "");
    for name in ["high", "peak", "events.local", "stat"] {
        machine.remove(&format!("/sys/fs/cgroup/a/b/memory.{name}"));
    }
    let level = &machine.sample().levels[0];
    let path = "/sys/fs/cgroup/a/b".into();
    let expected = Level { path, limit: Some(2 * GIB), usage: GIB, peak: GIB, reclaimable: 0 };
    assert_eq!(*level, expected);
}

#[test]
fn a_file_of_nonsense_is_an_error_that_names_it_and_keeps_the_last_reading() {
    let machine = Machine::v2();
    let mut sensor = machine.sensor();
    let mut sample = take(&mut sensor);
    let before = sample.clone();
    machine.write("/sys/fs/cgroup/a/b/memory.max", "lots\n");
    let error = sensor.sample(&mut sample).unwrap_err();
    assert!(matches!(&error, SensorError::Malformed { path, .. } if path.ends_with("memory.max")));
    assert!(error.to_string().contains("lots"), "{error}");
    assert_eq!(sample, before);
    machine.write("/sys/fs/cgroup/a/b/memory.max", "max\n");
    sensor.sample(&mut sample).unwrap();
    assert_eq!(sample.sequence, before.sequence + 1);
}

#[test]
fn without_meminfo_there_is_no_sample() {
    let machine = Machine::v2();
    machine.remove("/proc/meminfo");
    let error = machine.sensor().sample(&mut Sample::default()).unwrap_err();
    assert!(matches!(error, SensorError::Unreadable { path, .. } if path.ends_with("meminfo")));
}

// 8. Pressure.

const PRESSURE: &str = "some avg10=1.25 avg60=0.10 avg300=0.00 total=1200\n\
                        full avg10=0.50 avg60=0.00 avg300=0.00 total=300\n";

fn total(sample: &Sample) -> u64 {
    sample.pressure.unwrap().some.total_us
}

#[test]
fn the_cgroups_own_pressure_is_preferred_to_the_machines() {
    let machine = Machine::v2();
    machine.write("/proc/pressure/memory", PRESSURE.replace("1200", "999999"));
    assert_eq!(total(&machine.sample()), 999_999);
    machine.write("/sys/fs/cgroup/a/b/memory.pressure", PRESSURE);
    let expected = Pressure {
        some: Stall { total_us: 1200, avg10: 1.25 },
        full: Stall { total_us: 300, avg10: 0.5 },
    };
    assert_eq!(machine.sample().pressure, Some(expected));
}

#[test]
fn a_change_of_the_pressure_source_is_no_stall() {
    let machine = Machine::v2();
    machine.write("/sys/fs/cgroup/a/b/memory.pressure", PRESSURE);
    machine.write("/proc/pressure/memory", PRESSURE.replace("1200", "999999"));
    let mut sensor = machine.sensor();
    assert_eq!(total(&take(&mut sensor)), 1200);
    machine.v2_level("c", "max", GIB, "");
    machine.write("/proc/self/cgroup", "0::/c\n");
    assert_eq!(total(&take(&mut sensor)), 1200);
    machine.write("/proc/pressure/memory", PRESSURE.replace("1200", "1000009"));
    assert_eq!(total(&take(&mut sensor)), 1210);
}

#[test]
fn without_psi_there_is_no_pressure_and_no_trigger() {
    let machine = Machine::v2();
    assert_eq!(machine.sample().pressure, None);
    let hierarchy = resolve(&machine.root()).unwrap();
    let (stall, window) = (Duration::from_millis(150), Duration::from_secs(1));
    let trigger = Trigger::arm(&machine.root(), &hierarchy, stall, window);
    assert_eq!(trigger.source(), Source::Nothing);
}

#[test]
fn beside_v1_memory_the_pressure_is_that_of_the_v2_tree() {
    let machine = Machine::v1();
    machine.write("/proc/self/cgroup", "4:memory:/a/b\n0::/u\n");
    let mounts = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    machine.write("/proc/self/mountinfo", mounts);
    machine.write("/sys/fs/cgroup/unified/u/memory.pressure", PRESSURE);
    let sample = machine.sample();
    assert_eq!(total(&sample), 1200);
    assert_eq!(sample.levels.len(), 3);
}

#[test]
fn on_v1_memory_and_swap_together_are_a_level_of_their_own() {
    let machine = Machine::v1();
    let file = |name| format!("/sys/fs/cgroup/memory/a/b/memory.memsw.{name}");
    machine.write(&file("limit_in_bytes"), format!("{NO_LIMIT_V1}\n"));
    machine.write(&file("usage_in_bytes"), format!("{}\n", 3 * GIB));
    assert_eq!(machine.sample().levels.len(), 3);
    machine.write(&file("limit_in_bytes"), format!("{}\n", 4 * GIB));
    let sample = machine.sample();
    assert_eq!(&*sample.levels[1].path, "/sys/fs/cgroup/memory/a/b:memsw");
    assert_eq!((sample.levels[1].limit, sample.levels[1].usage), (Some(4 * GIB), 3 * GIB));
}

// 9. Evidence of a kill.

#[test]
fn kills_are_counted_and_a_disabled_killer_is_not_one() {
    let machine = Machine::v2();
    machine.write("/sys/fs/cgroup/a/b/memory.events", "oom 9\noom_kill 2\noom_group_kill 1\n");
    assert_eq!(machine.sample().events.oom_kill, 2);
    let machine = Machine::v1();
    let control = "oom_kill_disable 1\nunder_oom 1\noom_kill 3\n";
    machine.write("/sys/fs/cgroup/memory/a/b/memory.oom_control", control);
    assert_eq!(machine.sample().events.oom_kill, 3);
}

#[test]
fn the_limit_met_at_an_ancestor_is_counted_too() {
    let machine = Machine::v2();
    machine.write("/sys/fs/cgroup/a/memory.events.local", "high 5\nmax 7\n");
    machine.write("/sys/fs/cgroup/a/b/memory.events.local", "high 1\nmax 2\n");
    // What hierarchical totals add is neighbours' business.
    machine.write("/sys/fs/cgroup/a/memory.events", "high 500\nmax 700\n");
    let events = machine.sample().events;
    assert_eq!((events.max, events.high), (9, 6));
    let machine = Machine::v1();
    machine.write("/sys/fs/cgroup/memory/a/memory.failcnt", "4\n");
    assert_eq!(machine.sample().events.max, 4);
}

// 10. Places that tell little, or tell it elsewhere.

#[test]
fn without_cgroups_there_is_the_host_alone() {
    let sample = Machine::new("", "27 1 254:0 / / rw - ext4 /dev/vda rw\n").sample();
    assert!(sample.levels.is_empty());
    assert_eq!(sample.host.available, 48 * GIB);
}

#[test]
fn what_zfs_would_give_back_is_available() {
    let machine = Machine::v2();
    let stats = format!(
        "13 1 0x01 123 33456 1 2\nname                            type data\n\
         c_min                           4    {}\nsize                            4    {}\n\
         hdr_size                        4    7\n",
        2 * GIB,
        5 * GIB
    );
    machine.write("/proc/spl/kstat/zfs/arcstats", stats);
    assert_eq!(machine.sample().host.available, 51 * GIB);
}

// 11. Limits on the process itself.

#[test]
fn limits_on_address_space_and_data_are_levels() {
    let machine = Machine::v2();
    machine.rlimits(&(4 * GIB).to_string(), &(100 * GIB).to_string());
    let sample = machine.sample();
    assert_eq!(paths(&sample)[2..], ["rlimit:as", "rlimit:data"]);
    assert_eq!((sample.levels[2].limit, sample.levels[2].usage), (Some(4 * GIB), 3 * GIB));
    // Address space may well be limited above the machine's memory, and still be short.
    assert_eq!((sample.levels[3].limit, sample.levels[3].usage), (Some(100 * GIB), 2 * GIB));
}

#[test]
fn strict_overcommit_is_a_level() {
    let machine = Machine::v2();
    machine.write("/proc/sys/vm/overcommit_memory", "1\n");
    assert_eq!(machine.sample().levels.len(), 2);
    machine.write("/proc/sys/vm/overcommit_memory", "2\n");
    let sample = machine.sample();
    let level = sample.levels.last().unwrap();
    assert_eq!((&*level.path, level.limit, level.usage), ("host:commit", Some(32 * GIB), 8 * GIB));
}

// 12. Peaks between samples.

#[test]
fn a_peak_between_two_samples_is_seen_once() {
    let machine = Machine::v2();
    let peak = "/sys/fs/cgroup/a/b/memory.peak";
    machine.write(peak, format!("{}\n", 9 * GIB));
    let mut sensor = machine.sensor();
    assert_eq!(take(&mut sensor).levels[0].peak, GIB, "that peak may be days old");
    machine.write(peak, format!("{}\n", 10 * GIB));
    assert_eq!(take(&mut sensor).levels[0].peak, 10 * GIB);
    assert_eq!(take(&mut sensor).levels[0].peak, GIB);
}

// What every sample has.

#[test]
fn samples_are_numbered_and_timed() {
    let machine = Machine::v2();
    let mut sensor = machine.sensor();
    let (one, two) = (take(&mut sensor), take(&mut sensor));
    assert_eq!((one.sequence, two.sequence), (1, 2));
    assert!(two.at >= one.at);
}

#[test]
fn this_very_machine_can_be_read() {
    let mut sensor = KernelSensor::open(Root::default()).unwrap();
    let sample = take(&mut sensor);
    assert!(sample.host.total > 0 && sample.own.anon > 0, "{sample:?}");
    assert!(!cfg!(target_env = "gnu") || sample.allocator.in_use > 0);
}
