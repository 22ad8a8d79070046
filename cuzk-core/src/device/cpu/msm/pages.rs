//! The pages that points lie in, usually a mapped file's: read ahead of the multi-exponentiation. Who owns
//! them is told what has been read, to drop it where memory is short.
//!
//! Reading ahead is only a wish, whatever the kernel makes of it.

use std::mem::size_of_val;

use crate::device::Checkpoint;

/// `points` chunk by chunk, each with the next one already on its way, and the checkpoint told of it once
/// the next one is asked for.
pub(super) fn chunks<'a, P>(
    points: &'a [P],
    chunk: usize,
    checkpoint: &'a dyn Checkpoint,
) -> impl Iterator<Item = &'a [P]> {
    let ahead = points.chunks(chunk).skip(1).map(Some).chain([None]);
    points.chunks(chunk).zip(ahead).enumerate().map(move |(i, (points, ahead))| {
        if let Some(ahead) = ahead {
            read_ahead(ahead);
        }
        if i > 0 {
            checkpoint.has_read((i - 1) * chunk..i * chunk);
        }
        points
    })
}

fn read_ahead<P>(points: &[P]) {
    const PAGE: usize = 4096;
    let start = points.as_ptr() as usize;
    let (first, end) = (start.next_multiple_of(PAGE), start + size_of_val(points));
    if first < end {
        // SAFETY: the range lies inside memory that is borrowed, and the advice changes nothing of it.
        unsafe { libc::madvise(first as *mut libc::c_void, end - first, libc::MADV_WILLNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Interrupted, Unhindered};
    use parking_lot::Mutex;
    use std::ops::Range;

    #[derive(Default)]
    struct Told(Mutex<Vec<Range<usize>>>);

    impl Checkpoint for Told {
        fn check(&self) -> Result<(), Interrupted> {
            Ok(())
        }

        fn has_read(&self, points: Range<usize>) {
            self.0.lock().push(points);
        }
    }

    #[test]
    fn every_point_comes_once_in_order_and_the_owner_is_told_what_was_read() {
        let points: Vec<u64> = (0..10_000).collect();
        let told = Told::default();
        let seen: Vec<u64> = chunks(&points, 4096, &told).flatten().copied().collect();
        assert_eq!(seen, points);
        assert_eq!(*told.0.lock(), [0..4096, 4096..8192]);
        assert_eq!(chunks(&points[..0], 4096, &Unhindered).count(), 0);
    }
}
