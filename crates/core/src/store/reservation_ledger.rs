//! The open reservations of a store that keeps them in memory.
//!
//! Entries are ordered by counter, because the next reservation of a counter refunds its expired ones. The cost of a
//! call hardly depends on how many are open: entries are found by counter and id, expired entries by expiry. Only the
//! reset of a counter visits all entries of that counter.
//!
//! Invariant: the ledger is bounded as a whole and per counter. A quarter of the room is for counters with few
//! reservations; of the rest each counter may have half of what is free. So one subject holds at most a quarter, and
//! greedy subjects leave room for all others. An entry takes at most [`ReservationLedger::ENTRY_BYTES`], whether the
//! counters of the entries differ or not: there is no table per counter. Knows neither limits nor counters; the caller
//! changes those.

use std::collections::{BTreeMap, BTreeSet};

use super::{Charge, Outcome, ReservationState, Reserve, Settle, Used};
use crate::units::{Cost, Nanos};

/// Entries that one call evicts in addition to the number it adds. A few calls empty a table full of expired entries,
/// and none of them takes long.
const MAX_EVICTED: usize = 16;
/// Estimates of one counter that one reservation refunds. The rest waits for the next reservation.
const MAX_REFUNDED: usize = 256;

/// A counter with fewer reservations may use all of the room.
const MIN_PER_COUNTER: usize = 8;

/// Charges of reservations.
#[derive(Clone, Debug)]
pub struct ReservationLedger {
    /// By counter and id of the reservation.
    entries: BTreeMap<(u128, u128), LedgerEntry>,
    /// The number of entries of each counter that has one.
    counts: BTreeMap<u128, u32>,
    /// The expiry of each open entry: counter, time, id.
    open: BTreeSet<(u128, Nanos, u128)>,
    /// When each entry is evicted: time, counter, id.
    evictions: BTreeSet<(Nanos, u128, u128)>,
    max: usize,
}

/// One charge of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LedgerEntry {
    /// The tag of the limit it was charged under.
    tag: u32,
    reserved: Cost,
    charged_at: Nanos,
    ttl: Nanos,
    /// Whether the estimate was refunded.
    refunded: bool,
}

/// An estimate that was not settled in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpiredReservation {
    /// The units of the estimate.
    pub reserved: Cost,
    /// The store's time of its charge.
    pub charged_at: Nanos,
}

/// Why a reservation has no room in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LedgerFullError {
    /// The whole table is full.
    #[error("no room for another reservation: {max} charges of reservations are open, all that the memory cap allows")]
    Table {
        /// The capacity.
        max: usize,
    },
    /// One subject has so many open that others could find no room.
    #[error("{open} reservations of this subject are open; the rest is for other subjects")]
    Subject {
        /// The number open.
        open: usize,
    },
}

impl LedgerEntry {
    fn expires_at(&self) -> Nanos {
        self.charged_at.plus(self.ttl)
    }

    fn evict_at(&self) -> Nanos {
        self.expires_at().plus(self.ttl)
    }

    /// Whether this is the entry that `settle` names as `charge`. The time of the charge is not compared: of limits
    /// that were charged one after another only the earliest time is known.
    fn matches(&self, settle: &Settle<'_>, charge: &Charge<'_>) -> bool {
        let expected = (charge.limit.tag(), charge.cost, settle.ttl());
        expected == (self.tag, self.reserved, self.ttl)
    }
}

impl ReservationLedger {
    /// The memory of one entry in all tables, with nodes of them that are half full.
    pub const ENTRY_BYTES: u64 = 384;

    /// A ledger for at most `max` charges of reservations.
    pub fn new(max: usize) -> Self {
        ReservationLedger {
            entries: BTreeMap::new(),
            counts: BTreeMap::new(),
            open: BTreeSet::new(),
            evictions: BTreeSet::new(),
            max,
        }
    }

    /// The maximum number of charges of reservations.
    pub fn max(&self) -> usize {
        self.max
    }

    /// The number of charges of reservations.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the ledger is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes room for a reservation. When half of the room is used, some entries past their settle deadline are
    /// evicted. Until then their estimates may still be refunded.
    ///
    /// # Errors
    /// When there is no room, for any subject or for this one.
    pub fn make_room(&mut self, reserve: &Reserve<'_>, now: Nanos) -> Result<(), LedgerFullError> {
        let wanted = reserve.set.charges.len();
        if self.len().saturating_add(wanted) > self.max / 2 {
            self.evict_expired(wanted + MAX_EVICTED, now);
        }
        let free = self.max.saturating_sub(self.len());
        if wanted > free {
            return Err(LedgerFullError::Table { max: self.max });
        }
        let fair = MIN_PER_COUNTER.max(free.saturating_sub(self.max / 4) / 2);
        let open = reserve.set.charges.iter().map(|charge| self.reservation_count(charge));
        match open.max() {
            Some(open) if open >= fair => Err(LedgerFullError::Subject { open }),
            _ => Ok(()),
        }
    }

    /// The number of reservations of the counter of `charge`.
    fn reservation_count(&self, charge: &Charge<'_>) -> usize {
        self.counts.get(&charge.counter()).map_or(0, |count| *count as usize)
    }

    /// Evicts up to `max` entries that can no longer be settled.
    fn evict_expired(&mut self, max: usize, now: Nanos) {
        for _ in 0..max {
            match self.evictions.first() {
                Some(&(end, counter, id)) if end <= now => self.remove(counter, id),
                _ => return,
            }
        }
    }

    /// Records an admitted reservation: the charges that were made for it.
    pub fn record_all(&mut self, reserve: &Reserve<'_>, outcome: &Outcome) {
        for (charge, reading) in reserve.set.charges.iter().zip(&outcome.readings) {
            if reading.verdict.allows() {
                self.record(reserve, charge, outcome.at);
            }
        }
    }

    fn record(&mut self, reserve: &Reserve<'_>, charge: &Charge<'_>, at: Nanos) {
        let entry = LedgerEntry {
            tag: charge.limit.tag(),
            reserved: charge.cost,
            charged_at: at,
            ttl: reserve.ttl,
            refunded: false,
        };
        self.insert(charge.counter(), reserve.id, entry);
    }

    fn insert(&mut self, counter: u128, id: u128, entry: LedgerEntry) {
        self.remove(counter, id);
        if !entry.refunded {
            self.open.insert((counter, entry.expires_at(), id));
        }
        self.evictions.insert((entry.evict_at(), counter, id));
        self.entries.insert((counter, id), entry);
        *self.counts.entry(counter).or_default() += 1;
    }

    fn remove(&mut self, counter: u128, id: u128) {
        let Some(entry) = self.entries.remove(&(counter, id)) else { return };
        self.open.remove(&(counter, entry.expires_at(), id));
        self.evictions.remove(&(entry.evict_at(), counter, id));
        let count = self.counts.entry(counter).or_default();
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&counter);
        }
    }

    /// Takes the expired estimates of a counter, to be refunded now: the earliest expired first, at most
    /// `MAX_REFUNDED`. Estimates made under another limit are left out: the value of their units is unknown.
    pub fn take_expired(&mut self, charge: &Charge<'_>, now: Nanos) -> Vec<ExpiredReservation> {
        let (counter, mut expired) = (charge.counter(), Vec::new());
        for _ in 0..MAX_REFUNDED {
            let open = self.open.range((counter, Nanos::ZERO, 0)..=(counter, now, u128::MAX)).next();
            let Some(earliest @ (_, _, id)) = open.copied() else { break };
            self.open.remove(&earliest);
            let entry = self.entries.get_mut(&(counter, id)).expect("an open entry is in the ledger");
            entry.refunded = true;
            let LedgerEntry { tag, reserved, charged_at, .. } = *entry;
            if tag == charge.limit.tag() {
                expired.push(ExpiredReservation { reserved, charged_at });
            }
            if entry.evict_at() <= now {
                self.remove(counter, id);
            }
        }
        expired
    }

    /// Removes the recorded state of each charge of a settlement and returns it. After a settlement with unknown use
    /// the entry stays, marked as refunded.
    pub fn close(&mut self, settle: &Settle<'_>) -> Vec<ReservationState> {
        settle.set.charges.iter().map(|charge| self.close_one(settle, charge)).collect()
    }

    fn close_one(&mut self, settle: &Settle<'_>, charge: &Charge<'_>) -> ReservationState {
        let (counter, id) = (charge.counter(), settle.id);
        let found = self.entries.get_mut(&(counter, id));
        let Some(entry) = found.filter(|entry| entry.matches(settle, charge)) else {
            return ReservationState::Unknown;
        };
        let state = match (entry.refunded, &settle.used) {
            (false, _) => ReservationState::Open(entry.charged_at),
            (true, Used::Known(_)) => ReservationState::Refunded,
            (true, Used::Unknown) => return ReservationState::Unknown,
        };
        if settle.used == Used::Unknown {
            entry.refunded = true;
            self.open.remove(&(counter, entry.expires_at(), id));
        } else {
            self.remove(counter, id);
        }
        state
    }

    /// Removes the reservations of a counter that was reset. Their charges are forgiven, so their refund must not come
    /// out of later charges of other requests.
    pub fn remove_counter(&mut self, counter: u128) {
        for (id, _) in self.entries_of(counter) {
            self.remove(counter, id);
        }
    }

    /// Moves the reservations of a counter to another ledger.
    pub fn move_counter(&mut self, counter: u128, to: &mut ReservationLedger) {
        for (id, entry) in self.entries_of(counter) {
            self.remove(counter, id);
            to.insert(counter, id, entry);
        }
    }

    /// The entries of a counter, by id.
    fn entries_of(&self, counter: u128) -> Vec<(u128, LedgerEntry)> {
        let own = self.entries.range((counter, 0)..=(counter, u128::MAX));
        own.map(|((_, id), entry)| (*id, *entry)).collect()
    }
}

#[cfg(test)]
mod tests;
