//! Large buffers: whole chunks of pinned (or plain) memory, every one of them in the budget.

mod pool;
mod provider;

pub use pool::{PinnedPool, PoolError, PoolStatus, ScalarBuf};
pub use provider::{Mlocked, PageProvider, Plain};
