//! Which run of which server counts, for all connections of one link together.
//!
//! Whoever connects last has met the present: its run reigns from then on, and what any other run
//! answers counts no more. So no answer is ever taken for one of a life that it does not come from,
//! and connections are never on two primaries at once. Knows nothing of addresses.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The run that counts.
#[derive(Default)]
pub(super) struct PrimaryFence {
    /// 0 while there is none.
    run: AtomicU64,
    changed: Notify,
}

impl PrimaryFence {
    /// A connection to this run was made.
    pub(super) fn set_current(&self, run: u64) {
        if self.run.swap(run, Ordering::AcqRel) != run {
            self.changed.notify_waiters();
        }
    }

    /// This run is known to be that of a primary no more.
    pub(super) fn clear(&self, run: u64) {
        let ended = self
            .run
            .compare_exchange(run, 0, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() {
            self.changed.notify_waiters();
        }
    }

    /// Whether what this run answers counts.
    pub(super) fn is_current(&self, run: u64) -> bool {
        self.run.load(Ordering::Acquire) == run
    }

    /// The run that counts, if there is one.
    pub(super) fn current_run(&self) -> Option<u64> {
        let run = self.run.load(Ordering::Acquire);
        (run != 0).then_some(run)
    }

    /// Done when another run reigns, or none, than when this was called.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_that_was_met_last_counts_until_it_is_over() {
        let fence = PrimaryFence::default();
        assert_eq!(fence.current_run(), None);
        fence.set_current(1);
        assert!(fence.is_current(1));
        fence.set_current(2);
        assert!(fence.is_current(2) && !fence.is_current(1));
        fence.clear(1);
        assert_eq!(fence.current_run(), Some(2));
        fence.clear(2);
        assert!(fence.current_run().is_none() && !fence.is_current(2));
    }
}
