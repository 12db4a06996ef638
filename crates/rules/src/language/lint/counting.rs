//! Counting modes, priorities and delays that have no effect where they are written.

use super::all_rates;
use crate::language::rule::Rule;
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::Counting;

pub(super) fn check(rule: &Rule, warn: &mut impl FnMut(String)) {
    never_leased(rule, warn);
    lenient_and_strict(rule, warn);
    concurrency_without_rate(rule, warn);
    options_without_rate(rule, warn);
}

/// A node leases only what it expects to use, and at least this many units at once.
const MIN_UNITS_PER_LEASE: u128 = 8;

fn never_leased(rule: &Rule, warn: &mut impl FnMut(String)) {
    let hot = |limit: &Limit| {
        let duration = limit.lease_ttl().map_or(0, |ttl| ttl.get());
        let units = u128::from(limit.count()) * u128::from(duration);
        units >= MIN_UNITS_PER_LEASE * u128::from(limit.per().get())
    };
    let rates = || all_rates(rule).flat_map(|rates| rates.limits.iter().zip(&rates.texts));
    let Some((limit, written)) = rates().find(|(limit, _)| limit.lease_ttl().is_some()) else {
        return;
    };
    if let Some(duration) = limit.lease_ttl()
        && !rates().any(|(limit, _)| hot(limit))
    {
        warn(format!(
            "has counting leased, but `{written}` is less than {MIN_UNITS_PER_LEASE} in {duration}, so that \
             nothing is ever leased; write `counting: exact`"
        ));
    }
}

fn lenient_and_strict(rule: &Rule, warn: &mut impl FnMut(String)) {
    let strict = matches!(rule.algorithm, Algorithm::SlidingLog | Algorithm::SlidingWindowStrict);
    if strict && rule.options.counting == Counting::Lenient {
        warn(format!(
            "has counting lenient with algorithm {}, which is for limits that are never exceeded; write \
             `counting: exact`, or `algorithm: sliding-window`",
            rule.algorithm
        ));
    }
}

fn concurrency_without_rate(rule: &Rule, warn: &mut impl FnMut(String)) {
    if rule.concurrent.is_some() && has_no_limits(rule) {
        warn(
            "has `concurrent` and no rate: only acquire and release count it, so that every check \
             passes; write a rate beside it unless all callers acquire"
                .to_owned(),
        );
    }
}

fn options_without_rate(rule: &Rule, warn: &mut impl FnMut(String)) {
    let fields = [
        (rule.priority.is_some(), "priority"),
        (rule.soft.is_some(), "soft"),
        (rule.options.counting != Counting::Exact, "counting"),
    ];
    for (_, field) in fields.into_iter().filter(|(is_set, _)| *is_set) {
        if has_no_limits(rule) {
            warn(format!("has `{field}`, but no rate that it could apply to; remove it"));
        }
    }
}

fn has_no_limits(rule: &Rule) -> bool {
    all_rates(rule).all(|rates| rates.limits.is_empty())
}
