//! Names of API keys in rules and lists that the keys file does not list.
//!
//! The keys file changes and is read separately from the rules, so a name that it does not list yet is not an error.

use super::access_lists::{access_lists, file_warning};
use crate::language::access_lists::ListTarget;
use crate::language::diagnostics::{Warning, quoted};
use crate::language::rule::{By, Rule};
use crate::language::rule_set::RuleSet;
use crate::language::subject::split_subject;

use std::net::IpAddr;

/// Warns about each name for which `is_listed` is false.
pub(super) fn check(set: &RuleSet, is_listed: &impl Fn(&str) -> bool, warnings: &mut Vec<Warning>) {
    visit(set, &mut |use_of_key| {
        if !is_listed(use_of_key.name) {
            warnings.push((use_of_key.warning)());
        }
    });
}

/// Warns about overrides for the digest of a key that has a name: its requests are counted under the name.
pub(super) fn check_digests<'k>(
    set: &RuleSet,
    name_of: &impl Fn(&str) -> Option<&'k str>,
    warnings: &mut Vec<Warning>,
) {
    for rule in set.native_rules() {
        visit_overrides(rule, &mut |text, value| {
            if let Some(name) = name_of(value) {
                let (text, name) = (quoted(text), quoted(name));
                let message = format!(
                    "overrides {text}, but the keys file lists that key under a name, so that it has no effect; \
                     write {name}"
                );
                warnings.push(super::warning(rule, message));
            }
        });
    }
}

/// Every name of a key in rules and lists.
pub(in crate::language) fn names(set: &RuleSet) -> Vec<String> {
    let mut names = Vec::new();
    visit(set, &mut |use_of_key| names.push(use_of_key.name.to_owned()));
    names
}

/// A name of a key, and the warning for the case that it is not listed.
struct KeyUse<'u> {
    name: &'u str,
    warning: &'u dyn Fn() -> Warning,
}

const UNLISTED: &str = "but no keys file lists a key of that name, so that it has no effect; correct the name";

fn visit(set: &RuleSet, each: &mut impl FnMut(KeyUse<'_>)) {
    for (field, list) in access_lists(set) {
        for candidate in &list.lint_candidates {
            let ListTarget::KeyNamed(name) = &candidate.target else {
                continue;
            };
            let text = quoted(&candidate.entry.target);
            let message = || format!("has in `{field}` {text}, {UNLISTED}");
            each(KeyUse { name, warning: &|| file_warning(&candidate.entry.location, message()) });
        }
    }
    for rule in set.native_rules() {
        visit_rule(rule, each);
    }
}

fn visit_rule(rule: &Rule, each: &mut impl FnMut(KeyUse<'_>)) {
    for name in rule.matching.texts("api_key").flat_map(|texts| &texts.literals) {
        let message = || format!("matches api_key {}, {UNLISTED}", quoted(name));
        each(KeyUse { name, warning: &|| super::warning(rule, message()) });
    }
    visit_overrides(rule, &mut |text, name| {
        if name.starts_with("sha256:") || name.parse::<IpAddr>().is_ok() {
            return;
        }
        let message = || format!("overrides {}, {UNLISTED}", quoted(text));
        each(KeyUse { name, warning: &|| super::warning(rule, message()) });
    });
}

/// Visits each override, and the value in it that identifies a key or an address.
fn visit_overrides(rule: &Rule, each: &mut impl FnMut(&str, &str)) {
    let By::All(parts) = rule.by() else { return };
    let mut overrides: Vec<_> = rule.overrides.keys().collect();
    overrides.sort_unstable();
    for text in overrides {
        for (value, alternatives) in split_subject(text, parts).iter().zip(parts) {
            let is_key = alternatives.iter().any(|name| **name == *"api_key")
                && alternatives.iter().all(|name| matches!(&**name, "api_key" | "ip"));
            if is_key {
                each(text, value);
            }
        }
    }
}
