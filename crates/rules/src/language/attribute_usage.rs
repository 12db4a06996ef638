//! The attributes that a rule set reads, so that an edge need not carry the others.

use std::collections::BTreeSet;

use super::rule::{Mode, Rule, RuleKind};
use super::rule_set::RuleSet;
use crate::request::PRIORITY;

impl RuleSet {
    /// Every attribute that a rule matches, counts by, or takes the priority from.
    pub fn attributes(&self) -> BTreeSet<&str> {
        let has_ceilings = self.rules.iter().any(|rule| rule.priority.is_some());
        let priority = has_ceilings.then_some(PRIORITY);
        let named = self.rules.iter().flat_map(attribute_names);
        named.chain(priority).collect()
    }

    /// Every attribute that a rule in force matches or counts by. Without it such a rule would not apply, or would
    /// count clients together, and nobody would notice.
    pub fn enforced_attributes(&self) -> BTreeSet<&str> {
        let in_force = self.rules.iter().filter(|rule| {
            let by_attributes = rule.kind == RuleKind::Match;
            by_attributes && rule.mode == Mode::Enforce
        });
        in_force.flat_map(attribute_names).collect()
    }
}

/// The attributes that a rule matches and counts by.
fn attribute_names(rule: &Rule) -> impl Iterator<Item = &str> {
    let conditions = rule.matching.all.iter().chain(&rule.matching.none);
    let matched = conditions.map(|condition| condition.attribute.name());
    matched.chain(rule.by.names())
}

#[cfg(test)]
mod tests {
    use crate::language::{SourceFile, parse};

    #[test]
    fn attributes_that_are_matched_excepted_or_counted_by_are_used() {
        let text = "version: 1\nrules:\n  - { name: a, match: { path: /x, not: { method: GET } }, by: [user, header.x-team|ip], rate: 1/hour }\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let used: Vec<&str> = rules.attributes().into_iter().collect();
        assert_eq!(used, ["header.x-team", "ip", "method", "path", "user"]);
    }

    #[test]
    fn rules_that_are_off_or_in_shadow_mode_are_not_in_force() {
        let text = "version: 1\nrules:\n  \
                    - { name: a, match: { path: /x }, by: user, rate: 1/hour }\n  \
                    - { name: b, match: { method: GET }, by: ip, rate: 1/hour, mode: shadow }\n  \
                    - { name: c, match: { host: a.example }, by: ip, rate: 1/hour, mode: off }\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let used: Vec<&str> = rules.enforced_attributes().into_iter().collect();
        assert_eq!(used, ["path", "user"]);
    }
}
