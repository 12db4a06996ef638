//! The schedule by which a bounded table evicts its expired entries.
//!
//! Invariant: the cost of a sweep is amortized over the inserted entries. A sweep is due when the table is full or
//! twice as large as after the last sweep; never before an entry has expired, and not again at once. So a caller that
//! fills the table with long-lived entries does not make every other call sweep it. Knows no table; time is injected.

use crate::units::Nanos;

/// The default minimum time between two sweeps. A sweep of some 100,000 entries takes some milliseconds.
const MIN_INTERVAL: Nanos = Nanos::from_millis(100);

/// Smaller tables are not swept.
const MIN_LEN: usize = 64;

/// The schedule of one table. Initially nothing is known of the entries, so any of them may have expired.
#[derive(Clone, Debug)]
pub struct SweepSchedule {
    min_interval: Nanos,
    /// The number of entries at which the next sweep is due.
    sweep_at_len: usize,
    /// No entry expires before this time.
    earliest_expiry: Nanos,
    not_before: Nanos,
}

impl Default for SweepSchedule {
    fn default() -> Self {
        SweepSchedule::with_min_interval(MIN_INTERVAL)
    }
}

impl SweepSchedule {
    /// The schedule of a table that is swept at most once per `min_interval`.
    pub const fn with_min_interval(min_interval: Nanos) -> Self {
        SweepSchedule { min_interval, sweep_at_len: 0, earliest_expiry: Nanos::ZERO, not_before: Nanos::ZERO }
    }

    /// Whether a sweep is due of a table with `len` entries and room for `max`.
    pub fn is_due(&self, len: usize, max: usize, now: Nanos) -> bool {
        let large = len >= self.sweep_at_len.max(MIN_LEN).min(max);
        large && now >= self.earliest_expiry && now >= self.not_before
    }

    /// Records a written entry that expires at `expiry`.
    pub fn record_expiry(&mut self, expiry: Nanos) {
        self.earliest_expiry = self.earliest_expiry.min(expiry);
    }

    /// Records a sweep that left entries with these expiries.
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

    /// A table swept at second 10, left with `entries` entries that expire from second 100 on.
    fn swept_with(entries: u64) -> SweepSchedule {
        let mut sweep = SweepSchedule::default();
        sweep.swept((0..entries).map(|i| AT(100 + i)), AT(10));
        sweep
    }

    #[test]
    fn a_full_table_is_not_swept_before_an_entry_has_expired() {
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
    fn a_table_that_is_not_full_is_not_swept_until_it_has_doubled() {
        let sweep = swept_with(100);
        assert!(!sweep.is_due(199, MAX, AT(500)));
        assert!(sweep.is_due(200, MAX, AT(500)));
        assert!(!swept_with(3).is_due(MIN_LEN - 1, MAX, AT(500)));
        assert!(swept_with(3).is_due(5, 5, AT(500)), "small and full");
    }

    /// Entries that expire one after another would cause a sweep for each of them.
    #[test]
    fn a_table_is_not_swept_again_at_once() {
        let mut sweep = swept_with(1_000);
        sweep.record_expiry(AT(10));
        assert!(!sweep.is_due(MAX, MAX, AT(10).plus(Nanos::from_millis(99))));
        assert!(sweep.is_due(MAX, MAX, AT(10).plus(MIN_INTERVAL)));
    }
}
