//! The deadline of the caller of a gRPC method.
//!
//! A decision must be ready before the deadline, with time left to send it. When no response arrives in time, Envoy
//! lets the request pass or rejects it, and then no limit counts.

use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName};
use tidegate_core::units::Nanos;

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The part of a caller's deadline that is reserved for the network in both directions.
const REPLY_MARGIN: Duration = Duration::from_millis(5);

/// How long a decision may take, counted from the head of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerDeadline {
    began: Instant,
    /// `None`: as long as the store may take.
    max: Option<Duration>,
}

impl CallerDeadline {
    /// From the caller's deadline, or `default` if it sets none.
    pub(super) fn of(headers: &HeaderMap, default: Option<Duration>) -> Self {
        let timeout = headers.get(TIMEOUT).and_then(|text| parse(text.as_bytes()));
        let max = timeout.map(|timeout| timeout.saturating_sub(REPLY_MARGIN));
        CallerDeadline { began: Instant::now(), max: max.or(default) }
    }

    /// A caller that waits for as long as the store may take.
    pub(super) fn unbounded() -> Self {
        CallerDeadline { began: Instant::now(), max: None }
    }

    /// The remaining time.
    pub(super) fn remaining(self) -> Option<Nanos> {
        let max = self.max?;
        Some(max.saturating_sub(self.began.elapsed()).into())
    }
}

/// Parses a timeout in the gRPC format: at most eight digits and a unit. An invalid text counts as absent.
fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3_600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::envoy_options::DEFAULT_WAIT;

    #[test]
    fn timeouts_are_parsed_in_the_grpc_format() {
        let cases: [(&str, Option<Duration>); 14] = [
            ("20m", Some(Duration::from_millis(20))),
            ("1S", Some(Duration::from_secs(1))),
            ("2M", Some(Duration::from_secs(120))),
            ("3H", Some(Duration::from_secs(10_800))),
            ("1500u", Some(Duration::from_micros(1_500))),
            ("0n", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(359_999_996_400))),
            ("999999999m", None),
            ("20", None),
            ("m", None),
            ("", None),
            ("-1m", None),
            ("1.5S", None),
            ("20ms", None),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text.as_bytes()), want, "{text}");
        }
    }

    /// The time that a call with this timeout leaves for the decision. `None` if it is unbounded.
    fn max(timeout: Option<&'static str>, default: Option<Duration>) -> Option<Duration> {
        let headers = timeout.map(|text| (TIMEOUT, http::HeaderValue::from_static(text)));
        CallerDeadline::of(&headers.into_iter().collect(), default).max
    }

    #[test]
    fn a_deadline_leaves_time_for_the_response_and_replaces_the_default() {
        let millis = |millis| Some(Duration::from_millis(millis));
        assert_eq!(max(Some("20m"), Some(DEFAULT_WAIT)), millis(15));
        assert_eq!(max(Some("250m"), Some(DEFAULT_WAIT)), millis(245));
        assert_eq!(max(Some("250m"), None), millis(245));
        assert_eq!(max(Some("3m"), None), millis(0), "no time to wait");
        assert_eq!(max(None, Some(DEFAULT_WAIT)), millis(15));
        assert_eq!(max(Some("soon"), Some(DEFAULT_WAIT)), millis(15));
        assert_eq!(max(None, None), None);
    }
}
