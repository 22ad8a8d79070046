//! Development parameters that all tests of a build folder share: the first that needs a circuit's
//! makes them, the others wait for it, later runs find them.

use cuzk_core::device::Unhindered;
use cuzk_core::params::{dev, Params};
use cuzk_core::proof::{CircuitId, ProofKind, SectorSize};
use std::path::PathBuf;

use crate::memory;

/// The folder, with the 2 KiB parameters of these kinds in it.
pub fn development(kinds: &[ProofKind]) -> PathBuf {
    let program = std::env::current_exe().expect("a test has a program");
    // target/<profile>/deps/<program>
    let build = program.ancestors().nth(3).expect("a test's program lies in the build folder");
    let folder = build.join("development-parameters");
    let sector_size = SectorSize::KiB2;
    let circuits: Vec<_> =
        kinds.iter().map(|kind| CircuitId { kind: *kind, sector_size }).collect();
    dev::ensure(&circuits, &folder, &mut |_| {}, &Unhindered)
        .unwrap_or_else(|error| panic!("no development parameters: {error}"));
    folder
}

/// Has the kernel forget the pages of a kind's native file, which must be there.
pub fn forget(kind: ProofKind) {
    let params = Params::new(development(&[kind]));
    let circuit = CircuitId { kind, sector_size: SectorSize::KiB2 };
    let stem = circuit.file_stem().expect("a 2 KiB circuit has a name");
    memory::forget(&params.native_path(&stem)).expect("the first use makes the native file");
}
