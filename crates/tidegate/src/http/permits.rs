//! Permits as HTTP responses: an open request, and a denial because too many requests are open.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tidegate_core::store::Role;
use tidegate_core::units::Nanos;
use tidegate_rules::engine::Decision;

use super::body::{QUOTA_EXCEEDED, REDUCED_CAPACITY, begin_problem};
use super::headers::{ID, LIMIT, POLICY, RATE_LIMIT, REMAINING, retry_after_secs};
use super::text::{JsonText, append, put, sf_text};
use super::{BodyStyle, DecisionResponse, ResponseContext, response};
use crate::limiter::{ConcurrencyDenial, ConcurrencyUsage};

/// The end of a request is unknown. This is soon enough to find a free permit, and seldom enough to bear.
const RETRY_DELAY: Nanos = Nanos::from_secs(1);

/// The response to a request that is open: that of its decision, and the permit that keeps it open.
pub fn acquired(
    decision: &Decision,
    limits: &[ConcurrencyUsage],
    permit: &str,
    ttl: Nanos,
    context: &ResponseContext<'_>,
) -> DecisionResponse {
    let response = response(decision, context);
    let mut body = response.body.to_vec();
    body.pop(); // the closing brace of every body
    append!(&mut body, r#","permit":""#, JsonText(permit), r#"","ttl_ms":"#, ttl.millis_up(), r#","open":["#);
    for (i, limit) in limits.iter().enumerate() {
        let (separator, granted) = (if i > 0 { "," } else { "" }, if limit.granted { "true" } else { "false" });
        let mode = if limit.role == Role::Shadow { "shadow" } else { "enforce" };
        append!(&mut body, separator, r#"{"rule":""#, JsonText(limit.rule.as_str()), r#"","allowed":"#, granted);
        append!(&mut body, r#","limit":"#, limit.max_permits, r#","open":"#, limit.open);
        append!(&mut body, r#","mode":""#, mode, r#""}"#);
    }
    put(&mut body, "]}");
    DecisionResponse { body: Bytes::from(body), ..response }
}

/// The response to a request that is denied because too many are open.
pub fn concurrency_denied(denial: &ConcurrencyDenial, context: &ResponseContext<'_>) -> DecisionResponse {
    let status = if denial.unavailable { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::TOO_MANY_REQUESTS };
    let mut body = Vec::with_capacity(320);
    let content_type = match context.body {
        BodyStyle::Plain => {
            plain(denial, context, &mut body);
            "application/json"
        }
        BodyStyle::Problem => {
            problem(denial, context, status, &mut body);
            "application/problem+json"
        }
    };
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    figures(denial, context, &mut headers);
    DecisionResponse { status, headers, body: Bytes::from(body) }
}

fn figures(denial: &ConcurrencyDenial, context: &ResponseContext<'_>, headers: &mut HeaderMap) {
    let sf = |text: &str| {
        let mut out = Vec::new();
        sf_text(&mut out, text);
        out
    };
    let value = |parts: &[&[u8]]| {
        let text = Bytes::from(parts.concat());
        HeaderValue::from_maybe_shared(text).expect("digits and printable ASCII make a header")
    };
    let (rule, max) = (sf(denial.rule.as_str()), denial.max_permits.to_string());
    headers.insert(ID, value(&[&sf(context.id)]));
    let policy = value(&[b"\"", &rule, b"\";q=", max.as_bytes(), br#";qu="concurrent-requests""#]);
    headers.insert(POLICY, policy);
    headers.insert(RATE_LIMIT, value(&[b"\"", &rule, b"\";r=0"]));
    headers.insert(LIMIT, denial.max_permits.into());
    headers.insert(REMAINING, 0u32.into());
    headers.insert(header::RETRY_AFTER, retry_secs(denial).into());
}

fn plain(denial: &ConcurrencyDenial, context: &ResponseContext<'_>, out: &mut Vec<u8>) {
    let error = if denial.unavailable { "temporary_reduced_capacity" } else { "too_many_open" };
    append!(out, r#"{"id":""#, JsonText(context.id), r#"","error":""#, error, r#"","message":""#);
    message(denial, out);
    append!(out, r#"","allowed":false,"rule":""#, JsonText(denial.rule.as_str()), r#"","limit":"#, denial.max_permits);
    append!(out, r#","open":"#, denial.open, r#","remaining":0,"retry_after_seconds":"#, retry_secs(denial));
    append!(out, r#","source":""#, denial.source.name(), "\"}");
}

fn problem(denial: &ConcurrencyDenial, context: &ResponseContext<'_>, status: StatusCode, out: &mut Vec<u8>) {
    let (kind, title) = if denial.unavailable {
        (REDUCED_CAPACITY, "Temporary reduced capacity")
    } else {
        (QUOTA_EXCEEDED, "Too many open requests")
    };
    begin_problem(out, kind, title, status);
    message(denial, out);
    append!(out, r#"","instance":"urn:tidegate:decision:"#, JsonText(context.id), r#"","violated-policies":[""#);
    append!(out, JsonText(denial.rule.as_str()), r#""],"retry_after_seconds":"#, retry_secs(denial), "}");
}

/// The message of the denial, inside a JSON string.
fn message(denial: &ConcurrencyDenial, out: &mut Vec<u8>) {
    append!(out, "rule `", JsonText(denial.rule.as_str()));
    if denial.unavailable {
        return put(out, "` denies while its store is unavailable; come back later");
    }
    append!(out, "` allows ", denial.max_permits, " open at once, and ", denial.open);
    put(out, " are; come back when one has ended");
}

fn retry_secs(denial: &ConcurrencyDenial) -> u64 {
    retry_after_secs(RETRY_DELAY, denial.client)
}

#[cfg(test)]
mod tests {
    use tidegate_core::store::Source;
    use tidegate_core::subject::RuleName;

    use super::super::ResetStyle;
    use super::*;

    fn rendered(unavailable: bool, style: BodyStyle) -> (u16, HeaderMap, serde_json::Value) {
        let denial = ConcurrencyDenial {
            rule: RuleName::new("up\"loads"),
            max_permits: 50,
            open: 50,
            source: Source::Exact,
            unavailable,
            client: u64::MAX,
        };
        let context = ResponseContext {
            id: "x-1",
            wall: Nanos::ZERO,
            reset: ResetStyle::Epoch,
            body: style,
            receipt: None,
            reservation: None,
        };
        let response = concurrency_denied(&denial, &context);
        let body = serde_json::from_slice(&response.body).unwrap();
        (response.status.as_u16(), response.headers, body)
    }

    #[test]
    fn a_denial_names_the_rule_and_the_number_of_open_requests() {
        let (status, headers, body) = rendered(false, BodyStyle::Plain);
        assert_eq!(status, 429);
        let policy = r#""up\"loads";q=50;qu="concurrent-requests""#;
        assert_eq!(headers["ratelimit-policy"], policy);
        assert_eq!(headers["retry-after"], "2", "a second plus jitter");
        assert_eq!(headers["cache-control"], "no-store");
        assert_eq!(body["error"], "too_many_open");
        assert_eq!((&body["limit"], &body["open"]), (&50.into(), &50.into()));
        assert_eq!(body["rule"], "up\"loads");
    }

    #[test]
    fn a_denial_without_the_store_is_not_the_clients_error() {
        for style in [BodyStyle::Plain, BodyStyle::Problem] {
            assert_eq!(rendered(true, style).0, 503);
        }
        let (_, headers, body) = rendered(false, BodyStyle::Problem);
        assert_eq!(headers["content-type"], "application/problem+json");
        assert_eq!(body["violated-policies"][0], "up\"loads");
    }
}
