//! What the parameter files' readers and writers promise, on the parameters of toy circuits.

mod dev;
mod filecoin;
mod native;
mod published;
mod store;

use std::{fs, path::Path};

use super::testing::{silent, Folder, Toy};

/// Changes a file in place.
fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("a file");
    change(&mut bytes);
    fs::write(path, bytes).expect("written");
}
