//! The counters of one request as copies: read under their locks, changed freely, and written only when the verdict on
//! the whole request is known.
//!
//! A counter that occurs twice has one copy: the second charge sees what the first would spend. A subject without room
//! for a counter uses a copy of a shared one.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::{CounterState, Figures, Limit, Moment};
use tidegate_core::store::{Charge, Source};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::counter_io::{CounterWrite, TimePoint};
use super::key::Key;
use super::locks::Locks;
use super::overflow::SharedCounterKeys;
use super::shard::Shard;

/// The counter that a copy is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CounterTarget {
    Own(Key),
    Shared { shared_keys: SharedCounterKeys, key: Key },
}

/// The copy of one counter.
pub(super) struct StagedCounter<'c> {
    target: CounterTarget,
    /// Whether it is, or begins as, a shared one.
    pub(super) source: Source,
    /// The limit that `state` is under: that of the last charge that was spent.
    limit: &'c Limit,
    state: CounterState,
    /// The initial limit and state, for a request that is not charged.
    found: (&'c Limit, CounterState),
    /// Whether the counter was so far ahead of the clock that it had to be moved. That must be written even if the
    /// request is denied, or the next one finds it just as far ahead.
    pub(super) stepped: bool,
    /// Whether there is anything to write.
    pub(super) changed: bool,
}

impl<'c> StagedCounter<'c> {
    /// A copy of the state, under `limit` and at the current time. Reading does not change the limit that the state is
    /// stored under.
    pub(super) fn state_under(&self, limit: &Limit, now: Nanos) -> (CounterState, Moment) {
        let mut state = self.state.clone();
        // Limits of two shapes may share a tag; then the shape distinguishes them.
        if self.limit.tag() != limit.tag() || !limit.accepts(&state) {
            state = limit.adopt(&self.effective_limit(self.limit), state, now);
        }
        let at = limit.advance(&mut state, now);
        (state, at)
    }

    /// `limit` as this counter applies it.
    pub(super) fn effective_limit<'l>(&self, limit: &'l Limit) -> Cow<'l, Limit> {
        match &self.target {
            CounterTarget::Own(_) => Cow::Borrowed(limit),
            CounterTarget::Shared { shared_keys, .. } => shared_keys.effective_limit(limit),
        }
    }

    /// Sets a changed state.
    pub(super) fn set_state(&mut self, limit: &'c Limit, state: CounterState) {
        (self.limit, self.state) = (limit, state);
        self.changed = true;
    }

    /// Rolls back everything that was spent.
    pub(super) fn rollback(&mut self) {
        (self.limit, self.state) = self.found.clone();
        self.changed = self.stepped;
    }

    pub(super) fn figures(&self, limit: &Limit, now: Nanos) -> Figures {
        let limit = self.effective_limit(limit);
        let (state, at) = self.state_under(&limit, now);
        limit.figures(&state, at)
    }
}

/// The copies of a request, and the index of the copy for each charge.
#[derive(Default)]
pub(super) struct MemoryTransaction<'c> {
    pub(super) counters: SmallVec<[StagedCounter<'c>; 4]>,
    pub(super) counter_of: SmallVec<[usize; 8]>,
}

impl<C> MemoryStore<C> {
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

        let mut transaction = MemoryTransaction::default();
        for (charge, look) in charges.iter().zip(lookups) {
            let own = CounterTarget::Own(Key::of(charge.counter()));
            let (target, state, source) = match look {
                CounterLookup::Found(state) => (own, Some(state), Source::Exact),
                CounterLookup::Fresh => (own, None, Source::Exact),
                CounterLookup::Inherits | CounterLookup::Shares => {
                    let shared_keys = SharedCounterKeys::of(charge);
                    let shared_charge = Charge { limit: shared_keys.effective_limit(&charge.limit), ..charge.clone() };
                    let shared = locks.shared(shared_keys.shard);
                    let (key, state) = self.find_shared(shared, shared_keys, &shared_charge, at);
                    match (look, state) {
                        (CounterLookup::Inherits, None) => (own, None, Source::Exact),
                        (CounterLookup::Inherits, Some(state)) => {
                            let state = shared_keys.inherited(state, &charge.limit, at.now);
                            (own, Some(state), Source::Overflow)
                        }
                        (_, state) => (CounterTarget::Shared { shared_keys, key }, state, Source::Overflow),
                    }
                }
            };
            let state = state.unwrap_or_else(|| match &target {
                CounterTarget::Own(_) => charge.limit.fresh(at.now),
                CounterTarget::Shared { shared_keys, .. } => shared_keys.effective_limit(&charge.limit).fresh(at.now),
            });
            transaction.add(target, source, &charge.limit, state, at.now);
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

    /// Writes a copy back.
    pub(super) fn commit(&self, locks: &mut Locks<'_>, counter: &StagedCounter<'_>, at: TimePoint) {
        let limit = counter.effective_limit(counter.limit);
        let (state, moment) = counter.state_under(&limit, at.now);
        let mut write = CounterWrite { key: Key::NONE, limit: &limit, fresh_at: limit.fresh_at(&state, moment), state };
        match counter.target {
            CounterTarget::Own(key) => {
                write.key = key;
                self.write(locks.own(key), write, at.secs, &self.budget);
            }
            CounterTarget::Shared { shared_keys, key } => {
                write.key = key;
                self.write(locks.shared(shared_keys.shard), write, at.secs, &self.overflow.budget);
                self.overflow.mark_used(shared_keys.shard);
            }
        }
    }
}

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

impl<'c> MemoryTransaction<'c> {
    fn add(&mut self, target: CounterTarget, source: Source, limit: &'c Limit, state: CounterState, now: Nanos) {
        let known = self.counters.iter().position(|counter| counter.target == target);
        self.counter_of.push(known.unwrap_or(self.counters.len()));
        if known.is_none() {
            let mut counter = StagedCounter {
                target,
                source,
                limit,
                found: (limit, state.clone()),
                state,
                stepped: false,
                changed: false,
            };
            let at = counter.effective_limit(limit).advance(&mut counter.state, now);
            if at.stepped_back() {
                (counter.stepped, counter.changed) = (true, true);
                counter.found = (limit, counter.state.clone());
            }
            self.counters.push(counter);
        }
    }
}
