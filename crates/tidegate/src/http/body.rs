//! Bodies: Tidegate's own JSON, and RFC 9457 problem details.

use http::StatusCode;
use tidegate_core::algorithms::Retry;
use tidegate_core::store::Role;
use tidegate_core::units::Nanos;
use tidegate_rules::engine::{Decision, DecisionKind, LimitView};

use super::ResponseContext;
use super::headers::{policy_name, retry_after_secs};
use super::text::{self, JsonText, append, json_string, json_text, put, span};

pub(super) const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
pub(super) const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// The body of one response.
pub(super) fn plain(decision: &Decision, context: &ResponseContext<'_>, out: &mut Vec<u8>) {
    put(out, r#"{"id":""#);
    rest(decision, context, out);
}

/// The body as an item of a list.
pub(super) fn item(decision: &Decision, context: &ResponseContext<'_>, out: &mut Vec<u8>) {
    append!(out, r#"{"status":"#, u64::from(super::status(decision).as_u16()), r#","id":""#);
    rest(decision, context, out);
}

fn rest(decision: &Decision, context: &ResponseContext<'_>, out: &mut Vec<u8>) {
    json_text(out, context.id);
    let binding = decision.binding();
    put(out, "\"");
    if let Some(error) = error(decision.kind()) {
        append!(out, r#","error":""#, error, r#"","message":""#);
        message(decision.kind(), binding.as_ref(), out);
        put(out, "\"");
    }
    if decision.allowed() {
        put(out, r#","allowed":true,"rule":"#);
    } else {
        put(out, r#","allowed":false,"rule":"#);
    }
    let mut binding_figures = 0..0;
    match &binding {
        Some(binding) => {
            json_string(out, binding.rule.name().as_str());
            binding_figures.start = out.len();
            figures(out, binding);
            binding_figures.end = out.len();
        }
        None => put(out, "null"),
    }
    write_kind(decision, binding.as_ref(), out);
    append!(out, r#","source":""#, decision.source().name(), "\"");
    if let Some(receipt) = context.receipt {
        put(out, r#","receipt":"#);
        json_string(out, receipt);
    }
    if let Some((token, ttl)) = context.reservation {
        append!(out, r#","reservation":""#, JsonText(token), r#"","expires_ms":"#, Nanos::from(ttl).millis_up());
    }
    put(out, r#","limits":["#);
    for (i, view) in decision.limits().enumerate() {
        if i > 0 {
            put(out, ",");
        }
        limit(out, &view, |out| match &binding {
            // Copying numbers is faster than formatting them.
            Some(binding) if (binding.position, binding.rate) == (view.position, view.rate) => {
                out.extend_from_within(binding_figures.clone());
            }
            _ => figures(out, &view),
        });
    }
    put(out, "]}");
}

fn write_kind(decision: &Decision, binding: Option<&LimitView<'_>>, out: &mut Vec<u8>) {
    match decision.kind() {
        DecisionKind::Allow => {}
        DecisionKind::Delay(delay) => {
            append!(out, r#","delay_ms":"#, delay.millis_up());
        }
        DecisionKind::Deny(Retry::Never) | DecisionKind::Unavailable => put(out, r#","retry_after_ms":null"#),
        DecisionKind::Deny(Retry::After(wait)) => {
            if let Some(binding) = binding {
                put(out, r#","window":""#);
                span(out, binding.limit.per());
                append!(out, r#"","retry_after_seconds":"#, retry_after_secs(wait, decision.client_hash()));
            }
            append!(out, r#","retry_after_ms":"#, wait.millis_up());
        }
        DecisionKind::Block { until: None } => put(out, r#","blocked_until":null"#),
        DecisionKind::Block { until: Some(until) } => {
            append!(out, r#","blocked_until":"#, until.secs_up());
        }
    }
}

fn limit(out: &mut Vec<u8>, view: &LimitView<'_>, figures: impl FnOnce(&mut Vec<u8>)) {
    append!(out, r#"{"rule":""#, JsonText(view.rule.name().as_str()), r#"","rate":""#, JsonText(view.rate_text));
    if view.allows {
        put(out, r#"","allowed":true"#);
    } else {
        put(out, r#"","allowed":false"#);
    }
    figures(out);
    match view.role {
        Role::Enforce => put(out, r#","mode":"enforce"}"#),
        Role::Shadow => put(out, r#","mode":"shadow"}"#),
        Role::Quota => put(out, r#","mode":"quota"}"#),
    }
}

fn figures(out: &mut Vec<u8>, view: &LimitView<'_>) {
    let figures = view.reading.figures;
    append!(out, r#","limit":"#, view.limit.capacity(), r#","remaining":"#, figures.remaining);
    append!(out, r#","reset_after_ms":"#, figures.reset_after.millis_up());
}

fn error(kind: DecisionKind) -> Option<&'static str> {
    match kind {
        DecisionKind::Allow | DecisionKind::Delay(_) => None,
        DecisionKind::Deny(Retry::After(_)) => Some("rate_limit_exceeded"),
        DecisionKind::Unavailable => Some("temporary_reduced_capacity"),
        DecisionKind::Deny(Retry::Never) => Some("cost_exceeds_limit"),
        DecisionKind::Block { .. } => Some("blocked"),
    }
}

/// The message of a denial, inside a JSON string.
fn message(kind: DecisionKind, binding: Option<&LimitView<'_>>, out: &mut Vec<u8>) {
    let rule = binding.map_or("", |binding| binding.rule.name().as_str());
    match (kind, binding) {
        (DecisionKind::Deny(Retry::After(wait)), Some(binding)) => {
            append!(out, "rule `", JsonText(rule), "` allows ", JsonText(binding.rate_text), "; come back in ");
            text::wait(out, wait);
        }
        (DecisionKind::Deny(Retry::Never), Some(binding)) => {
            append!(out, "a cost of ", binding.cost.get(), " can never fit rule `", JsonText(rule));
            append!(out, "`, which holds ", binding.limit.capacity(), " at most; request less at once");
        }
        (DecisionKind::Block { .. }, _) => put(out, "this client is on the block list"),
        (DecisionKind::Unavailable, Some(_)) => {
            append!(out, "rule `", JsonText(rule), "` denies while its store is unavailable; come back later");
        }
        _ => put(out, "denied"),
    }
}

/// RFC 9457 problem details.
pub(super) fn problem(decision: &Decision, context: &ResponseContext<'_>, out: &mut Vec<u8>) {
    let binding = decision.binding();
    let (kind, title) = match decision.kind() {
        DecisionKind::Deny(Retry::Never) => ("about:blank", "Cost exceeds the limit"),
        DecisionKind::Block { .. } => ("about:blank", "Blocked"),
        DecisionKind::Unavailable => (REDUCED_CAPACITY, "Temporary reduced capacity"),
        _ => (QUOTA_EXCEEDED, "Quota exceeded"),
    };
    begin_problem(out, kind, title, super::status(decision));
    message(decision.kind(), binding.as_ref(), out);
    append!(out, r#"","instance":"urn:tidegate:decision:"#, JsonText(context.id), r#"","violated-policies":["#);
    let violated = decision.enforced().filter(|view| !view.allows);
    for (i, view) in violated.enumerate() {
        if i > 0 {
            put(out, ",");
        }
        policy_name(out, &view, json_text);
    }
    put(out, "]");
    write_kind(decision, binding.as_ref(), out);
    put(out, "}");
}

/// Problem details up to the detail.
pub(super) fn begin_problem(out: &mut Vec<u8>, kind: &str, title: &str, status: StatusCode) {
    append!(out, r#"{"type":""#, kind, r#"","title":""#, title, r#"","status":"#);
    append!(out, u64::from(status.as_u16()), r#","detail":""#);
}
