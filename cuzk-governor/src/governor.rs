//! The governor's thread, and what it governs: a [`Plant`].

use crate::policy::{Action, Workload};

/// What is governed. Both calls come from the governor's second thread, its hands, never from
/// the one that watches: a plant that blocks is reported and does not stop the watching.
pub trait Plant: Send + Sync {
    /// Reports the present work into `into`, reusing its storage. Every field is set anew.
    fn workload(&self, into: &mut Workload);

    /// Does it, or begins to. The next sample tells how much it helped.
    fn apply(&self, action: Action);
}
