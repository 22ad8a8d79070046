//! What only a real kernel can show: figures, kills, stalls, on cgroup v1 and v2.
//!
//! The tests speak to whichever hierarchy this machine has; the last one runs them all again in a
//! VM that has the other (`tests/rig`). Processes under test are this very binary, started again
//! inside a cgroup of their own as a [`puppet`] or a [`plant`]; they say what they see in JSON.

mod governed;
mod plant;
mod puppet;
mod sensors;

use std::path::PathBuf;

use cuzk_tests::vm;

const MIB: u64 = 1 << 20;

/// See [`vm::disk`].
fn disk() -> PathBuf {
    vm::disk(env!("CARGO_TARGET_TMPDIR"))
}

#[test]
fn the_same_holds_on_cgroup_v2_in_a_vm() {
    vm::run_again();
}
