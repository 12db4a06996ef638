//! Rules that replace others for whoever chooses so: their limits protect nothing.

use std::cmp::Ordering;

use crate::language::condition::{AttributeMatcher, Condition};
use crate::language::glob::Glob;
use crate::language::rule::{Mode, Rule};
use crate::language::rule_set::RuleSet;
use crate::request::HEADER_PREFIX;

/// Warns about a rule that every client can make apply in place of another, if it allows more than the other, or if it
/// counts by what clients choose and the other does not.
pub(super) fn check(rule: &Rule, set: &RuleSet, warn: &mut impl FnMut(String)) {
    // What the request is for does not show whom it is from.
    let is_neutral = |condition: &Condition| {
        matches!(condition.attribute.name(), "path" | "raw_path" | "method" | "host" | "domain")
    };
    let mut required = rule.matching.all.iter();
    if rule.mode != Mode::Enforce || !required.all(|one| is_neutral(one) || can_be_met(one, set)) {
        return;
    }
    let replaced = || rule.replaces.iter().map(|at| &set.rules()[*at as usize]).filter(|it| it.mode == Mode::Enforce);
    let met = rule.matching.all.iter().filter(|one| can_be_met(one, set)).map(|one| (one, "choose themselves"));
    let missed = rule.matching.none.iter().filter(|one| can_be_left_out(one)).map(|one| (one, "can leave out"));
    if let Some((condition, how)) = met.chain(missed).next()
        && let Some(other) = replaced().find(|other| allows_more(rule, other))
    {
        let (name, is_unlimited) = (condition.attribute.name(), super::is_unlimited(rule));
        let allows =
            if is_unlimited { "is unlimited".to_owned() } else { format!("allows more than `{}`", other.name) };
        warn(format!(
            "{allows} and depends on {name}, which clients {how}, so that every client can avoid the \
             rules that it replaces; match ip or a listed api_key (`keys_file`), unless clients can neither guess nor \
             set the value"
        ));
    }
    let chosen = |rule: &Rule| rule.by.names().find(|name| is_chosen(name, set)).map(str::to_owned);
    if let Some(name) = chosen(rule).filter(|_| !super::is_unlimited(rule))
        && let Some(other) = replaced().find(|other| chosen(other).is_none())
    {
        warn(format!(
            "counts by {name}, which clients choose themselves, and replaces `{}`, so that every client can avoid \
             that limit by new values; remove it from `replaces`",
            other.name
        ));
    }
}

/// Whether clients choose the attribute `name` themselves. Without a keys file every invented key is a key.
fn is_chosen(name: &str, set: &RuleSet) -> bool {
    name.starts_with(HEADER_PREFIX) || name == "api_key" && set.keys_file().is_none()
}

/// Whether every client can make any of its requests meet a condition.
fn can_be_met(condition: &Condition, set: &RuleSet) -> bool {
    let name = condition.attribute.name();
    let AttributeMatcher::Texts(texts) = &condition.matcher else { return false };
    let mut globs = texts.globs.iter();
    match name {
        "api_key" => is_chosen(name, set) && globs.any(Glob::matches_everything),
        "host" => globs.any(Glob::matches_everything),
        // The rest of the text can stand in a query.
        "raw_path" => globs.any(|glob| glob.as_str().trim_start_matches('/').starts_with('*')),
        name => is_chosen(name, set),
    }
}

/// Whether every client can leave out what a `not` excludes.
fn can_be_left_out(condition: &Condition) -> bool {
    let name = condition.attribute.name();
    name.starts_with(HEADER_PREFIX) || name == "api_key"
}

/// Whether `rule` allows more than `other` in the same unit.
fn allows_more(rule: &Rule, other: &Rule) -> bool {
    if super::is_unlimited(rule) {
        return true;
    }
    let is_larger = || super::compare_limits(rule.rates[0].limits(), other.rates[0].limits()) == Ordering::Greater;
    rule.unit == other.unit && !rule.rates[0].limits.is_empty() && is_larger()
}
