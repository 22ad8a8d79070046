//! The pool of fixed-size chunks from which every large buffer is made.
//!
//! Address space is reserved once; a chunk is committed when a buffer needs it. Every committed chunk
//! owns its part of the memory budget, idle or not: the ledger cannot call a chunk free that the
//! kernel still counts. A buffer is a run of neighbouring chunks, so kernels see one slice.
//!
//! A chunk that comes back leaves the process at once, unless [`PinnedPool::keep_idle`] was called:
//! then it stays, as long as nobody waits for memory, and what is more than the demand of the last
//! minutes leaves little by little in [`PinnedPool::settle`], off the way of those who work.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blstrs::Scalar;
use cuzk_governor::budget::{MemoryBudget, Reservation, Usage};
use parking_lot::Mutex;

use super::PageProvider;

/// Released in one [`PinnedPool::settle`] at least, where so much is too much.
const SETTLE_BYTES: u64 = 64 << 20;

/// A pool of chunks of `chunk_bytes` each.
pub struct PinnedPool {
    base: NonNull<u8>,
    chunk_bytes: usize,
    provider: Box<dyn PageProvider>,
    state: Mutex<State>,
}

// SAFETY: `base` is address space that only the pool hands out, in disjoint pieces under its lock.
unsafe impl Send for PinnedPool {}
// SAFETY: as above.
unsafe impl Sync for PinnedPool {}

struct State {
    chunks: Vec<Chunk>,
    /// The ledger, when idle chunks are to be kept.
    keep_for: Option<MemoryBudget>,
    demand: Demand,
}

/// What was in use at most, in the last minutes.
#[derive(Debug)]
struct Demand {
    since: Instant,
    /// The most bytes used in each [`Demand::PIECE`], by its number modulo their count.
    most: [u64; Self::PIECES],
    /// The number of the newest piece.
    newest: u64,
}

impl Demand {
    const PIECE: Duration = Duration::from_secs(15);
    const PIECES: usize = 8;

    fn new() -> Self {
        Self { since: Instant::now(), most: [0; Self::PIECES], newest: 0 }
    }

    /// Takes in what is used `now`; the most of the last two minutes.
    fn enter(&mut self, used: u64, now: Instant) -> u64 {
        let piece = now.duration_since(self.since).as_secs() / Self::PIECE.as_secs();
        for passed in self.newest + 1..=piece.min(self.newest + Self::PIECES as u64) {
            self.most[passed as usize % Self::PIECES] = 0;
        }
        self.newest = piece;
        let most = &mut self.most[piece as usize % Self::PIECES];
        *most = used.max(*most);
        self.most.into_iter().max().unwrap_or(0)
    }
}

#[derive(Debug)]
enum Chunk {
    /// Reserved address space only.
    Free,
    /// Committed, in nobody's use.
    Idle(Reservation),
    /// Part of a buffer.
    Used(Reservation),
}

/// Why a buffer cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The reservation that was to pay for the buffer is too small.
    #[error("a buffer of {asked} bytes was asked for with only {reserved} bytes reserved")]
    NotReserved {
        /// Bytes of the buffer, in whole chunks.
        asked: u64,
        /// Bytes left in the reservation.
        reserved: u64,
    },
    /// No run of neighbouring chunks is long enough.
    #[error("no {asked} bytes in one piece are left in the pool's address space of {space} bytes")]
    NoRoom {
        /// Bytes of the buffer, in whole chunks.
        asked: u64,
        /// The pool's size.
        space: u64,
    },
    /// The kernel or driver refused.
    #[error("{provider} memory: {asked} bytes were refused: {source}")]
    Refused {
        /// Where pages come from.
        provider: &'static str,
        /// Bytes of the chunk.
        asked: u64,
        /// Its answer.
        source: io::Error,
    },
}

/// What the pool holds, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStatus {
    /// In buffers.
    pub used: u64,
    /// Committed, and in no buffer.
    pub idle: u64,
}

impl PinnedPool {
    /// A pool of at most `space` bytes of address space, in chunks of `chunk_bytes` (a multiple of
    /// the page size).
    ///
    /// # Errors
    /// When not even the address space can be had (`RLIMIT_AS`).
    pub fn new(
        space: u64,
        chunk_bytes: usize,
        provider: Box<dyn PageProvider>,
    ) -> io::Result<Arc<Self>> {
        let count = (space as usize).div_ceil(chunk_bytes).max(1);
        // SAFETY: a new private mapping, without access: it touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * chunk_bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let base = match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => base,
            _ => return Err(io::Error::last_os_error()),
        };
        let chunks = (0..count).map(|_| Chunk::Free).collect();
        let state = Mutex::new(State { chunks, keep_for: None, demand: Demand::new() });
        Ok(Arc::new(Self { base, chunk_bytes, provider, state }))
    }

    /// `bytes` in whole chunks: what a buffer of that size takes from the budget.
    pub fn rounded(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.chunk_bytes as u64)
    }

    /// A buffer of `len` scalars, all zero, paid for from `from`.
    ///
    /// # Errors
    /// [`PoolError`]. Chunks committed by then are idle in the pool, with their part of `from`.
    pub fn scalars(
        self: &Arc<Self>,
        len: usize,
        from: &mut Reservation,
    ) -> Result<ScalarBuf, PoolError> {
        let bytes = (len * size_of::<Scalar>()).max(1);
        let count = bytes.div_ceil(self.chunk_bytes);
        let asked = (count * self.chunk_bytes) as u64;
        if from.bytes() < asked {
            return Err(PoolError::NotReserved { asked, reserved: from.bytes() });
        }
        let mut state = self.state.lock();
        let space = (state.chunks.len() * self.chunk_bytes) as u64;
        let first = find_run(&state.chunks, count).ok_or(PoolError::NoRoom { asked, space })?;
        let mut reused = vec![];
        for i in first..first + count {
            let chunk = std::mem::replace(&mut state.chunks[i], Chunk::Free);
            let reservation = match chunk {
                Chunk::Idle(reservation) => {
                    reused.push(i);
                    reservation
                }
                Chunk::Free | Chunk::Used(_) => match self.commit(i, from) {
                    Ok(reservation) => reservation,
                    Err(why) => {
                        make_idle(&mut state, first..i);
                        return Err(why);
                    }
                },
            };
            state.chunks[i] = Chunk::Used(reservation);
        }
        drop(state);
        for i in &reused {
            // The chunk's own reservation pays for it already: the buyer's share is given back.
            from.release(self.chunk_bytes as u64);
            // SAFETY: a committed chunk that is ours now.
            unsafe { self.chunk(*i).write_bytes(0, self.chunk_bytes) };
        }
        Ok(ScalarBuf { pool: Arc::clone(self), first, count, len })
    }

    /// Returns up to `bytes` of idle chunks to the kernel, in whole chunks. Returns the bytes released.
    pub fn release_idle(&self, bytes: u64) -> u64 {
        let mut released = 0;
        let mut state = self.state.lock();
        for i in (0..state.chunks.len()).rev() {
            if released >= bytes {
                break;
            }
            if !matches!(state.chunks[i], Chunk::Idle(_)) {
                continue;
            }
            // SAFETY: committed by this provider, and in no buffer.
            match unsafe { self.provider.release(self.chunk(i), self.chunk_bytes) } {
                Ok(()) => {
                    state.chunks[i] = Chunk::Free; // its reservation ends here, its memory is gone
                    released += self.chunk_bytes as u64;
                }
                Err(error) => tracing::warn!(%error, chunk = i, "pool.release_refused"),
            }
        }
        released
    }

    /// Keeps chunks that come back for the next buffer from now on, while nobody waits for memory of
    /// `budget`. Somebody must call [`PinnedPool::settle`] now and then.
    pub fn keep_idle(&self, budget: MemoryBudget) {
        self.state.lock().keep_for = Some(budget);
    }

    /// Releases some of the idle chunks that the demand of the last minutes does not call for.
    /// Returns what the pool holds then.
    pub fn settle(&self) -> PoolStatus {
        let surplus = {
            let mut state = self.state.lock();
            let PoolStatus { used, idle } = self.sum(&state);
            let target = state.demand.enter(used, Instant::now()) - used;
            idle.saturating_sub(target)
        };
        self.release_idle(surplus.min(SETTLE_BYTES.max(surplus / 4)));
        self.status()
    }

    /// How many chunks so many bytes are.
    pub fn chunks(&self, bytes: u64) -> u64 {
        bytes / self.chunk_bytes as u64
    }

    /// What the pool holds now.
    pub fn status(&self) -> PoolStatus {
        self.sum(&self.state.lock())
    }

    /// Where the pages come from.
    pub fn provider(&self) -> &'static str {
        self.provider.name()
    }

    fn sum(&self, state: &State) -> PoolStatus {
        let bytes = |count: usize| (count * self.chunk_bytes) as u64;
        let of = |is: fn(&Chunk) -> bool| bytes(state.chunks.iter().filter(|c| is(c)).count());
        PoolStatus {
            used: of(|chunk| matches!(chunk, Chunk::Used(_))),
            idle: of(|chunk| matches!(chunk, Chunk::Idle(_))),
        }
    }

    fn commit(&self, i: usize, from: &mut Reservation) -> Result<Reservation, PoolError> {
        let asked = self.chunk_bytes as u64;
        // SAFETY: chunk `i` is reserved, uncommitted, and nobody else's under the lock.
        unsafe { self.provider.commit(self.chunk(i), self.chunk_bytes) }.map_err(|source| {
            PoolError::Refused { provider: self.provider.name(), asked, source }
        })?;
        let reserved = from.bytes();
        let mut own = from.split(asked).ok_or(PoolError::NotReserved { asked, reserved })?;
        own.report_resident(asked);
        Ok(own)
    }

    fn give_back(&self, run: std::ops::Range<usize>) {
        let bytes = (run.len() * self.chunk_bytes) as u64;
        let mut state = self.state.lock();
        let used = self.sum(&state).used;
        state.demand.enter(used, Instant::now());
        make_idle(&mut state, run);
        let budget = state.keep_for.clone();
        drop(state);
        let is_short = |usage: Usage| usage.waiting > 0 || usage.reserved > usage.total;
        if budget.is_none_or(|budget| is_short(budget.usage())) {
            self.release_idle(bytes);
        }
    }

    fn chunk(&self, i: usize) -> *mut u8 {
        // SAFETY: `i` is below the number of chunks, so the address lies in the reserved space.
        unsafe { self.base.as_ptr().add(i * self.chunk_bytes) }
    }
}

impl Drop for PinnedPool {
    fn drop(&mut self) {
        let bytes = self.state.get_mut().chunks.len() * self.chunk_bytes;
        // SAFETY: no buffer is left (each holds the pool), and the space is the pool's own.
        unsafe { libc::munmap(self.base.as_ptr().cast(), bytes) };
    }
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (provider, status) = (self.provider(), self.status());
        f.debug_struct("PinnedPool").field("provider", &provider).field("status", &status).finish()
    }
}

fn make_idle(state: &mut State, run: std::ops::Range<usize>) {
    for chunk in &mut state.chunks[run] {
        if let Chunk::Used(reservation) = std::mem::replace(chunk, Chunk::Free) {
            *chunk = Chunk::Idle(reservation);
        }
    }
}

/// The first run of `count` chunks in no use; one that is idle already wins over a fresh one.
fn find_run(chunks: &[Chunk], count: usize) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None;
    let (mut length, mut idle) = (0, 0);
    let is_idle = |chunk: &Chunk| usize::from(matches!(chunk, Chunk::Idle(_)));
    for (i, chunk) in chunks.iter().enumerate() {
        if matches!(chunk, Chunk::Used(_)) {
            (length, idle) = (0, 0);
            continue;
        }
        length += 1;
        idle += is_idle(chunk);
        if length > count {
            idle -= is_idle(&chunks[i - count]);
        }
        if length >= count && best.is_none_or(|(most, _)| idle > most) {
            best = Some((idle, i + 1 - count));
            if idle == count {
                break;
            }
        }
    }
    best.map(|(_, first)| first)
}

/// Scalars in a run of the pool's chunks; back to the pool when dropped.
#[derive(Debug)]
pub struct ScalarBuf {
    pool: Arc<PinnedPool>,
    first: usize,
    count: usize,
    len: usize,
}

impl ScalarBuf {
    /// Shortens it to `len` scalars; its chunks stay as they are.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Deref for ScalarBuf {
    type Target = [Scalar];

    fn deref(&self) -> &[Scalar] {
        // SAFETY: the run is committed, ours alone, aligned to a page, and at least `len` scalars
        // long; it was zeroed, and all-zero bytes are the scalar zero.
        unsafe { std::slice::from_raw_parts(self.pool.chunk(self.first).cast(), self.len) }
    }
}

impl DerefMut for ScalarBuf {
    fn deref_mut(&mut self) -> &mut [Scalar] {
        // SAFETY: as above, and `&mut self` makes it exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pool.chunk(self.first).cast(), self.len) }
    }
}

impl AsMut<[Scalar]> for ScalarBuf {
    fn as_mut(&mut self) -> &mut [Scalar] {
        self
    }
}

impl Drop for ScalarBuf {
    fn drop(&mut self) {
        self.pool.give_back(self.first..self.first + self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Plain;
    use cuzk_governor::budget::{Ask, MemoryBudget};
    use ff::Field;

    const CHUNK: usize = 1 << 16;
    const SCALARS: usize = CHUNK / 32;

    fn pool(chunks: usize) -> Arc<PinnedPool> {
        PinnedPool::new((chunks * CHUNK) as u64, CHUNK, Box::new(Plain)).unwrap()
    }

    fn reserved(budget: &MemoryBudget, chunks: usize) -> Reservation {
        budget.try_reserve(Ask::new("test", (chunks * CHUNK) as u64)).unwrap()
    }

    #[test]
    fn a_released_buffer_leaves_ledger_and_pool_together() {
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let pool = pool(16);
        let mut memory = reserved(&budget, 3);
        let buffer = pool.scalars(3 * SCALARS - 1, &mut memory).unwrap();
        assert_eq!((memory.bytes(), buffer.len()), (0, 3 * SCALARS - 1));
        assert_eq!(budget.usage().reserved, 3 * CHUNK as u64);
        drop(buffer);
        assert_eq!(budget.usage().reserved, 0);
        assert_eq!(pool.status(), PoolStatus::default());
    }

    #[test]
    fn an_idle_chunk_stays_in_the_budget_and_comes_back_zeroed() {
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let pool = pool(16);
        pool.keep_idle(budget.clone());
        let mut memory = reserved(&budget, 4);
        let mut buffer = pool.scalars(2 * SCALARS, &mut memory).unwrap();
        buffer.fill(Scalar::ONE);
        drop(buffer);
        assert_eq!(pool.status(), PoolStatus { used: 0, idle: 2 * CHUNK as u64 });
        assert_eq!(budget.usage().reserved, 4 * CHUNK as u64);
        let again = pool.scalars(2 * SCALARS, &mut memory).unwrap();
        assert!(again.iter().all(|scalar| scalar.is_zero_vartime()));
        // The idle chunks pay for themselves: the buyer's two chunks went back to the budget.
        assert_eq!((memory.bytes(), budget.usage().reserved), (0, 2 * CHUNK as u64));
        drop(again);
        assert_eq!(pool.release_idle(u64::MAX), 2 * CHUNK as u64);
        assert_eq!(budget.usage().reserved, 0);
    }

    #[test]
    fn a_chunk_that_comes_back_while_somebody_waits_for_memory_leaves_at_once() {
        let budget = MemoryBudget::new(4 * CHUNK as u64);
        let pool = pool(16);
        pool.keep_idle(budget.clone());
        let buffer = pool.scalars(4 * SCALARS, &mut reserved(&budget, 4)).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.reserve(Ask::new("test", 3), deadline).unwrap());
            while budget.usage().waiting == 0 {
                std::thread::yield_now();
            }
            drop(buffer);
            assert_eq!(waiter.join().unwrap().bytes(), 3);
        });
        assert_eq!(pool.status(), PoolStatus::default());
    }

    #[test]
    fn idle_chunks_leave_when_the_demand_of_the_last_minutes_is_over() {
        let mut demand = Demand::new();
        let at = |seconds| demand_start(&demand) + Duration::from_secs(seconds);
        let [start, soon, later] = [0, 60, 121].map(at);
        assert_eq!(demand.enter(100, start), 100);
        assert_eq!(demand.enter(10, soon), 100);
        assert_eq!(demand.enter(0, later), 10);
    }

    fn demand_start(demand: &Demand) -> Instant {
        demand.since
    }

    #[test]
    fn a_buffer_that_is_not_paid_for_or_has_no_room_is_refused() {
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let pool = pool(4);
        let mut memory = reserved(&budget, 8);
        let held = pool.scalars(3 * SCALARS, &mut memory).unwrap();
        let refused = pool.scalars(2 * SCALARS, &mut memory).unwrap_err();
        assert!(matches!(refused, PoolError::NoRoom { .. }), "{refused}");
        drop(held);
        let refused = pool.scalars(SCALARS, &mut reserved(&budget, 1).split(1).unwrap());
        assert!(matches!(refused.unwrap_err(), PoolError::NotReserved { .. }));
    }

    #[test]
    fn buffers_never_overlap_whatever_the_order_of_release() {
        let budget = MemoryBudget::new(256 * CHUNK as u64);
        let pool = pool(32);
        pool.keep_idle(budget.clone());
        let mut held: Vec<(u64, ScalarBuf)> = Vec::new();
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        for step in 0..500 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let len = 1 + (random >> 33) as usize % (4 * SCALARS);
            let mut memory = reserved(&budget, 4);
            if let Ok(mut buffer) = pool.scalars(len, &mut memory) {
                buffer.fill(Scalar::from(step));
                held.push((step, buffer));
            }
            if held.len() > 5 {
                let (step, buffer) = held.swap_remove(random as usize % held.len());
                assert!(buffer.iter().all(|scalar| *scalar == Scalar::from(step)));
            }
        }
        drop(held);
        pool.release_idle(u64::MAX);
        assert_eq!(budget.usage().reserved, 0);
    }
}
