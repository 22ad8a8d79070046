//! `cuzk simulate`: the governor's policy on a simulated machine, against what else could be done there.

use super::{print, CommandError};
use crate::file::write_atomically;
use cuzk_governor::setpoints::{Explained, Setpoints};
use cuzk_governor::sim::{
    plot::{self, Recording},
    report::{compare, Sizes},
    scenario::{Scenario, BUILT_IN},
    trace, worlds,
};
use std::{
    fs::File,
    io::BufReader,
    path::{Path, PathBuf},
};

/// Shown after the flags.
pub const EXAMPLES: &str = "\
Examples:
  cuzk simulate --list                 the scenarios that come with it
  cuzk simulate seed-342 --plot seed-342.svg
  cuzk simulate ./node.toml            one of your own
  cuzk simulate --seed 17              one world of the property tests again
  cuzk simulate --replay trace.jsonl   a recorded governor's ticks, decided again

The governor there has the setpoints of the CUZK_GOV_* variables (see `cuzk governor explain`), but
for --seed, whose worlds are judged with the defaults. A trace is decided again with them, too: set
those that it was recorded with, and as CUZK_GOV_MAX_CONCURRENCY what the daemon had threads for.

The oracle is the best fixed concurrency, found by trying each; a governor that changes its
concurrency can do better.

The last line is JSON.";

/// What to simulate.
#[derive(clap::Args)]
pub struct SimulateArgs {
    /// A scenario's name, or a TOML file
    #[arg(required_unless_present_any = ["seed", "list", "replay"])]
    scenario: Option<String>,
    /// The world of this seed instead
    #[arg(long, conflicts_with = "scenario")]
    seed: Option<u64>,
    /// Write an SVG plot of the governed run [default: SCENARIO.svg]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Decide again what a recorded governor decided, and show the differences
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scenario", "seed"])]
    replay: Option<PathBuf>,
    /// List the scenarios
    #[arg(long)]
    list: bool,
}

/// Runs the command.
pub fn run(args: &SimulateArgs) -> Result<(), CommandError> {
    if args.list {
        return print(&BUILT_IN.iter().map(|(name, _)| format!("{name}\n")).collect::<String>());
    }
    let setpoints =
        Explained::from_env().map_err(|e| CommandError::Usage(e.to_string()))?.setpoints;
    if let Some(path) = &args.replay {
        return replay(path, &setpoints);
    }
    let (world, static_reserve) = match (args.seed, &args.scenario) {
        (Some(seed), _) => {
            let verdict = worlds::judge(seed);
            let broken = verdict.broken.map(|broken| broken.to_string());
            print(&format!("seed {seed}: {}\n", broken.as_deref().unwrap_or("no rule broken")))?;
            (worlds::world(seed), 0)
        }
        (None, name) => {
            let mut scenario = Scenario::load(name.as_deref().unwrap_or_default())
                .map_err(|why| CommandError::Usage(why.to_string()))?;
            scenario.world.setpoints = setpoints;
            print(&format!("{}\n", scenario.about.trim()))?;
            if !scenario.sizes.is_empty() {
                print(&Sizes::run(&scenario).to_string())?;
            }
            (scenario.world, scenario.static_reserve)
        }
    };
    let mut recording = Recording::default();
    let comparison = compare(&world, static_reserve, &mut recording);
    let path = args
        .plot
        .clone()
        .unwrap_or_else(|| format!("{}.svg", comparison.name.replace(' ', "-")).into());
    let svg = plot::svg(&recording, &format!("{}, governed", comparison.name))
        .map_err(|why| CommandError::Failed(why.to_string()))?;
    write_atomically(&path, svg.as_bytes())
        .map_err(|source| CommandError::File { path: path.clone(), source })?;
    print(&format!("{comparison}plot: {}\n{}\n", path.display(), comparison.json()))
}

fn replay(path: &Path, setpoints: &Setpoints) -> Result<(), CommandError> {
    let file =
        File::open(path).map_err(|source| CommandError::File { path: path.to_owned(), source })?;
    let (ticks, differences) = trace::replay(BufReader::new(file), setpoints)
        .map_err(|why| CommandError::Usage(format!("{}: {why}", path.display())))?;
    if ticks == 0 {
        return Err(CommandError::Usage(format!(
            "{}: no ticks are recorded in it",
            path.display()
        )));
    }
    for difference in &differences {
        let (recorded, now) = (&difference.recorded, &difference.now);
        print(&format!("line {}: recorded {recorded:?}, now {now:?}\n", difference.line))?;
    }
    print(&format!("{}\n", serde_json::json!({ "ticks": ticks, "differences": differences.len() })))
}
