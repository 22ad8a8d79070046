//! What the end-to-end tests share.

/// As in the program itself: partitions' heaps are counted.
#[global_allocator]
static ALLOCATOR: cuzk_core::memory::Accounting = cuzk_core::memory::Accounting;

pub mod cgroup;
pub mod parameters;

/// Says why a test cannot run here; fails it where `CUZK_TEST_NO_SKIP` is set, so that CI skips nothing unseen.
pub fn skip(why: impl std::fmt::Display) {
    assert!(std::env::var_os("CUZK_TEST_NO_SKIP").is_none(), "may not be skipped: {why}");
    println!("skipped: {why}");
}
