//! An explanation as JSON: what the lists and every rule have to say about a request.

use http::StatusCode;
use serde_json::{Value, json};
use tidegate_core::rules::{
    Entry, Explanation, Handling, Listed, Mode, RuleView, Standing, UnitCost,
};
use tidegate_core::units::Nanos;

use super::error::{Refusal, json_answer};
use super::wire::{Asked, BadInput};
use crate::ids::Id;
use crate::net::connection::Answer;
use crate::service::Service;

/// What rules say about requests, in one answer: some 10 MiB.
pub(crate) const MOST_VIEWS: usize = 30_000;

/// Explains one request or a list.
pub(crate) fn answer(service: &Service, id: &Id, asked: Asked<'_>) -> Result<Answer, Refusal> {
    let view = service.limiter.view();
    let told = match asked {
        Asked::One(ask) => json(&view.explain(ask.request)),
        Asked::Many(asks) => {
            let rules = view.policy().rules.rules().len();
            let most = (MOST_VIEWS / rules.max(1)).max(1);
            if asks.requests.len() > most {
                let field = format!("[{most}]");
                let reason = format!(
                    "with {rules} rules at most {most} requests are explained at once; send fewer"
                );
                return Err(BadInput { field, reason }.into());
            }
            let each = asks.requests.into_iter();
            each.map(|request| json(&view.explain(request))).collect()
        }
    };
    Ok(json_answer(StatusCode::OK, told.to_string().into(), id))
}

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
        "counting": view.handling.counting.name(),
    });
    handling(&view.handling, &mut told);
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

/// What is not as usual; nothing for what is.
fn handling(handling: &Handling, told: &mut Value) {
    let ms = |span: Nanos| span.millis_up();
    if !handling.leases.is_empty() {
        let leases = handling.leases.iter().map(|leased| {
            json!({"lasts_ms": ms(leased.lasts), "written_burst": leased.burst, "usable": leased.left})
        });
        told["leases"] = leases.collect();
    }
    if let Some(UnitCost { unit, cost, stated }) = &handling.unit_cost {
        told["cost"] = json!({"unit": unit, "cost": cost, "stated": stated});
    }
    if let Some(ceiling) = &handling.ceiling {
        let limits = ceiling.units.iter();
        let limits = limits.map(|(units, whole)| json!({"usable": units, "whole": whole}));
        told["priority"] = json!({
            "priority": ceiling.priority.name(),
            "part": ceiling.part.to_string(),
            "limits": limits.collect::<Vec<_>>(),
        });
    }
    if let Some(soft) = handling.soft {
        let from = soft.begins().to_string();
        told["soft"] = json!({"from": from, "max_delay_ms": ms(soft.max_delay())});
    }
    if let Some(concurrent) = handling.concurrent {
        told["concurrent"] = json!(concurrent.to_string());
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    }
}
