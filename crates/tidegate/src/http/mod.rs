//! What a decision looks like to an HTTP client: status, headers and body. Written once, for every
//! edge that speaks HTTP.
//!
//! Rounding is toward safety: a wait is never told shorter than it is, and `Retry-After` is never 0.
//! Shadow limits appear in the body's list and nowhere else.

mod body;
mod headers;
mod slots;
mod text;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tidegate_core::algorithms::Retry;
use tidegate_core::engine::{Decision, Fate};
use tidegate_core::units::Nanos;

pub use headers::ID;
use headers::Lines;
pub use slots::{full, opened};
pub use text::json_plain;

/// How `X-RateLimit-Reset` tells time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResetStyle {
    /// Seconds since the epoch.
    #[default]
    Epoch,
    /// Seconds from now.
    Delta,
}

/// How a refusal is described.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BodyStyle {
    /// Tidegate's own JSON.
    #[default]
    Plain,
    /// RFC 9457 problem details, for clients that accept `application/problem+json`.
    Problem,
}

/// What an answer needs besides the decision.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The decision's id, which the logs carry too.
    pub id: &'a str,
    /// The wall clock, for epoch headers.
    pub wall: Nanos,
    /// How `X-RateLimit-Reset` tells time.
    pub reset: ResetStyle,
    /// How a refusal is described.
    pub body: BodyStyle,
    /// A sealed receipt to hand out with an admission.
    pub receipt: Option<&'a str>,
    /// What to settle an admission with that was reserved, and how long it lasts.
    pub reservation: Option<(&'a str, Nanos)>,
}

/// A decision as an HTTP answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// 200, 403, 422, 429 or 503.
    pub status: StatusCode,
    /// Everything but `Content-Length`.
    pub headers: HeaderMap,
    /// JSON.
    pub body: Bytes,
}

/// The status a decision has on the wire.
pub fn status(decision: &Decision) -> StatusCode {
    match decision.fate() {
        Fate::Allow | Fate::Delay(_) => StatusCode::OK,
        Fate::Deny(Retry::After(_)) => StatusCode::TOO_MANY_REQUESTS,
        Fate::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Fate::Deny(Retry::Never) => StatusCode::UNPROCESSABLE_ENTITY,
        Fate::Block { .. } => StatusCode::FORBIDDEN,
    }
}

/// The whole answer.
pub fn answer(decision: &Decision, context: &Context<'_>) -> Answer {
    let problem = context.body == BodyStyle::Problem && !decision.allowed();
    // One buffer holds the values of the headers and then the body.
    let mut text = Vec::with_capacity(768);
    let lines = Lines::write(decision, context, &mut text);
    match problem {
        true => body::problem(decision, context, &mut text),
        false => body::plain(decision, context, &mut text),
    }
    let text = Bytes::from(text);
    let body = text.slice(lines.len()..);
    let mut headers = HeaderMap::with_capacity(10);
    let content_type = match problem {
        true => "application/problem+json",
        false => "application/json",
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    insert(decision, lines, &text, &mut headers);
    Answer {
        status: status(decision),
        headers,
        body,
    }
}

/// Only the headers, for edges whose answer has no body.
pub fn headers(decision: &Decision, context: &Context<'_>) -> HeaderMap {
    let mut text = Vec::with_capacity(256);
    let lines = Lines::write(decision, context, &mut text);
    let mut headers = HeaderMap::with_capacity(10);
    insert(decision, lines, &Bytes::from(text), &mut headers);
    headers
}

/// The same headers one by one, without the map: for protocols that carry them in a message.
pub fn each_header(decision: &Decision, context: &Context<'_>, mut each: impl FnMut(&str, &[u8])) {
    let mut text = Vec::with_capacity(256);
    let lines = Lines::write(decision, context, &mut text);
    lines.each(&text, |name, value| each(name.as_str(), value));
}

fn insert(decision: &Decision, lines: Lines, text: &Bytes, headers: &mut HeaderMap) {
    if !decision.allowed() {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    lines.cut(text, headers);
}

/// Only the body, for lists of decisions: an object with `status` first.
pub fn item(decision: &Decision, context: &Context<'_>, out: &mut Vec<u8>) {
    body::item(decision, context, out);
}
