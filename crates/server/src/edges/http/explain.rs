//! An explanation as JSON: what the lists and every rule have to say about a request.

use serde_json::{Value, json};
use tidegate_core::rules::{Entry, Explanation, Listed, Mode, RuleView, Standing};

/// The whole explanation.
pub(crate) fn json(explanation: &Explanation) -> Value {
    let rules: Vec<Value> = explanation.rules.iter().map(rule).collect();
    let listed = explanation.listed.as_ref().map(listed);
    json!({"listed": listed, "rules": rules})
}

fn listed((list, entry): &(Listed, Entry)) -> Value {
    let list = match list {
        Listed::Allow => "allow",
        Listed::Block { .. } => "block",
    };
    json!({"list": list, "entry": entry.whom, "until": entry.until_text()})
}

fn rule(view: &RuleView) -> Value {
    let subject: Vec<Value> = view
        .subject
        .iter()
        .map(|part| json!({"wanted": part.wanted, "counted": part.counted}))
        .collect();
    let mut told = json!({
        "rule": view.rule.as_str(),
        "applies": view.standing == Standing::Applies,
        "why": view.standing.to_string(),
        "mode": mode(view.mode),
        "by": subject,
        "rates": view.rates,
        "algorithm": view.fit.algorithm.to_string(),
    });
    match &view.standing {
        Standing::ReplacedBy(other) => told["replaced_by"] = json!(other.as_str()),
        Standing::Unmatched {
            attribute,
            found,
            wanted,
            negated,
        } => {
            told["unmatched"] =
                json!({"attribute": attribute, "found": found, "wanted": wanted, "not": negated});
        }
        _ => {}
    }
    told
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    }
}
