//! Real memory: mappings with every page touched, what of it this process has, and page cache.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// Memory of a given kind, every page of it touched.
#[derive(Debug)]
pub struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only ever unmapped.
unsafe impl Send for Mapping {}

impl Mapping {
    /// `kind` is `MAP_PRIVATE` or `MAP_SHARED`.
    ///
    /// # Panics
    /// When the kernel refuses the mapping: a test cannot go on without it.
    pub fn touched(bytes: u64, kind: libc::c_int) -> Self {
        let bytes = bytes as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping anywhere; the result is checked.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, access, kind | libc::MAP_ANONYMOUS, -1, 0)
        };
        assert_ne!(address, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        let address = NonNull::new(address.cast::<u8>()).expect("a mapping is never at 0");
        for offset in (0..bytes).step_by(PAGE) {
            // SAFETY: within the mapping just made, which nobody else knows.
            unsafe { address.as_ptr().add(offset).write_volatile(1) };
        }
        Self { address, bytes }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us in one piece, and no reference into it exists.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}

/// This process's resident memory in bytes, from `/proc/self/status`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Resident {
    /// Anonymous memory.
    pub anonymous: u64,
    /// All of it, mapped files included.
    pub all: u64,
}

/// What is resident now.
pub fn resident() -> Resident {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
            .map_or(0, |kib| kib << 10)
    };
    Resident { anonymous: field("RssAnon:"), all: field("VmRSS:") }
}

/// Has the kernel forget a file's pages, as far as nobody maps them.
///
/// # Errors
/// The kernel's.
pub fn forget(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    // SAFETY: a call on an open descriptor, without pointers.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
