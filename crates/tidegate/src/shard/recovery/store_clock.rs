//! Estimates the store's time while the store does not reply.
//!
//! The node's own clock is never used: nodes disagree, and the store dates its counts by its own clock. The gap
//! between the two is taken from replies, to half a round trip. A late reply would be off by half of its lateness, so
//! only quick replies count as long as there are any. A slow reply still reveals a clock that was set: the store
//! replied between request and reply, and its time must be possible there.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::units::Nanos;

/// A round trip that is always quick: half of it is no error that matters.
const QUICK: Nanos = Nanos::from_millis(4);
/// Synchronised clocks drift apart by less than one in this many: as the quickest reply ages, a slower one becomes
/// as good.
const DRIFT: u64 = 2_000;

/// The gap between a monotonic clock and the store's.
#[derive(Debug)]
pub(crate) struct StoreClock {
    gap: AtomicU64,
    /// The quickest round trip, and when its reply arrived.
    quickest: AtomicU64,
    quickest_at: AtomicU64,
}

impl StoreClock {
    /// Until the first reply, the wall clock has to do.
    pub(crate) fn new(now: Nanos, wall: Nanos) -> Self {
        StoreClock {
            gap: AtomicU64::new(wall.get().wrapping_sub(now.get())),
            quickest: AtomicU64::new(u64::MAX),
            quickest_at: AtomicU64::new(now.get()),
        }
    }

    /// The store's time was `at`, in a reply that arrived at `now` to a request sent at `sent`.
    pub(crate) fn record(&self, sent: Nanos, now: Nanos, at: Nanos) {
        let took = now.since(sent).get();
        let quickest = self.quickest.load(Ordering::Relaxed);
        let quickest_at = Nanos::new(self.quickest_at.load(Ordering::Relaxed));
        let aged = quickest.saturating_add(now.since(quickest_at).get() / DRIFT);
        let usual = quickest.saturating_mul(2).max(QUICK.get());
        let is_set = !self.is_possible(sent, took, at, aged.max(usual));
        if took <= aged || is_set {
            self.quickest.store(took, Ordering::Relaxed);
            self.quickest_at.store(now.get(), Ordering::Relaxed);
        } else if took > usual {
            return;
        }
        let middle = sent.plus(Nanos::new(took / 2));
        let gap = at.get().wrapping_sub(middle.get());
        self.gap.store(gap, Ordering::Relaxed);
    }

    /// Whether the gap, which is known to within `error`, puts `at` between the request and its reply.
    fn is_possible(&self, sent: Nanos, took: u64, at: Nanos, error: u64) -> bool {
        let gap = self.gap.load(Ordering::Relaxed);
        let replied = at.get().wrapping_sub(gap);
        let earliest = sent.get().wrapping_sub(error);
        let span = took.saturating_add(error.saturating_mul(2));
        replied.wrapping_sub(earliest) <= span
    }

    /// The store's time when the monotonic clock reads `now`.
    pub(crate) fn at(&self, now: Nanos) -> Nanos {
        Nanos::new(now.get().wrapping_add(self.gap.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    /// The store's clock is an hour ahead. Replies are given as the times of request and reply; the store replies at
    /// once, and the way back is slow.
    #[track_caller]
    fn check(replies: &[(u64, u64)], want_error_ms: u64) {
        let hour = Nanos::from_secs(3_600);
        let clock = StoreClock::new(MS(0), MS(7));
        for (sent, now) in replies {
            clock.record(MS(*sent), MS(*now), MS(*sent).plus(hour));
        }
        let now = MS(60_000);
        let error = now.plus(hour).since(clock.at(now));
        assert_eq!(error, MS(want_error_ms), "{replies:?}");
    }

    #[test]
    fn late_replies_do_not_spoil_the_estimate_of_quick_ones() {
        check(&[(0, 0), (10, 110), (20, 1_500)], 0);
        check(&[(0, 2), (10, 110), (200, 204)], 2);
    }

    #[test]
    fn slow_replies_count_where_all_replies_are_slow() {
        check(&[(0, 100)], 50);
        check(&[(0, 100), (200, 280)], 40);
        check(&[(0, 2), (1_000, 1_100), (50_000, 50_100)], 1);
        check(&[(0, 2), (1_000, 1_100), (59_000, 59_030)], 15);
    }

    /// Each reply was a little slower than the one before, and the error grew with them.
    #[test]
    fn replies_that_become_slower_do_not_count_as_quick() {
        let slower = [(0, 2), (1_000, 1_004), (1_010, 1_018), (1_020, 1_036)];
        check(&slower, 2);
    }

    #[test]
    fn a_slow_reply_reveals_a_clock_that_was_set() {
        let clock = StoreClock::new(MS(0), MS(0));
        let hour = Nanos::from_secs(3_600);
        clock.record(MS(0), MS(2), MS(1).plus(hour));
        for (sent, set) in [(1_000, hour.plus(hour)), (2_000, Nanos::from_secs(60))] {
            clock.record(MS(sent), MS(sent + 100), MS(sent + 50).plus(set));
            assert_eq!(clock.at(MS(9_000)), MS(9_000).plus(set));
        }
    }
}
