//! Who holds the heap: bytes counted as they are allocated and freed, charged to an [`Account`].
//!
//! [`Accounting`] wraps the process's allocator. A thread that works for somebody charges his
//! account; what is freed on another thread than it was allocated on is credited there, so figures
//! are near, not exact. Where the program has not installed it, every account stays at zero.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::Arc;

/// A thread's own sum is passed on when it is off by so many bytes.
const PASS_ON: i64 = 256 << 10;

/// Heap bytes held now, and at most so far.
#[derive(Debug, Default)]
pub struct Account {
    held: AtomicI64,
    peak: AtomicI64,
}

thread_local! {
    // Constants without destructors: reading them inside the allocator allocates nothing.
    static CHARGED: Cell<*const Account> = const { Cell::new(ptr::null()) };
    static SUM: Cell<i64> = const { Cell::new(0) };
}

impl Account {
    /// Charges this thread's allocations to `account` from now on, or to nobody.
    pub fn charge_thread(account: Option<&Arc<Account>>) {
        let next = account.map_or(ptr::null(), |account| Arc::into_raw(Arc::clone(account)));
        let sum = SUM.replace(0);
        let last = CHARGED.replace(next);
        if !last.is_null() {
            // SAFETY: made by `into_raw` above, and taken out of the slot just now: owned once.
            let last = unsafe { Arc::from_raw(last) };
            last.enter(sum);
        }
    }

    /// Bytes held now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed).max(0) as u64
    }

    /// The most bytes held at a time.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).max(0) as u64
    }

    /// Has the peak count from now on.
    pub fn restart_peak(&self) {
        self.peak.store(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(crate) fn enter(&self, bytes: i64) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
    }
}

fn count(bytes: i64) {
    // Fails only while the thread is torn down: then nobody is charged.
    let _ = CHARGED.try_with(|charged| {
        let account = charged.get();
        if account.is_null() {
            return;
        }
        let sum = SUM.get() + bytes;
        if sum.abs() < PASS_ON {
            return SUM.set(sum);
        }
        SUM.set(0);
        // SAFETY: the slot owns a count of the account until the thread charges another one.
        unsafe { &*account }.enter(sum);
    });
}

/// The system's allocator, with accounts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Accounting;

// SAFETY: hands every call to the system's allocator unchanged; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Accounting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        let address = unsafe { System.alloc(layout) };
        if !address.is_null() {
            count(layout.size() as i64);
        }
        address
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        let address = unsafe { System.alloc_zeroed(layout) };
        if !address.is_null() {
            count(layout.size() as i64);
        }
        address
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the same.
        unsafe { System.dealloc(address, layout) };
        count(-(layout.size() as i64));
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is the same.
        let moved = unsafe { System.realloc(address, layout, size) };
        if !moved.is_null() {
            count(size as i64 - layout.size() as i64);
        }
        moved
    }
}

/// Has the system's allocator keep little of what is freed: large blocks are mappings of their own,
/// which leave the process when they are freed, and few arenas hold the small ones. Call it first
/// thing in the program.
pub fn tune_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers only.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 << 20);
        libc::mallopt(libc::M_ARENA_MAX, 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_takes_and_gives_back_is_on_the_account_it_charges() {
        let account = Arc::new(Account::default());
        Account::charge_thread(Some(&account));
        let layout = Layout::from_size_align(1 << 20, 8).unwrap();
        // SAFETY: a valid layout, freed once with the same one.
        unsafe {
            let address = Accounting.alloc(layout);
            assert_eq!((account.held(), account.peak()), (1 << 20, 1 << 20));
            Accounting.dealloc(address, layout);
        }
        assert_eq!((account.held(), account.peak()), (0, 1 << 20));
        account.restart_peak();
        assert_eq!((account.held(), account.peak()), (0, 0));
        Account::charge_thread(None);
        assert_eq!(Arc::strong_count(&account), 1);
    }

    #[test]
    fn small_sums_are_passed_on_when_the_thread_charges_another() {
        let account = Arc::new(Account::default());
        Account::charge_thread(Some(&account));
        count(1000);
        assert_eq!(account.held(), 0);
        Account::charge_thread(None);
        assert_eq!(account.held(), 1000);
        count(5000);
        assert_eq!(account.held(), 1000);
    }
}
