//! A map by counter, in parts with a lock each.
//!
//! Counters are keyed fingerprints, spread evenly by their making: they need no further hashing, and
//! iteration depends on nothing but what was inserted, so that a simulated run replays.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::units::Nanos;

use super::eviction::EvictionOrder;

const PARTS: usize = 16;

/// Takes a counter's own bits for a hash.
#[derive(Clone, Copy, Default)]
pub(super) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 ^= u64::from_ne_bytes(word);
        }
    }

    fn write_u128(&mut self, bits: u128) {
        self.0 = (bits ^ (bits >> 64)) as u64;
    }
}

type CounterMap<T> = HashMap<u128, T, BuildHasherDefault<AsIs>>;

/// One part of the map.
pub(super) struct Part<T> {
    map: CounterMap<T>,
    /// Which entry leaves first, for maps that evict.
    order: EvictionOrder,
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Part {
            map: CounterMap::default(),
            order: EvictionOrder::default(),
        }
    }
}

impl<T> Deref for Part<T> {
    type Target = CounterMap<T>;

    fn deref(&self) -> &CounterMap<T> {
        &self.map
    }
}

impl<T> DerefMut for Part<T> {
    fn deref_mut(&mut self) -> &mut CounterMap<T> {
        &mut self.map
    }
}

impl<T> Part<T> {
    /// Inserts an entry that may be evicted. `end_of` says when an entry expires.
    pub(super) fn insert_evictable(
        &mut self,
        counter: u128,
        entry: T,
        end_of: impl Fn(&T) -> Nanos,
    ) {
        self.order.insert(counter, end_of(&entry));
        self.map.insert(counter, entry);
        if self.order.is_stale(self.map.len()) {
            let entries = self.map.iter();
            self.order
                .rebuild(entries.map(|(counter, entry)| (*counter, end_of(entry))));
        }
    }

    /// Evicts the entry that expires first, of those that were inserted to be evicted. False if there is
    /// none.
    pub(super) fn evict(&mut self, end_of: impl Fn(&T) -> Nanos) -> bool {
        let map = &self.map;
        let evicted = self.order.take(|counter| map.get(&counter).map(&end_of));
        evicted.is_some_and(|counter| self.map.remove(&counter).is_some())
    }
}

/// A map by counter.
pub(super) struct Counters<T> {
    parts: [Mutex<Part<T>>; PARTS],
    /// The most entries of a part.
    most: usize,
}

impl<T> Counters<T> {
    /// A map of about `most` entries.
    pub(super) fn new(most: usize) -> Self {
        Counters {
            parts: std::array::from_fn(|_| Mutex::default()),
            most: most.div_ceil(PARTS).max(1),
        }
    }

    /// The part that holds `counter`, locked.
    pub(super) fn part(&self, counter: u128) -> MutexGuard<'_, Part<T>> {
        let at = (counter >> 64) as usize % PARTS;
        self.parts[at].lock()
    }

    /// Each part in turn, locked.
    pub(super) fn parts(&self) -> impl Iterator<Item = MutexGuard<'_, Part<T>>> {
        self.parts.iter().map(Mutex::lock)
    }

    /// Whether a part has room for one more.
    pub(super) fn has_room(&self, part: &Part<T>) -> bool {
        part.len() < self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Past the bound, each new counter once walked all entries of its part twice, under the lock and on
    /// the path of a decision.
    #[test]
    fn a_new_entry_of_a_full_part_looks_at_few_others() {
        let counters: Counters<Nanos> = Counters::new(100_000);
        let looks = Cell::new(0);
        let end_of = |end: &Nanos| {
            looks.set(looks.get() + 1);
            *end
        };
        let mut part = counters.part(0);
        for counter in 0..20_000 {
            looks.set(0);
            let room = counters.has_room(&part) || part.evict(end_of);
            assert!(room);
            part.insert_evictable(counter, Nanos::new(1_000), end_of);
            assert!(looks.get() <= 20, "{} looks", looks.get());
        }
        assert_eq!(part.len(), 6_250);
    }

    #[test]
    fn what_was_removed_otherwise_does_not_pile_up_in_the_order() {
        let counters: Counters<Nanos> = Counters::new(16);
        let mut part = counters.part(0);
        for round in 0..10_000 {
            part.insert_evictable(7, Nanos::new(round), |end| *end);
            part.remove(&7);
        }
        part.insert_evictable(8, Nanos::new(1), |end| *end);
        assert!(!part.order.is_stale(part.len()));
        assert!(part.evict(|end| *end) && part.is_empty());
    }
}
