//! Reservations through everything that is around a store: a late answer, an outage at either end, limits
//! in several parts. In the end the books show what was used.

#[allow(dead_code, reason = "each test binary uses its own part")]
mod testbed;

use testbed::{MS, ShardLimit, ShardedTestbed};
use tidegate_core::store::{Outcome, Reserve, Settle, Settled, Source, Store, StoreError, Used};
use tidegate_core::units::Nanos;
use tidegate_sim::model::NetworkConditions;

const LASTS: Nanos = Nanos::from_secs(60);

/// A reservation, as a client knows it.
struct TestReservation<'a> {
    bench: &'a ShardedTestbed,
    id: u128,
    limits: Vec<(&'a ShardLimit, u64)>,
    outcome: Outcome,
}

fn reserve<'a>(
    bench: &'a ShardedTestbed,
    limits: &[(&'a ShardLimit, u64)],
    id: u128,
) -> TestReservation<'a> {
    let reserve = Reserve {
        id,
        ttl: LASTS,
        set: bench.set(limits),
    };
    let outcome = bench.sim.block_on(bench.store.reserve(&reserve));
    TestReservation {
        bench,
        id,
        limits: limits.to_vec(),
        outcome: outcome.expect("decisions do not fail"),
    }
}

impl TestReservation<'_> {
    fn try_settle(&self, used: Used) -> Result<Settled, StoreError> {
        let settle = Settle {
            id: self.id,
            charged_at: self.outcome.at,
            expires_at: self.outcome.at.plus(LASTS),
            set: self.bench.set(&self.limits),
            used,
        };
        self.bench.sim.block_on(self.bench.store.settle(&settle))
    }

    fn settle(&self, used: &[u64]) -> Settled {
        let used = Used::Known(used.iter().copied().collect());
        self.try_settle(used).expect("a store that answers")
    }
}

const DOWN: NetworkConditions = NetworkConditions {
    down: true,
    ..NetworkConditions::HEALTHY
};

/// What the store reserved late for a request that was denied is settled with nothing: refunded instead, it
/// would come back once more at its end.
#[test]
fn a_late_reservation_that_was_denied_is_settled_with_nothing() {
    let bench = ShardedTestbed::new();
    let own = bench.limit(0, 100, 1);
    bench.set_conditions(
        0,
        NetworkConditions {
            min_latency: MS(200),
            ..NetworkConditions::HEALTHY
        },
    );
    let reserved = reserve(&bench, &[(&own, 90)], 1);
    assert_eq!(reserved.outcome.source, Source::Late);
    assert!(!reserved.outcome.admitted, "more than this node's part");
    assert_eq!(bench.used_units(&own), 90, "late, but charged");
    bench.pass(MS(1_000));
    assert_eq!(bench.used_units(&own), 0);
    bench.pass(LASTS);
    bench.set_conditions(0, NetworkConditions::HEALTHY);
    bench.pass(MS(100));
    reserve(&bench, &[(&own, 1)], 2);
    assert_eq!(bench.used_units(&own), 1, "nothing comes back at its end");
}

/// A reservation that was admitted while its reply was late is this node's: what the store reserved beside it is
/// settled with nothing, and the estimate is charged once.
#[test]
fn a_late_reservation_that_was_admitted_is_charged_once() {
    let bench = ShardedTestbed::new();
    let own = bench.limit(0, 100, 1);
    bench.set_conditions(
        0,
        NetworkConditions {
            min_latency: MS(200),
            ..NetworkConditions::HEALTHY
        },
    );
    let reserved = reserve(&bench, &[(&own, 10)], 1);
    assert_eq!(reserved.outcome.source, Source::Late);
    assert_eq!(bench.used_units(&own), 10, "late, but charged");
    bench.set_conditions(0, NetworkConditions::HEALTHY);
    bench.pass(Nanos::from_secs(2));
    assert_eq!(bench.used_units(&own), 10, "charged once");
    assert_eq!(reserved.settle(&[4]), Settled::Done);
    assert_eq!(bench.used_units(&own), 4);
    assert_eq!(reserved.settle(&[4]), Settled::Already);
    bench.pass(LASTS);
    reserve(&bench, &[(&own, 1)], 2);
    assert_eq!(bench.used_units(&own), 5, "nothing comes back at its end");
}

/// A store in another region: replies are later than a decision waits, and a reservation waits for them.
#[test]
fn a_reservation_waits_longer_than_a_decision() {
    let bench = ShardedTestbed::new();
    let own = bench.limit(0, 100, 1);
    bench.set_conditions(
        0,
        NetworkConditions {
            min_latency: MS(40),
            ..NetworkConditions::HEALTHY
        },
    );
    for id in 1..=10 {
        let reserved = reserve(&bench, &[(&own, 10)], id);
        assert_eq!(reserved.outcome.source, Source::Exact);
        assert!(reserved.outcome.admitted);
    }
    let denied = reserve(&bench, &[(&own, 10)], 11);
    assert_eq!(denied.outcome.source, Source::Exact);
    assert!(!denied.outcome.admitted);
}

#[test]
fn a_reservation_settled_without_the_store_is_written_back_as_used() {
    for used in [0, 4, 10, 17] {
        let bench = ShardedTestbed::new();
        let own = bench.limit(0, 100, 1);
        bench.set_conditions(0, DOWN);
        let reserved = reserve(&bench, &[(&own, 10)], 1);
        assert_eq!(reserved.outcome.source, Source::Fallback);
        assert_eq!(reserved.settle(&[used]), Settled::Done);
        assert_eq!(reserved.settle(&[used]), Settled::Already);
        bench.set_conditions(0, NetworkConditions::HEALTHY);
        bench.pass(Nanos::from_secs(5));
        assert_eq!(bench.used_units(&own), used);
    }
}

/// The estimate was owed and pushed before anybody settled it.
#[test]
fn what_was_reserved_without_the_store_is_settled_with_it() {
    for used in [3, 17] {
        let bench = ShardedTestbed::new();
        let own = bench.limit(0, 100, 1);
        bench.set_conditions(0, DOWN);
        let reserved = reserve(&bench, &[(&own, 10)], 1);
        bench.set_conditions(0, NetworkConditions::HEALTHY);
        bench.pass(Nanos::from_secs(5));
        assert_eq!(bench.used_units(&own), 10);
        assert_eq!(reserved.settle(&[used]), Settled::Done);
        assert_eq!(bench.used_units(&own), used);
        assert_eq!(reserved.settle(&[used]), Settled::Already);
    }
}

/// Whoever settles is told that it did not happen, and may send it again: it counts once, also if the
/// store had heard of it.
#[test]
fn what_the_store_reserved_is_settled_when_it_answers_again() {
    let bench = ShardedTestbed::new();
    let own = bench.limit(0, 100, 1);
    let reserved = reserve(&bench, &[(&own, 10)], 1);
    assert_eq!(reserved.outcome.source, Source::Exact);
    let lost = |requests_lost, replies_lost| NetworkConditions {
        requests_lost,
        replies_lost,
        ..NetworkConditions::HEALTHY
    };
    bench.set_conditions(0, lost(1_000, 0));
    let used = || Used::Known([25].into_iter().collect());
    assert!(reserved.try_settle(used()).is_err());
    bench.set_conditions(0, NetworkConditions::HEALTHY);
    bench.pass(Nanos::from_secs(5)); // until the breaker has closed
    bench.set_conditions(0, lost(0, 1_000));
    assert!(reserved.try_settle(used()).is_err(), "heard, not answered");
    bench.set_conditions(0, NetworkConditions::HEALTHY);
    bench.pass(Nanos::from_secs(5));
    assert_eq!(reserved.settle(&[25]), Settled::Already);
    assert_eq!(bench.used_units(&own), 25);
}

#[test]
fn an_estimate_in_several_parts_is_taken_back_and_settled_in_each() {
    let bench = ShardedTestbed::new();
    let (narrow, wide) = (bench.limit(0, 100, 1), bench.limit(1, 50, 0));
    let denied = reserve(&bench, &[(&narrow, 60), (&wide, 60)], 1);
    assert!(!denied.outcome.admitted);
    bench.pass(MS(20));
    assert_eq!(bench.used_units(&narrow), 0, "given back");
    let reserved = reserve(&bench, &[(&narrow, 40), (&wide, 40)], 2);
    assert!(reserved.outcome.admitted);
    assert_eq!(
        (bench.used_units(&narrow), bench.used_units(&wide)),
        (40, 40)
    );
    assert_eq!(reserved.settle(&[30, 45]), Settled::Done);
    assert_eq!(
        (bench.used_units(&narrow), bench.used_units(&wide)),
        (30, 45)
    );
    assert_eq!(reserved.settle(&[0, 0]), Settled::Already);
    bench.pass(LASTS);
    reserve(&bench, &[(&narrow, 1), (&wide, 1)], 3);
    assert_eq!(
        (bench.used_units(&narrow), bench.used_units(&wide)),
        (31, 46)
    );
}

/// A refusal is remembered until something is given back here.
#[test]
fn a_settlement_ends_a_remembered_refusal() {
    let bench = ShardedTestbed::new();
    let own = bench.limit(0, 10, 1);
    let reserved = reserve(&bench, &[(&own, 10)], 1);
    let one = bench.set(&[(&own, 1)]);
    assert_eq!(bench.charge(&one).source, Source::Exact);
    assert_eq!(bench.charge(&one).source, Source::DenyCache);
    assert_eq!(
        reserve(&bench, &[(&own, 1)], 2).outcome.source,
        Source::DenyCache
    );
    assert_eq!(reserved.settle(&[9]), Settled::Done);
    let outcome = bench.charge(&one);
    assert!(outcome.admitted && outcome.source == Source::Exact);
}
