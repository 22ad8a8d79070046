//! How many files the daemon may have open: connections, parameters, sensors. The soft limit that most
//! systems start a process with (1024) is kept low for programs that use select(2); this is none.

use std::io;

/// Enough for every connection, and for those that the kernel holds before they are accepted.
const ENOUGH: libc::rlim_t = 65_536;

/// Raises the soft limit as far as the hard one allows and sense demands, and logs both.
pub fn raise_limit() {
    match raised() {
        Ok((before, now)) => {
            tracing::info!(event = "open_files", limit_before = before, limit = now)
        }
        Err(error) => tracing::warn!(event = "open_files", %error, "the limit stays as it is"),
    }
}

/// The soft limit before and afterwards.
fn raised() -> io::Result<(libc::rlim_t, libc::rlim_t)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one rlimit, which is there.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let before = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max.min(ENOUGH).max(before);
    // SAFETY: reads one rlimit.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((before, limit.rlim_cur))
}
