//! When each place that holds units is to be looked at.
//!
//! A pure table in the order of time. The time of a place is never later than when something of it is to be
//! returned: use only moves that further away, and whatever brings it nearer sets it anew. So only places
//! that are due are ever locked, however many hold something.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::units::Nanos;

/// Places by when they are due.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(Nanos, usize)>,
    by_entry: BTreeMap<usize, Nanos>,
}

impl Deadlines {
    /// A place is due then, whatever was said before; never if there is nothing to return.
    pub(super) fn set(&mut self, entry: usize, due: Option<Nanos>) {
        let before = match due {
            Some(due) => self.by_entry.insert(entry, due),
            None => self.by_entry.remove(&entry),
        };
        if let Some(before) = before {
            self.by_time.remove(&(before, entry));
        }
        if let Some(due) = due {
            self.by_time.insert((due, entry));
        }
    }

    /// When the next place is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.by_time.first().map(|(due, _)| *due)
    }

    /// The places that are due by `now`.
    pub(super) fn due(&self, now: Nanos) -> Vec<usize> {
        let due = self.by_time.iter().take_while(|(due, _)| *due <= now);
        due.map(|(_, entry)| *entry).collect()
    }

    /// Every place that may hold something.
    pub(super) fn entries(&self) -> impl Iterator<Item = usize> {
        self.by_entry.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_millis;

    /// Every place was locked at every look, up to a thousand times a second.
    #[test]
    fn only_places_that_are_due_are_looked_at() {
        let mut deadlines = Deadlines::default();
        for entry in 0..16_384 {
            deadlines.set(entry, Some(AT(100 + entry as u64)));
        }
        let mut looked = 0;
        for now in 0..1_000 {
            for entry in deadlines.due(AT(now)) {
                assert!(100 + entry as u64 <= now);
                deadlines.set(entry, Some(AT(now + 50)));
                looked += 1;
            }
            let next = deadlines.next().expect("all are there");
            assert!(next > AT(now));
        }
        // Each of the 900 that came due in time, every 50 ms from then on.
        let want: u64 = (100..1_000).map(|first| 1 + (999 - first) / 50).sum();
        assert_eq!(looked, want);
    }

    #[test]
    fn a_place_is_in_it_once_and_leaves() {
        let mut deadlines = Deadlines::default();
        deadlines.set(7, Some(AT(10)));
        deadlines.set(7, Some(AT(5)));
        deadlines.set(3, Some(AT(8)));
        assert_eq!(deadlines.due(AT(10)), [7, 3]);
        deadlines.set(7, None);
        assert_eq!(
            (deadlines.due(AT(10)), deadlines.next()),
            (vec![3], Some(AT(8)))
        );
        assert_eq!(deadlines.entries().collect::<Vec<_>>(), [3]);
        deadlines.set(3, None);
        assert_eq!(deadlines.next(), None);
    }
}
