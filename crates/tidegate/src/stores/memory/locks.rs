//! The shards of all counters of one request, locked together.
//!
//! Lock order: shards by ascending index, then overflow shards by ascending index. Every operation that needs more than
//! one lock takes them here, so no two requests can deadlock.

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tidegate_core::store::Charge;

use super::MemoryStore;
use super::key::Key;
use super::shard::Shard;

type ShardGuards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>;

/// Shards that stay locked until this is dropped.
pub(super) struct Locks<'a> {
    own: ShardGuards<'a>,
    shared: ShardGuards<'a>,
}

impl<C> MemoryStore<C> {
    /// Locks the shards of the counters of `charges`.
    pub(super) fn lock_counters(&self, charges: &[Charge<'_>]) -> Locks<'_> {
        self.lock_all(charges.iter().map(|charge| Key::of(charge.counter())))
    }

    /// Locks the shards of `keys`.
    pub(super) fn lock_all(&self, keys: impl Iterator<Item = Key>) -> Locks<'_> {
        Locks { own: guards(keys.map(Key::shard), |index| self.shards[index].lock()), shared: ShardGuards::new() }
    }

    /// Adds overflow shards. Must be called at most once, because of the lock order.
    pub(super) fn lock_shared<'a>(&'a self, locks: &mut Locks<'a>, shards: impl Iterator<Item = usize>) {
        locks.shared = guards(shards, |index| self.overflow.lock(index));
    }
}

fn guards<'a>(indices: impl Iterator<Item = usize>, lock: impl Fn(usize) -> MutexGuard<'a, Shard>) -> ShardGuards<'a> {
    let mut sorted: SmallVec<[usize; 8]> = indices.collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.into_iter().map(|index| (index, lock(index))).collect()
}

impl Locks<'_> {
    /// The locked shard of `key`.
    pub(super) fn own(&mut self, key: Key) -> &mut Shard {
        guard_of(&mut self.own, key.shard())
    }

    /// A locked overflow shard.
    pub(super) fn shared(&mut self, index: usize) -> &mut Shard {
        guard_of(&mut self.shared, index)
    }
}

fn guard_of<'g>(guards: &'g mut ShardGuards<'_>, index: usize) -> &'g mut Shard {
    let found = guards.iter_mut().find(|(held, _)| *held == index);
    let (_, guard) = found.expect("a shard is used only after it was locked");
    guard
}
