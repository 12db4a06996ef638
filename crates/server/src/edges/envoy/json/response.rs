//! The JSON form of a `RateLimitResponse`.

use serde::Serialize;
use serde_json::{Map, Number, Value};
use tidegate_rules::Metadata;
use tidegate_rules::envoy::{Status, StatusLimit};

use crate::edges::envoy::response::EnvoyResponse;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonRateLimitResponse<'a> {
    overall_code: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statuses: Vec<JsonDescriptorStatus<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonHeader>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonDescriptorStatus<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonRateLimit<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonRateLimit<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

#[derive(Serialize)]
struct JsonHeader {
    key: String,
    value: String,
}

/// Encodes a response as JSON.
pub(super) fn to_json(envoy_response: &EnvoyResponse<'_, '_>) -> Vec<u8> {
    let mut response_headers_to_add = Vec::new();
    envoy_response.each_header(|key, value| {
        response_headers_to_add
            .push(JsonHeader { key: key.to_owned(), value: String::from_utf8_lossy(value).into_owned() });
    });
    let response = JsonRateLimitResponse {
        overall_code: code(envoy_response.judged.over_limit),
        statuses: envoy_response.judged.statuses.iter().map(status).collect(),
        response_headers_to_add,
        dynamic_metadata: envoy_response.metadata().as_deref().map(object),
    };
    serde_json::to_vec(&response).expect("text and numbers serialise")
}

fn code(over: bool) -> &'static str {
    if over { "OVER_LIMIT" } else { "OK" }
}

fn status<'a>(status: &Status<'a>) -> JsonDescriptorStatus<'a> {
    let seconds = status.reset_after.map(|reset| reset.secs_up());
    JsonDescriptorStatus {
        code: code(status.over_limit),
        current_limit: status.limit.map(limit),
        limit_remaining: status.remaining,
        duration_until_reset: seconds.map(|seconds| format!("{seconds}s")),
    }
}

fn limit(limit: StatusLimit<'_>) -> JsonRateLimit<'_> {
    JsonRateLimit {
        requests_per_unit: limit.requests,
        unit: limit.unit.map(|unit| unit.name().to_ascii_uppercase()),
        name: limit.name.filter(|name| !name.is_empty()),
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn object(fields: &[(Box<str>, Metadata)]) -> Value {
    let fields = fields.iter();
    let fields = fields.map(|(name, field)| (name.to_string(), value(field)));
    Value::Object(Map::from_iter(fields))
}

fn value(metadata: &Metadata) -> Value {
    match metadata {
        Metadata::Null => Value::Null,
        Metadata::Bool(yes) => Value::Bool(*yes),
        Metadata::Number(number) => json_number(*number),
        Metadata::Text(text) => Value::String(text.to_string()),
        Metadata::List(values) => values.iter().map(value).collect(),
        Metadata::Map(fields) => object(fields),
    }
}

/// A whole number is written without a fraction.
fn json_number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 9e15 {
        Value::from(number as i64)
    } else {
        Number::from_f64(number).map_or(Value::Null, Value::Number)
    }
}
