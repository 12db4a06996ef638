//! Several charges of one request, decided together: all are charged or none is.
//!
//! The counters are read under their locks, decided as copies, and written when the verdict on the whole request is
//! known. A subject without room for a counter uses a shared one.

use smallvec::SmallVec;
use tidegate_core::algorithms::CounterState;
use tidegate_core::store::{Charge, ChargeIntent, ChargeTransaction, Outcome, Source};
use tidegate_core::units::Nanos;

use super::counter_io::{CounterWrite, TimePoint};
use super::key::Key;
use super::locks::Locks;
use super::overflow::SharedKeys;
use super::shard::Shard;
use super::{MemoryStore, count};

/// Where a counter is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct CounterPlace {
    key: Key,
    /// The overflow shard, for a counter that several subjects share.
    shared: Option<usize>,
    /// Whether it is, or begins as, a shared one.
    pub(super) source: Source,
}

type MemoryTransaction<'c> = ChargeTransaction<'c, CounterPlace>;

/// The result of looking up the counter of one charge.
enum CounterLookup {
    /// The subject has its own counter.
    Found(CounterState),
    /// There is none, and room for one.
    Fresh,
    /// There is none, and the subject may have been charged to a shared one. If there is room, it has a counter of its
    /// own that begins as a copy of that.
    Shared { has_room: bool },
}

impl<C> MemoryStore<C> {
    /// Decides the charges of a set.
    pub(super) fn decide(&self, charges: &[Charge<'_>], intent: ChargeIntent, now: Nanos) -> Outcome {
        let at = self.time_point(now);
        let mut locks = self.lock_counters(charges);
        let mut transaction = self.begin_transaction(&mut locks, charges, at);
        let mut outcome = transaction.decide(intent);
        let overflowed = transaction.counters().iter().any(|counter| counter.place.source == Source::Overflow);
        if overflowed {
            outcome.source = Source::Overflow;
        }
        if intent != ChargeIntent::Peek {
            self.commit(&mut locks, &transaction, at);
            if overflowed {
                count(&self.events.overflow);
            }
            if outcome.clock_stepped {
                count(&self.events.clock_steps);
            }
        }
        outcome
    }

    /// Reads the counters of `charges`, whose shards are locked, and finds a shared one for each charge without its own
    /// counter.
    pub(super) fn begin_transaction<'a, 'c>(
        &'a self,
        locks: &mut Locks<'a>,
        charges: &'c [Charge<'_>],
        at: TimePoint,
    ) -> MemoryTransaction<'c> {
        let mut lookups: SmallVec<[CounterLookup; 8]> = SmallVec::new();
        for charge in charges {
            let key = Key::of(charge.counter());
            lookups.push(self.look_up(locks.own(key), key, charge, at));
        }
        let shared = charges.iter().zip(&lookups).filter(|(_, look)| matches!(look, CounterLookup::Shared { .. }));
        self.lock_shared(locks, shared.map(|(charge, _)| SharedKeys::of_counter(charge).shard));

        let mut transaction = ChargeTransaction::new(charges, at.now);
        for (charge, look) in charges.iter().zip(lookups) {
            let own = |source| CounterPlace { key: Key::of(charge.counter()), shared: None, source };
            let (place, seed, state) = match look {
                CounterLookup::Found(state) => (own(Source::Exact), None, Some(state)),
                CounterLookup::Fresh => (own(Source::Exact), None, None),
                CounterLookup::Shared { has_room } => {
                    let keys = SharedKeys::of_counter(charge);
                    let (key, state) = self.find_shared(locks.shared(keys.shard), keys, charge, at);
                    if has_room {
                        let source = if state.is_some() { Source::Overflow } else { Source::Exact };
                        let inherited = state.map(|state| keys.inherited(state, &charge.limit, at.now));
                        (own(source), None, inherited)
                    } else {
                        let place = CounterPlace { key, shared: Some(keys.shard), source: Source::Overflow };
                        (place, Some(keys.seed()), state)
                    }
                }
            };
            let fresh = || charge.limit.in_phase(seed).fresh(at.now);
            transaction.add(place, seed, || (state.unwrap_or_else(fresh), false));
        }
        transaction
    }

    fn look_up(&self, own: &mut Shard, key: Key, charge: &Charge<'_>, at: TimePoint) -> CounterLookup {
        if let Some(place) = own.find(key) {
            return CounterLookup::Found(self.read(own, &own.entry(place), charge, at));
        }
        match own.ensure_room(key, at.secs, &self.budget) {
            Ok(()) if !self.overflow.in_use() => CounterLookup::Fresh,
            room => CounterLookup::Shared { has_room: room.is_ok() },
        }
    }

    /// Finds the shared counter for a subject without its own, and its state if it exists.
    fn find_shared(
        &self,
        shared: &mut Shard,
        keys: SharedKeys,
        charge: &Charge<'_>,
        at: TimePoint,
    ) -> (Key, Option<CounterState>) {
        let found = |shard: &Shard, key| {
            let entry = shard.get(key)?;
            (entry.expires > at.secs).then(|| self.read(shard, &entry, &keys.shared_charge(charge), at))
        };
        if let Some(state) = found(shared, keys.group) {
            return (keys.group, Some(state));
        }
        let known = found(shared, keys.last_resort);
        let has_room =
            shared.find(keys.group).is_some() || shared.ensure_room(keys.group, at.secs, &self.overflow.budget).is_ok();
        (if has_room { keys.group } else { keys.last_resort }, known)
    }

    /// Writes the changed counters.
    pub(super) fn commit(&self, locks: &mut Locks<'_>, transaction: &MemoryTransaction<'_>, at: TimePoint) {
        for counter in transaction.counters().iter().filter(|counter| counter.is_changed()) {
            let limit = counter.limit();
            let (state, moment) = counter.state_under(&limit, at.now);
            let CounterPlace { key, shared, .. } = counter.place;
            let write = CounterWrite { key, limit: &limit, fresh_at: limit.fresh_at(&state, moment), state };
            match shared {
                None => self.write(locks.own(key), write, at.secs, &self.budget),
                Some(shard) => {
                    self.write(locks.shared(shard), write, at.secs, &self.overflow.budget);
                    self.overflow.mark_used(shard);
                }
            }
        }
    }
}
