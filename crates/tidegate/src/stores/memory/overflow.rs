//! Counters that new subjects share when the store cannot grow: 4,096 for each rate of a rule.
//!
//! Each has the full limit, so new subjects are limited together and not locked out. These counters have shards and a
//! budget of their own, so that a flood that fills the store cannot take their room. When even that budget is spent,
//! the 4,096 counters become 16 for the rule.
//!
//! Invariant: a subject that was charged here does not start afresh when the store has room again. Its new counter
//! begins as a copy of the shared one. Lock order: after all other shards, in ascending order.

use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::Charge;
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use super::block::Secs;
use super::budget::Budget;
use super::key::Key;
use super::shard::Shard;

/// Number of counters that the subjects of one rate share.
const GROUPS: u64 = 4_096;
/// Number of overflow shards.
const SHARDS: usize = 16;

pub(super) struct Overflow {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    pub(super) budget: Budget,
    /// One bit for each shard in which a subject may have been charged. Written only under the shard's lock.
    in_use: AtomicU32,
}

/// The keys of what the subjects of one rule share, in one overflow shard.
#[derive(Clone, Copy)]
pub(super) struct SharedKeys {
    pub(super) shard: usize,
    /// Shared with one subject in 4,096.
    pub(super) group: Key,
    /// Shared with one subject in 16: all subjects of the shard.
    pub(super) last_resort: Key,
}

impl SharedKeys {
    /// `id_of` returns the id of the counter, or of the permits, of a subject.
    pub(super) fn of(subject: Fingerprint, id_of: impl Fn(Fingerprint) -> u128) -> SharedKeys {
        let group = subject.seed() % GROUPS;
        let shard = group as usize % SHARDS;
        let key = |number: u64| Key::within_shard(id_of(Fingerprint::new(u128::from(number))));
        SharedKeys { shard, group: key(group), last_resort: key(GROUPS + shard as u64) }
    }

    pub(super) fn of_counter(charge: &Charge<'_>) -> SharedKeys {
        SharedKeys::of(charge.subject, |subject| charge.rule.counter(subject, charge.rate))
    }

    /// The phase of staggered windows of the shared counter: the same for every subject.
    pub(super) fn seed(&self) -> u64 {
        self.shard as u64
    }

    /// The charge as the shared counter applies it. Every subject has its own staggered windows; a shared count read
    /// under the windows of one subject and then of another would never stay.
    pub(super) fn shared_charge<'c>(&self, charge: &'c Charge<'_>) -> Charge<'c> {
        Charge { limit: charge.limit.in_phase(Some(self.seed())), ..*charge }
    }

    /// The state of the shared counter, converted to be the first state of a counter of `limit`.
    pub(super) fn inherited(&self, state: CounterState, limit: &Limit, now: Nanos) -> CounterState {
        if !limit.is_staggered() {
            return state;
        }
        let (shared_limit, mut state) = (limit.in_phase(Some(self.seed())), state);
        let at = shared_limit.advance(&mut state, now);
        limit.with_used(shared_limit.used(&state, at), now)
    }
}

impl Overflow {
    pub(super) fn new(cap: u64) -> Self {
        Overflow {
            shards: std::array::from_fn(|_| CachePadded::new(Mutex::new(Shard::new()))),
            budget: Budget::with_spare(cap - cap / 4, cap / 4),
            in_use: AtomicU32::new(0),
        }
    }

    pub(super) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock()
    }

    /// Whether any subject may have been charged here. A charged subject calls this only under the lock of its own
    /// shard, which it held when it was charged: so it cannot read a stale value.
    pub(super) fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire) != 0
    }

    /// Must be called before the lock under which an entry was added to a shard is released.
    pub(super) fn mark_used(&self, shard: usize) {
        self.in_use.fetch_or(1 << shard, Ordering::AcqRel);
    }

    /// Drops expired counters. Returns how many.
    pub(super) fn sweep(&self, now: Secs) -> u64 {
        let mut swept = 0;
        self.for_each_table(|index, shard, table| {
            swept += u64::from(shard.sweep(table, now, &self.budget));
            if shard.len() == 0 {
                self.in_use.fetch_and(!(1 << index), Ordering::AcqRel);
            }
        });
        swept
    }

    /// Adds the tags of live counters to `round`.
    pub(super) fn add_tags(&self, now: Secs, round: &mut impl Extend<u32>) {
        self.for_each_table(|_, shard, table| round.extend(shard.tags(table, now)));
    }

    /// Visits all tables, each with the index of its shard, its shard and its index there. One lock is held at a time,
    /// for one table: new subjects wait for a shard while they hold their own.
    fn for_each_table(&self, mut visit: impl FnMut(usize, &mut Shard, usize)) {
        for (index, shard) in self.shards.iter().enumerate() {
            let mut table = 0;
            loop {
                let mut shard = shard.lock();
                visit(index, &mut shard, table);
                table += 1;
                if table >= shard.tables() {
                    break;
                }
            }
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::memory::block::{EntryKind, TableEntry};

    fn add(overflow: &Overflow, shard: usize, id: u128, expires: Secs) {
        let mut locked = overflow.lock(shard);
        let entry = TableEntry { key: Key::within_shard(id), words: [0; 2], kind: EntryKind::Bucket, expires, tag: 0 };
        locked.insert(&entry, Secs::ZERO, &overflow.budget);
        overflow.mark_used(shard);
    }

    /// Shards of several tables, in which all counters but one expire soon.
    fn filled() -> Overflow {
        let overflow = Overflow::new(1 << 24);
        let late = Secs::expiry(Nanos::ZERO, Nanos::from_secs(100));
        let soon = Secs::expiry(Nanos::ZERO, Nanos::from_secs(10));
        for shard in 0..SHARDS {
            for id in 0..5_000_u128 {
                let mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
                add(&overflow, shard, mixed, if id == 0 { late } else { soon });
            }
        }
        overflow
    }

    /// A sweep held the locks of all shards, and every new subject waited for the whole of it.
    #[test]
    fn a_sweep_holds_one_lock_at_a_time() {
        let overflow = filled();
        let now = Secs::present(Nanos::ZERO, Nanos::from_secs(50));
        let mut visits = [0; SHARDS];
        overflow.for_each_table(|held, _, _| {
            visits[held] += 1;
            let free = |(_, shard): &(usize, &CachePadded<Mutex<Shard>>)| shard.try_lock().is_some();
            let free = overflow.shards.iter().enumerate().filter(free);
            assert_eq!(free.count(), SHARDS - 1);
        });
        assert_eq!(overflow.sweep(now), SHARDS as u64 * 4_999);
        assert!(visits.iter().all(|visits| *visits > 1), "a lock for each table: {visits:?}");
        assert!(overflow.in_use());
        let end = Secs::present(Nanos::ZERO, Nanos::from_secs(200));
        assert_eq!(overflow.sweep(end), SHARDS as u64);
        assert!(!overflow.in_use());
    }

    /// Counts how often tags are added, which is once for each lock.
    #[derive(Default)]
    struct TagBatches(Vec<usize>);

    impl Extend<u32> for TagBatches {
        fn extend<T: IntoIterator<Item = u32>>(&mut self, tags: T) {
            self.0.push(tags.into_iter().count());
        }
    }

    /// The tags of a whole shard were collected under one lock, while new subjects waited.
    #[test]
    fn tags_are_collected_with_a_lock_for_each_table() {
        let overflow = filled();
        let mut batches = TagBatches::default();
        overflow.add_tags(Secs::present(Nanos::ZERO, Nanos::from_secs(1)), &mut batches);
        assert!(batches.0.len() > SHARDS, "{}", batches.0.len());
        assert_eq!(batches.0.iter().sum::<usize>(), SHARDS * 5_000);
    }
}
