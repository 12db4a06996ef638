//! Permits as HTTP responses: an open request, and a denial because too many requests are open.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tidegate_core::store::Role;
use tidegate_core::units::Nanos;
use tidegate_rules::engine::Decision;

use super::headers::{ID, LIMIT, POLICY, RATE_LIMIT, REMAINING, retry_after_secs};
use super::text::{json_string, json_text, number, put, sf_integer, sf_text};
use super::{BodyStyle, DecisionResponse, ResponseContext, response};
use crate::limiter::{ConcurrencyDenial, ConcurrencyUsage};

/// The end of a request is unknown. This is soon enough to find a free permit, and seldom enough to bear.
const RETRY_DELAY: Nanos = Nanos::from_secs(1);

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

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
    put(&mut body, r#","permit":"#);
    json_string(&mut body, permit);
    put(&mut body, r#","ttl_ms":"#);
    number(&mut body, ttl.millis_up());
    put(&mut body, r#","open":["#);
    for (i, limit) in limits.iter().enumerate() {
        if i > 0 {
            put(&mut body, ",");
        }
        put(&mut body, r#"{"rule":"#);
        json_string(&mut body, limit.rule.as_str());
        put(&mut body, r#","allowed":"#);
        put(&mut body, if limit.granted { "true" } else { "false" });
        put(&mut body, r#","limit":"#);
        number(&mut body, u64::from(limit.max_permits));
        put(&mut body, r#","open":"#);
        number(&mut body, u64::from(limit.open));
        put(
            &mut body,
            match limit.role {
                Role::Shadow => r#","mode":"shadow"}"#,
                Role::Enforce | Role::Quota => r#","mode":"enforce"}"#,
            },
        );
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
    let mut line = |name: HeaderName, write: &dyn Fn(&mut Vec<u8>)| {
        let mut value = Vec::new();
        write(&mut value);
        let value = HeaderValue::from_maybe_shared(Bytes::from(value));
        headers.insert(name, value.expect("digits and printable ASCII make a header"));
    };
    let named = |out: &mut Vec<u8>| {
        put(out, "\"");
        sf_text(out, denial.rule.as_str());
        put(out, "\"");
    };
    line(ID, &|out| sf_text(out, context.id));
    line(POLICY, &|out| {
        named(out);
        put(out, ";q=");
        sf_integer(out, u64::from(denial.max_permits));
        put(out, r#";qu="concurrent-requests""#);
    });
    line(RATE_LIMIT, &|out| {
        named(out);
        put(out, ";r=0");
    });
    line(LIMIT, &|out| number(out, u64::from(denial.max_permits)));
    line(REMAINING, &|out| number(out, 0));
    line(header::RETRY_AFTER, &|out| number(out, retry_secs(denial)));
}

fn plain(denial: &ConcurrencyDenial, context: &ResponseContext<'_>, out: &mut Vec<u8>) {
    put(out, r#"{"id":""#);
    json_text(out, context.id);
    put(out, r#"","error":""#);
    let error = if denial.unavailable { "temporary_reduced_capacity" } else { "too_many_open" };
    put(out, error);
    put(out, r#"","message":""#);
    message(denial, out);
    put(out, r#"","allowed":false,"rule":"#);
    json_string(out, denial.rule.as_str());
    put(out, r#","limit":"#);
    number(out, u64::from(denial.max_permits));
    put(out, r#","open":"#);
    number(out, u64::from(denial.open));
    put(out, r#","remaining":0,"retry_after_seconds":"#);
    number(out, retry_secs(denial));
    put(out, r#","source":""#);
    put(out, denial.source.name());
    put(out, "\"}");
}

fn problem(denial: &ConcurrencyDenial, context: &ResponseContext<'_>, status: StatusCode, out: &mut Vec<u8>) {
    let (kind, title) = if denial.unavailable {
        (REDUCED_CAPACITY, "Temporary reduced capacity")
    } else {
        (QUOTA_EXCEEDED, "Too many open requests")
    };
    put(out, r#"{"type":""#);
    put(out, kind);
    put(out, r#"","title":""#);
    put(out, title);
    put(out, r#"","status":"#);
    number(out, u64::from(status.as_u16()));
    put(out, r#","detail":""#);
    message(denial, out);
    put(out, r#"","instance":"urn:tidegate:decision:"#);
    json_text(out, context.id);
    put(out, r#"","violated-policies":["#);
    json_string(out, denial.rule.as_str());
    put(out, r#"],"retry_after_seconds":"#);
    number(out, retry_secs(denial));
    put(out, "}");
}

/// The message of the denial, inside a JSON string.
fn message(denial: &ConcurrencyDenial, out: &mut Vec<u8>) {
    put(out, "rule `");
    json_text(out, denial.rule.as_str());
    if denial.unavailable {
        let unavailable = "` denies while its store is unavailable; come back later";
        return put(out, unavailable);
    }
    put(out, "` allows ");
    number(out, u64::from(denial.max_permits));
    put(out, " open at once, and ");
    number(out, u64::from(denial.open));
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
