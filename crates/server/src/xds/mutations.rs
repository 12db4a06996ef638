//! Hostile control planes: whatever bytes come, they are read or refused within 10 ms, and what is read
//! comes into force alike each time.

use tidegate_core::rules::{RuleSet, parse_with};
use tidegate_core::store::Abilities;
use tidegate_mutations::{Attack, Numbers, inputs};

use super::resource::domains;
use super::wire::{Answer, RESOURCE};
use crate::protobuf::Writer;

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

/// A domain of two levels, with everything that a node can have.
fn shop(w: &mut Writer<'_>) {
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

fn bare(w: &mut Writer<'_>) {
    w.bytes(2, b"bare");
    w.message(3, |w| w.bytes(1, b"k"));
}

fn answer(resources: &[&dyn Fn(&mut Writer<'_>)]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut w = Writer::to(&mut out);
    w.bytes(1, b"v1");
    for resource in resources {
        w.message(2, |w| {
            w.bytes(1, RESOURCE.as_bytes());
            w.message(2, resource);
        });
    }
    w.bytes(4, RESOURCE.as_bytes());
    w.bytes(5, b"nonce");
    out
}

fn read(message: &[u8]) -> Option<RuleSet> {
    let answer = Answer::read(message).ok()?;
    let domains = domains(&answer.resources).ok()?;
    parse_with(&[], &domains, Abilities::MEMORY).ok()
}

#[test]
fn no_resource_panics_takes_long_or_is_read_in_two_ways() {
    let corpus = [
        answer(&[&shop]),
        answer(&[&bare, &shop]),
        answer(&[&bare]),
        answer(&[]),
    ];
    let good: Vec<&[u8]> = corpus.iter().map(Vec::as_slice).collect();
    let attack = Attack {
        parser: "xds",
        seed: 0x0078_6473,
        inputs: inputs::XDS,
        good: &good,
        tokens: TOKENS,
        nests: &[],
        numbers: Numbers::Bytes,
        longest: 4_000,
    };
    let outcome = attack.run(
        |message| read(message).is_some(),
        |message| {
            let (set, again) = (read(message).unwrap(), read(message).unwrap());
            assert_eq!(format!("{:?}", set.rules()), format!("{:?}", again.rules()));
            let listing = |set: &RuleSet| set.listing_of_limits().to_string();
            assert_eq!(listing(&set), listing(&again));
        },
    );
    eprintln!("xds: {outcome:?}");
}
