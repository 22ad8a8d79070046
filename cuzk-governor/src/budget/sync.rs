//! The three things the ledger needs of a threading library, so that loom can stand in for
//! them when the wait path is model-checked (`RUSTFLAGS="--cfg loom"`).

pub(super) use imp::*;

#[cfg(not(loom))]
mod imp {
    use std::time::Instant;

    pub use parking_lot::{Condvar, Mutex, MutexGuard};
    pub use std::sync::Arc;

    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock()
    }

    /// Waits for a notification, at most until `until`.
    pub fn wait<'a, T>(
        condvar: &Condvar,
        mut guard: MutexGuard<'a, T>,
        until: Instant,
    ) -> MutexGuard<'a, T> {
        condvar.wait_until(&mut guard, until);
        guard
    }
}

#[cfg(loom)]
mod imp {
    use std::time::Instant;

    pub use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

    pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no test panics with the ledger locked")
    }

    /// The model has no clock: nothing but a notification ends a wait, so that a lost one is
    /// found as a deadlock.
    pub fn wait<'a, T>(
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        _until: Instant,
    ) -> MutexGuard<'a, T> {
        condvar.wait(guard).expect("no test panics with the ledger locked")
    }
}
