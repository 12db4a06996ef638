//! Attributes without which a rule has no counter to inspect or reset.
//!
//! A rule that matches a path does not apply to a subject that is given without one. Its counters were silently left
//! out of the response. Now the response names the rule and the attributes to add.
//!
//! A reset of one client also leaves counters alone that other clients share, and names their rules here: rules `by:
//! global`, and rules by an attribute that is absent together with the address that would replace it.

use serde_json::{Value, json};
use tidegate_rules::{Applicability, Explanation, RuleView, SubjectPart};

/// The rules that might apply if the request had more attributes, each with the attributes that are missing.
pub(super) fn for_inspect(explanation: &Explanation) -> Vec<Value> {
    to_json(explanation, missing_of_rule)
}

/// Those rules for a reset, and the rules whose counter other clients share. With `by: global` no attribute is missing.
pub(super) fn for_reset(explanation: &Explanation) -> Vec<Value> {
    to_json(explanation, |view| missing_of_rule(view).or_else(|| shared_counter(view)))
}

/// Those rules for a reset of the rule named `rule` alone.
pub(super) fn for_rule_reset(rule: &str, explanation: &Explanation) -> Vec<Value> {
    to_json(explanation, |view| (view.rule.as_str() == rule).then(|| missing_of_rule(view)).flatten())
}

fn to_json<'e>(explanation: &'e Explanation, missing: impl Fn(&'e RuleView) -> Option<Vec<&'e str>>) -> Vec<Value> {
    let rules = explanation.rules.iter();
    let missing = rules.filter_map(|view| Some((view.rule.as_str(), missing(view)?)));
    missing.map(|(rule, attributes)| json!({"rule": rule, "attributes": attributes})).collect()
}

fn missing_of_rule(view: &RuleView) -> Option<Vec<&str>> {
    match &view.applicability {
        Applicability::Unmatched { attribute, found: None, negated: false, .. } => Some(vec![attribute]),
        Applicability::Skipped => {
            let absent = view.subject.iter().filter(|part| !is_present(part));
            Some(absent.map(|part| &*part.wanted).collect())
        }
        _ => None,
    }
}

fn shared_counter(view: &RuleView) -> Option<Vec<&str>> {
    if view.applicability != Applicability::Applies {
        return None;
    }
    let parts = view.subject.iter().filter(|part| part.counted.is_none());
    let absent: Vec<&str> = parts.map(|part| &*part.wanted).collect();
    (view.subject.is_empty() || !absent.is_empty()).then_some(absent)
}

/// Whether one of the wanted attributes is counted, and not the address in their place.
fn is_present(part: &SubjectPart) -> bool {
    let counts = |name| part.counted.as_deref() == Some(name);
    part.wanted.split('|').any(counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::Nanos;
    use tidegate_rules::request::Request;
    use tidegate_rules::{SourceFile, parse};

    #[test]
    fn only_rules_that_lack_attributes_are_named() {
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
            serde_json::to_string(&for_inspect(&explanation)).unwrap()
        };
        assert_eq!(
            missing(&request),
            r#"[{"attributes":["path"],"rule":"login"},{"attributes":["user"],"rule":"users"}]"#
        );
        request.attributes.push(("path".into(), "/login".into()));
        request.attributes.push(("user".into(), "ada".into()));
        assert_eq!(missing(&request), "[]");
    }

    #[test]
    fn a_reset_names_the_rules_whose_counter_is_shared() {
        let text = "version: 1\nrules:\n\
                    - { name: ceiling, by: global, rate: 5/hour }\n\
                    - { name: login, by: global, match: { path: /login }, rate: 5/hour }\n\
                    - { name: each, by: user, rate: 5/hour }\n\
                    - { name: orgs, by: [org, user], rate: 5/hour }\n";
        let name = "rules.yaml";
        let rules = parse(&[SourceFile { name, text }]).unwrap();
        let mut request = Request::default().with("user", "ada");
        let now = Nanos::from_secs(1_800_000_000);
        let explanation = rules.explain(&request, now);
        assert_eq!(
            json!(for_reset(&explanation)),
            json!([
                {"rule": "ceiling", "attributes": []},
                {"rule": "login", "attributes": ["path"]},
                {"rule": "orgs", "attributes": ["org"]},
            ])
        );
        assert!(for_rule_reset("ceiling", &explanation).is_empty());
        assert_eq!(for_rule_reset("login", &explanation), [json!({"rule": "login", "attributes": ["path"]})]);
        // The address replaces the organisation, and it has a counter of its own.
        request.ip = Some("203.0.113.9".parse().unwrap());
        assert_eq!(
            json!(for_reset(&rules.explain(&request, now))),
            json!([
                {"rule": "ceiling", "attributes": []},
                {"rule": "login", "attributes": ["path"]},
            ])
        );
    }
}
