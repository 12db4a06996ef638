//! Hostile requests: any bytes yield the same request as another decoder, and survive encoding and decoding.

use super::super::*;
use super::parse_request;
use crate::edges::envoy::frame;
use crate::edges::envoy::messages::{ProtoEntry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use prost::Message;
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};

const TOKENS: &[&[u8]] = &[
    b"\0",
    b"\x80",
    b"\xff",
    b"\x08",
    b"\x0a",
    b"\x0b",
    b"\x0d",
    b"\x10",
    b"\x12",
    b"\x18",
    b"\x1a",
    b"\x20\x01",
    b"\x1a\0",
    b"\x12\0",
    b"\x0a\x01k\x12\x01v",
    b"\x12\x04\x08\x05\x10\x02",
    b"\xc3\xa9",
    "\u{10ff80}".as_bytes(),
];

/// Encodes a request with another implementation.
pub(in crate::edges::envoy) fn encode(request: &EnvoyRequest<'_>) -> RateLimitRequest {
    let entry =
        |(key, value): &DescriptorEntry<'_>| ProtoEntry { key: (*key).to_owned(), value: value::tests::encode(value) };
    let own = |limit: DescriptorOverride| RateLimitOverride {
        requests_per_unit: limit.requests,
        unit: unit_number(limit.unit).into(),
    };
    let descriptor = |descriptor: &Descriptor<'_>| RateLimitDescriptor {
        entries: descriptor.entries.iter().map(entry).collect(),
        limit: descriptor.limit_override.map(own),
        hits_addend: match descriptor.hits {
            Hits::Charge(_) => None,
            Hits::Check => Some(0),
            Hits::Used(cost) | Hits::Refund(cost) => Some(cost.get()),
        },
        is_negative_hits: matches!(descriptor.hits, Hits::Refund(_)),
    };
    RateLimitRequest {
        domain: request.described.domain.to_owned(),
        descriptors: request.described.descriptors.iter().map(descriptor).collect(),
        hits_addend: request.hits_addend,
    }
}

fn corpus() -> Vec<Vec<u8>> {
    let entry = |key: &str, value: &str| ProtoEntry { key: key.to_owned(), value: value.into() };
    let usual = RateLimitDescriptor {
        entries: vec![entry("remote_address", "203.0.113.9"), entry("path", "/é")],
        ..Default::default()
    };
    let own = RateLimitDescriptor {
        entries: vec![entry("user", &"u".repeat(200))],
        limit: Some(RateLimitOverride { requests_per_unit: u32::MAX, unit: 7 }),
        hits_addend: Some(u64::MAX),
        is_negative_hits: true,
    };
    let nothing = RateLimitDescriptor { hits_addend: Some(0), ..Default::default() };
    let request = |descriptors: &[&RateLimitDescriptor], hits_addend| RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: descriptors.iter().map(|d| (*d).clone()).collect(),
        hits_addend,
    };
    [
        request(&[&usual], 0),
        request(&[&usual, &own, &nothing], 3),
        request(&[&own], u32::MAX),
        request(&[&usual; 16], 1),
    ]
    .map(|request| request.encode_to_vec())
    .to_vec()
}

#[test]
fn no_request_panics_is_slow_or_differs_between_decoders() {
    let corpus = corpus();
    let good: Vec<&[u8]> = corpus.iter().map(Vec::as_slice).collect();
    let attack = FuzzTarget {
        parser: "envoy requests",
        seed: 0x656e_766f,
        inputs: inputs::ENVOY_REQUESTS,
        corpus: &good,
        tokens: TOKENS,
        delimiters: &[],
        numbers: NumberEncoding::Varint,
        max_len: 8_000,
    };
    let accepts = |message: &[u8]| {
        // A frame header is any five bytes.
        let _ = frame::message(message);
        parse_request(message).is_ok()
    };
    attack.run(accepts, |message| {
        let others = RateLimitRequest::decode(message).unwrap();
        assert_eq!(parse_request(message).unwrap(), tests::expected(&others));
        let again = encode(&parse_request(message).unwrap()).encode_to_vec();
        assert_eq!(parse_request(&again).unwrap(), parse_request(message).unwrap());
    });
}
