//! memprobe: how much memory can really be had, found by taking it.
//!
//! A child process maps and touches chunk after chunk as it is told, and holds them. The child is
//! the kernel's first choice to kill (`oom_score_adj` 1000), so a misjudgement costs the child and
//! is a measurement. The parent looks at the kernel before every chunk and while one is touched, stops
//! a given distance before any limit, and takes no more than a share of what a daemon can spare.
//! Where the kernel kills whole cgroups (`memory.oom.group`) nothing is probed.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::ptr::{self, NonNull};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::limits;
use crate::sensor::kernel::KernelSensor;
use crate::sensor::resolve::Root;
use crate::sensor::{Sample, Sensor, SensorError};

/// What the child's replies begin with: its standard output may carry other lines.
const REPLY: &str = "memprobe: ";
/// Between two looks at the kernel while a chunk is touched.
const LOOK: Duration = Duration::from_millis(10);

/// How to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Stop with so many bytes left at the nearest limit.
    pub stop_short: u64,
    /// The largest chunk, while there is plenty of room.
    pub largest: u64,
    /// The smallest chunk: the probe ends when not even it fits.
    pub smallest: u64,
    /// Take no more than this in all.
    pub at_most: Option<u64>,
    /// A chunk that takes longer means that the kernel throttles or thrashes.
    pub patience: Duration,
    /// Of what a running daemon can spare, take so many hundredths at most.
    pub share_of_spare: u64,
    /// A daemon sees the probe as growth: grow so slowly that its room would last so long.
    pub calm: Duration,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            stop_short: 1 << 30,
            largest: 1 << 30,
            smallest: 64 << 20,
            at_most: None,
            patience: Duration::from_secs(30),
            share_of_spare: 25,
            calm: Duration::from_secs(60),
        }
    }
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    /// What the kernel's figures said was left before.
    pub foretold: u64,
    /// What was had.
    pub had: u64,
    /// Why it ended there.
    pub ended: Ended,
    /// How long it took.
    pub seconds: f64,
}

/// Why a probe ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Ended {
    /// As told: so many bytes were left at the nearest limit.
    StoppedShort {
        /// Bytes left.
        left: u64,
    },
    /// As told: no more was allowed, by the caller or by what a daemon can spare.
    Capped,
    /// Others took memory while a chunk was touched; the child was ended to give way.
    GaveWay {
        /// Bytes left when it was.
        left: u64,
    },
    /// The kernel would not map a chunk.
    Refused {
        /// Its bytes.
        chunk: u64,
        /// What it answered.
        reason: String,
    },
    /// A chunk was not touched in time.
    TooSlow {
        /// Its bytes.
        chunk: u64,
    },
    /// The child was killed while it touched a chunk: less can be had than the figures say.
    Killed {
        /// Its bytes.
        chunk: u64,
        /// Whether the kernel's own count of kills for want of memory rose.
        for_memory: bool,
    },
}

/// Why there was no probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The kernel's figures cannot be had.
    #[error(transparent)]
    Sensor(#[from] SensorError),
    /// A kill would not stop at the child.
    #[error(
        "{folder} has memory.oom.group = 1: a misjudged probe would kill every process in it; \
         probe from another cgroup"
    )]
    GroupKill {
        /// The cgroup's folder.
        folder: PathBuf,
    },
    /// The child does not run, or does not do as it is told.
    #[error("the probe's child process failed: {0}")]
    Child(#[from] io::Error),
    /// The child ended by itself.
    #[error("the probe's child process ended by itself: {0}")]
    Ended(ExitStatus),
}

/// What a running daemon can spare at present, in bytes.
pub type Spare<'a> = &'a mut dyn FnMut() -> u64;

impl Probe {
    /// Probes from within this process's cgroup. `child` must start a process that calls [`serve`].
    pub fn run(
        &self,
        root: &Root,
        child: &mut Command,
        spare: Option<Spare<'_>>,
    ) -> Result<Found, ProbeError> {
        let mut sensor = KernelSensor::open(root.clone())?;
        for folder in sensor.hierarchy().memory.iter().flat_map(|tree| &tree.levels) {
            if limits::kills_all_at_once(root, folder)? {
                return Err(ProbeError::GroupKill { folder: folder.clone() });
            }
        }
        let mut kernel = Kernel { sensor: &mut sensor, sample: Sample::default() };
        let started = Instant::now();
        let foretold = kernel.left()?;
        let kills = kernel.sample.events.oom_kill;
        let mut allowance = Allowance::new(self, spare);
        let mut taker = Remote::start(child)?;
        let mut had = 0;
        let ended = loop {
            let left = kernel.left()?;
            let room = left.saturating_sub(self.stop_short);
            let Some(chunk) = self.chunk(room) else { break Ended::StoppedShort { left } };
            let chunk = chunk.min(allowance.next(had, self.smallest));
            if chunk == 0 {
                break Ended::Capped;
            }
            if let Some(ended) = self.take(&mut taker, &mut kernel, chunk, kills)? {
                break ended;
            }
            had += chunk;
            thread::sleep(allowance.pause(chunk, self.calm));
        };
        Ok(Found { foretold, had, ended, seconds: started.elapsed().as_secs_f64() })
    }

    /// The next chunk: a quarter of the room, between the smallest and the largest, if it fits.
    fn chunk(&self, room: u64) -> Option<u64> {
        let chunk = (room / 4).clamp(self.smallest, self.largest.max(self.smallest));
        (chunk <= room).then_some(chunk)
    }

    /// Has a chunk taken; `None` if it was, else why the probe ends.
    fn take(
        &self,
        taker: &mut Remote,
        kernel: &mut Kernel<'_>,
        chunk: u64,
        kills: u64,
    ) -> Result<Option<Ended>, ProbeError> {
        let deadline = Instant::now() + self.patience;
        // A child that died before it could read the order shows in its missing reply.
        let _ = writeln!(taker.orders, "{chunk}");
        loop {
            match taker.replies.recv_timeout(LOOK) {
                Ok(Ok(())) => return Ok(None),
                Ok(Err(reason)) => return Ok(Some(Ended::Refused { chunk, reason })),
                Err(RecvTimeoutError::Disconnected) => {
                    let status = taker.child.wait()?;
                    if status.signal() != Some(libc::SIGKILL) {
                        return Err(ProbeError::Ended(status));
                    }
                    kernel.left()?;
                    let for_memory = kernel.sample.events.oom_kill > kills;
                    return Ok(Some(Ended::Killed { chunk, for_memory }));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let left = kernel.left()?;
                    if left < self.stop_short / 2 {
                        return Ok(Some(Ended::GaveWay { left }));
                    }
                    if Instant::now() > deadline {
                        return Ok(Some(Ended::TooSlow { chunk }));
                    }
                }
            }
        }
    }
}

/// The kernel's figures as the probe needs them.
struct Kernel<'a> {
    sensor: &'a mut dyn Sensor,
    sample: Sample,
}

impl Kernel<'_> {
    /// What is left at the nearest limit that the child shares with us. (Its RLIMITs are its own;
    /// where they bind the kernel refuses a mapping, which harms nobody.)
    fn left(&mut self) -> Result<u64, SensorError> {
        self.sensor.sample(&mut self.sample)?;
        let shared = self.sample.levels.iter().filter(|level| !level.path.starts_with("rlimit:"));
        let least = shared.filter_map(limits::left).min();
        Ok(least.unwrap_or(u64::MAX).min(self.sample.host.available))
    }
}

/// What the caller and a daemon allow.
struct Allowance<'a> {
    at_most: u64,
    spare: Option<Spare<'a>>,
    /// What the daemon can spare now, and what of it it must be left with.
    spare_now: u64,
    untouchable: u64,
}

impl<'a> Allowance<'a> {
    fn new(set: &Probe, mut spare: Option<Spare<'a>>) -> Self {
        let at_most = set.at_most.unwrap_or(u64::MAX);
        let Some(first) = spare.as_mut().map(|spare| spare()) else {
            return Self { at_most, spare, spare_now: 0, untouchable: 0 };
        };
        let share = first / 100 * set.share_of_spare.min(100);
        let at_most = at_most.min(share);
        Self { at_most, spare, spare_now: first, untouchable: first - share }
    }

    /// The largest next chunk for who has taken `had`. A daemon is asked each time, for it works
    /// on, and is spared large steps.
    fn next(&mut self, had: u64, smallest: u64) -> u64 {
        let allowed = self.at_most.saturating_sub(had);
        let Some(spare) = &mut self.spare else { return allowed };
        self.spare_now = spare();
        let room = self.spare_now.saturating_sub(self.untouchable);
        if room < smallest {
            return 0;
        }
        let allowed = allowed.min(room);
        allowed.min(smallest.max(allowed / 4))
    }

    /// How long to rest after a chunk, for a daemon's sake.
    fn pause(&self, chunk: u64, calm: Duration) -> Duration {
        if self.spare.is_none() {
            return Duration::ZERO;
        }
        calm.mul_f64(chunk as f64 / self.spare_now.max(chunk) as f64)
    }
}

/// The child, told by lines on its standard input.
struct Remote {
    child: Child,
    orders: ChildStdin,
    /// Ends when the child does.
    replies: Receiver<Result<(), String>>,
}

impl Remote {
    fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(orders), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("its standard streams are not ours"));
        };
        let (sender, replies) = mpsc::sync_channel(1);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Some((_, reply)) = line.split_once(REPLY) else { continue };
                let reply = if reply == "had" { Ok(()) } else { Err(reply.to_string()) };
                if sender.send(reply).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, orders, replies })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Its memory is back when it has been waited for; that it is dead already is no matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A way to take memory: touched pages, or pages pinned for a device.
pub trait Taker {
    /// Takes `bytes` more and holds them; says why not.
    fn take(&mut self, bytes: u64) -> Result<(), String>;
}

/// The child's part: takes as told on `orders` until they end.
pub fn serve(
    orders: impl BufRead,
    mut replies: impl Write,
    taker: &mut dyn Taker,
) -> io::Result<()> {
    // Raising it needs no privilege. Without it the kernel might choose another: better not begin.
    fs::write("/proc/self/oom_score_adj", "1000")?;
    for order in orders.lines() {
        let bytes = order?.trim().parse().map_err(io::Error::other)?;
        let reply = taker.take(bytes).map_or_else(|reason| reason, |()| "had".into());
        writeln!(replies, "{REPLY}{reply}")?;
        replies.flush()?;
    }
    Ok(())
}

/// Takes memory as a program does: maps it and writes to every page.
#[derive(Debug, Default)]
pub struct Touched {
    mappings: Vec<(NonNull<libc::c_void>, usize)>,
}

impl Taker for Touched {
    fn take(&mut self, bytes: u64) -> Result<(), String> {
        let bytes = usize::try_from(bytes).map_err(|error| error.to_string())?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping wherever the kernel likes; the result is checked.
        let address = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        let start = NonNull::new(address).filter(|_| address != libc::MAP_FAILED);
        let start = start.ok_or_else(|| io::Error::last_os_error().to_string())?;
        self.mappings.push((start, bytes));
        // The smallest page that Linux has; larger ones are touched more often than need be.
        for offset in (0..bytes).step_by(4096) {
            // SAFETY: within the mapping just made, to which no reference exists.
            unsafe { start.cast::<u8>().as_ptr().add(offset).write_volatile(1) };
        }
        Ok(())
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        for (start, bytes) in self.mappings.drain(..) {
            // SAFETY: mapped by `take` in one piece, and nothing refers into it.
            unsafe { libc::munmap(start.as_ptr(), bytes) };
        }
    }
}
