//! Charges and peeks: all limits of a request are charged or none is, and each has a reading.

use tidegate_core::algorithms::{Algorithm, Retry, Verdict};
use tidegate_core::store::{Counters, Role, Source, Store};
use tidegate_core::subject::RuleName;

use super::{ConformanceCounter, Rig, charge, inspect, limit, set, tokens, used};

pub async fn each_algorithm_admits_its_limit_and_no_more(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 5));
        let mut admitted = 0;
        for _ in 0..8 {
            let outcome = charge(rig, [counter.enforce(&limit, 1)]).await;
            assert_eq!(outcome.admitted, outcome.readings[0].verdict.allows());
            assert_eq!(outcome.source, Source::Exact);
            admitted += u64::from(outcome.admitted);
        }
        assert_eq!(admitted, 5, "{algorithm}");
    }
}

pub async fn a_reading_includes_an_admitted_charge_but_no_denied_one(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), limit(rig, Algorithm::FixedWindow, 10));
    let first = charge(rig, [counter.enforce(&limit, 7)]).await;
    assert_eq!(first.readings[0].figures.remaining, 3);
    let denied = charge(rig, [counter.enforce(&limit, 4)]).await;
    assert!(!denied.admitted);
    assert_eq!(denied.readings[0].figures.remaining, 3);
}

pub async fn a_denial_by_the_last_limit_leaves_the_others_unchanged(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (wide, tight) = (limit(rig, algorithm, 100), limit(rig, algorithm, 2));
        let [a, b, fresh, c] = [(); 4].map(|()| ConformanceCounter::new());
        charge(rig, [a.enforce(&wide, 3), b.enforce(&wide, 4), c.enforce(&tight, 2)]).await;
        let before = [inspect(rig, a.enforce(&wide, 1)).await, inspect(rig, b.enforce(&wide, 1)).await];
        let all = [a.enforce(&wide, 1), b.enforce(&wide, 1), fresh.enforce(&wide, 1), c.enforce(&tight, 1)];
        let denied = charge(rig, all).await;
        assert!(!denied.admitted, "{algorithm}");
        let allows: Vec<bool> = denied.readings.iter().map(|r| r.verdict.allows()).collect();
        assert_eq!(allows, [true, true, true, false], "{algorithm}");
        let after = [inspect(rig, a.enforce(&wide, 1)).await, inspect(rig, b.enforce(&wide, 1)).await];
        assert_eq!(before.map(|i| i.map(|i| i.used)), after.map(|i| i.map(|i| i.used)));
        assert_eq!(used(rig, &fresh, &wide).await, 0, "{algorithm}");
    }
}

pub async fn a_ceiling_leaves_the_rest_to_charges_with_a_higher_one(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, all) = (ConformanceCounter::new(), limit(rig, algorithm, 20));
        let [low, middle] = [16, 19].map(|units| all.with_ceiling(units));
        let mut admitted = [0; 3];
        for (i, limit) in [&low, &middle, &all, &low].into_iter().enumerate() {
            for _ in 0..21 {
                let outcome = charge(rig, [counter.enforce(limit, 1)]).await;
                admitted[i % 3] += u64::from(outcome.admitted);
                let left = limit.capacity().saturating_sub(admitted.iter().sum());
                let remaining = outcome.readings[0].figures.remaining;
                assert_eq!(remaining, left, "{algorithm}: {admitted:?}");
            }
        }
        assert_eq!(admitted, [16, 3, 1], "{algorithm}");
        assert_eq!(used(rig, &counter, &all).await, 20, "{algorithm}");
        let too_much = charge(rig, [counter.enforce(&low, 17)]).await;
        let never = Verdict::Deny { retry: Retry::Never };
        assert_eq!(too_much.readings[0].verdict, never, "{algorithm}");
    }
}

pub async fn a_denial_by_a_ceiling_leaves_the_others_unchanged(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let all = limit(rig, algorithm, 10);
        let low = all.with_ceiling(8);
        // Of one subject, so that every store charges them in one step.
        let shared = ConformanceCounter::new();
        let wide = ConformanceCounter { rule: RuleName::new("wide"), subject: shared.subject };
        charge(rig, [shared.enforce(&all, 8)]).await;
        let both = |limit| [wide.enforce(&all, 1), shared.enforce(limit, 1)];
        let denied = charge(rig, both(&low)).await;
        assert!(!denied.admitted, "{algorithm}");
        assert_eq!(used(rig, &wide, &all).await, 0, "{algorithm}");
        assert_eq!(used(rig, &shared, &all).await, 8, "{algorithm}");
        assert!(charge(rig, both(&all)).await.admitted, "{algorithm}");
        assert_eq!(used(rig, &wide, &all).await, 1, "{algorithm}");
        assert_eq!(used(rig, &shared, &all).await, 9, "{algorithm}");
    }
}

pub async fn a_shadow_never_denies_and_is_charged_only_with_the_request(rig: &impl Rig) {
    let (roomy, tight) = (tokens(rig, 10), tokens(rig, 1));
    let (enforced, shadow) = (ConformanceCounter::new(), ConformanceCounter::new());
    for (passes, shadow_used) in [(true, 1), (true, 1)] {
        let both = [enforced.enforce(&roomy, 1), shadow.charge(&tight, 1, Role::Shadow)];
        let outcome = charge(rig, both).await;
        assert_eq!(outcome.admitted, passes);
        assert_eq!(used(rig, &shadow, &tight).await, shadow_used);
    }
    // Denied by the enforced limit: the shadow has a verdict, and is not charged.
    let other = ConformanceCounter::new();
    let both = [enforced.enforce(&roomy, 10), other.charge(&tight, 1, Role::Shadow)];
    let outcome = charge(rig, both).await;
    assert!(!outcome.admitted && outcome.readings[1].verdict.allows());
    assert_eq!(used(rig, &other, &tight).await, 0);
    // Alone it is allowed even when the shadow would deny.
    let alone = charge(rig, [shadow.charge(&tight, 1, Role::Shadow)]).await;
    assert!(alone.admitted && !alone.readings[0].verdict.allows());
}

pub async fn quotas_deny_only_when_none_has_room(rig: &impl Rig) {
    let (small, large) = (tokens(rig, 1), tokens(rig, 2));
    let (a, b) = (ConformanceCounter::new(), ConformanceCounter::new());
    for (admitted, used_a, used_b) in [(true, 1, 1), (true, 1, 2), (false, 1, 2)] {
        let both = [a.charge(&small, 1, Role::Quota), b.charge(&large, 1, Role::Quota)];
        assert_eq!(charge(rig, both).await.admitted, admitted);
        assert_eq!(used(rig, &a, &small).await, used_a);
        assert_eq!(used(rig, &b, &large).await, used_b);
    }
}

pub async fn a_counter_named_twice_is_charged_twice(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), tokens(rig, 3));
    let twice = || [counter.enforce(&limit, 1), counter.enforce(&limit, 1)];
    assert!(charge(rig, twice()).await.admitted);
    let denied = charge(rig, twice()).await;
    assert!(!denied.admitted, "one is left and two are requested");
    assert_eq!(used(rig, &counter, &limit).await, 2);
}

pub async fn a_peek_decides_like_a_charge_and_spends_nothing(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), tokens(rig, 2));
    charge(rig, [counter.enforce(&limit, 1)]).await;
    for (cost, admitted) in [(1, true), (2, false), (1, true)] {
        let peeked = rig.store().peek(&set([counter.enforce(&limit, cost)])).await;
        let peeked = peeked.expect("a store that replies");
        assert_eq!(peeked.admitted, admitted);
        assert_eq!(peeked.readings[0].figures.remaining, 1);
    }
}

pub async fn a_cost_above_the_capacity_never_fits(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 5));
        let outcome = charge(rig, [counter.enforce(&limit, 6)]).await;
        let never = Verdict::Deny { retry: Retry::Never };
        assert_eq!(outcome.readings[0].verdict, never, "{algorithm}");
        assert_eq!(used(rig, &counter, &limit).await, 0);
    }
}

pub async fn a_batch_is_decided_in_order(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), tokens(rig, 2));
    let sets = [1, 5, 1, 1].map(|cost| set([counter.enforce(&limit, cost)]));
    let outcomes = rig.store().charge_each(&sets.each_ref()).await;
    let admitted: Vec<bool> =
        outcomes.into_iter().map(|outcome| outcome.expect("a store that replies").admitted).collect();
    assert_eq!(admitted, [true, false, true, false]);
}
