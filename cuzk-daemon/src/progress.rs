//! Shows how far long work is: a bar on a terminal, plain lines where stderr goes to a file.

use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

/// How often a plain line is written at most.
const LINE_EVERY: Duration = Duration::from_secs(10);

const SPIN: Duration = Duration::from_millis(120);

/// Tells people one line. That nobody reads it is no reason to stop, as `eprintln` would.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The stages of one job, as they come.
pub struct Stages {
    spinner: Option<ProgressBar>,
    shown: &'static str,
}

impl Stages {
    /// Nothing to show yet.
    pub fn new() -> Stages {
        let spinner = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}");
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(SPIN);
            style.map_or(bar.clone(), |style| bar.with_style(style))
        });
        Stages { spinner, shown: "" }
    }

    /// Shows a stage, once.
    pub fn show(&mut self, stage: &'static str) {
        if self.shown != stage {
            self.shown = stage;
            match &self.spinner {
                Some(spinner) => spinner.set_message(stage),
                None => note(stage),
            }
        }
    }
}

impl Drop for Stages {
    fn drop(&mut self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

/// Work of a known size, in steps that each begin at nothing.
pub struct Meter {
    what: String,
    bar: Option<ProgressBar>,
    line_due: Instant,
}

impl Meter {
    /// A meter at zero.
    pub fn new(what: &str) -> Meter {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = "{prefix} {msg} {wide_bar} {percent:>3} % {elapsed_precise}";
            let bar = ProgressBar::new(0).with_prefix(what.to_owned());
            match ProgressStyle::with_template(template) {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Meter { what: what.to_owned(), bar, line_due: Instant::now() }
    }

    /// Shows `done` of `total` of a step; nothing of either where `total` is 0.
    pub fn show(&mut self, step: &str, done: u64, total: u64) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(step.to_owned());
                bar.set_length(total);
                bar.set_position(done);
            }
            None if Instant::now() >= self.line_due => {
                self.line_due = Instant::now() + LINE_EVERY;
                let share = (100 * done).checked_div(total);
                let share = share.map_or(String::new(), |percent| format!(" {percent} %"));
                note(&format!("{}: {step}{share}", self.what));
            }
            None => {}
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
