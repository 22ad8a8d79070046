//! What the parameter files' readers and writers promise, on the parameters of toy circuits.

mod dev;
mod filecoin;
mod native;
mod published;
mod store;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use super::testing::{silent, Folder, Toy};

/// Changes a file in place.
fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("a file");
    change(&mut bytes);
    fs::write(path, bytes).expect("written");
}

const FULL_DISK: &str = "CUZK_TEST_FULL_DISK";

/// The folder to work in, if this process is one that [`again_on_a_full_disk`] started.
fn full_disk() -> Option<PathBuf> {
    env::var_os(FULL_DISK).map(PathBuf::from)
}

/// Runs this test in a process of its own where files cannot grow beyond 1 MiB. Such a limit stands
/// in for a full disk: both refuse to let a file grow.
fn again_on_a_full_disk(folder: &Path) {
    let test = thread::current().name().expect("tests' threads are named").to_owned();
    let status = Command::new("bash")
        .args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" --exact \"$1\" --quiet"])
        .arg(env::current_exe().expect("a test has a program"))
        .arg(test)
        .env(FULL_DISK, folder)
        .status()
        .expect("bash starts");
    assert!(status.success());
}
