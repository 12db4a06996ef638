//! Reserve and settle as users of the library see them, on a manual clock.

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

fn reserve(fixture: &TestLimiter, words: &str) -> Reservation {
    let reserving = fixture.limiter.reserve(request(words), MINUTE.duration());
    ready(reserving).expect("memory replies")
}

fn settle(fixture: &TestLimiter, token: &str, actual: &Actual) -> Settlement {
    ready(fixture.limiter.settle(token, actual)).expect("memory replies")
}

fn used(fixture: &TestLimiter) -> (u64, u64) {
    let words = "user=a tokens:1";
    (fixture.used(words, "calls"), fixture.used(words, "tokens"))
}

#[test]
fn each_unit_is_settled_by_its_name_and_the_rest_stays_as_estimated() {
    let fixture = TestLimiter::new(TOKENS);
    let token = reserve(&fixture, "user=a tokens:300").token.unwrap();
    assert_eq!(used(&fixture), (1, 300));
    assert_eq!(settle(&fixture, &token, &Actual::of("tokens", 120)), Settlement::Done);
    assert_eq!(used(&fixture), (1, 120));
    assert_eq!(settle(&fixture, &token, &Actual::cost(0)), Settlement::Already);
    let token = reserve(&fixture, "user=a tokens:300").token.unwrap();
    let all = Actual::cost(0).and("tokens", 0);
    assert_eq!(settle(&fixture, &token, &all), Settlement::Done);
    assert_eq!(used(&fixture), (1, 120));
}

/// The reply was `done` although the unit was misspelt, and the estimate stayed charged.
#[test]
fn a_unit_that_was_not_reserved_is_an_error_and_changes_nothing() {
    let fixture = TestLimiter::new(TOKENS);
    let token = reserve(&fixture, "user=a tokens:300 images:2").token.unwrap();
    let misspelt = Actual::of("tokens", 9).and("tokns", 9);
    let rejected = ready(fixture.limiter.settle(&token, &misspelt));
    let named = |unit: &str| unit == "tokns";
    assert!(matches!(&rejected, Err(SettleError::NotReserved { unit }) if named(unit)), "{rejected:?}");
    assert_eq!(used(&fixture), (1, 300));
    // No rule counts images: to reserve some is no error of the client.
    let all = Actual::of("tokens", 9).and("images", 1);
    assert_eq!(settle(&fixture, &token, &all), Settlement::Done);
    assert_eq!(used(&fixture), (1, 9));
}

/// A reservation that named no cost in a unit charged nothing for it, and could not be settled in it.
#[test]
fn a_unit_without_an_estimate_costs_one_and_can_be_settled() {
    let fixture = TestLimiter::new(TOKENS);
    let token = reserve(&fixture, "user=a").token.unwrap();
    assert_eq!(used(&fixture), (1, 1));
    let settled = settle(&fixture, &token, &Actual::of("tokens", 120));
    assert_eq!(settled, Settlement::Done);
    assert_eq!(used(&fixture), (1, 120));
    let token = reserve(&fixture, "user=a").token.unwrap();
    assert_eq!(settle(&fixture, &token, &Actual::cost(1)), Settlement::Done);
    assert_eq!(used(&fixture), (2, 121), "units that are not named stay as estimated");
}

/// Such a unit was charged, and could not be settled by its name.
#[test]
fn units_that_no_token_can_hold_are_rejected_and_nothing_is_charged() {
    let fixture = TestLimiter::new(TOKENS);
    let reserved = |units: Vec<String>| {
        let mut request = request("user=a tokens:300");
        let units = units.into_iter().map(|unit| (unit.into(), Some(Cost::ONE)));
        request.costs.extend(units);
        ready(fixture.limiter.reserve(request, MINUTE.duration()))
    };
    let names = |count: usize| (0..count).map(|i| format!("{i:0>255}")).collect();
    for units in [vec!["u".repeat(256)], names(64)] {
        let rejected = reserved(units);
        assert!(matches!(rejected, Err(StoreError::Rejected { .. })));
    }
    assert_eq!(used(&fixture), (0, 0));
    let token = reserved(names(63)).unwrap().token.unwrap();
    let last_name = format!("{:0>255}", 62);
    let actual = Actual::of("tokens", 120).and(&last_name, 2);
    assert_eq!(settle(&fixture, &token, &actual), Settlement::Done);
    assert_eq!(used(&fixture), (1, 120));
}

#[test]
fn a_denied_reservation_has_no_token_and_charges_nothing() {
    let fixture = TestLimiter::new(TOKENS);
    let denied = reserve(&fixture, "user=a tokens:1001");
    assert!(denied.token.is_none() && !denied.decision.allowed());
    assert_eq!(used(&fixture), (0, 0));
}

/// With a receipt it would be refunded twice: at its end, and by the receipt.
#[test]
fn a_reservation_has_no_receipt() {
    let fixture = TestLimiter::new(TOKENS);
    let reserved = reserve(&fixture, "user=a tokens:10");
    assert_eq!(fixture.limiter.receipt(&reserved.decision).unwrap(), None);
}

/// The estimate has been charged already: it is not still to be charged, as that of a peek.
#[test]
fn a_soft_limit_delays_a_reservation_by_its_usage_and_no_more() {
    let fixture = TestLimiter::new(
        "version: 1
rules:
  - { name: api, by: user, rate: 100/hour, algorithm: fixed-window, soft: { max_delay: 10s } }
",
    );
    let delay = |words| match reserve(&fixture, words).decision.kind() {
        DecisionKind::Delay(delay) => delay,
        _ => Nanos::ZERO,
    };
    assert_eq!(delay("user=a cost=45"), Nanos::ZERO, "45 of 100");
    assert_eq!(delay("user=a cost=45"), Nanos::from_secs(5), "90 of 100");
}

/// The node forgot the reservation when it was settled too late, and the estimate stayed charged until the client
/// reserved again.
#[test]
fn an_estimate_settled_too_late_is_still_refunded() {
    let fixture = TestLimiter::new(TOKENS);
    let token = reserve(&fixture, "user=a tokens:300").token.unwrap();
    fixture.advance(MINUTE.get() * 2);
    let late = settle(&fixture, &token, &Actual::of("tokens", 100));
    assert_eq!(late, Settlement::Lapsed);
    assert_eq!(used(&fixture), (1, 300));
    ready(fixture.limiter.retry_settlements());
    assert_eq!(used(&fixture), (0, 0));
}

#[test]
fn an_unsettled_estimate_is_refunded_by_maintenance() {
    let fixture = TestLimiter::new(TOKENS);
    let token = reserve(&fixture, "user=a tokens:300").token.unwrap();
    let settled = reserve(&fixture, "user=a tokens:50").token.unwrap();
    settle(&fixture, &settled, &Actual::of("tokens", 60));
    ready(fixture.limiter.retry_settlements());
    assert_eq!(used(&fixture), (2, 360), "not before its end");
    fixture.advance(MINUTE.get());
    ready(fixture.limiter.retry_settlements());
    assert_eq!(used(&fixture), (1, 60));
    ready(fixture.limiter.retry_settlements());
    assert_eq!(used(&fixture), (1, 60), "once");
    assert_eq!(settle(&fixture, &token, &Actual::of("tokens", 100)), Settlement::Late);
    assert_eq!(used(&fixture), (2, 160));
    fixture.advance(MINUTE.get());
    assert_eq!(settle(&fixture, &token, &Actual::of("tokens", 100)), Settlement::Lapsed);
}

#[test]
fn a_token_must_be_of_this_deployment_and_of_a_reservation() {
    let fixture = TestLimiter::new(TOKENS);
    let token = reserve(&fixture, "user=a tokens:10").token.unwrap();
    let receipt = fixture.limiter.receipt(&fixture.decide(request("user=a"))).unwrap();
    for forged in [receipt.unwrap(), token[1..].to_owned(), String::new()] {
        let rejected = ready(fixture.limiter.settle(&forged, &Actual::cost(1)));
        assert!(matches!(rejected, Err(SettleError::Forged)), "{rejected:?}");
    }
    let refunded = ready(fixture.limiter.refund(&token));
    assert!(refunded.is_err(), "{refunded:?}");
}
