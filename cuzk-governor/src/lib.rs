//! Knows a process's live memory headroom, and decides what to do about it.
//!
//! Sensors read the kernel ([`sensor`]), a ledger knows what was promised ([`budget`]),
//! [`headroom`] puts the two together, [`policy`] decides and [`governor`] drives it all
//! from a thread of its own. Nothing here knows what a proof is.

pub mod budget;
pub mod estimate;
pub mod governor;
pub mod headroom;
pub mod limits;
#[cfg(test)]
mod listener;
pub mod policy;
pub mod probe;
pub mod sensor;
pub mod setpoints;
pub mod sim;
