//! Stalls for want of memory (PSI): totals to take differences of, and a trigger to sleep on.
//!
//! The cgroup's own file is preferred, for the machine's rises with anybody's disk, too. PSI
//! confirms and does not foretell: without swap it rises too late to save a large allocation. Where
//! no trigger can be set the trigger only sleeps, and the governor's tick has to do.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use super::counter::Counter;
use super::file::{Contents, KernelFile};
use super::resolve::{Hierarchy, Root, Version};
use super::{Pressure, SensorError, Stall};

/// The pressure files, read at every sample.
#[derive(Debug)]
pub(crate) struct PressureFiles {
    own: Option<KernelFile>,
    machine: KernelFile,
    reads_own: bool,
    some: Counter,
    full: Counter,
}

impl PressureFiles {
    pub(crate) fn new(root: &Root, hierarchy: &Hierarchy) -> Self {
        let own = hierarchy.unified.as_ref().map(|folder| folder.join("memory.pressure"));
        Self {
            own: own.map(|path| KernelFile::new(root.join(path))),
            machine: KernelFile::new(root.join("/proc/pressure/memory")),
            reads_own: false,
            some: Counter::default(),
            full: Counter::default(),
        }
    }

    /// This process's cgroup is another now: reads that one's file and goes on counting.
    pub(crate) fn follow(&mut self, root: &Root, hierarchy: &Hierarchy) {
        let Self { own, machine, .. } = Self::new(root, hierarchy);
        (self.own, self.machine) = (own, machine);
        self.exchange_source();
    }

    fn exchange_source(&mut self) {
        self.some.exchange_source();
        self.full.exchange_source();
    }

    /// The stalls now, `None` where the kernel does not count them or does not tell.
    pub(crate) fn read(&mut self) -> Option<Pressure> {
        let own = self.own.as_mut().and_then(|file| file.read_optional(parse));
        let reads_own = own.is_some();
        let pressure = own.or_else(|| self.machine.read_optional(parse));
        if std::mem::replace(&mut self.reads_own, reads_own) != reads_own {
            self.exchange_source();
        }
        let Some(mut pressure) = pressure else {
            self.some.fall_silent();
            self.full.fall_silent();
            return None;
        };
        pressure.some.total_us = self.some.advance(pressure.some.total_us);
        pressure.full.total_us = self.full.advance(pressure.full.total_us);
        Some(pressure)
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, and the same for `full`.
fn parse(contents: &Contents<'_>) -> Result<Pressure, SensorError> {
    let stall = |kind: &str| {
        let text = std::str::from_utf8(contents.bytes()).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let value = |key| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(key));
        Some(Stall {
            total_us: value("total=")?.parse().ok()?,
            avg10: value("avg10=")?.parse().ok()?,
        })
    };
    match (stall("some "), stall("full ")) {
        (Some(some), Some(full)) => Ok(Pressure { some, full }),
        _ => Err(contents.malformed("lines `some` and `full` with avg10= and total=")),
    }
}

/// What a [`Trigger`] listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The own cgroup's `memory.pressure`, with the window that the kernel granted.
    OwnPressure(Duration),
    /// The own cgroup's `memory.pressure_level`, at `medium` (v1).
    OwnLevel,
    /// `/proc/pressure/memory`, with the window that the kernel granted.
    MachinePressure(Duration),
    /// Nothing: there is only the tick.
    Nothing,
}

/// Why [`Trigger::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Memory is short: sample and decide at once.
    ByPressure,
    /// The caller's own descriptor became readable.
    ByCaller,
    /// The time is over.
    ByTimeout,
}

/// Sleeps until memory gets short, or for a time at most.
#[derive(Debug)]
pub struct Trigger {
    source: Source,
    /// What is polled, and the file that must stay open for it.
    armed: Option<(OwnedFd, Option<File>)>,
}

impl Trigger {
    /// Asks the kernel to report stalls of `stall` within `window`: of the own cgroup if it can,
    /// else of the machine. Without privilege only windows of whole two seconds are granted
    /// (`EINVAL` for others), so that is tried next.
    pub fn arm(root: &Root, hierarchy: &Hierarchy, stall: Duration, window: Duration) -> Self {
        let own =
            hierarchy.unified.as_ref().map(|folder| root.join(folder).join("memory.pressure"));
        let trigger = own
            .and_then(|path| arm_stall(&path, stall, window))
            .map(|(file, window)| Self::polling(file, Source::OwnPressure(window)))
            .or_else(|| Self::arm_level(root, hierarchy))
            .or_else(|| {
                let (file, window) = arm_stall(&root.join("/proc/pressure/memory"), stall, window)?;
                Some(Self::polling(file, Source::MachinePressure(window)))
            })
            .unwrap_or(Self { source: Source::Nothing, armed: None });
        match trigger.source {
            Source::Nothing => tracing::warn!("no memory pressure trigger: only the tick is left"),
            source => tracing::info!(?source, "memory pressure trigger armed"),
        }
        trigger
    }

    fn polling(file: File, source: Source) -> Self {
        Self { source, armed: Some((file.into(), None)) }
    }

    fn arm_level(root: &Root, hierarchy: &Hierarchy) -> Option<Self> {
        let tree = hierarchy.memory.as_ref().filter(|tree| tree.version == Version::V1)?;
        let armed = arm_level(&root.join(&tree.levels[0])).ok()?;
        Some(Self { source: Source::OwnLevel, armed: Some((armed.0, Some(armed.1))) })
    }

    /// What it listens to.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Sleeps until memory is short, `wake` is readable, or `timeout` is over.
    pub fn wait(&mut self, timeout: Duration, wake: Option<BorrowedFd<'_>>) -> Woken {
        let events = if self.source == Source::OwnLevel { libc::POLLIN } else { libc::POLLPRI };
        let entry = |fd: Option<BorrowedFd<'_>>, events| libc::pollfd {
            fd: fd.map_or(-1, |fd| fd.as_raw_fd()),
            events,
            revents: 0,
        };
        let armed = self.armed.as_ref().map(|(fd, _)| fd.as_fd());
        let mut polled = [entry(armed, events), entry(wake, libc::POLLIN)];
        let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the array and the descriptors in it live until the call returns.
        unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) };
        let [pressure, caller] = polled.map(|entry| entry.revents);
        if pressure & (libc::POLLERR | libc::POLLNVAL) != 0 {
            tracing::warn!(source = ?self.source, "memory pressure trigger lost: its cgroup is gone");
            *self = Self { source: Source::Nothing, armed: None };
        } else if pressure & events != 0 {
            self.acknowledge();
            return Woken::ByPressure;
        }
        if caller != 0 {
            Woken::ByCaller
        } else {
            Woken::ByTimeout
        }
    }

    /// An eventfd stays readable until it is read.
    fn acknowledge(&self) {
        if let (Source::OwnLevel, Some((eventfd, _))) = (self.source, &self.armed) {
            let mut count = [0_u8; 8];
            // SAFETY: the buffer has the eight bytes that an eventfd gives; it does not block.
            unsafe { libc::read(eventfd.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        }
    }
}

/// Sets a PSI trigger, at `window` or at the two seconds that everybody is granted.
fn arm_stall(path: &Path, stall: Duration, window: Duration) -> Option<(File, Duration)> {
    const UNPRIVILEGED: Duration = Duration::from_secs(2);
    let set = |window: Duration| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        let mut file = options.open(path)?;
        // The kernel overwrites the last byte with its terminator: without one a digit is lost.
        let trigger = format!("some {} {}\0", stall.as_micros(), window.as_micros());
        file.write_all(trigger.as_bytes())?;
        Ok::<_, io::Error>((file, window))
    };
    set(window).or_else(|_| set(UNPRIVILEGED)).ok()
}

/// Registers an eventfd for `memory.pressure_level` at `medium`: the kernel has begun to swap or to
/// drop file pages in use.
fn arm_level(folder: &Path) -> io::Result<(OwnedFd, File)> {
    let level = File::open(folder.join("memory.pressure_level"))?;
    // SAFETY: a plain system call; what it returns is checked before it is owned.
    let eventfd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if eventfd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    let eventfd = unsafe { OwnedFd::from_raw_fd(eventfd) };
    let request = format!("{} {} medium", eventfd.as_raw_fd(), level.as_raw_fd());
    OpenOptions::new()
        .write(true)
        .open(folder.join("cgroup.event_control"))?
        .write_all(request.as_bytes())?;
    Ok((eventfd, level))
}
