use std::{
    fs,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::SystemTime,
};

use bellpepper_core::{Circuit, ConstraintSystem, SynthesisError};
use bellperson::groth16::generate_random_parameters;
use blstrs::{Bls12, Scalar};
use rand::SeedableRng;
use rand_xorshift::XorShiftRng;

use super::*;
use crate::{
    circuit::AnyCircuit,
    device::Unhindered,
    params::{
        dev::{ensure, generate, SEED},
        CircuitError, NamedCircuit, ParamsError, Progress, DEVELOPMENT_MARKER,
    },
};

#[test]
fn the_files_are_byte_for_byte_bellpersons_for_the_same_seed() {
    for (squarings, inputs) in [(0, 2), (1, 1), (11, 5), (12, 5), (1500, 40)] {
        let toy = Toy { inputs, ..Toy::of(squarings) };
        let seed = [squarings as u8 + 1; 16];
        let mut rng = XorShiftRng::from_seed(seed);
        let expected = generate_random_parameters::<Bls12, _, _>(toy.clone(), &mut rng).unwrap();
        let (mut params, mut vk) = (Vec::new(), Vec::new());
        expected.write(&mut params).unwrap();
        expected.vk.write(&mut vk).unwrap();

        let folder = Folder(tempfile::tempdir().unwrap());
        generate(&toy, folder.0.path(), seed, &mut silent, &Unhindered).unwrap();
        let made = folder.params();
        assert!(fs::read(made.params_path(&toy.stem)).unwrap() == params, "{toy:?}");
        assert!(fs::read(made.vk_path(&toy.stem)).unwrap() == vk, "{toy:?}");
        assert_eq!(folder.files().len(), 2);
    }
}

#[test]
fn a_folder_of_production_files_is_refused_and_left_alone() {
    for name in ["v28-any.params", "v28-any.vk"] {
        let folder = Folder(tempfile::tempdir().unwrap());
        fs::write(folder.0.path().join(name), b"precious").unwrap();
        let error = ensure(&[Toy::of(1)], folder.0.path(), &mut silent, &Unhindered).unwrap_err();
        assert!(matches!(error, ParamsError::Mixed { .. }), "{error}");
        assert!(!folder.0.path().join(DEVELOPMENT_MARKER).exists());
        assert_eq!(folder.files(), [name]);
    }
}

#[test]
fn a_folder_of_development_parameters_says_that_they_are_insecure() {
    let folder = Toy::of(1).folder();
    let marker = fs::read_to_string(folder.0.path().join(DEVELOPMENT_MARKER)).unwrap();
    assert!(marker.contains("INSECURE"));
    assert!(folder.params().is_development());
}

#[test]
fn a_full_disk_is_found_before_the_work_and_leaves_no_debris() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let Some(dir) = full_disk() else { return again_on_a_full_disk(folder.0.path()) };
    let mut steps = Vec::new();
    let toy = [Toy::of(5000)];
    let made = ensure(&toy, &dir, &mut |progress| steps.push(progress.step), &Unhindered);
    assert!(matches!(made, Err(ParamsError::NoSpace { needed, .. }) if needed > 1 << 20));
    assert_eq!(steps, ["count constraints"]);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "the marker");
}

#[test]
fn ensuring_makes_what_is_missing_or_damaged_and_nothing_else() {
    let toys = [Toy::of(1), Toy::of(2)];
    let folder = toys[0].folder();
    let params = folder.params();
    let kept = params.params_path(&toys[0].stem);
    let modified = |path| fs::metadata(path).unwrap().modified().unwrap();
    let before: SystemTime = modified(&kept);
    ensure(&toys, folder.0.path(), &mut silent, &Unhindered).unwrap();
    assert_eq!(modified(&kept), before);
    let whole = fs::read(&kept).unwrap();
    for damage in [
        (|bytes| bytes.truncate(100)) as fn(&mut Vec<u8>),
        |bytes| bytes.clear(),
        |bytes| bytes[100] ^= 1,
    ] {
        edit(&kept, damage);
        ensure(&toys, folder.0.path(), &mut silent, &Unhindered).unwrap();
        assert_eq!(fs::read(&kept).unwrap(), whole);
    }
    fs::remove_file(params.vk_path(&toys[0].stem)).unwrap();
    ensure(&toys, folder.0.path(), &mut silent, &Unhindered).unwrap();
    params.verifying_key(&toys[0].stem).unwrap();
}

#[test]
fn ensuring_at_the_same_time_makes_each_file_once() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let made = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut progress = |at: Progress| {
                    made.fetch_add(usize::from(at.step == "fold constraints"), Ordering::Relaxed);
                };
                ensure(&[Toy::of(100)], folder.0.path(), &mut progress, &Unhindered).unwrap();
            });
        }
    });
    assert_eq!(made.into_inner(), 1);
    assert_eq!(folder.files(), ["v28-toy-100.params", "v28-toy-100.vk"]);
}

/// Has a variable that no constraint mentions.
struct Unconstrained;

impl Circuit<Scalar> for Unconstrained {
    fn synthesize<CS: ConstraintSystem<Scalar>>(self, cs: &mut CS) -> Result<(), SynthesisError> {
        cs.alloc(|| "idle", || Err(SynthesisError::AssignmentMissing)).map(drop)
    }
}

impl NamedCircuit for Unconstrained {
    fn file_stem(&self) -> Result<String, CircuitError> {
        Ok("v28-unconstrained".into())
    }

    fn blank(&self) -> Result<Box<dyn AnyCircuit>, CircuitError> {
        Ok(Box::new(Self))
    }
}

#[test]
fn a_variable_in_no_constraint_is_refused_because_its_point_would_be_infinity() {
    let folder = Folder(tempfile::tempdir().unwrap());
    let error =
        generate(&Unconstrained, folder.0.path(), SEED, &mut silent, &Unhindered).unwrap_err();
    assert!(matches!(error, ParamsError::Circuit { .. }), "{error}");
    assert!(error.to_string().contains("v28-unconstrained"), "{error}");
    assert!(folder.files().is_empty());
}
