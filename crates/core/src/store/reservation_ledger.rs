//! The open reservations of a store that keeps them in memory.
//!
//! Grouped by counter, because the next reservation of a counter refunds those that nobody settled. A step
//! costs about the same however many are open: an entry is found by counter and id, and those that have
//! ended by the order of their ends. Bounded twice: as a whole, and for each counter. A quarter of the room
//! is for counters with few reservations; of the rest each may have half of what is free. So one subject
//! holds a quarter at most, and those that take as much as they can leave room for all others. Knows neither limits nor how a counter is changed; whoever asks does that.

use std::collections::{BTreeSet, HashMap};

use super::{Charge, Outcome, ReservationState, Reserve, Settle, Used};
use crate::units::{Cost, Nanos};

/// Entries that one call forgets besides as many as it adds: a table that is full of what has ended is
/// emptied by a few calls, and none of them takes long.
const MAX_EVICTED: usize = 16;
/// Estimates of one counter that one reservation refunds. The rest waits for the next one.
const MAX_REFUNDED: usize = 256;

/// A counter with fewer reservations has a claim to all of the room.
const MIN_PER_COUNTER: usize = 8;

/// Reservations by counter.
#[derive(Clone, Debug)]
pub struct ReservationLedger {
    counters: HashMap<u128, CounterReservations>,
    /// When each entry is forgotten: time, counter, id. What a reset has forgotten before stays in here.
    expirations: BTreeSet<(Nanos, u128, u128)>,
    count: usize,
    max: usize,
}

/// The reservations of one counter, by id. Each has one charge of it.
#[derive(Clone, Debug, Default)]
struct CounterReservations {
    entries: HashMap<u128, LedgerEntry>,
    /// When each one ends that is open: time, id.
    open: BTreeSet<(Nanos, u128)>,
}

/// One charge of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LedgerEntry {
    /// Of the limit it was charged under.
    tag: u32,
    reserved: Cost,
    charged_at: Nanos,
    ttl: Nanos,
    /// Whether the estimate has come back.
    returned: bool,
}

/// An estimate that nobody settled in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExpiredReservation {
    /// How much it was.
    pub reserved: Cost,
    /// The store's time of its charge.
    pub charged_at: Nanos,
}

/// Why a reservation cannot be remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LedgerFullError {
    /// So many are open in all.
    #[error("{max} reservations are open, which is as many as are remembered")]
    Table {
        /// How many that are.
        max: usize,
    },
    /// So many of one subject are open that others could find no room.
    #[error("{open} reservations of this subject are open, and the room left is for others")]
    Subject {
        /// How many that are.
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

    /// Whether it is what `settle` names as `charge`. By everything but when it was charged: of limits
    /// that were charged one after another only the earliest time is known.
    fn matches(&self, settle: &Settle<'_>, charge: &Charge<'_>) -> bool {
        let expected = (charge.limit.tag(), charge.cost, settle.ttl());
        expected == (self.tag, self.reserved, self.ttl)
    }
}

impl ReservationLedger {
    /// What one charge of a reservation takes in memory, about.
    pub const ENTRY_BYTES: u64 = 192;

    /// Room for so many charges of reservations.
    pub fn new(max: usize) -> Self {
        ReservationLedger {
            counters: HashMap::new(),
            expirations: BTreeSet::new(),
            count: 0,
            max,
        }
    }

    /// How many charges of reservations can be remembered.
    pub fn max(&self) -> usize {
        self.max
    }

    /// How many are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Makes room for a reservation: when half of it is taken, some that can no longer be settled are
    /// forgotten. Before that their estimates may still come back.
    ///
    /// # Errors
    /// When there is none, for anybody or for this subject.
    pub fn make_room(&mut self, reserve: &Reserve<'_>, now: Nanos) -> Result<(), LedgerFullError> {
        let wanted = reserve.set.charges.len();
        if self.count.saturating_add(wanted) > self.max / 2 {
            self.evict_expired(wanted + MAX_EVICTED, now);
        }
        let free = self.max.saturating_sub(self.count);
        if wanted > free {
            return Err(LedgerFullError::Table { max: self.max });
        }
        let fair = MIN_PER_COUNTER.max(free.saturating_sub(self.max / 4) / 2);
        let open = reserve
            .set
            .charges
            .iter()
            .map(|charge| self.open_count(charge));
        match open.max() {
            Some(open) if open >= fair => Err(LedgerFullError::Subject { open }),
            _ => Ok(()),
        }
    }

    /// Reservations of the counter of `charge`.
    fn open_count(&self, charge: &Charge<'_>) -> usize {
        let own = self.counters.get(&charge.counter());
        own.map_or(0, |own| own.entries.len())
    }

    /// Forgets up to `max` entries that can no longer be settled.
    fn evict_expired(&mut self, max: usize, now: Nanos) {
        for _ in 0..max {
            match self.expirations.first() {
                Some((end, counter, id)) if *end <= now => {
                    let (end, counter, id) = (*end, *counter, *id);
                    self.expirations.pop_first();
                    let own = self
                        .counters
                        .get(&counter)
                        .and_then(|own| own.entries.get(&id));
                    if own.is_some_and(|entry| entry.evict_at() == end) {
                        self.remove(counter, id);
                    }
                }
                _ => return,
            }
        }
    }

    /// Notes a reservation that was admitted: what was charged for it.
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
            returned: false,
        };
        self.insert(charge.counter(), reserve.id, entry);
    }

    fn insert(&mut self, counter: u128, id: u128, entry: LedgerEntry) {
        self.remove(counter, id);
        let own = self.counters.entry(counter).or_default();
        own.entries.insert(id, entry);
        if !entry.returned {
            own.open.insert((entry.expires_at(), id));
        }
        self.expirations.insert((entry.evict_at(), counter, id));
        self.count += 1;
    }

    fn remove(&mut self, counter: u128, id: u128) {
        let Some(own) = self.counters.get_mut(&counter) else {
            return;
        };
        let Some(entry) = own.entries.remove(&id) else {
            return;
        };
        own.open.remove(&(entry.expires_at(), id));
        if own.entries.is_empty() {
            self.counters.remove(&counter);
        }
        self.expirations.remove(&(entry.evict_at(), counter, id));
        self.count -= 1;
    }

    /// The estimates of a counter that nobody settled in time, to be refunded now, those that ended first
    /// and so many at most. Those of another limit than it has now are left out: what a unit was then
    /// cannot be said.
    pub fn take_expired(&mut self, charge: &Charge<'_>, now: Nanos) -> Vec<ExpiredReservation> {
        let (counter, mut expired) = (charge.counter(), Vec::new());
        for _ in 0..MAX_REFUNDED {
            let Some(own) = self.counters.get_mut(&counter) else {
                break;
            };
            let Some((_, id)) = own.open.first().copied().filter(|(end, _)| *end <= now) else {
                break;
            };
            own.open.pop_first();
            let Some(entry) = own.entries.get_mut(&id) else {
                continue;
            };
            entry.returned = true;
            let LedgerEntry {
                tag,
                reserved: estimate,
                charged_at: charged,
                ..
            } = *entry;
            if tag == charge.limit.tag() {
                expired.push(ExpiredReservation {
                    reserved: estimate,
                    charged_at: charged,
                });
            }
            if entry.evict_at() <= now {
                self.remove(counter, id);
            }
        }
        expired
    }

    /// Takes out what there is of each charge of a settlement; one that nobody settled stays as one
    /// whose estimate has come back.
    pub fn close(&mut self, settle: &Settle<'_>) -> Vec<ReservationState> {
        let charges = settle.set.charges.iter();
        charges
            .map(|charge| self.close_one(settle, charge))
            .collect()
    }

    fn close_one(&mut self, settle: &Settle<'_>, charge: &Charge<'_>) -> ReservationState {
        let (counter, id) = (charge.counter(), settle.id);
        let Some(own) = self.counters.get_mut(&counter) else {
            return ReservationState::Unknown;
        };
        let found = own.entries.get_mut(&id);
        let Some(entry) = found.filter(|entry| entry.matches(settle, charge)) else {
            return ReservationState::Unknown;
        };
        let state = match (entry.returned, &settle.used) {
            (false, _) => ReservationState::Open(entry.charged_at),
            (true, Used::Known(_)) => ReservationState::Returned,
            (true, Used::Unknown) => return ReservationState::Unknown,
        };
        if settle.used == Used::Unknown {
            entry.returned = true;
            own.open.remove(&(entry.expires_at(), id));
        } else {
            self.remove(counter, id);
        }
        state
    }

    /// Forgets the reservations of a counter that was reset: what was charged for them is forgiven, and
    /// must not come back out of what others are charged from now on.
    pub fn remove_counter(&mut self, counter: u128) {
        let removed = self.counters.remove(&counter);
        self.count -= removed.map_or(0, |own| own.entries.len());
    }

    /// Hands the reservations of a counter over to another store.
    pub fn move_counter(&mut self, counter: u128, to: &mut ReservationLedger) {
        let own = self.counters.get(&counter).cloned().unwrap_or_default();
        self.remove_counter(counter);
        for (id, entry) in own.entries {
            to.insert(counter, id, entry);
        }
    }
}

#[cfg(test)]
mod tests;
