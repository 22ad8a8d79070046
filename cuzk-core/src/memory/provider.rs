//! Where a chunk's pages come from. A provider makes reserved address space usable and gives its
//! pages back; the pool decides when. A CUDA provider registers the same range with the driver.

use std::io;

/// Commits and releases page ranges inside address space that the pool has reserved.
pub trait PageProvider: Send + Sync + std::fmt::Debug {
    /// A name for status and logs.
    fn name(&self) -> &'static str;

    /// Makes `bytes` at `address` readable and writable, and zero.
    ///
    /// # Errors
    /// The kernel's or driver's answer; the range is then as it was before.
    ///
    /// # Safety
    /// The range is page-aligned, reserved by the caller, not committed, and nobody else's.
    unsafe fn commit(&self, address: *mut u8, bytes: usize) -> io::Result<()>;

    /// Gives the pages back to the kernel; the range stays reserved.
    ///
    /// # Errors
    /// The kernel's answer; the range then counts as committed still.
    ///
    /// # Safety
    /// The range was committed by this provider and nobody uses it any more.
    unsafe fn release(&self, address: *mut u8, bytes: usize) -> io::Result<()>;
}

/// Ordinary anonymous memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

/// Anonymous memory that the kernel may neither swap nor reclaim.
#[derive(Debug, Clone, Copy, Default)]
pub struct Mlocked;

impl PageProvider for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    unsafe fn commit(&self, address: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: the caller owns the reserved range; changing its protection touches nothing else.
        check(unsafe {
            libc::mprotect(address.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE)
        })?;
        // Wishes both, refused by kernels that cannot: huge pages, since transforms walk the whole
        // range; and all pages now, so that what the ledger calls resident is.
        // SAFETY: as above.
        unsafe {
            libc::madvise(address.cast(), bytes, libc::MADV_HUGEPAGE);
            libc::madvise(address.cast(), bytes, libc::MADV_POPULATE_WRITE);
        }
        Ok(())
    }

    unsafe fn release(&self, address: *mut u8, bytes: usize) -> io::Result<()> {
        // A fresh mapping in place of the old one: its pages are gone when the call returns, and the
        // range is inaccessible again.
        // SAFETY: the range lies inside the pool's own reservation and nobody refers to it any more.
        let mapped = unsafe {
            libc::mmap(
                address.cast(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if mapped == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(())
        }
    }
}

impl PageProvider for Mlocked {
    fn name(&self) -> &'static str {
        "mlocked"
    }

    unsafe fn commit(&self, address: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: the caller's promise is the same.
        unsafe { Plain.commit(address, bytes) }?;
        // SAFETY: the range is committed.
        check(unsafe { libc::mlock(address.cast(), bytes) }).inspect_err(|_| {
            // SAFETY: committed above, and not handed out yet.
            let _ = unsafe { Plain.release(address, bytes) };
        })
    }

    unsafe fn release(&self, address: *mut u8, bytes: usize) -> io::Result<()> {
        // SAFETY: the caller's promise is the same. Replacing a mapping unlocks it.
        unsafe { Plain.release(address, bytes) }
    }
}

/// Where buffers come from on this machine: locked memory where there is swap that could take them and
/// the kernel allows it, ordinary memory elsewhere.
pub fn best_provider() -> Box<dyn PageProvider> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() > 1 && may_lock() {
        Box::new(Mlocked)
    } else {
        Box::new(Plain)
    }
}

/// Whether this process may lock as much as it likes.
fn may_lock() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    told == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}

/// A system call's result, where 0 is success.
pub(crate) fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
