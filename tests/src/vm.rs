//! The VM that has the other kind of cgroup (`tests/rig`): a test program runs itself there again.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;

/// Whether this is it.
pub fn is_inside() -> bool {
    env::var_os("CUZK_VM").is_some()
}

/// A folder on a real disk, of `target_tmpdir` or in the VM: what is written there becomes page cache,
/// not shmem.
pub fn disk(target_tmpdir: &str) -> PathBuf {
    if is_inside() {
        "/scratch".into()
    } else {
        target_tmpdir.into()
    }
}

/// Runs the calling test program in the VM, all of its tests, or says why that cannot be.
///
/// # Panics
/// When a test fails there.
pub fn run_again() {
    if is_inside() {
        return println!("this is the VM");
    }
    let this = env::current_exe().expect("a test has a program");
    let target = this.ancestors().nth(3).expect("it lies in the build folder");
    let rig = Path::new(env!("CARGO_MANIFEST_DIR")).join("rig/vm");
    // A first look whether the rig works at all; it also fills the rig's cache.
    let trial = Command::new(&rig)
        .args(["--retry", "1", "--silence", "30"])
        .arg(target)
        .args(["--", "true"])
        .output()
        .expect("the rig starts");
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
        .expect("the rig starts");
    assert!(status.success(), "in the VM: {status}");
}
