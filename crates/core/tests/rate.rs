//! Rates in the notation of a rules file.
#![allow(clippy::unwrap_used)]

use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::rate::{Rate, RateError, parse_rate};
use tidegate_core::units::Nanos;

fn limit(text: &str) -> Result<Limit, RateError> {
    parse_rate(text)?.limit()
}

#[track_caller]
fn check(text: &str, algorithm: Algorithm, count: u64, per: Nanos, capacity: u64) {
    let limit = limit(text).unwrap();
    let found = (limit.algorithm(), limit.count(), limit.per(), limit.capacity());
    assert_eq!(found, (algorithm, count, per, capacity), "{text}");
}

#[test]
fn a_rate_is_a_count_and_a_window() {
    let secs = Nanos::from_secs;
    check("5/second", Algorithm::SlidingWindow, 5, secs(1), 5);
    check(" 1_000 / min ", Algorithm::SlidingWindow, 1_000, secs(60), 1_000);
    check("100/5m", Algorithm::SlidingWindow, 100, secs(300), 100);
    check("7/250ms", Algorithm::SlidingWindow, 7, Nanos::from_millis(250), 7);
    check("7/day", Algorithm::SlidingWindow, 7, secs(86_400), 7);
    check("7/month", Algorithm::SlidingWindow, 7, secs(30 * 86_400), 7);
}

#[test]
fn a_burst_means_token_bucket() {
    let minute = Nanos::from_secs(60);
    check("1000/minute burst 200", Algorithm::TokenBucket, 1_000, minute, 200);
    check("10/minute  burst  2_000", Algorithm::TokenBucket, 10, minute, 2_000);
    let queue = parse_rate("10/minute").unwrap().limit_with(Algorithm::LeakyQueue);
    assert_eq!(queue.unwrap().capacity(), 10);
}

#[test]
fn an_invalid_rate_is_never_unlimited() {
    for text in
        ["", "/", "10", "10/", "/minute", "ten/minute", "10/minute burst", "0x10/s", "1e3/s", "+5/s", "_5/s", "5/ s s"]
    {
        let error = limit(text).unwrap_err().to_string();
        assert!(error.contains("write"), "{text}: {error}");
    }
    assert_eq!(parse_rate("unlimited").unwrap(), Rate::Unlimited);
    assert!(limit("unlimited").is_err());
    assert!(parse_rate("5/s burst 2").unwrap().limit_with(Algorithm::SlidingLog).is_err());
}

/// Rules compute these windows by their calendar, which is not here.
#[test]
fn weeks_and_months_of_a_fixed_window_are_rejected() {
    for text in ["5/week", "5/month"] {
        let rate = parse_rate(text).unwrap();
        let error = rate.limit_with(Algorithm::FixedWindow).unwrap_err();
        assert!(error.to_string().contains("write 7d or 30d"), "{error}");
        assert!(rate.limit().is_ok());
    }
    assert!(parse_rate("5/day").unwrap().limit_with(Algorithm::FixedWindow).is_ok());
}
