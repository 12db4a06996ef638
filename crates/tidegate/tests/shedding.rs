//! Priorities and soft limits, from rules to decisions.
#![allow(clippy::unwrap_used, reason = "clippy sees tests only inside test functions")]

mod common;

use common::{TestLimiter, request};
use tidegate::algorithms::Retry;
use tidegate::engine::DecisionKind;
use tidegate::store::Refunded;
use tidegate::units::Nanos;

const SHARED: &str = "version: 1
rules:
  - { name: api, by: global, rate: 100/hour, priority: true }
";

/// The number of requests of 200 that pass.
fn passing(fixture: &TestLimiter, words: &str) -> usize {
    let pass = |_: &usize| fixture.decide(request(words)).allowed();
    (0..200).filter(pass).count()
}

#[test]
fn low_priority_requests_leave_the_rest_to_high_priority_ones() {
    for algorithm in [
        "fixed-window",
        "sliding-log",
        "sliding-window",
        "sliding-window-strict",
        "token-bucket",
        "leaky-bucket",
        "leaky-queue",
    ] {
        let rules = SHARED.replace("by: global", &format!("by: global, algorithm: {algorithm}"));
        let fixture = TestLimiter::new(&rules);
        let passed = ["priority=sheddable", "priority=unheard-of", "user=a"].map(|words| passing(&fixture, words));
        assert_eq!(passed, [80, 15, 0], "{algorithm}");
        assert_eq!(passing(&fixture, "priority=critical"), 5, "{algorithm}");
        assert_eq!(fixture.used("user=a", "api"), 100, "{algorithm}");
    }
}

#[test]
fn requests_that_may_use_the_whole_limit_leave_nothing_to_others() {
    let fixture = TestLimiter::new(SHARED);
    assert_eq!(passing(&fixture, "priority=critical"), 100);
    assert_eq!(passing(&fixture, "priority=sheddable"), 0);
}

#[test]
fn a_request_reports_the_share_that_it_may_use() {
    let fixture = TestLimiter::new(SHARED);
    for (words, limit, remaining) in [
        ("priority=sheddable cost=10", 80, 70),
        ("cost=10", 95, 75),
        ("priority=critical cost=10", 100, 70),
        ("priority=sheddable", 80, 49),
    ] {
        let decision = fixture.decide(request(words));
        let view = decision.binding().unwrap();
        let found = (view.limit.capacity(), view.reading.figures.remaining);
        assert_eq!(found, (limit, remaining), "{words}");
        assert_eq!(view.rate_text, "100/hour");
    }
    fixture.check("priority=sheddable cost=81", "never api");
    fixture.check("priority=sheddable cost=50", "deny api");
}

#[test]
fn a_denial_by_a_ceiling_charges_nothing_else() {
    let rules = format!("{SHARED}  - {{ name: each, by: user, rate: 1000/hour }}\n");
    let fixture = TestLimiter::new(&rules);
    assert_eq!(passing(&fixture, "user=a priority=sheddable"), 80);
    assert_eq!(fixture.used("user=a", "each"), 80);
    assert_eq!(passing(&fixture, "user=b priority=sheddable"), 0);
    assert_eq!(fixture.used("user=b", "each"), 0);
    assert_eq!(passing(&fixture, "user=b priority=critical"), 20);
    assert_eq!(fixture.used("user=b", "each"), 20);
}

#[test]
fn a_charge_under_a_ceiling_can_be_refunded() {
    let fixture = TestLimiter::new(SHARED);
    let decision = fixture.decide(request("priority=sheddable cost=80"));
    let receipt = fixture.limiter.receipt(&decision).unwrap().unwrap();
    fixture.check("priority=sheddable", "deny api");
    assert_eq!(fixture.refund(&receipt), Refunded::Done);
    assert_eq!(fixture.used("user=a", "api"), 0);
    assert_eq!(fixture.refund(&receipt), Refunded::Already);
}

#[test]
fn the_wait_of_a_denial_is_that_of_its_own_ceiling() {
    let rules = SHARED.replace("100/hour", "3600/hour burst 100");
    let fixture = TestLimiter::new(&rules);
    assert_eq!(passing(&fixture, "priority=critical"), 100);
    for (words, secs) in [("priority=critical", 1), ("priority=normal", 6), ("priority=sheddable", 21)] {
        let wait = fixture.denied_for(words);
        assert_eq!(wait, Nanos::from_secs(secs), "{words}");
    }
    fixture.advance(21_000_000_000 - 1);
    fixture.check("priority=sheddable", "deny api 1s");
    fixture.advance(1);
    fixture.check("priority=sheddable", "allow");
}

#[test]
fn a_reload_changes_ceilings_and_keeps_used_units() {
    let without = SHARED.replace(", priority: true", "");
    let fixture = TestLimiter::new(&without);
    for _ in 0..85 {
        fixture.check("priority=sheddable", "allow");
    }
    fixture.reload(SHARED);
    fixture.check("priority=sheddable", "deny api");
    fixture.check("user=a", "allow");
    fixture.reload(&SHARED.replace("true", "{ sheddable: 0.9 }"));
    fixture.check("priority=sheddable", "allow");
    assert_eq!(fixture.used("user=a", "api"), 87);
    fixture.reload(&without);
    assert_eq!(passing(&fixture, "priority=sheddable"), 13);
}

#[test]
fn tiers_and_staggered_windows_have_ceilings_of_their_own() {
    let fixture = TestLimiter::new(
        "version: 1
rules:
  - name: api
    by: user
    algorithm: fixed-window
    stagger: true
    rate: 10/hour
    overrides: { big: 1000/hour }
    priority: { normal: 0.5, sheddable: 0.5 }
",
    );
    assert_eq!(passing(&fixture, "user=small"), 5);
    assert_eq!(passing(&fixture, "user=big cost=100"), 5);
    assert_eq!(passing(&fixture, "user=small priority=critical"), 5);
}

#[test]
fn a_shadow_rule_reports_what_a_ceiling_would_have_denied() {
    let fixture = TestLimiter::new(&SHARED.replace("priority", "mode: shadow, priority"));
    for _ in 0..81 {
        fixture.check("priority=sheddable", "allow");
    }
    let decision = fixture.decide(request("priority=sheddable"));
    let shadow = decision.shadows().next().unwrap();
    assert!(!shadow.reading.verdict.allows());
    assert_eq!(fixture.used("user=a", "api"), 80);
}

const SOFT: &str = "version: 1
rules:
  - { name: api, by: user, rate: 100/hour, soft: { max_delay: 10s } }
";

fn delay(fixture: &TestLimiter, words: &str) -> Nanos {
    match fixture.decide(request(words)).kind() {
        DecisionKind::Allow => Nanos::ZERO,
        DecisionKind::Delay(delay) => delay,
        other => panic!("{words}: {other:?}"),
    }
}

#[test]
fn from_four_fifths_on_delays_grow() {
    let fixture = TestLimiter::new(SOFT);
    assert_eq!(delay(&fixture, "user=a cost=79"), Nanos::ZERO);
    assert_eq!(delay(&fixture, "user=a"), Nanos::ZERO);
    for twentieth in 1..=20 {
        let want = Nanos::from_millis(500 * twentieth);
        assert_eq!(delay(&fixture, "user=a"), want);
    }
    fixture.check("user=a", "deny api");
    assert_eq!(delay(&fixture, "user=b"), Nanos::ZERO);
}

#[test]
fn a_peek_reports_the_delay_that_a_request_would_have() {
    let fixture = TestLimiter::new(SOFT);
    delay(&fixture, "user=a cost=89");
    let peeked = fixture.peek("user=a").kind();
    assert_eq!(peeked, DecisionKind::Delay(delay(&fixture, "user=a")));
}

#[test]
fn a_client_that_cannot_wait_is_not_delayed_and_never_denied_for_it() {
    let fixture = TestLimiter::new(SOFT);
    assert_eq!(delay(&fixture, "user=a cost=99 patience=0"), Nanos::ZERO);
    assert_eq!(delay(&fixture, "user=a patience=0"), Nanos::ZERO);
    fixture.check("user=a patience=0", "deny api");
    let some = delay(&fixture, "user=b cost=99 patience=2500");
    assert_eq!(some, Nanos::from_millis(2_500));
}

#[test]
fn the_longest_delay_wins_and_a_shadow_rule_adds_none() {
    let fixture = TestLimiter::new(
        "version: 1
rules:
  - { name: short, by: user, rate: 10/hour, soft: { from: 0.5, max_delay: 1s } }
  - { name: long, by: global, rate: [20/hour, 1000/hour], soft: { from: 0.5, max_delay: 8s } }
  - { name: tried, by: user, rate: 10/hour, soft: { from: 0.1, max_delay: 1m }, mode: shadow }
",
    );
    assert_eq!(delay(&fixture, "user=a cost=10"), Nanos::from_secs(1));
    assert_eq!(delay(&fixture, "user=b cost=5"), Nanos::from_secs(4));
    let shadow = TestLimiter::in_shadow(SOFT);
    assert_eq!(delay(&shadow, "user=a cost=100"), Nanos::ZERO);
}

#[test]
fn low_priority_requests_are_delayed_below_a_ceiling_of_their_own() {
    let fixture = TestLimiter::new(&SOFT.replace("soft", "priority: true, soft"));
    assert_eq!(delay(&fixture, "user=a cost=64 priority=sheddable"), Nanos::ZERO);
    let half = Nanos::from_millis(5_000);
    assert_eq!(delay(&fixture, "user=a cost=8 priority=sheddable"), half);
    assert_eq!(delay(&fixture, "user=a priority=critical"), Nanos::ZERO);
    let all = Nanos::from_secs(10);
    assert_eq!(delay(&fixture, "user=a cost=7 priority=sheddable"), all);
}

#[test]
fn the_longer_delay_of_a_queue_and_a_soft_limit_applies() {
    let fixture = TestLimiter::new(
        "version: 1
rules:
  - { name: queue, by: global, rate: 1/s burst 10, algorithm: leaky-queue }
  - { name: soft, by: global, rate: 10/hour, soft: { from: 0.5, max_delay: 2s } }
",
    );
    let delays = [(); 7].map(|()| delay(&fixture, "user=a"));
    assert_eq!(delays, [0, 1, 2, 3, 4, 5, 6].map(Nanos::from_secs));
    let denied = fixture.decide(request("user=a cost=4"));
    assert!(matches!(denied.kind(), DecisionKind::Deny(Retry::After(_))));
}

#[test]
fn a_rule_with_concurrency_alone_charges_nothing() {
    let fixture = TestLimiter::new("version: 1\nrules:\n  - { name: open, by: user, concurrent: 1 }\n");
    for _ in 0..3 {
        fixture.check("user=a", "allow");
    }
    assert!(fixture.usage("user=a").is_empty());
}
