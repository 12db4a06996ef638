//! Names and digests of API keys in rules and lists that the keys file does not list.
//!
//! The keys file changes and is read separately from the rules, so a name that it does not list yet is not an error.

use std::net::IpAddr;

use super::access_lists::access_lists;
use crate::language::access_lists::{ListedClients, parse_digest};
use crate::language::diagnostics::{Warning, quoted};
use crate::language::rule::{Alternatives, By, Rule};
use crate::language::rule_set::RuleSet;
use crate::language::subject::split_subject;

/// Warns about each name for which `is_listed` is false.
pub(super) fn check(set: &RuleSet, is_listed: &impl Fn(&str) -> bool, warnings: &mut Vec<Warning>) {
    let unlisted = names_with_warnings(set).into_iter().filter(|(name, _)| !is_listed(name));
    warnings.extend(unlisted.map(|(_, warning)| warning));
}

/// Warns about overrides for the digest of a key that the keys file does not list, and of one that has a name: its
/// requests are counted under the name.
pub(super) fn check_digests<'k>(
    set: &RuleSet,
    name_of: &impl Fn(&str) -> Option<&'k str>,
    warnings: &mut Vec<Warning>,
) {
    for rule in set.native_rules() {
        visit_overrides(rule, &mut |text, value, alternatives| {
            if !is_digest(value) || !may_be_key(alternatives) {
                return;
            }
            let (text, name) = (quoted(text), name_of(value));
            let message = match name {
                Some("") => return,
                Some(name) => format!(
                    "overrides {text}, but the keys file lists that key under a name, so that it has no effect; \
                     write {}",
                    quoted(name)
                ),
                None => format!(
                    "overrides {text}, but the keys file does not list that key, so that it has no effect; correct \
                     the digest"
                ),
            };
            warnings.push(super::warning(rule, message));
        });
    }
}

/// Every name of a key in rules and lists.
pub(in crate::language) fn names(set: &RuleSet) -> Vec<String> {
    names_with_warnings(set).into_iter().map(|(name, _)| name).collect()
}

/// Every name of a key, and the warning for the case that it is not listed.
fn names_with_warnings(set: &RuleSet) -> Vec<(String, Warning)> {
    const UNLISTED: &str = "but no keys file lists a key of that name, so that it has no effect; correct the name";
    let mut names = Vec::new();
    for (field, list) in access_lists(set) {
        for entry in &list.entries {
            if let ListedClients::KeyNamed(name) = &entry.clients {
                let message = format!("has in `{field}` {}, {UNLISTED}", quoted(&entry.target));
                names.push((name.to_string(), Warning::new(&entry.location, message)));
            }
        }
    }
    for rule in set.native_rules() {
        let literals = rule.matching.texts("api_key").flat_map(|texts| &texts.literals);
        for name in literals.filter(|text| !is_digest(text)) {
            let message = format!("matches api_key {}, {UNLISTED}", quoted(name));
            names.push((name.to_string(), super::warning(rule, message)));
        }
        visit_overrides(rule, &mut |text, name, alternatives| {
            if !may_be_key(alternatives) {
                return;
            }
            // Of other alternatives, such as `user`, any text may be a value.
            let is_key = alternatives.iter().all(|name| matches!(&**name, "api_key" | "ip"));
            if is_key && !is_digest(name) && name.parse::<IpAddr>().is_err() {
                let message = format!("overrides {}, {UNLISTED}", quoted(text));
                names.push((name.to_owned(), super::warning(rule, message)));
            }
        });
    }
    names
}

/// Whether a text is written as the digest of a key.
pub(super) fn is_digest(text: &str) -> bool {
    parse_digest(text).is_some()
}

fn may_be_key(alternatives: &Alternatives) -> bool {
    alternatives.iter().any(|name| **name == *"api_key")
}

/// Visits each value of each override: the text of the override, the value, and the attributes that it may be of.
pub(super) fn visit_overrides(rule: &Rule, each: &mut impl FnMut(&str, &str, &Alternatives)) {
    let By::All(parts) = rule.by() else { return };
    let mut overrides: Vec<_> = rule.overrides.keys().collect();
    overrides.sort_unstable();
    for text in overrides {
        for (value, alternatives) in split_subject(text, parts).iter().zip(parts) {
            each(text, value, alternatives);
        }
    }
}
