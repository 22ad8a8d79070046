//! `cuzk governor explain`: every knob of the governor, its value, and where that comes from.

use super::{print, print_json, table, CommandError};
use clap::Subcommand;
use cuzk_governor::setpoints::Explained;

/// What to do with the governor.
#[derive(Subcommand)]
pub enum GovernorCommand {
    /// Show the setpoints in force (`CUZK_GOV_*`) and where each comes from
    Explain {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Prints the setpoints that a daemon started here would have.
pub fn run(command: GovernorCommand) -> Result<(), CommandError> {
    let GovernorCommand::Explain { json } = command;
    let explained = Explained::from_env().map_err(|e| CommandError::Usage(e.to_string()))?;
    if json {
        return print_json(&explained.json());
    }
    let mut rows = table(["setpoint", "value", "source", "meaning"]);
    for row in explained.rows {
        rows.add_row([row.name, &row.value, row.source.name(), row.meaning]);
    }
    print(&(rows.trim_fmt() + "\n"))
}
