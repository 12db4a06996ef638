//! Counts of the requests that match a rule, and rules that no request matches.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{TestLimiter, request};
use tidegate::observe::{MemoryFacts, Metrics, StoreFacts};

const RULES: &str = "
version: 1
rules:
  - { name: all, by: global, rate: [1000000/hour, 9000000/day] }
  - { name: searches, match: { path: /search }, by: user, rate: 1/hour }
  - { name: watched, match: { path: /search }, by: user, rate: 1/hour, mode: shadow }
  - { name: health, match: { path: /healthz }, rate: unlimited, replaces: [all] }
  - { name: never, match: { path: /serach }, by: user, rate: 1/hour }
  - { name: gone, match: { path: /gone }, by: user, rate: 1/hour, mode: off }
";

fn observed() -> (TestLimiter, Arc<Metrics>) {
    let metrics = Arc::<Metrics>::default();
    let observer = Arc::<Metrics>::clone(&metrics);
    let fixture = TestLimiter::with(RULES, |builder| builder.observer(observer));
    metrics.load(&fixture.limiter.policy().get().rules);
    (fixture, metrics)
}

fn matches(metrics: &Metrics, rule: &str) -> u64 {
    let page = metrics.expose("test", &StoreFacts::Memory(MemoryFacts::default()));
    let series = format!("tidegate_rule_matches_total{{rule=\"{rule}\"}} ");
    let line = page.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap().parse().unwrap()
}

#[test]
fn every_rule_that_applies_is_counted_once_whether_or_not_it_binds() {
    let (fixture, metrics) = observed();
    for words in [
        "user=a path=/search",
        "user=a path=/search", // denied
        "user=a path=/other",
        "user=a path=/healthz",
    ] {
        let _ = fixture.limiter.check_now(request(words));
    }
    let counted = ["all", "searches", "watched", "health", "never", "gone"];
    let counted = counted.map(|rule| matches(&metrics, rule));
    assert_eq!(counted, [3, 2, 2, 1, 0, 0]);
}

#[test]
fn a_rule_that_matches_nothing_is_reported_once_after_ten_thousand_requests() {
    let (fixture, metrics) = observed();
    let requests = Metrics::REQUESTS_UNTIL_UNMATCHED;
    let others = ["user=a path=/search", "user=a path=/healthz"];
    for words in others {
        let _ = fixture.limiter.check_now(request(words));
    }
    for _ in 3..requests {
        let _ = fixture.limiter.check_now(request("user=a path=/other"));
    }
    assert_eq!(metrics.take_unmatched(), None, "one request too few");
    let _ = fixture.limiter.check_now(request("user=a path=/other"));
    let unmatched = metrics.take_unmatched().unwrap();
    assert_eq!(unmatched.rules, ["never"]);
    assert_eq!(unmatched.requests, requests);
    assert_eq!(metrics.take_unmatched(), None, "once");
    // After another load all counts begin anew.
    metrics.load(&fixture.limiter.policy().get().rules);
    assert_eq!(metrics.take_unmatched(), None);
    for _ in 0..requests {
        let _ = fixture.limiter.check_now(request("user=a path=/search"));
    }
    let unmatched = metrics.take_unmatched().unwrap();
    assert_eq!(unmatched.rules, ["health", "never"]);
}
