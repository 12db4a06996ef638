//! The attributes that a rule set reads, so that an edge need not carry the others, and attributes of a request that
//! no rule reads because their names differ from a known one by case.
//!
//! A rule cannot name such an attribute unless it is declared. So the limit that the caller meant does not apply.

use std::collections::BTreeSet;

use super::names::BUILT_IN;
use super::rule::{Mode, Rule};
use super::rule_set::RuleSet;
use crate::request::{HEADER_PREFIX, PRIORITY, Request};

impl RuleSet {
    /// Every attribute that a rule matches, counts by, or takes the priority from.
    pub fn attributes(&self) -> BTreeSet<&str> {
        let has_ceilings = self.rules.iter().any(|rule| rule.priority.is_some());
        let priority = has_ceilings.then_some(PRIORITY);
        self.rules.iter().flat_map(Rule::attribute_names).chain(priority).collect()
    }

    /// Every attribute that a rule in force matches or counts by. Without it such a rule would not apply, or would
    /// count clients together, and nobody would notice.
    pub fn enforced_attributes(&self) -> BTreeSet<&str> {
        self.native_rules().filter(|rule| rule.mode == Mode::Enforce).flat_map(Rule::attribute_names).collect()
    }
}

/// An attribute whose name differs by case from a built-in or declared one. Prints what to write.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("differs from `{known}` by case, and no rule would look at it; write `{known}`")]
pub struct AttributeCaseError<'q> {
    /// The name in the request.
    pub name: &'q str,
    known: String,
}

impl RuleSet {
    /// The first attribute of `request` whose name differs from a known one by case. Only names with a capital letter
    /// are checked, so that most requests cost nothing.
    pub fn find_case_mismatch<'q>(&self, request: &'q Request<'_>) -> Option<AttributeCaseError<'q>> {
        let names = request.attributes.iter().map(|(name, _)| &**name);
        let mut with_uppercase = names.filter(|name| has_uppercase(name));
        with_uppercase.find_map(|name| {
            let known = self.known_spelling(name)?;
            Some(AttributeCaseError { name, known })
        })
    }

    fn known_spelling(&self, name: &str) -> Option<String> {
        let declared = &self.declared;
        if declared.knows_attribute(name) {
            return None;
        }
        let own = declared.attributes.iter().map(|known| &**known);
        let mut known = BUILT_IN.into_iter().chain(own);
        if let Some(known) = known.find(|known| known.eq_ignore_ascii_case(name)) {
            return Some(known.to_owned());
        }
        let lower = name.to_ascii_lowercase();
        lower.starts_with(HEADER_PREFIX).then_some(lower)
    }
}

/// Whether a request has an attribute that [`RuleSet::find_case_mismatch`] checks.
pub fn may_have_case_mismatch(request: &Request<'_>) -> bool {
    request.attributes.iter().any(|(name, _)| has_uppercase(name))
}

fn has_uppercase(name: &str) -> bool {
    name.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::{SourceFile, parse};

    #[track_caller]
    fn check(name: &str, want: Option<&str>) {
        let text = "version: 1\nattributes: [org, Path, tenantId]\nrules: []\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let request = Request::default().with("user", "ada").with(name, "x");
        let found = rules.find_case_mismatch(&request);
        assert_eq!(found.map(|found| found.known).as_deref(), want, "{name}");
    }

    #[test]
    fn a_name_that_differs_by_case_only_is_found_unless_it_is_declared() {
        check("Method", Some("method"));
        check("Header.X-Team", Some("header.x-team"));
        check("ORG", Some("org"));
        check("TenantID", Some("tenantId"));
        check("tenantId", None);
        check("Path", None);
        check("regionId", None);
        check("method", None);
    }

    #[test]
    fn attributes_that_are_matched_excepted_or_counted_by_are_used() {
        let text = "version: 1\nrules:\n  - { name: a, match: { path: /x, not: { method: GET } }, by: [user, header.x-team|ip], rate: 1/hour }\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let used: Vec<&str> = rules.attributes().into_iter().collect();
        assert_eq!(used, ["header.x-team", "ip", "method", "path", "user"]);
    }

    #[test]
    fn rules_that_are_off_or_in_shadow_mode_are_not_in_force() {
        let text = "version: 1\nrules:\n  - { name: a, match: { path: /x }, by: user, rate: 1/hour }\n  - { name: b, \
                    match: { method: GET }, by: ip, rate: 1/hour, mode: shadow }\n  - { name: c, match: { host: \
                    a.example }, by: ip, rate: 1/hour, mode: off }\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let used: Vec<&str> = rules.enforced_attributes().into_iter().collect();
        assert_eq!(used, ["path", "user"]);
    }
}
