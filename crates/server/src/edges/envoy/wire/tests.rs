pub(in crate::edges::envoy) mod mutations;

use super::*;
use crate::edges::envoy::messages::{ProtoEntry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use crate::protobuf::ProtobufWriter;
use prost::Message;

pub(in crate::edges::envoy) fn parse_request(message: &[u8]) -> Result<EnvoyRequest<'_>, EnvoyError> {
    super::parse_request(message, 16)
}

/// The request that a message of another encoder must yield.
pub(super) fn expected(message: &RateLimitRequest) -> EnvoyRequest<'_> {
    let descriptor = |d: &RateLimitDescriptor| {
        let own = OwnHits { addend: d.hits_addend, is_negative: d.is_negative_hits };
        let limit = |limit: &RateLimitOverride| DescriptorOverride {
            requests: limit.requests_per_unit,
            unit: unit(u64::try_from(limit.unit).unwrap()).unwrap(),
        };
        (own, d.limit.as_ref().map(limit))
    };
    let read = message.descriptors.iter().map(|d| {
        let (own, limit) = descriptor(d);
        let entries = d.entries.iter();
        Descriptor {
            entries: entries.map(|e| (&*e.key, value::decode(&e.value))).collect(),
            limit_override: limit,
            hits: hits(own, message.hits_addend),
        }
    });
    EnvoyRequest {
        described: DescribedRequest { domain: &message.domain, descriptors: read.collect() },
        hits_addend: message.hits_addend,
    }
}

fn entry(key: &str, value: &str) -> ProtoEntry {
    ProtoEntry { key: key.to_owned(), value: value.into() }
}

fn one(entries: &[(&str, &str)]) -> RateLimitRequest {
    let entries = entries.iter().map(|(key, value)| entry(key, value));
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![RateLimitDescriptor { entries: entries.collect(), ..Default::default() }],
        hits_addend: 0,
    }
}

/// A small pseudo-random generator: the same numbers every time.
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, max: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % max as u64) as usize
    }
}

fn random(rng: &mut XorShift) -> RateLimitRequest {
    const TEXTS: [&str; 5] = ["a", "", "remote_address", "203.0.113.9", "überall"];
    let mut descriptors = Vec::new();
    for _ in 0..=rng.below(6) {
        let entries = (0..rng.below(6)).map(|_| entry(TEXTS[rng.below(5)], TEXTS[rng.below(5)])).collect();
        let limit = (rng.below(3) == 0)
            .then(|| RateLimitOverride { requests_per_unit: rng.below(1 << 32) as u32, unit: 1 + rng.below(7) as i32 });
        let hits = [0, 1, 300, usize::MAX][rng.below(4)] as u64;
        descriptors.push(RateLimitDescriptor {
            entries,
            limit,
            hits_addend: (rng.below(3) == 0).then_some(hits),
            is_negative_hits: rng.below(4) == 0,
        });
    }
    RateLimitRequest {
        domain: "x".repeat(1 + rng.below(200)),
        descriptors,
        hits_addend: [0, 1, 7, u32::MAX][rng.below(4)],
    }
}

#[test]
fn messages_of_another_encoder_are_decoded_alike() {
    let mut rng = XorShift(0x5eed);
    for _ in 0..20_000 {
        let message = random(&mut rng);
        let bytes = message.encode_to_vec();
        assert_eq!(parse_request(&bytes).unwrap(), expected(&message));
    }
}

#[test]
fn hits_are_the_descriptors_own_or_those_of_the_request() {
    let cost = |n| Cost::new(n).unwrap();
    let check = |addend, is_negative, of_request, want| {
        let own = OwnHits { addend, is_negative };
        assert_eq!(hits(own, of_request), want);
    };
    check(None, false, 0, Hits::Charge(cost(1)));
    check(None, false, 5, Hits::Charge(cost(5)));
    check(Some(0), false, 5, Hits::Check);
    check(Some(3), false, 5, Hits::Used(cost(3)));
    check(Some(3), true, 5, Hits::Refund(cost(3)));
    check(None, true, 5, Hits::Refund(cost(5)));
    check(Some(0), true, 5, Hits::Check);
}

#[test]
fn every_unit_has_its_number() {
    let numbers = Unit::ALL.map(unit_number);
    assert_eq!(numbers, [1, 2, 3, 4, 7, 5, 6]);
    for known in Unit::ALL {
        assert_eq!(unit(unit_number(known).into()), Some(known));
    }
    assert_eq!((unit(0), unit(8)), (None, None));
}

fn parse_error(message: &RateLimitRequest) -> String {
    parse_request(&message.encode_to_vec()).unwrap_err().to_string()
}

#[test]
fn a_request_needs_a_domain_descriptors_and_a_known_unit() {
    let nameless = RateLimitRequest { domain: String::new(), ..one(&[("a", "b")]) };
    assert_eq!(parse_error(&nameless), "rate limit domain must not be empty");
    let nothing = RateLimitRequest { descriptors: vec![], ..one(&[]) };
    assert_eq!(parse_error(&nothing), "rate limit descriptor list must not be empty");
    for unit in [0, 8, -1] {
        let mut message = one(&[("a", "b")]);
        message.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit });
        let error = parse_error(&message);
        assert!(error.starts_with("descriptor 0 has an override limit"), "{error}");
    }
}

/// Envoys of the year 2026 can send a limit per five minutes. Read as one per minute it would allow five times as much.
#[test]
fn a_limit_per_several_units_is_rejected_and_not_read_as_another() {
    let with = |times: u64| {
        let mut out = Vec::new();
        let mut message = ProtobufWriter::to(&mut out);
        message.bytes(1, b"shop");
        message.message(2, |w| {
            w.message(2, |w| {
                w.uint(1, 10);
                w.uint(2, 2);
                w.message(3, |w| w.uint(1, times));
            });
        });
        out
    };
    assert!(parse_request(&with(1)).is_ok());
    let error = parse_request(&with(5)).unwrap_err().to_string();
    assert!(error.contains("an override limit per 5 units"), "{error}");
}

#[test]
fn requests_within_the_bounds_are_read_and_larger_ones_rejected() {
    let long = |length| "x".repeat(length);
    let of_key = |length| one(&[(&long(length), "b")]);
    let of_domain = |length| RateLimitRequest { domain: long(length), ..one(&[("a", "b")]) };
    let of_entries = |count| one(&vec![("a", "b"); count]);
    let of_descriptors =
        |count| RateLimitRequest { descriptors: vec![RateLimitDescriptor::default(); count], ..one(&[]) };
    let cases = [
        (of_key(256), of_key(257), "a key has more than 256"),
        (of_domain(256), of_domain(257), "a domain has more than 256"),
        (of_entries(16), of_entries(17), "more than 16 entries"),
        (of_descriptors(16), of_descriptors(17), "more than 16 desc"),
    ];
    for (within, beyond, want) in cases {
        assert!(parse_request(&within.encode_to_vec()).is_ok(), "{want}");
        assert!(parse_error(&beyond).starts_with(want), "{}", parse_error(&beyond));
    }
    let many = of_descriptors(256).encode_to_vec();
    assert!(super::parse_request(&many, 256).is_ok() && super::parse_request(&many, 255).is_err());
}
