//! The `cuzk` command.

fn main() -> std::process::ExitCode {
    cuzk_daemon::cli::main()
}
