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
pub(super) struct Reign {
    /// 0 while there is none.
    run: AtomicU64,
    turned: Notify,
}

impl Reign {
    /// A connection to this run was made.
    pub(super) fn begin(&self, run: u64) {
        if self.run.swap(run, Ordering::AcqRel) != run {
            self.turned.notify_waiters();
        }
    }

    /// This run is known to be that of a primary no more.
    pub(super) fn end(&self, run: u64) {
        let ended = self
            .run
            .compare_exchange(run, 0, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() {
            self.turned.notify_waiters();
        }
    }

    /// Whether what this run answers counts.
    pub(super) fn is_of(&self, run: u64) -> bool {
        self.run.load(Ordering::Acquire) == run
    }

    /// The run that counts, if there is one.
    pub(super) fn run(&self) -> Option<u64> {
        let run = self.run.load(Ordering::Acquire);
        (run != 0).then_some(run)
    }

    /// Done when another run reigns, or none, than when this was called.
    pub(super) fn turned(&self) -> Notified<'_> {
        self.turned.notified()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_that_was_met_last_counts_until_it_is_over() {
        let reign = Reign::default();
        assert_eq!(reign.run(), None);
        reign.begin(1);
        assert!(reign.is_of(1));
        reign.begin(2);
        assert!(reign.is_of(2) && !reign.is_of(1));
        reign.end(1);
        assert_eq!(reign.run(), Some(2));
        reign.end(2);
        assert!(reign.run().is_none() && !reign.is_of(2));
    }
}
