//! The mirror: the last known state of every counter that this node has charged. It survives a loss of the store's
//! counts.
//!
//! Bounded: when it is full, the counter that is full again first is evicted. Two states of one counter are merged
//! by maximum, so replies may arrive in any order. A reply after a large step back of the store's clock replaces the
//! state. A store that holds less than before is suspected of a loss; once a ping has confirmed its epoch, its state
//! is accepted: there was a refund. Units that it admits in the meantime are kept apart (`SuspectedLoss`), because
//! a merge by maximum would lose them. Knows no store; both clocks are injected.

use tidegate_core::algorithms::{CLOCK_TOLERANCE, CounterState};
use tidegate_core::store::{Charge, CounterSnapshot, HashSlot};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use crate::owned_charge::OwnedCharge;
use crate::shard::node::striped_map::StripedMap;
use crate::shard::recovery::recovery_state::MissingCounts;

/// The last known states by counter.
pub(crate) struct Mirror {
    counters: StripedMap<MirrorEntry>,
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
        Mirror { counters: StripedMap::new(max) }
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
        let end_of = |known: &MirrorEntry| known.fresh_at;
        if !self.counters.has_room(&stripe) && !stripe.evict(end_of) {
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
        stripe.insert_evictable(counter, entry, end_of);
        false
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
