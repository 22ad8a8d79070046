//! A small kernel file, held open and read again and again without allocating.
//!
//! Assumes what kernfs and procfs promise: a `pread` at offset 0 makes the contents anew, and one
//! that fills less than the buffer gave all of it. A file may vanish and come back (a cgroup is
//! removed, PSI is switched off): that is an answer, `None`, said once each way, not an error. Whether a
//! file that is there and cannot be read, or not understood, is one is for the caller to say: he reads
//! a limit with [`KernelFile::read`], and what he can do without with [`KernelFile::read_optional`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::SensorError;

/// Enough for any file read here but the `memory.stat` of a newer kernel; grows when it is not.
const FIRST_BUFFER: usize = 4096;

#[derive(Debug)]
pub(crate) struct KernelFile {
    path: PathBuf,
    file: Option<File>,
    buffer: Vec<u8>,
    seen: Seen,
}

/// So that every change is said, once.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    NotYet,
    Present,
    /// It never was there.
    Missing,
    Lost,
    /// It is there and is no use.
    Broken,
}

impl KernelFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, file: None, buffer: vec![0; FIRST_BUFFER], seen: Seen::NotYet }
    }

    /// Whether the file was there once and is not now.
    pub(crate) fn is_lost(&self) -> bool {
        self.seen == Seen::Lost
    }

    /// The contents now; `None` while there is no such file or the kernel does not support it.
    pub(crate) fn read(&mut self) -> Result<Option<Contents<'_>>, SensorError> {
        let length = self.load()?;
        self.note_presence(length.is_some());
        Ok(length.map(|length| self.contents(length)))
    }

    /// What `parse` makes of the contents now, for a file that can be done without: whatever keeps
    /// it from being read or understood, the answer is `None`, with a warning when that begins.
    pub(crate) fn read_optional<T>(
        &mut self,
        parse: impl FnOnce(&Contents<'_>) -> Result<T, SensorError>,
    ) -> Option<T> {
        let parsed = self
            .load()
            .and_then(|length| length.map(|length| parse(&self.contents(length))).transpose());
        match parsed {
            Ok(parsed) => {
                self.note_presence(parsed.is_some());
                parsed
            }
            Err(error) => {
                if std::mem::replace(&mut self.seen, Seen::Broken) != Seen::Broken {
                    tracing::warn!(%error, "memory file of no use: going on without it");
                }
                None
            }
        }
    }

    /// Like [`Self::read`] for a file without which nothing can be said.
    pub(crate) fn read_required(&mut self) -> Result<Contents<'_>, SensorError> {
        match self.load()? {
            Some(length) => Ok(self.contents(length)),
            None => Err(self.unreadable(io::Error::from(io::ErrorKind::NotFound))),
        }
    }

    fn contents(&self, length: usize) -> Contents<'_> {
        Contents { path: &self.path, bytes: &self.buffer[..length] }
    }

    fn load(&mut self) -> Result<Option<usize>, SensorError> {
        let was_held = self.file.is_some();
        let mut read = self.fill();
        if was_held && read.is_err() {
            // The held file is of a removed cgroup; another of its name may be there already.
            read = self.fill();
        }
        match read {
            Ok(length) => Ok(Some(length)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(self.unreadable(error)),
        }
    }

    fn unreadable(&self, source: io::Error) -> SensorError {
        SensorError::Unreadable { path: self.path.clone(), source }
    }

    fn fill(&mut self) -> io::Result<usize> {
        let file = match self.file.take() {
            Some(file) => file,
            None => File::open(&self.path)?,
        };
        let mut length = 0;
        loop {
            let read = file.read_at(&mut self.buffer[length..], length as u64)?;
            length += read;
            if length < self.buffer.len() {
                break;
            }
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
        self.file = Some(file);
        Ok(length)
    }

    fn note_presence(&mut self, is_there: bool) {
        let path = self.path.display();
        let now = match (self.seen, is_there) {
            (Seen::NotYet | Seen::Present, true) => Seen::Present,
            (_, true) => {
                tracing::info!(%path, "memory file is back");
                Seen::Present
            }
            (Seen::NotYet, false) => {
                tracing::info!(%path, "memory file missing: going on without it");
                Seen::Missing
            }
            (Seen::Present | Seen::Broken, false) => {
                tracing::warn!(%path, "memory file lost: going on without it");
                Seen::Lost
            }
            (absent, false) => absent,
        };
        self.seen = now;
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP))
}

/// What a file held; knows its path, for errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contents<'a> {
    path: &'a Path,
    bytes: &'a [u8],
}

impl<'a> Contents<'a> {
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The file as one number.
    pub(crate) fn number(&self) -> Result<u64, SensorError> {
        number(self.bytes).ok_or_else(|| self.malformed("a number"))
    }

    /// The file as a limit in bytes: a number, or `max` for none.
    pub(crate) fn limit(&self) -> Result<Option<u64>, SensorError> {
        if self.bytes.trim_ascii() == b"max" {
            return Ok(None);
        }
        number(self.bytes).map(Some).ok_or_else(|| self.malformed("a number of bytes or `max`"))
    }

    /// The number on the line that begins with `key`, in bytes where the line says `kB`.
    pub(crate) fn field(&self, key: &str) -> Option<u64> {
        field(self.bytes, key)
    }

    /// Like [`Self::field`] where the kernel always has the line.
    pub(crate) fn required(&self, key: &'static str) -> Result<u64, SensorError> {
        self.field(key).ok_or_else(|| self.malformed(key))
    }

    pub(crate) fn malformed(&self, expected: &'static str) -> SensorError {
        let found = String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(80)]).into_owned();
        SensorError::Malformed { path: self.path.to_path_buf(), found, expected }
    }
}

/// The smaller of two limits that may be none.
pub(crate) fn tighter(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

fn field(text: &[u8], key: &str) -> Option<u64> {
    let rest = text.split(|&byte| byte == b'\n').find_map(|line| {
        let rest = line.strip_prefix(key.as_bytes())?;
        matches!(rest.first()?, b' ' | b':' | b'\t').then_some(rest)
    })?;
    let mut words = rest
        .split(|byte| byte.is_ascii_whitespace() || *byte == b':')
        .filter(|word| !word.is_empty());
    let value = number(words.next()?)?;
    match words.next() {
        Some(b"kB") => value.checked_mul(1024),
        _ => Some(value),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::listener::Listener;

    #[test]
    fn a_key_is_matched_whole() {
        let text = b"oom_kill_disable 1\nunder_oom 0\noom_kill 7\n";
        assert_eq!(field(text, "oom_kill"), Some(7));
        assert_eq!(field(text, "oom"), None);
    }

    #[test]
    fn kilobytes_become_bytes_and_words_are_no_numbers() {
        assert_eq!(field(b"MemTotal:       24684084 kB\n", "MemTotal"), Some(24684084 * 1024));
        assert_eq!(field(b"Max data size  unlimited unlimited bytes\n", "Max data size"), None);
        assert_eq!(field(b"Max data size  4096 unlimited bytes\n", "Max data size"), Some(4096));
    }

    #[test]
    fn bytes_that_are_no_text_disturb_no_other_line() {
        assert_eq!(field(b"Name:\t\xff\xfe\nRssAnon:\t     116 kB\n", "RssAnon"), Some(116 * 1024));
    }

    #[test]
    fn a_file_longer_than_the_buffer_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.stat");
        let filler = "filler 1\n".repeat(FIRST_BUFFER);
        std::fs::write(&path, format!("{filler}shmem 42\n")).unwrap();
        let mut file = KernelFile::new(path);
        assert_eq!(file.read().unwrap().unwrap().field("shmem"), Some(42));
        assert_eq!(file.read().unwrap().unwrap().field("shmem"), Some(42));
    }

    #[test]
    fn a_file_that_vanishes_is_absent_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.current");
        let mut file = KernelFile::new(path.clone());
        assert!(file.read().unwrap().is_none());
        assert!(!file.is_lost(), "what never was is not lost");
        std::fs::write(&path, "5\n").unwrap();
        assert_eq!(file.read().unwrap().unwrap().number().unwrap(), 5);
        // A held file of a removed cgroup answers ENODEV; nothing on a plain disk does, so the
        // real kernel's tests cover that way. Here the file is gone before it was opened again.
        std::fs::remove_file(&path).unwrap();
        file.file = None;
        assert!(file.read().unwrap().is_none());
        assert!(file.is_lost());
        std::fs::write(&path, "6\n").unwrap();
        assert_eq!(file.read().unwrap().unwrap().number().unwrap(), 6);
        assert!(!file.is_lost());
    }

    #[test]
    fn every_change_of_an_optional_file_is_said_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("memory.peak");
        let mut file = KernelFile::new(path.clone());
        let levels = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&levels);
        let hears =
            move |event: &tracing::Event<'_>| log.lock().unwrap().push(*event.metadata().level());
        let _guard = tracing::subscriber::set_default(Listener(hears));
        let said = || std::mem::take(&mut *levels.lock().unwrap());
        let mut twice = || {
            file.file = None;
            file.read_optional(|contents| contents.number());
            file.read_optional(|contents| contents.number())
        };
        assert_eq!((twice(), said()), (None, vec![tracing::Level::INFO]), "missing");
        for (garbage, number) in [("", "5\n"), ("lots\n", "6\n")] {
            std::fs::write(&path, garbage).unwrap();
            assert_eq!((twice(), said()), (None, vec![tracing::Level::WARN]));
            std::fs::write(&path, number).unwrap();
            assert_eq!((twice().is_some(), said()), (true, vec![tracing::Level::INFO]));
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!((twice(), said()), (None, vec![tracing::Level::WARN]), "lost");
    }
}
