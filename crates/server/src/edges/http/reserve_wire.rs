//! From the bytes of a body to a reservation or a settlement. Pure, and within the bounds of `wire`.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use tidegate::Actual;
use tidegate_core::request::Request;
use tidegate_core::store::Reserve;
use tidegate_core::units::{Cost, Nanos};

use super::read::{AttributesSeed, Costs, Text, Trace, Whole, charged};
use super::wire::{BLANK, BadInput, read};

/// How long a reservation lasts that does not say: longer than most calls to a language model take.
const USUAL: Nanos = Nanos::from_secs(60);

/// Of nothing nothing is charged, and then nothing when it is settled: whoever estimates 0 would have no limit.
const NO_ESTIMATE: &str = "an estimate is 1 or more";

/// A reservation as asked.
#[derive(Clone, Debug)]
pub(super) struct Reserving<'a> {
    /// The request, with the estimate as its cost.
    pub(super) request: Request<'a>,
    /// How long the estimate waits to be settled.
    pub(super) lasts: Nanos,
}

/// A settlement as asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Settling<'a> {
    /// What the reservation was answered with.
    pub(super) token: Cow<'a, str>,
    /// What was used.
    pub(super) actual: Actual,
}

/// Reads a body that holds a reservation.
pub(super) fn reserving(body: &[u8]) -> Result<Reserving<'_>, BadInput> {
    let trace = Trace::default();
    read(body, &trace, ReserveSeed(&trace))
}

/// Reads a body that holds a settlement.
pub(super) fn settling(body: &[u8]) -> Result<Settling<'_>, BadInput> {
    let trace = Trace::default();
    read(body, &trace, SettleSeed(&trace))
}

/// The number of a field among those that an object may have, each once.
fn field<E: Error>(
    trace: &Trace,
    names: &[&'static str],
    name: &str,
    seen: &mut u8,
    unknown: &str,
) -> Result<usize, E> {
    let Some(at) = names.iter().position(|known| *known == name) else {
        trace.at_unknown(name);
        return Err(E::custom(unknown));
    };
    trace.at(names[at]);
    if *seen & (1 << at) != 0 {
        return Err(E::custom("given twice"));
    }
    *seen |= 1 << at;
    Ok(at)
}

struct ReserveSeed<'t>(&'t Trace);

impl<'de> DeserializeSeed<'de> for ReserveSeed<'_> {
    type Value = Reserving<'de>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ReserveSeed<'_> {
    type Value = Reserving<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with attributes, cost, costs, expires_ms")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        const NAMES: [&str; 4] = ["attributes", "cost", "costs", "expires_ms"];
        const UNKNOWN: &str = "unknown field, write attributes, cost, costs or expires_ms";
        let ReserveSeed(trace) = self;
        let (mut request, mut lasts, mut seen) = (BLANK, USUAL, 0);
        while let Some(Text(name)) = map.next_key()? {
            match field(trace, &NAMES, &name, &mut seen, UNKNOWN)? {
                0 => map.next_value_seed(AttributesSeed(trace, &mut request))?,
                1 => {
                    request.cost = Cost::new(map.next_value_seed(Whole)?);
                    if request.cost.is_none() {
                        return Err(A::Error::custom(NO_ESTIMATE));
                    }
                }
                2 => {
                    let costs = map.next_value_seed(Costs(trace))?;
                    if let Some((unit, _)) = costs.iter().find(|(_, units)| *units == 0) {
                        trace.inside(unit);
                        return Err(A::Error::custom(NO_ESTIMATE));
                    }
                    request.costs = charged(costs);
                }
                _ => lasts = span(map.next_value_seed(Whole)?).map_err(A::Error::custom)?,
            }
            trace.at("");
        }
        Ok(Reserving { request, lasts })
    }
}

fn span(millis: u64) -> Result<Nanos, String> {
    let longest = Reserve::LONGEST.millis_up();
    match millis {
        1.. if millis <= longest => Ok(Nanos::from_millis(millis)),
        _ => Err(format!("a reservation lasts 1 to {longest} milliseconds")),
    }
}

struct SettleSeed<'t>(&'t Trace);

impl<'de> DeserializeSeed<'de> for SettleSeed<'_> {
    type Value = Settling<'de>;

    fn deserialize<D: Deserializer<'de>>(self, source: D) -> Result<Self::Value, D::Error> {
        source.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for SettleSeed<'_> {
    type Value = Settling<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a reservation, cost, costs")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        const NAMES: [&str; 3] = ["reservation", "cost", "costs"];
        const UNKNOWN: &str = "unknown field, write reservation, cost or costs";
        let SettleSeed(trace) = self;
        let (mut token, mut actual, mut seen) = (None, Actual::default(), 0);
        while let Some(Text(name)) = map.next_key()? {
            match field(trace, &NAMES, &name, &mut seen, UNKNOWN)? {
                0 => {
                    let Text(text) = map.next_value()?;
                    token = Some(text);
                }
                1 => actual.cost = Some(map.next_value_seed(Whole)?),
                _ => {
                    let costs = map.next_value_seed(Costs(trace))?.into_iter();
                    let costs = costs.map(|(unit, used)| (unit.into_owned(), used));
                    actual.costs = costs.collect();
                }
            }
            trace.at("");
        }
        trace.at("reservation");
        let token = token.ok_or_else(|| A::Error::custom("missing"))?;
        Ok(Settling { token, actual })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_mutations::{Attack, Numbers, inputs};

    #[track_caller]
    fn check(fault: Option<BadInput>, want: &str) {
        let told = fault.map(|fault| format!("{}: {}", fault.field, fault.reason));
        let told = told.unwrap_or_default();
        assert!(told.starts_with(want) && !told.is_empty(), "{told}");
    }

    #[test]
    fn a_reservation_is_a_request_with_an_end() {
        let body = br#"{"attributes": {"user": "ada"}, "cost": 2, "costs": {"tokens": 1500},
                        "expires_ms": 5000}"#;
        let asked = reserving(body).unwrap();
        assert_eq!(asked.request.text("user"), Some("ada"));
        assert_eq!(asked.request.cost, Cost::new(2));
        assert_eq!(asked.request.costs[0].1, Cost::new(1500));
        assert_eq!(asked.lasts, Nanos::from_secs(5));
        assert_eq!(reserving(b"{}").unwrap().lasts, USUAL);
    }

    #[test]
    fn a_settlement_may_be_of_nothing_and_leave_out_what_it_does_not_know() {
        let asked = settling(br#"{"reservation": "ab", "costs": {"tokens": 0, "a": 7}}"#).unwrap();
        assert_eq!(asked.token, "ab");
        let want = Actual::of("tokens", 0).and("a", 7);
        assert_eq!(asked.actual, want);
    }

    #[test]
    fn every_fault_names_its_field() {
        for (body, want) in [
            ("", ": EOF"),
            ("[]", ": invalid type: sequence"),
            (r#"{"cost": 0}"#, "cost: an estimate is 1 or more"),
            (
                r#"{"costs": {"t": 1, "tokens": 0}}"#,
                "costs.tokens: an estimate is 1 or more",
            ),
            (r#"{"expires_ms": 0}"#, "expires_ms: a reservation lasts 1"),
            (
                r#"{"expires_ms": 3600001}"#,
                "expires_ms: a reservation lasts 1 to 3600000",
            ),
            (
                r#"{"expires_ms": 1, "expires_ms": 1}"#,
                "expires_ms: given twice",
            ),
            (r#"{"receipt": true}"#, "receipt: unknown field"),
            (r#"{"costs": {"t": -1}}"#, "costs.t: invalid value"),
        ] {
            check(reserving(body.as_bytes()).err(), want);
        }
        for (body, want) in [
            ("{}", "reservation: missing"),
            (r#"{"reservation": 1}"#, "reservation: invalid type"),
            (r#"{"reservation": "a", "cost": 1.5}"#, "cost: invalid type"),
            (
                r#"{"reservation": "a", "costs": {"t": 1, "t": 1}}"#,
                "costs.t: given twice",
            ),
            (
                r#"{"reservation": "a", "expires_ms": 1}"#,
                "expires_ms: unknown",
            ),
        ] {
            check(settling(body.as_bytes()).err(), want);
        }
    }

    #[test]
    fn no_body_panics_or_takes_long() {
        let attack = Attack {
            parser: "reservation bodies",
            seed: 0x5e771e,
            inputs: inputs::HTTP_RESERVATIONS,
            good: &[
                br#"{"attributes":{"user":"ada"},"cost":1,"costs":{"tokens":1500},"expires_ms":60000}"#,
                br#"{"reservation":"02abcdef","cost":0,"costs":{"tokens":1234,"images":2}}"#,
                br#"{"costs":{"a":1},"attributes":{"x":"\u00e9"}}"#,
            ],
            tokens: &[
                b"{", b"}", b"[", b"]", b"\"", b":", b",", b"\\", b"0", b"-", b".", b"e", b"null",
                b"\xff", b"\\ud800", b"\"cost\":", b"\"reservation\":", b"\"expires_ms\":",
            ],
            nests: &[(b"[", b"]"), (b"{\"costs\":", b"}")],
            numbers: Numbers::Digits,
            longest: 8_000,
        };
        let accepts = |body: &[u8]| reserving(body).is_ok() | settling(body).is_ok();
        let outcome = attack.run(accepts, |_| {});
        println!("{outcome:?}");
    }
}
