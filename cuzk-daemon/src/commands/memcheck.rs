//! `cuzk memcheck`: what memory this process is promised, by every level, and by which least.

use super::{print, print_json, CommandError};
use cuzk_governor::{limits, sensor::resolve::Root};

/// Prints the promises.
pub fn run(json: bool) -> Result<(), CommandError> {
    let failed = |error: &dyn std::fmt::Display| CommandError::Failed(error.to_string());
    let promises = limits::check(&Root::default()).map_err(|error| failed(&error))?;
    if json {
        return print_json(&serde_json::to_value(&promises).map_err(|error| failed(&error))?);
    }
    print(&promises.to_string())
}
