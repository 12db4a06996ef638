//! Omitting or inventing an identity never yields more than the stricter bucket.

#![allow(clippy::unwrap_used, reason = "clippy sees tests only inside test functions")]

mod common;

use common::{TestLimiter, request, rules};
use tidegate::Policy;
use tidegate::identity::KeyTable;
use tidegate::identity::keys::hash_line;

const RULES: &str = "
version: 1
tiers: [free, pro]
rules:
  - name: api
    by: api_key|ip
    rate: 50/hour
    tiers: { free: 5/hour, pro: 50/hour }
    algorithm: fixed-window
  - { name: user, by: user, rate: 7/hour, algorithm: fixed-window }
keys_file: keys.txt
";

fn fixture() -> TestLimiter {
    let fixture = TestLimiter::new(RULES);
    let lines = format!("{}\n", hash_line("real", "pro", "acme").unwrap());
    let set = rules(RULES);
    let keys = KeyTable::read("keys.txt", lines.as_bytes(), set.tiers()).unwrap();
    fixture.replace(Policy::of(set).with_keys(keys));
    fixture
}

/// The number of 200 requests that pass when `words(i)` is the identity the i-th one claims.
fn passes(words: impl Fn(usize) -> String) -> usize {
    let fixture = fixture();
    (0..200).filter(|i| fixture.decide(request(&words(*i))).allowed()).count()
}

#[test]
fn the_listed_key_has_its_tier() {
    // The user rule allows 7 to each user; fifty users together reach the key's own limit.
    assert_eq!(passes(|i| format!("ip=192.0.2.1 key=real user=u{i}")), 50);
}

#[test]
fn claiming_another_identity_yields_no_more_than_the_address_has() {
    type Claim = fn(usize) -> String;
    let corpus: [(&str, Claim); 9] = [
        ("no key", |_| "ip=192.0.2.1 user=u".into()),
        ("an invented key", |_| "ip=192.0.2.1 key=fake user=u".into()),
        ("a new key each time", |i| format!("ip=192.0.2.1 key=fake{i} user=u{i}")),
        ("a new user each time", |i| format!("ip=192.0.2.1 user=u{i}")),
        ("no user", |_| "ip=192.0.2.1".into()),
        ("an empty user", |_| "ip=192.0.2.1 user=".into()),
        ("no address", |_| "user=u".into()),
        ("no address, a new key each time", |i| format!("key=fake{i} user=u{i}")),
        ("nothing at all", |_| String::new()),
    ];
    for (name, words) in corpus {
        assert_eq!(passes(words), 5, "{name}");
    }
}

#[test]
fn a_tier_cannot_be_claimed() {
    assert_eq!(passes(|i| format!("ip=192.0.2.1 tier=pro user=u{i}")), 5);
}

#[test]
fn addresses_of_one_client_share_a_bucket() {
    let forms: [fn(usize) -> String; 2] = [
        // 200 hosts of one /64
        |i| format!("ip=2001:db8::{:x} user=u{i}", i + 1),
        // one IPv4 address, plain and mapped into IPv6
        |i| format!("ip={}192.0.2.1 user=u{i}", if i % 2 == 0 { "" } else { "::ffff:" }),
    ];
    for words in forms {
        assert_eq!(passes(words), 5);
    }
}

#[test]
fn a_name_that_looks_like_an_address_is_not_that_address() {
    let fixture = fixture();
    for i in 0..7 {
        let words = format!("ip=198.51.100.{i} user=192.0.2.1");
        assert!(fixture.decide(request(&words)).allowed());
    }
    assert!(fixture.decide(request("ip=192.0.2.1")).allowed());
}
