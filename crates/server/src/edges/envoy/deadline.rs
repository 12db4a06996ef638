//! How long the caller of a gRPC method waits for its answer.
//!
//! A decision must be ready before that, with time left to send it: Envoy lets a request pass, or
//! rejects it, when no answer comes in time, and then no limit counts.

use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName};
use tidegate_core::units::Nanos;

const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The part of a caller's deadline that is left for the way to it and back.
const REPLY_MARGIN: Duration = Duration::from_millis(5);

/// The wait for the store that a call without a deadline allows. Envoy gives up after 20 ms unless it is
/// configured otherwise.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_millis(15);

/// How long a decision may take, counted from the head of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerDeadline {
    began: Instant,
    /// Nothing: for as long as the store may take.
    max: Option<Duration>,
}

impl CallerDeadline {
    /// By the caller's deadline, or `default` if it sets none.
    pub(super) fn of(headers: &HeaderMap, default: Option<Duration>) -> Self {
        let timeout = headers.get(TIMEOUT).and_then(|text| parse(text.as_bytes()));
        let max = timeout.map(|timeout| timeout.saturating_sub(REPLY_MARGIN));
        CallerDeadline {
            began: Instant::now(),
            max: max.or(default),
        }
    }

    /// A caller that waits for as long as the store may take.
    pub(super) fn unbounded() -> Self {
        CallerDeadline {
            began: Instant::now(),
            max: None,
        }
    }

    /// What is left of it.
    pub(super) fn remaining(self) -> Option<Nanos> {
        let max = self.max?;
        Some(max.saturating_sub(self.began.elapsed()).into())
    }
}

/// A timeout as gRPC writes it: at most eight digits and a unit. A text that is none counts as absent.
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

    #[test]
    fn timeouts_are_parsed_as_grpc_writes_them() {
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

    /// What a call with this timeout leaves for the decision; none that is not bounded.
    fn max(timeout: Option<&'static str>, default: Option<Duration>) -> Option<Duration> {
        let headers = timeout.map(|text| (TIMEOUT, http::HeaderValue::from_static(text)));
        CallerDeadline::of(&headers.into_iter().collect(), default).max
    }

    #[test]
    fn a_deadline_leaves_time_for_the_answer_and_replaces_the_default() {
        let millis = |millis| Some(Duration::from_millis(millis));
        assert_eq!(max(Some("20m"), Some(DEFAULT_WAIT)), millis(15));
        assert_eq!(max(Some("250m"), Some(DEFAULT_WAIT)), millis(245));
        assert_eq!(max(Some("250m"), None), millis(245));
        assert_eq!(max(Some("3m"), None), millis(0), "it is decided at once");
        assert_eq!(max(None, Some(DEFAULT_WAIT)), millis(15));
        assert_eq!(max(Some("soon"), Some(DEFAULT_WAIT)), millis(15));
        assert_eq!(max(None, None), None);
    }
}
