//! A map by counter, in stripes with a lock each.
//!
//! Counters are keyed fingerprints and evenly distributed: they need no further hashing, and the order of iteration
//! depends only on what was inserted, so a simulated run can be replayed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::units::Nanos;

use crate::shard::node::eviction::EvictionOrder;

const STRIPES: usize = 16;

/// Uses the bits of a counter as its hash.
#[derive(Clone, Copy, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_ne_bytes(word);
        }
    }

    fn write_u128(&mut self, bits: u128) {
        self.0 = (bits ^ (bits >> 64)) as u64;
    }
}

type CounterMap<T> = HashMap<u128, T, BuildHasherDefault<IdentityHasher>>;

/// One stripe of the map.
pub(crate) struct Stripe<T> {
    map: CounterMap<T>,
    /// Which entry is evicted first, for maps that evict.
    order: EvictionOrder,
}

impl<T> Default for Stripe<T> {
    fn default() -> Self {
        Stripe { map: CounterMap::default(), order: EvictionOrder::default() }
    }
}

impl<T> Deref for Stripe<T> {
    type Target = CounterMap<T>;

    fn deref(&self) -> &CounterMap<T> {
        &self.map
    }
}

impl<T> DerefMut for Stripe<T> {
    fn deref_mut(&mut self) -> &mut CounterMap<T> {
        &mut self.map
    }
}

impl<T> Stripe<T> {
    /// Inserts an entry into a stripe of at most `max`. Returns the entry that is evicted, which may be the new one.
    /// `end_of` returns until when an entry matters.
    fn insert_evicting(&mut self, max: usize, counter: u128, entry: T, end_of: impl Fn(&T) -> Nanos) -> Option<T> {
        self.order.insert(counter, end_of(&entry));
        self.map.insert(counter, entry);
        let map = &self.map;
        if self.order.is_stale(map.len()) {
            self.order.rebuild(map.iter().map(|(counter, entry)| (*counter, end_of(entry))));
        }
        if map.len() <= max {
            return None;
        }
        let evicted = self.order.take(|counter| map.get(&counter).map(&end_of));
        self.map.remove(&evicted.unwrap_or(counter))
    }
}

/// A map by counter.
pub(crate) struct StripedMap<T> {
    stripes: [Mutex<Stripe<T>>; STRIPES],
    /// The maximum number of entries of a stripe.
    max_per_stripe: usize,
    changes: AtomicU64,
}

impl<T> StripedMap<T> {
    /// A map of about `max` entries.
    pub(crate) fn new(max: usize) -> Self {
        StripedMap {
            stripes: std::array::from_fn(|_| Mutex::default()),
            max_per_stripe: max.div_ceil(STRIPES).max(1),
            changes: AtomicU64::new(0),
        }
    }

    /// The stripe of `counter`, locked.
    pub(crate) fn stripe(&self, counter: u128) -> MutexGuard<'_, Stripe<T>> {
        let at = (counter >> 64) as usize % STRIPES;
        self.stripes[at].lock()
    }

    /// The same for a change that must be saved.
    pub(crate) fn change(&self, counter: u128) -> MutexGuard<'_, Stripe<T>> {
        let stripe = self.stripe(counter);
        // Counted under the lock: whoever reads the count and then the map reads the change too.
        self.changes.fetch_add(1, Ordering::AcqRel);
        stripe
    }

    /// How often `change` was called.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Each stripe in turn, locked.
    pub(crate) fn stripes(&self) -> impl Iterator<Item = MutexGuard<'_, Stripe<T>>> {
        self.stripes.iter().map(Mutex::lock)
    }

    /// Inserts an entry into its stripe. Returns the entry that is evicted from a full one, which may be the new one.
    /// `end_of` returns until when an entry matters.
    pub(crate) fn insert_evicting(
        &self,
        stripe: &mut Stripe<T>,
        counter: u128,
        entry: T,
        end_of: impl Fn(&T) -> Nanos,
    ) -> Option<T> {
        stripe.insert_evicting(self.max_per_stripe, counter, entry, end_of)
    }

    /// Whether a stripe has room for one more entry.
    pub(crate) fn has_room(&self, stripe: &Stripe<T>) -> bool {
        stripe.len() < self.max_per_stripe
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// In a full map, each new counter once walked all entries of its stripe twice, under the lock and on the path of a
    /// decision.
    #[test]
    fn a_new_entry_of_a_full_stripe_visits_few_others() {
        let counters: StripedMap<Nanos> = StripedMap::new(100_000);
        let looks = Cell::new(0);
        let end_of = |end: &Nanos| {
            looks.set(looks.get() + 1);
            *end
        };
        let mut stripe = counters.stripe(0);
        for counter in 0..20_000 {
            looks.set(0);
            counters.insert_evicting(&mut stripe, counter, Nanos::new(1_000), end_of);
            assert!(looks.get() <= 20, "{} looks", looks.get());
        }
        assert_eq!(stripe.len(), 6_250);
    }

    #[test]
    fn removed_entries_do_not_pile_up_in_the_eviction_order() {
        let counters: StripedMap<Nanos> = StripedMap::new(16);
        let mut stripe = counters.stripe(0);
        for round in 0..10_000 {
            counters.insert_evicting(&mut stripe, 7, Nanos::new(round), |end| *end);
            stripe.remove(&7);
        }
        counters.insert_evicting(&mut stripe, 8, Nanos::new(1), |end| *end);
        assert!(!stripe.order.is_stale(stripe.len()));
        // The stripe has room for one.
        assert_eq!(counters.insert_evicting(&mut stripe, 9, Nanos::new(2), |end| *end), Some(Nanos::new(1)));
    }
}
