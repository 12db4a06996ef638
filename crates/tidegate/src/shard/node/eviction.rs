//! Decides which entry leaves a full table: the one that matters least.
//!
//! An entry matters until an instant, see [`evictable_at`]. A heap holds the instant of every entry as of its last
//! visit. An entry that was used since matters longer than the heap says, and is corrected when it comes up. One eviction
//! visits at most `MAX_LOOKS` entries, however large the table is. An entry that matters long stays deep in the heap, so
//! a flood of entries with little use does not evict it. Knows no table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::units::Nanos;

/// Entries visited for one eviction. With more, an eviction is slower and hardly chooses better.
const MAX_LOOKS: usize = 16;
/// Stale heap items that are tolerated in a small table.
const MAX_STALE: usize = 64;

/// Until when a counter matters that has a state of `limit` as of `at` and drains by `fresh_at`: the less of its limit
/// is in use, the sooner it is evicted. By `fresh_at` alone, all counters of one window would be equal, and one unit of
/// another client would evict a client that has used up everything.
pub(crate) fn evictable_at(limit: &Limit, state: &CounterState, at: Nanos, fresh_at: Nanos) -> Nanos {
    let (mut state, capacity) = (state.clone(), limit.full_capacity().max(1));
    let moment = limit.advance(&mut state, at);
    let used = limit.used(&state, moment).min(capacity);
    let lasts = u128::from(fresh_at.since(at).get()) * u128::from(used) / u128::from(capacity);
    at.plus(Nanos::new(u64::try_from(lasts).unwrap_or(u64::MAX)))
}

/// The order in which the entries of one table are evicted.
#[derive(Debug, Default)]
pub(crate) struct EvictionOrder {
    heap: BinaryHeap<Reverse<(Nanos, u128)>>,
}

impl EvictionOrder {
    /// An entry was inserted that matters until `end`.
    pub(crate) fn insert(&mut self, counter: u128, end: Nanos) {
        self.heap.push(Reverse((end, counter)));
    }

    /// Takes the entry to evict. `end_of` returns until when an entry matters, or `None` if it was removed. `None` if all
    /// visited entries were used since.
    pub(crate) fn take(&mut self, end_of: impl Fn(u128) -> Option<Nanos>) -> Option<u128> {
        let mut used_since = 0;
        while used_since < MAX_LOOKS {
            let Reverse((known, counter)) = self.heap.pop()?;
            match end_of(counter) {
                Some(end) if end > known => {
                    self.insert(counter, end);
                    used_since += 1;
                }
                Some(_) => return Some(counter),
                None => {}
            }
        }
        None
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
                table.evict();
                assert!(table.looks.get() <= MAX_LOOKS, "{}", table.looks.get());
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
