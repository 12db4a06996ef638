//! The body of a check: one request or a list of them. Pure: no clock, no I/O, no limiter.
//!
//! `fast_json` parses the usual bodies and `json` all others, and only `json` reports errors. Requests borrow from the
//! body. Invariant: any input yields requests within the bounds below or one error that names the field. Nothing panics,
//! and no value is truncated, because two truncated clients could become one.

mod fast_json;
mod json;

use tidegate_rules::request::{Edge, Request};

use crate::decider::{CheckOptions, InputError};

pub(crate) use json::{AttributePairs, CostPairs, build_request, parse_costs, request_json};

/// Maximum attributes of a request.
pub(crate) const MAX_ATTRIBUTES: usize = 64;
/// Maximum length of the name of an attribute or a unit, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 128;
/// Maximum length of the value of an attribute, in bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 4096;
/// Maximum units in the costs of a request.
pub(crate) const MAX_COSTS: usize = 16;
/// Maximum requests in a list.
pub(crate) const MAX_ITEMS: usize = 1000;

/// One request of a check.
#[derive(Clone, Debug)]
pub(crate) struct CheckRequest<'a> {
    pub(crate) request: Request<'a>,
    pub(crate) options: CheckOptions,
}

/// Requests in order, and the options of each.
#[derive(Clone, Debug)]
pub(crate) struct CheckBatch<'a> {
    pub(crate) requests: Vec<Request<'a>>,
    pub(crate) options: Vec<CheckOptions>,
}

/// A request before its fields are parsed.
pub(crate) const EMPTY_REQUEST: Request<'_> = Request {
    edge: Edge::Http,
    ip: None,
    api_key: None,
    unlisted_key: None,
    attributes: Vec::new(),
    cost: None,
    costs: Vec::new(),
    max_delay: None,
    max_wait: None,
};

/// The content of a body.
#[derive(Clone, Debug)]
pub(crate) enum CheckBody<'a> {
    /// An object.
    One(Box<CheckRequest<'a>>),
    /// An array of objects.
    Many(CheckBatch<'a>),
}

/// Parses one request or a list of them.
pub(crate) fn parse_check(body: &[u8]) -> Result<CheckBody<'_>, InputError> {
    // A short request has about this many bytes.
    let expected_items = (body.len() / 64).min(MAX_ITEMS);
    let text = std::str::from_utf8(body).ok();
    match text.and_then(|text| fast_json::parse_check(text, expected_items)) {
        Some(parsed) => Ok(parsed),
        None => json::parse_check(body),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::decider::ChargeScope;
    use tidegate_core::units::Cost;
    use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

    fn parse_error(body: &str) -> String {
        let error = parse_check(body.as_bytes()).unwrap_err();
        assert!(error.reason.len() < 400, "{}", error.reason);
        format!("{}: {}", error.field, error.reason)
    }

    fn parse_one(body: &str) -> CheckRequest<'_> {
        match parse_check(body.as_bytes()) {
            Ok(CheckBody::One(check_request)) => *check_request,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_borrows_from_its_body() {
        let check_request = parse_one(
            r#"{"attributes": {"ip": "203.0.113.9", "api_key": "k1", "path": "/a", "q": "x\ny"},
                "cost": 3, "costs": {"tokens": 7, "none": 0}, "receipt": true}"#,
        );
        let request = check_request.request;
        assert_eq!(request.ip, Some("203.0.113.9".parse().unwrap()));
        assert!(matches!(request.attributes[0].1, Cow::Borrowed("/a")));
        assert_eq!(request.text("q"), Some("x\ny"));
        assert_eq!(request.cost.unwrap().get(), 3);
        let costs = [("tokens".into(), Cost::new(7)), ("none".into(), None)];
        assert_eq!(request.costs, costs, "a unit that costs 0 is not charged");
        assert!(check_request.options.receipt && check_request.options.scope == ChargeScope::All);
        let digest = request.api_key.unwrap().digest;
        assert_eq!(digest[..3], [0x6a, 0xb9, 0xf1], "sha256 of k1");
    }

    #[test]
    fn attributes_are_normalised() {
        for path in ["/login", "/login/?x=1", "//login", "/%6cogin", "/login\\u002f"] {
            let body = format!(
                r#"{{"attributes": {{"path": "{path}", "method": "post", "header.X-Team": "Red",
                    "host": "API.Example.com:443", "raw_path": "{path}"}}}}"#
            );
            let request = parse_one(&body).request;
            assert_eq!(request.text("path"), Some("/login"), "{path}");
            assert_eq!(request.text("method"), Some("POST"));
            assert_eq!(request.text("host"), Some("api.example.com"));
            assert_eq!(request.text("header.x-team"), Some("Red"));
            let raw = request.text("raw_path").unwrap().replace('/', "");
            assert_eq!(raw, path.replace(['/', '\\'], "").replace("u002f", ""));
        }
    }

    #[test]
    fn a_plain_cost_of_zero_does_not_affect_the_costs_of_units() {
        assert_eq!(parse_one(r#"{"cost": 0}"#).options.scope, ChargeScope::Units);
        assert_eq!(parse_one("{}").options.scope, ChargeScope::All);
        let both = parse_one(r#"{"cost": 0, "costs": {"t": 1}}"#);
        assert_eq!(both.options.scope, ChargeScope::Units);
        assert_eq!(both.request.costs[0].1, Cost::new(1));
    }

    #[test]
    fn every_error_names_its_field() {
        let long = "x".repeat(5_000);
        let many = (0..65).map(|i| format!(r#""a{i}":"v""#)).collect::<Vec<_>>().join(",");
        let cases = [
            ("", ": EOF while parsing a value"),
            ("7", ": invalid type: integer `7`, expected an object"),
            ("{} x", ": trailing characters"),
            (
                r#"{"attributes": {}, "cots": 1}"#,
                "cots: unknown field `cots`, expected one of `attributes`, `cost`, `costs`",
            ),
            (r#"{"ttl_ms": 1}"#, "ttl_ms: unknown field"),
            (r#"{"cost": 1, "cost": 1}"#, "cost: duplicate field"),
            (r#"{"cost": -1}"#, "cost: invalid type: integer `-1`, expected a whole number"),
            (r#"{"cost": 1.5}"#, "cost: invalid type: floating point `1.5`, expected a whole"),
            (r#"{"cost": "1"}"#, "cost: invalid type: string \"1\", expected a whole number"),
            (r#"{"cost": 18446744073709551616}"#, "cost: invalid type: floating point"),
            (r#"{"receipt": 1}"#, "receipt: invalid type: integer `1`, expected a boolean"),
            (r#"{"attributes": []}"#, "attributes: invalid type: sequence"),
            (r#"{"attributes": {"user": 7}}"#, "attributes.user: invalid type: integer `7`, expected a string"),
            (r#"{"attributes": {"user": {"a":[[[]]]}}}"#, "attributes.user: invalid type: map"),
            (r#"{"attributes": {"ip": "10.0.0.256"}}"#, "attributes.ip: "),
            (r#"{"attributes": {"ip": ""}}"#, "attributes.ip: "),
            (r#"{"attributes": {"a": "1", "a": "2"}}"#, "attributes.a: given twice"),
            (r#"{"attributes": {"a": "", "a": "2"}}"#, "attributes.a: given twice"),
            (r#"{"attributes": {"header.A": "1", "header.a": "2"}}"#, "attributes.header.a: given twice"),
            (r#"{"attributes": {"path": "/a/..;x/b"}}"#, "attributes.path: `..` beside `;`"),
            (r#"{"attributes": {"": "1"}}"#, "attributes.: a name has 1 to 128 bytes"),
            (&format!(r#"{{"attributes": {{"a": "{long}"}}}}"#), "attributes.a: a value has at most 4096"),
            (&format!(r#"{{"attributes": {{{many}}}}}"#), "attributes: more than 64"),
            (r#"{"costs": {"t": "x"}}"#, "costs.t: invalid type"),
            (r#"[{"cost": 1}, {"cost": null}]"#, "[1].cost: invalid type: null"),
            (r#"[{}, 7]"#, "[1]: invalid type"),
            (&format!("[{}{{}}]", "{},".repeat(1_000)), ": a list has at most 1000"),
            (&format!(r#"{{"{long}": 1}}"#), "xxx"),
            (&format!(r#"{{"cost": "{long}"}}"#), "cost: invalid type: string"),
        ];
        for (body, want) in cases {
            assert!(parse_error(body).starts_with(want), "{body:.60}\n gives {}", parse_error(body));
        }
    }

    const GOOD: &[&[u8]] = &[
        r#"[{"attributes": {"ip":"203.0.113.9"}, "cost": 10},{"receipt":false,"attributes":{"a":"éb"}}] "#.as_bytes(),
        br#"{"attributes":{"ip":"203.0.113.9","api_key":"k1","path":"/a"},"cost":1,"receipt":true}"#,
        br#"[{"attributes":{"ip":"::ffff:1.2.3.4","u":"\u00e9\ud83d\ude00"}},{"costs":{"tokens":1500}}]"#,
        br#"{"cost":18446744073709551615,"costs":{"a":1,"b":2},"attributes":{"x":"\"\\"}}"#,
    ];
    const TOKENS: &[&[u8]] = &[
        b"{",
        b"}",
        b"[",
        b"]",
        b"\"",
        b":",
        b",",
        b"\\",
        b"0",
        b"1",
        b"9",
        b".",
        b"-",
        b"+",
        b"e",
        b"E",
        b"true",
        b"false",
        b"null",
        b"u",
        b" ",
        b"\n",
        b"\0",
        b"\x7f",
        b"\xc3",
        b"\xff",
        b"\\u0000",
        b"\\ud800",
        b"\"ip\":",
        b"\"cost\":",
    ];
    const NESTS: &[(&[u8], &[u8])] = &[(b"[", b"]"), (b"{\"attributes\":", b"}"), (b"\"", b"\"")];

    /// Valid bodies with a few mutations each.
    #[test]
    fn no_body_panics_is_slow_or_differs_between_the_parsers() {
        let attack = FuzzTarget {
            parser: "http bodies",
            seed: 0x5eed,
            inputs: inputs::HTTP_BODIES,
            corpus: GOOD,
            tokens: TOKENS,
            delimiters: NESTS,
            numbers: NumberEncoding::Digits,
            max_len: 8_000,
        };
        let mut fast_count = 0;
        fn parse_fast(body: &[u8]) -> Option<CheckBody<'_>> {
            fast_json::parse_check(std::str::from_utf8(body).ok()?, 1)
        }
        let accepts = |body: &[u8]| {
            let (fast, all) = (parse_fast(body), json::parse_check(body));
            assert!(fast.is_none() || all.is_ok(), "{fast:?} but {all:?}");
            fast_count += u32::from(fast.is_some());
            all.is_ok()
        };
        let outcome = attack.run(accepts, |body| {
            if let Some(fast) = parse_fast(body) {
                let all = json::parse_check(body).unwrap();
                assert_eq!(format!("{fast:?}"), format!("{all:?}"));
            }
        });
        println!("{outcome:?}, {fast_count} as usual");
        assert!(fast_count > 5_000, "too wild to test much: {fast_count}");
    }
}
