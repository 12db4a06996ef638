//! Reservations: costs that are known only at the end.

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Charge, ChargeSet, Counters, Outcome, Reservations, Reserve, Role, Settle, Settled, Used};
use tidegate_core::units::Nanos;

use super::{ConformanceCounter, Rig, anyone, charge, limit, set, tokens, used};

/// The lifetime of the reservations in these tests.
const LASTS: Nanos = Nanos::from_secs(60);

/// A reservation from the view of a client: made, then settled any number of times.
pub struct ConformanceReservation<'a> {
    pub outcome: Outcome,
    id: u128,
    set: ChargeSet<'a>,
}

pub async fn reserve<'a, R: Rig>(rig: &R, charges: impl IntoIterator<Item = Charge<'a>>) -> ConformanceReservation<'a> {
    let reserve = Reserve { id: anyone().bits(), ttl: LASTS, set: set(charges) };
    let outcome = rig.store().reserve(&reserve).await;
    ConformanceReservation { outcome: outcome.expect("a store that replies"), id: reserve.id, set: reserve.set }
}

impl ConformanceReservation<'_> {
    pub async fn settle<R: Rig>(&self, rig: &R, used: &[u64]) -> Settled {
        self.settle_as(rig, Used::Known(used.iter().copied().collect())).await
    }

    pub async fn settle_as<R: Rig>(&self, rig: &R, used: Used) -> Settled {
        let settle = Settle {
            id: self.id,
            charged_at: self.outcome.at,
            expires_at: self.outcome.at.plus(LASTS),
            set: self.set.clone(),
            used,
        };
        let settled = rig.store().settle(&settle).await;
        settled.expect("a store that replies")
    }
}

pub async fn a_reservation_is_charged_and_settled_once(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 100));
        let reserved = reserve(rig, [counter.enforce(&limit, 40)]).await;
        assert!(reserved.outcome.admitted);
        assert_eq!(used(rig, &counter, &limit).await, 40, "{algorithm}");
        assert_eq!(reserved.settle(rig, &[30]).await, Settled::Done);
        assert_eq!(used(rig, &counter, &limit).await, 30, "{algorithm}");
        for actual in [0, 30, 90] {
            assert_eq!(reserved.settle(rig, &[actual]).await, Settled::Already);
        }
        assert_eq!(used(rig, &counter, &limit).await, 30, "{algorithm}");
        let nothing = reserve(rig, [counter.enforce(&limit, 70)]).await;
        assert!(nothing.outcome.admitted, "{algorithm}");
        assert_eq!(nothing.settle(rig, &[0]).await, Settled::Done);
        assert_eq!(used(rig, &counter, &limit).await, 30, "{algorithm}");
    }
}

pub async fn usage_above_the_estimate_is_a_debt(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 100));
        let reserved = reserve(rig, [counter.enforce(&limit, 90)]).await;
        assert_eq!(reserved.settle(rig, &[130]).await, Settled::Done);
        assert_eq!(used(rig, &counter, &limit).await, 130, "{algorithm}");
        let denied = reserve(rig, [counter.enforce(&limit, 1)]).await;
        assert!(!denied.outcome.admitted, "{algorithm}");
        let huge = ConformanceCounter::new();
        let reserved = reserve(rig, [huge.enforce(&limit, 1)]).await;
        assert_eq!(reserved.settle(rig, &[u64::MAX]).await, Settled::Done);
        let twice = used(rig, &huge, &limit).await;
        assert_eq!(twice, 200, "{algorithm}: debt ends at twice the capacity");
    }
}

pub async fn an_expired_estimate_is_refunded_by_the_next_reservation(rig: &impl Rig) {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let (counter, limit) = (ConformanceCounter::new(), limit(rig, algorithm, 100));
        reserve(rig, [counter.enforce(&limit, 60)]).await;
        let denied = reserve(rig, [counter.enforce(&limit, 50)]).await;
        assert!(!denied.outcome.admitted, "{algorithm}: not yet");
        rig.advance(LASTS);
        let again = reserve(rig, [counter.enforce(&limit, 50)]).await;
        assert!(again.outcome.admitted, "{algorithm}");
        let left = again.outcome.readings[0].figures.remaining;
        assert_eq!((used(rig, &counter, &limit).await, left), (50, 50));
        // Refunded only once: the next reservation finds nothing more to refund.
        rig.advance(Nanos::from_secs(1));
        reserve(rig, [counter.enforce(&limit, 10)]).await;
        assert_eq!(used(rig, &counter, &limit).await, 60, "{algorithm}");
        // A denied reservation refunds expired ones, too.
        rig.advance(LASTS);
        let denied = reserve(rig, [counter.enforce(&limit, 101)]).await;
        assert!(!denied.outcome.admitted);
        assert_eq!(used(rig, &counter, &limit).await, 0, "{algorithm}");
    }
}

pub async fn a_settlement_after_the_refund_of_its_estimate_is_charged_once(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), limit(rig, Algorithm::FixedWindow, 100));
    let late = reserve(rig, [counter.enforce(&limit, 60)]).await;
    let made = reserve(rig, [counter.enforce(&limit, 20)]).await;
    // In time, though it has expired: no reservation has refunded it yet.
    let unnoticed = reserve(rig, [counter.enforce(&limit, 10)]).await;
    rig.advance(LASTS);
    assert_eq!(unnoticed.settle(rig, &[5]).await, Settled::Done);
    assert_eq!(made.settle_as(rig, Used::Unknown).await, Settled::Done);
    assert_eq!(made.settle_as(rig, Used::Unknown).await, Settled::Already);
    assert_eq!(used(rig, &counter, &limit).await, 65);
    reserve(rig, [counter.enforce(&limit, 1)]).await;
    assert_eq!(used(rig, &counter, &limit).await, 6, "60 were refunded");
    for (actual, want) in [(50, Settled::Late), (50, Settled::Already)] {
        assert_eq!(late.settle(rig, &[actual]).await, want);
        assert_eq!(used(rig, &counter, &limit).await, 56);
    }
    assert_eq!(made.settle(rig, &[4]).await, Settled::Late);
    assert_eq!(used(rig, &counter, &limit).await, 60);
}

pub async fn a_settlement_that_is_too_late_changes_nothing(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), limit(rig, Algorithm::FixedWindow, 100));
    let late = reserve(rig, [counter.enforce(&limit, 60)]).await;
    let back = reserve(rig, [counter.enforce(&limit, 20)]).await;
    assert_eq!(back.settle_as(rig, Used::Unknown).await, Settled::Done);
    rig.advance(LASTS.plus(LASTS));
    for reserved in [&late, &back] {
        assert_eq!(reserved.settle(rig, &[90]).await, Settled::Lapsed);
    }
    assert_eq!(used(rig, &counter, &limit).await, 60);
    // It is still refunded.
    reserve(rig, [counter.enforce(&limit, 1)]).await;
    assert_eq!(used(rig, &counter, &limit).await, 1);
    assert_eq!(late.settle(rig, &[90]).await, Settled::Lapsed);
}

pub async fn a_reservation_is_all_or_nothing_and_a_denied_one_leaves_nothing(rig: &impl Rig) {
    let (wide, tight) = (limit(rig, Algorithm::FixedWindow, 100), limit(rig, Algorithm::FixedWindow, 10));
    let [a, b, shadow] = [(); 3].map(|()| ConformanceCounter::new());
    let all = |cost| [a.enforce(&wide, cost), b.enforce(&tight, cost), shadow.charge(&tight, cost, Role::Shadow)];
    let denied = reserve(rig, all(11)).await;
    assert!(!denied.outcome.admitted);
    assert_eq!(used(rig, &a, &wide).await, 0);
    assert_eq!(denied.settle(rig, &[50, 50, 50]).await, Settled::Already);
    assert_eq!(used(rig, &a, &wide).await, 0, "nothing was reserved");
    charge(rig, [shadow.enforce(&tight, 5)]).await;
    let reserved = reserve(rig, all(6)).await;
    assert!(reserved.outcome.admitted);
    assert_eq!(used(rig, &shadow, &tight).await, 5, "it would have denied");
    assert_eq!(reserved.settle(rig, &[2, 8, 9]).await, Settled::Done);
    assert_eq!(used(rig, &a, &wide).await, 2);
    assert_eq!(used(rig, &b, &tight).await, 8);
    assert_eq!(used(rig, &shadow, &tight).await, 5, "it was not charged");
}

/// As for refunds: units that have drained meanwhile cannot be refunded as well.
pub async fn a_late_settlement_refunds_only_what_has_not_drained(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), tokens(rig, 3_600)); // one a second
    let reserved = reserve(rig, [counter.enforce(&limit, 100)]).await;
    rig.advance(Nanos::from_secs(40));
    charge(rig, [counter.enforce(&limit, 200)]).await;
    assert_eq!(reserved.settle(rig, &[30]).await, Settled::Done);
    let want = 60 + 200 - 30; // 70 less were used, of which 40 have drained
    assert_eq!(used(rig, &counter, &limit).await, want);
}

pub async fn reservations_of_one_counter_do_not_touch_each_other(rig: &impl Rig) {
    let (counter, limit) = (ConformanceCounter::new(), limit(rig, Algorithm::FixedWindow, 1_000));
    let mut all = Vec::new();
    for _ in 0..20 {
        all.push(reserve(rig, [counter.enforce(&limit, 10)]).await);
    }
    assert_eq!(used(rig, &counter, &limit).await, 200);
    for (i, reserved) in all.iter().enumerate().take(10) {
        assert_eq!(reserved.settle(rig, &[i as u64]).await, Settled::Done);
    }
    assert_eq!(used(rig, &counter, &limit).await, 100 + 45);
    rig.advance(LASTS);
    reserve(rig, [counter.enforce(&limit, 1)]).await;
    assert_eq!(used(rig, &counter, &limit).await, 46, "ten were refunded");
}

/// The reset cleared the estimate. A refund of it would reduce charges made since.
pub async fn a_reservation_before_a_reset_is_never_refunded(rig: &impl Rig) {
    let limit = limit(rig, Algorithm::FixedWindow, 1_000);
    let [counter, other] = [(); 2].map(|()| ConformanceCounter::new());
    let settled = reserve(rig, [counter.enforce(&limit, 300)]).await;
    let late = reserve(rig, [counter.enforce(&limit, 200)]).await;
    assert_eq!(late.settle_as(rig, Used::Unknown).await, Settled::Done);
    reserve(rig, [counter.enforce(&limit, 400)]).await;
    let untouched = reserve(rig, [other.enforce(&limit, 100)]).await;
    let reset = rig.store().reset(&set([counter.enforce(&limit, 1)])).await;
    assert_eq!(reset.expect("a store that replies"), 1);
    charge(rig, [counter.enforce(&limit, 900)]).await;
    for (reserved, actual) in [(&settled, 0), (&late, 50)] {
        assert_eq!(reserved.settle(rig, &[actual]).await, Settled::Already);
    }
    assert_eq!(untouched.settle(rig, &[40]).await, Settled::Done);
    assert_eq!(used(rig, &other, &limit).await, 40);
    rig.advance(LASTS);
    reserve(rig, [counter.enforce(&limit, 1)]).await;
    assert_eq!(used(rig, &counter, &limit).await, 901, "no refund");
}
