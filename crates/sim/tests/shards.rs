//! Requests with limits on several shards: charges, refunds and readings.

mod testbed;

use std::sync::Arc;

use testbed::{DATE, MS, SHARDS, ShardLimit, ShardedTestbed};
use tidegate::resilience::StoreEvent;
use tidegate_core::store::{
    ChargeSet, Counters, Counting, Degraded, OnStoreFailure, Outcome, Refund, Refunded, Role, RuleOptions, Source,
    Store,
};
use tidegate_core::units::Nanos;
use tidegate_sim::model::NetworkConditions;

const DOWN: NetworkConditions = NetworkConditions { down: true, ..NetworkConditions::HEALTHY };
const HUNG: NetworkConditions = NetworkConditions { hung: true, ..NetworkConditions::HEALTHY };

fn remaining(outcome: &Outcome) -> Vec<u64> {
    let readings = outcome.readings.iter();
    readings.map(|reading| reading.figures.remaining).collect()
}

/// The charge of the narrow limit is refunded, and the client sees the reading without it.
#[test]
fn a_denial_by_a_wide_limit_refunds_the_narrow_one() {
    let setup = ShardedTestbed::new();
    let (own, all) = (setup.limit(0, 10, 1), setup.limit(1, 2, 0));
    let set = |cost| setup.set(&[(&own, cost), (&all, cost)]);
    let admitted = setup.charge(&set(2));
    assert!(admitted.admitted && admitted.source == Source::Exact);
    assert_eq!(remaining(&admitted), [8, 0]);
    let denied = setup.charge(&set(1));
    assert!(!denied.admitted && denied.source == Source::Exact);
    assert!(denied.readings[0].verdict.allows() && !denied.readings[1].verdict.allows());
    assert_eq!(remaining(&denied), [8, 0]);
    setup.pass(MS(5));
    assert_eq!([setup.used_units(&own), setup.used_units(&all)], [2, 2]);
}

/// In any order of the rules file.
#[test]
fn a_denial_by_a_narrow_limit_charges_no_wide_one_and_still_reads_it() {
    let setup = ShardedTestbed::new();
    let (all, own) = (setup.limit(1, 10, 0), setup.limit(0, 2, 1));
    let set = setup.set(&[(&all, 1), (&own, 1)]);
    for _ in 0..2 {
        assert!(setup.charge(&set).admitted);
    }
    let denied = setup.charge(&set);
    assert!(!denied.admitted);
    assert_eq!(remaining(&denied), [8, 0]);
    setup.pass(MS(5));
    assert_eq!(setup.used_units(&all), 2);
    assert_eq!(setup.refunds(&all), 0);
}

#[test]
fn quotas_on_several_shards_deny_only_when_none_has_room() {
    let setup = ShardedTestbed::new();
    let (own, one, two) = (setup.limit(0, 10, 1), setup.quota(1, 1), setup.quota(2, 2));
    let set = setup.set(&[(&own, 1), (&one, 1), (&two, 1)]);
    let admitted: Vec<bool> = (0..3).map(|_| setup.charge(&set).admitted).collect();
    assert_eq!(admitted, [true, true, false]);
    setup.pass(MS(5));
    let used_units = [&own, &one, &two].map(|limit| setup.used_units(limit));
    assert_eq!(used_units, [2, 1, 2], "the third was refunded");
}

#[test]
fn a_shadow_limit_counts_admissions_and_denies_nothing() {
    let setup = ShardedTestbed::new();
    let (own, watching) = (setup.limit(0, 2, 1), setup.shadow(1, 1));
    let set = setup.set(&[(&own, 1), (&watching, 1)]);
    let outcomes: Vec<Outcome> = (0..3).map(|_| setup.charge(&set)).collect();
    let admitted: Vec<bool> = outcomes.iter().map(|o| o.admitted).collect();
    assert_eq!(admitted, [true, true, false]);
    let watched = |o: &Outcome| o.readings[1].verdict.allows();
    let watched: Vec<bool> = outcomes.iter().map(watched).collect();
    assert_eq!(watched, [true, false, false]);
    assert_eq!(setup.used_units(&watching), 1);
}

#[test]
fn a_second_refund_changes_no_shard() {
    let setup = ShardedTestbed::new();
    let (own, all) = (setup.limit(0, 10, 1), setup.limit(1, 10, 0));
    let set = setup.set(&[(&own, 1), (&all, 1)]);
    let charged = setup.charge(&set);
    setup.charge(&set);
    let refund = Refund { id: 7, charged_at: charged.at, expires_at: charged.at.plus(Nanos::from_secs(60)), set };
    let refunds = [(); 2].map(|()| setup.sim.block_on(setup.store.refund(&refund)));
    let refunds = refunds.map(|refunded| refunded.expect("a reply"));
    assert_eq!(refunds, [Refunded::Done, Refunded::Already]);
    assert_eq!([setup.used_units(&own), setup.used_units(&all)], [1, 1]);
}

/// A rule of a receipt that has changed is left out of its refund. The mark of the refund was under an id that depended
/// on how many limits were left, and the rest was refunded once more.
#[test]
fn a_refund_of_fewer_limits_is_recognised_as_made_before() {
    let setup = ShardedTestbed::new();
    let (own, all) = (setup.limit(0, 10, 1), setup.limit(1, 10, 0));
    let set = setup.set(&[(&own, 1), (&all, 1)]);
    let charged = setup.charge(&set);
    setup.charge(&set);
    let refund = |id: u128, limits: &[(&ShardLimit, u64)]| {
        let expires_at = charged.at.plus(Nanos::from_secs(60));
        let refund = Refund { id, charged_at: charged.at, expires_at, set: setup.set(limits) };
        setup.sim.block_on(setup.store.refund(&refund)).expect("a reply")
    };
    assert_eq!(refund(7, &[(&own, 1), (&all, 1)]), Refunded::Done);
    assert_eq!([refund(7, &[(&own, 1)]), refund(7, &[(&all, 1)])], [Refunded::Already; 2]);
    assert_eq!([setup.used_units(&own), setup.used_units(&all)], [1, 1]);
}

/// Otherwise every node would refund it once, and the store once more.
#[test]
fn a_refund_fails_without_the_store_and_happens_once_with_it() {
    let setup = ShardedTestbed::new();
    let own = setup.limit(0, 10, 1);
    let set = setup.set(&[(&own, 1)]);
    setup.set_conditions(0, NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
    let charged = setup.charge(&set);
    assert_eq!((charged.source, charged.admitted), (Source::Fallback, true));
    let refund = Refund { id: 7, charged_at: charged.at, expires_at: charged.at.plus(Nanos::from_secs(60)), set };
    let refund = || setup.sim.block_on(setup.store.refund(&refund));
    assert!(refund().is_err());
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.pass(Nanos::from_secs(5));
    assert_eq!(setup.used_units(&own), 1, "charged afterwards");
    let refunds = [(); 2].map(|()| refund().expect("a reply"));
    assert_eq!(refunds, [Refunded::Done, Refunded::Already]);
    assert_eq!(setup.used_units(&own), 0);
}

fn is_opening(event: &StoreEvent) -> bool {
    matches!(event, StoreEvent::BreakerOpened { .. })
}

/// All steps share one budget, and a shard without time left is not blamed.
#[test]
fn a_hung_shard_costs_the_budget_once_and_the_next_step_is_decided_at_once() {
    let setup = ShardedTestbed::new();
    let (own, all) = (setup.limit(0, 10, 1), setup.limit(1, 10, 0));
    setup.set_conditions(0, HUNG);
    let set = setup.set(&[(&own, 1), (&all, 1)]);
    let began = setup.sim.now();
    let outcome = setup.charge(&set);
    assert_eq!(setup.sim.now().since(began), MS(25));
    assert!(outcome.admitted && outcome.source == Source::Late);
    setup.pass(MS(100));
    assert_eq!(setup.used_units(&all), 1, "charged when there was time again");
    let opened = setup.events_of(1).iter().any(is_opening);
    assert!(!opened);
}

/// The sum of the costs overflowed: the decision panicked, and its counters were never free of late charges again.
#[test]
fn a_late_reply_to_any_cost_is_a_denial() {
    let setup = ShardedTestbed::new();
    let own = setup.limit(0, 10, 1);
    let mut set = setup.set(&[(&own, u64::MAX), (&own, u64::MAX)]);
    set.charges[1].rate = 1;
    setup.set_conditions(0, HUNG);
    let denied = setup.charge(&set);
    assert!(!denied.admitted && denied.source == Source::Late);
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.pass(Nanos::from_secs(1));
    assert_eq!(setup.charge(&set).source, Source::Exact);
    assert_eq!(setup.events_of(0), [StoreEvent::Unconfirmed { units: 40 }], "a store counts at most twice a limit");
}

/// The first step is so slow that the second has hardly any time.
#[test]
fn a_shard_is_not_blamed_for_the_latency_of_another() {
    let setup = ShardedTestbed::new();
    let all = setup.limit(1, 1_000, 0);
    setup.set_conditions(
        0,
        NetworkConditions { min_latency: Nanos::new(12_350_000), jitter: Nanos::ZERO, ..NetworkConditions::HEALTHY },
    );
    let mut local = 0;
    for _ in 0..30 {
        let own = setup.limit(0, 10, 1);
        let outcome = setup.charge(&setup.set(&[(&own, 1), (&all, 1)]));
        local += u64::from(outcome.source == Source::Late);
        setup.pass(MS(30)); // the pending units have been written back
    }
    assert!(local >= 10, "{local} of 30 ran out of time");
    assert_eq!(setup.events_of(0), [], "shard 0 replies in time");
    assert!(!setup.events_of(1).iter().any(is_opening));
    assert_eq!(setup.used_units(&all), 30);
}

/// Many calls were in flight when the hash slot moved.
#[test]
fn a_shard_is_not_blamed_for_calls_to_a_moved_hash_slot() {
    let setup = ShardedTestbed::new();
    let (leaves, stays) = (setup.limit(0, 100, 1), setup.limit(0, 100, 1));
    setup.move_away(&leaves, 1);
    let set = setup.set(&[(&leaves, 1)]);
    let outcomes = setup.sim.block_on(setup.store.charge_each(&[&set; 6]));
    let local = |o: &Outcome| o.admitted && o.source == Source::Fallback;
    assert!(outcomes.into_iter().all(|o| local(&o.expect("a decision"))));
    assert_eq!(setup.events_of(0), []);
    let stays = setup.charge(&setup.set(&[(&stays, 1)]));
    assert_eq!(stays.source, Source::Exact);
    setup.pass(MS(500));
    assert_eq!(setup.used_units(&leaves), 6, "on its new shard");
    assert_eq!(setup.charge(&set).source, Source::Exact);
}

#[test]
fn a_shard_that_is_down_affects_only_its_own_limits() {
    let setup = ShardedTestbed::new();
    setup.set_conditions(0, DOWN);
    for shard in 0..SHARDS {
        let limit = setup.limit(shard, 100, 1);
        let outcomes = (0..20).map(|_| setup.charge(&setup.set(&[(&limit, 1)])));
        let want = match shard {
            0 => Source::Fallback,
            _ => Source::Exact,
        };
        for outcome in outcomes {
            assert_eq!(outcome.source, want, "shard {shard}");
        }
    }
}

/// A local charge is not pending when a shard with the store denies.
#[test]
fn a_local_charge_is_refunded_too() {
    let setup = ShardedTestbed::new();
    setup.set_conditions(0, DOWN);
    let (own, all) = (setup.limit(0, 100, 1), setup.limit(1, 1, 0));
    let set = setup.set(&[(&own, 1), (&all, 1)]);
    let admitted: Vec<bool> = (0..4).map(|_| setup.charge(&set).admitted).collect();
    assert_eq!(admitted, [true, false, false, false]);
    setup.set_conditions(0, NetworkConditions::HEALTHY);
    setup.pass(Nanos::from_secs(2));
    assert_eq!([setup.used_units(&own), setup.used_units(&all)], [1, 1]);
}

#[test]
fn the_results_of_a_batch_are_in_order_across_shards() {
    let setup = ShardedTestbed::new();
    let limits = [0, 1, 2].map(|shard| setup.limit(shard, 1, 1));
    let all = setup.limit(1, 100, 0);
    let sets = [
        setup.set(&[(&limits[0], 1)]),
        setup.set(&[(&limits[2], 1), (&all, 1)]),
        setup.set(&[(&limits[0], 1)]),
        setup.set(&[(&limits[1], 1)]),
        setup.set(&[]),
    ];
    let sets: Vec<&ChargeSet<'_>> = sets.iter().collect();
    let outcomes = setup.sim.block_on(setup.store.charge_each(&sets));
    let outcomes = outcomes.into_iter().map(|result| result.expect("a decision"));
    let admitted: Vec<bool> = outcomes.map(|outcome| outcome.admitted).collect();
    assert_eq!(admitted, [true, true, false, true, true]);
}

#[test]
fn inspect_and_reset_reach_every_shard() {
    let setup = ShardedTestbed::new();
    let (own, all) = (setup.limit(0, 10, 1), setup.limit(1, 10, 0));
    let set = setup.set(&[(&own, 3), (&all, 4)]);
    setup.charge(&set);
    let found = setup.sim.block_on(setup.store.inspect(&set));
    let used = found.expect("a reply").into_iter();
    let used: Vec<u64> = used.map(|one| one.map_or(0, |one| one.used)).collect();
    assert_eq!(used, [3, 4]);
    let reset = setup.sim.block_on(setup.store.reset(&set));
    assert_eq!(reset.expect("a reply"), 2);
    assert_eq!([setup.used_units(&own), setup.used_units(&all)], [0, 0]);
}

/// A rule with `on_store_failure: deny` denies for its own shard, not for a limit of another shard.
#[test]
fn a_rule_that_denies_without_its_shard_charges_no_other_shard() {
    let setup = ShardedTestbed::new();
    let strict = RuleOptions { on_failure: OnStoreFailure::Deny, specificity: 1, ..RuleOptions::DEFAULT };
    let (own, all) = (setup.with(0, 10, Role::Enforce, strict), setup.limit(1, 10, 0));
    setup.set_conditions(0, DOWN);
    let denied = setup.charge(&setup.set(&[(&own, 1), (&all, 1)]));
    assert!(!denied.admitted && denied.source == Source::Fallback);
    assert_eq!(denied.degraded, Some(Degraded::DeniedByPolicy { charge: 0 }));
    let denied = setup.charge(&setup.set(&[(&all, 1), (&own, 1)]));
    assert_eq!(denied.degraded, Some(Degraded::DeniedByPolicy { charge: 1 }), "its position in the whole set");
    setup.pass(MS(5));
    assert_eq!(setup.used_units(&all), 0);
    assert!(setup.charge(&setup.set(&[(&all, 1)])).admitted);
}

/// The limit of the shard that works is exhausted. The rule of the other shard has no part in the denial.
#[test]
fn a_denial_by_a_working_shard_is_none_by_policy() {
    let setup = ShardedTestbed::new();
    let strict = RuleOptions { on_failure: OnStoreFailure::Deny, specificity: 0, ..RuleOptions::DEFAULT };
    let (own, all) = (setup.limit(0, 10, 1), setup.with(1, 1, Role::Enforce, strict));
    let set = setup.set(&[(&own, 1), (&all, 1)]);
    assert_eq!(setup.charge(&set).degraded, None);
    setup.set_conditions(0, DOWN);
    let denied = setup.charge(&set);
    assert!(!denied.admitted && denied.readings[0].verdict.allows());
    assert_eq!(denied.degraded, Some(Degraded::StoreUnavailable));
}

/// The reading of the second limit, which the first one did not need, was cached as a denial by the store: 429 for 503.
#[test]
fn a_denial_that_only_a_fallback_has_read_is_not_cached() {
    let setup = ShardedTestbed::new();
    let lenient = RuleOptions { counting: Counting::Lenient, specificity: 1, ..RuleOptions::DEFAULT };
    let strict = RuleOptions { on_failure: OnStoreFailure::Deny, ..RuleOptions::DEFAULT };
    let (own, all) = (setup.with(0, 1, Role::Enforce, lenient), setup.with(1, 10, Role::Enforce, strict));
    setup.set_conditions(1, DOWN);
    setup.pass(Nanos::from_secs(2));
    assert!(setup.charge(&setup.set(&[(&own, 1)])).admitted);
    let denied = setup.charge(&setup.set(&[(&own, 1), (&all, 1)]));
    assert_eq!((denied.admitted, denied.source, denied.degraded), (false, Source::Lenient, None));
    assert!(!denied.readings[1].verdict.allows());
    let denied = setup.charge(&setup.set(&[(&all, 1)]));
    assert_eq!(denied.degraded, Some(Degraded::DeniedByPolicy { charge: 0 }));
}

/// A flood of requests that their own limits deny, from ever new subjects so that no cache helps, while other
/// clients send about as much as the shared limit allows.
fn remaining_for_good_traffic(narrow: u8, wide: u8) -> (u64, u64) {
    const ATTACKERS: usize = 500;
    let setup = Arc::new(ShardedTestbed::new());
    let all = setup.bucket(1, 100, 4, wide);
    let used_up: Vec<_> = (0..ATTACKERS).map(|_| setup.limit(0, 1, narrow)).collect();
    for own in &used_up {
        assert!(setup.charge(&setup.set(&[(own, 1)])).admitted);
    }
    let used_up = Arc::new(used_up);
    let (end, flood) = (setup.sim.now().plus(Nanos::from_secs(4)), Arc::clone(&setup));
    let shared = all.clone();
    setup.sim.spawn(Some(0), async move {
        for i in 0.. {
            let (setup, all, used_up) = (Arc::clone(&flood), shared.clone(), Arc::clone(&used_up));
            flood.sim.spawn(Some(0), async move {
                let set = setup.set(&[(&used_up[i % ATTACKERS], 1), (&all, 1)]);
                let outcome = setup.store.charge(&set).await;
                assert!(!outcome.expect("a decision").admitted);
            });
            flood.sim.sleep(Nanos::new(200_000)).await; // 5,000 each second
            if flood.sim.now() >= end {
                return;
            }
        }
    });
    let (mut requests, mut admitted) = (0, 0);
    while setup.sim.now() < end {
        let own = setup.limit(2, 10, narrow);
        requests += 1;
        admitted += u64::from(setup.charge(&setup.set(&[(&own, 1), (&all, 1)])).admitted);
        setup.pass(MS(11));
    }
    (requests, admitted)
}

#[test]
fn a_flood_of_denied_requests_leaves_the_shared_limit_to_other_clients() {
    let (requests, admitted) = remaining_for_good_traffic(1, 0);
    assert!(admitted * 100 >= requests * 95, "{admitted} of {requests}");
    let (requests, admitted) = remaining_for_good_traffic(0, 1);
    assert!(admitted * 100 < requests * 95, "with the widest limit first: {admitted} of {requests}");
}

/// Without a shard, this node's clock and share decide.
#[test]
fn a_subject_without_a_shard_is_decided_by_this_node_alone() {
    let setup = ShardedTestbed::without_shards();
    let limit = setup.limit(0, 100, 1);
    let outcomes = (0..100).map(|_| setup.charge(&setup.set(&[(&limit, 1)])));
    let outcomes: Vec<Outcome> = outcomes.collect();
    assert!(outcomes.iter().all(|o| o.source == Source::Fallback));
    assert!(outcomes[0].at >= DATE);
    let admitted = outcomes.iter().filter(|o| o.admitted).count();
    assert_eq!(admitted, 10, "an eighth of 80");
}
