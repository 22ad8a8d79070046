//! What can be wrong with a compiled circuit. Every message names the file, what was found and what
//! was expected. None is the proof's end: without the file the circuit is synthesised in full.

use std::path::PathBuf;

use bellpepper_core::SynthesisError;

use crate::device::Interrupted;
use crate::params::ParamsError;

/// An error of recording, opening or evaluating a compiled circuit.
#[derive(Debug, thiserror::Error)]
pub enum CompiledError {
    /// The file cannot be read or written.
    #[error(transparent)]
    File(ParamsError),
    /// The header is not one, or of another version, size or circuit, or damaged.
    #[error("{}: {found} where {expected} was expected; remove it, it will be recorded again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What there is.
        found: String,
        /// What there should be.
        expected: String,
    },
    /// Bytes are not those that were written.
    #[error("{}: checksum of {section} is {found}, expected {expected}; the file is damaged: remove it, it will be recorded again", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// Which part of it.
        section: String,
        /// The recorded checksum.
        expected: String,
        /// The checksum of the bytes.
        found: String,
    },
    /// Bytes are as written, and yet no constraints of this circuit.
    #[error("{}: {section} holds {found}, which no recording of this circuit does; remove it, it will be recorded again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which part of it.
        section: String,
        /// What was met there.
        found: &'static str,
    },
    /// A circuit is not the one that the file is, or is to be, a recording of.
    #[error("{}: the circuit has {found} {what}, the recording {expected}: they are of different circuits", path.display())]
    OtherCircuit {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// In the file.
        expected: u64,
        /// In the circuit.
        found: u64,
    },
    /// The circuit could not be synthesised.
    #[error("the circuit cannot be recorded: {0}")]
    Circuit(#[from] SynthesisError),
    /// The caller's checkpoint ended the work.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl From<ParamsError> for CompiledError {
    fn from(error: ParamsError) -> Self {
        match error {
            ParamsError::Interrupted(interrupted) => Self::Interrupted(interrupted),
            error => Self::File(error),
        }
    }
}
