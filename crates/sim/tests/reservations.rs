//! Reservations with the whole resilience stack: a late reply, an outage at either end, limits on several
//! shards. At the end the counters match the used units.

#[allow(dead_code, reason = "each test binary uses its own part")]
mod testbed;

use testbed::{MS, ShardLimit, ShardedTestbed};
use tidegate_core::store::{Outcome, Reservations, Reserve, Settle, Settled, Source, StoreError, Used};
use tidegate_core::units::Nanos;
use tidegate_sim::model::NetworkConditions;

const LASTS: Nanos = Nanos::from_secs(60);

/// A reservation, as its client sees it.
struct TestReservation<'a> {
    setup: &'a ShardedTestbed,
    id: u128,
    limits: Vec<(&'a ShardLimit, u64)>,
    outcome: Outcome,
}

fn reserve<'a>(setup: &'a ShardedTestbed, limits: &[(&'a ShardLimit, u64)], id: u128) -> TestReservation<'a> {
    let reserve = Reserve { id, ttl: LASTS, set: setup.set(limits) };
    let outcome = setup.sim.block_on(setup.store.reserve(&reserve));
    TestReservation { setup, id, limits: limits.to_vec(), outcome: outcome.expect("decisions do not fail") }
}

impl TestReservation<'_> {
    fn try_settle(&self, used: Used) -> Result<Settled, StoreError> {
        let settle = Settle {
            id: self.id,
            charged_at: self.outcome.at,
            expires_at: self.outcome.at.plus(LASTS),
            set: self.setup.set(&self.limits),
            used,
        };
        self.setup.sim.block_on(self.setup.store.settle(&settle))
    }

    fn settle(&self, used: &[u64]) -> Settled {
        let used = Used::Known(used.iter().copied().collect());
        self.try_settle(used).expect("a store that replies")
    }
}

const HEALTHY: NetworkConditions = NetworkConditions::HEALTHY;
const DOWN: NetworkConditions = NetworkConditions { down: true, ..HEALTHY };

/// A late reservation for a request that was denied is settled with zero. If it were refunded instead, it
/// would be refunded once more at its expiry.
#[test]
fn a_late_reservation_of_a_denied_request_is_settled_with_zero() {
    let setup = ShardedTestbed::new();
    let own = setup.limit(0, 100, 1);
    setup.set_conditions(0, NetworkConditions { min_latency: MS(200), ..NetworkConditions::HEALTHY });
    let reserved = reserve(&setup, &[(&own, 90)], 1);
    assert_eq!(reserved.outcome.source, Source::Late);
    assert!(!reserved.outcome.admitted, "more than this node's share");
    assert_eq!(setup.used_units(&own), 90, "late, but charged");
    setup.pass(MS(1_000));
    assert_eq!(setup.used_units(&own), 0);
    setup.pass(LASTS);
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.pass(MS(100));
    reserve(&setup, &[(&own, 1)], 2);
    assert_eq!(setup.used_units(&own), 1, "nothing is refunded at its expiry");
}

/// A reservation that was admitted while its reply was late belongs to this node. The store's own reservation
/// is settled with zero, and the estimate is charged once.
#[test]
fn a_late_reservation_of_an_admitted_request_is_charged_once() {
    let setup = ShardedTestbed::new();
    let own = setup.limit(0, 100, 1);
    setup.set_conditions(0, NetworkConditions { min_latency: MS(200), ..NetworkConditions::HEALTHY });
    let reserved = reserve(&setup, &[(&own, 10)], 1);
    assert_eq!(reserved.outcome.source, Source::Late);
    assert_eq!(setup.used_units(&own), 10, "late, but charged");
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.pass(Nanos::from_secs(2));
    assert_eq!(setup.used_units(&own), 10, "charged once");
    assert_eq!(reserved.settle(&[4]), Settled::Done);
    assert_eq!(setup.used_units(&own), 4);
    assert_eq!(reserved.settle(&[4]), Settled::Already);
    setup.pass(LASTS);
    reserve(&setup, &[(&own, 1)], 2);
    assert_eq!(setup.used_units(&own), 5, "nothing is refunded at its expiry");
}

/// A store in another region: replies are later than a decision waits, and a reservation waits for them.
#[test]
fn a_reservation_waits_longer_than_a_decision() {
    let setup = ShardedTestbed::new();
    let own = setup.limit(0, 100, 1);
    setup.set_conditions(0, NetworkConditions { min_latency: MS(40), ..NetworkConditions::HEALTHY });
    for id in 1..=10 {
        let reserved = reserve(&setup, &[(&own, 10)], id);
        assert_eq!(reserved.outcome.source, Source::Exact);
        assert!(reserved.outcome.admitted);
    }
    let denied = reserve(&setup, &[(&own, 10)], 11);
    assert_eq!(denied.outcome.source, Source::Exact);
    assert!(!denied.outcome.admitted);
}

#[test]
fn a_reservation_settled_without_the_store_is_written_back_as_used() {
    for used in [0, 4, 10, 17] {
        let setup = ShardedTestbed::new();
        let own = setup.limit(0, 100, 1);
        setup.set_conditions(0, DOWN);
        let reserved = reserve(&setup, &[(&own, 10)], 1);
        assert_eq!(reserved.outcome.source, Source::Fallback);
        assert_eq!(reserved.settle(&[used]), Settled::Done);
        assert_eq!(reserved.settle(&[used]), Settled::Already);
        setup.set_conditions(0, NetworkConditions::HEALTHY);
        setup.pass(Nanos::from_secs(5));
        assert_eq!(setup.used_units(&own), used);
    }
}

/// The estimate was pending and was written back before the settlement.
#[test]
fn a_reservation_made_without_the_store_is_settled_in_the_store() {
    for used in [3, 17] {
        let setup = ShardedTestbed::new();
        let own = setup.limit(0, 100, 1);
        setup.set_conditions(0, DOWN);
        let reserved = reserve(&setup, &[(&own, 10)], 1);
        setup.set_conditions(0, NetworkConditions::HEALTHY);
        setup.pass(Nanos::from_secs(5));
        assert_eq!(setup.used_units(&own), 10);
        assert_eq!(reserved.settle(&[used]), Settled::Done);
        assert_eq!(setup.used_units(&own), used);
        assert_eq!(reserved.settle(&[used]), Settled::Already);
    }
}

/// A settlement without a reply is an error, and the client may retry it: it counts once, even if the store
/// had received the first attempt.
#[test]
fn a_reservation_in_the_store_is_settled_after_the_outage() {
    let setup = ShardedTestbed::new();
    let own = setup.limit(0, 100, 1);
    let reserved = reserve(&setup, &[(&own, 10)], 1);
    assert_eq!(reserved.outcome.source, Source::Exact);
    let lost =
        |requests_lost, replies_lost| NetworkConditions { requests_lost, replies_lost, ..NetworkConditions::HEALTHY };
    setup.set_conditions(0, lost(1_000, 0));
    let used = || Used::Known([25].into_iter().collect());
    assert!(reserved.try_settle(used()).is_err());
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.pass(Nanos::from_secs(5)); // until the breaker has closed
    setup.set_conditions(0, lost(0, 1_000));
    assert!(reserved.try_settle(used()).is_err(), "received, no reply");
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.pass(Nanos::from_secs(5));
    assert_eq!(reserved.settle(&[25]), Settled::Already);
    assert_eq!(setup.used_units(&own), 25);
}

#[test]
fn an_estimate_on_several_shards_is_refunded_and_settled_on_each() {
    let setup = ShardedTestbed::new();
    let (narrow, wide) = (setup.limit(0, 100, 1), setup.limit(1, 50, 0));
    let denied = reserve(&setup, &[(&narrow, 60), (&wide, 60)], 1);
    assert!(!denied.outcome.admitted);
    setup.pass(MS(20));
    assert_eq!(setup.used_units(&narrow), 0, "refunded");
    let reserved = reserve(&setup, &[(&narrow, 40), (&wide, 40)], 2);
    assert!(reserved.outcome.admitted);
    assert_eq!((setup.used_units(&narrow), setup.used_units(&wide)), (40, 40));
    assert_eq!(reserved.settle(&[30, 45]), Settled::Done);
    assert_eq!((setup.used_units(&narrow), setup.used_units(&wide)), (30, 45));
    assert_eq!(reserved.settle(&[0, 0]), Settled::Already);
    setup.pass(LASTS);
    reserve(&setup, &[(&narrow, 1), (&wide, 1)], 3);
    assert_eq!((setup.used_units(&narrow), setup.used_units(&wide)), (31, 46));
}

/// The shard of the narrow limit is down when the reservation is made or settled, that of the wide one is not. One
/// settlement once closed the reservation for all shards, and at its expiry the wide limit refunded all of it.
#[test]
fn a_reservation_partly_made_without_the_store_is_settled_on_each_shard() {
    for used in [[4, 4], [4, 17], [17, 4]] {
        let setup = ShardedTestbed::new();
        let (narrow, wide) = (setup.limit(0, 800, 1), setup.limit(1, 800, 0));
        setup.set_conditions(0, DOWN);
        let reserved = reserve(&setup, &[(&narrow, 10), (&wide, 10)], 1);
        assert_eq!((reserved.outcome.admitted, reserved.outcome.source), (true, Source::Fallback));
        assert_eq!(setup.used_units(&wide), 10, "reserved in the store");
        assert_eq!(reserved.settle(&used), Settled::Done);
        setup.set_conditions(0, HEALTHY);
        setup.pass(Nanos::from_secs(5));
        assert_eq!([setup.used_units(&narrow), setup.used_units(&wide)], used);
        assert_eq!(reserved.settle(&used), Settled::Already);
        setup.pass(LASTS);
        reserve(&setup, &[(&narrow, 1), (&wide, 1)], 2);
        let used_units = [setup.used_units(&narrow), setup.used_units(&wide)];
        assert_eq!(used_units, used.map(|units| units + 1), "nothing is refunded at its expiry");
    }
}

fn set_both(setup: &ShardedTestbed, conditions: NetworkConditions) {
    for shard in [0, 1] {
        setup.set_conditions(shard, conditions);
    }
}

#[test]
fn a_reservation_made_without_any_shard_is_settled_on_each() {
    for used in [[4, 4], [0, 17], [17, 0]] {
        let setup = ShardedTestbed::new();
        let (narrow, wide) = (setup.limit(0, 800, 1), setup.limit(1, 800, 0));
        set_both(&setup, DOWN);
        let reserved = reserve(&setup, &[(&narrow, 10), (&wide, 10)], 1);
        assert!(reserved.outcome.admitted);
        assert_eq!(reserved.settle(&used), Settled::Done);
        assert_eq!(reserved.settle(&used), Settled::Already);
        set_both(&setup, HEALTHY);
        setup.pass(Nanos::from_secs(5));
        assert_eq!([setup.used_units(&narrow), setup.used_units(&wide)], used);
    }
}

/// The client settles again because one shard did not reply. The other shard's part was settled already.
#[test]
fn a_repeated_settlement_reaches_the_shard_that_did_not_reply() {
    let setup = ShardedTestbed::new();
    let (narrow, wide) = (setup.limit(0, 800, 1), setup.limit(1, 800, 0));
    setup.set_conditions(0, DOWN);
    let reserved = reserve(&setup, &[(&narrow, 10), (&wide, 10)], 1);
    assert_eq!(setup.used_units(&wide), 10, "reserved in the store");
    setup.set_conditions(1, DOWN);
    assert!(reserved.try_settle(Used::Known([4, 17].into_iter().collect())).is_err());
    set_both(&setup, HEALTHY);
    setup.pass(Nanos::from_secs(5));
    assert_eq!(reserved.settle(&[4, 17]), Settled::Already);
    assert_eq!([setup.used_units(&narrow), setup.used_units(&wide)], [4, 17]);
}

/// The wide limit's shard is slow, so no time is left for the shadow limit, which is on the narrow limit's shard: the
/// node holds its part, and the store holds that of the narrow limit.
#[test]
fn the_parts_of_a_reservation_on_one_shard_are_settled_where_they_are_held() {
    let setup = ShardedTestbed::new();
    let (narrow, wide, shadow) = (setup.limit(0, 800, 1), setup.limit(1, 800, 0), setup.shadow(0, 800));
    setup.set_conditions(1, NetworkConditions { min_latency: MS(400), ..HEALTHY });
    let limits = [(&narrow, 10), (&wide, 10), (&shadow, 10)];
    let reserved = reserve(&setup, &limits, 1);
    assert!(reserved.outcome.admitted);
    assert_eq!((setup.used_units(&narrow), setup.used_units(&shadow)), (10, 0), "not sent");
    setup.set_conditions(1, HEALTHY);
    setup.pass(Nanos::from_secs(5));
    assert_eq!(reserved.settle(&[4, 5, 6]), Settled::Done);
    setup.pass(Nanos::from_secs(1));
    assert_eq!([&narrow, &wide, &shadow].map(|limit| setup.used_units(limit)), [4, 5, 6]);
    assert_eq!(reserved.settle(&[4, 5, 6]), Settled::Already);
}

/// A shadow limit that did not admit the reservation has nothing to settle: no store is needed for it.
#[test]
fn a_shadow_limit_that_was_not_charged_does_not_delay_a_settlement() {
    let setup = ShardedTestbed::new();
    let (own, shadow) = (setup.limit(0, 800, 1), setup.shadow(0, 1));
    setup.set_conditions(0, DOWN);
    let reserved = reserve(&setup, &[(&own, 10), (&shadow, 10)], 1);
    assert_eq!((reserved.outcome.admitted, reserved.outcome.source), (true, Source::Fallback));
    assert_eq!(reserved.settle(&[4, 4]), Settled::Done);
    setup.set_conditions(0, HEALTHY);
    setup.pass(Nanos::from_secs(5));
    assert_eq!((setup.used_units(&own), setup.used_units(&shadow)), (4, 0));
}

/// A denial is cached until this node refunds units.
#[test]
fn a_settlement_ends_a_cached_denial() {
    let setup = ShardedTestbed::new();
    let own = setup.limit(0, 10, 1);
    let reserved = reserve(&setup, &[(&own, 10)], 1);
    let one = setup.set(&[(&own, 1)]);
    assert_eq!(setup.charge(&one).source, Source::Exact);
    assert_eq!(setup.charge(&one).source, Source::DenyCache);
    assert_eq!(reserve(&setup, &[(&own, 1)], 2).outcome.source, Source::DenyCache);
    assert_eq!(reserved.settle(&[9]), Settled::Done);
    let outcome = setup.charge(&one);
    assert!(outcome.admitted && outcome.source == Source::Exact);
}
