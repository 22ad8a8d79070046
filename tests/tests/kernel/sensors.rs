//! The sensors against the kernel that they were written for.

use std::process::Command;

use cuzk_tests::cgroup::Version;
use cuzk_tests::cgroup_or_skip;
use serde_json::Value;

use crate::puppet::Puppet;
use crate::{disk, MIB};

/// A figure of the level at `depth` above the puppet's own.
fn level(sample: &Value, depth: usize, figure: &str) -> u64 {
    sample["levels"][depth][figure].as_u64().unwrap_or_else(|| panic!("no {figure} in {sample}"))
}

fn own(sample: &Value, figure: &str) -> u64 {
    level(sample, 0, figure)
}

fn assert_near(found: u64, expected: u64) {
    let off = found.abs_diff(expected);
    assert!(off < 6 * MIB, "found {} MiB, expected {} MiB", found / MIB, expected / MIB);
}

#[test]
fn limits_and_usage_are_read_at_the_leaf_and_at_its_ancestor() {
    let parent = cgroup_or_skip!("levels");
    parent.limit(96 * MIB).unwrap();
    let leaf = parent.child("leaf").unwrap();
    leaf.limit(128 * MIB).unwrap();
    let mut puppet = Puppet::start(&leaf);
    let before = puppet.sample();
    assert_eq!(before["levels"][0]["path"], leaf.dir().to_str().unwrap());
    assert_eq!(before["levels"][1]["path"], parent.dir().to_str().unwrap());
    assert_eq!((own(&before, "limit"), level(&before, 1, "limit")), (128 * MIB, 96 * MIB));
    puppet.tell(&format!("anon {}", 40 * MIB));
    let after = puppet.sample();
    for depth in [0, 1] {
        let usage = |sample| level(sample, depth, "unreclaimable");
        assert_near(usage(&after) - usage(&before), 40 * MIB);
    }
    assert_near(after["anon"].as_u64().unwrap() - before["anon"].as_u64().unwrap(), 40 * MIB);
    leaf.limit(64 * MIB).unwrap();
    assert_eq!(own(&puppet.sample(), "limit"), 64 * MIB);
}

#[test]
fn page_cache_larger_than_the_limit_is_not_usage_and_shmem_is() {
    let cgroup = cgroup_or_skip!("cache");
    cgroup.limit(64 * MIB).unwrap();
    let mut puppet = Puppet::start(&cgroup);
    let before = puppet.sample();
    let file = disk().join(format!("cache-{}", std::process::id()));
    puppet.tell(&format!("write {} {}", file.display(), 96 * MIB));
    puppet.tell(&format!("read {}", file.display()));
    let cached = puppet.sample();
    assert!(own(&cached, "usage") > 48 * MIB, "the cache is charged: {cached}");
    let unreclaimable = own(&cached, "unreclaimable");
    assert!(unreclaimable < own(&before, "unreclaimable") + 8 * MIB, "{before} {cached}");
    puppet.tell(&format!("shmem {}", 32 * MIB));
    let shared = puppet.sample();
    assert_near(own(&shared, "unreclaimable") - unreclaimable, 32 * MIB);
    assert_near(shared["shmem"].as_u64().unwrap(), 32 * MIB);
    assert_eq!(cgroup.kills().unwrap(), 0);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_kill_in_our_cgroup_is_counted_once() {
    let cgroup = cgroup_or_skip!("kill");
    cgroup.limit(48 * MIB).unwrap();
    let mut puppet = Puppet::start(&cgroup);
    let before = puppet.sample();
    let status = cgroup.spawn(Command::new("tail").arg("/dev/zero")).unwrap().wait().unwrap();
    assert!(!status.success());
    let after = puppet.sample();
    assert_eq!(after["oom_kill"].as_u64().unwrap() - before["oom_kill"].as_u64().unwrap(), 1);
    assert!(after["max"].as_u64() > before["max"].as_u64(), "{before} {after}");
    assert_eq!(puppet.sample()["oom_kill"], after["oom_kill"]);
}

#[test]
fn a_spike_between_two_samples_is_seen() {
    let cgroup = cgroup_or_skip!("spike");
    let mut puppet = Puppet::start(&cgroup);
    let before = puppet.sample();
    puppet.tell(&format!("anon {}", 40 * MIB));
    puppet.tell("drop");
    let after = puppet.sample();
    let (usage, peak) = (own(&after, "usage"), own(&after, "peak"));
    assert_near(peak - own(&before, "usage"), 40 * MIB);
    assert_near(usage, own(&before, "usage"));
}

#[test]
fn a_process_moved_away_is_followed_though_its_old_cgroup_is_gone() {
    let (old, new) = (cgroup_or_skip!("old"), cgroup_or_skip!("new"));
    new.limit(80 * MIB).unwrap();
    let mut puppet = Puppet::start(&old);
    assert_eq!(puppet.sample()["levels"][0]["path"], old.dir().to_str().unwrap());
    puppet.tell(&format!("enter {}", new.dir().display()));
    drop(old);
    let sample = puppet.sample();
    assert_eq!(sample["levels"][0]["path"], new.dir().to_str().unwrap());
    assert_eq!(own(&sample, "limit"), 80 * MIB);
}

#[test]
fn a_stall_for_memory_fires_the_trigger() {
    let cgroup = cgroup_or_skip!("stall");
    cgroup.limit(32 * MIB).unwrap();
    let file = disk().join(format!("stall-{}", std::process::id()));
    let (mut watcher, mut thrasher) = (Puppet::start(&cgroup), Puppet::start(&cgroup));
    thrasher.tell(&format!("write {} {}", file.display(), 64 * MIB));
    // Little is left for the file's pages, so that reading it is mostly reclaim.
    thrasher.tell(&format!("anon {}", 12 * MIB));
    let before = watcher.sample();
    // Root in a container may lack the privilege, root in the VM has it.
    let window = if cuzk_tests::vm::is_inside() { "1s" } else { "" };
    let expected = format!("OwnPressure({window}");
    // On a busy machine the reader may hardly run in one window: it has three.
    let fired = (0..3).any(|_| {
        let source = watcher.tell("await psi 2 1000");
        assert!(source.as_str().unwrap().starts_with(&expected), "{source}");
        thrasher.order(&format!("thrash {} 3", file.display()));
        let fired = watcher.reply() == true;
        thrasher.reply();
        fired
    });
    assert!(fired, "it did not fire");
    let stalled = |sample: &Value| sample["stalled_us"].as_u64().unwrap();
    assert!(stalled(&watcher.sample()) >= stalled(&before) + 2_000);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn without_privilege_the_trigger_has_a_window_of_two_seconds() {
    let cgroup = cgroup_or_skip!("unprivileged");
    let mut puppet = Puppet::start(&cgroup);
    puppet.tell("unprivileged");
    assert_eq!(puppet.tell("await psi 150 1000"), "OwnPressure(2s)");
}

#[test]
fn on_v1_without_psi_the_pressure_level_wakes() {
    let cgroup = cgroup_or_skip!("level");
    if cgroup.version() == Version::V2 {
        return println!("v2 has no pressure levels");
    }
    cgroup.limit(32 * MIB).unwrap();
    let mut puppet = Puppet::start(&cgroup);
    assert_eq!(puppet.tell("await level 150 1000"), "OwnLevel");
    cgroup.spawn(Command::new("tail").arg("/dev/zero")).unwrap().wait().unwrap();
    assert_eq!(puppet.reply(), true, "it did not wake");
}

#[test]
fn a_probe_stops_short_of_the_limit_and_harms_nobody() {
    let cgroup = cgroup_or_skip!("probe");
    cgroup.limit(96 * MIB).unwrap();
    let mut puppet = Puppet::start(&cgroup);
    let found = puppet.tell(&format!("probe {}", 16 * MIB));
    assert_eq!(found["ended"]["why"], "stopped_short", "{found}");
    let (had, foretold) = (found["had"].as_u64().unwrap(), found["foretold"].as_u64().unwrap());
    assert_near(foretold - had, 16 * MIB);
    assert_eq!(cgroup.kills().unwrap(), 0);
}

#[test]
fn a_probe_that_goes_too_far_loses_its_child_alone() {
    // The child stands where there is less than the parent sees.
    let (roomy, narrow) = (cgroup_or_skip!("roomy"), cgroup_or_skip!("narrow"));
    roomy.limit(256 * MIB).unwrap();
    narrow.limit(48 * MIB).unwrap();
    let mut puppet = Puppet::start(&roomy);
    let found = puppet.tell(&format!("probe 0 {}", narrow.dir().display()));
    assert_eq!(found["ended"]["why"], "killed", "{found}");
    assert_eq!((narrow.kills().unwrap(), roomy.kills().unwrap()), (1, 0));
    puppet.sample();
}
