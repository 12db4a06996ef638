//! Explanations as JSON: the list entry and the rules that apply to a request, and why.

use serde_json::{Value, json};
use tidegate_core::units::Nanos;
use tidegate_rules::request::Request;
use tidegate_rules::{Applicability, EffectiveOptions, Explanation, ListDecision, ListEntry, Mode, RuleView, UnitCost};

use crate::decider::Decider;
use crate::edges::common::api_error::{ApiError, ok_response};
use crate::logging::DecisionId;
use crate::net::HttpResponse;

/// Maximum of requests times rules in one response: some 10 MiB.
pub(crate) const MAX_VIEWS: usize = 30_000;

/// Explains one request.
pub(super) fn respond(decider: &Decider, id: &DecisionId, request: Request<'_>) -> Result<HttpResponse, ApiError> {
    Ok(ok_response(id, &json(&decider.explain(request)?)))
}

/// Explains the requests of a list.
pub(super) fn respond_to_list(
    decider: &Decider,
    id: &DecisionId,
    requests: Vec<Request<'_>>,
) -> Result<HttpResponse, ApiError> {
    let mut explained = Vec::with_capacity(requests.len());
    decider.explain_list(requests, MAX_VIEWS, |explanation| explained.push(json(&explanation)))?;
    Ok(ok_response(id, &Value::Array(explained)))
}

pub(crate) fn json(explanation: &Explanation) -> Value {
    let rules: Vec<Value> = explanation.rules.iter().map(rule).collect();
    let listed = explanation.listed.as_ref().map(listed);
    json!({"listed": listed, "rules": rules})
}

fn listed((list, entry): &(ListDecision, ListEntry)) -> Value {
    let list = match list {
        ListDecision::Allow => "allow",
        ListDecision::Block { .. } => "block",
    };
    json!({"list": list, "entry": entry.target, "until": entry.until_text()})
}

fn rule(view: &RuleView) -> Value {
    let subject: Vec<Value> =
        view.subject.iter().map(|part| json!({"wanted": part.wanted, "counted": part.counted})).collect();
    let mut explained = json!({
        "rule": view.rule.as_str(),
        "applies": view.applicability == Applicability::Applies,
        "why": view.applicability.to_string(),
        "mode": mode(view.mode),
        "by": subject,
        "rates": view.rates,
        "algorithm": view.profile.algorithm.to_string(),
        "counting": view.options.counting.name(),
    });
    handling(&view.options, &mut explained);
    match &view.applicability {
        Applicability::ReplacedBy(other) => explained["replaced_by"] = json!(other.as_str()),
        Applicability::Unmatched { attribute, found, wanted, negated } => {
            explained["unmatched"] = json!({"attribute": attribute, "found": found, "wanted": wanted, "not": negated});
        }
        _ => {}
    }
    explained
}

/// Adds the options that differ from the default.
fn handling(handling: &EffectiveOptions, explained: &mut Value) {
    let ms = |span: Nanos| span.millis_up();
    if !handling.leases.is_empty() {
        let leases = handling.leases.iter().map(
            |leased| json!({"lasts_ms": ms(leased.duration), "written_burst": leased.burst, "usable": leased.capacity}),
        );
        explained["leases"] = leases.collect();
    }
    if let Some(UnitCost { unit, cost, stated }) = &handling.unit_cost {
        explained["cost"] = json!({"unit": unit, "cost": cost, "stated": stated});
    }
    if let Some(ceiling) = &handling.ceiling {
        let limits = ceiling.units.iter();
        let limits = limits.map(|(units, whole)| json!({"usable": units, "whole": whole}));
        explained["priority"] = json!({
            "priority": ceiling.priority.name(),
            "part": ceiling.fraction.to_string(),
            "limits": limits.collect::<Vec<_>>(),
        });
    }
    if let Some(soft) = handling.soft {
        let from = soft.threshold().to_string();
        explained["soft"] = json!({"from": from, "max_delay_ms": ms(soft.max_delay())});
    }
    if let Some(concurrent) = handling.concurrent {
        explained["concurrent"] = json!(concurrent.to_string());
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    }
}
