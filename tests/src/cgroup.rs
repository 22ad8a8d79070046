//! Memory cgroups for tests: make one, limit it, run a command in it, read its peak, take it away again.
//!
//! Works on cgroup v1 and v2 and needs root. Each cgroup is made at the root of the hierarchy, beside everybody
//! else's and never inside them, and removed with whatever still runs in it when the [`Cgroup`] is dropped. The
//! hierarchy must be mounted whole (no cgroup namespace) and writable; where it is not, [`Cgroup::create`] says why.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Which of the kernel's two interfaces a [`Cgroup`] speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// `memory.limit_in_bytes` and its kin.
    V1,
    /// `memory.max` and its kin.
    V2,
}

/// A cgroup of our own; dropping it kills what runs in it and removes it.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
    version: Version,
}

impl Cgroup {
    /// Makes a cgroup `cuzk-test-NAME-PID-N` at the root of the memory hierarchy.
    pub fn create(name: &str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (root, version) = memory_hierarchy()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = root.join(format!("cuzk-test-{name}-{}-{number}", std::process::id()));
        Self::make(dir, version)
    }

    /// Makes a cgroup below this one; drop the child before the parent.
    ///
    /// On v2 no process may run in this one any more.
    pub fn child(&self, name: &str) -> Result<Self> {
        if self.version == Version::V2 {
            self.write("cgroup.subtree_control", "+memory")?;
        }
        Self::make(self.dir.join(name), self.version)
    }

    fn make(dir: PathBuf, version: Version) -> Result<Self> {
        fs::create_dir(&dir)
            .with_context(|| format!("cannot make the cgroup {}", dir.display()))?;
        let made = Self { dir, version };
        made.usage().context("the new cgroup has no memory controller")?;
        Ok(made)
    }

    /// Which interface it speaks.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Its folder below `/sys/fs/cgroup`.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Limits its memory, without swap; may be called again while processes run in it.
    ///
    /// The kernel refuses a limit that it cannot reclaim down to on v1 (`EBUSY`) and kills for it on v2.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        match self.version {
            Version::V1 => {
                self.write("memory.swappiness", "0")?;
                self.write("memory.limit_in_bytes", &bytes.to_string())
            }
            Version::V2 => {
                if self.dir.join("memory.swap.max").exists() {
                    self.write("memory.swap.max", "0")?;
                }
                self.write("memory.max", &bytes.to_string())
            }
        }
    }

    /// Lowers its limit from one figure to another, by 8 MiB every 250 ms: in a plant's reaction time by less
    /// than the margin, or no policy could help. v1 refuses what cannot be reclaimed down to and takes what
    /// leaves not a page free, which is a kill at the next one and no lowered limit; so there each step waits
    /// until it leaves another. Ends early when `ends` says so; whether it came down.
    pub fn lower(&self, from: u64, to: u64, mut ends: impl FnMut() -> bool) -> Result<bool> {
        const STEP: u64 = 8 << 20;
        let deadline = Instant::now() + Duration::from_secs(40);
        let mut limit = from;
        while limit > to {
            if ends() || Instant::now() > deadline {
                return Ok(false);
            }
            let next = to.max(limit.saturating_sub(STEP));
            let has_room = self.version == Version::V2 || self.usage()? + STEP <= next;
            if has_room && self.limit(next).is_ok() {
                limit = next;
                thread::sleep(Duration::from_millis(250));
            } else {
                thread::sleep(Duration::from_millis(2));
            }
        }
        Ok(true)
    }

    /// Throttles it above so many bytes; v2 only.
    pub fn throttle_above(&self, bytes: u64) -> Result<()> {
        anyhow::ensure!(self.version == Version::V2, "cgroup v1 has no memory.high");
        self.write("memory.high", &bytes.to_string())
    }

    /// Bytes charged to it now, page cache included.
    pub fn usage(&self) -> Result<u64> {
        self.number(match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        })
    }

    /// The most bytes ever charged to it, page cache included.
    pub fn peak(&self) -> Result<u64> {
        self.number(match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        })
    }

    /// Processes of this cgroup that the kernel killed for want of memory (on v2 those below it, too).
    pub fn kills(&self) -> Result<u64> {
        self.keyed(
            match self.version {
                Version::V1 => "memory.oom_control",
                Version::V2 => "memory.events",
            },
            "oom_kill",
        )
    }

    /// A figure of its `memory.stat`, such as `inactive_file`; on v1 `total_…` counts those below it, too.
    pub fn stat(&self, key: &str) -> Result<u64> {
        self.keyed("memory.stat", key)
    }

    /// Starts `command` inside the cgroup: even its first page is charged here. It dies with the calling thread.
    pub fn spawn(&self, command: &mut Command) -> Result<Child> {
        let procs = fs::OpenOptions::new().write(true).open(self.dir.join("cgroup.procs"))?;
        let procs_fd = procs.as_raw_fd();
        // SAFETY: only async-signal-safe calls (write, prctl) on a descriptor that outlives the call to `spawn`.
        unsafe {
            command.pre_exec(move || {
                let moved = libc::write(procs_fd, b"0".as_ptr().cast(), 1);
                if moved != 1 || libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        command
            .spawn()
            .with_context(|| format!("cannot start {command:?} in {}", self.dir.display()))
    }

    /// The processes in it, not those below it.
    pub fn processes(&self) -> Result<Vec<i32>> {
        let text = fs::read_to_string(self.dir.join("cgroup.procs"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {value:?} to {}", path.display()))
    }

    fn number(&self, file: &str) -> Result<u64> {
        let path = self.dir.join(file);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text.trim().parse().with_context(|| format!("{} holds {text:?}", path.display()))
    }

    fn keyed(&self, file: &str, key: &str) -> Result<u64> {
        let path = self.dir.join(file);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        let value = value.with_context(|| format!("{} has no {key}", path.display()))?;
        value.trim().parse().with_context(|| format!("{} says {key} {value}", path.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            for pid in self.processes().unwrap_or_default() {
                // SAFETY: a plain system call; the pid is of a process in a cgroup that only this test fills.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            match fs::remove_dir(&self.dir) {
                Ok(()) => return,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(error) if Instant::now() > deadline => {
                    eprintln!("cannot remove the cgroup {}: {error}", self.dir.display());
                    return;
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// Where memory cgroups can be made on this machine.
fn memory_hierarchy() -> Result<(PathBuf, Version)> {
    let mounts =
        fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let v2_has_memory = |dir: &Path| {
        fs::read_to_string(dir.join("cgroup.subtree_control")).is_ok_and(|controllers| {
            controllers.split_whitespace().any(|controller| controller == "memory")
        })
    };
    for line in mounts.lines() {
        let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
        let dir = Path::new(mount.split(' ').nth(4).unwrap_or_default());
        let mut filesystem = filesystem.split(' ');
        match filesystem.next() {
            Some("cgroup")
                if filesystem
                    .nth(1)
                    .is_some_and(|options| options.split(',').any(|o| o == "memory")) =>
            {
                return Ok((dir.to_path_buf(), Version::V1));
            }
            Some("cgroup2") if v2_has_memory(dir) => return Ok((dir.to_path_buf(), Version::V2)),
            _ => {}
        }
    }
    anyhow::bail!("no cgroup hierarchy with a memory controller is mounted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_charged_to_its_cgroup_and_killed_at_its_limit() {
        let cgroup = match Cgroup::create("self") {
            Ok(cgroup) => cgroup,
            Err(why) => return crate::skip(format_args!("{why:#}")),
        };
        cgroup.limit(16 << 20).unwrap();
        let mut hungry = Command::new("tail");
        hungry.arg("/dev/zero");
        let status = cgroup.spawn(&mut hungry).unwrap().wait().unwrap();
        assert!(!status.success());
        assert_eq!(cgroup.kills().unwrap(), 1);
        let peak = cgroup.peak().unwrap();
        assert!((15 << 20..=16 << 20).contains(&peak), "peak {peak}");
        let dir = cgroup.dir().to_path_buf();
        drop(cgroup);
        assert!(!dir.exists());
    }
}
