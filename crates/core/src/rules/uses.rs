//! Which attributes a rule set looks at, so that an edge need not carry the others.

use std::collections::BTreeSet;

use super::set::RuleSet;
use crate::request::PRIORITY;

impl RuleSet {
    /// Every attribute that some rule matches, counts or weighs by.
    pub fn attributes(&self) -> BTreeSet<&str> {
        let matched = self.rules.iter().flat_map(|rule| {
            let conditions = rule.matching.all.iter().chain(&rule.matching.none);
            conditions.map(|condition| condition.attribute.name())
        });
        let counted = self.rules.iter().flat_map(|rule| rule.by.names());
        let weighed = self.rules.iter().any(|rule| rule.priority.is_some());
        let weighed = weighed.then_some(PRIORITY);
        matched.chain(counted).chain(weighed).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::rules::{SourceFile, parse};

    #[test]
    fn what_is_matched_excepted_or_counted_by_is_used() {
        let text = "version: 1\nrules:\n  - { name: a, match: { path: /x, not: { method: GET } }, by: [user, header.x-team|ip], rate: 1/hour }\n";
        let rules = parse(&[SourceFile { name: "r", text }]).unwrap();
        let used: Vec<&str> = rules.attributes().into_iter().collect();
        assert_eq!(used, ["header.x-team", "ip", "method", "path", "user"]);
    }
}
