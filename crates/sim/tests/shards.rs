//! A request whose limits are in several parts of a store: what is charged, given back and told.

mod testbed;

use std::sync::Arc;

use testbed::{DATE, MS, SHARDS, ShardedTestbed};
use tidegate::resilience::StoreEvent;
use tidegate_core::store::{
    ChargeSet, OnStoreFailure, Outcome, Refund, Refunded, Role, RuleOptions, Source, Store,
};
use tidegate_core::units::Nanos;
use tidegate_sim::model::NetworkConditions;

const DOWN: NetworkConditions = NetworkConditions {
    down: true,
    ..NetworkConditions::HEALTHY
};
const HUNG: NetworkConditions = NetworkConditions {
    hung: true,
    ..NetworkConditions::HEALTHY
};

fn remaining(outcome: &Outcome) -> Vec<u64> {
    let readings = outcome.readings.iter();
    readings.map(|reading| reading.figures.remaining).collect()
}

/// What the narrow limit was charged comes back, and the client is told as if it had not been.
#[test]
fn what_a_wide_limit_refuses_is_given_back_to_the_narrow_one() {
    let bench = ShardedTestbed::new();
    let (own, all) = (bench.limit(0, 10, 1), bench.limit(1, 2, 0));
    let set = |cost| bench.set(&[(&own, cost), (&all, cost)]);
    let admitted = bench.charge(&set(2));
    assert!(admitted.admitted && admitted.source == Source::Exact);
    assert_eq!(remaining(&admitted), [8, 0]);
    let denied = bench.charge(&set(1));
    assert!(!denied.admitted && denied.source == Source::Exact);
    assert!(denied.readings[0].verdict.allows() && !denied.readings[1].verdict.allows());
    assert_eq!(remaining(&denied), [8, 0]);
    bench.pass(MS(5));
    assert_eq!([bench.used_units(&own), bench.used_units(&all)], [2, 2]);
}

/// In whichever order a rules file names them.
#[test]
fn a_narrow_refusal_leaves_the_wide_limit_alone_and_tells_of_it() {
    let bench = ShardedTestbed::new();
    let (all, own) = (bench.limit(1, 10, 0), bench.limit(0, 2, 1));
    let set = bench.set(&[(&all, 1), (&own, 1)]);
    for _ in 0..2 {
        assert!(bench.charge(&set).admitted);
    }
    let denied = bench.charge(&set);
    assert!(!denied.admitted);
    assert_eq!(remaining(&denied), [8, 0]);
    bench.pass(MS(5));
    assert_eq!(bench.used_units(&all), 2);
    assert_eq!(bench.refunds(&all), 0);
}

#[test]
fn budgets_in_several_parts_refuse_only_when_none_has_room() {
    let bench = ShardedTestbed::new();
    let (own, one, two) = (bench.limit(0, 10, 1), bench.quota(1, 1), bench.quota(2, 2));
    let set = bench.set(&[(&own, 1), (&one, 1), (&two, 1)]);
    let admitted: Vec<bool> = (0..3).map(|_| bench.charge(&set).admitted).collect();
    assert_eq!(admitted, [true, true, false]);
    bench.pass(MS(5));
    let used_units = [&own, &one, &two].map(|limit| bench.used_units(limit));
    assert_eq!(used_units, [2, 1, 2], "the third was given back");
}

#[test]
fn who_only_watches_counts_what_is_admitted_and_refuses_nothing() {
    let bench = ShardedTestbed::new();
    let (own, watching) = (bench.limit(0, 2, 1), bench.shadow(1, 1));
    let set = bench.set(&[(&own, 1), (&watching, 1)]);
    let outcomes: Vec<Outcome> = (0..3).map(|_| bench.charge(&set)).collect();
    let admitted: Vec<bool> = outcomes.iter().map(|o| o.admitted).collect();
    assert_eq!(admitted, [true, true, false]);
    let watched = |o: &Outcome| o.readings[1].verdict.allows();
    let watched: Vec<bool> = outcomes.iter().map(watched).collect();
    assert_eq!(watched, [true, false, false]);
    assert_eq!(bench.used_units(&watching), 1);
}

#[test]
fn a_second_refund_gives_nothing_back_in_any_part() {
    let bench = ShardedTestbed::new();
    let (own, all) = (bench.limit(0, 10, 1), bench.limit(1, 10, 0));
    let set = bench.set(&[(&own, 1), (&all, 1)]);
    let charged = bench.charge(&set);
    bench.charge(&set);
    let refund = Refund {
        id: 7,
        charged_at: charged.at,
        expires_at: charged.at.plus(Nanos::from_secs(60)),
        set,
    };
    let refunds = [(); 2].map(|()| bench.sim.block_on(bench.store.refund(&refund)));
    let refunds = refunds.map(|refunded| refunded.expect("an answer"));
    assert_eq!(refunds, [Refunded::Done, Refunded::Already]);
    assert_eq!([bench.used_units(&own), bench.used_units(&all)], [1, 1]);
}

/// Every node would refund it once, and the store once more.
#[test]
fn nothing_is_refunded_without_the_store_and_once_with_it() {
    let bench = ShardedTestbed::new();
    let own = bench.limit(0, 10, 1);
    let set = bench.set(&[(&own, 1)]);
    bench.set_conditions(
        0,
        NetworkConditions {
            down: true,
            ..NetworkConditions::HEALTHY
        },
    );
    let charged = bench.charge(&set);
    assert_eq!((charged.source, charged.admitted), (Source::Fallback, true));
    let refund = Refund {
        id: 7,
        charged_at: charged.at,
        expires_at: charged.at.plus(Nanos::from_secs(60)),
        set,
    };
    let refund = || bench.sim.block_on(bench.store.refund(&refund));
    assert!(refund().is_err());
    bench.set_conditions(0, NetworkConditions::HEALTHY);
    bench.pass(Nanos::from_secs(5));
    assert_eq!(bench.used_units(&own), 1, "charged afterwards");
    let refunds = [(); 2].map(|()| refund().expect("an answer"));
    assert_eq!(refunds, [Refunded::Done, Refunded::Already]);
    assert_eq!(bench.used_units(&own), 0);
}

fn is_opening(event: &StoreEvent) -> bool {
    matches!(event, StoreEvent::BreakerOpened { .. })
}

/// The budget is one for all steps, and the part that had no time left is not to blame.
#[test]
fn a_hung_part_costs_the_budget_once_and_the_next_step_is_decided_at_once() {
    let bench = ShardedTestbed::new();
    let (own, all) = (bench.limit(0, 10, 1), bench.limit(1, 10, 0));
    bench.set_conditions(0, HUNG);
    let set = bench.set(&[(&own, 1), (&all, 1)]);
    let began = bench.sim.now();
    let outcome = bench.charge(&set);
    assert_eq!(bench.sim.now().since(began), MS(25));
    assert!(outcome.admitted && outcome.source == Source::Late);
    bench.pass(MS(100));
    assert_eq!(
        bench.used_units(&all),
        1,
        "charged when there was time again"
    );
    let opened = bench.events_of(1).iter().any(is_opening);
    assert!(!opened);
}

/// The first step is so slow that the second has hardly any time.
#[test]
fn a_part_is_not_blamed_for_the_time_that_another_took() {
    let bench = ShardedTestbed::new();
    let all = bench.limit(1, 1_000, 0);
    bench.set_conditions(
        0,
        NetworkConditions {
            min_latency: Nanos::new(12_350_000),
            jitter: Nanos::ZERO,
            ..NetworkConditions::HEALTHY
        },
    );
    let mut local = 0;
    for _ in 0..30 {
        let own = bench.limit(0, 10, 1);
        let outcome = bench.charge(&bench.set(&[(&own, 1), (&all, 1)]));
        local += u64::from(outcome.source == Source::Late);
        bench.pass(MS(30)); // what is owed has been charged
    }
    assert!(local >= 10, "{local} of 30 had no time left");
    assert_eq!(bench.events_of(0), [], "it is in time");
    assert!(!bench.events_of(1).iter().any(is_opening));
    assert_eq!(bench.used_units(&all), 30);
}

/// Many were on their way when the slot left.
#[test]
fn a_part_is_not_blamed_for_what_has_left_it() {
    let bench = ShardedTestbed::new();
    let (leaves, stays) = (bench.limit(0, 100, 1), bench.limit(0, 100, 1));
    bench.move_away(&leaves, 1);
    let set = bench.set(&[(&leaves, 1)]);
    let outcomes = bench.sim.block_on(bench.store.charge_each(&[&set; 6]));
    let local = |o: &Outcome| o.admitted && o.source == Source::Fallback;
    assert!(outcomes.into_iter().all(|o| local(&o.expect("a decision"))));
    assert_eq!(bench.events_of(0), []);
    let stays = bench.charge(&bench.set(&[(&stays, 1)]));
    assert_eq!(stays.source, Source::Exact);
    bench.pass(MS(500));
    assert_eq!(bench.used_units(&leaves), 6, "where it is now");
    assert_eq!(bench.charge(&set).source, Source::Exact);
}

#[test]
fn a_part_that_is_down_takes_only_its_own_with_it() {
    let bench = ShardedTestbed::new();
    bench.set_conditions(0, DOWN);
    for shard in 0..SHARDS {
        let limit = bench.limit(shard, 100, 1);
        let outcomes = (0..20).map(|_| bench.charge(&bench.set(&[(&limit, 1)])));
        let want = match shard {
            0 => Source::Fallback,
            _ => Source::Exact,
        };
        for outcome in outcomes {
            assert_eq!(outcome.source, want, "part {shard}");
        }
    }
}

/// What was charged without the store is not owed when a part that has it refuses.
#[test]
fn a_local_charge_is_taken_back_too() {
    let bench = ShardedTestbed::new();
    bench.set_conditions(0, DOWN);
    let (own, all) = (bench.limit(0, 100, 1), bench.limit(1, 1, 0));
    let set = bench.set(&[(&own, 1), (&all, 1)]);
    let admitted: Vec<bool> = (0..4).map(|_| bench.charge(&set).admitted).collect();
    assert_eq!(admitted, [true, false, false, false]);
    bench.set_conditions(0, NetworkConditions::HEALTHY);
    bench.pass(Nanos::from_secs(2));
    assert_eq!([bench.used_units(&own), bench.used_units(&all)], [1, 1]);
}

#[test]
fn a_batch_is_answered_in_order_wherever_its_sets_are() {
    let bench = ShardedTestbed::new();
    let limits = [0, 1, 2].map(|shard| bench.limit(shard, 1, 1));
    let all = bench.limit(1, 100, 0);
    let sets = [
        bench.set(&[(&limits[0], 1)]),
        bench.set(&[(&limits[2], 1), (&all, 1)]),
        bench.set(&[(&limits[0], 1)]),
        bench.set(&[(&limits[1], 1)]),
        bench.set(&[]),
    ];
    let sets: Vec<&ChargeSet<'_>> = sets.iter().collect();
    let outcomes = bench.sim.block_on(bench.store.charge_each(&sets));
    let outcomes = outcomes
        .into_iter()
        .map(|result| result.expect("a decision"));
    let admitted: Vec<bool> = outcomes.map(|outcome| outcome.admitted).collect();
    assert_eq!(admitted, [true, true, false, true, true]);
}

#[test]
fn inspecting_and_resetting_reach_every_part() {
    let bench = ShardedTestbed::new();
    let (own, all) = (bench.limit(0, 10, 1), bench.limit(1, 10, 0));
    let set = bench.set(&[(&own, 3), (&all, 4)]);
    bench.charge(&set);
    let found = bench.sim.block_on(bench.store.inspect(&set));
    let used = found.expect("an answer").into_iter();
    let used: Vec<u64> = used.map(|one| one.map_or(0, |one| one.used)).collect();
    assert_eq!(used, [3, 4]);
    let reset = bench.sim.block_on(bench.store.reset(&set));
    assert_eq!(reset.expect("an answer"), 2);
    assert_eq!([bench.used_units(&own), bench.used_units(&all)], [0, 0]);
}

/// A rule that refuses without its store is refused for that, not for a limit of another part.
#[test]
fn a_rule_that_refuses_without_its_part_does_so_alone() {
    let bench = ShardedTestbed::new();
    let strict = RuleOptions {
        on_failure: OnStoreFailure::Deny,
        specificity: 1,
        ..RuleOptions::DEFAULT
    };
    let (own, all) = (
        bench.with(0, 10, Role::Enforce, strict),
        bench.limit(1, 10, 0),
    );
    bench.set_conditions(0, DOWN);
    let denied = bench.charge(&bench.set(&[(&own, 1), (&all, 1)]));
    assert!(!denied.admitted && denied.source == Source::Fallback);
    bench.pass(MS(5));
    assert_eq!(bench.used_units(&all), 0);
    assert!(bench.charge(&bench.set(&[(&all, 1)])).admitted);
}

/// A flood of requests that their own limits refuse, by ever other subjects so that no cache helps,
/// while others ask for about as much as the limit that all share has.
fn remaining_for_good_traffic(narrow: u8, wide: u8) -> (u64, u64) {
    const ATTACKERS: usize = 500;
    let bench = Arc::new(ShardedTestbed::new());
    let all = bench.bucket(1, 100, 4, wide);
    let used_up: Vec<_> = (0..ATTACKERS).map(|_| bench.limit(0, 1, narrow)).collect();
    for own in &used_up {
        assert!(bench.charge(&bench.set(&[(own, 1)])).admitted);
    }
    let used_up = Arc::new(used_up);
    let (end, flood) = (
        bench.sim.now().plus(Nanos::from_secs(4)),
        Arc::clone(&bench),
    );
    let shared = all.clone();
    bench.sim.spawn(Some(0), async move {
        for i in 0.. {
            let (bench, all, used_up) = (Arc::clone(&flood), shared.clone(), Arc::clone(&used_up));
            flood.sim.spawn(Some(0), async move {
                let set = bench.set(&[(&used_up[i % ATTACKERS], 1), (&all, 1)]);
                let outcome = bench.store.charge(&set).await;
                assert!(!outcome.expect("a decision").admitted);
            });
            flood.sim.sleep(Nanos::new(200_000)).await; // 5,000 each second
            if flood.sim.now() >= end {
                return;
            }
        }
    });
    let (mut requests, mut admitted) = (0, 0);
    while bench.sim.now() < end {
        let own = bench.limit(2, 10, narrow);
        requests += 1;
        admitted += u64::from(bench.charge(&bench.set(&[(&own, 1), (&all, 1)])).admitted);
        bench.pass(MS(11));
    }
    (requests, admitted)
}

#[test]
fn a_flood_of_refused_requests_leaves_the_shared_limit_to_the_others() {
    let (requests, admitted) = remaining_for_good_traffic(1, 0);
    assert!(admitted * 100 >= requests * 95, "{admitted} of {requests}");
    let (requests, admitted) = remaining_for_good_traffic(0, 1);
    assert!(
        admitted * 100 < requests * 95,
        "the widest first: {admitted} of {requests}"
    );
}

/// The time of day and a share have to do for what is in no part.
#[test]
fn what_is_in_no_part_is_decided_by_this_node_alone() {
    let bench = ShardedTestbed::without_shards();
    let limit = bench.limit(0, 100, 1);
    let outcomes = (0..100).map(|_| bench.charge(&bench.set(&[(&limit, 1)])));
    let outcomes: Vec<Outcome> = outcomes.collect();
    assert!(outcomes.iter().all(|o| o.source == Source::Fallback));
    assert!(outcomes[0].at >= DATE);
    let admitted = outcomes.iter().filter(|o| o.admitted).count();
    assert_eq!(admitted, 10, "an eighth of 80");
}
