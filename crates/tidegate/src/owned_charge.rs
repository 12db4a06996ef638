//! A charge that outlives the request it came from.

use std::borrow::Cow;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Charge, ChargeSet, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

/// A charge that borrows nothing.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    pub(crate) subject: Fingerprint,
    pub(crate) rule: RuleName,
    pub(crate) rate: u8,
    pub(crate) limit: Limit,
    cost: Cost,
    role: Role,
    options: RuleOptions,
}

impl OwnedCharge {
    /// An enforced charge.
    pub(crate) fn new(
        subject: Fingerprint,
        rule: RuleName,
        rate: u8,
        limit: Limit,
        cost: Cost,
        options: RuleOptions,
    ) -> Self {
        OwnedCharge { subject, rule, rate, limit, cost, role: Role::Enforce, options }
    }

    pub(crate) fn of(charge: &Charge<'_>) -> Self {
        OwnedCharge {
            subject: charge.subject,
            rule: charge.rule.clone(),
            rate: charge.rate,
            limit: charge.limit.as_ref().clone(),
            cost: charge.cost,
            role: charge.role,
            options: *charge.options,
        }
    }

    pub(crate) fn charge(&self) -> Charge<'_> {
        Charge {
            subject: self.subject,
            rule: &self.rule,
            rate: self.rate,
            limit: Cow::Borrowed(&self.limit),
            cost: self.cost,
            role: self.role,
            options: &self.options,
        }
    }

    /// The same charge with a budget of at least `budget`.
    pub(crate) fn with_min_budget(mut self, budget: Nanos) -> Self {
        let own = self.options.budget.unwrap_or(Nanos::ZERO);
        self.options.budget = Some(own.max(budget));
        self
    }

    /// The id of its counter.
    pub(crate) fn counter(&self) -> u128 {
        self.rule.counter(self.subject, self.rate)
    }

    /// Its cost.
    pub(crate) fn units(&self) -> u64 {
        self.cost.get()
    }

    /// The same charge with `units` less, if any are left.
    pub(crate) fn minus(&self, units: u64) -> Option<OwnedCharge> {
        let cost = Cost::new(self.cost.get().saturating_sub(units))?;
        Some(OwnedCharge { cost, ..self.clone() })
    }

    /// Whether units charged at one instant still count at the other: in the same fixed window, or less than a window
    /// apart.
    pub(crate) fn same_window(&self, one: Nanos, other: Nanos) -> bool {
        let apart = one.since(other).max(other.since(one));
        self.limit.window_at(one) == self.limit.window_at(other) && apart < self.limit.full_window()
    }

    /// Whether it must be durable, on a replica or on disk, before its result is returned.
    pub(crate) fn requires_durability(&self) -> bool {
        self.options.durability.is_required()
    }

    /// The same charge, enforced, with another cost.
    pub(crate) fn with_cost(&self, cost: Cost) -> Charge<'_> {
        Charge { cost, role: Role::Enforce, ..self.charge() }
    }
}

/// A charge set that borrows nothing.
#[derive(Clone, Debug)]
pub(crate) struct OwnedSet(Vec<OwnedCharge>);

impl OwnedSet {
    pub(crate) fn of(set: &ChargeSet<'_>) -> Self {
        OwnedSet(set.charges.iter().map(OwnedCharge::of).collect())
    }

    pub(crate) fn set(&self) -> ChargeSet<'_> {
        ChargeSet::of(self.0.iter().map(OwnedCharge::charge))
    }
}
