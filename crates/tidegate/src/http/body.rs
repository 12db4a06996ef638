//! Bodies: Tidegate's own JSON, and RFC 9457 problem details.

use bytes::{BufMut, BytesMut};
use tidegate_core::algorithms::Retry;
use tidegate_core::engine::{Decision, Fate, LimitView};
use tidegate_core::store::Role;
use tidegate_core::units::Nanos;

use super::Context;
use super::headers::{name, retry_after_secs};
use super::text::{json_name, json_string, number, span};

const PROBLEM_TYPES: &str = "https://iana.org/assignments/http-problem-types#";

/// The body of one answer.
pub(super) fn plain(decision: &Decision, context: &Context<'_>, out: &mut BytesMut) {
    out.put_slice(b"{\"id\":");
    json_string(out, context.id);
    rest(decision, context, out);
}

/// The same as an item of a list.
pub(super) fn item(decision: &Decision, context: &Context<'_>, out: &mut BytesMut) {
    out.put_slice(b"{\"status\":");
    number(out, u64::from(super::status(decision).as_u16()));
    json_name(out, "id");
    json_string(out, context.id);
    rest(decision, context, out);
}

fn rest(decision: &Decision, context: &Context<'_>, out: &mut BytesMut) {
    if let Some(error) = error(decision) {
        json_name(out, "error");
        json_string(out, error);
        json_name(out, "message");
        json_string(out, &message(decision));
    }
    json_name(out, "allowed");
    flag(out, decision.allowed());
    json_name(out, "rule");
    match decision.binding() {
        Some(binding) => {
            json_string(out, binding.rule.name().as_str());
            figures(out, &binding);
        }
        None => out.put_slice(b"null"),
    }
    fate(decision, out);
    json_name(out, "source");
    json_string(out, decision.source().name());
    if let Some(receipt) = context.receipt {
        json_name(out, "receipt");
        json_string(out, receipt);
    }
    json_name(out, "limits");
    out.put_u8(b'[');
    for (i, view) in decision.limits().enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        limit(out, &view);
    }
    out.put_slice(b"]}");
}

fn fate(decision: &Decision, out: &mut BytesMut) {
    match decision.fate() {
        Fate::Allow => {}
        Fate::Delay(delay) => {
            json_name(out, "delay_ms");
            number(out, delay.millis_up());
        }
        Fate::Deny(Retry::Never) | Fate::Unavailable => {
            json_name(out, "retry_after_ms");
            out.put_slice(b"null");
        }
        Fate::Deny(Retry::After(wait)) => {
            if let Some(binding) = decision.binding() {
                json_name(out, "window");
                json_string(out, &span(binding.limit.per()));
                json_name(out, "retry_after_seconds");
                number(out, retry_after_secs(wait, decision.client()));
            }
            json_name(out, "retry_after_ms");
            number(out, wait.millis_up());
        }
        Fate::Block { until } => {
            json_name(out, "blocked_until");
            match until {
                Some(until) => number(out, until.secs_up()),
                None => out.put_slice(b"null"),
            }
        }
    }
}

fn limit(out: &mut BytesMut, view: &LimitView<'_>) {
    out.put_slice(b"{\"rule\":");
    json_string(out, view.rule.name().as_str());
    json_name(out, "rate");
    json_string(out, view.written);
    json_name(out, "allowed");
    flag(out, view.reading.verdict.allows());
    figures(out, view);
    json_name(out, "mode");
    json_string(out, mode(view.role));
    out.put_u8(b'}');
}

fn figures(out: &mut BytesMut, view: &LimitView<'_>) {
    let figures = view.reading.figures;
    json_name(out, "limit");
    number(out, view.limit.capacity());
    json_name(out, "remaining");
    number(out, figures.remaining);
    json_name(out, "reset_after_ms");
    number(out, figures.reset_after.millis_up());
}

fn flag(out: &mut BytesMut, value: bool) {
    let text: &[u8] = if value { b"true" } else { b"false" };
    out.put_slice(text);
}

fn mode(role: Role) -> &'static str {
    match role {
        Role::Enforce => "enforce",
        Role::Shadow => "shadow",
        Role::Quota => "quota",
    }
}

fn error(decision: &Decision) -> Option<&'static str> {
    match decision.fate() {
        Fate::Allow | Fate::Delay(_) => None,
        Fate::Deny(Retry::After(_)) => Some("rate_limit_exceeded"),
        Fate::Unavailable => Some("temporary_reduced_capacity"),
        Fate::Deny(Retry::Never) => Some("cost_exceeds_limit"),
        Fate::Block { .. } => Some("blocked"),
    }
}

fn message(decision: &Decision) -> String {
    let (fate, binding) = (decision.fate(), decision.binding());
    match (fate, binding) {
        (Fate::Deny(Retry::After(wait)), Some(binding)) => format!(
            "rule `{}` allows {}; come back in {}",
            binding.rule.name(),
            binding.written,
            rounded(wait),
        ),
        (Fate::Deny(Retry::Never), Some(binding)) => format!(
            "a cost of {} can never fit rule `{}`, which holds {} at most; ask for less at once",
            binding.cost,
            binding.rule.name(),
            binding.limit.capacity(),
        ),
        (Fate::Unavailable, Some(binding)) => format!(
            "rule `{}` refuses while its counts are out of reach; come back later",
            binding.rule.name(),
        ),
        (Fate::Block { .. }, _) => "this client is on the block list".to_owned(),
        _ => "refused".to_owned(),
    }
}

/// A wait for people: whole milliseconds below a second, whole seconds from there on.
fn rounded(wait: Nanos) -> String {
    match wait.millis_up() {
        millis @ 0..1_000 => format!("{millis}ms"),
        _ => format!("{}s", wait.secs_up()),
    }
}

/// RFC 9457 problem details.
pub(super) fn problem(decision: &Decision, context: &Context<'_>, out: &mut BytesMut) {
    let (kind, title) = match decision.fate() {
        Fate::Deny(Retry::Never) => ("about:blank".to_owned(), "Cost exceeds the limit"),
        Fate::Block { .. } => ("about:blank".to_owned(), "Blocked"),
        Fate::Unavailable => (
            format!("{PROBLEM_TYPES}temporary-reduced-capacity"),
            "Temporary reduced capacity",
        ),
        _ => (format!("{PROBLEM_TYPES}quota-exceeded"), "Quota exceeded"),
    };
    out.put_slice(b"{\"type\":");
    json_string(out, &kind);
    json_name(out, "title");
    json_string(out, title);
    json_name(out, "status");
    number(out, u64::from(super::status(decision).as_u16()));
    json_name(out, "detail");
    json_string(out, &message(decision));
    json_name(out, "instance");
    json_string(out, &format!("urn:tidegate:decision:{}", context.id));
    json_name(out, "violated-policies");
    out.put_u8(b'[');
    let violated = decision
        .enforced()
        .filter(|view| !view.reading.verdict.allows());
    for (i, view) in violated.enumerate() {
        if i > 0 {
            out.put_u8(b',');
        }
        json_string(out, &name(&view).concat());
    }
    out.put_u8(b']');
    fate(decision, out);
    out.put_u8(b'}');
}
