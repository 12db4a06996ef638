//! Descriptors and native rules, decided together; and the limits of descriptors in decisions, metrics and
//! explanations.

use std::sync::{Arc, Mutex};

use tidegate::engine::DecisionKind;
use tidegate::envoy::{ChargeOnDenial, DescriptorOptions, Unit};
use tidegate::event::{Event, Observer};
use tidegate::observe::{MemoryFacts, Metrics, StoreFacts};
use tidegate::request::Request;
use tidegate::store::Role;
use tidegate::units::Nanos;
use tidegate::{LimiterBuilder, Policy, Retry};

use crate::fixture::{DescriptorFixture, described, policy};

const NATIVE: &str = "
version: 1
allow: [192.0.2.1]
block: [192.0.2.2]
rules:
  - { name: api, match: { plan: free }, by: user, rate: 2/minute, algorithm: fixed-window }
  - { name: bucket, match: { plan: bucket }, by: user, rate: 60/minute burst 5 }
  - { name: odd, match: { plan: odd }, by: user, rate: 3/90s, algorithm: fixed-window }
  - { name: seen, match: { plan: seen }, by: user, rate: 1/minute, algorithm: fixed-window, mode: shadow }
  - { name: queue, match: { plan: queue }, by: user, rate: 1/s burst 2, algorithm: leaky-queue }
";

const DESCRIPTORS: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3, name: per-user }
  - key: exempt
  - key: free
    rate_limit: { unlimited: true }
";

fn both() -> DescriptorFixture {
    DescriptorFixture::of(both_kinds())
}

fn both_kinds() -> Policy {
    policy(&[DESCRIPTORS, NATIVE]).unwrap()
}

fn plan(plan: &str) -> Request<'_> {
    Request::default().with("plan", plan).with("user", "u")
}

#[test]
fn the_result_of_a_rule_is_reported_on_the_first_descriptor_without_a_limit() {
    let fixture = both();
    let words = "user=a | exempt=1 | free=1 | other=1 | other=2";
    let want = |rest: &str, api: &str| {
        let user = format!("ok {rest} of 3/minute per-user");
        format!("pass: {user} | free | unlimited | {api} | free")
    };
    fixture.check_beside(plan("free"), words, &want("2", "ok 1 of 2/minute api"));
    fixture.check_beside(plan("free"), words, &want("1", "ok 0 of 2/minute api"));
    let denied = "deny: ok 1 of 3/minute per-user | free | unlimited | over 0 of 2/minute api | free";
    fixture.check_beside(plan("free"), words, denied);
    fixture.check_beside(plan("none"), "other=1", "pass: free");
}

#[test]
fn rules_of_other_windows_and_of_buckets_are_reported_too() {
    let fixture = both();
    fixture.check_beside(plan("bucket"), "other=1", "pass: ok 4 of 60/minute bucket");
    fixture.check_beside(plan("odd"), "other=1", "pass: ok 2 of 3/? odd");
    fixture.check_beside(plan("seen"), "other=1", "pass: free");
    fixture.check_beside(plan("seen"), "other=1", "pass: free");
    fixture.check_beside(plan("bucket"), "unknown: user=1", "pass: ok 3 of 60/minute bucket");
}

#[test]
fn all_limits_of_both_kinds_are_charged_or_none() {
    let fixture = both();
    for _ in 0..2 {
        fixture.check_beside(plan("free"), "other=1", "pass: ok 1 of 2/minute api");
        fixture.advance_secs(60);
    }
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute per-user");
    let denied = "deny: over 0 of 3/minute per-user | ok 2 of 2/minute api";
    for _ in 0..3 {
        fixture.check_beside(plan("free"), "user=a | other=1", denied);
    }
    fixture.advance_secs(60);
    for left in ["1", "0"] {
        let passed = format!("pass: ok {left} of 2/minute api");
        fixture.check_beside(plan("free"), "other=1", &passed);
    }
    // No status of a descriptor shows the reason, but the overall result does.
    let denied = "deny: ok 3 of 3/minute per-user";
    fixture.check_beside(plan("free"), "user=a", denied);
    fixture.check("user=a", "pass: ok 2 of 3/minute per-user");
}

/// A native rule never charges a request that it denies, whatever the reference service does with its own limits.
#[test]
fn with_reference_options_native_rules_keep_their_own_counts() {
    let fixture = both()
        .with_options(DescriptorOptions { charge_on_denial: ChargeOnDenial::All, ..DescriptorOptions::default() });
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute per-user");
    let denied = "deny: over 0 of 3/minute per-user | ok 2 of 2/minute api";
    fixture.check_beside(plan("free"), "user=a | other=1", denied);
    fixture.check_beside(plan("free"), "user=a | other=1", denied);
}

#[test]
fn lists_decide_before_descriptors() {
    let fixture = both();
    let from = |ip: &str| Request { ip: Some(ip.parse().unwrap()), ..Request::default() };
    fixture.check_beside(from("192.0.2.1"), "user=a hits=9", "pass: free");
    fixture.check_beside(from("192.0.2.2"), "user=a | user=b", "deny: over | free");
    fixture.check_beside(from("192.0.2.3"), "user=a", "pass: ok 2 of 3/minute per-user");
    let shadow = both().with_options(DescriptorOptions { all_shadow: true, ..DescriptorOptions::default() });
    shadow.check_beside(from("192.0.2.2"), "user=a", "pass: ok 2 of 3/minute per-user");
    let shadow = DescriptorFixture::with(both_kinds(), LimiterBuilder::shadow);
    shadow.check_beside(from("192.0.2.2"), "user=a", "pass: ok 2 of 3/minute per-user");
}

#[test]
fn a_queue_among_the_rules_delays_only_clients_that_can_wait() {
    let fixture = both();
    let fate = |patience: Option<Nanos>| {
        let request = Request { max_delay: patience, ..plan("queue") };
        fixture.judge(request, &described("other=1"), |judged| judged.decision.kind())
    };
    assert_eq!(fate(Some(Nanos::ZERO)), DecisionKind::Allow);
    let wait = DecisionKind::Deny(Retry::After(Nanos::from_secs(1)));
    assert_eq!(fate(Some(Nanos::ZERO)), wait);
    assert_eq!(fate(None), DecisionKind::Delay(Nanos::from_secs(1)));
}

#[test]
fn a_decision_names_the_binding_limit() {
    let fixture = both();
    let binding = |words: &str| {
        fixture.judge(Request::default(), &described(words), |judged| {
            let view = judged.decision.binding();
            view.map(|view| {
                let (name, rate) = (view.rule.name().as_str().to_owned(), view.rate_text.to_owned());
                (name, rate, view.limit.capacity(), view.reading.figures.remaining)
            })
        })
    };
    let named = |name: &str, rate: &str, capacity, left| Some((name.to_owned(), rate.to_owned(), capacity, left));
    assert_eq!(binding("user=a"), named("d.user", "3/minute", 3, 2));
    let brought = named("d.override", "7/hour", 7, 6);
    assert_eq!(binding("user=a limit=9/day | x=1 limit=7/hour"), brought);
    let nothing = binding("x=1 limit=0/hour | user=a").unwrap();
    assert_eq!((&*nothing.0, &*nothing.1), ("d.override", "0/hour"));
    assert_eq!(binding("other=1"), None);
}

#[test]
fn a_decision_lists_every_limit_with_its_role() {
    let fixture = DescriptorFixture::new(
        "
domain: d
descriptors:
  - { key: a, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: b, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: c, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
",
    );
    let request = described("a=1 | b=1 | c=1 | b=2 limit=1/second | x=1 | a=2 none");
    let roles = fixture.judge(Request::default(), &request, |judged| {
        let views = judged.decision.limits();
        let found = views.map(|view| (view.rule.name().as_str().to_owned(), view.role));
        found.collect::<Vec<_>>()
    });
    let want = [
        ("d.a", Role::Enforce),
        ("d.b", Role::Shadow),
        ("d.c", Role::Quota),
        ("d.override", Role::Enforce),
        ("d.a", Role::Enforce),
    ];
    assert_eq!(roles, want.map(|(name, role)| (name.to_owned(), role)));
}

#[derive(Default)]
struct RecordingObserver(Mutex<Vec<bool>>);

impl Observer for RecordingObserver {
    fn on_event(&self, event: &Event<'_>) {
        let Event::Decided { decision, .. } = event else {
            panic!("nothing is charged without rules here");
        };
        self.0.lock().unwrap().push(decision.allowed());
    }
}

#[test]
fn observers_receive_each_request_once() {
    let (observer, metrics) = (Arc::<RecordingObserver>::default(), Arc::<Metrics>::default());
    let (first, second) = (Arc::<RecordingObserver>::clone(&observer), Arc::<Metrics>::clone(&metrics));
    let fixture = DescriptorFixture::with(both_kinds(), |builder| builder.observer(first).observer(second));
    metrics.load(&fixture.limiter.policy().get().rules);
    for words in ["user=a none | user=b hits=3 | user=c back=1", "user=b used=1", "user=b"] {
        fixture.judge(Request::default(), &described(words), |_| ());
    }
    assert_eq!(*observer.0.lock().unwrap(), [true, false, false]);
    let facts = StoreFacts::Memory(MemoryFacts::default());
    let page = metrics.expose("test", &facts);
    let denied = page.lines().find(|line| line.contains("d.user") && line.contains("deny"));
    assert!(denied.is_some_and(|line| line.ends_with(" 2")), "{page}");
}

#[test]
fn explanations_show_that_only_descriptors_match_such_a_limit() {
    let fixture = both();
    let text = fixture.limiter.view().explain(plan("free")).to_string();
    let line = "d.user: does not apply: only descriptors match it";
    assert!(text.lines().any(|found| found == line), "{text}");
    assert!(text.contains("api: applies"), "{text}");
}

#[test]
fn units_are_found_by_name_and_length() {
    for unit in Unit::ALL {
        assert_eq!(Unit::from_name(&unit.name().to_uppercase()), Some(unit));
        assert_eq!(Unit::of_length(unit.length()), Some(unit));
    }
    assert_eq!(Unit::from_name("unknown"), None);
    assert_eq!(Unit::of_length(Nanos::from_secs(61)), None);
}
