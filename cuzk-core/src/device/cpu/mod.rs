//! The CPU backend: transforms and multi-exponentiations on host threads.

pub mod msm;
