//! `cuzk params`: which parameter files there are, whether they are what they should be, and
//! development parameters for those who only want to try.

use super::{print, table, CommandError};
use crate::{
    config::{Config, SettingFlags},
    progress::Meter,
};
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use cuzk_core::{
    device::Unhindered,
    params::{
        dev,
        published::{self, Finding},
        Params, ParamsError,
    },
    proof::CircuitId,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// What `cuzk params` can do.
#[derive(Subcommand)]
pub enum ParamsCommand {
    /// List every circuit, its files' names, and which of them are there
    List {
        /// Where to look.
        #[command(flatten)]
        folders: Folders,
    },
    /// Read the files and compare them with Filecoin's published digests
    Check {
        /// Circuits whose files have to be there, as in porep-32g
        #[arg(value_name = "CIRCUIT")]
        circuits: Vec<CircuitId>,
        /// Where to look.
        #[command(flatten)]
        folders: Folders,
    },
    /// Make insecure development parameters, in a folder of their own
    Dev {
        /// As in winning-2k, wpost-2k, snap-2k, porep-2k
        #[arg(required = true, value_name = "CIRCUIT")]
        circuits: Vec<CircuitId>,
        /// Their folder
        #[arg(long, value_name = "DIR", default_value_os_t = development_dir())]
        dir: PathBuf,
    },
}

/// Where parameter files are.
#[derive(Args)]
pub struct Folders {
    /// Folder of Filecoin's parameter files (.params and .vk)
    #[arg(long, value_name = "DIR")]
    params_dir: Option<String>,
    /// Folder of the native parameter files
    #[arg(long, value_name = "DIR")]
    native_dir: Option<String>,
}

/// Where development parameters go unless somebody says otherwise.
pub fn development_dir() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let absolute = |path: &PathBuf| path.is_absolute();
    let cache = cache.filter(absolute).or_else(|| home().filter(absolute));
    cache.unwrap_or_else(|| "/var/tmp".into()).join("cuzk/development-parameters")
}

/// Runs one of them.
pub fn run(command: ParamsCommand, config: Option<&Path>) -> Result<(), CommandError> {
    match command {
        ParamsCommand::List { folders } => list(&folders.params(config)?),
        ParamsCommand::Check { circuits, folders } => check(&folders.params(config)?, &circuits),
        ParamsCommand::Dev { circuits, dir } => {
            make(&circuits, &dir)?;
            print(&format!("development parameters (insecure) in {}\n", dir.display()))
        }
    }
}

impl Folders {
    fn params(self, file: Option<&Path>) -> Result<Params, CommandError> {
        let Folders { params_dir, native_dir } = self;
        let flags = SettingFlags { params_dir, native_dir, ..SettingFlags::default() };
        let settings = Config::load(file, &flags)?.settings;
        Ok(Params::new(settings.params_dir).with_native_dir(settings.native_dir))
    }
}

/// Makes what is missing of some circuits' development parameters.
pub fn make(circuits: &[CircuitId], dir: &Path) -> Result<Params, CommandError> {
    for circuit in circuits {
        let mut meter = Meter::new(&format!("development parameters {circuit}"));
        dev::ensure(
            &[*circuit],
            dir,
            &mut |progress| meter.show(&progress.step, progress.done, progress.total),
            &Unhindered,
        )?;
    }
    Ok(Params::new(dir))
}

fn list(params: &Params) -> Result<(), CommandError> {
    let mut rows = table(["circuit", "params", "vk", "native", "name"]);
    for circuit in CircuitId::all() {
        let stem = circuit.file_stem().map_err(|error| CommandError::Failed(error.to_string()))?;
        let files = [params.params_path(&stem), params.vk_path(&stem), params.native_path(&stem)];
        let [params, vk, native] = files.map(|path| size(fs::metadata(path).ok().map(|m| m.len())));
        rows.add_row([circuit.to_string(), params, vk, native, stem]);
    }
    let kind = if params.is_development() { " (development, insecure)" } else { "" };
    print(&format!("{}{kind}\n{}\n", params.dir().display(), rows.trim_fmt()))
}

fn check(params: &Params, circuits: &[CircuitId]) -> Result<(), CommandError> {
    let stems = circuits
        .iter()
        .map(|circuit| circuit.file_stem())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| CommandError::Failed(error.to_string()))?;
    let mut meter = Meter::new("checking");
    let mut show = |progress: cuzk_core::params::Progress| {
        meter.show(&progress.step, progress.done, progress.total);
    };
    let results = published::check(params, &stems, &mut show, &Unhindered)?;
    drop(meter);

    let mut rows = table(["file", "size", "finding"]);
    for result in &results {
        let finding = match &result.finding {
            Finding::Published(_) => "good: Filecoin's published digest".to_owned(),
            Finding::Development(_) => "sound, INSECURE development parameters".to_owned(),
            Finding::Unlisted(_) => "sound, but nothing is published under this name".to_owned(),
            Finding::Native => "good: native, checksums match".to_owned(),
            Finding::Bad(error) => format!("BAD: {}", without_path(error, &result.path)),
        };
        rows.add_row([result.path.display().to_string(), size(result.bytes), finding]);
    }
    print(&(rows.trim_fmt() + "\n"))?;
    match results.iter().filter(|result| !result.finding.is_good()).count() {
        0 if results.is_empty() => {
            Err(CommandError::Failed(format!("no parameter files in {}", params.dir().display())))
        }
        0 => Ok(()),
        bad => Err(CommandError::Failed(format!("{bad} of {} files are bad", results.len()))),
    }
}

/// An error that begins with the file's name, in a row that begins with it too.
fn without_path(error: &ParamsError, path: &Path) -> String {
    let error = error.to_string();
    let path = format!("{}: ", path.display());
    error.strip_prefix(&path).unwrap_or(&error).to_owned()
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).display().iec().to_string())
}
