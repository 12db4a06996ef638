//! Rules that can never apply, because they are always replaced or their match contradicts itself; and overrides of
//! subjects that the match excludes.

use super::keys::{is_digest, visit_overrides};
use crate::language::condition::{Attribute, AttributeMatcher, Condition};
use crate::language::diagnostics::{Warning, quoted};
use crate::language::glob::Glob;
use crate::language::rule::{Mode, Purpose, Rule};
use crate::language::rule_set::RuleSet;
use crate::request::Priority;

pub(super) fn check(set: &RuleSet, warnings: &mut Vec<Warning>) {
    for rule in set.rules().iter().filter(|rule| rule.mode != Mode::Off) {
        if let Some(condition) = find_contradiction(rule) {
            let message = format!(
                "can never apply: its match requires {0} to be {1}, and its `not` excludes just that; \
                 change one of them",
                condition.attribute.name(),
                condition.matcher
            );
            warnings.push(super::warning(rule, message));
        } else if let Some(condition) = rule.matching.none.iter().find(|none| matches_everything(none)) {
            warnings.push(super::warning(rule, excludes_everything(condition)));
        }
    }
    for rule in set.native_rules() {
        visit_overrides(rule, &mut |text, value, alternatives| {
            if let [attribute] = &alternatives[..]
                && is_excluded(rule, attribute, value)
            {
                let message = format!(
                    "overrides {}, which its match excludes, so that it has no effect; change one of them",
                    quoted(text)
                );
                warnings.push(super::warning(rule, message));
            }
        });
    }
    for other in set.rules() {
        for at in &other.replaces {
            let rule = &set.rules()[*at as usize];
            warnings.extend(replaced_by_chain(set, other, rule));
            if rule.mode != Mode::Off && always_replaced(rule, other, *at) {
                let everywhere = |wide: &&Condition| !is_narrowed(rule, wide) && wide.attribute != Attribute::Priority;
                let message = match other.matching.all.iter().find(everywhere) {
                    None => format!(
                        "can never apply: `{}` replaces it and applies wherever it does; remove one of them",
                        other.name
                    ),
                    Some(wide) => {
                        format!("{}: `{}` replaces it for all others; remove one of them", applies(wide), other.name)
                    }
                };
                warnings.push(super::warning(rule, message));
            }
        }
    }
}

/// A replaced rule still replaces others, also where itself does not apply.
fn replaced_by_chain(set: &RuleSet, first: &Rule, second: &Rule) -> Option<Warning> {
    if first.mode == Mode::Off || second.mode == Mode::Off {
        return None;
    }
    let third = second.replaces.iter().find(|at| !first.replaces.contains(at))?;
    let third = &set.rules()[*third as usize].name;
    let message = format!(
        "replaces `{0}`, which replaces `{third}`: where both match, `{third}` does not apply either; if that is meant, \
         write `{third}` in its `replaces` too, else exclude its requests from `{0}` by `not`",
        second.name
    );
    Some(super::warning(first, message))
}

/// The paths that a rule requires, as written.
pub(super) fn paths(rule: &Rule) -> impl Iterator<Item = &str> {
    let path = |condition: &&Condition| condition.attribute.name() == "path";
    let path_conditions = rule.matching.all.iter().filter(path);
    let texts = path_conditions.filter_map(|condition| match &condition.matcher {
        AttributeMatcher::Texts(texts) => Some(texts),
        AttributeMatcher::Nets(_) => None,
    });
    texts
        .flat_map(|texts| texts.literals.iter().map(|text| &**text).chain(texts.globs.iter().map(|glob| glob.as_str())))
}

/// Whether a condition holds for every request that a proxy describes: they all have a path, a method, an address and a
/// priority. `not: { user: "**" }` is for requests without a user.
fn matches_everything(condition: &Condition) -> bool {
    match &condition.matcher {
        AttributeMatcher::Nets(matcher) => {
            let everywhere = || matcher.nets.iter().filter(|net| net.prefix_len() == 0);
            everywhere().any(|net| net.addr().is_ipv4()) && everywhere().any(|net| net.addr().is_ipv6())
        }
        AttributeMatcher::Texts(texts) => match &condition.attribute {
            Attribute::Priority => Priority::ALL.iter().all(|known| texts.matches(known.name())),
            Attribute::Text(name) if matches!(&**name, "path" | "method") => {
                texts.globs.iter().any(Glob::matches_everything)
            }
            _ => false,
        },
    }
}

/// When a rule applies that must not meet a condition that [`matches_everything`].
fn applies(condition: &Condition) -> String {
    match &condition.attribute {
        Attribute::Priority => "can never apply".to_owned(),
        other => format!("can only apply to requests without `{}`, which no proxy sends", other.name()),
    }
}

fn excludes_everything(condition: &Condition) -> String {
    format!(
        "{}: its `not` excludes every `{}` by {}; write which it excludes, or remove it",
        applies(condition),
        condition.attribute.name(),
        condition.matcher
    )
}

/// A condition whose values are all excluded by the `not` of the same rule.
fn find_contradiction(rule: &Rule) -> Option<&Condition> {
    rule.matching.all.iter().find(|condition| {
        let mut same = rule.matching.none.iter().filter(|exclusion| exclusion.attribute == condition.attribute);
        same.any(|exclusion| covers(exclusion, condition))
    })
}

/// Whether `wide` holds wherever `narrow` does. Several values that only together cover another are not recognised.
fn covers(wide: &Condition, narrow: &Condition) -> bool {
    if wide.attribute != narrow.attribute {
        return false;
    }
    match (&wide.matcher, &narrow.matcher) {
        (AttributeMatcher::Nets(wide), AttributeMatcher::Nets(narrow)) => {
            narrow.nets.iter().all(|net| wide.nets.iter().any(|wide| wide.contains(net)))
        }
        (AttributeMatcher::Texts(wide), AttributeMatcher::Texts(narrow)) => {
            narrow.literals.iter().all(|text| wide.matches(text))
                && narrow.globs.iter().all(|glob| {
                    let mut known = wide.globs.iter();
                    known.any(|known| glob_covers(known, glob))
                })
        }
        _ => false,
    }
}

/// Whether `wide` matches whatever `narrow` does: it does if it matches the text of `narrow`, in which only a `*` can
/// stand for a `*`. In paths a `**` is several segments, which only `/a/**` above it surely covers.
fn glob_covers(wide: &Glob, narrow: &Glob) -> bool {
    if wide == narrow || wide.as_str().bytes().all(|byte| byte == b'*') {
        return true;
    }
    if narrow.has_segments() && narrow.as_str().contains("**") {
        let above = wide.as_str().strip_suffix("**").filter(|_| wide.has_segments());
        return above.is_some_and(|above| !above.contains('*') && narrow.as_str().starts_with(above));
    }
    (narrow.has_segments() || !wide.has_segments()) && wide.matches(narrow.as_str())
}

/// Whether the match of a rule excludes every request in which `attribute` is `value`.
fn is_excluded(rule: &Rule, attribute: &str, value: &str) -> bool {
    let own = |condition: &&Condition| condition.attribute.name() == attribute;
    rule.matching.all.iter().filter(own).any(|condition| accepts(condition, value) == Some(false))
        || rule.matching.none.iter().filter(own).any(|condition| accepts(condition, value) == Some(true))
}

/// Whether a condition holds for a value of its attribute, written as in an override. `None` if that is not known.
fn accepts(condition: &Condition, value: &str) -> Option<bool> {
    match (&condition.attribute, &condition.matcher) {
        (Attribute::Ip, AttributeMatcher::Nets(nets)) => Some(nets.matches(value.parse().ok()?)),
        (Attribute::ApiKey, AttributeMatcher::Texts(texts)) => (!is_digest(value)).then(|| texts.matches(value)),
        (Attribute::Text(_), AttributeMatcher::Texts(texts)) => Some(texts.matches(value)),
        _ => None,
    }
}

/// Whether a condition of the rule is covered by `wide`.
fn is_narrowed(rule: &Rule, wide: &Condition) -> bool {
    rule.matching.all.iter().any(|narrow| covers(wide, narrow))
}

/// Whether `other`, which replaces `rule`, applies wherever it does.
fn always_replaced(rule: &Rule, other: &Rule, position: u32) -> bool {
    let everywhere = other.matching.none.is_empty()
        && other.unit.is_none()
        && other.mode != Mode::Off
        && other.if_missing == Default::default();
    let wider = |wide: &Condition| is_narrowed(rule, wide) || matches_everything(wide);
    let purpose = if rule.counts_only_permits { Purpose::Acquire } else { Purpose::Check };
    everywhere && other.displaces(rule, position, purpose) && other.matching.all.iter().all(wider)
}
