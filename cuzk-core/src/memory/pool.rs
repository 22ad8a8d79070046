//! The pool of fixed-size chunks from which every large buffer is made.
//!
//! Address space is reserved once; a chunk is committed when a buffer needs it. Every committed chunk
//! owns its part of the memory budget, idle or not: the ledger cannot call a chunk free that the
//! kernel still counts. A buffer is a run of neighbouring chunks, so kernels see one slice.
//!
//! A chunk that comes back leaves the process at once, unless [`PinnedPool::keep_idle`] was called:
//! then it stays, as long as nobody waits for memory, and what is more than the demand of the last
//! minutes leaves little by little in [`PinnedPool::settle`], off the way of those who work.
//!
//! Pages are had and given back outside the lock, which takes the kernel its time: the chunks are
//! `Moving` meanwhile, nobody's but the mover's.

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
use crate::device::{Checkpoint, Interrupted};

/// Released in one [`PinnedPool::settle`] at least, where so much is too much.
const SETTLE_BYTES: u64 = 64 << 20;

/// A pool of chunks of `chunk_bytes` each.
pub struct PinnedPool {
    base: NonNull<u8>,
    chunk_bytes: usize,
    provider: Box<dyn PageProvider>,
    /// Held while pages of a chunk are had: no more than one chunk is resident and not yet reported so.
    kernel: Mutex<()>,
    state: Mutex<State>,
}

// SAFETY: `base` is address space that only the pool hands out, in disjoint pieces under its lock.
unsafe impl Send for PinnedPool {}
// SAFETY: as above.
unsafe impl Sync for PinnedPool {}

struct State {
    chunks: Vec<Chunk>,
    /// From here on all are free: whoever looks for chunks need not look further.
    end: usize,
    /// Chunks used, or on their way to it.
    used: usize,
    /// Chunks idle, or on their way out.
    idle: usize,
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
    /// Somebody commits or releases it, or takes it into use.
    Moving,
    /// Committed, in nobody's use.
    Idle(Reservation),
    /// Part of a buffer.
    Used(Reservation),
}

/// Why a buffer cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Shed or cancelled between two chunks.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
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
        let demand = Demand::new();
        let state = Mutex::new(State { chunks, end: 0, used: 0, idle: 0, keep_for: None, demand });
        Ok(Arc::new(Self { base, chunk_bytes, provider, kernel: Mutex::default(), state }))
    }

    /// `bytes` in whole chunks: what a buffer of that size takes from the budget.
    pub fn rounded(&self, bytes: u64) -> u64 {
        bytes.next_multiple_of(self.chunk_bytes as u64)
    }

    /// A buffer of `len` scalars, all zero, paid for from `from`. Asks `checkpoint` before each chunk.
    ///
    /// # Errors
    /// [`PoolError`]. Chunks committed by then are idle in the pool, with their part of `from`.
    pub fn scalars(
        self: &Arc<Self>,
        len: usize,
        from: &mut Reservation,
        checkpoint: &dyn Checkpoint,
    ) -> Result<ScalarBuf, PoolError> {
        let bytes = (len * size_of::<Scalar>()).max(1);
        let count = bytes.div_ceil(self.chunk_bytes);
        let asked = (count * self.chunk_bytes) as u64;
        if from.bytes() < asked {
            return Err(PoolError::NotReserved { asked, reserved: from.bytes() });
        }
        let space = self.space();
        let (first, mut claimed) =
            self.state.lock().claim_run(count).ok_or(PoolError::NoRoom { asked, space })?;
        let mut ready = || {
            for (i, own) in claimed.iter_mut().enumerate() {
                checkpoint.check()?;
                self.make_ready(first + i, own, from)?;
            }
            Ok(())
        };
        let outcome = ready();
        let mut state = self.state.lock();
        for (chunk, own) in state.chunks[first..].iter_mut().zip(claimed) {
            *chunk = own.map_or(Chunk::Free, Chunk::Used);
        }
        if outcome.is_err() {
            state.make_idle(first..first + count);
        }
        outcome.map(|()| ScalarBuf { pool: Arc::clone(self), first, count, len })
    }

    /// Has a claimed chunk's pages there and zero, paid for by `own`.
    fn make_ready(
        &self,
        i: usize,
        own: &mut Option<Reservation>,
        from: &mut Reservation,
    ) -> Result<(), PoolError> {
        if own.is_none() {
            *own = Some(self.commit(i, from)?);
            return Ok(());
        }
        // Its own reservation pays for it already: the buyer's share is given back.
        from.release(self.chunk_bytes as u64);
        // SAFETY: a committed chunk that is ours now.
        unsafe { self.chunk(i).write_bytes(0, self.chunk_bytes) };
        Ok(())
    }

    /// Returns up to `bytes` of idle chunks to the kernel, in whole chunks. Returns the bytes released.
    pub fn release_idle(&self, bytes: u64) -> u64 {
        let most = usize::try_from(bytes.div_ceil(self.chunk_bytes as u64)).unwrap_or(usize::MAX);
        let claimed = self.state.lock().claim_idle(most);
        let mut released = 0;
        for (i, reservation) in claimed {
            // SAFETY: committed by this provider, and in no buffer.
            match unsafe { self.provider.release(self.chunk(i), self.chunk_bytes) } {
                Ok(()) => {
                    let mut state = self.state.lock();
                    state.chunks[i] = Chunk::Free;
                    state.idle -= 1;
                    drop(state);
                    drop(reservation); // it ends here: its memory is gone
                    released += self.chunk_bytes as u64;
                }
                Err(error) => {
                    tracing::warn!(%error, chunk = i, "pool.release_refused");
                    self.state.lock().chunks[i] = Chunk::Idle(reservation);
                }
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
            let PoolStatus { used, idle } = self.status_of(&state);
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
        self.status_of(&self.state.lock())
    }

    /// Where the pages come from.
    pub fn provider(&self) -> &'static str {
        self.provider.name()
    }

    fn status_of(&self, state: &State) -> PoolStatus {
        let bytes = |count: usize| (count * self.chunk_bytes) as u64;
        PoolStatus { used: bytes(state.used), idle: bytes(state.idle) }
    }

    fn space(&self) -> u64 {
        (self.state.lock().chunks.len() * self.chunk_bytes) as u64
    }

    fn commit(&self, i: usize, from: &mut Reservation) -> Result<Reservation, PoolError> {
        let asked = self.chunk_bytes as u64;
        let _one_at_a_time = self.kernel.lock();
        // SAFETY: chunk `i` is reserved, uncommitted, and the caller has claimed it.
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
        let used = self.status_of(&state).used;
        state.demand.enter(used, Instant::now());
        state.make_idle(run);
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

impl State {
    /// Takes a run of `count` chunks for a buffer: its first, and what pays for those that are
    /// committed already.
    fn claim_run(&mut self, count: usize) -> Option<(usize, Vec<Option<Reservation>>)> {
        let within = self.chunks.len().min(self.end.saturating_add(count));
        let first = find_run(&self.chunks[..within], count)?;
        let run = first..first + count;
        self.end = self.end.max(run.end);
        let claim = |chunk: &mut Chunk| match std::mem::replace(chunk, Chunk::Moving) {
            Chunk::Idle(reservation) => Some(reservation),
            _ => None,
        };
        let claimed: Vec<_> = self.chunks[run].iter_mut().map(claim).collect();
        self.used += count;
        self.idle -= claimed.iter().flatten().count();
        Some((first, claimed))
    }

    /// Takes up to `most` idle chunks out of everybody's reach, the last first.
    fn claim_idle(&mut self, most: usize) -> Vec<(usize, Reservation)> {
        if self.idle == 0 {
            return vec![];
        }
        let claim = |(i, chunk): (usize, &mut Chunk)| match std::mem::replace(chunk, Chunk::Moving)
        {
            Chunk::Idle(reservation) => Some((i, reservation)),
            other => {
                *chunk = other;
                None
            }
        };
        self.chunks[..self.end].iter_mut().enumerate().rev().filter_map(claim).take(most).collect()
    }

    /// Ends the use of a run, of which some may be free already.
    fn make_idle(&mut self, run: std::ops::Range<usize>) {
        self.used -= run.len();
        for chunk in &mut self.chunks[run] {
            if let Chunk::Used(reservation) = std::mem::replace(chunk, Chunk::Free) {
                *chunk = Chunk::Idle(reservation);
                self.idle += 1;
            }
        }
    }
}

/// The first run of `count` chunks in no use; one that is idle already wins over a fresh one.
fn find_run(chunks: &[Chunk], count: usize) -> Option<usize> {
    let mut best: Option<(usize, usize)> = None;
    let (mut length, mut idle) = (0, 0);
    let is_idle = |chunk: &Chunk| usize::from(matches!(chunk, Chunk::Idle(_)));
    for (i, chunk) in chunks.iter().enumerate() {
        if matches!(chunk, Chunk::Used(_) | Chunk::Moving) {
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
    use crate::device::Unhindered;
    use crate::memory::Plain;
    use cuzk_governor::budget::{Ask, MemoryBudget};
    use ff::Field;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

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
        let buffer = pool.scalars(3 * SCALARS - 1, &mut memory, &Unhindered).unwrap();
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
        let mut buffer = pool.scalars(2 * SCALARS, &mut memory, &Unhindered).unwrap();
        buffer.fill(Scalar::ONE);
        drop(buffer);
        assert_eq!(pool.status(), PoolStatus { used: 0, idle: 2 * CHUNK as u64 });
        assert_eq!(budget.usage().reserved, 4 * CHUNK as u64);
        let again = pool.scalars(2 * SCALARS, &mut memory, &Unhindered).unwrap();
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
        let buffer = pool.scalars(4 * SCALARS, &mut reserved(&budget, 4), &Unhindered).unwrap();
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
    fn an_interrupted_buffer_leaves_what_it_had_in_ledger_and_pool() {
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let pool = pool(16);
        let mut memory = reserved(&budget, 4);
        let asked = AtomicUsize::new(0);
        let interrupts = Answers(|| match asked.fetch_add(1, Ordering::SeqCst) {
            2 => Err(Interrupted),
            _ => Ok(()),
        });
        let refused = pool.scalars(4 * SCALARS, &mut memory, &interrupts).unwrap_err();
        assert!(matches!(refused, PoolError::Interrupted(_)), "{refused}");
        assert_eq!(pool.status(), PoolStatus { used: 0, idle: 2 * CHUNK as u64 });
        assert_eq!((memory.bytes(), budget.usage().reserved), (2 * CHUNK as u64, 4 * CHUNK as u64));
        assert_eq!(pool.release_idle(u64::MAX), 2 * CHUNK as u64);
        drop(memory);
        assert_eq!(budget.usage().reserved, 0);
    }

    #[test]
    fn who_waits_for_pages_holds_up_nobody_else() {
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let pool = pool(16);
        pool.keep_idle(budget.clone());
        drop(pool.scalars(SCALARS, &mut reserved(&budget, 1), &Unhindered).unwrap());
        let (arrive, arrived) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let (arrive, goes) = (Mutex::new(arrive), Mutex::new(goes));
        let waits = Answers(|| {
            let _ = arrive.lock().send(());
            let _ = goes.lock().recv_timeout(Duration::from_secs(10));
            Ok(())
        });
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| pool.scalars(2 * SCALARS, &mut reserved(&budget, 2), &waits));
            arrived.recv_timeout(Duration::from_secs(10)).unwrap();
            let quick = pool.scalars(SCALARS, &mut reserved(&budget, 1), &Unhindered).unwrap();
            assert_eq!(pool.status().used, 3 * CHUNK as u64);
            drop(quick);
            go.send(()).and_then(|()| go.send(())).unwrap();
            assert_eq!(slow.join().unwrap().unwrap().len(), 2 * SCALARS);
        });
        pool.release_idle(u64::MAX);
        assert_eq!((budget.usage().reserved, pool.status()), (0, PoolStatus::default()));
    }

    /// A checkpoint that does as told.
    struct Answers<F>(F);

    impl<F: Fn() -> Result<(), Interrupted> + Sync> Checkpoint for Answers<F> {
        fn check(&self) -> Result<(), Interrupted> {
            self.0()
        }
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
        let held = pool.scalars(3 * SCALARS, &mut memory, &Unhindered).unwrap();
        let refused = pool.scalars(2 * SCALARS, &mut memory, &Unhindered).unwrap_err();
        assert!(matches!(refused, PoolError::NoRoom { .. }), "{refused}");
        drop(held);
        let refused =
            pool.scalars(SCALARS, &mut reserved(&budget, 1).split(1).unwrap(), &Unhindered);
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
            if let Ok(mut buffer) = pool.scalars(len, &mut memory, &Unhindered) {
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

    #[test]
    fn what_is_not_paid_for_in_full_commits_nothing() {
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let pool = pool(16);
        pool.keep_idle(budget.clone());
        let mut memory = reserved(&budget, 1);
        let refused = pool.scalars(2 * SCALARS, &mut memory, &Unhindered).unwrap_err();
        assert!(matches!(refused, PoolError::NotReserved { .. }), "{refused}");
        assert_eq!((pool.status(), memory.bytes()), (PoolStatus::default(), CHUNK as u64));
    }

    #[test]
    fn an_idle_chunk_is_used_before_a_fresh_one_is_committed() {
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let pool = pool(16);
        pool.keep_idle(budget.clone());
        let mut memory = reserved(&budget, 3);
        let [first, second] =
            [(); 2].map(|()| pool.scalars(SCALARS, &mut memory, &Unhindered).unwrap());
        drop(first);
        pool.release_idle(u64::MAX);
        drop(second); // idle now, behind one that is not committed
        let _third = pool.scalars(SCALARS, &mut memory, &Unhindered).unwrap();
        assert_eq!(pool.status(), PoolStatus { used: CHUNK as u64, idle: 0 });
    }

    #[test]
    fn settling_keeps_what_the_last_minutes_used_and_releases_the_rest() {
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let pool = pool(16);
        pool.keep_idle(budget.clone());
        drop(pool.scalars(4 * SCALARS, &mut reserved(&budget, 4), &Unhindered).unwrap());
        let idle = PoolStatus { used: 0, idle: 4 * CHUNK as u64 };
        assert_eq!(pool.settle(), idle);
        pool.state.lock().demand = Demand::new(); // minutes pass
        assert_eq!(pool.settle(), PoolStatus::default());
        assert_eq!(budget.usage().reserved, 0);
    }

    #[test]
    fn a_chunk_that_comes_back_to_a_budget_that_has_shrunk_leaves_at_once() {
        let budget = MemoryBudget::new(4 * CHUNK as u64);
        let pool = pool(16);
        pool.keep_idle(budget.clone());
        let buffer = pool.scalars(4 * SCALARS, &mut reserved(&budget, 4), &Unhindered).unwrap();
        budget.set_total(3 * CHUNK as u64);
        drop(buffer);
        assert_eq!((pool.status(), budget.usage().reserved), (PoolStatus::default(), 0));
    }

    /// Commits so many chunks, then no more; counts those that are committed.
    #[derive(Debug)]
    struct Scarce(Arc<Mutex<(usize, usize)>>);

    impl PageProvider for Scarce {
        fn name(&self) -> &'static str {
            "scarce"
        }

        unsafe fn commit(&self, address: *mut u8, bytes: usize) -> io::Result<()> {
            let (left, committed) = &mut *self.0.lock();
            *left = left.checked_sub(1).ok_or(io::ErrorKind::OutOfMemory)?;
            *committed += 1;
            // SAFETY: passed on as it came.
            unsafe { Plain.commit(address, bytes) }
        }

        unsafe fn release(&self, address: *mut u8, bytes: usize) -> io::Result<()> {
            self.0.lock().1 -= 1;
            // SAFETY: as above.
            unsafe { Plain.release(address, bytes) }
        }
    }

    #[test]
    fn what_was_committed_before_a_refusal_is_idle_and_paid_for_and_can_leave() {
        let pages = Arc::new(Mutex::new((2, 0)));
        let scarce = Box::new(Scarce(Arc::clone(&pages)));
        let pool = PinnedPool::new(16 * CHUNK as u64, CHUNK, scarce).unwrap();
        let budget = MemoryBudget::new(64 * CHUNK as u64);
        let mut memory = reserved(&budget, 4);
        let refused = pool.scalars(4 * SCALARS, &mut memory, &Unhindered).unwrap_err();
        assert!(matches!(refused, PoolError::Refused { provider: "scarce", .. }), "{refused}");
        assert_eq!(pool.status(), PoolStatus { used: 0, idle: 2 * CHUNK as u64 });
        assert_eq!((memory.bytes(), budget.usage().reserved), (2 * CHUNK as u64, 4 * CHUNK as u64));
        assert_eq!(pool.release_idle(CHUNK as u64), CHUNK as u64);
        assert_eq!(pages.lock().1, 1, "chunks still committed");
        pool.release_idle(u64::MAX);
        assert_eq!((pages.lock().1, budget.usage().reserved), (0, 2 * CHUNK as u64));
    }
}
