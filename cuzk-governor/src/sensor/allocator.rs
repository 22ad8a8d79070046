//! What the C allocator of this process holds, where it tells (glibc).
//!
//! glibc counts freed pages as its own even after `malloc_trim` gave them back to the kernel, so
//! `free` is never stated above what is resident, and is an upper bound even then.

use super::{Allocator, Resident};

/// The allocator's figures now. Takes each arena's lock in turn, as an allocation does.
#[cfg(target_env = "gnu")]
pub(crate) fn read(resident: &Resident) -> Allocator {
    // SAFETY: takes no arguments, returns plain numbers, and locks what it reads.
    let info = unsafe { libc::mallinfo2() };
    Allocator {
        in_use: (info.uordblks + info.hblkhd) as u64,
        free: (info.fordblks as u64).min(resident.anon),
    }
}

/// Other allocators keep their figures to themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn read(_resident: &Resident) -> Allocator {
    Allocator::default()
}
