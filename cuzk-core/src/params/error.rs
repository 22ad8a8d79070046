//! What can be wrong with parameters. Every message names the file, what was found, what was
//! expected and, where it is not plain, what to do. Nothing here is ever a panic: files are input.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use super::CircuitError;
use crate::device::Interrupted;

/// An error of reading, converting, checking or making parameters.
#[derive(Debug, thiserror::Error)]
pub enum ParamsError {
    /// The system refused an operation on a file.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A folder, a pipe, a device: what is no file cannot be read as one.
    #[error("{}: found {found}, expected a file; remove it, or name another folder", path.display())]
    NoFile {
        /// Where the file was expected.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The disk has no room for a file.
    #[error("{}: no room for {needed} bytes: {source}; make room, or name another folder", path.display())]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// How large it would be.
        needed: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The machine, or a limit on it, has too little memory to make parameters.
    #[error(
        "making parameters of circuit {circuit} needs {needed} bytes of memory, and {available} are \
         left by {bound} (`cuzk memcheck` shows all bounds): make room, or raise the limit"
    )]
    NoMemory {
        /// The circuit's cache identifier.
        circuit: String,
        /// Bytes it takes.
        needed: u64,
        /// Bytes that are left.
        available: u64,
        /// By what.
        bound: String,
    },
    /// The folder for native files cannot be made.
    #[error(
        "{}: cannot keep native files here: {source}; configure another folder for them",
        path.display()
    )]
    NativeFolder {
        /// The folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Neither a native file nor Filecoin's file is there.
    #[error(
        "no parameters for circuit {circuit}: looked for {} and {}; put Filecoin's file there, \
         or make insecure development parameters with `cuzk params dev`",
        params.display(), native.display()
    )]
    Missing {
        /// The circuit's cache identifier.
        circuit: String,
        /// Where Filecoin's file was expected.
        params: PathBuf,
        /// Where the native file was expected.
        native: PathBuf,
    },
    /// The file is empty.
    #[error("{}: the file is empty (0 bytes); fetch or make it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The file ends too early for what it says it holds.
    #[error(
        "{}: {section} at offset {offset} needs {expected} bytes, the file ends after {found} of \
         them; it is truncated or not a parameter file: fetch or make it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The part that does not fit.
        section: &'static str,
        /// Where that part begins.
        offset: u64,
        /// How many bytes it needs.
        expected: u64,
        /// How many are there.
        found: u64,
    },
    /// The file goes on after its last section.
    #[error(
        "{}: {found} bytes, but its sections end at {expected}; bytes follow that belong to no \
         section: fetch or make it again",
        path.display()
    )]
    TrailingBytes {
        /// The file.
        path: PathBuf,
        /// Where the sections end.
        expected: u64,
        /// The file's size.
        found: u64,
    },
    /// A section holds another number of points than the circuit needs.
    #[error(
        "{}: {section} has {found} points, circuit {circuit} needs {expected}; these are the \
         parameters of another circuit, or damaged",
        path.display()
    )]
    Count {
        /// The file.
        path: PathBuf,
        /// The section.
        section: &'static str,
        /// The circuit that was asked for.
        circuit: String,
        /// What the circuit needs.
        expected: u64,
        /// What the file says.
        found: u64,
    },
    /// A point is not what it must be.
    #[error(
        "{}: point {index} of {section} (offset {offset}) {fault}; the file is damaged: fetch or \
         make it again",
        path.display()
    )]
    Point {
        /// The file.
        path: PathBuf,
        /// The section.
        section: &'static str,
        /// Which point of the section, from 0.
        index: u64,
        /// Where it begins in the file.
        offset: u64,
        /// What is wrong with it.
        fault: PointFault,
    },
    /// A native file's header is not one, or not of this version, or damaged.
    #[error("{}: {found} where {expected} was expected; remove it, it will be made again from the .params file", path.display())]
    NativeHeader {
        /// The file.
        path: PathBuf,
        /// What the header has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// A section's bytes are not those that were written.
    #[error(
        "{}: checksum of {section} is {found}, expected {expected}; the file is damaged: remove \
         it, it will be made again from the .params file",
        path.display()
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The section.
        section: &'static str,
        /// The checksum in the header.
        expected: String,
        /// The checksum of the bytes.
        found: String,
    },
    /// The file is not the one Filecoin published under this name.
    #[error(
        "{}: digest {found}, Filecoin published {expected}; fetch it again (if this is a folder of \
         development parameters, its marker file {} is missing)",
        path.display(), super::DEVELOPMENT_MARKER
    )]
    Digest {
        /// The file.
        path: PathBuf,
        /// The published digest.
        expected: String,
        /// The file's digest.
        found: String,
    },
    /// Development and production files would be mixed.
    #[error("{}: {what}; keep development parameters in a folder of their own", path.display())]
    Mixed {
        /// The folder or file.
        path: PathBuf,
        /// What would be mixed.
        what: &'static str,
    },
    /// The circuit could not be synthesised, or has a variable in no constraint.
    #[error("circuit {circuit}: {source}")]
    Circuit {
        /// The circuit's cache identifier.
        circuit: String,
        /// Why.
        source: CircuitError,
    },
    /// The caller's checkpoint ended the work.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl ParamsError {
    /// For `map_err` on an operation on `path`.
    pub(crate) fn io(
        path: impl Into<PathBuf>,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.into(), action, source }
    }

    /// For `map_err` on writing `path`, which is to have `needed` bytes.
    pub(crate) fn space(path: impl Into<PathBuf>, needed: u64) -> impl FnOnce(io::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        move |source| match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => {
                Self::NoSpace { path: path.into(), needed, source }
            }
            _ => Self::Io { path: path.into(), action: "write", source },
        }
    }

    /// For `map_err` on making the folder of native files.
    pub(super) fn native_dir(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |source| Self::NativeFolder { path: path.into(), source }
    }

    /// Whether it only says that a file is not there.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// What is wrong with a stored point. Parameters hold uncompressed points of the curve, none of them
/// infinity, with both coordinates below the modulus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointFault {
    /// Its 0x80 flag is set.
    Compressed,
    /// Its 0x40 flag is set.
    Infinity,
    /// Its 0x20 flag is set, which only compressed points have.
    SignFlag,
    /// A coordinate is not below the field's modulus.
    NotCanonical,
    /// It does not satisfy the curve's equation.
    NotOnCurve,
    /// It is on the curve, outside the group of prime order.
    NotInSubgroup,
}

impl fmt::Display for PointFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compressed => "is flagged as compressed (0x80), expected uncompressed",
            Self::Infinity => "is flagged as infinity (0x40), which is never stored",
            Self::SignFlag => "has the sign flag (0x20) of a compressed point",
            Self::NotCanonical => "has a coordinate that is not below the field's modulus",
            Self::NotOnCurve => "is not on the curve",
            Self::NotInSubgroup => "is not in the group of prime order",
        })
    }
}
