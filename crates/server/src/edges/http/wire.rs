//! The bodies of the routes besides checks: permits, receipts, reservations and settlements. Pure, within the bounds of
//! `check_body`.

use std::borrow::Cow;

use serde::Deserialize;
use tidegate::{Actual, DEFAULT_PERMIT_TTL};
use tidegate_core::units::Nanos;
use tidegate_rules::request::Request;

use crate::decider::{InputError, MAX_RESERVATION_TTL};
use crate::edges::common::check_body::{CostPairs, build_request, parse_costs, request_json};
use crate::edges::common::json::{Text, WholeNumber, given, parse_object};

/// The TTL of a permit, in milliseconds: longer than a few round trips, and not longer than an operator would wait for
/// the permits of a caller that died.
pub(crate) const TTL_RANGE_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// The default TTL of a reservation: longer than most calls to a language model take.
const DEFAULT_RESERVATION_TTL: Nanos = Nanos::from_secs(60);

/// An estimate of 0 charges nothing, now or at the settlement: a client that estimates 0 would have no limit.
const ZERO_ESTIMATE: &str = "an estimate is 1 or more";

/// The body of a request for a permit or a reservation.
#[derive(Clone, Debug)]
pub(super) struct TimedRequest<'a> {
    /// The request. The cost of a reservation is the estimate.
    pub(super) request: Request<'a>,
    /// How long the permit lasts unless it is renewed, or the reservation waits to be settled.
    pub(super) ttl: Nanos,
    /// Whether the caller wants a receipt. Never for a reservation.
    pub(super) receipt: bool,
}

/// The body of a settlement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SettleBody<'a> {
    /// The token from the response to the reservation.
    pub(super) token: Cow<'a, str>,
    /// The actual cost.
    pub(super) actual: Actual,
}

request_json!(AcquireJson {
    #[serde(default)]
    receipt: bool,
    #[serde(default, deserialize_with = "given")]
    ttl_ms: Option<WholeNumber>,
});

request_json!(ReserveJson {
    #[serde(default, deserialize_with = "given")]
    expires_ms: Option<WholeNumber>,
});

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleJson<'a> {
    #[serde(borrow)]
    reservation: Text<'a>,
    #[serde(default, deserialize_with = "given")]
    cost: Option<WholeNumber>,
    #[serde(borrow, default)]
    costs: CostPairs<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiptJson<'a> {
    #[serde(borrow)]
    receipt: Text<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PermitJson<'a> {
    #[serde(borrow)]
    permit: Text<'a>,
}

/// Parses a request for a permit.
pub(super) fn parse_acquire(body: &[u8]) -> Result<TimedRequest<'_>, InputError> {
    let AcquireJson { attributes, cost, costs, receipt, ttl_ms } = parse_object(body)?;
    let cost = cost.map(|WholeNumber(cost)| cost);
    if cost == Some(0) {
        return Err(InputError::new("cost", "a permit costs 1 or more"));
    }
    let millis = ttl_ms.map_or(Nanos::from(DEFAULT_PERMIT_TTL).millis_up(), |WholeNumber(millis)| millis);
    if !TTL_RANGE_MS.contains(&millis) {
        let (min, max) = TTL_RANGE_MS.into_inner();
        let reason = format!("{millis} is not a valid TTL of a permit, write {min} to {max}");
        return Err(InputError::new("ttl_ms", reason));
    }
    Ok(TimedRequest { request: build_request(attributes, cost, costs)?, ttl: Nanos::from_millis(millis), receipt })
}

/// Parses a request for a reservation.
pub(super) fn parse_reserve(body: &[u8]) -> Result<TimedRequest<'_>, InputError> {
    let ReserveJson { attributes, cost, costs, expires_ms } = parse_object(body)?;
    let cost = cost.map(|WholeNumber(cost)| cost);
    let request = build_request(attributes, cost, costs)?;
    if cost == Some(0) {
        return Err(InputError::new("cost", ZERO_ESTIMATE));
    }
    if let Some((unit, _)) = request.costs.iter().find(|(_, units)| units.is_none()) {
        return Err(InputError::new(&**unit, ZERO_ESTIMATE).inside("costs"));
    }
    let max = MAX_RESERVATION_TTL.millis_up();
    let ttl = match expires_ms {
        None => DEFAULT_RESERVATION_TTL,
        Some(WholeNumber(millis)) if (1..=max).contains(&millis) => Nanos::from_millis(millis),
        Some(_) => return Err(InputError::new("expires_ms", format!("a reservation lasts 1 to {max} milliseconds"))),
    };
    Ok(TimedRequest { request, ttl, receipt: false })
}

/// Parses a settlement.
pub(super) fn parse_settle(body: &[u8]) -> Result<SettleBody<'_>, InputError> {
    let SettleJson { reservation: Text(token), cost, costs } = parse_object(body)?;
    let costs = parse_costs(costs)?.into_iter().map(|(unit, used)| (unit.into_owned(), used));
    let actual = Actual { cost: cost.map(|WholeNumber(cost)| cost), costs: costs.collect() };
    Ok(SettleBody { token, actual })
}

/// Parses `{"receipt": "..."}`.
pub(super) fn parse_receipt(body: &[u8]) -> Result<Cow<'_, str>, InputError> {
    parse_object(body).map(|ReceiptJson { receipt: Text(receipt) }| receipt)
}

/// Parses `{"permit": "..."}`.
pub(super) fn parse_permit(body: &[u8]) -> Result<Cow<'_, str>, InputError> {
    parse_object(body).map(|PermitJson { permit: Text(permit) }| permit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::Cost;
    use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

    #[track_caller]
    fn check(error: Option<InputError>, want: &str) {
        let message = error.map(|error| format!("{}: {}", error.field, error.reason));
        let message = message.unwrap_or_default();
        assert!(message.starts_with(want) && !message.is_empty(), "{message}");
    }

    #[test]
    fn a_receipt_is_text_in_an_object() {
        assert_eq!(parse_receipt(br#"{"receipt": "abc"}"#).unwrap(), "abc");
        for body in ["{}", r#"{"receipt": 1}"#, r#"{"receipt": "a", "x": 1}"#, "[]", ""] {
            assert!(parse_receipt(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn an_acquired_permit_has_a_ttl() {
        let parsed = parse_acquire(br#"{"attributes": {"user": "ada"}, "ttl_ms": 2500, "receipt": true}"#);
        let parsed = parsed.unwrap();
        assert_eq!(parsed.ttl, Nanos::from_millis(2_500));
        assert_eq!((parsed.request.text("user"), parsed.receipt), (Some("ada"), true));
        assert_eq!(parse_acquire(b"{}").unwrap().ttl, Nanos::from_secs(10));
        for (body, want) in [
            (r#"{"ttl_ms": 99}"#, "ttl_ms: 99 is not a valid TTL of a permit"),
            (r#"{"ttl_ms": 3600001}"#, "ttl_ms: 3600001 is not a valid TTL"),
            (r#"{"ttl_ms": "1"}"#, "ttl_ms: invalid type: string"),
            (r#"{"ttl_ms": 100, "ttl_ms": 100}"#, "ttl_ms: duplicate field"),
            (r#"{"ttl": 100}"#, "ttl: unknown field `ttl`, expected one of `attributes`"),
            (r#"{"cost": 0}"#, "cost: a permit costs 1 or more"),
            ("[{}]", ": invalid type: sequence, expected an object"),
            ("{} {}", ": trailing characters"),
        ] {
            let error = parse_acquire(body.as_bytes()).unwrap_err();
            let message = format!("{}: {}", error.field, error.reason);
            assert!(message.starts_with(want), "{body} gives {message}");
        }
        assert_eq!(parse_permit(br#"{"permit": "abc"}"#).unwrap(), "abc");
        assert!(parse_permit(br#"{"receipt": "abc"}"#).is_err());
    }

    #[test]
    fn a_reservation_is_a_request_with_a_ttl() {
        let body = br#"{"attributes": {"user": "ada"}, "cost": 2, "costs": {"tokens": 1500},
                        "expires_ms": 5000}"#;
        let parsed = parse_reserve(body).unwrap();
        assert_eq!(parsed.request.text("user"), Some("ada"));
        assert_eq!(parsed.request.cost, Cost::new(2));
        assert_eq!(parsed.request.costs[0].1, Cost::new(1500));
        assert_eq!(parsed.ttl, Nanos::from_secs(5));
        assert_eq!(parse_reserve(b"{}").unwrap().ttl, DEFAULT_RESERVATION_TTL);
    }

    #[test]
    fn a_settlement_may_be_zero_and_may_leave_out_units() {
        let parsed = parse_settle(br#"{"reservation": "ab", "costs": {"tokens": 0, "a": 7}}"#).unwrap();
        assert_eq!(parsed.token, "ab");
        let want = Actual::of("tokens", 0).and("a", 7);
        assert_eq!(parsed.actual, want);
    }

    #[test]
    fn every_error_names_its_field() {
        for (body, want) in [
            ("", ": EOF"),
            ("[]", ": invalid type: sequence"),
            (r#"{"cost": 0}"#, "cost: an estimate is 1 or more"),
            (r#"{"costs": {"t": 1, "tokens": 0}}"#, "costs.tokens: an estimate is 1 or more"),
            (r#"{"expires_ms": 0}"#, "expires_ms: a reservation lasts 1"),
            (r#"{"expires_ms": 3600001}"#, "expires_ms: a reservation lasts 1 to 3600000"),
            (r#"{"expires_ms": 1, "expires_ms": 1}"#, "expires_ms: duplicate field"),
            (r#"{"receipt": true}"#, "receipt: unknown field"),
            (r#"{"costs": {"t": -1}}"#, "costs.t: invalid type: integer `-1`, expected a whole number"),
        ] {
            check(parse_reserve(body.as_bytes()).err(), want);
        }
        for (body, want) in [
            ("{}", "reservation: missing"),
            (r#"{"reservation": 1}"#, "reservation: invalid type"),
            (r#"{"reservation": "a", "cost": 1.5}"#, "cost: invalid type"),
            (r#"{"reservation": "a", "costs": {"t": 1, "t": 1}}"#, "costs.t: given twice"),
            (r#"{"reservation": "a", "expires_ms": 1}"#, "expires_ms: unknown"),
        ] {
            check(parse_settle(body.as_bytes()).err(), want);
        }
    }

    #[test]
    fn no_body_panics_or_is_slow() {
        let attack = FuzzTarget {
            parser: "reservation bodies",
            seed: 0x5e771e,
            inputs: inputs::HTTP_RESERVATIONS,
            corpus: &[
                br#"{"attributes":{"user":"ada"},"cost":1,"costs":{"tokens":1500},"expires_ms":60000}"#,
                br#"{"reservation":"02abcdef","cost":0,"costs":{"tokens":1234,"images":2}}"#,
                br#"{"costs":{"a":1},"attributes":{"x":"\u00e9"}}"#,
                br#"{"attributes":{"user":"ada"},"ttl_ms":10000,"cost":3}"#,
                br#"{"receipt":"AAAA"}"#,
                br#"{"permit":"73AA"}"#,
            ],
            tokens: &[
                b"{",
                b"}",
                b"[",
                b"]",
                b"\"",
                b":",
                b",",
                b"\\",
                b"0",
                b"-",
                b".",
                b"e",
                b"null",
                b"\xff",
                b"\\ud800",
                b"\"cost\":",
                b"\"reservation\":",
                b"\"expires_ms\":",
                b"\"ttl_ms\":",
            ],
            delimiters: &[(b"[", b"]"), (b"{\"costs\":", b"}")],
            numbers: NumberEncoding::Digits,
            max_len: 8_000,
        };
        let accepts = |body: &[u8]| {
            let open = parse_acquire(body).map(|parsed| parsed.ttl.millis_up());
            assert!(open.as_ref().map_or(true, |millis| TTL_RANGE_MS.contains(millis)));
            let text = parse_receipt(body).is_ok() | parse_permit(body).is_ok();
            parse_reserve(body).is_ok() | parse_settle(body).is_ok() | open.is_ok() | text
        };
        let outcome = attack.run(accepts, |_| {});
        println!("{outcome:?}");
    }
}
