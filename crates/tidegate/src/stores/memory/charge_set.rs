//! Several charges of one request, decided together: all are charged or none is.
//!
//! The counters are read under their locks, decided as copies, and written when the verdict on the whole request is
//! known. A subject without room for a counter uses a shared one.

use smallvec::SmallVec;
use tidegate_core::algorithms::CounterState;
use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, ChargeTransaction, Outcome, Source, StagedCounter};
use tidegate_core::units::Nanos;

use super::counter_io::{CounterWrite, TimePoint};
use super::key::Key;
use super::locks::Locks;
use super::overflow::SharedCounterKeys;
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
    /// There is none, and room for one that begins as a copy of a shared one.
    Inherits,
    /// There is none, and no room.
    Shares,
}

impl<C> MemoryStore<C> {
    /// Decides a charge set.
    pub(super) fn decide_set(&self, set: &ChargeSet<'_>, intent: ChargeIntent, now: Nanos) -> Outcome {
        let at = self.time_point(now);
        let mut locks = self.lock_counters(&set.charges);
        let mut transaction = self.begin_transaction(&mut locks, &set.charges, at);
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
        let absent = |(charge, look): (&Charge<'_>, &CounterLookup)| match look {
            CounterLookup::Found(_) | CounterLookup::Fresh => None,
            CounterLookup::Inherits | CounterLookup::Shares => Some(SharedCounterKeys::of(charge).shard),
        };
        self.lock_shared(locks, charges.iter().zip(&lookups).filter_map(absent));

        let mut transaction = ChargeTransaction::new(charges, at.now);
        for (charge, look) in charges.iter().zip(lookups) {
            let own = |source| CounterPlace { key: Key::of(charge.counter()), shared: None, source };
            let (place, seed, state) = match look {
                CounterLookup::Found(state) => (own(Source::Exact), None, Some(state)),
                CounterLookup::Fresh => (own(Source::Exact), None, None),
                CounterLookup::Inherits | CounterLookup::Shares => {
                    let keys = SharedCounterKeys::of(charge);
                    let (key, state) = self.find_shared(locks.shared(keys.shard), keys, charge, at);
                    match (look, state) {
                        (CounterLookup::Inherits, None) => (own(Source::Exact), None, None),
                        (CounterLookup::Inherits, Some(state)) => {
                            let inherited = keys.inherited(state, &charge.limit, at.now);
                            (own(Source::Overflow), None, Some(inherited))
                        }
                        (_, state) => {
                            let place = CounterPlace { key, shared: Some(keys.shard), source: Source::Overflow };
                            (place, Some(keys.seed), state)
                        }
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
            Ok(()) if self.overflow.in_use() => CounterLookup::Inherits,
            Ok(()) => CounterLookup::Fresh,
            Err(_) => CounterLookup::Shares,
        }
    }

    /// Writes the changed counters.
    pub(super) fn commit(&self, locks: &mut Locks<'_>, transaction: &MemoryTransaction<'_>, at: TimePoint) {
        for counter in transaction.counters().iter().filter(|counter| counter.is_changed()) {
            self.commit_one(locks, counter, at);
        }
    }

    fn commit_one(&self, locks: &mut Locks<'_>, counter: &StagedCounter<'_, CounterPlace>, at: TimePoint) {
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
