//! Groth16 parameters: Filecoin's files, our native form of them, and development parameters.
//!
//! A proof needs a circuit's [`Srs`], and [`Params::open`] is how to come by it: it maps the native
//! file, which it first makes from Filecoin's `.params` where there is none or that is newer. Files
//! are input like any other: whatever is wrong with one is a [`ParamsError`] that names it.

pub(crate) mod atomic;
mod convert;
pub mod dev;
mod error;
pub mod filecoin;
pub mod native;
pub mod point;
pub mod published;
mod size;
mod store;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    fs::{File, Metadata},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use crate::{circuit::AnyCircuit, proof::CircuitId};

pub(crate) use self::atomic::AtomicFile;
pub use self::{
    error::{ParamsError, PointFault},
    native::Srs,
    size::CircuitSize,
    store::{Params, DEVELOPMENT_MARKER},
};

/// The point vectors of a proving key, in the files' order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Query {
    /// Powers of tau times Z(tau)/delta; one less than the domain has elements.
    H,
    /// (beta A + alpha B + C)(tau)/delta of each witness variable.
    L,
    /// A(tau) of each variable that some A has.
    A,
    /// B(tau) in G1 of each variable that some B has.
    BG1,
    /// The same in G2.
    BG2,
}

impl Query {
    /// All, in the files' order.
    pub const ALL: [Self; 5] = [Self::H, Self::L, Self::A, Self::BG1, Self::BG2];

    /// Its name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::H => "h",
            Self::L => "l",
            Self::A => "a",
            Self::BG1 => "b_g1",
            Self::BG2 => "b_g2",
        }
    }

    /// Bytes of one point in either kind of file.
    pub const fn point_bytes(self) -> u64 {
        match self {
            Self::BG2 => 192,
            _ => 96,
        }
    }
}

/// How many points each section of a parameter file holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Of the verifying key: public inputs with the constant one.
    pub ic: u64,
    /// 2^k − 1 for a domain of 2^k.
    pub h: u64,
    /// Witness variables.
    pub l: u64,
    /// Variables in some A.
    pub a: u64,
    /// Variables in some B.
    pub b_g1: u64,
    /// The same.
    pub b_g2: u64,
}

impl Counts {
    /// The count of one query.
    pub fn of(&self, query: Query) -> u64 {
        match query {
            Query::H => self.h,
            Query::L => self.l,
            Query::A => self.a,
            Query::BG1 => self.b_g1,
            Query::BG2 => self.b_g2,
        }
    }

    fn of_mut(&mut self, query: Query) -> &mut u64 {
        match query {
            Query::H => &mut self.h,
            Query::L => &mut self.l,
            Query::A => &mut self.a,
            Query::BG1 => &mut self.b_g1,
            Query::BG2 => &mut self.b_g2,
        }
    }

    /// The first section, if any, whose count is not the expected one is an error.
    fn require(&self, path: &Path, circuit: &str, expected: &Self) -> Result<(), ParamsError> {
        let ic = ("ic", self.ic, expected.ic);
        let queries = Query::ALL.map(|q| (q.name(), self.of(q), expected.of(q)));
        for (section, found, expected) in [ic].into_iter().chain(queries) {
            if found != expected {
                let (path, circuit) = (path.into(), circuit.into());
                return Err(ParamsError::Count { path, section, circuit, expected, found });
            }
        }
        Ok(())
    }
}

/// An error of whoever makes circuits.
pub type CircuitError = Box<dyn std::error::Error + Send + Sync>;

/// A circuit as its parameters see it: a name, and something to count.
pub trait NamedCircuit {
    /// The name of its parameter files, without `.params` or `.vk`.
    ///
    /// # Errors
    /// When there is no such circuit.
    fn file_stem(&self) -> Result<String, CircuitError>;

    /// The circuit without a witness.
    ///
    /// # Errors
    /// When there is no such circuit.
    fn blank(&self) -> Result<Box<dyn AnyCircuit>, CircuitError>;
}

impl NamedCircuit for CircuitId {
    fn file_stem(&self) -> Result<String, CircuitError> {
        Ok((*self).file_stem()?)
    }

    fn blank(&self) -> Result<Box<dyn AnyCircuit>, CircuitError> {
        Ok((*self).blank()?)
    }
}

impl dyn NamedCircuit + '_ {
    fn stem(&self) -> Result<String, ParamsError> {
        self.file_stem()
            .map_err(|source| ParamsError::Circuit { circuit: "of unknown name".into(), source })
    }

    /// For `map_err` on what the circuit itself fails with.
    fn failed<E: Into<CircuitError>>(&self) -> impl FnOnce(E) -> ParamsError + '_ {
        move |source| {
            let circuit = self.file_stem().unwrap_or_default();
            ParamsError::Circuit { circuit, source: source.into() }
        }
    }

    fn blank_circuit(&self) -> Result<Box<dyn AnyCircuit>, ParamsError> {
        self.blank().map_err(self.failed())
    }

    fn size(&self) -> Result<CircuitSize, ParamsError> {
        CircuitSize::of(self.blank_circuit()?).map_err(self.failed())
    }
}

/// Opens a file to read. What is no file is refused: the opening of a pipe could wait for ever.
pub(crate) fn open_file(path: &Path) -> Result<(File, Metadata), ParamsError> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .map_err(ParamsError::io(path, "open"))?;
    let stat = file.metadata().map_err(ParamsError::io(path, "stat"))?;
    match stat.is_file() {
        true => Ok((file, stat)),
        false => {
            let found = if stat.is_dir() { "a folder" } else { "a pipe or device" };
            Err(ParamsError::NoFile { path: path.into(), found })
        }
    }
}

/// How far long work has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub step: Cow<'static, str>,
    /// Bytes done of this step.
    pub done: u64,
    /// Bytes of this step; 0 when it has no measure.
    pub total: u64,
}
