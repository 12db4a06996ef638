//! Hostile JSON: any text that parses yields the same request as the corresponding Protocol Buffers message.

use super::super::*;
use super::parse_request;
use crate::edges::envoy::wire::tests;
use crate::edges::envoy::wire::tests::mutations::encode;
use prost::Message;
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

const GOOD: &[&[u8]] = &[
    br#"{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"b"}]}]}"#,
    br#"{"domain":"shop","hits_addend":"3","descriptors":[{"entries":[{"key":"a","value":"b"}],"limit":null},
        {"limit":{"requests_per_unit":5.0,"unit":7},"hits_addend":7,"is_negative_hits":true}]}"#,
    br#"{"domain":"s\u00e9","hitsAddend":1e3,"descriptors":[{"limit":{"requestsPerUnit":5,"unit":"WEEK"}},
        {"entries":[{"key":"remote_address"},{"value":"\ud83d\ude00"}],"isNegativeHits":false}]}"#,
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
    b"null",
    b"true",
    b"1e3",
    b"-",
    b".5",
    b" ",
    b"\0",
    b"\xff",
    b"\\ud800",
    b"\"entries\":",
    b"\"limit\":",
    b"\"unit\":",
    b"\"YEAR\"",
    b"\"hitsAddend\":",
];

fn parse_json(text: &[u8]) -> Option<Value> {
    serde_json::from_slice(text).ok()
}

#[test]
fn no_json_panics_is_slow_or_differs_from_its_message() {
    let attack = FuzzTarget {
        parser: "envoy json",
        seed: 0x6a73_6f6e,
        inputs: inputs::ENVOY_JSON,
        corpus: GOOD,
        tokens: TOKENS,
        delimiters: &[(b"[", b"]"), (b"{\"a\":", b"}"), (b"\"", b"\"")],
        numbers: NumberEncoding::Digits,
        max_len: 8_000,
    };
    let accepts = |text: &[u8]| parse_json(text).is_some_and(|value| parse_request(&value).is_ok());
    attack.run(accepts, |text| {
        let value = parse_json(text).unwrap();
        let bytes = encode(&parse_request(&value).unwrap()).encode_to_vec();
        assert_eq!(tests::parse_request(&bytes).unwrap(), parse_request(&value).unwrap());
    });
}
