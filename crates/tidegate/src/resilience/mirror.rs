//! What this node has last seen of every counter it charged: its part of the memory that survives
//! when the store's does not.
//!
//! Bounded: when it is full, the counter that is fully refilled first is evicted. Two accounts of one counter are merged by maximum, so that answers may arrive in any
//! order; a store whose clock was set back far is believed as it is. A store that holds less than it
//! did is doubted, and believed once it has said that it is the same: something was given back. What it
//! admits meanwhile is kept apart, because merging by maximum would lose it.

use tidegate_core::algorithms::{CLOCK_TOLERANCE, CounterState};
use tidegate_core::store::{Charge, CounterSnapshot, HashSlot};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use super::owned_charge::OwnedCharge;
use super::recovery_state::MissingCounts;
use super::striped_map::StripedMap;

/// The last states seen.
pub(super) struct Mirror {
    counters: StripedMap<MirrorEntry>,
}

struct MirrorEntry {
    charge: OwnedCharge,
    state: CounterState,
    /// When it can be forgotten, by the store's clock.
    fresh_at: Nanos,
    /// When it was seen, by the store's clock and by the local one.
    at: Nanos,
    /// See `at`.
    seen_at: Nanos,
    /// Whether the local share already knows.
    applied: bool,
    suspected_loss: Option<SuspectedLoss>,
}

/// The store has been found to hold less than it did.
#[derive(Clone, Copy)]
struct SuspectedLoss {
    /// Since when, by the local clock.
    since: Nanos,
    /// Units that it has admitted from then on.
    admitted: u64,
}

/// The local time, and that of the last question after the store's life that was answered well.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObservedAt {
    pub(super) now: Nanos,
    pub(super) confirmed: Nanos,
    /// When the request was sent, by the local clock.
    pub(super) sent: Nanos,
}

impl Mirror {
    pub(super) fn new(max: usize) -> Self {
        Mirror {
            counters: StripedMap::new(max),
        }
    }

    /// Takes note of a counter as the store holds it after `spent` units of the charge. Whether that
    /// leaves a doubt.
    pub(super) fn record(
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
            // A late reply is as old as it is: only the reply to a newer request shows a clock set back.
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

    /// Whether a record of this counter should have been in the store at its time `at`. An answer
    /// from before the counter was last seen says nothing: answers overtake each other.
    pub(super) fn has_live(&self, charge: &Charge<'_>, at: Nanos, now: Nanos) -> bool {
        let counter = charge.counter();
        let stripe = self.counters.stripe(counter);
        stripe.get(&counter).is_some_and(|known| {
            let same = known.charge.limit.tag() == charge.limit.tag();
            same && known.at < at && known.is_live(at, now)
        })
    }

    /// Units of a charge that are lost when this counter is restored. The store made the charge in a record
    /// that was empty, and holds `seen` since. The larger of that and of what is known here remains.
    pub(super) fn lost_on_restore(
        &self,
        charge: &Charge<'_>,
        seen: &CounterSnapshot,
        at: Nanos,
    ) -> u64 {
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

    /// When the store will hold nothing of this counter, as far as it was seen.
    pub(super) fn empties_at(&self, charge: &Charge<'_>) -> Option<Nanos> {
        let counter = charge.counter();
        let stripe = self.counters.stripe(counter);
        stripe.get(&counter).map(|known| known.fresh_at)
    }

    /// The newest state of a counter, as one of the charge's limit, if it was ever seen.
    pub(super) fn newest_state(&self, charge: &Charge<'_>, at: Nanos) -> Option<CounterState> {
        let counter = charge.counter();
        let stripe = self.counters.stripe(counter);
        let known = stripe.get(&counter)?;
        if known.charge.limit.tag() == charge.limit.tag() {
            return Some(known.state.clone());
        }
        let state = known.state.clone();
        Some(charge.limit.adopt(&known.charge.limit, state, at))
    }

    /// The state of a counter, if it is news to the local share.
    pub(super) fn take_unapplied(&self, charge: &Charge<'_>) -> Option<CounterState> {
        let counter = charge.counter();
        let mut stripe = self.counters.stripe(counter);
        let known = stripe.get_mut(&counter)?;
        if known.applied || known.charge.limit.tag() != charge.limit.tag() {
            return None;
        }
        known.applied = true;
        Some(known.state.clone())
    }

    /// Everything in one store that still matters at its time `at`, when the local clock reads `now`,
    /// with the slot it is in there. The store holds what is in a slot. Only what it may lack is among it: it has the
    /// rest, and that may have been refunded or reset since.
    pub(super) fn states_to_restore(
        &self,
        hash_slot_of: impl Fn(Fingerprint) -> Option<HashSlot>,
        missing_counts: &MissingCounts,
        at: Nanos,
        now: Nanos,
    ) -> Vec<(HashSlot, (OwnedCharge, CounterState))> {
        let mut all = Vec::new();
        for stripe in self.counters.stripes() {
            let live = stripe.values().filter(|known| known.is_live(at, now));
            for known in live {
                let hash_slot = hash_slot_of(known.charge.subject);
                if let Some(hash_slot) =
                    hash_slot.filter(|hash_slot| missing_counts.includes(*hash_slot, known.at))
                {
                    all.push((hash_slot, (known.charge.clone(), known.state.clone())));
                }
            }
        }
        all
    }

    /// Whether there is anything of that.
    pub(super) fn has_any_to_restore(
        &self,
        hash_slot_of: impl Fn(Fingerprint) -> Option<HashSlot>,
        missing_counts: &MissingCounts,
        at: Nanos,
        now: Nanos,
    ) -> bool {
        self.counters.stripes().any(|stripe| {
            let mut live = stripe.values().filter(|known| known.is_live(at, now));
            live.any(|known| {
                let hash_slot = hash_slot_of(known.charge.subject);
                hash_slot.is_some_and(|hash_slot| missing_counts.includes(hash_slot, known.at))
            })
        })
    }

    /// What a store has admitted under a doubt, of the counters that it `holds`: it has turned out to
    /// have lost counts, and what others remember of them does not include this. Doubts that were
    /// cleared up until `confirmed` are none. The doubts are over.
    pub(super) fn take_suspect_charges(
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

    /// Forgets a counter that was reset on purpose.
    pub(super) fn forget(&self, counter: u128) {
        self.counters.stripe(counter).remove(&counter);
    }
}

impl MirrorEntry {
    /// Whether it cannot be forgotten yet, by either clock: the store's may have been set back to
    /// where it was long ago.
    fn is_live(&self, at: Nanos, now: Nanos) -> bool {
        let lasts = self.fresh_at.since(self.at);
        at < self.fresh_at && now.since(self.seen_at) < lasts
    }

    /// The store's word is all there is.
    fn replace(&mut self, mut state: CounterState, at: Nanos, now: Nanos) {
        let limit = &self.charge.limit;
        let moment = limit.advance(&mut state, at);
        self.fresh_at = limit.fresh_at(&state, moment);
        (self.state, self.at, self.seen_at, self.suspected_loss) = (state, at, now, None);
    }

    /// The larger of what is known and what was seen.
    fn merge(&mut self, seen: &CounterState, spent: u64, at: Nanos, observed: ObservedAt) -> bool {
        let limit = &self.charge.limit;
        let (mut seen, mut merged) = (seen.clone(), seen.clone());
        limit.merge(&mut merged, &self.state, at);
        let moment = limit.advance(&mut merged, at);
        limit.advance(&mut seen, at);
        let less = merged != seen && self.at < at;
        if less
            && self
                .suspected_loss
                .is_some_and(|loss| loss.since < observed.confirmed)
        {
            self.replace(seen, at, observed.now);
            return false;
        }
        self.fresh_at = limit.fresh_at(&merged, moment);
        (self.state, self.at, self.seen_at) = (merged, self.at.max(at), observed.now);
        self.suspected_loss = less.then(|| {
            let before = self.suspected_loss.unwrap_or(SuspectedLoss {
                since: observed.now,
                admitted: 0,
            });
            SuspectedLoss {
                admitted: before.admitted.saturating_add(spent),
                ..before
            }
        });
        less
    }
}
