//! Files that appear whole or not at all: written beside their final place, synced, renamed.
//!
//! The partial file is its own lock: whoever holds `flock` on `<file>.partial` is the one that makes
//! `<file>`; others wait and then find it done. A writer that was killed leaves a partial file that
//! the next one takes over and overwrites, so debris never piles up; one that fails removes it.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use super::{ParamsError, Progress};
use crate::device::Checkpoint;

/// How often a waiting writer looks whether its turn has come, or whether it is to stop.
const TURN: Duration = Duration::from_millis(50);

/// A file being written. Removed when dropped before [`commit`](Self::commit).
pub(crate) struct AtomicFile {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    committed: bool,
}

impl AtomicFile {
    /// Waits until nobody else writes `path`, then begins to. Whoever wants to keep what the other
    /// one wrote looks at `path` now and drops this.
    pub fn begin(path: &Path, checkpoint: &dyn Checkpoint) -> Result<Self, ParamsError> {
        Self::begin_shown(path, &mut |_| {}, checkpoint)
    }

    /// The same, and shows whom it waits for.
    pub fn begin_shown(
        path: &Path,
        progress: &mut dyn FnMut(Progress),
        checkpoint: &dyn Checkpoint,
    ) -> Result<Self, ParamsError> {
        loop {
            checkpoint.check()?;
            if let Some(this) = Self::try_begin(path)? {
                return Ok(this);
            }
            let who = match writer(&partial(path)) {
                Some(pid) => format!("process {pid}"),
                None => "another process".into(),
            };
            let step = format!("waiting for {who}, which writes {}", path.display()).into();
            progress(Progress { step, done: 0, total: 0 });
            thread::sleep(TURN);
        }
    }

    /// Begins to write `path` unless somebody else does.
    pub fn try_begin(path: &Path) -> Result<Option<Self>, ParamsError> {
        let partial = partial(path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NONBLOCK)
            .open(&partial)
            .map_err(ParamsError::io(&partial, "create"))?;
        match file.try_lock() {
            Ok(()) if is_still(&file, &partial)? => {
                let this = Self { file, partial, path: path.into(), committed: false };
                this.file.set_len(0).map_err(ParamsError::io(&this.partial, "truncate"))?;
                Ok(Some(this))
            }
            // The one who held it has renamed or removed it: this file has no name any more.
            Ok(()) | Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(ParamsError::io(&partial, "lock")(e)),
        }
    }

    /// Takes the disk space now rather than failing at the end of an hour's work.
    pub fn reserve(&self, bytes: u64) -> Result<(), ParamsError> {
        // SAFETY: only takes integers; the descriptor is open as long as `self` is.
        let refused =
            unsafe { libc::fallocate(self.file.as_raw_fd(), 0, 0, bytes as libc::off_t) } != 0;
        let error = io::Error::last_os_error();
        // Not every file system can; then the writing will tell.
        if refused && error.raw_os_error() != Some(libc::EOPNOTSUPP) {
            return Err(ParamsError::space(&self.partial, bytes)(error));
        }
        self.file.set_len(bytes).map_err(ParamsError::space(&self.partial, bytes))
    }

    /// Its bytes are on disk and `path` is the new file when this returns.
    pub fn commit(mut self) -> Result<(), ParamsError> {
        self.file.sync_all().map_err(ParamsError::io(&self.partial, "sync"))?;
        fs::rename(&self.partial, &self.path).map_err(ParamsError::io(&self.path, "rename"))?;
        self.committed = true;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(ParamsError::io(folder, "sync"))
    }

    /// The file under its temporary name, for messages.
    pub fn partial(&self) -> &Path {
        &self.partial
    }

    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        // Still locked, so this is ours. Nothing can be done about a failure here; the next writer
        // takes the leftover over.
        if !self.committed {
            let _ = fs::remove_file(&self.partial);
        }
    }
}

fn partial(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    partial.into()
}

/// The process that holds the lock on a file, as far as the kernel shows it: a line a lock, of which the
/// fifth field is the process and the sixth ends with the file's number.
fn writer(partial: &Path) -> Option<u32> {
    let inode = fs::metadata(partial).ok()?.ino().to_string();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = fields[..] else { return None };
        (file.rsplit(':').next()? == inode).then(|| pid.parse().ok())?
    })
}

/// Whether `path` still names the open `file`.
fn is_still(file: &File, path: &Path) -> Result<bool, ParamsError> {
    let ours = file.metadata().map_err(ParamsError::io(path, "stat"))?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(ParamsError::io(path, "stat")(e)),
    }
}
