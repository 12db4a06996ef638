//! A caller's deadline caps the wait for the store, whatever the rules allow.

#[allow(dead_code, reason = "shared with other tests")]
mod testbed;

use testbed::{MS, ShardLimit, ShardedTestbed};
use tidegate::resilience::StoreEvent;
use tidegate_core::store::{ChargeSet, Counters, Outcome, Role, RuleOptions, Source};
use tidegate_core::units::Nanos;
use tidegate_sim::model::NetworkConditions;

/// A store with this one-way latency.
fn slow(millis: u64) -> NetworkConditions {
    NetworkConditions { min_latency: MS(millis), ..NetworkConditions::HEALTHY }
}

fn patient(setup: &ShardedTestbed, shard: usize) -> ShardLimit {
    let options = RuleOptions { budget: Some(MS(50)), ..RuleOptions::DEFAULT };
    setup.with(shard, 10, Role::Enforce, options)
}

/// Charges `set` for a caller who waits `max_wait`; returns the outcome and the time it took.
fn charged(setup: &ShardedTestbed, set: ChargeSet<'_>, max_wait: Option<Nanos>) -> (Outcome, Nanos) {
    let set = ChargeSet { max_wait, ..set };
    let before = setup.sim.now();
    let outcome = setup.charge(&set);
    (outcome, setup.sim.now().since(before))
}

/// Lets all pending units arrive, with a fast store meanwhile: a slow store would miss its heartbeats.
fn recover(setup: &ShardedTestbed, shards: &[usize], then: NetworkConditions) {
    for shard in shards {
        setup.set_conditions(*shard, NetworkConditions::HEALTHY);
    }
    setup.pass(Nanos::from_secs(1));
    for shard in shards {
        setup.set_conditions(*shard, then);
    }
}

#[test]
fn a_caller_with_a_short_deadline_gets_a_decision_in_time() {
    let setup = ShardedTestbed::new();
    let own = patient(&setup, 0);
    setup.set_conditions(0, slow(10));
    let (outcome, took) = charged(&setup, setup.set(&[(&own, 1)]), Some(MS(7)));
    assert_ne!(outcome.source, Source::Exact);
    assert_eq!(took, MS(7));
    recover(&setup, &[0], slow(10));
    let (outcome, took) = charged(&setup, setup.set(&[(&own, 1)]), Some(MS(30)));
    assert_eq!(outcome.source, Source::Exact);
    assert!(took >= MS(20), "{took}");
}

#[test]
fn a_caller_with_a_long_deadline_waits_no_longer_than_the_rule_allows() {
    let setup = ShardedTestbed::new();
    let own = patient(&setup, 0);
    setup.set_conditions(0, slow(40));
    for max_wait in [Some(Nanos::from_secs(9)), None] {
        let (outcome, took) = charged(&setup, setup.set(&[(&own, 1)]), max_wait);
        assert_ne!(outcome.source, Source::Exact);
        assert_eq!(took, MS(50));
        recover(&setup, &[0], slow(40));
    }
}

/// The deadline is that of the whole decision, also with limits on several shards.
#[test]
fn the_shards_of_one_decision_share_the_deadline() {
    let setup = ShardedTestbed::new();
    let (first, second) = (patient(&setup, 0), patient(&setup, 1));
    for shard in [0, 1] {
        setup.set_conditions(shard, slow(4));
    }
    let both = || setup.set(&[(&first, 1), (&second, 1)]);
    let (outcome, took) = charged(&setup, both(), Some(MS(12)));
    assert_ne!(outcome.source, Source::Exact);
    assert_eq!(took, MS(12));
    recover(&setup, &[0, 1], slow(4));
    let (outcome, _) = charged(&setup, both(), Some(MS(40)));
    assert_eq!(outcome.source, Source::Exact);
}

#[test]
fn peeks_meet_the_deadline() {
    let setup = ShardedTestbed::new();
    let own = patient(&setup, 0);
    setup.set_conditions(0, slow(2));
    let mut set = setup.set(&[(&own, 1)]);
    set.max_wait = Some(MS(3));
    let before = setup.sim.now();
    let outcome = setup.sim.block_on(setup.store.peek(&set)).unwrap();
    assert_eq!(outcome.source, Source::Late);
    assert_eq!(setup.sim.now().since(before), MS(3));
}

/// Callers choose their deadlines. Short ones must not open the breaker for all other callers.
#[test]
fn short_deadlines_do_not_open_the_breaker() {
    let setup = ShardedTestbed::new();
    let own = patient(&setup, 0);
    setup.set_conditions(0, slow(2));
    for _ in 0..100 {
        charged(&setup, setup.set(&[(&own, 1)]), Some(MS(1)));
        setup.pass(MS(20));
    }
    let opening = |event: &StoreEvent| matches!(event, StoreEvent::BreakerOpened { .. });
    assert!(!setup.events_of(0).iter().any(opening));
    let (outcome, _) = charged(&setup, setup.set(&[(&own, 1)]), None);
    assert_eq!(outcome.source, Source::Exact);
}

/// An expired deadline still gets a decision.
#[test]
fn an_expired_deadline_is_decided_at_once() {
    let setup = ShardedTestbed::new();
    let own = patient(&setup, 0);
    let (outcome, took) = charged(&setup, setup.set(&[(&own, 1)]), Some(Nanos::ZERO));
    assert_ne!(outcome.source, Source::Exact);
    assert_eq!(took, Nanos::ZERO);
}
