//! Groth16 proving of Filecoin's circuits in little memory.
//!
//! A request ([`proof`]) becomes circuits, each circuit a partition ([`pipeline`]), which the
//! [`engine`] runs by priority on the [`device`], inside what the memory budget grants.

pub mod circuit;
pub mod device;
pub mod engine;
pub mod groth16;
pub mod memory;
pub mod params;
pub mod pipeline;
pub mod proof;
pub mod sample;
