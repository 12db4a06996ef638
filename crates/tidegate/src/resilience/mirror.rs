//! What this node has last seen of every counter it charged: its part of the memory that survives
//! when the store's does not.
//!
//! Bounded: when it is full, the counter that is fully refilled first is evicted. Two accounts of one counter are merged by maximum, so that answers may arrive in any
//! order; a store whose clock was set back far is believed as it is. A store that holds less than it
//! did is doubted, and believed once it has said that it is the same: something was given back. What it
//! admits meanwhile is kept apart, because merging by maximum would lose it.

use tidegate_core::algorithms::{PATIENCE, State};
use tidegate_core::store::{Charge, Seen, Slot};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use super::counters::Counters;
use super::owned::OwnedCharge;
use super::standing::Lacking;

/// The last states seen.
pub(super) struct Mirror {
    counters: Counters<Remembered>,
}

struct Remembered {
    charge: OwnedCharge,
    state: State,
    /// When it can be forgotten, by the store's clock.
    fresh_at: Nanos,
    /// When it was seen, by the store's clock and by the local one.
    at: Nanos,
    /// See `at`.
    heard: Nanos,
    /// Whether the local share already knows.
    told: bool,
    doubted: Option<Doubt>,
}

/// The store has been found to hold less than it did.
#[derive(Clone, Copy)]
struct Doubt {
    /// Since when, by the local clock.
    since: Nanos,
    /// Units that it has admitted from then on.
    admitted: u64,
}

/// The local time, and that of the last question after the store's life that was answered well.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hearing {
    pub(super) now: Nanos,
    pub(super) confirmed: Nanos,
    /// When the request was sent, by the local clock.
    pub(super) sent: Nanos,
}

impl Mirror {
    pub(super) fn new(most: usize) -> Self {
        Mirror {
            counters: Counters::new(most),
        }
    }

    /// Takes note of a counter as the store holds it after `spent` units of the charge. Whether that
    /// leaves a doubt.
    pub(super) fn note(
        &self,
        charge: &Charge<'_>,
        spent: u64,
        seen: &Seen,
        at: Nanos,
        by: Hearing,
    ) -> bool {
        let (counter, limit) = (charge.counter(), charge.limit.as_ref());
        let mut part = self.counters.part(counter);
        if let Some(known) = part.get_mut(&counter) {
            let same = known.charge.limit.tag() == limit.tag();
            if !same {
                known.charge = OwnedCharge::of(charge);
            }
            // A late reply is as old as it is: only the reply to a newer request shows a clock set back.
            let set_back = known.at.since(at) > PATIENCE && by.sent >= known.heard;
            let live = known.matters(at, by.now);
            known.told = false;
            if same && live && !set_back {
                return known.merge(&seen.state, spent, at, by);
            }
            known.take(seen.state.clone(), at, by.now);
            return false;
        }
        let end_of = |known: &Remembered| known.fresh_at;
        if !self.counters.has_room(&part) && !part.evict(end_of) {
            return false;
        }
        let mut remembered = Remembered {
            charge: OwnedCharge::of(charge),
            fresh_at: at,
            state: seen.state.clone(),
            at,
            heard: by.now,
            told: false,
            doubted: None,
        };
        remembered.take(seen.state.clone(), at, by.now);
        part.insert_evictable(counter, remembered, end_of);
        false
    }

    /// Whether a record of this counter should have been in the store at its time `at`. An answer
    /// from before the counter was last seen says nothing: answers overtake each other.
    pub(super) fn holds_live(&self, charge: &Charge<'_>, at: Nanos, now: Nanos) -> bool {
        let counter = charge.counter();
        let part = self.counters.part(counter);
        part.get(&counter).is_some_and(|known| {
            let same = known.charge.limit.tag() == charge.limit.tag();
            same && known.at < at && known.matters(at, now)
        })
    }

    /// Units of a charge that are lost when this counter is restored. The store made the charge in a record
    /// that was empty, and holds `seen` since. The larger of that and of what is known here remains.
    pub(super) fn swallows(&self, charge: &Charge<'_>, seen: &Seen, at: Nanos) -> u64 {
        let counter = charge.counter();
        let part = self.counters.part(counter);
        let Some(known) = part.get(&counter) else {
            return 0;
        };
        let limit = &known.charge.limit;
        let used = |mut state: State| {
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
        let part = self.counters.part(counter);
        part.get(&counter).map(|known| known.fresh_at)
    }

    /// The newest state of a counter, as one of the charge's limit, if it was ever seen.
    pub(super) fn newest(&self, charge: &Charge<'_>, at: Nanos) -> Option<State> {
        let counter = charge.counter();
        let part = self.counters.part(counter);
        let known = part.get(&counter)?;
        if known.charge.limit.tag() == charge.limit.tag() {
            return Some(known.state.clone());
        }
        let state = known.state.clone();
        Some(charge.limit.adopt(&known.charge.limit, state, at))
    }

    /// The state of a counter, if it is news to the local share.
    pub(super) fn news(&self, charge: &Charge<'_>) -> Option<State> {
        let counter = charge.counter();
        let mut part = self.counters.part(counter);
        let known = part.get_mut(&counter)?;
        if known.told || known.charge.limit.tag() != charge.limit.tag() {
            return None;
        }
        known.told = true;
        Some(known.state.clone())
    }

    /// Everything in one store that still matters at its time `at`, when the local clock reads `now`,
    /// with the slot it is in there. The store holds what is in a slot. Only what it may be `lacking` is among it: it has the
    /// rest, and that may have been refunded or reset since.
    pub(super) fn all(
        &self,
        slot: impl Fn(Fingerprint) -> Option<Slot>,
        lacking: &Lacking,
        at: Nanos,
        now: Nanos,
    ) -> Vec<(Slot, (OwnedCharge, State))> {
        let mut all = Vec::new();
        for part in self.counters.parts() {
            let live = part.values().filter(|known| known.matters(at, now));
            for known in live {
                let slot = slot(known.charge.subject);
                if let Some(slot) = slot.filter(|slot| lacking.includes(*slot, known.at)) {
                    all.push((slot, (known.charge.clone(), known.state.clone())));
                }
            }
        }
        all
    }

    /// Whether there is anything of that.
    pub(super) fn remembers_any(
        &self,
        slot: impl Fn(Fingerprint) -> Option<Slot>,
        lacking: &Lacking,
        at: Nanos,
        now: Nanos,
    ) -> bool {
        self.counters.parts().any(|part| {
            let mut live = part.values().filter(|known| known.matters(at, now));
            live.any(|known| {
                let slot = slot(known.charge.subject);
                slot.is_some_and(|slot| lacking.includes(slot, known.at))
            })
        })
    }

    /// What a store has admitted under a doubt, of the counters that it `holds`: it has turned out to
    /// have lost counts, and what others remember of them does not include this. Doubts that were
    /// cleared up until `confirmed` are none. The doubts are over.
    pub(super) fn take_doubtful(
        &self,
        holds: impl Fn(Fingerprint) -> bool,
        confirmed: Nanos,
    ) -> Vec<(OwnedCharge, Cost)> {
        let mut all = Vec::new();
        for mut part in self.counters.parts() {
            let of_store = part.values_mut().filter(|k| holds(k.charge.subject));
            all.extend(of_store.filter_map(|known| {
                let doubt = known.doubted.take()?;
                let admitted = Cost::new(doubt.admitted)?;
                (doubt.since >= confirmed).then(|| (known.charge.clone(), admitted))
            }));
        }
        all
    }

    /// Forgets a counter that was reset on purpose.
    pub(super) fn forget(&self, counter: u128) {
        self.counters.part(counter).remove(&counter);
    }
}

impl Remembered {
    /// Whether it cannot be forgotten yet, by either clock: the store's may have been set back to
    /// where it was long ago.
    fn matters(&self, at: Nanos, now: Nanos) -> bool {
        let lasts = self.fresh_at.since(self.at);
        at < self.fresh_at && now.since(self.heard) < lasts
    }

    /// The store's word is all there is.
    fn take(&mut self, mut state: State, at: Nanos, now: Nanos) {
        let limit = &self.charge.limit;
        let moment = limit.advance(&mut state, at);
        self.fresh_at = limit.fresh_at(&state, moment);
        (self.state, self.at, self.heard, self.doubted) = (state, at, now, None);
    }

    /// The larger of what is known and what was seen.
    fn merge(&mut self, seen: &State, spent: u64, at: Nanos, by: Hearing) -> bool {
        let limit = &self.charge.limit;
        let (mut seen, mut merged) = (seen.clone(), seen.clone());
        limit.merge(&mut merged, &self.state, at);
        let moment = limit.advance(&mut merged, at);
        limit.advance(&mut seen, at);
        let less = merged != seen && self.at < at;
        if less && self.doubted.is_some_and(|doubt| doubt.since < by.confirmed) {
            self.take(seen, at, by.now);
            return false;
        }
        self.fresh_at = limit.fresh_at(&merged, moment);
        (self.state, self.at, self.heard) = (merged, self.at.max(at), by.now);
        self.doubted = less.then(|| {
            let before = self.doubted.unwrap_or(Doubt {
                since: by.now,
                admitted: 0,
            });
            Doubt {
                admitted: before.admitted.saturating_add(spent),
                ..before
            }
        });
        less
    }
}
