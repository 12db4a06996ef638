//! Hostile control planes: any bytes are decoded or rejected within 10 ms, and decoded resources yield the same rules
//! each time.

use tidegate_core::store::Capabilities;
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};
use tidegate_rules::{RuleSet, parse_with_domains};

use super::super::resource::decode_domains;
use super::super::wire::{DiscoveryResponse, RESOURCE_TYPE};
use crate::protobuf::ProtobufWriter;

const TOKENS: &[&[u8]] = &[
    b"\0",
    b"\x80",
    b"\xff",
    b"\x0a",
    b"\x12",
    b"\x1a",
    b"\x22",
    b"\x28\x01",
    b"\x38\x01",
    b"\x42\0",
    b"\x0a\x01k",
    b"\x12\x01v",
    b"\x1a\x04\x08\x02\x10\x05",
    b"\x1a\x02\x18\x01",
    b"\xc3\xa9",
];

/// A domain of two levels, with every field of a node.
fn shop(w: &mut ProtobufWriter<'_>) {
    w.bytes(1, b"shop");
    w.bytes(2, b"shop");
    w.message(3, |w| {
        w.bytes(1, b"user");
        w.message(3, |w| {
            w.uint(1, 2);
            w.uint(2, 5);
            w.bytes(4, b"minutely");
            w.message(5, |w| w.bytes(1, b"other"));
        });
        w.message(4, |w| {
            w.bytes(1, b"path");
            w.bytes(2, b"/a*");
            w.message(3, |w| w.uint(3, 1));
            w.uint(5, 1);
        });
        w.message(8, |w| {
            w.message(1, |w| {
                w.bytes(1, b"n");
                w.message(2, |w| w.double(2, 1.5));
            });
        });
    });
}

fn bare(w: &mut ProtobufWriter<'_>) {
    w.bytes(2, b"bare");
    w.message(3, |w| w.bytes(1, b"k"));
}

fn encode_response(resources: &[&dyn Fn(&mut ProtobufWriter<'_>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut w = ProtobufWriter::to(&mut out);
    w.bytes(1, b"v1");
    for resource in resources {
        w.message(2, |w| {
            w.bytes(1, RESOURCE_TYPE.as_bytes());
            w.message(2, resource);
        });
    }
    w.bytes(4, RESOURCE_TYPE.as_bytes());
    w.bytes(5, b"nonce");
    out
}

fn parse_rules(message: &[u8]) -> Option<RuleSet> {
    let response = DiscoveryResponse::decode(message).ok()?;
    let domains = decode_domains(&response.resources).ok()?;
    parse_with_domains(&[], &domains, Capabilities::MEMORY).ok()
}

#[test]
fn no_resource_panics_is_slow_or_decodes_in_two_ways() {
    let corpus =
        [encode_response(&[&shop]), encode_response(&[&bare, &shop]), encode_response(&[&bare]), encode_response(&[])];
    let good: Vec<&[u8]> = corpus.iter().map(Vec::as_slice).collect();
    let attack = FuzzTarget {
        parser: "xds",
        seed: 0x0078_6473,
        inputs: inputs::XDS,
        corpus: &good,
        tokens: TOKENS,
        delimiters: &[],
        numbers: NumberEncoding::Varint,
        max_len: 4_000,
    };
    let outcome = attack.run(
        |message| parse_rules(message).is_some(),
        |message| {
            let (set, again) = (parse_rules(message).unwrap(), parse_rules(message).unwrap());
            assert_eq!(format!("{:?}", set.rules()), format!("{:?}", again.rules()));
            let listing = |set: &RuleSet| set.config_dump().to_string();
            assert_eq!(listing(&set), listing(&again));
        },
    );
    eprintln!("xds: {outcome:?}");
}
