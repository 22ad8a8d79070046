//! Everything at once: sixty-four jobs of all kinds, real and scripted, and WinningPoSts among them.

use std::time::Duration;

use cuzk_core::proof::ProofKind;
use cuzk_tests::load::{Content, Job};
use cuzk_tests::scripted::Script;
use cuzk_tests::{cgroup_or_skip, parameters, vm};

use crate::{governed, held, turn, MIB};

const LIMIT: u64 = 1024 * MIB;

/// A scripted partition of so many MiB in buffers.
const fn script(chunks: u32) -> Script {
    Script {
        partitions: 1,
        chunks,
        heap: 4 * MIB,
        hidden: MIB,
        estimate: 0.9,
        synthesis: Duration::from_millis(1500),
        device: Duration::from_millis(100),
        contention: 0.0,
    }
}

fn real(name: impl Into<String>, kind: ProofKind, after: Duration) -> Job {
    Job { name: name.into(), kind, after, content: Content::Real }
}

#[test]
fn among_64_jobs_of_mixed_kinds_a_winning_post_takes_at_most_twice_its_solo_time() {
    use ProofKind::{PorepSealCommit, SnapDealsUpdate, WindowPostPartition, WinningPost};
    if vm::is_inside() {
        return println!("real proofs are too slow for an emulated processor");
    }
    let _turn = turn();
    let cgroup = cgroup_or_skip!("mixed");
    cgroup.limit(LIMIT).unwrap();
    parameters::development(&[PorepSealCommit, SnapDealsUpdate, WindowPostPartition, WinningPost]);
    let seconds = Duration::from_secs;

    // The first reads its parameters, the second is alone.
    let mut jobs =
        vec![real("first", WinningPost, seconds(0)), real("solo", WinningPost, seconds(4))];
    let start = seconds(7);
    // Larger than all that comes after it: it may neither stand still nor starve.
    jobs.push(Job { after: start, ..Job::scripted("large".into(), script(96)) });
    jobs.push(real("porep", PorepSealCommit, start));
    jobs.push(real("snap", SnapDealsUpdate, start));
    jobs.extend((0..2).map(|i| real(format!("window-{i}"), WindowPostPartition, start)));
    let scripted = [(PorepSealCommit, 20), (SnapDealsUpdate, 12), (WindowPostPartition, 4)];
    jobs.extend(scripted.iter().cycle().take(59).enumerate().map(|(i, (kind, chunks))| {
        let scripted = Job::scripted(format!("{kind}-{i}"), script(*chunks));
        Job { kind: *kind, after: start, ..scripted }
    }));
    let urgent = (0..3).map(|i| {
        let after = start + Duration::from_millis(500) + seconds(5) * i;
        real(format!("urgent-{i}"), WinningPost, after)
    });
    jobs.extend(urgent);

    let process = governed(&cgroup, jobs, |_| {});
    let run = held(process, &cgroup);
    let took = |prefix: &str| {
        let of = run.finished.iter().filter(|(name, _)| name.starts_with(prefix));
        of.map(|(_, seconds)| *seconds).fold(0.0, f64::max)
    };
    let (solo, slowest) = (took("solo"), took("urgent"));
    println!("WinningPoSt: {solo:.2} s alone, {slowest:.2} s at worst among the 64");
    assert!(slowest <= 2.0 * solo, "{slowest:.2} s is more than twice {solo:.2} s");
}
