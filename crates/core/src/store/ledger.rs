//! The open reservations of a store that keeps them in memory.
//!
//! Grouped by counter, because the next reservation of a counter refunds those that nobody settled. A step
//! costs about the same however many are open: an entry is found by counter and id, and those that have
//! ended by the order of their ends. Bounded twice: as a whole, and for each counter. A quarter of the room
//! is for counters with few reservations; of the rest each may have half of what is free. So one subject
//! holds a quarter at most, and those that take as much as they can leave room for all others. Knows neither limits nor how a counter is changed; whoever asks does that.

use std::collections::{BTreeSet, HashMap};

use super::{Charge, Kept, Outcome, Reserve, Settle, Used};
use crate::units::{Cost, Nanos};

/// Entries that one call forgets besides as many as it adds: a table that is full of what has ended is
/// emptied by a few calls, and none of them takes long.
const MAX_FORGOTTEN: usize = 16;
/// Estimates of one counter that one reservation refunds. The rest waits for the next one.
const MAX_REFUNDED: usize = 256;

/// A counter with fewer reservations has a claim to all of the room.
const FEW: usize = 8;

/// Reservations by counter.
#[derive(Clone, Debug)]
pub struct Ledger {
    counters: HashMap<u128, Estimates>,
    /// When each entry is forgotten: time, counter, id. What a reset has forgotten before stays in here.
    ends: BTreeSet<(Nanos, u128, u128)>,
    count: usize,
    max: usize,
}

/// The reservations of one counter, by id. Each has one charge of it.
#[derive(Clone, Debug, Default)]
struct Estimates {
    entries: HashMap<u128, Entry>,
    /// When each one ends that is open: time, id.
    open: BTreeSet<(Nanos, u128)>,
}

/// One charge of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    /// Of the limit it was charged under.
    tag: u32,
    estimate: Cost,
    charged: Nanos,
    lasts: Nanos,
    /// Whether the estimate has come back.
    back: bool,
}

/// An estimate that nobody settled in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abandoned {
    /// How much it was.
    pub estimate: Cost,
    /// The store's time of its charge.
    pub charged: Nanos,
}

/// Why a reservation cannot be remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LedgerFull {
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

impl Entry {
    fn until(&self) -> Nanos {
        self.charged.plus(self.lasts)
    }

    fn forgotten_at(&self) -> Nanos {
        self.until().plus(self.lasts)
    }

    /// Whether it is what `settle` names as `charge`. By everything but when it was charged: of limits
    /// that were charged one after another only the earliest time is known.
    fn is_named(&self, settle: &Settle<'_>, charge: &Charge<'_>) -> bool {
        let named = (charge.limit.tag(), charge.cost, settle.lasts());
        named == (self.tag, self.estimate, self.lasts)
    }
}

impl Ledger {
    /// What one charge of a reservation takes in memory, about.
    pub const ENTRY_BYTES: u64 = 192;

    /// Room for so many charges of reservations.
    pub fn new(max: usize) -> Self {
        Ledger {
            counters: HashMap::new(),
            ends: BTreeSet::new(),
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
    pub fn make_room(&mut self, reserve: &Reserve<'_>, now: Nanos) -> Result<(), LedgerFull> {
        let wanted = reserve.set.charges.len();
        if self.count.saturating_add(wanted) > self.max / 2 {
            self.forget_ended(wanted + MAX_FORGOTTEN, now);
        }
        let free = self.max.saturating_sub(self.count);
        if wanted > free {
            return Err(LedgerFull::Table { max: self.max });
        }
        let fair = FEW.max(free.saturating_sub(self.max / 4) / 2);
        let open = reserve.set.charges.iter().map(|charge| self.open(charge));
        match open.max() {
            Some(open) if open >= fair => Err(LedgerFull::Subject { open }),
            _ => Ok(()),
        }
    }

    /// Reservations of the counter of `charge`.
    fn open(&self, charge: &Charge<'_>) -> usize {
        let own = self.counters.get(&charge.counter());
        own.map_or(0, |own| own.entries.len())
    }

    /// Forgets up to `max` entries that can no longer be settled.
    fn forget_ended(&mut self, max: usize, now: Nanos) {
        for _ in 0..max {
            match self.ends.first() {
                Some((end, counter, id)) if *end <= now => {
                    let (end, counter, id) = (*end, *counter, *id);
                    self.ends.pop_first();
                    let own = self
                        .counters
                        .get(&counter)
                        .and_then(|own| own.entries.get(&id));
                    if own.is_some_and(|entry| entry.forgotten_at() == end) {
                        self.remove(counter, id);
                    }
                }
                _ => return,
            }
        }
    }

    /// Notes a reservation that was admitted: what was charged for it.
    pub fn enter_all(&mut self, reserve: &Reserve<'_>, outcome: &Outcome) {
        for (charge, reading) in reserve.set.charges.iter().zip(&outcome.readings) {
            if reading.verdict.allows() {
                self.enter(reserve, charge, outcome.at);
            }
        }
    }

    fn enter(&mut self, reserve: &Reserve<'_>, charge: &Charge<'_>, at: Nanos) {
        let entry = Entry {
            tag: charge.limit.tag(),
            estimate: charge.cost,
            charged: at,
            lasts: reserve.lasts,
            back: false,
        };
        self.insert(charge.counter(), reserve.id, entry);
    }

    fn insert(&mut self, counter: u128, id: u128, entry: Entry) {
        self.remove(counter, id);
        let own = self.counters.entry(counter).or_default();
        own.entries.insert(id, entry);
        if !entry.back {
            own.open.insert((entry.until(), id));
        }
        self.ends.insert((entry.forgotten_at(), counter, id));
        self.count += 1;
    }

    fn remove(&mut self, counter: u128, id: u128) {
        let Some(own) = self.counters.get_mut(&counter) else {
            return;
        };
        let Some(entry) = own.entries.remove(&id) else {
            return;
        };
        own.open.remove(&(entry.until(), id));
        if own.entries.is_empty() {
            self.counters.remove(&counter);
        }
        self.ends.remove(&(entry.forgotten_at(), counter, id));
        self.count -= 1;
    }

    /// The estimates of a counter that nobody settled in time, to be refunded now, those that ended first
    /// and so many at most. Those of another limit than it has now are left out: what a unit was then
    /// cannot be said.
    pub fn abandoned(&mut self, charge: &Charge<'_>, now: Nanos) -> Vec<Abandoned> {
        let (counter, mut abandoned) = (charge.counter(), Vec::new());
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
            entry.back = true;
            let Entry {
                tag,
                estimate,
                charged,
                ..
            } = *entry;
            if tag == charge.limit.tag() {
                abandoned.push(Abandoned { estimate, charged });
            }
            if entry.forgotten_at() <= now {
                self.remove(counter, id);
            }
        }
        abandoned
    }

    /// Takes out what there is of each charge of a settlement; one that nobody settled stays as one
    /// whose estimate has come back.
    pub fn close(&mut self, settle: &Settle<'_>) -> Vec<Kept> {
        let charges = settle.set.charges.iter();
        charges
            .map(|charge| self.close_one(settle, charge))
            .collect()
    }

    fn close_one(&mut self, settle: &Settle<'_>, charge: &Charge<'_>) -> Kept {
        let (counter, id) = (charge.counter(), settle.id);
        let Some(own) = self.counters.get_mut(&counter) else {
            return Kept::Nothing;
        };
        let named = own.entries.get_mut(&id);
        let Some(entry) = named.filter(|entry| entry.is_named(settle, charge)) else {
            return Kept::Nothing;
        };
        let kept = match (entry.back, &settle.used) {
            (false, _) => Kept::Open(entry.charged),
            (true, Used::Known(_)) => Kept::Back,
            (true, Used::Unsaid) => return Kept::Nothing,
        };
        if settle.used == Used::Unsaid {
            entry.back = true;
            own.open.remove(&(entry.until(), id));
        } else {
            self.remove(counter, id);
        }
        kept
    }

    /// Forgets the reservations of a counter that was reset: what was charged for them is forgiven, and
    /// must not come back out of what others are charged from now on.
    pub fn forget(&mut self, counter: u128) {
        let gone = self.counters.remove(&counter);
        self.count -= gone.map_or(0, |own| own.entries.len());
    }

    /// Hands the reservations of a counter over to another store.
    pub fn hand_over(&mut self, counter: u128, to: &mut Ledger) {
        let own = self.counters.get(&counter).cloned().unwrap_or_default();
        self.forget(counter);
        for (id, entry) in own.entries {
            to.insert(counter, id, entry);
        }
    }
}

#[cfg(test)]
mod tests;
