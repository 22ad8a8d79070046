//! Scenarios: worlds written down as TOML files.
//!
//! Sizes are written `13.6GiB`, times `250ms` or `5m`. Unknown keys are errors, and what TOML itself
//! cannot check (a level that is not there, a release that is larger than the peak) is checked here,
//! with the key in the message. A few scenarios come with the crate ([`BUILT_IN`]).

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use serde::Deserialize;

use crate::budget::Priority;
use crate::policy::Shed;
use crate::setpoints::Setpoints;
use crate::sim::kernel::Machine;
use crate::sim::spec::{Event, Job, Neighbour, Overhead, PlantSpec, What, World, GIB};

/// The scenarios that come with the crate, by name.
pub const BUILT_IN: [(&str, &str); 7] = [
    ("seed-342", include_str!("../../scenarios/seed-342.toml")),
    ("sizes", include_str!("../../scenarios/sizes.toml")),
    ("small-node", include_str!("../../scenarios/small-node.toml")),
    ("neighbour", include_str!("../../scenarios/neighbour.toml")),
    ("shrinking-limit", include_str!("../../scenarios/shrinking-limit.toml")),
    ("leak", include_str!("../../scenarios/leak.toml")),
    ("page-cache", include_str!("../../scenarios/page-cache.toml")),
];

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The name is no built-in scenario and no file.
    #[error("no scenario {asked:?}: it is no file, and the built-in ones are {}", names())]
    Unknown {
        /// What was asked for.
        asked: String,
    },
    /// The file could not be read.
    #[error("cannot read scenario {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// The file is no scenario.
    #[error("scenario {name} is malformed: {source}")]
    Malformed {
        /// Its name.
        name: String,
        /// What was found where.
        source: Box<toml::de::Error>,
    },
    /// A value that cannot be.
    #[error("scenario {name}: {key} is {found}, expected {expected}")]
    Invalid {
        /// Its name.
        name: String,
        /// The key, with its table.
        key: String,
        /// What the file says.
        found: String,
        /// What it must be.
        expected: String,
    },
}

fn names() -> String {
    BUILT_IN.map(|(name, _)| name).join(", ")
}

/// A scenario as read and checked.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it is about.
    pub about: String,
    /// The world.
    pub world: World,
    /// The static setting to compare with leaves so much of the limit unused.
    pub static_reserve: u64,
    /// Machine sizes to run it at beside its own, and the published daemon's figures for them.
    pub sizes: Vec<Size>,
}

/// One machine size of a table, with what the published daemon is said to do there.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Size {
    /// The limit of the plant's own group.
    pub limit: ByteSize,
    /// Seconds a proof, as published.
    pub seconds: Option<f64>,
    /// Peak, as published.
    pub peak: Option<ByteSize>,
}

impl Scenario {
    /// A built-in scenario by name, or a file.
    pub fn load(asked: &str) -> Result<Self, ScenarioError> {
        if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == asked) {
            return Self::parse(name, text);
        }
        let path = Path::new(asked);
        if !path.exists() {
            return Err(ScenarioError::Unknown { asked: asked.to_owned() });
        }
        let text = std::fs::read_to_string(path)
            .map_err(|source| ScenarioError::Unreadable { path: path.to_owned(), source })?;
        let name = path.file_stem().map_or(asked.into(), |stem| stem.to_string_lossy());
        Self::parse(&name, &text)
    }

    /// Reads and checks.
    pub fn parse(name: &str, text: &str) -> Result<Self, ScenarioError> {
        let file: File = toml::from_str(text).map_err(|source| ScenarioError::Malformed {
            name: name.to_owned(),
            source: Box::new(source),
        })?;
        let checker = Checker { name };
        file.check(&checker)?;
        file.build(&checker)
    }

    /// The same scenario where the plant's own group may use `limit`, on a machine that holds it.
    pub fn resized(&self, limit: u64) -> World {
        let mut world = self.world.clone();
        let spare = world.machine.total - self.limit();
        world.machine.total = limit + spare;
        for level in &mut world.limits {
            if level.is_some_and(|l| l == self.limit()) {
                *level = Some(limit);
            }
        }
        world
    }

    /// The limit that binds the plant at the start.
    pub fn limit(&self) -> u64 {
        limit_of(&self.world)
    }
}

/// The limit that binds a world's plant at the start.
pub fn limit_of(world: &World) -> u64 {
    let limits = world.limits.iter().flatten().chain(&world.high);
    limits.copied().min().unwrap_or(u64::MAX).min(world.machine.total)
}

struct Checker<'a> {
    name: &'a str,
}

impl Checker<'_> {
    fn ensure(
        &self,
        holds: bool,
        key: &str,
        found: impl ToString,
        expected: &str,
    ) -> Result<(), ScenarioError> {
        if holds {
            return Ok(());
        }
        Err(self.invalid(key, found, expected))
    }

    fn invalid(&self, key: &str, found: impl ToString, expected: impl ToString) -> ScenarioError {
        ScenarioError::Invalid {
            name: self.name.to_owned(),
            key: key.to_owned(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    #[serde(default = "default_step")]
    step: Time,
    horizon: Time,
    in_flight: Option<u32>,
    #[serde(default = "default_reserve")]
    static_reserve: ByteSize,
    machine: MachineFile,
    #[serde(default)]
    level: Vec<LevelFile>,
    #[serde(default)]
    plant: PlantFile,
    jobs: Vec<JobsFile>,
    #[serde(default)]
    events: Vec<EventFile>,
    #[serde(default)]
    neighbours: Vec<NeighbourFile>,
    #[serde(default)]
    sizes: Vec<Size>,
}

/// A duration as humans write it.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Time(Duration);

impl TryFrom<String> for Time {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        let time = humantime::parse_duration(&text);
        time.map(Time).map_err(|why| {
            format!("{text:?} is no time ({why}); write for example \"250ms\" or \"5m\"")
        })
    }
}

fn default_step() -> Time {
    Time(Duration::from_millis(250))
}

fn default_reserve() -> ByteSize {
    ByteSize(10 * GIB)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFile {
    memory: ByteSize,
    #[serde(default = "default_reclaim")]
    reclaim_per_s: ByteSize,
    #[serde(default)]
    swap: ByteSize,
    #[serde(default = "default_swap_rate")]
    swap_per_s: ByteSize,
}

fn default_reclaim() -> ByteSize {
    ByteSize(4 * GIB)
}

fn default_swap_rate() -> ByteSize {
    ByteSize(GIB / 2)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelFile {
    limit: Option<ByteSize>,
    high: Option<ByteSize>,
}

/// Every key is optional; what is left out is the default of [`PlantSpec`].
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PlantFile {
    srs: Option<ByteSize>,
    compiled: Option<ByteSize>,
    synthesis_threads: Option<u32>,
    synthesis_s: Option<f64>,
    contention: Option<f64>,
    devices: Option<u32>,
    device_s: Option<f64>,
    finish_s: Option<f64>,
    disk_per_s: Option<ByteSize>,
    pool_cap: Option<ByteSize>,
    oom_score_adj: i64,
    overhead: OverheadFile,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OverheadFile {
    base: Option<ByteSize>,
    per_thread: Option<ByteSize>,
    per_pinned: Option<f64>,
    driver_per_pinned: Option<f64>,
    leak_per_s: ByteSize,
    leak_limit: ByteSize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JobsFile {
    count: u32,
    #[serde(default = "at_once")]
    at: Time,
    #[serde(default = "at_once")]
    every: Time,
    partitions: u32,
    peak: ByteSize,
    released: ByteSize,
    estimate: Option<ByteSize>,
    #[serde(default)]
    kind: Kind,
    #[serde(default = "one")]
    scale: f64,
}

fn at_once() -> Time {
    Time(Duration::ZERO)
}

fn one() -> f64 {
    1.0
}

/// What a job is, as far as priority and shedding go.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    #[default]
    Porep,
    Snap,
    WindowPost,
    WinningPost,
}

impl Kind {
    fn priority(self) -> Priority {
        match self {
            Kind::Porep | Kind::Snap => Priority::Normal,
            Kind::WindowPost => Priority::High,
            Kind::WinningPost => Priority::Critical,
        }
    }

    fn shed(self) -> Shed {
        match self {
            Kind::Porep | Kind::Snap => Shed::Freely,
            Kind::WindowPost => Shed::InEmergency,
            Kind::WinningPost => Shed::Never,
        }
    }
}

/// One of the keys beside `at` says what happens.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventFile {
    at: Time,
    limit: Option<LimitFile>,
    sensor_stalls: Option<Time>,
    sensor_lies: Option<LieFile>,
    reads_file: Option<ReadFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitFile {
    level: usize,
    bytes: ByteSize,
    /// The limit goes there in a straight line; at once if left out.
    over: Option<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LieFile {
    share: f64,
    lasts: Time,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadFile {
    bytes: ByteSize,
    per_s: ByteSize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NeighbourFile {
    #[serde(default)]
    level: usize,
    #[serde(default)]
    oom_score_adj: i64,
    #[serde(default)]
    memory: NeighbourMemory,
    sizes: Vec<(Time, ByteSize)>,
}

#[derive(Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum NeighbourMemory {
    #[default]
    Private,
    Shared,
}

impl File {
    fn check(&self, c: &Checker<'_>) -> Result<(), ScenarioError> {
        c.ensure(
            self.step.0 >= Duration::from_millis(10),
            "step",
            humantime::format_duration(self.step.0),
            "10ms or more",
        )?;
        c.ensure(!self.jobs.is_empty(), "jobs", "empty", "at least one")?;
        c.ensure(
            self.machine.memory.0 > 0,
            "machine.memory",
            self.machine.memory,
            "more than nothing",
        )?;
        c.ensure(self.in_flight != Some(0), "in_flight", 0, "at least 1")?;
        for (at, job) in self.jobs.iter().enumerate() {
            let key = |name: &str| format!("jobs[{at}].{name}");
            c.ensure(job.partitions > 0, &key("partitions"), job.partitions, "at least 1")?;
            c.ensure(
                job.released <= job.peak,
                &key("released"),
                job.released,
                "no more than `peak`",
            )?;
            c.ensure(job.scale > 0.0, &key("scale"), job.scale, "more than 0")?;
        }
        for (at, event) in self.events.iter().enumerate() {
            let key = |name: &str| format!("events[{at}].{name}");
            if let Some(limit) = &event.limit {
                let expected =
                    format!("below {}, the number of [[level]] tables", self.level.len());
                c.ensure(
                    limit.level < self.level.len(),
                    &key("limit.level"),
                    limit.level,
                    &expected,
                )?;
            }
        }
        for (at, neighbour) in self.neighbours.iter().enumerate() {
            let key = |name: &str| format!("neighbours[{at}].{name}");
            let expected = format!(
                "at most {}, the number of [[level]] tables (0 is the host)",
                self.level.len()
            );
            c.ensure(
                neighbour.level <= self.level.len(),
                &key("level"),
                neighbour.level,
                &expected,
            )?;
            let rising = neighbour.sizes.windows(2).all(|w| w[0].0 .0 < w[1].0 .0);
            c.ensure(
                rising,
                &key("sizes"),
                "not in order of time",
                "each moment after the one before",
            )?;
        }
        self.plant.check(c)
    }

    fn build(self, c: &Checker<'_>) -> Result<Scenario, ScenarioError> {
        let mut jobs: Vec<Job> = self.jobs.iter().flat_map(JobsFile::jobs).collect();
        jobs.sort_by_key(|job| job.at);
        let mut limits: Vec<Option<u64>> =
            self.level.iter().map(|l| l.limit.map(|b| b.0)).collect();
        let mut events = Vec::new();
        for (at, event) in self.events.iter().enumerate() {
            let what = event.what().ok_or_else(|| {
                let expected =
                    "exactly one of `limit`, `sensor_stalls`, `sensor_lies`, `reads_file`";
                c.invalid(&format!("events[{at}]"), "none or several", expected)
            })?;
            match (what, event.limit.as_ref().and_then(|l| l.over)) {
                (What::Limit { level, bytes }, Some(over)) => {
                    let from =
                        limits.get(level).copied().flatten().unwrap_or(self.machine.memory.0);
                    events.extend(ramp(level, from, bytes, event.at.0, over.0));
                }
                _ => events.push(Event { at: event.at.0, what }),
            }
            if let What::Limit { level, bytes } = what {
                limits[level] = Some(bytes);
            }
        }
        events.sort_by_key(|event| event.at);
        Ok(Scenario {
            name: c.name.to_owned(),
            about: self.about,
            static_reserve: self.static_reserve.0,
            sizes: self.sizes,
            world: World {
                name: c.name.to_owned(),
                machine: Machine {
                    total: self.machine.memory.0,
                    reclaim_per_s: self.machine.reclaim_per_s.0,
                    swap: self.machine.swap.0,
                    swap_per_s: self.machine.swap_per_s.0,
                },
                limits: self.level.iter().map(|l| l.limit.map(|b| b.0)).collect(),
                high: self.level.last().and_then(|l| l.high.map(|b| b.0)),
                oom_score_adj: self.plant.oom_score_adj,
                plant: self.plant.build(),
                jobs,
                in_flight: self.in_flight.unwrap_or(u32::MAX),
                events,
                neighbours: self.neighbours.iter().map(NeighbourFile::build).collect(),
                setpoints: Setpoints::default(),
                step: self.step.0,
                horizon: self.horizon.0,
            },
        })
    }
}

/// A limit that moves in a straight line, a step a second.
fn ramp(
    level: usize,
    from: u64,
    to: u64,
    at: Duration,
    over: Duration,
) -> impl Iterator<Item = Event> {
    let steps = over.as_secs().max(1);
    (1..=steps).map(move |step| {
        let share = step as f64 / steps as f64;
        let bytes = (from as f64 + (to as f64 - from as f64) * share) as u64;
        Event { at: at + over.mul_f64(share), what: What::Limit { level, bytes } }
    })
}

impl PlantFile {
    fn check(&self, c: &Checker<'_>) -> Result<(), ScenarioError> {
        for (key, seconds) in [
            ("plant.synthesis_s", self.synthesis_s),
            ("plant.device_s", self.device_s),
            ("plant.finish_s", self.finish_s),
        ] {
            let found = seconds.unwrap_or(1.0);
            c.ensure(found > 0.0, key, found, "more than 0")?;
        }
        for (key, count) in
            [("plant.synthesis_threads", self.synthesis_threads), ("plant.devices", self.devices)]
        {
            c.ensure(count != Some(0), key, 0, "at least 1")?;
        }
        let disk = self.disk_per_s.unwrap_or(ByteSize(1));
        c.ensure(disk.0 > 0, "plant.disk_per_s", disk, "more than nothing")
    }

    fn build(&self) -> PlantSpec {
        let d = PlantSpec::default();
        let bytes = |given: Option<ByteSize>, default: u64| given.map_or(default, |b| b.0);
        let o = &self.overhead;
        PlantSpec {
            srs: bytes(self.srs, d.srs),
            compiled: bytes(self.compiled, d.compiled),
            synthesis_threads: self.synthesis_threads.unwrap_or(d.synthesis_threads),
            synthesis_s: self.synthesis_s.unwrap_or(d.synthesis_s),
            contention: self.contention.unwrap_or(d.contention),
            devices: self.devices.unwrap_or(d.devices),
            device_s: self.device_s.unwrap_or(d.device_s),
            finish_s: self.finish_s.unwrap_or(d.finish_s),
            disk_per_s: bytes(self.disk_per_s, d.disk_per_s),
            pool_cap: self.pool_cap.map(|b| b.0),
            overhead: Overhead {
                base: bytes(o.base, d.overhead.base),
                per_thread: bytes(o.per_thread, d.overhead.per_thread),
                per_pinned: o.per_pinned.unwrap_or(d.overhead.per_pinned),
                driver_per_pinned: o.driver_per_pinned.unwrap_or(d.overhead.driver_per_pinned),
                leak_per_s: o.leak_per_s.0,
                leak_limit: o.leak_limit.0,
            },
            ..d
        }
    }
}

impl JobsFile {
    fn jobs(&self) -> impl Iterator<Item = Job> + '_ {
        (0..self.count).map(|number| Job {
            at: self.at.0 + self.every.0 * number,
            priority: self.kind.priority(),
            shed: self.kind.shed(),
            estimate: self.estimate.unwrap_or(self.peak).0,
            peaks: vec![self.peak.0; self.partitions as usize],
            pinned_share: self.released.0 as f64 / self.peak.0.max(1) as f64,
            scale: self.scale,
        })
    }
}

impl EventFile {
    fn what(&self) -> Option<What> {
        let all = [
            self.limit.as_ref().map(|l| What::Limit { level: l.level, bytes: l.bytes.0 }),
            self.sensor_stalls.map(|t| What::SensorStalls(t.0)),
            self.sensor_lies
                .as_ref()
                .map(|l| What::SensorLies { share: l.share, lasts: l.lasts.0 }),
            self.reads_file
                .as_ref()
                .map(|r| What::ReadsFile { bytes: r.bytes.0, per_s: r.per_s.0 }),
        ];
        let mut given = all.into_iter().flatten();
        given.next().filter(|_| given.next().is_none())
    }
}

impl NeighbourFile {
    fn build(&self) -> Neighbour {
        Neighbour {
            level: self.level,
            oom_score_adj: self.oom_score_adj,
            shmem: self.memory == NeighbourMemory::Shared,
            sizes: self.sizes.iter().map(|(at, bytes)| (at.0, bytes.0)).collect(),
        }
    }
}
