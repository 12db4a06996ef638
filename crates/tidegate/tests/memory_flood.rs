//! Ten million new subjects against a cap of 256 MiB: memory stays below it, no known subject is forgotten, and new
//! subjects are limited together, not locked out.
//!
//! A binary of its own, because it measures the resident memory of its process.

use std::borrow::Cow;

use tidegate::clock::{Clock, ManualClock};
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, Role, RuleOptions, Source};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

const CAP: u64 = 256 << 20;
const STRANGERS: u64 = 10_000_000;

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn charge<'a>(rule: &'a RuleName, limit: &'a Limit, who: u64) -> Charge<'a> {
    Charge {
        subject: Fingerprint::new((u128::from(mix(who)) << 64) | u128::from(mix(!who))),
        rule,
        rate: 0,
        limit: Cow::Borrowed(limit),
        cost: Cost::ONE,
        role: Role::Enforce,
        options: &RuleOptions::DEFAULT,
    }
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a count of pages") * 4_096
}

#[test]
fn a_flood_of_new_subjects_stays_below_the_cap_and_evicts_no_live_counter() {
    let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
    let store = MemoryStore::with_cap(clock.clone(), CAP);
    let rule = RuleName::new("flood");
    let spec = Spec::new(Algorithm::TokenBucket, 5, Nanos::from_secs(3_600));
    let limit = Limit::compile(&spec, Precision::Memory).expect("a limit");
    let passes = |who| {
        let (reading, source) = store.charge_one_at(&charge(&rule, &limit, who), clock.now());
        (reading.verdict.allows(), source)
    };
    let (spent, regular) = (u64::MAX, u64::MAX - 1);
    for _ in 0..5 {
        assert!(passes(spent).0);
    }
    let mut regular_passed = 0;
    let (mut admitted, mut shared) = (0_u64, 0_u64);
    for who in 0..STRANGERS {
        let (passed, source) = passes(who);
        admitted += u64::from(passed);
        shared += u64::from(source == Source::Overflow);
        assert!(passed || source == Source::Overflow, "a counter of its own is fresh");
        if who % 5_000 == 0 {
            regular_passed += u64::from(passes(regular).0);
            clock.advance(Nanos::from_millis(100));
        }
        if who % 250_000 == 0 {
            assert!(resident() < CAP, "{} bytes at {who}", resident());
        }
    }
    assert!(resident() < CAP, "{} bytes", resident());
    let (_, source) = passes(spent);
    assert_eq!(source, Source::Exact, "live before the flood and after it");
    assert_eq!(regular_passed, 5, "one more than five an hour would be one evicted");

    let stats = store.stats();
    assert_eq!(stats.overflow, shared);
    assert!(stats.keys > 3_000_000, "most of the cap is used: {stats:?}");
    // An admitted subject has its own counter, or one of the 5 units of 4,096 shared counters, which refill less than
    // one in the 200 s of the flood.
    let own = stats.keys - 4_096 - 2;
    assert_eq!(admitted - own, 4_096 * 5);

    // After the flood there is room again, and a new subject has its own counter.
    clock.advance(Nanos::from_secs(3_600));
    let (passed, source) = passes(u64::MAX - 2);
    assert!(passed);
    assert_eq!(source, Source::Exact);
    while store.sweep(64) > 0 {}
    assert!(store.stats().keys < 10, "{:?}", store.stats());
}
