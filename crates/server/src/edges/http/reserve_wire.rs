//! Parses a body into a reservation or a settlement. Pure, and within the bounds of `wire`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use tidegate::Actual;
use tidegate_core::store::Reserve;
use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::request::Request;

use super::json::{AttributesSeed, CostsSeed, JsonText, Trace, WholeNumberSeed, to_costs};
use super::wire::{EMPTY_REQUEST, InputError, parse};

/// The default TTL of a reservation: longer than most calls to a language model take.
const DEFAULT_TTL: Nanos = Nanos::from_secs(60);

/// An estimate of 0 charges nothing, now or at the settlement: a client that estimates 0 would have no limit.
const ZERO_ESTIMATE: &str = "an estimate is 1 or more";

/// The body of a reservation.
#[derive(Clone, Debug)]
pub(super) struct ReserveBody<'a> {
    /// The request, with the estimate as its cost.
    pub(super) request: Request<'a>,
    /// How long the reservation waits to be settled.
    pub(super) ttl: Nanos,
}

/// The body of a settlement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SettleBody<'a> {
    /// The token from the response to the reservation.
    pub(super) token: Cow<'a, str>,
    /// The actual cost.
    pub(super) actual: Actual,
}

pub(super) fn parse_reserve(body: &[u8]) -> Result<ReserveBody<'_>, InputError> {
    let trace = Trace::default();
    parse(body, &trace, ReserveSeed(&trace))
}

pub(super) fn parse_settle(body: &[u8]) -> Result<SettleBody<'_>, InputError> {
    let trace = Trace::default();
    parse(body, &trace, SettleSeed(&trace))
}

/// The index of a field in `names`. Each field may occur once.
fn field_index<E: Error>(
    trace: &Trace,
    names: &[&'static str],
    name: &str,
    seen: &mut u8,
    unknown: &str,
) -> Result<usize, E> {
    let Some(at) = names.iter().position(|known| *known == name) else {
        trace.set_unknown_field(name);
        return Err(E::custom(unknown));
    };
    trace.set_field(names[at]);
    if *seen & (1 << at) != 0 {
        return Err(E::custom("given twice"));
    }
    *seen |= 1 << at;
    Ok(at)
}

struct ReserveSeed<'t>(&'t Trace);

impl<'de> DeserializeSeed<'de> for ReserveSeed<'_> {
    type Value = ReserveBody<'de>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ReserveSeed<'_> {
    type Value = ReserveBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with attributes, cost, costs, expires_ms")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        const NAMES: [&str; 4] = ["attributes", "cost", "costs", "expires_ms"];
        const UNKNOWN: &str = "unknown field, write attributes, cost, costs or expires_ms";
        let ReserveSeed(trace) = self;
        let (mut request, mut ttl, mut seen) = (EMPTY_REQUEST, DEFAULT_TTL, 0);
        while let Some(JsonText(name)) = map.next_key()? {
            match field_index(trace, &NAMES, &name, &mut seen, UNKNOWN)? {
                0 => map.next_value_seed(AttributesSeed(trace, &mut request))?,
                1 => {
                    request.cost = Cost::new(map.next_value_seed(WholeNumberSeed)?);
                    if request.cost.is_none() {
                        return Err(A::Error::custom(ZERO_ESTIMATE));
                    }
                }
                2 => {
                    let costs = map.next_value_seed(CostsSeed(trace))?;
                    if let Some((unit, _)) = costs.iter().find(|(_, units)| *units == 0) {
                        trace.set_key(unit);
                        return Err(A::Error::custom(ZERO_ESTIMATE));
                    }
                    request.costs = to_costs(costs);
                }
                _ => ttl = parse_ttl(map.next_value_seed(WholeNumberSeed)?).map_err(A::Error::custom)?,
            }
            trace.set_field("");
        }
        Ok(ReserveBody { request, ttl })
    }
}

fn parse_ttl(millis: u64) -> Result<Nanos, String> {
    let max = Reserve::MAX_TTL.millis_up();
    match millis {
        1.. if millis <= max => Ok(Nanos::from_millis(millis)),
        _ => Err(format!("a reservation lasts 1 to {max} milliseconds")),
    }
}

struct SettleSeed<'t>(&'t Trace);

impl<'de> DeserializeSeed<'de> for SettleSeed<'_> {
    type Value = SettleBody<'de>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SettleSeed<'_> {
    type Value = SettleBody<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a reservation, cost, costs")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        const NAMES: [&str; 3] = ["reservation", "cost", "costs"];
        const UNKNOWN: &str = "unknown field, write reservation, cost or costs";
        let SettleSeed(trace) = self;
        let (mut token, mut actual, mut seen) = (None, Actual::default(), 0);
        while let Some(JsonText(name)) = map.next_key()? {
            match field_index(trace, &NAMES, &name, &mut seen, UNKNOWN)? {
                0 => {
                    let JsonText(text) = map.next_value()?;
                    token = Some(text);
                }
                1 => actual.cost = Some(map.next_value_seed(WholeNumberSeed)?),
                _ => {
                    let costs = map.next_value_seed(CostsSeed(trace))?.into_iter();
                    let costs = costs.map(|(unit, used)| (unit.into_owned(), used));
                    actual.costs = costs.collect();
                }
            }
            trace.set_field("");
        }
        trace.set_field("reservation");
        let token = token.ok_or_else(|| A::Error::custom("missing"))?;
        Ok(SettleBody { token, actual })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

    #[track_caller]
    fn check(error: Option<InputError>, want: &str) {
        let message = error.map(|error| format!("{}: {}", error.field, error.reason));
        let message = message.unwrap_or_default();
        assert!(message.starts_with(want) && !message.is_empty(), "{message}");
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
        assert_eq!(parse_reserve(b"{}").unwrap().ttl, DEFAULT_TTL);
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
            (r#"{"expires_ms": 1, "expires_ms": 1}"#, "expires_ms: given twice"),
            (r#"{"receipt": true}"#, "receipt: unknown field"),
            (r#"{"costs": {"t": -1}}"#, "costs.t: invalid value"),
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
            ],
            delimiters: &[(b"[", b"]"), (b"{\"costs\":", b"}")],
            numbers: NumberEncoding::Digits,
            max_len: 8_000,
        };
        let accepts = |body: &[u8]| parse_reserve(body).is_ok() | parse_settle(body).is_ok();
        let outcome = attack.run(accepts, |_| {});
        println!("{outcome:?}");
    }
}
