//! Other changes of a counter than charges: refunds, leases, debts, restores, resets.

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Counters, Refund, Refunded, Restore};
use tidegate_core::units::Nanos;

use super::{ConformanceCounter, HOUR, Rig, anyone, charge, inspect, limit, set, tokens, used};

pub async fn a_refund_counts_once(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 10));
        let charged = charge(rig, [counter.enforce(&limit, 4)]).await;
        let refund = |id| Refund {
            id,
            charged_at: charged.at,
            expires_at: charged.at.plus(HOUR),
            set: set([counter.enforce(&limit, 4)]),
        };
        let id = anyone().bits();
        for (want, left) in [(Refunded::Done, 0), (Refunded::Already, 5)] {
            let refunded = rig.store().refund(&refund(id)).await;
            assert_eq!(refunded.expect("a store that replies"), want, "{algorithm}");
            assert_eq!(used(rig, &counter, &limit).await, left, "{algorithm}");
            charge(rig, [counter.enforce(&limit, 5)]).await;
        }
        rig.advance(HOUR);
        let late = rig.store().refund(&refund(anyone().bits())).await;
        assert_eq!(late.expect("a store that replies"), Refunded::Lapsed);
    }
}

/// A full refund after a part has drained would break the bound of the bucket.
pub async fn a_refund_is_capped_by_what_has_not_drained(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), tokens(rig, 10));
    let charged = charge(rig, [counter.enforce(&limit, 4)]).await;
    rig.advance(Nanos::from_secs(720)); // two tokens
    charge(rig, [counter.enforce(&limit, 8)]).await;
    let refund = Refund {
        id: anyone().bits(),
        charged_at: charged.at,
        expires_at: charged.at.plus(HOUR),
        set: set([counter.enforce(&limit, 4)]),
    };
    rig.store().refund(&refund).await.expect("a refund");
    assert_eq!(used(rig, &counter, &limit).await, 8, "10 used, 2 of 4 drained, 2 refunded");
}

pub async fn a_lease_draws_half_of_what_remains_or_an_eighth_of_the_request(rig: &impl Rig) {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        let by_half = [(4, 4, 6), (24, 3, 3), (2, 2, 1), (8, 1, 0), (5, 0, 0)];
        check_draws(rig, algorithm, &by_half).await;
        let by_eighth = [(56, 7, 3), (20, 3, 0), (5, 0, 0)];
        check_draws(rig, algorithm, &by_eighth).await;
    }
}

/// Draws from a limit of ten: the units requested, drawn and remaining.
async fn check_draws(rig: &impl Rig, algorithm: Algorithm, draws: &[(u64, u64, u64)]) {
    let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 10));
    for (requested, got, left) in draws {
        let drawn = rig.store().draw(&counter.enforce(&limit, *requested)).await;
        let drawn = drawn.expect("a store that replies");
        let found = (drawn.units, drawn.figures.remaining);
        assert_eq!(found, (*got, *left), "of {requested} by {algorithm}");
    }
}

pub async fn a_forced_charge_is_a_debt(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 10));
        charge(rig, [counter.enforce(&limit, 6)]).await;
        let forced = rig.store().force(&set([counter.enforce(&limit, 9)])).await;
        let forced = forced.expect("a store that replies");
        assert!(forced.admitted && !forced.readings[0].verdict.allows(), "{algorithm}");
        assert_eq!(forced.readings[0].figures.remaining, 0, "{algorithm}");
        assert_eq!(used(rig, &counter, &limit).await, 15, "{algorithm}");
        assert!(!charge(rig, [counter.enforce(&limit, 1)]).await.admitted, "{algorithm}");
    }
}

pub async fn a_restore_raises_a_counter_and_never_lowers_it(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 10));
        let now = charge(rig, [ConformanceCounter::new().enforce(&limit, 1)]).await.at;
        for (restored, want) in [(4, 4), (2, 4), (7, 7)] {
            let restore = Restore { charge: counter.enforce(&limit, 1), state: limit.with_used(restored, now) };
            rig.store().restore(&[restore]).await.expect("a state that fits");
            assert_eq!(used(rig, &counter, &limit).await, want, "{algorithm}");
        }
    }
}

pub async fn inspection_shows_usage_and_reset_clears_it(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 10));
        assert_eq!(inspect(rig, counter.enforce(&limit, 1)).await, None);
        charge(rig, [counter.enforce(&limit, 3)]).await;
        let found = inspect(rig, counter.enforce(&limit, 1)).await.expect("a counter");
        assert_eq!((found.used, found.figures.remaining), (3, 7), "{algorithm}");
        for reset_count in [1, 0] {
            let reset = rig.store().reset(&set([counter.enforce(&limit, 1)])).await;
            assert_eq!(reset.expect("a store that replies"), reset_count, "{algorithm}");
        }
        assert_eq!(inspect(rig, counter.enforce(&limit, 1)).await, None);
        charge(rig, [counter.enforce(&limit, 3)]).await;
        rig.advance(Nanos::from_secs(3 * 3_600));
        assert_eq!(inspect(rig, counter.enforce(&limit, 1)).await, None, "refilled");
    }
}
