//! The `cuzk` command.
fn main() {}
