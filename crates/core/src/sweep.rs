//! When a bounded table is gone through for what has ended.
//!
//! Kept true: entries pay for it themselves. A table is gone through when it is twice as large as it was
//! left, or full; never before something in it has ended, and not again at once. So whoever fills it with
//! what lasts long makes nobody else go through it with every call. Knows no table; time is injected.

use crate::units::Nanos;

/// The shortest time between two, if a table does not say. One of some 100,000 takes some milliseconds.
const PAUSE: Nanos = Nanos::from_millis(100);

/// Smaller tables are left alone.
const SMALL: usize = 64;

/// Nothing is known of the entries at first, so any of them may have ended.
#[derive(Clone, Debug)]
pub struct Sweep {
    pause: Nanos,
    /// How many entries there may be before.
    at: usize,
    /// No entry ends before.
    first_end: Nanos,
    rests_until: Nanos,
}

impl Default for Sweep {
    fn default() -> Self {
        Sweep::every(PAUSE)
    }
}

impl Sweep {
    /// Of a table that is gone through no more often than this.
    pub const fn every(pause: Nanos) -> Self {
        Sweep {
            pause,
            at: 0,
            first_end: Nanos::ZERO,
            rests_until: Nanos::ZERO,
        }
    }

    /// Whether a table of `len` entries, `most` at most, is to be gone through.
    pub fn due(&self, len: usize, most: usize, now: Nanos) -> bool {
        let large = len >= self.at.max(SMALL).min(most);
        large && now >= self.first_end && now >= self.rests_until
    }

    /// An entry was written that ends at `end`.
    pub fn note(&mut self, end: Nanos) {
        self.first_end = self.first_end.min(end);
    }

    /// The table was gone through, and these are the ends of what is left in it.
    pub fn done(&mut self, ends: impl Iterator<Item = Nanos>, now: Nanos) {
        let (mut left, mut first_end) = (0, Nanos::MAX);
        for end in ends {
            left += 1;
            first_end = first_end.min(end);
        }
        *self = Sweep {
            pause: self.pause,
            at: 2 * left,
            first_end,
            rests_until: now.plus(self.pause),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_secs;
    const MOST: usize = 1_000;

    /// Left with so many entries at second 10, which end from second 100 on.
    fn left_with(entries: u64) -> Sweep {
        let mut sweep = Sweep::default();
        sweep.done((0..entries).map(|i| AT(100 + i)), AT(10));
        sweep
    }

    #[test]
    fn a_full_table_is_not_gone_through_before_something_in_it_has_ended() {
        let mut sweep = left_with(1_000);
        assert!(!sweep.due(MOST, MOST, AT(99)));
        assert!(sweep.due(MOST, MOST, AT(100)));
        sweep.note(AT(200));
        assert!(!sweep.due(MOST, MOST, AT(99)));
        sweep.note(AT(50));
        assert!(!sweep.due(MOST, MOST, AT(49)));
        assert!(sweep.due(MOST, MOST, AT(50)));
    }

    #[test]
    fn one_that_is_not_full_is_left_alone_until_it_has_doubled() {
        let sweep = left_with(100);
        assert!(!sweep.due(199, MOST, AT(500)));
        assert!(sweep.due(200, MOST, AT(500)));
        assert!(!left_with(3).due(SMALL - 1, MOST, AT(500)));
        assert!(left_with(3).due(5, 5, AT(500)), "small and full");
    }

    /// Entries that end one after another would have it gone through for each of them.
    #[test]
    fn it_is_not_gone_through_again_at_once() {
        let mut sweep = left_with(1_000);
        sweep.note(AT(10));
        assert!(!sweep.due(MOST, MOST, AT(10).plus(Nanos::from_millis(99))));
        assert!(sweep.due(MOST, MOST, AT(10).plus(PAUSE)));
    }
}
