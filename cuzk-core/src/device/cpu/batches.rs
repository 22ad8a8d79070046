//! Work on all threads of the current rayon pool, in batches short enough to be stopped between.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use blstrs::Scalar;
use rayon::prelude::*;

use crate::device::{Checkpoint, Interrupted};

/// Scalars that one worker gets through in a batch: some 5 to 50 ms of work by kernel and pass, so
/// that a checkpoint comes often and waiting for the last worker of a batch costs little.
const SCALARS_PER_BATCH: usize = 1 << 18;

/// Scalars of a chunk in [`in_chunks`]: 128 KiB.
const CHUNK: usize = 1 << 12;

/// Runs `work` for every item below `items`, each once and on any worker; `scalars` is an item's size.
///
/// The checkpoint is asked on the calling thread while no worker is busy, so it may block. A caller
/// that is itself a worker of the pool blocks that worker.
pub(super) fn in_batches<W: Send>(
    workers: &mut [W],
    items: usize,
    scalars: usize,
    checkpoint: &dyn Checkpoint,
    work: impl Fn(&mut W, usize) + Sync,
) -> Result<(), Interrupted> {
    let batch = (SCALARS_PER_BATCH / scalars).max(1) * workers.len();
    for start in (0..items).step_by(batch) {
        checkpoint.check()?;
        let end = items.min(start + batch);
        let next = AtomicUsize::new(start);
        workers.par_iter_mut().for_each(|worker| loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            if item >= end {
                break;
            }
            work(worker, item);
        });
    }
    Ok(())
}

/// Runs `work` on every chunk of `x`, with the chunk's range of positions.
///
/// # Errors
/// As [`in_batches`], whose remark on the checkpoint holds here too.
pub(super) fn in_chunks(
    x: &mut [Scalar],
    checkpoint: &dyn Checkpoint,
    work: impl Fn(&mut [Scalar], Range<usize>) + Sync,
) -> Result<(), Interrupted> {
    let batch = SCALARS_PER_BATCH * rayon::current_num_threads();
    for (i, x) in x.chunks_mut(batch).enumerate() {
        checkpoint.check()?;
        x.par_chunks_mut(CHUNK).enumerate().for_each(|(j, x)| {
            let start = i * batch + j * CHUNK;
            work(x, start..start + x.len());
        });
    }
    Ok(())
}

/// One `make()` for every thread of the current pool.
pub(super) fn workers<W>(make: impl Fn() -> W) -> Vec<W> {
    (0..rayon::current_num_threads()).map(|_| make()).collect()
}

/// A vector that workers share, each touching its own places.
#[derive(Clone, Copy)]
pub(super) struct Shared(*mut Scalar);

// SAFETY: a `Shared` is only an address; whoever dereferences it vouches for the place.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn new(data: &mut [Scalar]) -> Self {
        Self(data.as_mut_ptr())
    }

    /// The address of element `i`.
    ///
    /// # Safety
    /// `i` is within the vector.
    pub(super) unsafe fn at(self, i: usize) -> *mut Scalar {
        // SAFETY: the caller vouches for `i`.
        unsafe { self.0.add(i) }
    }
}
