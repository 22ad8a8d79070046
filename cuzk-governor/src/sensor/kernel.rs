//! The sensor of a real machine: every source read together into one [`Sample`].
//!
//! Each sample looks again where this process stands, for it can be moved and limits can change
//! while it runs. A level or a file that is lost, or of no use, is left out, said once, and looked for
//! again. An error is only what cannot be told at all without (`/proc/meminfo`, `/proc/self`), and
//! usage or a limit that is there and cannot be read.

use std::time::Instant;

use super::cgroup_v1::{self, LevelV1};
use super::cgroup_v2::LevelV2;
use super::counter::Counter;
use super::file::KernelFile;
use super::host::HostFiles;
use super::pressure::PressureFiles;
use super::process::ProcessFiles;
use super::resolve::{resolve, Hierarchy, Root, Tree, Version};
use super::{allocator, Events, Level, Sample, Sensor, SensorError};

/// Reads the kernel.
#[derive(Debug)]
pub struct KernelSensor {
    root: Root,
    started: Instant,
    sequence: u64,
    membership: KernelFile,
    /// What `membership` held when `levels` were found.
    stands_at: Vec<u8>,
    hierarchy: Hierarchy,
    levels: Levels,
    events: EventCounters,
    /// How many files told of events last.
    told_by: usize,
    pressure: PressureFiles,
    host: HostFiles,
    process: ProcessFiles,
    /// The reading in the making, so that a failed one leaves the caller's alone.
    draft: Sample,
}

#[derive(Debug)]
enum Levels {
    /// With `memory.events` of the process's own cgroup.
    V2(Vec<LevelV2>, KernelFile),
    /// With `memory.oom_control` of the process's own cgroup.
    V1(Vec<LevelV1>, KernelFile),
    None,
}

#[derive(Debug, Default)]
struct EventCounters {
    oom_kill: Counter,
    max: Counter,
    high: Counter,
}

impl KernelSensor {
    /// Opens the sources below `root`; [`Root::default`] is this machine.
    pub fn open(root: Root) -> Result<Self, SensorError> {
        let hierarchy = resolve(&root)?;
        let mut sensor = Self {
            started: Instant::now(),
            sequence: 0,
            membership: KernelFile::new(root.join("/proc/self/cgroup")),
            stands_at: Vec::new(),
            levels: Levels::None,
            events: EventCounters::default(),
            told_by: 0,
            pressure: PressureFiles::new(&root, &hierarchy),
            host: HostFiles::new(&root),
            process: ProcessFiles::new(&root),
            draft: Sample::default(),
            hierarchy,
            root,
        };
        sensor.stands_at = sensor.membership.read_required()?.bytes().to_vec();
        sensor.levels = Levels::open(&sensor.root, sensor.hierarchy.memory.as_ref());
        Ok(sensor)
    }

    /// The cgroups that it reads.
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Finds the levels anew if the process was moved or one of them was lost.
    fn follow(&mut self) -> Result<(), SensorError> {
        let membership = self.membership.read_required()?;
        if membership.bytes() == self.stands_at && !self.levels.is_lost() {
            return Ok(());
        }
        self.stands_at.clear();
        self.stands_at.extend_from_slice(membership.bytes());
        let hierarchy = resolve(&self.root)?;
        if hierarchy == self.hierarchy {
            return Ok(());
        }
        tracing::info!(?hierarchy, "memory cgroup changed");
        self.levels = Levels::open(&self.root, hierarchy.memory.as_ref());
        self.pressure.follow(&self.root, &hierarchy);
        self.events.exchange_source();
        self.hierarchy = hierarchy;
        Ok(())
    }
}

impl Sensor for KernelSensor {
    fn sample(&mut self, into: &mut Sample) -> Result<(), SensorError> {
        self.follow()?;
        let (host, committed) = self.host.read()?;
        let process = self.process.read()?;
        let draft = &mut self.draft;
        draft.levels.clear();
        self.levels.read(host.total, &mut draft.levels)?;
        draft.levels.extend(process.address_space.into_iter().chain(process.data).chain(committed));
        let (events, told_by) = self.levels.events();
        if std::mem::replace(&mut self.told_by, told_by) != told_by {
            // What a file counted while it told nothing, or before, did not happen in this tick.
            self.events.exchange_source();
        }
        draft.events = self.events.advance(events);
        draft.pressure = self.pressure.read();
        draft.host = host;
        draft.own = process.resident;
        draft.allocator = allocator::read(&process.resident);
        draft.at = self.started.elapsed();
        self.sequence += 1;
        draft.sequence = self.sequence;
        std::mem::swap(draft, into);
        Ok(())
    }
}

impl Levels {
    fn open(root: &Root, tree: Option<&Tree>) -> Self {
        let Some(Tree { version, levels }) = tree else { return Self::None };
        let own = |name| KernelFile::new(root.join(&levels[0]).join(name));
        match version {
            Version::V2 => {
                let files = levels.iter().map(|folder| LevelV2::new(root, folder)).collect();
                Self::V2(files, own("memory.events"))
            }
            Version::V1 => {
                let mut bound = 1;
                while bound < levels.len() && cgroup_v1::is_hierarchical(root, &levels[bound]) {
                    bound += 1;
                }
                let mut files: Vec<_> =
                    levels[..bound].iter().map(|folder| LevelV1::new(root, folder)).collect();
                if let Some(topmost) = files.last_mut() {
                    topmost.answer_for_unseen();
                }
                Self::V1(files, own("memory.oom_control"))
            }
        }
    }

    fn is_lost(&self) -> bool {
        match self {
            Self::V2(_, events) | Self::V1(_, events) => events.is_lost(),
            Self::None => false,
        }
    }

    /// Adds the levels that account memory, the process's own first. A limit of all the machine's
    /// memory or more is none: the machine's memory decides.
    fn read(&mut self, total: u64, into: &mut Vec<Level>) -> Result<(), SensorError> {
        let real = |mut level: Level| {
            level.limit = level.limit.filter(|limit| *limit < total);
            level
        };
        match self {
            Self::V2(levels, _) => {
                for level in levels {
                    into.extend(level.read()?.map(real));
                }
            }
            Self::V1(levels, _) => {
                for level in levels {
                    let Some(memory) = level.read()? else { continue };
                    let with_swap = level.read_with_swap(&memory)?.map(real);
                    into.push(real(memory));
                    into.extend(with_swap.filter(|level| level.limit.is_some()));
                }
            }
            Self::None => {}
        }
        Ok(())
    }

    /// Kills in the process's own cgroup, and how often the limits of all levels were met; and how
    /// many files told of it.
    fn events(&mut self) -> (Events, usize) {
        let mut events = Events::default();
        let mut told_by = 0;
        let own = match self {
            Self::V2(levels, own) => {
                for (max, high) in levels.iter_mut().filter_map(LevelV2::hits) {
                    told_by += 1;
                    events.max = events.max.saturating_add(max);
                    events.high = events.high.saturating_add(high);
                }
                own
            }
            Self::V1(levels, own) => {
                for hits in levels.iter_mut().filter_map(LevelV1::hits) {
                    told_by += 1;
                    events.max = events.max.saturating_add(hits);
                }
                own
            }
            Self::None => return (events, told_by),
        };
        if let Some(kills) = own.read_optional(|own| own.required("oom_kill")) {
            told_by += 1;
            events.oom_kill = kills;
        }
        (events, told_by)
    }
}

impl EventCounters {
    fn advance(&mut self, raw: Events) -> Events {
        Events {
            oom_kill: self.oom_kill.advance(raw.oom_kill),
            max: self.max.advance(raw.max),
            high: self.high.advance(raw.high),
        }
    }

    fn exchange_source(&mut self) {
        self.oom_kill.exchange_source();
        self.max.exchange_source();
        self.high.exchange_source();
    }
}
