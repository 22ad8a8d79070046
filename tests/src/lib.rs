//! What the end-to-end tests and the load bench share.

/// As in the program itself: partitions' heaps are counted.
#[global_allocator]
static ALLOCATOR: cuzk_core::memory::Accounting = cuzk_core::memory::Accounting;

pub mod cgroup;
pub mod load;
pub mod memory;
pub mod parameters;
pub mod scripted;
pub mod ticks;
pub mod vm;

/// Says why a test cannot run here; fails it where `CUZK_TEST_NO_SKIP` is set, so that CI skips nothing unseen.
pub fn skip(why: impl std::fmt::Display) {
    assert!(std::env::var_os("CUZK_TEST_NO_SKIP").is_none(), "may not be skipped: {why}");
    println!("skipped: {why}");
}

/// Makes a cgroup, or ends the test with the reason why not.
#[macro_export]
macro_rules! cgroup_or_skip {
    ($name:expr) => {
        match $crate::cgroup::Cgroup::create($name) {
            Ok(cgroup) => cgroup,
            Err(why) => return $crate::skip(format_args!("{why:#}")),
        }
    };
}
