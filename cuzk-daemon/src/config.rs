//! The daemon's settings: defaults, then a TOML file, then `CUZK_*` variables, then flags; the
//! later wins. A setting has one name in all four (`memory_budget`, `CUZK_MEMORY_BUDGET`,
//! `--memory-budget`), is parsed before it counts, and remembers where its value came from.
//! An unknown name is an error everywhere, so that a typing slip never silently does nothing.
//! `CUZK_GOV_*` belongs to the governor, which checks it by the same rule at the same time.

use crate::{address::Address, default_budget::default_budget, intake::MIN_ALLOWANCE};
use bytesize::ByteSize;
use clap::{Args, Command};
use cuzk_core::{params::Params, proof::CircuitId};
use cuzk_governor::setpoints::{self, SetpointError, Setpoints};
use figment::{
    error::Kind,
    providers::{Env, Format, Serialized, Toml},
    value::{Dict, Map},
    Figment, Metadata, Profile, Provider, Source,
};
use serde::{de, Deserialize, Deserializer, Serialize, Serializer};
use std::{
    env, fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tracing_subscriber::EnvFilter;

/// Read when neither `--config` nor `CUZK_CONFIG` names a file; may be absent.
pub const DEFAULT_FILE: &str = "/etc/cuzk/cuzk.toml";

/// The source of a value that nobody set.
const DEFAULT: &str = "default";

/// More threads than any machine has processors are a typing slip, and would take minutes to start.
const MAX_THREADS: Count = Count(1024);

/// More only take turns, and the engine has as many of each priority: they would cost memory for nothing.
const THREADS_PER_PROCESSOR: usize = 8;

/// What the smallest proof takes, and so the least budget that makes sense.
const MIN_BUDGET: Size = Size(64 << 20);

/// No machine has more memory.
const MAX_SIZE: Size = Size(1 << 50);

/// More jobs than a daemon can have in a lifetime.
const MAX_JOBS: Count = Count(1 << 24);

/// Nobody waits longer for a daemon to stop.
const MAX_GRACE: Span = Span(Duration::from_secs(7 * 24 * 3600));

/// What the names of variables begin with that are no settings of this file.
const OTHER_VARIABLES: [&str; 3] = ["gov_", "test_", "config"];

/// The settings as flags. Each help text is also what `cuzk config` prints as the meaning.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct SettingFlags {
    /// Where to listen: HOST:PORT or unix:///path; several with commas
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub listen: Vec<String>,
    /// Folder of Filecoin's parameter files (.params and .vk)
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub params_dir: Option<String>,
    /// Folder of the native parameter files converted from them; by default in params_dir
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_dir: Option<String>,
    /// Threads that compute, at most 8 a processor
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<String>,
    /// Memory that jobs and parameters may hold, as in 12GiB
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_budget: Option<String>,
    /// Whether the governor sizes budget, concurrency and buffers by the live headroom: on or off
    #[arg(long, value_name = "on|off")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor: Option<String>,
    /// File to which the governor appends every tick, for `cuzk simulate --replay`; by default none
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governor_trace: Option<String>,
    /// Memory that requests being received may hold, at least 512MiB
    #[arg(long, value_name = "SIZE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_memory: Option<String>,
    /// Jobs that may wait or run; more are refused with a retry hint
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_jobs: Option<String>,
    /// Ended jobs whose outcome stays available
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_finished: Option<String>,
    /// How long running jobs may go on after SIGTERM, as in 30s
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shutdown_grace: Option<String>,
    /// Circuits to load at the start (porep-32g, wpost-32g, ...); several with commas
    #[arg(long, value_name = "CIRCUIT", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preload: Vec<String>,
    /// What to log: error, warn, info, debug, trace, or a filter like info,cuzk_core=debug
    #[arg(long, value_name = "FILTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// How to log: text or json
    #[arg(long, value_name = "FORMAT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_format: Option<String>,
}

/// The settings, parsed.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Settings {
    /// Where to listen.
    #[serde(deserialize_with = "list")]
    pub listen: Vec<Address>,
    /// Filecoin's parameter files.
    pub params_dir: PathBuf,
    /// Native parameter files.
    pub native_dir: PathBuf,
    /// Threads that compute.
    pub threads: Count,
    /// Memory of jobs and parameters.
    pub memory_budget: Size,
    /// Whether somebody chose that.
    #[serde(skip)]
    pub memory_budget_is_set: bool,
    /// Whether the governor runs.
    pub governor: Switch,
    /// Where it records; empty for nowhere.
    pub governor_trace: PathBuf,
    /// Memory of requests being received.
    pub request_memory: Size,
    /// Jobs that may wait or run.
    pub max_jobs: Count,
    /// Ended jobs whose outcome stays.
    pub keep_finished: Count,
    /// How long running jobs go on after a signal.
    pub shutdown_grace: Span,
    /// Circuits to load at the start.
    #[serde(deserialize_with = "list")]
    pub preload: Vec<Circuit>,
    /// Log filter.
    pub log: String,
    /// Log format.
    pub log_format: LogFormat,
    /// The governor's own, from `CUZK_GOV_*`.
    #[serde(skip)]
    pub setpoints: Setpoints,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// It runs.
    On,
    /// It does not.
    Off,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Settings {
    fn defaults() -> Settings {
        let params_dir = Params::default_dir();
        Settings {
            listen: vec![Address::Tcp("127.0.0.1:9820".to_owned())],
            native_dir: Params::new(&params_dir).native_dir().into(),
            params_dir,
            threads: Count(processors()),
            memory_budget: Size(default_budget().unwrap_or(0) / 10 * 9),
            memory_budget_is_set: false,
            governor: Switch::On,
            governor_trace: PathBuf::new(),
            request_memory: Size(512 << 20),
            max_jobs: Count(256),
            keep_finished: Count(1024),
            shutdown_grace: Span(Duration::from_secs(30)),
            preload: Vec::new(),
            log: "info".to_owned(),
            log_format: LogFormat::Text,
            setpoints: Setpoints::default(),
        }
    }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A setting's value, where it came from, and what it means.
#[derive(Debug, Serialize)]
pub struct Explained {
    /// The setting's name.
    pub name: &'static str,
    /// Its value in force.
    pub value: String,
    /// `default`, `file …`, `environment …`, `flag …` or, of a setpoint, `profile`.
    pub source: String,
    /// What it does.
    pub meaning: String,
}

/// Settings, and for each its source.
#[derive(Debug)]
pub struct Config {
    /// The values in force.
    pub settings: Settings,
    figment: Figment,
    setpoints: Vec<setpoints::Row>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or is not TOML.
    #[error("configuration file {path}: {reason}")]
    File {
        /// The file asked for.
        path: PathBuf,
        /// What went wrong.
        reason: String,
    },
    /// No setting has this name.
    #[error("{source_name}: there is no setting '{name}'{} `cuzk config` lists them all",
        nearest.map_or_else(|| ";".to_owned(), |n| format!("; did you mean '{n}'?")))]
    Unknown {
        /// The name that was found.
        name: String,
        /// Where it was found.
        source_name: String,
        /// The setting whose name is nearest, if any is near.
        nearest: Option<&'static str>,
    },
    /// A variable of the governor is wrong.
    #[error(transparent)]
    Setpoint(#[from] SetpointError),
    /// The value is not what the setting takes.
    #[error("{name} ({source_name}): {reason}")]
    Invalid {
        /// The setting.
        name: String,
        /// Where its value was found.
        source_name: String,
        /// What was found and what was expected.
        reason: String,
    },
}

/// One place that settings come from, its names already checked.
struct Layer {
    metadata: Metadata,
    values: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        self.metadata.clone()
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

impl Layer {
    fn new(provider: impl Provider, metadata: Metadata) -> Result<Layer, String> {
        let mut profiles = provider.data().map_err(|error| error.to_string())?;
        let values = profiles.remove(&Profile::Default).unwrap_or_default();
        Ok(Layer { metadata, values })
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        match self.values.keys().find(|name| !names().any(|known| known == *name)) {
            None => Ok(()),
            Some(name) => Err(ConfigError::Unknown {
                name: name.clone(),
                source_name: source_name(Some(&self.metadata), name),
                nearest: nearest(name),
            }),
        }
    }
}

impl Config {
    /// Reads all sources. `file` is the one asked for by flag or variable; without one the default
    /// file counts if it is there.
    pub fn load(file: Option<&Path>, flags: &SettingFlags) -> Result<Config, ConfigError> {
        let mut layers = vec![memory_layer(DEFAULT, Settings::defaults())];
        let default_file = Path::new(DEFAULT_FILE);
        if let Some(path) = file.or(default_file.exists().then_some(default_file)) {
            layers.push(file_layer(path)?);
        }
        layers.push(environment_layer()?);
        layers.push(memory_layer("flag", flags));

        let mut figment = Figment::new();
        for layer in layers {
            layer.check_names()?;
            figment = figment.merge(layer);
        }
        let mut settings = figment.extract::<Settings>().map_err(invalid)?;
        let governor = setpoints::Explained::from_env()?;
        settings.setpoints = governor.setpoints;
        let mut config = Config { settings, figment, setpoints: governor.rows };
        if config.source("native_dir") == DEFAULT {
            config.settings.native_dir =
                Params::new(&config.settings.params_dir).native_dir().into();
        }
        config.settings.memory_budget_is_set = config.source("memory_budget") != DEFAULT;
        if !config.settings.memory_budget_is_set && config.settings.governor == Switch::On {
            // The governor keeps its own margin, a measured one.
            config.settings.memory_budget = Size(default_budget().unwrap_or(0));
        }
        config.check_ranges()?;
        Ok(config)
    }

    /// Whether this machine can prove by these settings: for those that prove, not for those that ask.
    pub fn require_machine(&self) -> Result<(), ConfigError> {
        let (found, most) = (self.settings.threads, THREADS_PER_PROCESSOR * processors());
        if found > Count(most) {
            let each = format!("{THREADS_PER_PROCESSOR} for each of {} processors", processors());
            let reason = format!("found {found}, expected at most {most} ({each})");
            return Err(self.refused("threads", reason));
        }
        self.require_memory()
    }

    fn require_memory(&self) -> Result<(), ConfigError> {
        let found = self.settings.memory_budget;
        if found >= MIN_BUDGET {
            return Ok(());
        }
        let measured = match (self.source("memory_budget") == DEFAULT, default_budget()) {
            (true, Ok(_)) => " (what is free here)".to_owned(),
            (true, Err(error)) => format!(" (how much is free is unknown: {error})"),
            (false, _) => String::new(),
        };
        let reason = format!("found {found}{measured}, expected at least {MIN_BUDGET}");
        Err(self.refused("memory_budget", reason))
    }

    /// Every setting with its value and source, in the order of the flags; then the governor's setpoints.
    pub fn explain(&self) -> Vec<Explained> {
        let values = serde_json::to_value(&self.settings).unwrap_or_default();
        let flags = SettingFlags::augment_args(Command::new("settings"));
        let meanings = flags.get_arguments().map(|a| a.get_help().map(ToString::to_string));
        names()
            .zip(meanings)
            .map(|(name, meaning)| Explained {
                name,
                value: shown(&values[name]),
                source: self.source(name),
                meaning: meaning.unwrap_or_default(),
            })
            .chain(self.setpoints.iter().map(|row| self.explain_setpoint(row)))
            .collect()
    }

    fn explain_setpoint(&self, row: &setpoints::Row) -> Explained {
        // The profile itself is the first of them.
        let is_set = |row: &setpoints::Row| row.source == setpoints::Source::Environment;
        let profile_is_set = self.setpoints.first().is_some_and(is_set);
        let source = match row.source {
            setpoints::Source::Environment => format!("environment {}", row.name),
            setpoints::Source::Profile if profile_is_set => "profile".to_owned(),
            setpoints::Source::Profile => DEFAULT.to_owned(),
        };
        let (value, meaning) = (row.value.clone(), row.meaning.to_owned());
        Explained { name: row.name, value, source, meaning }
    }

    fn source(&self, name: &str) -> String {
        source_name(self.figment.find_metadata(name), name)
    }

    fn check_ranges(&self) -> Result<(), ConfigError> {
        let settings = &self.settings;
        self.within("threads", settings.threads, Count(1), MAX_THREADS)?;
        self.within("max_jobs", settings.max_jobs, Count(1), MAX_JOBS)?;
        self.within("keep_finished", settings.keep_finished, Count(0), MAX_JOBS)?;
        self.within("request_memory", settings.request_memory, Size(MIN_ALLOWANCE), MAX_SIZE)?;
        self.within("memory_budget", settings.memory_budget, Size(0), MAX_SIZE)?;
        self.within("shutdown_grace", settings.shutdown_grace, Span(Duration::ZERO), MAX_GRACE)?;
        if settings.listen.is_empty() {
            return Err(self.refused("listen", "no address to listen on".to_owned()));
        }
        for (name, path) in
            [("params_dir", &settings.params_dir), ("native_dir", &settings.native_dir)]
        {
            if path.as_os_str().is_empty() {
                return Err(self.refused(name, "found no name, expected a folder's".to_owned()));
            }
        }
        EnvFilter::try_new(&settings.log)
            .map_err(|error| self.refused("log", format!("found '{}': {error}", settings.log)))?;
        Ok(())
    }

    fn within<T: PartialOrd + fmt::Display>(
        &self,
        name: &str,
        found: T,
        least: T,
        most: T,
    ) -> Result<(), ConfigError> {
        let bound = match () {
            () if found < least => format!("at least {least}"),
            () if found > most => format!("at most {most}"),
            () => return Ok(()),
        };
        Err(self.refused(name, format!("found {found}, expected {bound}")))
    }

    fn refused(&self, name: &str, reason: String) -> ConfigError {
        ConfigError::Invalid { name: name.to_owned(), source_name: self.source(name), reason }
    }
}

fn memory_layer(name: &'static str, values: impl Serialize) -> Layer {
    let metadata = Metadata::named(name);
    Layer::new(Serialized::defaults(values), metadata).expect("settings serialise to a table")
}

fn file_layer(path: &Path) -> Result<Layer, ConfigError> {
    let refuse = |reason: String| ConfigError::File { path: path.to_owned(), reason };
    if path.as_os_str().is_empty() {
        return Err(refuse("found no name; --config or CUZK_CONFIG has to name a file".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    let metadata = Metadata::from("file", path);
    Layer::new(Toml::string(&text), metadata).map_err(refuse)
}

fn environment_layer() -> Result<Layer, ConfigError> {
    let ours = |name: &figment::value::UncasedStr| {
        !OTHER_VARIABLES.iter().any(|other| name.starts_with(other))
    };
    // Read as text with a replacement character it would be another folder, or another file.
    let garbled = env::vars_os()
        .filter(|(name, value)| name.as_bytes().starts_with(b"CUZK_") && value.to_str().is_none())
        .map(|(name, value)| (name.to_string_lossy()[5..].to_lowercase(), value))
        .find(|(name, _)| ours(name.as_str().into()));
    let metadata = Metadata::named("environment");
    match garbled {
        Some((name, value)) => Err(ConfigError::Invalid {
            source_name: source_name(Some(&metadata), &name),
            name,
            reason: format!("found {value:?}, expected UTF-8"),
        }),
        None => Ok(Layer::new(Env::prefixed("CUZK_").filter(ours), metadata)
            .expect("variables are a table")),
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    Settings::NAMES.iter().copied()
}

impl Settings {
    /// Every setting, in the order of [`SettingFlags`].
    const NAMES: [&'static str; 14] = [
        "listen",
        "params_dir",
        "native_dir",
        "threads",
        "memory_budget",
        "governor",
        "governor_trace",
        "request_memory",
        "max_jobs",
        "keep_finished",
        "shutdown_grace",
        "preload",
        "log",
        "log_format",
    ];
}

fn nearest(name: &str) -> Option<&'static str> {
    names()
        .map(|known| (strsim::damerau_levenshtein(name, known), known))
        .min()
        .and_then(|(distance, known)| (distance <= known.len() / 2).then_some(known))
}

fn source_name(metadata: Option<&Metadata>, name: &str) -> String {
    let Some(metadata) = metadata else { return DEFAULT.to_owned() };
    match (metadata.name.as_ref(), &metadata.source) {
        (_, Some(Source::File(path))) => format!("file {}", path.display()),
        ("environment", _) => format!("environment CUZK_{}", name.to_uppercase()),
        ("flag", _) => format!("flag --{}", name.replace('_', "-")),
        (other, _) => other.to_owned(),
    }
}

fn invalid(error: figment::Error) -> ConfigError {
    let name = error.path.first().cloned().unwrap_or_default();
    let reason = match &error.kind {
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            format!("found {found}, expected {expected}")
        }
        Kind::UnknownVariant(found, expected) => {
            format!("found '{found}', expected {}", expected.join(" or "))
        }
        other => other.to_string(),
    };
    ConfigError::Invalid { source_name: source_name(error.metadata.as_ref(), &name), name, reason }
}

fn shown(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// A list, or in one text its items with commas.
fn list<'de, D: Deserializer<'de>, T: de::DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a text, or a list of texts")]
    enum Form {
        One(String),
        Many(Vec<String>),
    }
    let items = match Form::deserialize(from)? {
        Form::One(text) => text.split(',').map(|item| item.trim().to_owned()).collect(),
        Form::Many(items) => items,
    };
    let parse = |item: String| {
        T::deserialize(de::value::StringDeserializer::<de::value::Error>::new(item))
            .map_err(de::Error::custom)
    };
    items.into_iter().filter(|item| !item.is_empty()).map(parse).collect()
}

/// A circuit by its name, as in `porep-32g`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Circuit(pub CircuitId);

impl TryFrom<String> for Circuit {
    type Error = <CircuitId as std::str::FromStr>::Err;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse().map(Circuit)
    }
}

impl From<Circuit> for String {
    fn from(Circuit(id): Circuit) -> String {
        id.to_string()
    }
}

/// A number of bytes, read from a number or from text like `4GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub struct Size(pub u64);

/// A time, read from text like `30s` or `1h 30m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub struct Span(pub Duration);

/// A number of things, read from a number or from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub struct Count(pub usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size(bytes) = *self;
        let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
        match units.iter().find(|(_, shift)| bytes > 0 && bytes % (1 << shift) == 0) {
            Some((unit, shift)) => write!(f, "{}{unit}", bytes >> shift),
            None => write!(f, "{bytes}B"),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads a number or a text, by the text's own parser.
struct TextOrNumber<T> {
    expected: &'static str,
    parse: fn(&str) -> Option<T>,
}

impl<T> de::Visitor<'_> for TextOrNumber<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        let refused = || E::invalid_value(de::Unexpected::Str(text), &self);
        (self.parse)(text.trim()).ok_or_else(refused)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

macro_rules! read_from_text {
    ($type:ident, $expected:literal, $parse:expr) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                from.deserialize_any(TextOrNumber { expected: $expected, parse: $parse })
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    };
}

read_from_text!(Size, "a size like 4GiB", |text| {
    text.parse::<ByteSize>().ok().map(|size| Size(size.0))
});
read_from_text!(Span, "a time like 30s", |text| humantime::parse_duration(text).ok().map(Span));
read_from_text!(Count, "a whole number", |text| text.parse().ok().map(Count));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_settings_and_names_are_the_same_list() {
        let flags = SettingFlags::augment_args(Command::new("settings"));
        let flags: Vec<_> = flags.get_arguments().map(|a| a.get_id().to_string()).collect();
        assert_eq!(flags, Settings::NAMES);
        let defaults = memory_layer(DEFAULT, Settings::defaults());
        defaults.check_names().unwrap();
        assert_eq!(defaults.values.len(), Settings::NAMES.len());
    }

    #[test]
    fn sizes_and_times_are_written_as_they_are_read() {
        for text in ["4GiB", "300MiB", "1KiB", "17B", "0B"] {
            let size: Size = serde_json::from_value(text.into()).unwrap();
            assert_eq!(size.to_string(), text);
        }
        let span: Span = serde_json::from_value("1h 30m".into()).unwrap();
        assert_eq!(span.0, Duration::from_secs(5400));
    }
}
