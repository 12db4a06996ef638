//! Entries of lists that hold nobody any more, or nearly everybody.

use crate::rules::fault::{Place, Warning, shown};
use crate::rules::lists::{Entry, List, Notable, Whom, is_wide};
use crate::rules::set::RuleSet;
use crate::units::Nanos;

/// Warns of `trusted_proxies` and `allow` that hold a large part of all addresses.
pub(super) fn check(set: &RuleSet, warnings: &mut Vec<Warning>) {
    let proxies = set.identity.trusted_proxies.iter();
    if let (Some(net), Some(place)) = (
        proxies.into_iter().find(|net| is_wide(**net)),
        &set.identity_place,
    ) {
        let message = format!(
            "has `{net}` in `trusted_proxies`, so that every client in it chooses its own address; write the \
             networks of your proxies"
        );
        warnings.push(whole(place, message));
    }
    for notable in &set.allow.notable {
        if matches!(notable.whom, Whom::Net(net) if is_wide(net)) {
            let message = format!(
                "has {} in `allow`, so that none of these clients is limited; write smaller networks, or \
                 `mode: off` in the rules",
                shown(&notable.entry.whom)
            );
            warnings.push(whole(&notable.entry.place, message));
        }
    }
    check_overridden(set, warnings);
}

/// Warns of entries of `block` that `allow` leaves without effect. An `allow` within a blocked network, or one
/// that ends before the block does, is an exception that is meant.
fn check_overridden(set: &RuleSet, warnings: &mut Vec<Warning>) {
    if set.allow.is_empty() {
        return;
    }
    let end = |entry: &Entry| entry.until.unwrap_or(Nanos::MAX);
    for (whom, blocked) in set.block.iter() {
        let mut allowing = set.allow.covering(&whom);
        if let Some(allowed) = allowing.find(|allowed| end(allowed) >= end(blocked)) {
            let message = format!(
                "has in `block` {}, which has no effect, because `allow` wins and has {}; remove one of them",
                shown(&blocked.whom),
                shown(&allowed.whom)
            );
            warnings.push(whole(&blocked.place, message));
        }
    }
}

/// Warns of entries that have ended at `now`.
pub(super) fn check_ended(set: &RuleSet, now: Nanos, warnings: &mut Vec<Warning>) {
    for (field, list) in lists(set) {
        let ended = |notable: &&Notable| notable.entry.until.is_some_and(|until| until <= now);
        for notable in list.notable.iter().filter(ended) {
            let message = format!(
                "has in `{field}` {}, which has ended and has no effect; remove it, or write a later \
                 `until`",
                notable.entry
            );
            warnings.push(whole(&notable.entry.place, message));
        }
    }
}

/// Both lists and their names.
pub(super) fn lists(set: &RuleSet) -> [(&'static str, &List); 2] {
    [("allow", &set.allow), ("block", &set.block)]
}

/// A warning about no rule in particular.
pub(super) fn whole(place: &Place, message: String) -> Warning {
    Warning {
        place: place.clone(),
        rule: None,
        message,
    }
}
