//! The open reservations of a store that keeps them in memory.
//!
//! Kept by counter, because it is the next reservation of a counter that brings those back that nobody
//! settled. Bounded: one that finds no room cannot be made. Knows neither limits nor how a counter is
//! changed; whoever asks does that.

use std::collections::HashMap;

use super::{Charge, Kept, Outcome, Reserve, Settle, Used};
use crate::sweep::Sweep;
use crate::units::{Cost, Nanos};

/// Reservations by counter.
#[derive(Clone, Debug)]
pub struct Ledger {
    entries: HashMap<u128, Vec<Entry>>,
    count: usize,
    most: usize,
    sweep: Sweep,
}

/// All reservations wait while it is gone through, and a full one of a memory store takes some 20 ms.
const SWEEP_EVERY: Nanos = Nanos::from_secs(1);

/// One charge of a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    id: u128,
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
        let named = (settle.id, charge.limit.tag(), charge.cost, settle.lasts());
        named == (self.id, self.tag, self.estimate, self.lasts)
    }
}

impl Ledger {
    /// Room for so many charges of reservations.
    pub fn new(most: usize) -> Self {
        Ledger {
            entries: HashMap::new(),
            count: 0,
            most,
            sweep: Sweep::every(SWEEP_EVERY),
        }
    }

    /// Whether a reservation finds room. If need be, those that can no longer be settled make it, at
    /// the latest a second after their end.
    pub fn has_room(&mut self, reserve: &Reserve<'_>, now: Nanos) -> bool {
        let wanted = reserve.set.charges.len();
        if self.sweep.due(self.count + wanted, self.most, now) {
            self.forget_ended(now);
        }
        self.count + wanted <= self.most
    }

    fn forget_ended(&mut self, now: Nanos) {
        self.entries.retain(|_, entries| {
            entries.retain(|entry| entry.forgotten_at() > now);
            !entries.is_empty()
        });
        self.count = self.entries.values().map(Vec::len).sum();
        let left = self.entries.values().flatten();
        self.sweep.done(left.map(Entry::forgotten_at), now);
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
            id: reserve.id,
            tag: charge.limit.tag(),
            estimate: charge.cost,
            charged: at,
            lasts: reserve.lasts,
            back: false,
        };
        self.sweep.note(entry.forgotten_at());
        self.entries
            .entry(charge.counter())
            .or_default()
            .push(entry);
        self.count += 1;
    }

    /// The estimates of a counter that nobody settled in time, to be given back now. Those of another
    /// limit than it has now are not told: what was a unit then cannot be said.
    pub fn abandoned(&mut self, charge: &Charge<'_>, now: Nanos) -> Vec<Abandoned> {
        let Some(entries) = self.entries.get_mut(&charge.counter()) else {
            return Vec::new();
        };
        let mut abandoned = Vec::new();
        for entry in &mut *entries {
            if entry.back || entry.until() > now {
                continue;
            }
            entry.back = true;
            let Entry {
                estimate, charged, ..
            } = *entry;
            if entry.tag == charge.limit.tag() {
                abandoned.push(Abandoned { estimate, charged });
            }
        }
        let before = entries.len();
        entries.retain(|entry| !entry.back || entry.forgotten_at() > now);
        self.count -= before - entries.len();
        if entries.is_empty() {
            self.entries.remove(&charge.counter());
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
        let Some(entries) = self.entries.get_mut(&charge.counter()) else {
            return Kept::Nothing;
        };
        let mut each = entries.iter();
        let Some(at) = each.position(|entry| entry.is_named(settle, charge)) else {
            return Kept::Nothing;
        };
        let kept = match (entries[at].back, &settle.used) {
            (false, _) => Kept::Open(entries[at].charged),
            (true, Used::Known(_)) => Kept::Back,
            (true, Used::Unsaid) => return Kept::Nothing,
        };
        if settle.used == Used::Unsaid {
            entries[at].back = true;
            return kept;
        }
        entries.swap_remove(at);
        self.count -= 1;
        if entries.is_empty() {
            self.entries.remove(&charge.counter());
        }
        kept
    }

    /// Forgets the reservations of a counter that was reset: what was charged for them is forgiven, and
    /// must not come back out of what others are charged from now on.
    pub fn forget(&mut self, counter: u128) {
        let gone = self.entries.remove(&counter);
        self.count -= gone.map_or(0, |entries| entries.len());
    }

    /// Hands the reservations of a counter over to another store.
    pub fn hand_over(&mut self, counter: u128, to: &mut Ledger) {
        if let Some(entries) = self.entries.remove(&counter) {
            self.count -= entries.len();
            to.count += entries.len();
            let ends = entries.iter().map(Entry::forgotten_at);
            ends.for_each(|end| to.sweep.note(end));
            to.entries.entry(counter).or_default().extend(entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::algorithms::{Algorithm, Limit, Precision, Spec};
    use crate::store::{ChargeSet, Role, Terms};
    use crate::subject::{Fingerprint, RuleName};

    const START: Nanos = Nanos::from_secs(1_000);
    const LASTS: Nanos = Nanos::from_secs(10);

    /// As many reservations as there is room for, the first of them shorter by half.
    fn full(reserve: &mut Reserve<'_>) -> Ledger {
        let mut ledger = Ledger::new(3);
        for lasts in [LASTS.get() / 2, LASTS.get(), LASTS.get()] {
            reserve.lasts = Nanos::new(lasts);
            let charge = reserve.set.charges[0].clone();
            ledger.enter(reserve, &charge, START);
        }
        ledger
    }

    fn with_reserve(test: impl FnOnce(Reserve<'_>)) {
        let spec = Spec::new(Algorithm::FixedWindow, 10, LASTS);
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let rule = RuleName::new("tokens");
        let set = ChargeSet::of_one(Charge {
            subject: Fingerprint::new(1),
            rule: &rule,
            rate: 0,
            limit: Cow::Borrowed(&limit),
            cost: Cost::ONE,
            role: Role::Enforce,
            terms: &Terms::USUAL,
        });
        let (id, lasts) = (1, LASTS);
        test(Reserve { id, lasts, set });
    }

    #[test]
    fn those_that_can_be_forgotten_make_room() {
        with_reserve(|mut reserve| {
            let mut ledger = full(&mut reserve);
            let at = |secs| START.plus(Nanos::from_secs(secs));
            assert!(!ledger.has_room(&reserve, at(9)));
            assert!(
                ledger.has_room(&reserve, at(10)),
                "twice as long as it lasted"
            );
            assert_eq!(ledger.count, 2);
        });
    }

    /// Whoever fills it must not make every call go through all of it.
    #[test]
    fn a_full_ledger_is_gone_through_once_a_second_at_most() {
        with_reserve(|mut reserve| {
            let mut ledger = full(&mut reserve);
            let at = |millis| START.plus(Nanos::from_millis(millis));
            assert!(ledger.has_room(&reserve, at(19_500)));
            reserve.lasts = Nanos::from_millis(100);
            let charge = reserve.set.charges[0].clone();
            ledger.enter(&reserve, &charge, at(19_500));
            assert!(!ledger.has_room(&reserve, at(20_499)), "just looked");
            assert!(ledger.has_room(&reserve, at(20_500)));
            assert_eq!(ledger.count, 0);
        });
    }
}
