//! The store's time as a node can tell it while the store does not reply.
//!
//! Never the node's own clock: nodes disagree, and what the store counted is dated by the store. The gap
//! between the two is taken from replies, to half a round trip. A late reply would put it off by half of its
//! lateness, so only quick replies count as long as there are any.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::units::Nanos;

/// A round trip that is quick in any case: half of it is no error that matters.
const QUICK: Nanos = Nanos::from_millis(4);
/// Clocks drift apart by less than one in this many: as the last reply ages, a slower one becomes as good.
const DRIFT: u64 = 500;

/// The gap between a monotonic clock and the store's.
#[derive(Debug)]
pub(super) struct StoreClock {
    gap: AtomicU64,
    /// The round trip of the reply that the gap is from, and when it arrived.
    took: AtomicU64,
    noted: AtomicU64,
}

impl StoreClock {
    /// Until the store is met, the wall clock has to do.
    pub(super) fn new(now: Nanos, wall: Nanos) -> Self {
        StoreClock {
            gap: AtomicU64::new(wall.get().wrapping_sub(now.get())),
            took: AtomicU64::new(u64::MAX),
            noted: AtomicU64::new(now.get()),
        }
    }

    /// The store's time was `at`, in the reply to what was sent at `sent` and answered at `now`.
    pub(super) fn note(&self, sent: Nanos, now: Nanos, at: Nanos) {
        let took = now.since(sent);
        let known = Nanos::new(self.took.load(Ordering::Relaxed));
        let noted = Nanos::new(self.noted.load(Ordering::Relaxed));
        let usual = known.get().saturating_mul(2);
        let aged = known.get().saturating_add(now.since(noted).get() / DRIFT);
        if took > QUICK.max(Nanos::new(usual.max(aged))) {
            return;
        }
        let middle = sent.plus(Nanos::new(took.get() / 2));
        let gap = at.get().wrapping_sub(middle.get());
        self.gap.store(gap, Ordering::Relaxed);
        self.took.store(took.get(), Ordering::Relaxed);
        self.noted.store(now.get(), Ordering::Relaxed);
    }

    /// The store's time when the monotonic clock reads `now`.
    pub(super) fn at(&self, now: Nanos) -> Nanos {
        Nanos::new(now.get().wrapping_add(self.gap.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    /// The store's clock is an hour ahead. Replies are given as when they were sent and answered; the store
    /// answers at once, and the rest of the way is slow.
    #[track_caller]
    fn check(replies: &[(u64, u64)], want_error_ms: u64) {
        let hour = Nanos::from_secs(3_600);
        let clock = StoreClock::new(MS(0), MS(7));
        for (sent, now) in replies {
            clock.note(MS(*sent), MS(*now), MS(*sent).plus(hour));
        }
        let now = MS(60_000);
        let error = now.plus(hour).since(clock.at(now));
        assert_eq!(error, MS(want_error_ms), "{replies:?}");
    }

    #[test]
    fn late_replies_do_not_spoil_what_quick_ones_say() {
        check(&[(0, 0), (10, 110), (20, 1_500)], 0);
        check(&[(0, 2), (10, 110), (200, 204)], 2);
    }

    #[test]
    fn where_every_reply_is_slow_they_have_to_do() {
        check(&[(0, 100)], 50);
        check(&[(0, 100), (200, 280)], 40);
        check(&[(0, 2), (1_000, 1_100), (40_000, 40_100)], 1);
        check(&[(0, 2), (1_000, 1_100), (60_000, 60_100)], 50);
    }
}
