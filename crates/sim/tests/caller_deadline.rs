//! The longest that a caller waits caps the wait for the store, whatever the rules allow.

#[allow(dead_code, reason = "shared with other tests")]
mod testbed;

use testbed::{MS, ShardLimit, ShardedTestbed};
use tidegate::resilience::StoreEvent;
use tidegate_core::store::{ChargeSet, Outcome, Role, RuleOptions, Source, Store};
use tidegate_core::units::Nanos;
use tidegate_sim::model::NetworkConditions;

/// A store that takes this long for each way.
fn slow(millis: u64) -> NetworkConditions {
    NetworkConditions {
        min_latency: MS(millis),
        ..NetworkConditions::HEALTHY
    }
}

fn patient(bench: &ShardedTestbed, shard: usize) -> ShardLimit {
    let options = RuleOptions {
        budget: Some(MS(50)),
        ..RuleOptions::DEFAULT
    };
    bench.with(shard, 10, Role::Enforce, options)
}

/// Charges `set` for a caller who waits `max_wait`; the outcome and the time it took.
fn charged(
    bench: &ShardedTestbed,
    set: ChargeSet<'_>,
    max_wait: Option<Nanos>,
) -> (Outcome, Nanos) {
    let set = ChargeSet { max_wait, ..set };
    let before = bench.sim.now();
    let outcome = bench.charge(&set);
    (outcome, bench.sim.now().since(before))
}

/// Lets everything that is pending arrive, on a store that is quick meanwhile: a slow one fails its pings.
fn recover(bench: &ShardedTestbed, shards: &[usize], then: NetworkConditions) {
    for shard in shards {
        bench.set_conditions(*shard, NetworkConditions::HEALTHY);
    }
    bench.pass(Nanos::from_secs(1));
    for shard in shards {
        bench.set_conditions(*shard, then);
    }
}

#[test]
fn a_caller_in_a_hurry_gets_a_decision_in_time() {
    let bench = ShardedTestbed::new();
    let own = patient(&bench, 0);
    bench.set_conditions(0, slow(10));
    let (outcome, took) = charged(&bench, bench.set(&[(&own, 1)]), Some(MS(7)));
    assert_ne!(outcome.source, Source::Exact);
    assert_eq!(took, MS(7));
    recover(&bench, &[0], slow(10));
    let (outcome, took) = charged(&bench, bench.set(&[(&own, 1)]), Some(MS(30)));
    assert_eq!(outcome.source, Source::Exact);
    assert!(took >= MS(20), "{took}");
}

#[test]
fn a_caller_with_time_waits_no_longer_than_the_rule_allows() {
    let bench = ShardedTestbed::new();
    let own = patient(&bench, 0);
    bench.set_conditions(0, slow(40));
    for max_wait in [Some(Nanos::from_secs(9)), None] {
        let (outcome, took) = charged(&bench, bench.set(&[(&own, 1)]), max_wait);
        assert_ne!(outcome.source, Source::Exact);
        assert_eq!(took, MS(50));
        recover(&bench, &[0], slow(40));
    }
}

/// The time is that of the whole decision, also where limits are in several shards.
#[test]
fn the_shards_of_one_decision_share_the_time() {
    let bench = ShardedTestbed::new();
    let (first, second) = (patient(&bench, 0), patient(&bench, 1));
    for shard in [0, 1] {
        bench.set_conditions(shard, slow(4));
    }
    let both = || bench.set(&[(&first, 1), (&second, 1)]);
    let (outcome, took) = charged(&bench, both(), Some(MS(12)));
    assert_ne!(outcome.source, Source::Exact);
    assert_eq!(took, MS(12));
    recover(&bench, &[0, 1], slow(4));
    let (outcome, _) = charged(&bench, both(), Some(MS(40)));
    assert_eq!(outcome.source, Source::Exact);
}

#[test]
fn peeks_are_in_time_too() {
    let bench = ShardedTestbed::new();
    let own = patient(&bench, 0);
    bench.set_conditions(0, slow(2));
    let mut set = bench.set(&[(&own, 1)]);
    set.max_wait = Some(MS(3));
    let before = bench.sim.now();
    let outcome = bench.sim.block_on(bench.store.peek(&set)).unwrap();
    assert_eq!(outcome.source, Source::Late);
    assert_eq!(bench.sim.now().since(before), MS(3));
}

/// Callers choose their deadlines. Short ones must not take the store from everybody else.
#[test]
fn callers_in_a_hurry_do_not_open_the_breaker() {
    let bench = ShardedTestbed::new();
    let own = patient(&bench, 0);
    bench.set_conditions(0, slow(2));
    for _ in 0..100 {
        charged(&bench, bench.set(&[(&own, 1)]), Some(MS(1)));
        bench.pass(MS(20));
    }
    let opening = |event: &StoreEvent| matches!(event, StoreEvent::BreakerOpened { .. });
    assert!(!bench.events_of(0).iter().any(opening));
    let (outcome, _) = charged(&bench, bench.set(&[(&own, 1)]), None);
    assert_eq!(outcome.source, Source::Exact);
}

/// A deadline that has passed already still gets a decision.
#[test]
fn no_time_at_all_is_decided_at_once() {
    let bench = ShardedTestbed::new();
    let own = patient(&bench, 0);
    let (outcome, took) = charged(&bench, bench.set(&[(&own, 1)]), Some(Nanos::ZERO));
    assert_ne!(outcome.source, Source::Exact);
    assert_eq!(took, Nanos::ZERO);
}
