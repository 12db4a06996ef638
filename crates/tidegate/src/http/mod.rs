//! Decisions as HTTP responses: status, headers and body, for every edge that speaks HTTP.
//!
//! Rounding is toward safety: a wait is never reported shorter than it is, and `Retry-After` is never 0. Shadow
//! limits appear in the body's list and nowhere else.

mod body;
mod headers;
mod permits;
mod text;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tidegate_core::algorithms::Retry;
use tidegate_core::units::Nanos;
use tidegate_rules::engine::{Decision, DecisionKind};

use headers::HeaderValues;
#[cfg(feature = "internals")]
pub use headers::ID;
pub use permits::{acquired, concurrency_denied};
#[cfg(feature = "internals")]
pub use text::json_plain;

/// The format of `X-RateLimit-Reset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum ResetStyle {
    /// Seconds since the epoch.
    #[default]
    Epoch,
    /// Seconds from now.
    Delta,
}

/// The format of a denial's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum BodyStyle {
    /// Tidegate's own JSON.
    #[default]
    Plain,
    /// RFC 9457 problem details, for clients that accept `application/problem+json`.
    Problem,
}

/// The data of a response besides the decision.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct ResponseContext<'a> {
    /// The decision's id, which is also in the logs.
    pub id: &'a str,
    /// The wall clock, for epoch headers.
    pub wall: Nanos,
    /// The format of `X-RateLimit-Reset`.
    pub reset: ResetStyle,
    /// The format of a denial's body.
    pub body: BodyStyle,
    /// A sealed receipt to return with an allowed request.
    pub receipt: Option<&'a str>,
    /// The token that settles an admitted reservation, and its TTL.
    pub reservation: Option<(&'a str, Duration)>,
}

impl<'a> ResponseContext<'a> {
    /// A response for the decision with this id, at this moment, in Tidegate's own JSON.
    pub fn new(id: &'a str) -> Self {
        let (reset, body) = (ResetStyle::default(), BodyStyle::default());
        ResponseContext { id, wall: crate::clock::wall(), reset, body, receipt: None, reservation: None }
    }
}

/// A decision as an HTTP response.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct DecisionResponse {
    /// 200, 403, 422, 429 or 503.
    pub status: StatusCode,
    /// All headers but `Content-Length`.
    pub headers: HeaderMap,
    /// JSON.
    pub body: Bytes,
}

/// The status code of a decision.
pub fn status(decision: &Decision) -> StatusCode {
    match decision.kind() {
        DecisionKind::Allow | DecisionKind::Delay(_) => StatusCode::OK,
        DecisionKind::Deny(Retry::After(_)) => StatusCode::TOO_MANY_REQUESTS,
        DecisionKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        DecisionKind::Deny(Retry::Never) => StatusCode::UNPROCESSABLE_ENTITY,
        DecisionKind::Block { .. } => StatusCode::FORBIDDEN,
    }
}

/// The whole response.
pub fn response(decision: &Decision, context: &ResponseContext<'_>) -> DecisionResponse {
    let problem = context.body == BodyStyle::Problem && !decision.allowed();
    // One buffer holds the values of the headers and then the body.
    let mut text = Vec::with_capacity(768);
    let values = HeaderValues::write(decision, context, &mut text);
    if problem {
        body::problem(decision, context, &mut text);
    } else {
        body::plain(decision, context, &mut text);
    }
    let text = Bytes::from(text);
    let body = text.slice(values.len()..);
    let mut headers = HeaderMap::with_capacity(10);
    let content_type = if problem { "application/problem+json" } else { "application/json" };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    insert(decision, values, &text, &mut headers);
    DecisionResponse { status: status(decision), headers, body }
}

/// Only the headers, for edges whose response has no body.
pub fn headers(decision: &Decision, context: &ResponseContext<'_>) -> HeaderMap {
    let mut text = Vec::with_capacity(256);
    let values = HeaderValues::write(decision, context, &mut text);
    let mut headers = HeaderMap::with_capacity(10);
    insert(decision, values, &Bytes::from(text), &mut headers);
    headers
}

/// The same headers one by one, without a map: for protocols that carry them in a message.
#[cfg(feature = "internals")]
pub fn each_header(decision: &Decision, context: &ResponseContext<'_>, mut each: impl FnMut(&str, &[u8])) {
    let mut text = Vec::with_capacity(256);
    let values = HeaderValues::write(decision, context, &mut text);
    values.each(&text, |name, value| each(name.as_str(), value));
}

fn insert(decision: &Decision, values: HeaderValues, text: &Bytes, headers: &mut HeaderMap) {
    if !decision.allowed() {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    values.insert_into(text, headers);
}

/// Only the body, for lists of decisions: an object with `status` first.
#[cfg(feature = "internals")]
pub fn item(decision: &Decision, context: &ResponseContext<'_>, out: &mut Vec<u8>) {
    body::item(decision, context, out);
}
