//! Counters that are read under another limit than they were made with: the original limit is known for as long as they
//! live, and two limits with equal tags are distinguished.

use std::borrow::Cow;
use std::collections::HashMap;

use tidegate::clock::{Clock, ManualClock};
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Refund, Refunded, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

struct MemoryFixture {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    rule: RuleName,
}

impl MemoryFixture {
    fn new() -> Self {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        MemoryFixture { store: MemoryStore::new(clock.clone()), clock, rule: RuleName::new("limits") }
    }

    fn charge<'a>(&'a self, who: u64, limit: &'a Limit, cost: u64) -> Charge<'a> {
        let spread = u128::from(who.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Charge {
            subject: Fingerprint::new(spread << 64 | spread),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(limit),
            cost: Cost::new(cost).expect("a cost"),
            role: Role::Enforce,
            options: &RuleOptions::DEFAULT,
        }
    }

    fn spend(&self, who: u64, limit: &Limit, cost: u64) {
        let set = set([self.charge(who, limit, cost)]);
        assert!(self.store.charge_now(&set).admitted);
    }

    fn used(&self, who: u64, limit: &Limit) -> u64 {
        let set = set([self.charge(who, limit, 1)]);
        let found = self.store.inspect_at(&set, self.clock.now());
        found[0].map_or(0, |inspection| inspection.used)
    }
}

fn set<'a>(charges: impl IntoIterator<Item = Charge<'a>>) -> ChargeSet<'a> {
    ChargeSet::of(charges)
}

fn limit(algorithm: Algorithm, count: u64) -> Limit {
    let day = Nanos::from_secs(86_400);
    Limit::compile(&Spec::new(algorithm, count, day), Precision::Memory).expect("a limit")
}

/// A limit was forgotten after 16,384 others had been noted, although its counters were live and charged: after the
/// next change of the rule such a client had nothing left.
#[test]
fn a_limit_in_use_is_not_forgotten_however_many_others_come() {
    let memory = MemoryFixture::new();
    let (before, after) = (limit(Algorithm::TokenBucket, 10), limit(Algorithm::TokenBucket, 20));
    let (quiet, busy) = (1, 2);
    memory.spend(quiet, &before, 3);
    for other in 100..60_100 {
        memory.spend(other, &limit(Algorithm::FixedWindow, other), 1);
        if other % 10_000 == 0 {
            memory.spend(busy, &before, 1);
            let others = set(((other - 9_999).max(100)..=other).map(|who| memory.charge(who, &before, 1)));
            memory.store.reset_at(&others, memory.clock.now());
            memory.store.sweep(usize::MAX);
        }
    }
    assert_eq!(memory.used(quiet, &after), 3);
    assert_eq!(memory.used(busy, &after), 6);
}

/// Two limits of different algorithms with the same tag. There are four billion tags, so among a hundred thousand of
/// each some collide.
fn twins() -> (Limit, Limit) {
    let buckets = (1..120_000).map(|count| limit(Algorithm::TokenBucket, count));
    let buckets: HashMap<u32, Limit> = buckets.map(|limit| (limit.tag(), limit)).collect();
    let windows = (1..).map(|count| limit(Algorithm::SlidingWindow, count));
    let mut met = windows.filter_map(|window| Some((buckets.get(&window.tag())?.clone(), window)));
    met.next().expect("two tags that collide")
}

/// The second limit read the first one's state as its own, and the process crashed.
#[test]
fn limits_of_two_shapes_that_share_a_tag_are_kept_separate() {
    let (bucket, window) = twins();
    for (first, second) in [(&bucket, &window), (&window, &bucket)] {
        let memory = MemoryFixture::new();
        let both = set([memory.charge(1, first, 1), memory.charge(1, second, 1)]);
        assert!(memory.store.charge_now(&both).admitted);
        assert_eq!(memory.used(1, second), 2, "one counter, charged twice");

        let refund = Refund {
            id: 7,
            charged_at: memory.clock.now(),
            expires_at: memory.clock.now().plus(Nanos::from_secs(60)),
            set: set([memory.charge(1, first, 1)]),
        };
        let refunded = memory.store.refund_at(&refund, memory.clock.now());
        assert_eq!(refunded, Refunded::Done);
        assert_eq!(memory.used(1, second), 2, "not under another limit");
    }
}
