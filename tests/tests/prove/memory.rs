//! A 2 KiB PoRep inside a 512 MiB cgroup: it is proved, and in reasonable time. Its parameters inside a
//! smaller one: they are not made.
//!
//! The page cache of the mapped parameters (1.1 GiB) is charged to the cgroup and reclaimed; it is
//! dropped before either run, so that both read the file and neither gets it from the other.

use std::process::{Command, Output};
use std::time::Instant;

use cuzk_core::device::Unhindered;
use cuzk_core::params::{dev, ParamsError};
use cuzk_core::proof::{CircuitId, ProofKind, SectorSize};
use cuzk_tests::cgroup::Cgroup;
use cuzk_tests::{cgroup_or_skip, parameters, skip};

use super::{engine_with, proof, sample, submit, told, turn};

const MIB: u64 = 1 << 20;
const POREP: ProofKind = ProofKind::PorepSealCommit;

/// Set for the process that proves; its value is the budget.
const CHILD: &str = "CUZK_TEST_PROVE_WITHIN";

#[test]
#[ignore = "run by the tests that limit it, in a process of its own"]
fn child_proves_one_porep() {
    let Ok(budget) = std::env::var(CHILD) else { return };
    let kind = POREP;
    let budget = budget.parse().expect("bytes");
    let engine = engine_with(&[kind], |config| config.memory_budget = budget);
    let sample = sample();
    let started = Instant::now();
    let proof = proof(&engine, &submit(&engine, &sample.request(kind)));
    let seconds = started.elapsed().as_secs_f64();
    assert!(sample.verify_with_filecoin(kind, &proof).expect("it can be verified"));
    println!("seconds={seconds}");
}

fn child(budget: u64) -> Command {
    super::child("memory::child_proves_one_porep", CHILD, &budget.to_string())
}

fn seconds(output: &Output) -> Option<f64> {
    told(output, "seconds=")
}

#[test]
fn a_porep_is_proved_inside_512_mib_in_at_most_half_again_its_unlimited_time() {
    let _turn = turn();
    let cgroup = match Cgroup::create("porep") {
        Ok(cgroup) => cgroup,
        Err(why) => return skip(format_args!("{why:#}")),
    };
    parameters::development(&[POREP]);
    // Converts the parameters, if nobody has yet.
    let first = child(448 * MIB).output().expect("it starts");
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));

    parameters::forget(POREP);
    let unlimited = child(448 * MIB).output().expect("it starts");
    let unlimited = seconds(&unlimited).expect("the unlimited run proves");

    parameters::forget(POREP);
    cgroup.limit(512 * MIB).unwrap();
    let limited = cgroup.spawn(&mut child(448 * MIB)).unwrap().wait_with_output().unwrap();
    let kills = cgroup.kills().unwrap();
    let peak = cgroup.peak().unwrap();
    assert_eq!(kills, 0, "the kernel killed it");
    let limited = seconds(&limited).expect("the limited run proves");
    let ratio = limited / unlimited;
    println!(
        "PoRep 2 KiB: {unlimited:.1} s without a limit, {limited:.1} s within 512 MiB \
         (ratio {ratio:.2}, peak {} MiB)",
        peak / MIB
    );
    assert!(ratio <= 1.5, "{limited:.1} s is {ratio:.2} × {unlimited:.1} s");
}

/// Set for the process that makes parameters; its value is their folder.
const MAKER: &str = "CUZK_TEST_MAKE_PARAMETERS";

#[test]
#[ignore = "run by the test that limits it, in a process of its own"]
fn child_makes_the_poreps_parameters() {
    let Some(folder) = std::env::var_os(MAKER) else { return };
    let circuit = CircuitId { kind: POREP, sector_size: SectorSize::KiB2 };
    let mut steps = vec![];
    let mut enter = |progress: cuzk_core::params::Progress| steps.push(progress.step);
    match dev::ensure(&[circuit], folder.as_ref(), &mut enter, &Unhindered) {
        Err(ParamsError::NoMemory { needed, available, .. }) => {
            println!("needed={needed} available={available}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(steps, ["count constraints"], "it began");
}

#[test]
fn parameters_that_memory_is_too_small_for_are_refused_with_both_numbers() {
    let _turn = turn();
    let cgroup = cgroup_or_skip!("parameters");
    cgroup.limit(128 * MIB).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let test = "memory::child_makes_the_poreps_parameters";
    let mut command = super::child(test, MAKER, folder.path().to_str().unwrap());
    let output = cgroup.spawn(&mut command).unwrap().wait_with_output().unwrap();
    assert_eq!(cgroup.kills().unwrap(), 0, "the kernel killed it");
    let [needed, available]: [u64; 2] =
        ["needed=", "available="].map(|key| told(&output, key).expect("it is refused"));
    println!("needed {} MiB, available {} MiB", needed / MIB, available / MIB);
    assert!(needed > 344 * MIB && needed < 600 * MIB && available < 128 * MIB);
    let left = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(left.count(), 1, "the marker");
}
