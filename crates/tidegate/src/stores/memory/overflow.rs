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
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use tidegate_core::algorithms::{Limit, State};
use tidegate_core::store::Charge;
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use super::block::Secs;
use super::budget::Budget;
use super::key::Key;
use super::shard::Shard;

/// Counters that the subjects of one rate share.
const PARTS: u64 = 4_096;
/// Shards they are kept in.
const SHARDS: usize = 16;

pub(super) struct Overflow {
    shards: [CachePadded<Mutex<Shard>>; SHARDS],
    pub(super) budget: Budget,
    /// Whether any subject may have been charged here. Written only under a shard's lock.
    in_use: AtomicBool,
}

/// Where the shared counters of one charge are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) shard: usize,
    /// Shared with one subject in 4,096.
    pub(super) part: Key,
    /// Shared with one subject in 16.
    pub(super) last_resort: Key,
    /// Where staggered windows of the shared counter begin: in one place, whoever asks.
    seed: u64,
}

/// The subject that stands in for one in 4,096.
pub(super) struct StandIn {
    pub(super) shard: usize,
    pub(super) subject: Fingerprint,
}

impl StandIn {
    pub(super) fn of(subject: Fingerprint) -> StandIn {
        let part = subject.seed() % PARTS;
        StandIn {
            shard: part as usize % SHARDS,
            subject: Fingerprint::new(u128::from(part)),
        }
    }
}

impl Shared {
    pub(super) fn of(charge: &Charge<'_>) -> Shared {
        let StandIn { shard, subject } = StandIn::of(charge.subject);
        let key = |subject| Key::within_shard(charge.rule.counter(subject, charge.rate));
        Shared {
            shard,
            part: key(subject),
            last_resort: key(Fingerprint::new(u128::from(PARTS + shard as u64))),
            seed: shard as u64,
        }
    }

    /// `limit` as the shared counter keeps it. Every subject has staggered windows of its own; read
    /// under one subject's and then under another's, a shared count would never stay.
    pub(super) fn keeps<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        match limit.is_staggered() {
            true => Cow::Owned(limit.for_subject(self.seed)),
            false => Cow::Borrowed(limit),
        }
    }

    /// A state of the shared counter as the beginning of one of `limit`'s own.
    pub(super) fn inherited(&self, state: State, limit: &Limit, now: Nanos) -> State {
        if !limit.is_staggered() {
            return state;
        }
        let (kept, mut state) = (self.keeps(limit), state);
        let at = kept.advance(&mut state, now);
        limit.holding(kept.used(&state, at), now)
    }
}

impl Overflow {
    pub(super) fn new(cap: u64) -> Self {
        Overflow {
            shards: std::array::from_fn(|_| CachePadded::new(Mutex::new(Shard::new()))),
            budget: Budget::new(cap),
            in_use: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock()
    }

    /// A subject that was charged here is seen again only under the lock of its own shard, which it
    /// held when it was charged: so it cannot read a stale answer.
    pub(super) fn in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// Told before the lock under which a counter was added here is given up.
    pub(super) fn used(&self) {
        self.in_use.store(true, Ordering::Release);
    }

    /// Drops what has expired; how many counters left.
    pub(super) fn sweep(&self, now: Secs) -> u64 {
        if !self.in_use() {
            return 0;
        }
        let mut shards: Vec<_> = self.shards.iter().map(|shard| shard.lock()).collect();
        let mut swept = 0;
        for shard in &mut shards {
            for table in 0..shard.tables() {
                swept += u64::from(shard.sweep(table, now, &self.budget));
            }
        }
        if shards.iter().all(|shard| shard.len() == 0) {
            self.in_use.store(false, Ordering::Release);
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
