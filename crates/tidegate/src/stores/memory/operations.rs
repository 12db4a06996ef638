//! The operations besides charge: refund, draw, force, restore, inspect and reset. Each is atomic under the locks of
//! all its counters.

#[cfg(feature = "disk")]
use tidegate_core::algorithms::CounterState;
use tidegate_core::store::{
    Charge, ChargeIntent, ChargeSet, Inspection, LeaseReply, Outcome, Refund, Refunded, Restore, RestoreStateError,
};
use tidegate_core::units::Nanos;

use super::MemoryStore;
use super::block::{EntryKind, Secs, TableEntry};
use super::counter_io::{CounterWrite, TimePoint};
use super::key::Key;
use super::locks::Locks;

/// Separates the ids of refunds from counters.
const REFUND_DOMAIN: u128 = 0x7265_6675_6e64_2069_6473_2061_7061_7274;

impl<C> MemoryStore<C> {
    /// Charges whether it fits or not. The verdicts still show what would have fitted.
    pub fn force_at(&self, set: &ChargeSet<'_>, now: Nanos) -> Outcome {
        self.decide(&set.charges, ChargeIntent::Force, now)
    }

    /// Draws a lease of one limit, of as many units as the limit allows at once.
    pub fn draw_at(&self, charge: &Charge<'_>, now: Nanos) -> LeaseReply {
        let (at, charges) = (self.time_point(now), std::slice::from_ref(charge));
        let mut locks = self.lock_counters(charges);
        let mut transaction = self.begin_transaction(&mut locks, charges, at);
        let lease = transaction.draw();
        self.commit(&mut locks, &transaction, at);
        lease
    }

    /// Refunds an earlier charge, once. Charges to a shared counter are not refunded: their subject is not known
    /// there.
    pub fn refund_at(&self, refund: &Refund<'_>, now: Nanos) -> Refunded {
        if now >= refund.expires_at {
            return Refunded::Lapsed;
        }
        let (at, id) = (self.time_point(now), Key::of(refund.id ^ REFUND_DOMAIN));
        let counters = refund.set.charges.iter().map(|c| Key::of(c.counter()));
        let mut locks = self.lock_all(counters.chain([id]));
        if let Some(outcome) = self.remember_refund(&mut locks, id, refund.expires_at, at) {
            return outcome;
        }
        for charge in &refund.set.charges {
            self.refund_charge(&mut locks, charge, refund.charged_at, at);
        }
        Refunded::Done
    }

    /// Whether the refund with this id was made and has not expired by `now`.
    #[cfg(feature = "disk")]
    pub(crate) fn has_refunded(&self, id: u128, now: Nanos) -> bool {
        let (at, key) = (self.time_point(now), Key::of(id ^ REFUND_DOMAIN));
        let found = self.shards[key.shard()].lock().get(key);
        found.is_some_and(|entry| entry.expires > at.secs)
    }

    /// Remembers the id of a refund that an earlier run made, even beyond the cap: it must not be made again.
    #[cfg(feature = "disk")]
    pub(crate) fn restore_refund(&self, id: u128, until: Nanos, now: Nanos) {
        let (at, key) = (self.time_point(now), Key::of(id ^ REFUND_DOMAIN));
        let entry = refund_entry(key, Secs::expiry(self.began, until));
        self.shards[key.shard()].lock().put(&entry, at.secs, &self.budget);
    }

    /// Remembers the id of a refund, or returns why not.
    fn remember_refund(&self, locks: &mut Locks<'_>, id: Key, until: Nanos, at: TimePoint) -> Option<Refunded> {
        let shard = locks.own(id);
        match shard.get(id) {
            Some(known) if known.expires > at.secs => return Some(Refunded::Already),
            None if shard.ensure_room(id, at.secs, &self.budget).is_err() => return Some(Refunded::Lapsed),
            _ => {}
        }
        shard.put(&refund_entry(id, Secs::expiry(self.began, until)), at.secs, &self.budget);
        None
    }

    /// Refunds charges that were made at `charged`, as far as the bounds allow. The caller ensures that it happens
    /// once.
    pub(crate) fn refund_charges_at(&self, set: &ChargeSet<'_>, charged: Nanos, now: Nanos) {
        let at = self.time_point(now);
        let mut locks = self.lock_counters(&set.charges);
        for charge in &set.charges {
            self.refund_charge(&mut locks, charge, charged, at);
        }
    }

    fn refund_charge(&self, locks: &mut Locks<'_>, charge: &Charge<'_>, charged: Nanos, at: TimePoint) {
        let key = Key::of(charge.counter());
        let shard = locks.own(key);
        let Some(place) = shard.find(key) else {
            return;
        };
        let was = shard.entry(place);
        let limit = charge.limit.as_ref();
        // Under another limit (the client changed tier) nothing is refunded: the current worth of a former unit is
        // unknown, and reading the state under the smaller of two limits would lose the rest.
        let same = was.tag == limit.tag() && was.kind == EntryKind::of(limit);
        if was.expires <= at.secs || !same {
            return;
        }
        let mut state = self.read(shard, &was, charge, at);
        let moment = limit.advance(&mut state, at.now);
        limit.refund(&mut state, moment, charged, charge.cost);
        let write = CounterWrite { key, limit, fresh_at: limit.fresh_at(&state, moment), state };
        self.rewrite(shard, place, &was, write, at.secs, &self.budget);
    }

    /// Merges known states, by maximum per limit. Each restore is atomic by itself: merging is commutative and
    /// idempotent.
    pub fn restore_at(&self, restores: &[Restore<'_>], now: Nanos) -> Result<(), RestoreStateError> {
        Restore::check_all(restores)?;
        let at = self.time_point(now);
        for restore in restores {
            let charges = std::slice::from_ref(&restore.charge);
            let mut locks = self.lock_counters(charges);
            let mut transaction = self.begin_transaction(&mut locks, charges, at);
            transaction.restore(&restore.state);
            self.commit(&mut locks, &transaction, at);
        }
        Ok(())
    }

    /// The state of each counter; `None` for one never seen or fully refilled.
    pub fn inspect_at(&self, set: &ChargeSet<'_>, now: Nanos) -> Vec<Option<Inspection>> {
        let mut locks = self.lock_counters(&set.charges);
        let transaction = self.begin_transaction(&mut locks, &set.charges, self.time_point(now));
        let inspect = |i: usize| {
            let source = transaction.counter(i).place.source;
            transaction.inspection(i).map(|inspection| Inspection { source, ..inspection })
        };
        (0..set.charges.len()).map(inspect).collect()
    }

    /// The state of the counter of a charge under its limit, and when it becomes equivalent to a fresh one; `None` if it
    /// is. For a journal around this store.
    #[cfg(feature = "disk")]
    pub(crate) fn snapshot_at(&self, charge: &Charge<'_>, now: Nanos) -> Option<(CounterState, Nanos)> {
        let charges = std::slice::from_ref(charge);
        let mut locks = self.lock_counters(charges);
        let transaction = self.begin_transaction(&mut locks, charges, self.time_point(now));
        let (state, moment) = transaction.state_of(0);
        let fresh_at = charge.limit.fresh_at(&state, moment);
        (fresh_at > now).then_some((state, fresh_at))
    }

    /// Removes each counter and its open permits. Returns the number of counters and permits. Shared counters stay:
    /// they belong to others, too. Permits are released after the counters, those of each rule in a step of their own.
    pub fn reset_at(&self, set: &ChargeSet<'_>, now: Nanos) -> u64 {
        let removed = self.reset_counters_at(set, now);
        let owners = set.charges.iter().filter(|charge| charge.rate == 0);
        let freed = owners.map(|charge| self.release_all_at(charge.counter(), now));
        removed + freed.sum::<u64>()
    }

    fn reset_counters_at(&self, set: &ChargeSet<'_>, now: Nanos) -> u64 {
        let at = self.time_point(now);
        let mut ledger = self.ledger.lock();
        let mut locks = self.lock_counters(&set.charges);
        let mut removed = 0;
        for charge in &set.charges {
            ledger.remove_counter(charge.counter());
            let key = Key::of(charge.counter());
            let shard = locks.own(key);
            if let Some(place) = shard.find(key) {
                removed += u64::from(shard.entry(place).expires > at.secs);
                shard.remove(place, &self.budget);
            }
        }
        removed
    }
}

/// The entry that remembers a refund.
fn refund_entry(key: Key, expires: Secs) -> TableEntry {
    TableEntry { key, words: [0; 2], kind: EntryKind::Refund, expires, tag: 0 }
}
