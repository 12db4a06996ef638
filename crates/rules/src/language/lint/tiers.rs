//! Tiers in the wrong order: clients without a tier have the first.

use std::cmp::Ordering;

use crate::language::rule::{RateClass, Rule};
use crate::language::rule_set::RuleSet;
use tidegate_core::algorithms::Limit;

/// Warns if the first tier has more than every other tier of a rule.
pub(super) fn check(rule: &Rule, set: &RuleSet, warn: &mut impl FnMut(String)) {
    let [first, others @ ..] = set.tiers() else {
        return;
    };
    if rule.tiers.is_empty() || others.is_empty() {
        return;
    }
    let limits = |tier: usize| {
        let class = rule.tiers.get(tier).copied().unwrap_or_else(RateClass::default);
        rule.rates(class).limits()
    };
    let is_less = |tier: usize| compare(limits(tier), limits(0)) == Ordering::Less;
    if (1..=others.len()).all(is_less) {
        warn(format!(
            "has its largest rate for tier `{first}`, which clients without a tier have too; write \
             `tiers` at the top with the least first"
        ));
    }
}

/// Which of two sets of limits allows less, by the fastest rate of each: a slower one beside it, such as a
/// daily quota, need not be in both. No limits allow everything.
fn compare(a: &[Limit], b: &[Limit]) -> Ordering {
    match (fastest(a), fastest(b)) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => compare_rates(a, b),
    }
}

fn fastest(limits: &[Limit]) -> Option<&Limit> {
    limits.iter().max_by(|a, b| compare_rates(a, b))
}

fn compare_rates(a: &Limit, b: &Limit) -> Ordering {
    let left = u128::from(a.count()) * u128::from(b.per().get());
    let right = u128::from(b.count()) * u128::from(a.per().get());
    left.cmp(&right)
}
