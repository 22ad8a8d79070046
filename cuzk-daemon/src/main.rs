//! The `cuzk` command.

use cuzk_core::memory::{tune_allocator, Accounting};

/// Counts what each partition takes on the heap.
#[global_allocator]
static ALLOCATOR: Accounting = Accounting;

fn main() -> std::process::ExitCode {
    tune_allocator();
    cuzk_daemon::cli::main()
}
