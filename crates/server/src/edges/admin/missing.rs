//! Attributes without which a rule has no counter to inspect or reset.
//!
//! A rule that matches a path does not apply to a subject that is given without one. Its counters were left
//! out of the answer without a word; now the answer names the rule and what to add.

use serde_json::{Value, json};
use tidegate_core::rules::{Explanation, RuleView, Standing, SubjectPart};

/// The rules that might apply if the request had more attributes, each with the attributes that are missing.
pub(super) fn attributes(explanation: &Explanation) -> Vec<Value> {
    let rules = explanation.rules.iter();
    let missing = rules.filter_map(|view| Some((view.rule.as_str(), of_rule(view)?)));
    missing
        .map(|(rule, attributes)| json!({"rule": rule, "attributes": attributes}))
        .collect()
}

fn of_rule(view: &RuleView) -> Option<Vec<&str>> {
    match &view.standing {
        Standing::Unmatched {
            attribute,
            found: None,
            negated: false,
            ..
        } => Some(vec![attribute]),
        Standing::Skipped => {
            let absent = view.subject.iter().filter(|part| !is_present(part));
            Some(absent.map(|part| &*part.wanted).collect())
        }
        _ => None,
    }
}

/// Whether one of the wanted attributes counts, and not the address in their place.
fn is_present(part: &SubjectPart) -> bool {
    let counts = |name| part.counted.as_deref() == Some(name);
    part.wanted.split('|').any(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::request::Request;
    use tidegate_core::rules::{SourceFile, parse};
    use tidegate_core::units::Nanos;

    #[test]
    fn rules_that_lack_attributes_are_named_and_others_are_not() {
        let text = "version: 1\nrules:\n\
                    - { name: login, by: [ip, account], match: { path: /login }, rate: 5/hour }\n\
                    - { name: each, by: ip, rate: 5/hour }\n\
                    - { name: other, by: ip, match: { account: bob }, rate: 5/hour }\n\
                    - { name: users, by: user, if_missing: skip, rate: 5/hour }\n";
        let name = "rules.yaml";
        let rules = parse(&[SourceFile { name, text }]).unwrap();
        let mut request = Request {
            ip: Some("203.0.113.9".parse().unwrap()),
            attributes: vec![("account".into(), "ada".into())],
            ..Request::default()
        };
        let missing = |request: &Request<'_>| {
            let explanation = rules.explain(request, Nanos::from_secs(1_800_000_000));
            serde_json::to_string(&attributes(&explanation)).unwrap()
        };
        assert_eq!(
            missing(&request),
            r#"[{"attributes":["path"],"rule":"login"},{"attributes":["user"],"rule":"users"}]"#
        );
        request.attributes.push(("path".into(), "/login".into()));
        request.attributes.push(("user".into(), "ada".into()));
        assert_eq!(missing(&request), "[]");
    }
}
