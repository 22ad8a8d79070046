//! The engine under its governor while something goes wrong, on the real kernel.
//!
//! Each test watches a process that works off jobs, in a cgroup of its own, and disturbs it. None may
//! be killed, no job lost, and in the end all memory is back. The last test runs them all again in a VM
//! that has the other kind of cgroup.

mod disturbances;
mod mixed;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuzk_tests::cgroup::Cgroup;
use cuzk_tests::load::{self, Job, Load, Pace, Process, Regime, Role, Run};
use cuzk_tests::vm;

const MIB: u64 = 1 << 20;

/// Nothing here takes as long unless it hangs, even emulated.
const PATIENCE: Duration = Duration::from_secs(180);

/// What a test holds while it measures time, or while it takes all processors.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Freed memory that a process may keep.
const KEPT: u64 = 64 * MIB;

/// The process under test, when the tests call this program again.
#[test]
fn process() {
    load::serve().unwrap();
}

#[test]
fn the_same_holds_on_cgroup_v2_in_a_vm() {
    let _turn = turn();
    vm::run_again();
}

fn start(cgroup: &Cgroup, role: &Role) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["process", "--exact", "--nocapture"]);
    Process::start(Some(cgroup), command, role).unwrap()
}

/// Starts a governed process with these jobs, and waits until they come.
fn governed(cgroup: &Cgroup, jobs: Vec<Job>, change: impl FnOnce(&mut Load)) -> Process {
    let mut load = Load {
        regime: Regime::Governed(Pace::Scaled),
        srs: 0,
        hidden: 0,
        leak_per_second: 0,
        reads: None,
        jobs,
    };
    change(&mut load);
    let mut process = start(cgroup, &Role::Load(load));
    process.until_ready(PATIENCE).unwrap();
    process
}

/// It finished every job, nothing was killed, and all memory is back.
fn held(process: Process, cgroup: &Cgroup) -> Run {
    let run = process.finish(PATIENCE).unwrap();
    assert!(run.status.success(), "{run:?}, kills {:?}", cgroup.kills());
    assert_eq!(cgroup.kills().unwrap(), 0);
    assert!(run.refused.is_empty() && run.failed.is_empty(), "{run:?}");
    assert_eq!(run.lost(), 0, "{run:?}");
    let end = run.end.as_ref().unwrap();
    println!("{} jobs in {:.1} s, {end:?}", run.finished.len(), run.seconds);
    assert_eq!((end.reserved_after_jobs, end.reserved_at_end), (0, 0));
    assert!(end.at_end <= end.idle + KEPT, "{end:?}");
    run
}
