//! Writes a file whole or not at all; what exists and is no regular file is written to as it is.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write},
    path::Path,
};

/// Writes next to the target, syncs, and renames: a reader sees the old file or the new one.
///
/// A symbolic link stays, and its target is written. A device or a pipe stays as well: nothing but
/// the bytes goes there.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => replace(&fs::canonicalize(path)?, bytes),
        Ok(_) => File::options().write(true).open(path)?.write_all(bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::read_link(path) {
            Ok(target) => write_atomically(&folder(path).join(target), bytes),
            Err(_) => replace(path, bytes),
        },
        Err(error) => Err(error),
    }
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = folder(path);
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::fs::symlink, os::unix::fs::FileTypeExt, process::Command};

    #[test]
    fn a_link_stays_and_its_target_is_replaced_or_made() {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link"), folder.path().join("target"));
        symlink("target", &link).unwrap();
        for text in ["made", "replaced"] {
            write_atomically(&link, text.as_bytes()).unwrap();
            assert!(link.is_symlink());
            assert_eq!(fs::read_to_string(&target).unwrap(), text);
        }
    }

    #[test]
    fn a_pipe_stays_a_pipe_and_gets_the_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // Both ends, so that nobody waits should the pipe be replaced.
        let both = File::options().read(true).write(true).open(&pipe).unwrap();
        write_atomically(&pipe, b"bytes").unwrap();
        assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
        let mut found = [0; 5];
        io::Read::read_exact(&mut &both, &mut found).unwrap();
        assert_eq!(&found, b"bytes");
    }

    #[test]
    fn a_device_that_takes_nothing_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let full = folder.path().join("full");
        let made = Command::new("mknod").arg(&full).args(["c", "1", "7"]).output().unwrap();
        if !made.status.success() {
            return; // only root makes devices
        }
        write_atomically(&full, b"bytes").unwrap_err();
        assert!(fs::symlink_metadata(&full).unwrap().file_type().is_char_device());
    }
}
