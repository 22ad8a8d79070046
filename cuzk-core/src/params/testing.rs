//! A toy circuit of a chosen size, and folders of its parameters.

use std::{fs, path::PathBuf};

use bellpepper_core::{Circuit, ConstraintSystem, SynthesisError};
use blstrs::Scalar;
use ff::Field;
use tempfile::TempDir;

use super::{
    dev::{generate, SEED},
    CircuitError, NamedCircuit, Params, Progress,
};
use crate::{circuit::AnyCircuit, device::Unhindered};

/// Squares a secret so many times, and has variables that only A, only B or only C knows, terms
/// that cancel out and constraints without any term.
#[derive(Debug, Clone)]
pub struct Toy {
    pub stem: String,
    pub squarings: usize,
    pub inputs: usize,
}

impl Toy {
    pub fn of(squarings: usize) -> Self {
        Self { stem: format!("v28-toy-{squarings}"), squarings, inputs: 2 }
    }

    /// Its parameters under the name of another circuit.
    pub fn named(self, stem: impl Into<String>) -> Self {
        Self { stem: stem.into(), ..self }
    }

    /// A development folder with its parameters.
    pub fn folder(&self) -> Folder {
        let folder = Folder(tempfile::tempdir().expect("a temporary folder"));
        generate(self, folder.0.path(), SEED, &mut silent, &Unhindered).expect("made");
        folder
    }
}

impl NamedCircuit for Toy {
    fn file_stem(&self) -> Result<String, CircuitError> {
        Ok(self.stem.clone())
    }

    fn blank(&self) -> Result<Box<dyn AnyCircuit>, CircuitError> {
        Ok(Box::new(self.clone()))
    }
}

impl Circuit<Scalar> for Toy {
    fn synthesize<CS: ConstraintSystem<Scalar>>(self, cs: &mut CS) -> Result<(), SynthesisError> {
        let missing = || Err(SynthesisError::AssignmentMissing);
        let seven = Scalar::from(7);
        let mut last = cs.alloc(|| "secret", missing)?;
        for _ in 0..self.squarings {
            let square = cs.alloc(|| "square", missing)?;
            cs.enforce(|| "square", |lc| lc + last, |lc| lc + (seven, last), |lc| lc + square);
            last = square;
        }
        let [a, b, c] = ["a", "b", "c"].map(|name| cs.alloc(|| name, missing));
        let (a, b, c) = (a?, b?, c?);
        cs.enforce(
            || "only",
            |lc| lc + a - CS::one(),
            |lc| lc + b + (Scalar::ZERO, c),
            |lc| lc + c,
        );
        cs.enforce(|| "cancels", |lc| lc + b - b, |lc| lc + a - a, |lc| lc);
        for _ in 1..self.inputs {
            let input = cs.alloc_input(|| "input", missing)?;
            cs.enforce(|| "bound", |lc| lc + last, |lc| lc + CS::one(), |lc| lc + input);
        }
        Ok(())
    }
}

/// A temporary folder of parameters.
pub struct Folder(pub TempDir);

impl Folder {
    pub fn params(&self) -> Params {
        Params::new(self.0.path())
    }

    /// All files in it and below, but the marker.
    pub fn files(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("a folder") {
                let path: PathBuf = entry.expect("an entry").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => found.push(path.file_name().unwrap().to_str().unwrap().to_owned()),
                }
            }
        }
        found.retain(|name| name != super::DEVELOPMENT_MARKER);
        found.sort();
        found
    }
}

/// Shows nobody any progress.
pub fn silent(_: Progress) {}
