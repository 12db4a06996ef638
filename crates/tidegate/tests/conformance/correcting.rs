//! What changes a counter besides a charge: refunds, grants, debts, seeds, resets.

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Refund, Refunded, Seed, Store};
use tidegate_core::units::Nanos;

use super::{Counter, HOUR, Rig, anyone, charge, inspect, limit, set, tokens, used};

pub async fn a_refund_gives_back_once(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 10));
        let charged = charge(rig, [counter.enforce(&limit, 4)]).await;
        let refund = |id| Refund {
            id,
            charged: charged.at,
            until: charged.at.plus(HOUR),
            set: set([counter.enforce(&limit, 4)]),
        };
        let id = anyone().bits();
        for (want, left) in [(Refunded::Done, 0), (Refunded::Already, 5)] {
            let refunded = rig.store().refund(&refund(id)).await;
            assert_eq!(refunded.expect("a store that answers"), want, "{algorithm}");
            assert_eq!(used(rig, &counter, &limit).await, left, "{algorithm}");
            charge(rig, [counter.enforce(&limit, 5)]).await;
        }
        rig.advance(HOUR);
        let late = rig.store().refund(&refund(anyone().bits())).await;
        assert_eq!(late.expect("a store that answers"), Refunded::Lapsed);
    }
}

/// A full refund after part has drained would lift the bound of the bucket.
pub async fn a_refund_is_capped_by_what_has_not_drained(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), tokens(rig, 10));
    let charged = charge(rig, [counter.enforce(&limit, 4)]).await;
    rig.advance(Nanos::from_secs(720)); // two tokens
    charge(rig, [counter.enforce(&limit, 8)]).await;
    let refund = Refund {
        id: anyone().bits(),
        charged: charged.at,
        until: charged.at.plus(HOUR),
        set: set([counter.enforce(&limit, 4)]),
    };
    rig.store().refund(&refund).await.expect("a refund");
    assert_eq!(
        used(rig, &counter, &limit).await,
        8,
        "10 used, 2 of 4 drained, 2 given back"
    );
}

pub async fn a_grant_takes_half_of_what_is_left_or_an_eighth_of_what_is_asked(rig: &impl Rig) {
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        let by_half = [(4, 4, 6), (24, 3, 3), (2, 2, 1), (8, 1, 0), (5, 0, 0)];
        check_grants(rig, algorithm, &by_half).await;
        let by_eighth = [(56, 7, 3), (20, 3, 0), (5, 0, 0)];
        check_grants(rig, algorithm, &by_eighth).await;
    }
}

/// Of ten, what is asked for, given and left.
async fn check_grants(rig: &impl Rig, algorithm: Algorithm, grants: &[(u64, u64, u64)]) {
    let (counter, limit) = (Counter::new(), limit(rig, algorithm, 10));
    for (asked, got, left) in grants {
        let granted = rig.store().grant(&counter.enforce(&limit, *asked)).await;
        let granted = granted.expect("a store that answers");
        let told = (granted.units, granted.figures.remaining);
        assert_eq!(told, (*got, *left), "of {asked} by {algorithm}");
    }
}

pub async fn a_forced_charge_is_a_debt(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 10));
        charge(rig, [counter.enforce(&limit, 6)]).await;
        let forced = rig.store().force(&set([counter.enforce(&limit, 9)])).await;
        let forced = forced.expect("a store that answers");
        assert!(
            forced.admitted && !forced.readings[0].verdict.allows(),
            "{algorithm}"
        );
        assert_eq!(forced.readings[0].figures.remaining, 0, "{algorithm}");
        assert_eq!(used(rig, &counter, &limit).await, 15, "{algorithm}");
        assert!(
            !charge(rig, [counter.enforce(&limit, 1)]).await.admitted,
            "{algorithm}"
        );
    }
}

pub async fn a_seed_raises_a_counter_and_never_lowers_it(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 10));
        let now = charge(rig, [Counter::new().enforce(&limit, 1)]).await.at;
        for (seeded, want) in [(4, 4), (2, 4), (7, 7)] {
            let seed = Seed {
                charge: counter.enforce(&limit, 1),
                state: limit.holding(seeded, now),
            };
            rig.store().seed(&[seed]).await.expect("a seed that fits");
            assert_eq!(used(rig, &counter, &limit).await, want, "{algorithm}");
        }
    }
}

pub async fn inspection_shows_use_and_reset_forgets_it(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 10));
        assert_eq!(inspect(rig, counter.enforce(&limit, 1)).await, None);
        charge(rig, [counter.enforce(&limit, 3)]).await;
        let found = inspect(rig, counter.enforce(&limit, 1))
            .await
            .expect("a counter");
        assert_eq!((found.used, found.figures.remaining), (3, 7), "{algorithm}");
        for forgotten in [1, 0] {
            let reset = rig.store().reset(&set([counter.enforce(&limit, 1)])).await;
            assert_eq!(
                reset.expect("a store that answers"),
                forgotten,
                "{algorithm}"
            );
        }
        assert_eq!(inspect(rig, counter.enforce(&limit, 1)).await, None);
        charge(rig, [counter.enforce(&limit, 3)]).await;
        rig.advance(Nanos::from_secs(3 * 3_600));
        assert_eq!(
            inspect(rig, counter.enforce(&limit, 1)).await,
            None,
            "refilled"
        );
    }
}
