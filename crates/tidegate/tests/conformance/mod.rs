//! What every store promises, as claims that run against any of them.
//!
//! A store under test brings a [`Rig`]: the store and a way to let its time pass. Every claim uses
//! subjects of its own, so one store can serve them all. Knows nothing of how a store works.

#![allow(dead_code, unreachable_pub)]

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Retry, Spec, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Hold, Inspection, Outcome, Refund, Refunded, Reserve, Role, Seed, Settle,
    Settled, Source, Store, Terms, Used,
};
use tidegate_core::subject::{Fingerprint, FingerprintKey, RuleName};
use tidegate_core::units::{Cost, Nanos};

/// A store and its time.
pub trait Rig {
    type Store: Store;
    fn store(&self) -> &Self::Store;
    /// Lets time pass for the store.
    fn advance(&self, span: Nanos);
    /// How finely the store computes.
    fn precision(&self) -> Precision;
}

/// Calls the macro `$each` with what it is given and then the name of every claim.
#[macro_export]
macro_rules! every_claim {
    ($each:ident! { $($given:tt)* }) => {
        $each! {
            $($given)*;
            each_algorithm_admits_its_limit_and_no_more
            a_reading_stands_after_the_charge_or_as_found
            a_refusal_by_the_last_limit_leaves_the_others_as_they_were
            a_ceiling_leaves_the_rest_to_those_who_may_use_more
            a_refusal_by_a_ceiling_leaves_the_others_as_they_were
            a_shadow_never_refuses_and_is_charged_only_with_the_request
            quotas_refuse_only_when_none_has_room
            a_counter_named_twice_is_charged_twice
            a_peek_answers_like_a_charge_and_spends_nothing
            a_cost_above_the_capacity_fits_never
            a_batch_is_decided_in_order
            a_refund_gives_back_once
            a_refund_is_capped_by_what_has_not_drained
            a_grant_takes_half_of_what_is_left_or_an_eighth_of_what_is_asked
            a_forced_charge_is_a_debt
            a_reservation_is_charged_and_settled_once
            more_than_was_estimated_is_a_debt
            an_estimate_comes_back_with_the_next_reservation_after_its_end
            who_settles_after_the_estimate_came_back_is_charged_once
            who_settles_too_late_changes_nothing
            a_reservation_is_all_or_nothing_and_a_refused_one_leaves_nothing
            a_late_settlement_gives_back_only_what_has_not_drained
            reservations_of_one_counter_do_not_touch_each_other
            what_was_reserved_before_a_reset_never_comes_back
            a_seed_raises_a_counter_and_never_lowers_it
            slots_are_held_renewed_released_and_expire
            a_renewal_takes_no_slot
            slots_of_subjects_and_rules_are_apart
            inspection_shows_use_and_reset_forgets_it
            a_changed_limit_keeps_what_was_used
            debt_under_a_smaller_limit_is_twice_that_limit
        }
    };
}

pub const HOUR: Nanos = Nanos::from_secs(3_600);

pub fn limit(rig: &impl Rig, algorithm: Algorithm, count: u64) -> Limit {
    let spec = Spec::new(algorithm, count, HOUR);
    Limit::compile(&spec, rig.precision()).expect("a limit that fits")
}

pub fn tokens(rig: &impl Rig, count: u64) -> Limit {
    limit(rig, Algorithm::TokenBucket, count)
}

/// A subject nobody else uses.
pub fn anyone() -> Fingerprint {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let run = std::process::id();
    let mut hasher = FingerprintKey::new([42; 16]).subject("conformance");
    hasher.part(&run.to_le_bytes());
    hasher.part(&number.to_le_bytes());
    hasher.finish()
}

/// A counter of its own for each call.
pub struct Counter {
    pub rule: RuleName,
    pub subject: Fingerprint,
}

impl Counter {
    pub fn new() -> Self {
        Counter {
            rule: RuleName::new("conformance"),
            subject: anyone(),
        }
    }

    pub fn charge<'a>(&'a self, limit: &'a Limit, cost: u64, role: Role) -> Charge<'a> {
        Charge {
            subject: self.subject,
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(limit),
            cost: Cost::new(cost).expect("a cost"),
            role,
            terms: &Terms::USUAL,
        }
    }

    pub fn enforce<'a>(&'a self, limit: &'a Limit, cost: u64) -> Charge<'a> {
        self.charge(limit, cost, Role::Enforce)
    }
}

pub fn set<'a>(charges: impl IntoIterator<Item = Charge<'a>>) -> ChargeSet<'a> {
    ChargeSet {
        charges: charges.into_iter().collect(),
    }
}

async fn charge<'a>(rig: &impl Rig, charges: impl IntoIterator<Item = Charge<'a>>) -> Outcome {
    let outcome = rig.store().charge(&set(charges)).await;
    outcome.expect("a store that answers")
}

async fn inspect(rig: &impl Rig, charge: Charge<'_>) -> Option<Inspection> {
    let inspections = rig.store().inspect(&set([charge])).await;
    inspections.expect("a store that answers")[0]
}

async fn used(rig: &impl Rig, counter: &Counter, limit: &Limit) -> u64 {
    let inspection = inspect(rig, counter.enforce(limit, 1)).await;
    inspection.map_or(0, |found| found.used)
}

pub async fn each_algorithm_admits_its_limit_and_no_more(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 5));
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

pub async fn a_reading_stands_after_the_charge_or_as_found(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), limit(rig, Algorithm::FixedWindow, 10));
    let first = charge(rig, [counter.enforce(&limit, 7)]).await;
    assert_eq!(first.readings[0].figures.remaining, 3);
    let refused = charge(rig, [counter.enforce(&limit, 4)]).await;
    assert!(!refused.admitted);
    assert_eq!(refused.readings[0].figures.remaining, 3);
}

pub async fn a_refusal_by_the_last_limit_leaves_the_others_as_they_were(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (wide, tight) = (limit(rig, algorithm, 100), limit(rig, algorithm, 2));
        let [a, b, fresh, c] = [(); 4].map(|()| Counter::new());
        charge(
            rig,
            [
                a.enforce(&wide, 3),
                b.enforce(&wide, 4),
                c.enforce(&tight, 2),
            ],
        )
        .await;
        let before = [
            inspect(rig, a.enforce(&wide, 1)).await,
            inspect(rig, b.enforce(&wide, 1)).await,
        ];
        let all = [
            a.enforce(&wide, 1),
            b.enforce(&wide, 1),
            fresh.enforce(&wide, 1),
            c.enforce(&tight, 1),
        ];
        let refused = charge(rig, all).await;
        assert!(!refused.admitted, "{algorithm}");
        let allows: Vec<bool> = refused
            .readings
            .iter()
            .map(|r| r.verdict.allows())
            .collect();
        assert_eq!(allows, [true, true, true, false], "{algorithm}");
        let after = [
            inspect(rig, a.enforce(&wide, 1)).await,
            inspect(rig, b.enforce(&wide, 1)).await,
        ];
        assert_eq!(
            before.map(|i| i.map(|i| i.used)),
            after.map(|i| i.map(|i| i.used))
        );
        assert_eq!(used(rig, &fresh, &wide).await, 0, "{algorithm}");
    }
}

pub async fn a_ceiling_leaves_the_rest_to_those_who_may_use_more(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, all) = (Counter::new(), limit(rig, algorithm, 20));
        let [low, middle] = [16, 19].map(|units| all.up_to(units));
        let mut admitted = [0; 3];
        for (i, limit) in [&low, &middle, &all, &low].into_iter().enumerate() {
            for _ in 0..21 {
                let outcome = charge(rig, [counter.enforce(limit, 1)]).await;
                admitted[i % 3] += u64::from(outcome.admitted);
                let left = limit.capacity().saturating_sub(admitted.iter().sum());
                let told = outcome.readings[0].figures.remaining;
                assert_eq!(told, left, "{algorithm}: {admitted:?}");
            }
        }
        assert_eq!(admitted, [16, 3, 1], "{algorithm}");
        assert_eq!(used(rig, &counter, &all).await, 20, "{algorithm}");
        let too_much = charge(rig, [counter.enforce(&low, 17)]).await;
        let never = Verdict::Deny {
            retry: Retry::Never,
        };
        assert_eq!(too_much.readings[0].verdict, never, "{algorithm}");
    }
}

pub async fn a_refusal_by_a_ceiling_leaves_the_others_as_they_were(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let all = limit(rig, algorithm, 10);
        let low = all.up_to(8);
        // Of one subject, so that they are charged in one step by every store.
        let shared = Counter::new();
        let wide = Counter {
            rule: RuleName::new("wide"),
            subject: shared.subject,
        };
        charge(rig, [shared.enforce(&all, 8)]).await;
        let both = |limit| [wide.enforce(&all, 1), shared.enforce(limit, 1)];
        let refused = charge(rig, both(&low)).await;
        assert!(!refused.admitted, "{algorithm}");
        assert_eq!(used(rig, &wide, &all).await, 0, "{algorithm}");
        assert_eq!(used(rig, &shared, &all).await, 8, "{algorithm}");
        assert!(charge(rig, both(&all)).await.admitted, "{algorithm}");
        assert_eq!(used(rig, &wide, &all).await, 1, "{algorithm}");
        assert_eq!(used(rig, &shared, &all).await, 9, "{algorithm}");
    }
}

pub async fn a_shadow_never_refuses_and_is_charged_only_with_the_request(rig: &impl Rig) {
    let (roomy, tight) = (tokens(rig, 10), tokens(rig, 1));
    let (enforced, shadow) = (Counter::new(), Counter::new());
    for (passes, shadow_used) in [(true, 1), (true, 1)] {
        let both = [
            enforced.enforce(&roomy, 1),
            shadow.charge(&tight, 1, Role::Shadow),
        ];
        let outcome = charge(rig, both).await;
        assert_eq!(outcome.admitted, passes);
        assert_eq!(used(rig, &shadow, &tight).await, shadow_used);
    }
    // Refused by the enforced limit: the shadow says what it would, and is not charged.
    let other = Counter::new();
    let both = [
        enforced.enforce(&roomy, 10),
        other.charge(&tight, 1, Role::Shadow),
    ];
    let outcome = charge(rig, both).await;
    assert!(!outcome.admitted && outcome.readings[1].verdict.allows());
    assert_eq!(used(rig, &other, &tight).await, 0);
    // Alone it passes even when it would refuse.
    let alone = charge(rig, [shadow.charge(&tight, 1, Role::Shadow)]).await;
    assert!(alone.admitted && !alone.readings[0].verdict.allows());
}

pub async fn quotas_refuse_only_when_none_has_room(rig: &impl Rig) {
    let (small, large) = (tokens(rig, 1), tokens(rig, 2));
    let (a, b) = (Counter::new(), Counter::new());
    for (admitted, used_a, used_b) in [(true, 1, 1), (true, 1, 2), (false, 1, 2)] {
        let both = [
            a.charge(&small, 1, Role::Quota),
            b.charge(&large, 1, Role::Quota),
        ];
        assert_eq!(charge(rig, both).await.admitted, admitted);
        assert_eq!(used(rig, &a, &small).await, used_a);
        assert_eq!(used(rig, &b, &large).await, used_b);
    }
}

pub async fn a_counter_named_twice_is_charged_twice(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), tokens(rig, 3));
    let twice = || [counter.enforce(&limit, 1), counter.enforce(&limit, 1)];
    assert!(charge(rig, twice()).await.admitted);
    let refused = charge(rig, twice()).await;
    assert!(!refused.admitted, "one is left and two are asked");
    assert_eq!(used(rig, &counter, &limit).await, 2);
}

pub async fn a_peek_answers_like_a_charge_and_spends_nothing(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), tokens(rig, 2));
    charge(rig, [counter.enforce(&limit, 1)]).await;
    for (cost, admitted) in [(1, true), (2, false), (1, true)] {
        let peeked = rig
            .store()
            .peek(&set([counter.enforce(&limit, cost)]))
            .await;
        let peeked = peeked.expect("a store that answers");
        assert_eq!(peeked.admitted, admitted);
        assert_eq!(peeked.readings[0].figures.remaining, 1);
    }
}

pub async fn a_cost_above_the_capacity_fits_never(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 5));
        let outcome = charge(rig, [counter.enforce(&limit, 6)]).await;
        let never = Verdict::Deny {
            retry: Retry::Never,
        };
        assert_eq!(outcome.readings[0].verdict, never, "{algorithm}");
        assert_eq!(used(rig, &counter, &limit).await, 0);
    }
}

pub async fn a_batch_is_decided_in_order(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), tokens(rig, 2));
    let sets = [1, 5, 1, 1].map(|cost| set([counter.enforce(&limit, cost)]));
    let outcomes = rig.store().charge_each(&sets.each_ref()).await;
    let admitted: Vec<bool> = outcomes
        .into_iter()
        .map(|outcome| outcome.expect("a store that answers").admitted)
        .collect();
    assert_eq!(admitted, [true, false, true, false]);
}

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

pub async fn slots_are_held_renewed_released_and_expire(rig: &impl Rig) {
    let counter = Counter::new();
    let hold = |holder| slot(&counter, holder, 2);
    let take = async |holder| {
        let held = rig.store().hold(&hold(holder)).await;
        let held = held.expect("a store that answers");
        (held.granted, held.open)
    };
    assert_eq!(take(1).await, (true, 1));
    assert_eq!(take(2).await, (true, 2));
    assert_eq!(take(3).await, (false, 2));
    assert_eq!(take(2).await, (true, 2), "renewed, not taken twice");
    rig.store().release(&hold(1)).await.expect("a release");
    rig.store()
        .release(&hold(1))
        .await
        .expect("nothing to release");
    assert_eq!(take(3).await, (true, 2));
    rig.advance(Nanos::from_secs(6));
    assert_eq!(take(3).await, (true, 2));
    rig.advance(Nanos::from_secs(5));
    assert_eq!(
        take(4).await,
        (true, 2),
        "the slot of 2 expired, that of 3 was renewed"
    );
}

/// However late a renewal comes, what was given back stays so: else a request that has ended would be
/// open until its slot expires.
pub async fn a_renewal_takes_no_slot(rig: &impl Rig) {
    let counter = Counter::new();
    let hold = |holder| slot(&counter, holder, 2);
    let renew = async |holder| {
        let held = rig.store().renew(&hold(holder)).await;
        let held = held.expect("a store that answers");
        (held.granted, held.open)
    };
    assert_eq!(renew(1).await, (false, 0), "never taken");
    for holder in [1, 2] {
        let held = rig.store().hold(&hold(holder)).await;
        assert!(held.expect("a store that answers").granted);
    }
    rig.advance(Nanos::from_secs(6));
    assert_eq!(renew(1).await, (true, 2), "also where all is taken");
    rig.advance(Nanos::from_secs(6));
    assert_eq!(renew(1).await, (true, 1), "by its whole length each time");
    assert_eq!(renew(2).await, (false, 1), "expired");
    rig.store().release(&hold(1)).await.expect("a release");
    assert_eq!(renew(1).await, (false, 0), "given back");
}

pub async fn slots_of_subjects_and_rules_are_apart(rig: &impl Rig) {
    let (one, other) = (Counter::new(), Counter::new());
    let rule = RuleName::new("another");
    let own = slot(&one, 1, 1);
    let holds = [
        (own, true),
        (slot(&other, 2, 1), true),
        (Hold { rule: &rule, ..own }, true),
        (Hold { holder: 3, ..own }, false),
    ];
    for (hold, granted) in holds {
        let held = rig.store().hold(&hold).await.expect("a store that answers");
        assert_eq!((held.granted, held.open), (granted, 1));
    }
}

/// A slot of ten seconds.
fn slot(counter: &Counter, holder: u128, most: u32) -> Hold<'_> {
    Hold {
        subject: counter.subject,
        rule: &counter.rule,
        holder,
        most,
        lasts: Nanos::from_secs(10),
        terms: &Terms::USUAL,
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

pub async fn a_changed_limit_keeps_what_was_used(rig: &impl Rig) {
    for (old, new) in pairs() {
        let (counter, was) = (Counter::new(), limit(rig, old, 10));
        charge(rig, [counter.enforce(&was, 7)]).await;
        let now = limit(rig, new, 20);
        assert_eq!(used(rig, &counter, &now).await, 7, "{old} to {new}");
        let refused = charge(rig, [counter.enforce(&now, 14)]).await;
        assert!(!refused.admitted, "{old} to {new}");
        assert!(
            charge(rig, [counter.enforce(&now, 13)]).await.admitted,
            "{old} to {new}"
        );
        assert_eq!(
            used(rig, &counter, &was).await,
            20,
            "{new} back to {old}: debt"
        );
    }
}

/// Not more, or a client would be locked out for what an earlier rule allowed; not less, or a rule that
/// changes back and forth would forget.
pub async fn debt_under_a_smaller_limit_is_twice_that_limit(rig: &impl Rig) {
    for (old, new) in pairs() {
        let (large, small) = (limit(rig, old, 100), limit(rig, new, 10));
        let forced = Counter::new();
        let now = charge(rig, [forced.enforce(&large, 100)]).await.at;
        let force = set([forced.enforce(&small, 3)]);
        rig.store().force(&force).await.expect("a forced charge");
        assert_eq!(used(rig, &forced, &small).await, 20, "{old} to {new}");
        assert_eq!(used(rig, &forced, &large).await, 20, "and back to {old}");

        let seeded = Counter::new();
        charge(rig, [seeded.enforce(&large, 100)]).await;
        for units in [5, 30] {
            let seed = Seed {
                charge: seeded.enforce(&small, 1),
                state: small.holding(units, now),
            };
            rig.store().seed(&[seed]).await.expect("a seed that fits");
            assert_eq!(used(rig, &seeded, &small).await, 20, "{old} to {new}");
        }
    }
}

fn pairs() -> impl Iterator<Item = (Algorithm, Algorithm)> {
    let both = |old| Algorithm::ALL.map(|new| (old, new));
    Algorithm::ALL.into_iter().flat_map(both)
}

/// How long reservations of these claims last.
const LASTS: Nanos = Nanos::from_secs(60);

/// A reservation as a client sees it: made, then settled any number of times.
pub struct Reserved<'a> {
    pub outcome: Outcome,
    id: u128,
    set: ChargeSet<'a>,
}

pub async fn reserve<'a, R: Rig>(
    rig: &R,
    charges: impl IntoIterator<Item = Charge<'a>>,
) -> Reserved<'a> {
    let reserve = Reserve {
        id: anyone().bits(),
        lasts: LASTS,
        set: set(charges),
    };
    let outcome = rig.store().reserve(&reserve).await;
    Reserved {
        outcome: outcome.expect("a store that answers"),
        id: reserve.id,
        set: reserve.set,
    }
}

impl Reserved<'_> {
    pub async fn settle<R: Rig>(&self, rig: &R, used: &[u64]) -> Settled {
        self.settle_as(rig, Used::Known(used.iter().copied().collect()))
            .await
    }

    pub async fn settle_as<R: Rig>(&self, rig: &R, used: Used) -> Settled {
        let settle = Settle {
            id: self.id,
            charged: self.outcome.at,
            until: self.outcome.at.plus(LASTS),
            set: self.set.clone(),
            used,
        };
        let settled = rig.store().settle(&settle).await;
        settled.expect("a store that answers")
    }
}

pub async fn a_reservation_is_charged_and_settled_once(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 100));
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

pub async fn more_than_was_estimated_is_a_debt(rig: &impl Rig) {
    for algorithm in Algorithm::ALL {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 100));
        let reserved = reserve(rig, [counter.enforce(&limit, 90)]).await;
        assert_eq!(reserved.settle(rig, &[130]).await, Settled::Done);
        assert_eq!(used(rig, &counter, &limit).await, 130, "{algorithm}");
        let refused = reserve(rig, [counter.enforce(&limit, 1)]).await;
        assert!(!refused.outcome.admitted, "{algorithm}");
        let huge = Counter::new();
        let reserved = reserve(rig, [huge.enforce(&limit, 1)]).await;
        assert_eq!(reserved.settle(rig, &[u64::MAX]).await, Settled::Done);
        let twice = used(rig, &huge, &limit).await;
        assert_eq!(twice, 200, "{algorithm}: debt ends at twice the capacity");
    }
}

pub async fn an_estimate_comes_back_with_the_next_reservation_after_its_end(rig: &impl Rig) {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let (counter, limit) = (Counter::new(), limit(rig, algorithm, 100));
        reserve(rig, [counter.enforce(&limit, 60)]).await;
        let refused = reserve(rig, [counter.enforce(&limit, 50)]).await;
        assert!(!refused.outcome.admitted, "{algorithm}: not yet");
        rig.advance(LASTS);
        let again = reserve(rig, [counter.enforce(&limit, 50)]).await;
        assert!(again.outcome.admitted, "{algorithm}");
        let left = again.outcome.readings[0].figures.remaining;
        assert_eq!((used(rig, &counter, &limit).await, left), (50, 50));
        // Once only: the next one finds nothing more to bring back.
        rig.advance(Nanos::from_secs(1));
        reserve(rig, [counter.enforce(&limit, 10)]).await;
        assert_eq!(used(rig, &counter, &limit).await, 60, "{algorithm}");
        // A refused one brings back too.
        rig.advance(LASTS);
        let refused = reserve(rig, [counter.enforce(&limit, 101)]).await;
        assert!(!refused.outcome.admitted);
        assert_eq!(used(rig, &counter, &limit).await, 0, "{algorithm}");
    }
}

pub async fn who_settles_after_the_estimate_came_back_is_charged_once(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), limit(rig, Algorithm::FixedWindow, 100));
    let late = reserve(rig, [counter.enforce(&limit, 60)]).await;
    let told = reserve(rig, [counter.enforce(&limit, 20)]).await;
    // In time, though its end is over: nobody has brought it back yet.
    let unnoticed = reserve(rig, [counter.enforce(&limit, 10)]).await;
    rig.advance(LASTS);
    assert_eq!(unnoticed.settle(rig, &[5]).await, Settled::Done);
    assert_eq!(told.settle_as(rig, Used::Unsaid).await, Settled::Done);
    assert_eq!(told.settle_as(rig, Used::Unsaid).await, Settled::Already);
    assert_eq!(used(rig, &counter, &limit).await, 65);
    reserve(rig, [counter.enforce(&limit, 1)]).await;
    assert_eq!(used(rig, &counter, &limit).await, 6, "60 came back");
    for (actual, want) in [(50, Settled::Late), (50, Settled::Already)] {
        assert_eq!(late.settle(rig, &[actual]).await, want);
        assert_eq!(used(rig, &counter, &limit).await, 56);
    }
    assert_eq!(told.settle(rig, &[4]).await, Settled::Late);
    assert_eq!(used(rig, &counter, &limit).await, 60);
}

pub async fn who_settles_too_late_changes_nothing(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), limit(rig, Algorithm::FixedWindow, 100));
    let late = reserve(rig, [counter.enforce(&limit, 60)]).await;
    let back = reserve(rig, [counter.enforce(&limit, 20)]).await;
    assert_eq!(back.settle_as(rig, Used::Unsaid).await, Settled::Done);
    rig.advance(LASTS.plus(LASTS));
    for reserved in [&late, &back] {
        assert_eq!(reserved.settle(rig, &[90]).await, Settled::Lapsed);
    }
    assert_eq!(used(rig, &counter, &limit).await, 60);
    // It still comes back.
    reserve(rig, [counter.enforce(&limit, 1)]).await;
    assert_eq!(used(rig, &counter, &limit).await, 1);
    assert_eq!(late.settle(rig, &[90]).await, Settled::Lapsed);
}

pub async fn a_reservation_is_all_or_nothing_and_a_refused_one_leaves_nothing(rig: &impl Rig) {
    let (wide, tight) = (
        limit(rig, Algorithm::FixedWindow, 100),
        limit(rig, Algorithm::FixedWindow, 10),
    );
    let [a, b, shadow] = [(); 3].map(|()| Counter::new());
    let all = |cost| {
        [
            a.enforce(&wide, cost),
            b.enforce(&tight, cost),
            shadow.charge(&tight, cost, Role::Shadow),
        ]
    };
    let refused = reserve(rig, all(11)).await;
    assert!(!refused.outcome.admitted);
    assert_eq!(used(rig, &a, &wide).await, 0);
    assert_eq!(refused.settle(rig, &[50, 50, 50]).await, Settled::Already);
    assert_eq!(used(rig, &a, &wide).await, 0, "nothing was reserved");
    charge(rig, [shadow.enforce(&tight, 5)]).await;
    let reserved = reserve(rig, all(6)).await;
    assert!(reserved.outcome.admitted);
    assert_eq!(used(rig, &shadow, &tight).await, 5, "it would have refused");
    assert_eq!(reserved.settle(rig, &[2, 8, 9]).await, Settled::Done);
    assert_eq!(used(rig, &a, &wide).await, 2);
    assert_eq!(used(rig, &b, &tight).await, 8);
    assert_eq!(used(rig, &shadow, &tight).await, 5, "it was not charged");
}

/// As for refunds: what has drained meanwhile cannot be given back once more.
pub async fn a_late_settlement_gives_back_only_what_has_not_drained(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), tokens(rig, 3_600)); // one a second
    let reserved = reserve(rig, [counter.enforce(&limit, 100)]).await;
    rig.advance(Nanos::from_secs(40));
    charge(rig, [counter.enforce(&limit, 200)]).await;
    assert_eq!(reserved.settle(rig, &[30]).await, Settled::Done);
    let want = 60 + 200 - 30; // 70 less were used, of which 40 have drained
    assert_eq!(used(rig, &counter, &limit).await, want);
}

pub async fn reservations_of_one_counter_do_not_touch_each_other(rig: &impl Rig) {
    let (counter, limit) = (Counter::new(), limit(rig, Algorithm::FixedWindow, 1_000));
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
    assert_eq!(used(rig, &counter, &limit).await, 46, "ten came back");
}

/// A reset forgave the estimate once. Given back besides, it would take as much from what was charged since.
pub async fn what_was_reserved_before_a_reset_never_comes_back(rig: &impl Rig) {
    let limit = limit(rig, Algorithm::FixedWindow, 1_000);
    let [counter, other] = [(); 2].map(|()| Counter::new());
    let settled = reserve(rig, [counter.enforce(&limit, 300)]).await;
    let late = reserve(rig, [counter.enforce(&limit, 200)]).await;
    assert_eq!(late.settle_as(rig, Used::Unsaid).await, Settled::Done);
    reserve(rig, [counter.enforce(&limit, 400)]).await;
    let untouched = reserve(rig, [other.enforce(&limit, 100)]).await;
    let reset = rig.store().reset(&set([counter.enforce(&limit, 1)])).await;
    assert_eq!(reset.expect("a store that answers"), 1);
    charge(rig, [counter.enforce(&limit, 900)]).await;
    for (reserved, actual) in [(&settled, 0), (&late, 50)] {
        assert_eq!(reserved.settle(rig, &[actual]).await, Settled::Already);
    }
    assert_eq!(untouched.settle(rig, &[40]).await, Settled::Done);
    assert_eq!(used(rig, &other, &limit).await, 40);
    rig.advance(LASTS);
    reserve(rig, [counter.enforce(&limit, 1)]).await;
    assert_eq!(used(rig, &counter, &limit).await, 901, "nothing came back");
}
