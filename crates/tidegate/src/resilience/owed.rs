//! What was admitted locally and has not been charged to the store yet.
//!
//! Kept apart from the state that decides: that one began with what the mirror knew, and to charge it
//! would charge others' spending again. Here time lets go of what no longer matters, at the pace of
//! the local share. What was spent of a bucket begins to drain when the store's own level has: one
//! rate cannot drain both.

use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_core::algorithms::{Limit, Moment, State};
use tidegate_core::store::{Charge, Slot};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use super::counters::Counters;
use super::owned::OwnedCharge;

/// Debts to the store, by counter. Bounded; what finds no room is not charged.
pub(super) struct Owed {
    debts: Counters<Debt>,
    open: AtomicUsize,
}

struct Debt {
    charge: OwnedCharge,
    share: Limit,
    state: State,
    /// A bucket: when the store's own level has drained.
    drains_from: Nanos,
    /// Units under way to the store.
    pushing: u64,
    /// The bulk has been charged: decisions are the store's again, and what came in between follows.
    settled: bool,
}

impl Debt {
    fn advance(&mut self, at: Nanos) -> Moment {
        self.share
            .advance(&mut self.state, at.max(self.drains_from))
    }

    fn units(&mut self, at: Nanos) -> u64 {
        let moment = self.advance(at);
        self.share.used(&self.state, moment)
    }

    fn spend(&mut self, cost: Cost, at: Nanos) {
        let moment = self.advance(at);
        self.share.spend(&mut self.state, moment, cost);
    }
}

/// A debt on its way to the store.
pub(super) struct Due {
    pub(super) counter: u128,
    pub(super) charge: OwnedCharge,
    pub(super) cost: Cost,
}

impl Owed {
    pub(super) fn new(most: usize) -> Self {
        Owed {
            debts: Counters::new(most),
            open: AtomicUsize::new(0),
        }
    }

    /// Whether there is anything at all.
    pub(super) fn is_empty(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// Whether a counter must be decided locally because the store does not know its debt yet.
    pub(super) fn keeps(&self, counter: u128) -> bool {
        !self.is_empty()
            && self
                .debts
                .part(counter)
                .get(&counter)
                .is_some_and(|debt| !debt.settled)
    }

    /// A charge was admitted locally under `share`. By what was last seen of it, the store's own
    /// level has drained at `empty_at`.
    pub(super) fn spend(&self, charge: &Charge<'_>, share: &Limit, at: Nanos, empty_at: Nanos) {
        let counter = charge.counter();
        let drains_from = match share.algorithm().takes_burst() {
            true => empty_at,
            false => Nanos::ZERO,
        };
        let mut part = self.debts.part(counter);
        if let Some(debt) = part.get_mut(&counter) {
            if debt.share.tag() != share.tag() {
                debt.state = share.adopt(&debt.share, debt.state.clone(), at);
                (debt.share, debt.charge) = (share.clone(), OwnedCharge::of(charge));
            }
            debt.settled = false;
            debt.drains_from = debt.drains_from.max(drains_from);
            debt.spend(charge.cost, at);
            return;
        }
        if !self.debts.has_room(&part) {
            return;
        }
        let mut debt = Debt {
            charge: OwnedCharge::of(charge),
            share: share.clone(),
            state: share.fresh(at),
            drains_from,
            pushing: 0,
            settled: false,
        };
        debt.spend(charge.cost, at);
        part.insert(counter, debt);
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    /// A locally admitted charge was given back.
    pub(super) fn give_back(&self, charge: &Charge<'_>, charged: Nanos, at: Nanos) {
        let counter = charge.counter();
        if let Some(debt) = self.debts.part(counter).get_mut(&counter) {
            let moment = debt.advance(at);
            debt.share
                .refund(&mut debt.state, moment, charged, charge.cost);
        }
    }

    /// Every debt to one store at its time `at`, with the slot it is in there, the largest first.
    /// Those that time has settled are gone. The store holds what is in a slot.
    pub(super) fn due(
        &self,
        slot: impl Fn(Fingerprint) -> Option<Slot>,
        at: Nanos,
    ) -> Vec<(Slot, u128)> {
        let mut due = Vec::new();
        for mut part in self.debts.parts() {
            let before = part.len();
            part.retain(|counter, debt| {
                let Some(slot) = slot(debt.charge.subject) else {
                    return true; // another store's, which has a time of its own
                };
                let units = debt.units(at);
                if units > 0 && debt.pushing == 0 {
                    due.push((units, *counter, slot));
                }
                units > 0 || debt.pushing > 0
            });
            self.open.fetch_sub(before - part.len(), Ordering::AcqRel);
        }
        due.sort_unstable_by(|a, b| b.cmp(a));
        due.into_iter()
            .map(|(_, counter, slot)| (slot, counter))
            .collect()
    }

    /// Takes a debt to be charged. What is spent from here on is a debt of its own.
    pub(super) fn begin(&self, counter: u128, at: Nanos) -> Option<Due> {
        let mut part = self.debts.part(counter);
        let debt = part.get_mut(&counter)?;
        let cost = Cost::new(debt.units(at))?;
        debt.pushing = cost.get();
        debt.state = debt.share.fresh(at);
        Some(Due {
            counter,
            charge: debt.charge.clone(),
            cost,
        })
    }

    /// The store has charged it.
    pub(super) fn done(&self, counter: u128, at: Nanos) {
        let mut part = self.debts.part(counter);
        let Some(debt) = part.get_mut(&counter) else {
            return;
        };
        debt.pushing = 0;
        debt.settled = true;
        if debt.units(at) == 0 {
            part.remove(&counter);
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// It is not known whether the store has charged it: it is charged again, rather twice than not
    /// at all.
    pub(super) fn failed(&self, counter: u128, at: Nanos) {
        let mut part = self.debts.part(counter);
        let Some(debt) = part.get_mut(&counter) else {
            return;
        };
        if let Some(units) = Cost::new(std::mem::take(&mut debt.pushing)) {
            debt.spend(units, at);
        }
    }

    /// Forgets a counter that was reset on purpose.
    pub(super) fn forget(&self, counter: u128) {
        if self.debts.part(counter).remove(&counter).is_some() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
