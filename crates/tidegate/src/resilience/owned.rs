//! A charge that outlives the request it came from.

use std::borrow::Cow;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Charge, ChargeSet, Role, Terms};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

/// A charge that borrows nothing.
#[derive(Clone, Debug)]
pub(super) struct OwnedCharge {
    pub(super) subject: Fingerprint,
    rule: RuleName,
    rate: u8,
    pub(super) limit: Limit,
    cost: Cost,
    role: Role,
    terms: Terms,
}

impl OwnedCharge {
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        OwnedCharge {
            subject: charge.subject,
            rule: charge.rule.clone(),
            rate: charge.rate,
            limit: charge.limit.as_ref().clone(),
            cost: charge.cost,
            role: charge.role,
            terms: *charge.terms,
        }
    }

    pub(super) fn charge(&self) -> Charge<'_> {
        Charge {
            subject: self.subject,
            rule: &self.rule,
            rate: self.rate,
            limit: Cow::Borrowed(&self.limit),
            cost: self.cost,
            role: self.role,
            terms: &self.terms,
        }
    }

    /// The same, for which the store has at least `budget` to answer.
    pub(super) fn patient(mut self, budget: Nanos) -> Self {
        let own = self.terms.budget.unwrap_or(Nanos::ZERO);
        self.terms.budget = Some(own.max(budget));
        self
    }

    pub(super) fn rule(&self) -> &RuleName {
        &self.rule
    }

    /// Whether it must be safe elsewhere before it is told.
    pub(super) fn waits(&self) -> bool {
        self.terms.durability.waits()
    }

    /// The same with another cost, that must be met.
    pub(super) fn owing(&self, cost: Cost) -> Charge<'_> {
        Charge {
            cost,
            role: Role::Enforce,
            ..self.charge()
        }
    }
}

/// A charge set that borrows nothing.
#[derive(Clone, Debug)]
pub(super) struct OwnedSet(Vec<OwnedCharge>);

impl OwnedSet {
    pub(super) fn of(set: &ChargeSet<'_>) -> Self {
        OwnedSet(set.charges.iter().map(OwnedCharge::of).collect())
    }

    pub(super) fn set(&self) -> ChargeSet<'_> {
        ChargeSet::of(self.0.iter().map(OwnedCharge::charge))
    }
}
