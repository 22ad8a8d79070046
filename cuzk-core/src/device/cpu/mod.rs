//! The CPU backend: transforms and multi-exponentiations on host threads.

mod batches;
pub mod domain;
#[cfg(target_arch = "x86_64")]
mod fp52;
#[cfg(target_arch = "x86_64")]
mod fr52;
mod lanes;
pub mod msm;
pub mod quotient;
mod reversal;
