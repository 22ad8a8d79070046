//! The command line: what can be typed, and what the exit code says afterwards.

use crate::{
    address::Address,
    commands::{self, CommandError},
    config::{Config, SettingFlags},
    progress::note,
    telemetry,
};
use clap::{
    builder::{OsStringValueParser, TypedValueParser},
    CommandFactory, Parser, Subcommand,
};
use clap_complete::Shell;
use std::{path::PathBuf, process::ExitCode};

const EXAMPLES: &str = "\
Examples:
  cuzk demo                                  a first proof, nothing to prepare
  cuzk params dev porep-2k                   development parameters for a circuit
  cuzk serve --listen 0.0.0.0:9820           the daemon, on all interfaces
  cuzk serve --listen unix:///run/cuzk.sock,127.0.0.1:9820
  cuzk prove c1.json -o proof.bin            one proof, no daemon needed
  cuzk verify c1.json --proof proof.bin
  cuzk status                                what the daemon is doing

Exit codes:
  0  done
  1  it failed: the proof, the check, the daemon's start
  2  wrong use: a flag, a setting, a file that is no request
  3  no daemon answers, or it refused for now: try again later
  4  the proof is not valid
  130  interrupted";

/// Proves Filecoin's sectors (Groth16) in little memory.
#[derive(Parser)]
#[command(name = "cuzk", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    /// Configuration file (TOML)
    #[arg(long, global = true, env = "CUZK_CONFIG", value_name = "FILE", value_parser = any_path())]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the daemon until SIGTERM
    #[command(after_help = commands::serve::EXAMPLES)]
    Serve {
        #[command(flatten)]
        settings: SettingFlags,
    },
    /// Make one proof, here or on a daemon
    #[command(after_help = commands::prove::EXAMPLES)]
    Prove {
        #[command(flatten)]
        args: commands::prove::ProveArgs,
        #[command(flatten)]
        settings: SettingFlags,
    },
    /// Check a proof against its request
    #[command(after_help = commands::verify::EXAMPLES)]
    Verify {
        #[command(flatten)]
        args: commands::verify::VerifyArgs,
        #[command(flatten)]
        settings: SettingFlags,
    },
    /// Show what a daemon is doing
    Status {
        #[command(flatten)]
        server: ServerArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop a job of a daemon
    Cancel {
        /// The job's id, as SubmitProof and `cuzk status` give it
        job: String,
        #[command(flatten)]
        server: ServerArg,
    },
    /// Make, check and list parameter files
    Params {
        #[command(subcommand)]
        command: commands::params::ParamsCommand,
    },
    /// Ask about the memory governor
    Governor {
        #[command(subcommand)]
        command: commands::governor::GovernorCommand,
    },
    /// Make a fresh sector and prove it, start to end
    #[command(after_help = commands::demo::EXAMPLES)]
    Demo {
        #[command(flatten)]
        args: commands::demo::DemoArgs,
        #[command(flatten)]
        settings: SettingFlags,
    },
    /// Try the memory governor on a simulated machine
    #[command(after_help = commands::simulate::EXAMPLES)]
    Simulate {
        #[command(flatten)]
        args: commands::simulate::SimulateArgs,
    },
    /// Show the settings in force and where each comes from
    Config {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: SettingFlags,
    },
    /// Show what memory is promised here, by every level, and by which least
    Memcheck {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Find out how much memory can really be had, by taking it
    #[command(after_help = commands::memprobe::EXAMPLES)]
    Memprobe {
        #[command(flatten)]
        args: commands::memprobe::MemprobeArgs,
        #[command(flatten)]
        server: ServerArg,
    },
    /// Takes memory for `memprobe`, which starts it
    #[command(name = commands::memprobe::CHILD, hide = true)]
    MemprobeChild,
    /// Print a shell's completion script
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// An empty one as well: `Config::load` says what is wrong with it.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Which daemon to talk to.
#[derive(clap::Args)]
pub struct ServerArg {
    /// The daemon's address: HOST:PORT or unix:///path [default: the first of `listen`]
    #[arg(long, value_name = "ADDRESS")]
    pub server: Option<Address>,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<(), CommandError> {
    let file = cli.config.as_deref();
    let load = |flags: &SettingFlags| -> Result<Config, CommandError> {
        let config = Config::load(file, flags)?;
        telemetry::start_logging(&config.settings)
            .map_err(|error| CommandError::Usage(format!("log: {error}")))?;
        Ok(config)
    };
    let load_to_prove = |flags: &SettingFlags| -> Result<Config, CommandError> {
        let config = load(flags)?;
        config.require_machine()?;
        Ok(config)
    };
    match cli.command {
        Command::Simulate { args } => commands::simulate::run(&args),
        Command::Serve { settings } => commands::serve::run(&load_to_prove(&settings)?.settings),
        Command::Prove { args, settings } => {
            let load = if args.is_remote() { load(&settings) } else { load_to_prove(&settings) };
            commands::prove::run(&args, &load?.settings)
        }
        Command::Verify { args, settings } => {
            commands::verify::run(&args, &load(&settings)?.settings)
        }
        Command::Status { server, json } => commands::status::run(&server.or_first(file)?, json),
        Command::Cancel { job, server } => commands::cancel::run(&server.or_first(file)?, job),
        Command::Params { command } => commands::params::run(command, file),
        Command::Governor { command } => commands::governor::run(command),
        Command::Demo { args, settings } => commands::demo::run(&args, &settings, file),
        Command::Config { json, settings } => {
            commands::config::run(&Config::load(file, &settings)?, json)
        }
        Command::Memcheck { json } => commands::memcheck::run(json),
        Command::Memprobe { args, server } => {
            commands::memprobe::run(&args, &server.or_first(file)?)
        }
        Command::MemprobeChild => commands::memprobe::run_child(),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "cuzk", &mut script);
            commands::print(&String::from_utf8_lossy(&script))
        }
    }
}

impl ServerArg {
    fn or_first(self, file: Option<&std::path::Path>) -> Result<Address, CommandError> {
        match self.server {
            Some(server) => Ok(server),
            None => {
                let settings = Config::load(file, &SettingFlags::default())?.settings;
                let first = settings.listen.into_iter().next();
                first.ok_or_else(|| CommandError::Usage("no address: use --server".to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
