//! The cuzk proving daemon and its command line.
//!
//! The engine of `cuzk-core` proves; this crate is how people and programs reach it. All that is
//! asynchronous lives here: nothing below knows of tokio.

pub mod address;
pub mod cli;
pub mod client;
pub mod commands;
pub mod config;
mod default_budget;
mod error;
mod file;
mod incoming;
pub mod intake;
pub mod listen;
mod open_files;
mod progress;
pub mod server;
pub mod service;
pub mod telemetry;
pub mod wire;
