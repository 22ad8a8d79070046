//! What only a real kernel can show: figures, kills, stalls, on cgroup v1 and v2.
//!
//! The tests speak to whichever hierarchy this machine has; the last one runs them all again in a
//! VM that has the other (`tests/rig`). Processes under test are this very binary, started again
//! inside a cgroup of their own as a [`puppet`] or a [`plant`]; they say what they see in JSON.

mod governed;
mod plant;
mod puppet;
mod sensors;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuzk_tests::skip;

const MIB: u64 = 1 << 20;

/// Makes a cgroup, or ends the test with the reason why not.
macro_rules! cgroup_or_skip {
    ($name:expr) => {
        match cuzk_tests::cgroup::Cgroup::create($name) {
            Ok(cgroup) => cgroup,
            Err(why) => return cuzk_tests::skip(format_args!("{why:#}")),
        }
    };
}
pub(crate) use cgroup_or_skip;

fn is_inside_vm() -> bool {
    env::var_os("CUZK_VM").is_some()
}

/// A folder on a real disk: what is written there becomes page cache, not shmem.
fn disk() -> PathBuf {
    if is_inside_vm() {
        "/scratch".into()
    } else {
        env!("CARGO_TARGET_TMPDIR").into()
    }
}

#[test]
fn the_same_holds_on_cgroup_v2_in_a_vm() {
    if is_inside_vm() {
        return println!("this is the VM");
    }
    let this = env::current_exe().unwrap();
    let target = this.ancestors().nth(3).unwrap();
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("rig/vm");
    // A first look whether the rig works at all; it also fills the rig's cache.
    let trial = Command::new(&rig)
        .args(["--retry", "1", "--silence", "30"])
        .arg(target)
        .args(["--", "true"])
        .output()
        .unwrap();
    if !trial.status.success() {
        let why = String::from_utf8_lossy(&trial.stderr).into_owned();
        return skip(format_args!("the rig boots no VM here: {}", why.trim()));
    }
    let status = Command::new(&rig)
        .args(["--retry", "2", "--timeout", "150", "--silence", "40", "--scratch", "512"])
        .arg(target)
        .arg("--")
        .arg(&this)
        .args(["--nocapture", "--test-threads", "2"])
        .status()
        .unwrap();
    assert!(status.success(), "in the VM: {status}");
}
