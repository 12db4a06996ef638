//! The current run of the current server, shared by all connections of one pool.
//!
//! The newest connection defines the current run. Replies from any other run are discarded from then on.
//! Invariants: no reply is taken for one of an epoch that it does not come from, and connections are never used
//! on two primaries at once. Knows nothing of addresses.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The current run.
#[derive(Default)]
pub(super) struct PrimaryFence {
    /// 0 while there is none.
    run: AtomicU64,
    changed: Notify,
}

impl PrimaryFence {
    /// Makes `run` current. Called for each new connection.
    pub(super) fn set_current(&self, run: u64) {
        if self.run.swap(run, Ordering::AcqRel) != run {
            self.changed.notify_waiters();
        }
    }

    /// Ends `run` as the current one: it is known not to be a primary's any more.
    pub(super) fn clear(&self, run: u64) {
        let ended = self.run.compare_exchange(run, 0, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() {
            self.changed.notify_waiters();
        }
    }

    /// Whether replies of this run count.
    pub(super) fn is_current(&self, run: u64) -> bool {
        self.run.load(Ordering::Acquire) == run
    }

    pub(super) fn current_run(&self) -> Option<u64> {
        let run = self.run.load(Ordering::Acquire);
        (run != 0).then_some(run)
    }

    /// Completes when the current run differs from the one at the time of this call, or there is none.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_connected_last_is_current_until_it_is_cleared() {
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
