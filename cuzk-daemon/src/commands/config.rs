//! `cuzk config`: every setting, its value, and where that comes from.

use super::{print, print_json, table, CommandError};
use crate::config::Config;

/// Prints the settings in force.
pub fn run(config: &Config, json: bool) -> Result<(), CommandError> {
    let explained = config.explain();
    if json {
        return print_json(&serde_json::json!(explained));
    }
    let mut rows = table(["setting", "value", "source", "meaning"]);
    for setting in explained {
        rows.add_row([setting.name, &setting.value, &setting.source, &setting.meaning]);
    }
    print(&(rows.trim_fmt() + "\n"))
}
