//! Large buffers: whole chunks of pinned (or plain) memory, every one of them in the budget. And who
//! holds the heap beside them.

mod account;
mod pool;
mod provider;

pub use account::{tune_allocator, Account, Accounting};
pub use pool::{PinnedPool, PoolError, PoolStatus, ScalarBuf};
pub(crate) use provider::check;
pub use provider::{best_provider, Mlocked, PageProvider, Plain};
