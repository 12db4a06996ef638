//! The store's time as a node can tell it while the store does not answer.
//!
//! Never the node's own clock: nodes disagree, and what the store counted is dated by the store. The
//! gap between the two is taken from the latest answer, to half a round trip.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::units::Nanos;

/// The gap between a monotonic clock and the store's.
#[derive(Debug)]
pub(super) struct StoreClock(AtomicU64);

impl StoreClock {
    /// Until the store is met, the wall clock has to do.
    pub(super) fn new(now: Nanos, wall: Nanos) -> Self {
        StoreClock(AtomicU64::new(wall.get().wrapping_sub(now.get())))
    }

    /// The store said it was `at`, in answer to what was sent at `sent` and answered at `now`.
    pub(super) fn note(&self, sent: Nanos, now: Nanos, at: Nanos) {
        let middle = sent.plus(Nanos::new(now.since(sent).get() / 2));
        let gap = at.get().wrapping_sub(middle.get());
        self.0.store(gap, Ordering::Relaxed);
    }

    /// The store's time when the monotonic clock reads `now`.
    pub(super) fn at(&self, now: Nanos) -> Nanos {
        Nanos::new(now.get().wrapping_add(self.0.load(Ordering::Relaxed)))
    }
}
