//! The mirror: the last known state of every counter that this node has charged. It survives a loss of the store's
//! counts.
//!
//! Bounded: when it is full, the counter that matters least is evicted (`eviction`). Two states of one counter are merged
//! by maximum, so replies may arrive in any order. A reply after a large step back of the store's clock replaces the
//! state. A store that holds less than before is suspected of a loss; once a ping has confirmed its epoch, its state
//! is accepted: there was a refund. Units that it admits in the meantime are kept apart (`SuspectedLoss`), because
//! a merge by maximum would lose them. Knows no store; both clocks are injected.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::algorithms::{CLOCK_TOLERANCE, CounterState};
use tidegate_core::store::{Charge, CounterSnapshot, HashSlot};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use crate::owned_charge::OwnedCharge;
use crate::shard::node::eviction::evictable_at;
use crate::shard::node::striped_map::StripedMap;
use crate::shard::recovery::recovery_state::MissingCounts;

/// The last known states by counter.
pub(crate) struct Mirror {
    counters: StripedMap<MirrorEntry>,
    /// Counters that were evicted before they had drained and are not reported yet.
    evicted: AtomicU64,
}

struct MirrorEntry {
    charge: OwnedCharge,
    state: CounterState,
    /// When the counter is full again and the entry can expire, by the store's clock.
    fresh_at: Nanos,
    /// When the state was read, by the store's clock.
    at: Nanos,
    /// When the state was received, by the local clock.
    seen_at: Nanos,
    /// Whether the local share has applied this state.
    applied: bool,
    suspected_loss: Option<SuspectedLoss>,
}

/// The store holds less than it did.
#[derive(Clone, Copy)]
struct SuspectedLoss {
    /// Since when, by the local clock.
    since: Nanos,
    /// Units that it has admitted since then.
    admitted: u64,
}

/// The local times of one observation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObservedAt {
    pub(crate) now: Nanos,
    /// When the last ping that confirmed the store's epoch was sent.
    pub(crate) confirmed: Nanos,
    /// When the request was sent.
    pub(crate) sent: Nanos,
}

impl Mirror {
    pub(crate) fn new(max: usize) -> Self {
        Mirror { counters: StripedMap::new(max), evicted: AtomicU64::new(0) }
    }

    /// Records the state of a counter after the store charged `spent` units of it. True if the store is suspected of a
    /// loss.
    pub(crate) fn record(
        &self,
        charge: &Charge<'_>,
        spent: u64,
        seen: &CounterSnapshot,
        at: Nanos,
        observed: ObservedAt,
    ) -> bool {
        let (counter, limit) = (charge.counter(), charge.limit.as_ref());
        let mut stripe = self.counters.stripe(counter);
        if let Some(known) = stripe.get_mut(&counter) {
            let same = known.charge.limit.tag() == limit.tag();
            if !same {
                known.charge = OwnedCharge::of(charge);
            }
            // A late reply is as old as its request: only the reply to a newer request shows a clock set back.
            let set_back = known.at.since(at) > CLOCK_TOLERANCE && observed.sent >= known.seen_at;
            let live = known.is_live(at, observed.now);
            known.applied = false;
            if same && live && !set_back {
                return known.merge(&seen.state, spent, at, observed);
            }
            known.replace(seen.state.clone(), at, observed.now);
            return false;
        }
        let mut entry = MirrorEntry {
            charge: OwnedCharge::of(charge),
            fresh_at: at,
            state: seen.state.clone(),
            at,
            seen_at: observed.now,
            applied: false,
            suspected_loss: None,
        };
        entry.replace(seen.state.clone(), at, observed.now);
        let end_of = |known: &MirrorEntry| evictable_at(&known.charge.limit, &known.state, known.at, known.fresh_at);
        let evicted = self.counters.insert_evicting(&mut stripe, counter, entry, end_of);
        if evicted.is_some_and(|evicted| evicted.is_live(at, observed.now)) {
            self.evicted.fetch_add(1, Ordering::Relaxed);
        }
        false
    }

    /// Takes the number of counters that were evicted before they had drained, since the last call.
    pub(crate) fn take_evicted(&self) -> u64 {
        self.evicted.swap(0, Ordering::Relaxed)
    }

    /// Whether the store should have had a record of this counter at its time `at`. A reply from before the counter was
    /// last seen proves nothing: replies overtake each other.
    pub(crate) fn has_live(&self, charge: &Charge<'_>, at: Nanos, now: Nanos) -> bool {
        let counter = charge.counter();
        let stripe = self.counters.stripe(counter);
        stripe.get(&counter).is_some_and(|known| {
            let same = known.charge.limit.tag() == charge.limit.tag();
            same && known.at < at && known.is_live(at, now)
        })
    }

    /// Units of a charge that are lost when this counter is restored. The store made the charge in an empty record and
    /// holds `seen` since. A restore keeps the larger of `seen` and the mirrored state.
    pub(crate) fn lost_on_restore(&self, charge: &Charge<'_>, seen: &CounterSnapshot, at: Nanos) -> u64 {
        let counter = charge.counter();
        let stripe = self.counters.stripe(counter);
        let Some(known) = stripe.get(&counter) else {
            return 0;
        };
        let limit = &known.charge.limit;
        let used = |mut state: CounterState| {
            let moment = limit.advance(&mut state, at);
            limit.used(&state, moment)
        };
        let mut merged = seen.state.clone();
        limit.merge(&mut merged, &known.state, at);
        let added = used(merged).saturating_sub(used(known.state.clone()));
        charge.cost.get().saturating_sub(added)
    }

    /// When the store will hold nothing of this counter, by the last known state.
    pub(crate) fn empties_at(&self, charge: &Charge<'_>) -> Option<Nanos> {
        let counter = charge.counter();
        let stripe = self.counters.stripe(counter);
        stripe.get(&counter).map(|known| known.fresh_at)
    }

    /// The newest state of a counter, converted to the charge's limit, if it was ever seen.
    pub(crate) fn newest_state(&self, charge: &Charge<'_>, at: Nanos) -> Option<CounterState> {
        let counter = charge.counter();
        let stripe = self.counters.stripe(counter);
        let known = stripe.get(&counter)?;
        if known.charge.limit.tag() == charge.limit.tag() {
            return Some(known.state.clone());
        }
        let state = known.state.clone();
        Some(charge.limit.adopt(&known.charge.limit, state, at))
    }

    /// The state of a counter, if the local share has not applied it yet.
    pub(crate) fn take_unapplied(&self, charge: &Charge<'_>) -> Option<CounterState> {
        let counter = charge.counter();
        let mut stripe = self.counters.stripe(counter);
        let known = stripe.get_mut(&counter)?;
        if known.applied || known.charge.limit.tag() != charge.limit.tag() {
            return None;
        }
        known.applied = true;
        Some(known.state.clone())
    }

    /// Up to `max` live counters of one store at its time `at` and the local time `now`, with their hash slots. The
    /// store holds a subject if `hash_slot_of` returns its hash slot. Only counts that it may lack are included: it has
    /// the others, and those may have been refunded or reset since.
    pub(crate) fn states_to_restore(
        &self,
        hash_slot_of: impl Fn(Fingerprint) -> Option<HashSlot>,
        missing_counts: &MissingCounts,
        at: Nanos,
        now: Nanos,
        max: usize,
    ) -> Vec<(HashSlot, (OwnedCharge, CounterState))> {
        let mut all = Vec::new();
        for stripe in self.counters.stripes() {
            let found = stripe.values().filter(|known| known.is_live(at, now)).filter_map(|known| {
                let hash_slot = hash_slot_of(known.charge.subject)?;
                let is_missing = missing_counts.includes(hash_slot, known.at);
                is_missing.then(|| (hash_slot, (known.charge.clone(), known.state.clone())))
            });
            all.extend(found.take(max - all.len()));
        }
        all
    }

    /// Ends all suspicions about the counters that a store `holds`, and returns the units that it has admitted under
    /// them: the store has turned out to have lost counts, and no other node's mirror includes these units. Suspicions
    /// from before `confirmed` were unfounded and return nothing.
    pub(crate) fn take_suspect_charges(
        &self,
        holds: impl Fn(Fingerprint) -> bool,
        confirmed: Nanos,
    ) -> Vec<(OwnedCharge, Cost)> {
        let mut all = Vec::new();
        for mut stripe in self.counters.stripes() {
            let of_store = stripe.values_mut().filter(|k| holds(k.charge.subject));
            all.extend(of_store.filter_map(|known| {
                let loss = known.suspected_loss.take()?;
                let admitted = Cost::new(loss.admitted)?;
                (loss.since >= confirmed).then(|| (known.charge.clone(), admitted))
            }));
        }
        all
    }

    /// Removes a counter that was reset on purpose.
    pub(crate) fn forget(&self, counter: u128) {
        self.counters.stripe(counter).remove(&counter);
    }
}

impl MirrorEntry {
    /// Whether the entry has not expired by either clock: the store's may have been set back by a long time.
    fn is_live(&self, at: Nanos, now: Nanos) -> bool {
        let lasts = self.fresh_at.since(self.at);
        at < self.fresh_at && now.since(self.seen_at) < lasts
    }

    /// Replaces the state by that of the store.
    fn replace(&mut self, mut state: CounterState, at: Nanos, now: Nanos) {
        let limit = &self.charge.limit;
        let moment = limit.advance(&mut state, at);
        self.fresh_at = limit.fresh_at(&state, moment);
        (self.state, self.at, self.seen_at, self.suspected_loss) = (state, at, now, None);
    }

    /// Keeps the larger of the known state and the one just seen. True if the store is suspected of a loss.
    fn merge(&mut self, seen: &CounterState, spent: u64, at: Nanos, observed: ObservedAt) -> bool {
        let limit = &self.charge.limit;
        let (mut seen, mut merged) = (seen.clone(), seen.clone());
        limit.merge(&mut merged, &self.state, at);
        let moment = limit.advance(&mut merged, at);
        limit.advance(&mut seen, at);
        let less = merged != seen && self.at < at;
        if less && self.suspected_loss.is_some_and(|loss| loss.since < observed.confirmed) {
            self.replace(seen, at, observed.now);
            return false;
        }
        self.fresh_at = limit.fresh_at(&merged, moment);
        (self.state, self.at, self.seen_at) = (merged, self.at.max(at), observed.now);
        self.suspected_loss = less.then(|| {
            let before = self.suspected_loss.unwrap_or(SuspectedLoss { since: observed.now, admitted: 0 });
            SuspectedLoss { admitted: before.admitted.saturating_add(spent), ..before }
        });
        less
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
    use tidegate_core::store::RuleOptions;
    use tidegate_core::subject::RuleName;

    use super::*;

    /// Clients with one unit evicted clients that had used up their limit: all counters of a window drain at its end.
    /// After a loss of the store those got a second limit.
    #[test]
    fn a_flood_of_single_units_does_not_evict_counters_that_are_used_up() {
        const FULL: u128 = 200;
        const FLOOD: u128 = 20_000;
        let day = Nanos::from_secs(86_400);
        for algorithm in Algorithm::ALL {
            let mirror = Mirror::new(1_000);
            let limit = Limit::compile(&Spec::new(algorithm, 100, day), Precision::Memory).expect("a valid rate");
            // Mixed, so that both kinds are in every stripe.
            let subject = |i: u128| Fingerprint::new((i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
            let charge = |i| {
                let rule = RuleName::new("rule");
                OwnedCharge::new(subject(i), rule, 0, limit.clone(), Cost::ONE, RuleOptions::DEFAULT)
            };
            let record = |i, used, second| {
                let at = day.plus(Nanos::from_secs(second));
                let seen = CounterSnapshot { state: limit.with_used(used, at), existed: false };
                let observed = ObservedAt { now: at, confirmed: at, sent: at };
                mirror.record(&charge(i).charge(), 1, &seen, at, observed);
            };
            // They are inserted with one unit, as every counter is.
            (0..FULL).for_each(|i| record(i, 1, 1));
            (0..FULL).for_each(|i| record(i, 100, 2));
            (FULL..FULL + FLOOD).for_each(|i| record(i, 1, 3));
            let is_known = |i: &u128| mirror.newest_state(&charge(*i).charge(), day).is_some();
            assert_eq!((0..FULL).filter(is_known).count(), FULL as usize, "{algorithm}");
            let known = (0..FULL + FLOOD).filter(is_known).count() as u64;
            assert!(known <= 1_008, "{algorithm}: {known}");
            assert_eq!(mirror.take_evicted(), (FULL + FLOOD) as u64 - known, "{algorithm}");
            assert_eq!(mirror.take_evicted(), 0);
        }
    }
}
