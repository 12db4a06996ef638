//! Budgets: how long a call waits for a reply.

use tidegate_core::store::{ChargeSet, RuleOptions, WorkKind};
use tidegate_core::units::Nanos;

use crate::shard::refund::ChargeKind;
use crate::shard::settings::ResilienceSettings;

impl ResilienceSettings {
    /// The budget of an acquire or a reserve whose rule sets none.
    pub(crate) fn long_work(&self) -> Nanos {
        self.budget.max(self.long_work_budget)
    }

    /// The budget of a call that follows a decision, where the rule sets the budget `own`.
    pub(crate) fn follow_up_wait(&self, own: Option<Nanos>) -> Nanos {
        self.budget.max(self.follow_up_budget).max(own.unwrap_or(Nanos::ZERO))
    }

    /// How long a decision on `sets` may wait: the shortest budget of any rule. A rule without one has the budget of
    /// these settings; beside a durable charge it waits as long as the durable one, because a set has one result, and an
    /// acknowledgement takes longer.
    pub(crate) fn budget_of(&self, sets: &[&ChargeSet<'_>], kind: ChargeKind) -> Nanos {
        // A batch that contains an ordinary request has the budget of that request.
        let is_long = kind != ChargeKind::Charge || sets.iter().all(|set| set.work == WorkKind::LongWork);
        let usual = if is_long { self.long_work() } else { self.budget };
        shortest_budget(sets.iter().flat_map(|set| &set.charges).map(|charge| charge.options), usual)
    }

    /// How long an acquire under rules with these options may wait, over all of its calls.
    pub(crate) fn acquire_budget<'o>(&self, rules: impl Iterator<Item = &'o RuleOptions> + Clone) -> Nanos {
        shortest_budget(rules, self.long_work())
    }
}

/// The shortest budget of any rule, where one without a budget of its own has the budget `usual`.
fn shortest_budget<'o>(rules: impl Iterator<Item = &'o RuleOptions> + Clone, usual: Nanos) -> Nanos {
    let any_unset = rules.clone().any(|options| options.budget.is_none());
    let is_durable = rules.clone().any(|options| options.durability.is_required());
    match rules.filter_map(|options| options.budget).min() {
        Some(shortest) if any_unset && !is_durable => shortest.min(usual),
        shortest => shortest.unwrap_or(usual),
    }
}

/// The longest that the callers of `sets` wait. A batch waits no longer than its most impatient caller.
pub(crate) fn max_wait_of(sets: &[&ChargeSet<'_>]) -> Nanos {
    let waits = sets.iter().filter_map(|set| set.max_wait);
    waits.min().unwrap_or(Nanos::MAX)
}
