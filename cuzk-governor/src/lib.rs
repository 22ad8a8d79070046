//! Knows a process's live memory headroom, and decides what to do about it.
