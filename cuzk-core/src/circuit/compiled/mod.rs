//! The compiled circuit: matrices A and B, recorded once, mapped by every later proof.
//!
//! A circuit's structure never depends on its witness. So the first proof, or a blank circuit,
//! streams its rows to a file ([`Recorder`]), and later ones ask the circuit for its witness alone
//! and multiply it with the rows of the mapped file ([`Compiled`]), on all threads. The results are
//! bit for bit those of synthesis in full.

mod bitmap;
mod error;
mod format;
mod mapped;
mod recorder;
mod rows;
#[cfg(test)]
mod tests;

pub use error::CompiledError;
pub use format::{Identity, Sizes};
pub use mapped::Compiled;
pub use recorder::{record, Recorder};
