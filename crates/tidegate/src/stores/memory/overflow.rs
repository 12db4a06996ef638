//! Counters that new subjects share when the store may not grow: 4,096 for each rate of a rule.
//!
//! Each has the full limit, so newcomers are limited together and not locked out. They have shards
//! and a budget of their own, so that a flood that fills the store cannot take their place. When even
//! that budget is spent, what was one of 4,096 becomes one of 16 for the rule.
//!
//! A subject that once was charged here must not start afresh when the store has room again: a new
//! counter of its own begins as a copy of the one it shared. Lock order: after all other shards, in
//! ascending order.

use std::borrow::Cow;
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

/// Counters that the subjects of one rate share.
const GROUPS: u64 = 4_096;
/// Shards they are kept in.
const SHARDS: usize = 16;

pub(super) struct Overflow {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    pub(super) budget: Budget,
    /// One bit for each shard in which a subject may have been charged. Written only under its lock.
    in_use: AtomicU32,
}

/// Where the shared counters of one charge are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SharedCounterKeys {
    pub(super) shard: usize,
    /// Shared with one subject in 4,096.
    pub(super) group: Key,
    /// Shared with one subject in 16.
    pub(super) last_resort: Key,
    /// Where staggered windows of the shared counter begin: in one place, whoever asks.
    seed: u64,
}

/// The subject that stands in for one in 4,096.
pub(super) struct OverflowSubject {
    pub(super) shard: usize,
    pub(super) subject: Fingerprint,
}

impl OverflowSubject {
    pub(super) fn of(subject: Fingerprint) -> OverflowSubject {
        let group = subject.seed() % GROUPS;
        OverflowSubject {
            shard: group as usize % SHARDS,
            subject: Fingerprint::new(u128::from(group)),
        }
    }

    /// The subject that stands in for one in 16: all of a shard.
    pub(super) fn last_resort(shard: usize) -> Fingerprint {
        Fingerprint::new(u128::from(GROUPS + shard as u64))
    }
}

impl SharedCounterKeys {
    pub(super) fn of(charge: &Charge<'_>) -> SharedCounterKeys {
        let OverflowSubject { shard, subject } = OverflowSubject::of(charge.subject);
        let key = |subject| Key::within_shard(charge.rule.counter(subject, charge.rate));
        SharedCounterKeys {
            shard,
            group: key(subject),
            last_resort: key(OverflowSubject::last_resort(shard)),
            seed: shard as u64,
        }
    }

    /// `limit` as the shared counter keeps it. Every subject has staggered windows of its own; read
    /// under one subject's and then under another's, a shared count would never stay.
    pub(super) fn effective_limit<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        match limit.is_staggered() {
            true => Cow::Owned(limit.for_subject(self.seed)),
            false => Cow::Borrowed(limit),
        }
    }

    /// A state of the shared counter as the beginning of one of `limit`'s own.
    pub(super) fn inherited(&self, state: CounterState, limit: &Limit, now: Nanos) -> CounterState {
        if !limit.is_staggered() {
            return state;
        }
        let (shared_limit, mut state) = (self.effective_limit(limit), state);
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

    /// A subject that was charged here is seen again only under the lock of its own shard, which it
    /// held when it was charged: so it cannot read a stale answer.
    pub(super) fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire) != 0
    }

    /// To be called before the lock under which something was added to a shard is released.
    pub(super) fn mark_used(&self, shard: usize) {
        self.in_use.fetch_or(1 << shard, Ordering::AcqRel);
    }

    /// Drops what has expired; how many counters left. One lock is held at a time, for one table: newcomers
    /// wait for a shard while they hold their own.
    pub(super) fn sweep(&self, now: Secs) -> u64 {
        self.sweep_tables(now, |_| {})
    }

    /// `visited` is called with the index of each shard while it is locked.
    fn sweep_tables(&self, now: Secs, mut visited: impl FnMut(usize)) -> u64 {
        let (mut swept, in_use) = (0, self.in_use.load(Ordering::Acquire));
        for (index, shard) in self.shards.iter().enumerate() {
            if in_use & (1 << index) == 0 {
                continue;
            }
            let mut table = 0;
            loop {
                let mut shard = shard.lock();
                visited(index);
                swept += u64::from(shard.sweep(table, now, &self.budget));
                table += 1;
                if table < shard.tables() {
                    continue;
                }
                if shard.len() == 0 {
                    self.in_use.fetch_and(!(1 << index), Ordering::AcqRel);
                }
                break;
            }
        }
        swept
    }

    /// The tags of live counters.
    pub(super) fn tags(&self, now: Secs, mut found: impl FnMut(u32)) {
        for shard in &self.shards {
            let shard = shard.lock();
            (0..shard.tables()).for_each(|table| shard.tags(table, now, &mut found));
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
        let entry = TableEntry {
            key: Key::within_shard(id),
            words: [0; 2],
            kind: EntryKind::Bucket,
            expires,
            tag: 0,
        };
        locked.insert(&entry, Secs::ZERO, &overflow.budget);
        overflow.mark_used(shard);
    }

    /// A sweep held the locks of all shards, and every newcomer waited for the whole of it.
    #[test]
    fn a_sweep_holds_one_lock_at_a_time() {
        let overflow = Overflow::new(1 << 24);
        let late = Secs::expiry(Nanos::ZERO, Nanos::from_secs(100));
        let soon = Secs::expiry(Nanos::ZERO, Nanos::from_secs(10));
        for shard in 0..SHARDS {
            for id in 0..5_000_u128 {
                let mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
                add(&overflow, shard, mixed, if id == 0 { late } else { soon });
            }
        }
        let now = Secs::present(Nanos::ZERO, Nanos::from_secs(50));
        let mut visits = [0; SHARDS];
        let swept = overflow.sweep_tables(now, |held| {
            visits[held] += 1;
            let free =
                |(_, shard): &(usize, &CachePadded<Mutex<Shard>>)| shard.try_lock().is_some();
            let free = overflow.shards.iter().enumerate().filter(free);
            assert_eq!(free.count(), SHARDS - 1);
        });
        assert_eq!(swept, SHARDS as u64 * 4_999);
        assert!(
            visits.iter().all(|visits| *visits > 1),
            "a lock for each table: {visits:?}"
        );
        assert!(overflow.in_use());
        let end = Secs::present(Nanos::ZERO, Nanos::from_secs(200));
        assert_eq!(overflow.sweep(end), SHARDS as u64);
        assert!(!overflow.in_use());
    }
}
