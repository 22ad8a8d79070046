//! A simulated kernel and plant on virtual time, which the production policy steers: for property
//! tests, for replaying what happened elsewhere, and for planning machines that we do not have.
//!
//! Nothing in here reads a clock or draws a random number once a [`spec::World`] is made.

pub mod kernel;
pub mod plant;
pub mod plot;
pub mod report;
pub mod run;
pub mod scenario;
pub mod spec;
pub mod trace;
pub mod worlds;
