//! Decides which entry leaves a full table: the one that expires first.
//!
//! A heap holds the expiry of every entry as of its last visit. An entry that was used since expires later than the
//! heap says, and is corrected when it comes up. One eviction visits at most `MAX_LOOKS` entries, however large the
//! table is. An entry that expires late stays deep in the heap, so a flood of short-lived entries does not evict it.
//! Knows no table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::units::Nanos;

/// Entries visited for one eviction. With more, an eviction is slower and hardly chooses better.
const MAX_LOOKS: usize = 16;
/// Stale heap items that are tolerated in a small table.
const MAX_STALE: usize = 64;

/// The order in which the entries of one table are evicted.
#[derive(Debug, Default)]
pub(crate) struct EvictionOrder {
    heap: BinaryHeap<Reverse<(Nanos, u128)>>,
}

impl EvictionOrder {
    /// An entry was inserted that expires at `end`.
    pub(crate) fn insert(&mut self, counter: u128, end: Nanos) {
        self.heap.push(Reverse((end, counter)));
    }

    /// Takes the entry to evict. `end_of` returns when an entry expires, or `None` if it was removed.
    pub(crate) fn take(&mut self, end_of: impl Fn(u128) -> Option<Nanos>) -> Option<u128> {
        for _ in 0..MAX_LOOKS {
            let Reverse((known, counter)) = self.heap.pop()?;
            match end_of(counter) {
                Some(end) if end > known => self.insert(counter, end),
                Some(_) => return Some(counter),
                None => {}
            }
        }
        // All of them were used since. The one with the earliest recorded expiry is evicted.
        loop {
            let Reverse((_, counter)) = self.heap.pop()?;
            if end_of(counter).is_some() {
                return Some(counter);
            }
        }
    }

    /// Whether most of the heap belongs to entries that were removed without an eviction.
    pub(crate) fn is_stale(&self, entries: usize) -> bool {
        self.heap.len() > 2 * entries + MAX_STALE
    }

    /// Rebuilds the heap from the entries of the table.
    pub(crate) fn rebuild(&mut self, entries: impl Iterator<Item = (u128, Nanos)>) {
        self.heap = entries.map(|(counter, end)| Reverse((end, counter))).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::HashMap;

    /// A table, and how often its entries were visited.
    #[derive(Default)]
    struct EvictingTable {
        ends: HashMap<u128, Nanos>,
        order: EvictionOrder,
        looks: Cell<usize>,
    }

    impl EvictingTable {
        fn insert(&mut self, counter: u128, end: u64) {
            self.ends.insert(counter, Nanos::new(end));
            self.order.insert(counter, Nanos::new(end));
        }

        fn evict(&mut self) -> Option<u128> {
            let end_of = |counter| {
                self.looks.set(self.looks.get() + 1);
                self.ends.get(&counter).copied()
            };
            let counter = self.order.take(end_of)?;
            self.ends.remove(&counter).map(|_| counter)
        }
    }

    #[test]
    fn the_entry_that_expires_first_is_evicted_first() {
        let mut table = EvictingTable::default();
        for (counter, end) in [(1, 30), (2, 10), (3, 20)] {
            table.insert(counter, end);
        }
        table.ends.insert(2, Nanos::new(25)); // was used again
        assert_eq!(table.evict(), Some(3));
        assert_eq!(table.evict(), Some(2));
        assert_eq!(table.evict(), Some(1));
        assert_eq!(table.evict(), None);
    }

    /// Every new key of a flood once walked the whole table twice.
    #[test]
    fn an_eviction_visits_few_entries_however_large_the_table_is() {
        for entries in [100, 6_250, 100_000] {
            let mut table = EvictingTable::default();
            for counter in 0..entries {
                table.insert(counter, 1_000);
            }
            // The worst case: all of them were used since.
            for end in table.ends.values_mut() {
                *end = Nanos::new(2_000);
            }
            for new in 0..50 {
                table.looks.set(0);
                assert!(table.evict().is_some());
                assert!(table.looks.get() <= MAX_LOOKS + 1, "{}", table.looks.get());
                table.insert(entries + new, 3_000);
            }
        }
    }

    #[test]
    fn a_flood_does_not_evict_entries_that_expire_late() {
        let mut table = EvictingTable::default();
        for counter in 0..100 {
            table.insert(counter, 1_000_000);
        }
        for counter in 100..6_250 {
            table.insert(counter, 1_000);
        }
        for flood in 0..50_000 {
            assert!(table.evict().is_some_and(|counter| counter >= 100));
            table.insert(10_000 + flood, 1_000 + u64::try_from(flood).unwrap() / 100);
        }
        assert!((0..100).all(|counter| table.ends.contains_key(&counter)));
    }

    #[test]
    fn removed_entries_are_skipped_and_do_not_pile_up() {
        let mut table = EvictingTable::default();
        for round in 0..200 {
            table.insert(1, round);
            table.ends.remove(&1);
        }
        table.insert(2, 500);
        assert!(table.order.is_stale(table.ends.len()));
        assert_eq!(table.evict(), Some(2));
        table.insert(3, 600);
        let entries: Vec<_> = table.ends.iter().map(|(c, end)| (*c, *end)).collect();
        table.order.rebuild(entries.into_iter());
        assert!(!table.order.is_stale(table.ends.len()));
        assert_eq!(table.evict(), Some(3));
    }
}
