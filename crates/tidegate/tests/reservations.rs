//! Reserve and settle as users of the library see them, on a clock moved by hand.

mod common;

use common::{TestLimiter, ready, request};
use tidegate::engine::DecisionKind;
use tidegate::store::StoreError;
use tidegate::units::{Cost, Nanos};
use tidegate::{Actual, Reservation, SettleError, Settlement};

const TOKENS: &str = "
version: 1
rules:
  - { name: calls, by: user, rate: 10/hour, algorithm: fixed-window }
  - { name: tokens, by: user, unit: tokens, rate: 1000/hour, algorithm: fixed-window }
";
const MINUTE: Nanos = Nanos::from_secs(60);

fn reserve(bench: &TestLimiter, words: &str) -> Reservation {
    let reserving = bench.limiter.reserve(request(words), MINUTE);
    ready(reserving).expect("memory answers")
}

fn settle(bench: &TestLimiter, token: &str, actual: &Actual) -> Settlement {
    ready(bench.limiter.settle(token, actual)).expect("memory answers")
}

fn used(bench: &TestLimiter) -> (u64, u64) {
    let words = "user=a tokens:1";
    (bench.used(words, "calls"), bench.used(words, "tokens"))
}

#[test]
fn each_unit_is_settled_by_its_name_and_the_rest_stays_as_estimated() {
    let bench = TestLimiter::new(TOKENS);
    let token = reserve(&bench, "user=a tokens:300").token.unwrap();
    assert_eq!(used(&bench), (1, 300));
    assert_eq!(
        settle(&bench, &token, &Actual::of("tokens", 120)),
        Settlement::Done
    );
    assert_eq!(used(&bench), (1, 120));
    assert_eq!(
        settle(&bench, &token, &Actual::cost(0)),
        Settlement::Already
    );
    let token = reserve(&bench, "user=a tokens:300").token.unwrap();
    let all = Actual::cost(0).and("tokens", 0);
    assert_eq!(settle(&bench, &token, &all), Settlement::Done);
    assert_eq!(used(&bench), (1, 120));
}

/// `done` was told to one who had misspelt the unit, and the estimate stood.
#[test]
fn a_unit_that_nobody_reserved_is_an_error_and_changes_nothing() {
    let bench = TestLimiter::new(TOKENS);
    let token = reserve(&bench, "user=a tokens:300 images:2").token.unwrap();
    let misspelt = Actual::of("tokens", 9).and("tokns", 9);
    let rejected = ready(bench.limiter.settle(&token, &misspelt));
    let named = |unit: &str| unit == "tokns";
    assert!(
        matches!(&rejected, Err(SettleError::NotReserved { unit }) if named(unit)),
        "{rejected:?}"
    );
    assert_eq!(used(&bench), (1, 300));
    // No rule counts images: that is no fault of who reserved some.
    let all = Actual::of("tokens", 9).and("images", 1);
    assert_eq!(settle(&bench, &token, &all), Settlement::Done);
    assert_eq!(used(&bench), (1, 9));
}

/// A reservation that names no cost in a unit charged nothing for it, and could not be settled in it.
#[test]
fn a_unit_without_an_estimate_costs_one_and_can_be_settled() {
    let bench = TestLimiter::new(TOKENS);
    let token = reserve(&bench, "user=a").token.unwrap();
    assert_eq!(used(&bench), (1, 1));
    let settled = settle(&bench, &token, &Actual::of("tokens", 120));
    assert_eq!(settled, Settlement::Done);
    assert_eq!(used(&bench), (1, 120));
    let token = reserve(&bench, "user=a").token.unwrap();
    assert_eq!(settle(&bench, &token, &Actual::cost(1)), Settlement::Done);
    assert_eq!(
        used(&bench),
        (2, 121),
        "what is not named stays as estimated"
    );
}

/// It was charged, and could not be settled by its name.
#[test]
fn units_that_no_token_can_hold_are_refused_and_nothing_is_charged() {
    let bench = TestLimiter::new(TOKENS);
    let reserved = |units: Vec<String>| {
        let mut request = request("user=a tokens:300");
        let units = units.into_iter().map(|unit| (unit.into(), Some(Cost::ONE)));
        request.costs.extend(units);
        ready(bench.limiter.reserve(request, MINUTE))
    };
    let names = |count: usize| (0..count).map(|i| format!("{i:0>255}")).collect();
    for units in [vec!["u".repeat(256)], names(64)] {
        let rejected = reserved(units);
        assert!(matches!(rejected, Err(StoreError::Rejected { .. })));
    }
    assert_eq!(used(&bench), (0, 0));
    let token = reserved(names(63)).unwrap().token.unwrap();
    let last_name = format!("{:0>255}", 62);
    let actual = Actual::of("tokens", 120).and(&last_name, 2);
    assert_eq!(settle(&bench, &token, &actual), Settlement::Done);
    assert_eq!(used(&bench), (1, 120));
}

#[test]
fn a_refused_reservation_has_no_token_and_charges_nothing() {
    let bench = TestLimiter::new(TOKENS);
    let denied = reserve(&bench, "user=a tokens:1001");
    assert!(denied.token.is_none() && !denied.decision.allowed());
    assert_eq!(used(&bench), (0, 0));
}

/// Given back at its end and refunded besides, it would come back twice.
#[test]
fn a_reservation_has_no_receipt() {
    let bench = TestLimiter::new(TOKENS);
    let reserved = reserve(&bench, "user=a tokens:10");
    assert_eq!(bench.limiter.receipt(&reserved.decision).unwrap(), None);
}

/// The estimate has been charged: it is not still to come, as that of a request which only asks.
#[test]
fn a_soft_limit_slows_an_estimate_down_for_what_it_takes_and_no_more() {
    let bench = TestLimiter::new(
        "version: 1
rules:
  - { name: api, by: user, rate: 100/hour, algorithm: fixed-window, soft: { max_delay: 10s } }
",
    );
    let delay = |words| match reserve(&bench, words).decision.kind() {
        DecisionKind::Delay(delay) => delay,
        _ => Nanos::ZERO,
    };
    assert_eq!(delay("user=a cost=45"), Nanos::ZERO, "45 of 100");
    assert_eq!(delay("user=a cost=45"), Nanos::from_secs(5), "90 of 100");
}

/// The node forgot the reservation when somebody settled it too late, and the estimate stayed until the
/// client reserved again.
#[test]
fn what_is_settled_too_late_is_given_back_all_the_same() {
    let bench = TestLimiter::new(TOKENS);
    let token = reserve(&bench, "user=a tokens:300").token.unwrap();
    bench.advance(MINUTE.get() * 2);
    let late = settle(&bench, &token, &Actual::of("tokens", 100));
    assert_eq!(late, Settlement::Lapsed);
    assert_eq!(used(&bench), (1, 300));
    ready(bench.limiter.retry_settlements());
    assert_eq!(used(&bench), (0, 0));
}

#[test]
fn what_nobody_settles_is_refunded_by_maintenance() {
    let bench = TestLimiter::new(TOKENS);
    let token = reserve(&bench, "user=a tokens:300").token.unwrap();
    let settled = reserve(&bench, "user=a tokens:50").token.unwrap();
    settle(&bench, &settled, &Actual::of("tokens", 60));
    ready(bench.limiter.retry_settlements());
    assert_eq!(used(&bench), (2, 360), "not before its end");
    bench.advance(MINUTE.get());
    ready(bench.limiter.retry_settlements());
    assert_eq!(used(&bench), (1, 60));
    ready(bench.limiter.retry_settlements());
    assert_eq!(used(&bench), (1, 60), "once");
    assert_eq!(
        settle(&bench, &token, &Actual::of("tokens", 100)),
        Settlement::Late
    );
    assert_eq!(used(&bench), (2, 160));
    bench.advance(MINUTE.get());
    assert_eq!(
        settle(&bench, &token, &Actual::of("tokens", 100)),
        Settlement::Lapsed
    );
}

#[test]
fn a_token_is_of_this_deployment_and_of_a_reservation() {
    let bench = TestLimiter::new(TOKENS);
    let token = reserve(&bench, "user=a tokens:10").token.unwrap();
    let receipt = bench
        .limiter
        .receipt(&bench.decide(request("user=a")))
        .unwrap();
    for forged in [receipt.unwrap(), token[1..].to_owned(), String::new()] {
        let rejected = ready(bench.limiter.settle(&forged, &Actual::cost(1)));
        assert!(matches!(rejected, Err(SettleError::Forged)), "{rejected:?}");
    }
    let refunded = ready(bench.limiter.refund(&token));
    assert!(refunded.is_err(), "{refunded:?}");
}
