//! What was admitted locally and has not been charged to the store yet.
//!
//! Kept apart from the state that decides: that one began with what the mirror knew, and to charge it
//! would charge others' spending again. Here time lets go of what no longer matters, at the pace of
//! the local share. What was spent of a bucket begins to drain when the store's own level has: one
//! rate cannot drain both.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidegate_core::algorithms::{Limit, Moment, State};
use tidegate_core::store::{Charge, Slot};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use super::counters::Counters;
use super::owned::OwnedCharge;

/// How long a record that the store cannot use is left alone.
const RETRY_RECORD_AFTER: Nanos = Nanos::from_secs(5);

/// Debts to the store, by counter. Bounded; what finds no room is not charged, and reported as dropped.
pub(super) struct Owed {
    debts: Counters<Debt>,
    open: AtomicUsize,
    /// Units that found no room and are not reported yet.
    dropped: AtomicU64,
}

struct Debt {
    charge: OwnedCharge,
    share: Limit,
    state: State,
    /// A bucket: when the store's own level has drained.
    drains_from: Nanos,
    /// Units under way to the store.
    pushing: u64,
    /// Decisions are the store's: the bulk has been charged, or only late replies left something.
    settled: bool,
    /// Units that this node's share does not count yet.
    unshared: u64,
    /// It is not charged before this, because the store cannot use its record.
    not_before: Nanos,
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
    pub(super) cause: DueCause,
}

/// Why units were admitted that the store does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DueCause {
    /// The store was away.
    Outage,
    /// Its reply was late.
    Late,
}

impl Owed {
    pub(super) fn new(most: usize) -> Self {
        Owed {
            debts: Counters::new(most),
            open: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Whether there is anything at all.
    pub(super) fn is_empty(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// Units that found no room since this was last called: the store will never count them.
    pub(super) fn take_dropped(&self) -> u64 {
        if self.dropped.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.dropped.swap(0, Ordering::AcqRel)
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
        let drains_from = drains_from(share, empty_at);
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
            self.dropped.fetch_add(charge.cost.get(), Ordering::AcqRel);
            return;
        }
        let mut debt = Debt {
            charge: OwnedCharge::of(charge),
            share: share.clone(),
            state: share.fresh(at),
            drains_from,
            pushing: 0,
            settled: false,
            unshared: 0,
            not_before: Nanos::ZERO,
        };
        debt.spend(charge.cost, at);
        part.insert(counter, debt);
        self.open.fetch_add(1, Ordering::AcqRel);
    }

    /// A charge was admitted at the store's time `admitted` because its reply was late, and the store does not
    /// count it. What of it still matters is a debt. Decisions on the counter stay the store's. `unshared`
    /// units of it are not counted by this node's share.
    pub(super) fn spend_late(
        &self,
        charge: &OwnedCharge,
        admitted: Nanos,
        at: Nanos,
        empty_at: Nanos,
        unshared: u64,
    ) {
        let counter = charge.counter();
        let Some(cost) = still_matters(charge, admitted, at, empty_at) else {
            return;
        };
        let mut part = self.debts.part(counter);
        if !part.contains_key(&counter) {
            if !self.debts.has_room(&part) {
                self.dropped.fetch_add(cost.get(), Ordering::AcqRel);
                return;
            }
            let debt = Debt {
                charge: charge.clone(),
                share: charge.limit.clone(),
                state: charge.limit.fresh(at),
                drains_from: drains_from(&charge.limit, empty_at),
                pushing: 0,
                settled: true,
                unshared: 0,
                not_before: Nanos::ZERO,
            };
            part.insert(counter, debt);
            self.open.fetch_add(1, Ordering::AcqRel);
        }
        if let Some(debt) = part.get_mut(&counter) {
            debt.spend(cost, at);
            debt.unshared = debt.unshared.saturating_add(unshared);
        }
    }

    /// Every counter with units that the store does not count at its time `at`.
    pub(super) fn each(&self, at: Nanos, mut see: impl FnMut(&OwnedCharge, u64)) {
        if self.is_empty() {
            return;
        }
        for mut part in self.debts.parts() {
            for debt in part.values_mut() {
                let units = debt.units(at).saturating_add(debt.pushing);
                if units > 0 {
                    see(&debt.charge, units);
                }
            }
        }
    }

    /// Goes on with a debt from before a restart, as it was at the store's time `at`. This node's share
    /// counts it, and decides until the store has charged it.
    pub(super) fn restore(&self, charge: OwnedCharge, at: Nanos) {
        let (units, limit) = (charge.units(), charge.limit.clone());
        self.spend(&charge.charge(), &limit, at, at);
        let counter = charge.counter();
        if let Some(debt) = self.debts.part(counter).get_mut(&counter) {
            debt.unshared = debt.unshared.saturating_add(units);
        }
    }

    /// Units of a counter that the store does not count, those on their way to it included.
    pub(super) fn units(&self, counter: u128, at: Nanos) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut part = self.debts.part(counter);
        part.get_mut(&counter)
            .map_or(0, |debt| debt.units(at).saturating_add(debt.pushing))
    }

    /// The store counts units for which nobody was admitted: they pay for as many that it does not count.
    /// Whether there were as many, and not yet on their way.
    pub(super) fn cancel(&self, charge: &OwnedCharge, at: Nanos) -> bool {
        if self.is_empty() {
            return false;
        }
        let counter = charge.counter();
        let mut part = self.debts.part(counter);
        let Some(debt) = part.get_mut(&counter) else {
            return false;
        };
        let (units, cost) = (debt.units(at), charge.units());
        if units < cost {
            return false;
        }
        debt.state = debt.share.holding(units - cost, at.max(debt.drains_from));
        debt.unshared = debt.unshared.min(units - cost);
        if units == cost && debt.pushing == 0 {
            part.remove(&counter);
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
        true
    }

    /// Units that this node's share does not count yet, and does from now on.
    pub(super) fn take_unshared(&self, counter: u128) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut part = self.debts.part(counter);
        part.get_mut(&counter)
            .map_or(0, |debt| std::mem::take(&mut debt.unshared))
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
                if units > 0 && debt.pushing == 0 && debt.not_before <= at {
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
            cause: if debt.settled {
                DueCause::Late
            } else {
                DueCause::Outage
            },
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

    /// The store has charged it, and `units` of that are lost again when it is restored: those are charged
    /// once more.
    pub(super) fn swallowed(&self, counter: u128, units: u64, at: Nanos) {
        if units == 0 {
            return self.done(counter, at);
        }
        if let Some(debt) = self.debts.part(counter).get_mut(&counter) {
            debt.pushing = debt.pushing.min(units);
        }
        self.failed(counter, at);
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

    /// The store cannot use its record: it is charged later.
    pub(super) fn refused(&self, counter: u128, at: Nanos) {
        self.failed(counter, at);
        if let Some(debt) = self.debts.part(counter).get_mut(&counter) {
            debt.not_before = at.plus(RETRY_RECORD_AFTER);
        }
    }

    /// Forgets a counter that was reset on purpose.
    pub(super) fn forget(&self, counter: u128) {
        if self.debts.part(counter).remove(&counter).is_some() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// When a debt begins to drain: a bucket's, when the store's own level has drained.
fn drains_from(limit: &Limit, empty_at: Nanos) -> Nanos {
    if limit.algorithm().takes_burst() {
        empty_at
    } else {
        Nanos::ZERO
    }
}

/// What is left at `at` of a charge that was admitted earlier. Windows end. A bucket drains one charge after
/// another, and what else drains meanwhile is not known here, so its units count until a full bucket would have
/// drained: rather too long than too short.
fn still_matters(
    charge: &OwnedCharge,
    admitted: Nanos,
    at: Nanos,
    empty_at: Nanos,
) -> Option<Cost> {
    let limit = &charge.limit;
    let from = drains_from(limit, empty_at).max(admitted).min(at);
    if limit.algorithm().takes_burst() {
        let drained = at.since(from) >= limit.full_window();
        return if drained {
            None
        } else {
            Cost::new(charge.units())
        };
    }
    let mut state = limit.holding(charge.units(), from);
    let moment = limit.advance(&mut state, at);
    Cost::new(limit.used(&state, moment).min(charge.units()))
}

#[cfg(test)]
mod tests {
    use tidegate_core::algorithms::{Algorithm, Precision, Spec};
    use tidegate_core::store::Terms;
    use tidegate_core::subject::RuleName;

    use super::*;

    const NOW: Nanos = Nanos::from_secs(1_000);

    fn charge(algorithm: Algorithm, subject: u128, units: u64) -> OwnedCharge {
        let spec = Spec::new(algorithm, 10, Nanos::from_secs(10));
        OwnedCharge::new(
            Fingerprint::new(subject),
            RuleName::new("rule"),
            0,
            Limit::compile(&spec, Precision::Memory).expect("a fit rate"),
            Cost::new(units).expect("a cost"),
            Terms::USUAL,
        )
    }

    /// They were dropped without a word.
    #[test]
    fn units_that_find_no_room_are_reported_once() {
        let owed = Owed::new(16);
        let counters = 4_000;
        for subject in 0..counters {
            let charge = charge(Algorithm::FixedWindow, subject, 2);
            if subject % 2 == 0 {
                owed.spend(&charge.charge(), &charge.limit, NOW, NOW);
            } else {
                owed.spend_late(&charge, NOW, NOW, NOW, 0);
            }
        }
        let mut kept = 0;
        owed.each(NOW, |_, units| kept += units);
        assert!(kept > 0);
        assert_eq!(owed.take_dropped() + kept, 2 * counters as u64);
        assert_eq!(owed.take_dropped(), 0);
    }

    /// Bucket units of several requests drained beside each other, each as if it were alone.
    #[test]
    fn bucket_units_of_a_lost_connection_are_not_drained_one_by_one() {
        let owed = Owed::new(16);
        let later = |secs| NOW.plus(Nanos::from_secs(secs));
        for _ in 0..5 {
            let unit = charge(Algorithm::TokenBucket, 7, 1);
            owed.spend_late(&unit, NOW, later(2), NOW, 0);
        }
        let counter = charge(Algorithm::TokenBucket, 7, 1).counter();
        assert_eq!(owed.units(counter, later(2)), 5);
        owed.spend_late(
            &charge(Algorithm::TokenBucket, 8, 1),
            NOW,
            later(10),
            NOW,
            0,
        );
        let drained = charge(Algorithm::TokenBucket, 8, 1).counter();
        assert_eq!(
            owed.units(drained, later(10)),
            0,
            "a full bucket has drained"
        );
    }
}
