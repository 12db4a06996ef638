//! The verbs beside charge: refund, grant, force, seed, inspect and reset. Each is one atomic step
//! under the locks of all its counters.

use tidegate_core::store::{
    Charge, ChargeSet, Granted, Inspection, Outcome, Refund, Refunded, Seed,
};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::accounts::{Present, Write};
use super::block::{Entry, Kind, Secs};
use super::key::Key;
use super::locks::Locks;
use super::several::Intent;

/// Keeps the ids of refunds apart from counters.
const REFUND: u128 = 0x7265_6675_6e64_2069_6473_2061_7061_7274;

/// A seed whose state was not made by its limit. It was not merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misfit;

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the state of a seed is not of its limit's algorithm")
    }
}

impl std::error::Error for Misfit {}

impl<C> MemoryStore<C> {
    /// Charges whether it fits or not. The verdicts still say what fitted.
    pub fn force_at(&self, set: &ChargeSet<'_>, now: Nanos) -> Outcome {
        self.settle(set, Intent::Force, now)
    }

    /// Takes units of one limit in advance, as many as it gives at once.
    pub fn grant_at(&self, charge: &Charge<'_>, now: Nanos) -> Granted {
        let (at, charges) = (self.present(now), std::slice::from_ref(charge));
        let mut locks = self.lock_counters(charges);
        let mut books = self.open(&mut locks, charges, at);
        let account = &mut books.accounts[0];
        let (mut state, moment) = account.under(&charge.limit, now);
        let units = charge.limit.draw(&mut state, moment, charge.cost);
        if units > 0 {
            account.take(&charge.limit, state);
            self.commit(&mut locks, account, at);
        }
        Granted {
            units,
            figures: account.figures(&charge.limit, now),
            seen: None,
            at: now,
        }
    }

    /// Gives back an earlier charge, once. What was charged to a shared counter stays charged: it
    /// cannot be told whose it was.
    pub fn refund_at(&self, refund: &Refund<'_>, now: Nanos) -> Refunded {
        if now >= refund.until {
            return Refunded::Lapsed;
        }
        let (at, id) = (self.present(now), Key::of(refund.id ^ REFUND));
        let counters = refund.set.charges.iter().map(|c| Key::of(c.counter()));
        let mut locks = self.lock_all(counters.chain([id]));
        if let Some(refusal) = self.remember(&mut locks, id, refund.until, at) {
            return refusal;
        }
        for charge in &refund.set.charges {
            self.give_back(&mut locks, charge, refund.charged, at);
        }
        Refunded::Done
    }

    /// Whether the refund of this id was made, as far as it matters by `now`.
    #[cfg(feature = "disk")]
    pub(crate) fn has_refunded(&self, id: u128, now: Nanos) -> bool {
        let (at, key) = (self.present(now), Key::of(id ^ REFUND));
        let shard = self.shards[key.shard()].lock();
        let expires = shard.find(key).map(|place| shard.entry(place).expires);
        expires.is_some_and(|expires| expires > at.secs)
    }

    /// Remembers the id of a refund that an earlier run made, also beyond the cap: it must not be made
    /// again.
    #[cfg(feature = "disk")]
    pub(crate) fn restore_refund(&self, id: u128, until: Nanos, now: Nanos) {
        let (at, key) = (self.present(now), Key::of(id ^ REFUND));
        let mut shard = self.shards[key.shard()].lock();
        let entry = refund_entry(key, Secs::expiry(self.began, until));
        match shard.find(key) {
            Some(place) => shard.set(place, &entry),
            None => shard.insert(&entry, at.secs, &self.budget),
        }
    }

    /// Notes the id of a refund, or says why not.
    fn remember(
        &self,
        locks: &mut Locks<'_>,
        id: Key,
        until: Nanos,
        at: Present,
    ) -> Option<Refunded> {
        let shard = locks.own(id);
        let entry = refund_entry(id, Secs::expiry(self.began, until));
        match shard.find(id) {
            Some(place) if shard.entry(place).expires > at.secs => return Some(Refunded::Already),
            Some(place) => shard.set(place, &entry),
            None if shard.has_room(id, at.secs, &self.budget).is_err() => {
                return Some(Refunded::Lapsed);
            }
            None => shard.insert(&entry, at.secs, &self.budget),
        }
        None
    }

    /// Gives back what was `charged` then, as far as the bounds allow. That it happens once is the
    /// caller's promise.
    pub(crate) fn take_back_at(&self, set: &ChargeSet<'_>, charged: Nanos, now: Nanos) {
        let at = self.present(now);
        let mut locks = self.lock_counters(&set.charges);
        for charge in &set.charges {
            self.give_back(&mut locks, charge, charged, at);
        }
    }

    fn give_back(&self, locks: &mut Locks<'_>, charge: &Charge<'_>, charged: Nanos, at: Present) {
        let key = Key::of(charge.counter());
        let shard = locks.own(key);
        let Some(place) = shard.find(key) else {
            return;
        };
        let was = shard.entry(place);
        let limit = charge.limit.as_ref();
        // Under another limit (the client changed tier) nothing is given back: what was a unit then
        // cannot be said now, and reading it under the smaller of two limits would forget the rest.
        let same = was.tag == limit.tag() && was.kind == Kind::of(limit);
        if was.expires <= at.secs || !same {
            return;
        }
        let mut state = self.read(shard, &was, charge, at);
        let moment = limit.advance(&mut state, at.now);
        limit.refund(&mut state, moment, charged, charge.cost);
        let write = Write {
            key,
            limit,
            fresh_at: limit.fresh_at(&state, moment),
            state,
        };
        self.rewrite(shard, place, &was, write, at.secs, &self.budget);
    }

    /// Merges known states, by maximum per limit. Each seed is a step of its own: merging is the
    /// same in any order and any number of times.
    pub fn seed_at(&self, seeds: &[Seed<'_>], now: Nanos) -> Result<(), Misfit> {
        if seeds
            .iter()
            .any(|seed| !seed.charge.limit.fits(&seed.state))
        {
            return Err(Misfit);
        }
        let at = self.present(now);
        for seed in seeds {
            let (limit, charges) = (
                seed.charge.limit.as_ref(),
                std::slice::from_ref(&seed.charge),
            );
            let mut locks = self.lock_counters(charges);
            let mut books = self.open(&mut locks, charges, at);
            let account = &mut books.accounts[0];
            let (mut state, _) = account.under(limit, now);
            limit.merge(&mut state, &seed.state, now);
            account.take(limit, state);
            if account.figures(limit, now).reset_after > Nanos::ZERO {
                self.commit(&mut locks, account, at);
            }
        }
        Ok(())
    }

    /// How each counter stands; nothing for one never seen or fully refilled.
    pub fn inspect_at(&self, set: &ChargeSet<'_>, now: Nanos) -> Vec<Option<Inspection>> {
        let mut locks = self.lock_counters(&set.charges);
        let books = self.open(&mut locks, &set.charges, self.present(now));
        let mut inspections = Vec::with_capacity(set.charges.len());
        for (i, charge) in set.charges.iter().enumerate() {
            let account = &books.accounts[books.of[i]];
            let (state, moment) = account.under(&charge.limit, now);
            let figures = charge.limit.figures(&state, moment);
            let in_use = figures.reset_after > Nanos::ZERO;
            inspections.push(in_use.then(|| Inspection {
                used: charge.limit.used(&state, moment),
                figures,
                source: account.source,
            }));
        }
        inspections
    }

    /// Forgets each counter with what is open of it; how many counters and slots there were. Shared counters
    /// stay: they are others', too. Slots are freed after the rest, those of each rule in a step of their own.
    pub fn reset_at(&self, set: &ChargeSet<'_>, now: Nanos) -> u64 {
        let forgotten = self.forget_at(set, now);
        let owners = set.charges.iter().filter(|charge| charge.rate == 0);
        let freed = owners.map(|charge| self.vacate_at(charge.counter(), now));
        forgotten + freed.sum::<u64>()
    }

    fn forget_at(&self, set: &ChargeSet<'_>, now: Nanos) -> u64 {
        let at = self.present(now);
        let mut ledger = self.ledger.lock();
        let mut locks = self.lock_counters(&set.charges);
        let mut forgotten = 0;
        for charge in &set.charges {
            ledger.forget(charge.counter());
            let key = Key::of(charge.counter());
            let shard = locks.own(key);
            if let Some(place) = shard.find(key) {
                forgotten += u64::from(shard.entry(place).expires > at.secs);
                shard.remove(place, &self.budget);
            }
        }
        forgotten
    }
}

/// What remembers that a refund was made.
fn refund_entry(key: Key, expires: Secs) -> Entry {
    Entry {
        key,
        words: [0; 2],
        kind: Kind::Refund,
        expires,
        tag: 0,
    }
}
