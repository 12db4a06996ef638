//! When a bounded table is gone through for what has ended.
//!
//! Kept true: entries pay for it themselves. A table is gone through when it is twice as large as it was
//! left, or full; never before something in it has ended, and not again at once. So whoever fills it with
//! what lasts long makes nobody else go through it with every call. Knows no table; time is injected.

use crate::units::Nanos;

/// The shortest time between two, if a table does not say. One of some 100,000 takes some milliseconds.
const MIN_INTERVAL: Nanos = Nanos::from_millis(100);

/// Smaller tables are left alone.
const MIN_LEN: usize = 64;

/// Nothing is known of the entries at first, so any of them may have ended.
#[derive(Clone, Debug)]
pub struct SweepSchedule {
    min_interval: Nanos,
    /// How many entries there may be before.
    sweep_at_len: usize,
    /// No entry ends before.
    earliest_expiry: Nanos,
    not_before: Nanos,
}

impl Default for SweepSchedule {
    fn default() -> Self {
        SweepSchedule::with_min_interval(MIN_INTERVAL)
    }
}

impl SweepSchedule {
    /// Of a table that is gone through no more often than this.
    pub const fn with_min_interval(min_interval: Nanos) -> Self {
        SweepSchedule {
            min_interval,
            sweep_at_len: 0,
            earliest_expiry: Nanos::ZERO,
            not_before: Nanos::ZERO,
        }
    }

    /// Whether a table of `len` entries, `max` at most, is to be gone through.
    pub fn is_due(&self, len: usize, max: usize, now: Nanos) -> bool {
        let large = len >= self.sweep_at_len.max(MIN_LEN).min(max);
        large && now >= self.earliest_expiry && now >= self.not_before
    }

    /// An entry was written that ends at `expiry`.
    pub fn record_expiry(&mut self, expiry: Nanos) {
        self.earliest_expiry = self.earliest_expiry.min(expiry);
    }

    /// The table was gone through, and these are the ends of what is left in it.
    pub fn swept(&mut self, expiries: impl Iterator<Item = Nanos>, now: Nanos) {
        let (mut remaining, mut earliest_expiry) = (0, Nanos::MAX);
        for expiry in expiries {
            remaining += 1;
            earliest_expiry = earliest_expiry.min(expiry);
        }
        *self = SweepSchedule {
            min_interval: self.min_interval,
            sweep_at_len: 2 * remaining,
            earliest_expiry,
            not_before: now.plus(self.min_interval),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_secs;
    const MAX: usize = 1_000;

    /// Left with so many entries at second 10, which end from second 100 on.
    fn swept_with(entries: u64) -> SweepSchedule {
        let mut sweep = SweepSchedule::default();
        sweep.swept((0..entries).map(|i| AT(100 + i)), AT(10));
        sweep
    }

    #[test]
    fn a_full_table_is_not_gone_through_before_something_in_it_has_ended() {
        let mut sweep = swept_with(1_000);
        assert!(!sweep.is_due(MAX, MAX, AT(99)));
        assert!(sweep.is_due(MAX, MAX, AT(100)));
        sweep.record_expiry(AT(200));
        assert!(!sweep.is_due(MAX, MAX, AT(99)));
        sweep.record_expiry(AT(50));
        assert!(!sweep.is_due(MAX, MAX, AT(49)));
        assert!(sweep.is_due(MAX, MAX, AT(50)));
    }

    #[test]
    fn one_that_is_not_full_is_left_alone_until_it_has_doubled() {
        let sweep = swept_with(100);
        assert!(!sweep.is_due(199, MAX, AT(500)));
        assert!(sweep.is_due(200, MAX, AT(500)));
        assert!(!swept_with(3).is_due(MIN_LEN - 1, MAX, AT(500)));
        assert!(swept_with(3).is_due(5, 5, AT(500)), "small and full");
    }

    /// Entries that end one after another would have it gone through for each of them.
    #[test]
    fn it_is_not_gone_through_again_at_once() {
        let mut sweep = swept_with(1_000);
        sweep.record_expiry(AT(10));
        assert!(!sweep.is_due(MAX, MAX, AT(10).plus(Nanos::from_millis(99))));
        assert!(sweep.is_due(MAX, MAX, AT(10).plus(MIN_INTERVAL)));
    }
}
