//! Counting modes, priorities, soft limits and concurrency limits: parsed, checked against the other options of a
//! rule, warned about and explained.
#![allow(clippy::unwrap_used)]

use tidegate_core::store::{Capabilities, Counting};
use tidegate_core::units::Nanos;
use tidegate_rules::request::{Priority, Request};
use tidegate_rules::{Concurrency, Rule, RuleSet, SoftLimit, SourceFile, lint, parse_with_options};

fn read(rest: &str, store: Capabilities) -> Result<RuleSet, String> {
    let text = format!("version: 1\ntiers: [free, pro]\nrules:\n  - {{ name: api, {rest} }}\n");
    let (name, text) = ("rules.yaml", text.as_str());
    parse_with_options(&[SourceFile { name, text }], store).map_err(|errors| errors.to_string())
}

#[track_caller]
fn rule(rest: &str, store: Capabilities) -> Rule {
    read(rest, store).unwrap().rules()[0].clone()
}

const MS: fn(u64) -> Nanos = Nanos::from_millis;

#[test]
fn leases_exist_only_on_a_store_that_nodes_share() {
    let check = |counting: &str, store, want: (Counting, Option<Nanos>, u64)| {
        let rule = rule(&format!("by: global, rate: 6000/minute burst 200, counting: {counting}"), store);
        let limit = &rule.limits(None, "")[0];
        let found = (rule.options().counting, limit.lease_ttl(), limit.capacity());
        assert_eq!(found, want, "{counting}");
    };
    let redis = Capabilities::SHARED;
    check("exact", redis, (Counting::Exact, None, 200));
    // The refill is a hundred units a second, so ten of the burst may be leased and unused.
    check("leased", redis, (Counting::Leased, Some(MS(100)), 190));
    check("leased 50ms", redis, (Counting::Leased, Some(MS(50)), 195));
    check("lenient", redis, (Counting::Lenient, None, 200));
    for alone in [Capabilities::MEMORY, Capabilities::JOURNAL] {
        for counting in ["exact", "leased", "leased 50ms", "lenient"] {
            check(counting, alone, (Counting::Exact, None, 200));
        }
    }
}

#[test]
fn durable_counts_need_exact_counting() {
    for counting in ["leased", "lenient"] {
        for (durability, store) in
            [("replica", Capabilities::SHARED), ("replica+aof", Capabilities::UNKNOWN), ("disk", Capabilities::JOURNAL)]
        {
            let rest = format!("by: ip, rate: 100/s, counting: {counting}, durability: {durability}");
            let want = format!(
                "rules.yaml:4: rule `api` has counting {counting} with durability {durability}, which \
                 requires every count to be safe before its request passes; write `counting: exact`, or \
                 `durability: none`"
            );
            assert_eq!(read(&rest, store).unwrap_err(), want);
        }
    }
}

#[test]
fn a_burst_too_small_to_be_reduced_is_not_leased() {
    let result = read("by: ip, rate: 1000/s burst 5, counting: leased", Capabilities::SHARED);
    let want = "rules.yaml:4: rule `api` has rate `1000/second burst 5`, whose burst is too small for \
                leases of 5ms; write burst 10 or more, or `counting: exact`";
    assert_eq!(result.unwrap_err(), want);
    let least = "by: ip, rate: 1000/s burst 10, counting: leased";
    assert_eq!(rule(least, Capabilities::SHARED).limits(None, "")[0].capacity(), 5);
}

/// The units that each priority may use of each rate, in the order critical, normal, sheddable.
#[test]
fn each_priority_has_its_ceiling_of_every_rate() {
    let check = |rest: &str, tier, subject: &str, want: [&[u64]; 3]| {
        let rule = rule(rest, Capabilities::SHARED);
        let rates = rule.rates(rule.rate_class(tier, subject));
        for (priority, want) in Priority::ALL.into_iter().zip(want) {
            let limits = rates.limits_for(priority);
            let found: Vec<u64> = limits.iter().map(|limit| limit.capacity()).collect();
            assert_eq!(found, want, "{rest}: {priority:?}");
            for (part, all) in limits.iter().zip(rates.limits()) {
                assert_eq!((part.tag(), part.full_capacity()), (all.tag(), all.full_capacity()));
            }
        }
    };
    let usual = "by: user, rate: 100/minute, priority: true";
    check(usual, None, "", [&[100], &[95], &[80]]);
    let own = "by: user, rate: 100/minute, priority: { normal: 0.5, sheddable: 0.125 }";
    check(own, None, "", [&[100], &[50], &[12]]);
    let one = "by: user, rate: 1/minute, priority: { normal: 1, sheddable: 1.000 }";
    check(one, None, "", [&[1], &[1], &[1]]);
    let least = "by: user, rate: 1000/minute, priority: { sheddable: 0.001 }";
    check(least, None, "", [&[1_000], &[950], &[1]]);
    let below = "by: user, rate: 100/minute, priority: { critical: 0.95 }";
    check(below, None, "", [&[95], &[95], &[80]]);
    // Ceilings are parts of the burst that leases leave.
    let leased = "by: user, rate: 6000/minute burst 200, counting: leased, priority: true";
    check(leased, None, "", [&[190], &[180], &[152]]);
    let many = "by: user, rate: [100/minute, 1000/hour], priority: true, \
                tiers: { pro: 200/minute }, overrides: { alice: 10/minute, bob: unlimited }";
    check(many, None, "", [&[100, 1_000], &[95, 950], &[80, 800]]);
    check(many, Some(1), "", [&[200], &[190], &[160]]);
    check(many, Some(1), "alice", [&[10], &[9], &[8]]);
    check(many, None, "bob", [&[], &[], &[]]);
    let off = "by: user, rate: 100/minute, priority: false";
    check(off, None, "", [&[100], &[100], &[100]]);
}

#[test]
fn a_ceiling_of_zero_is_rejected_for_every_such_rate() {
    let result = read(
        "by: user, rate: 100/minute, priority: true, tiers: { free: 2/minute, pro: 1/minute }",
        Capabilities::MEMORY,
    );
    let want = "rules.yaml:4: rule `api` has rate `1/minute`, of which 0.95 for priority normal is less \
                than one request; write a larger rate, or another ceiling";
    assert_eq!(result.unwrap_err(), want);
}

#[test]
fn rules_with_the_same_rates_do_not_share_ceilings() {
    let text = "version: 1\nrules:
  - { name: a, by: ip, rate: 100/minute }
  - { name: b, by: ip, rate: 100/minute, priority: true }
  - { name: c, by: ip, rate: 100/minute, priority: { sheddable: 0.5 } }
";
    let name = "rules.yaml";
    let set = parse_with_options(&[SourceFile { name, text }], Capabilities::MEMORY).unwrap();
    let sheddable = |rule: &Rule| {
        let rates = rule.rates(rule.rate_class(None, ""));
        rates.limits_for(Priority::Sheddable)[0].capacity()
    };
    let found: Vec<u64> = set.rules().iter().map(sheddable).collect();
    assert_eq!(found, [100, 80, 50]);
}

#[test]
fn an_absent_or_unknown_priority_is_normal() {
    let of = |word: Option<&'static str>| {
        let request = Request::default();
        match word {
            Some(word) => request.with("priority", word),
            None => request,
        }
        .priority()
    };
    assert_eq!(of(None), Priority::Normal);
    for priority in Priority::ALL {
        assert_eq!(of(Some(priority.name())), priority);
    }
    for unknown in ["", "CRITICAL", "high", "1", "critical "] {
        assert_eq!(of(Some(unknown)), Priority::Normal, "{unknown}");
    }
}

fn soft(rest: &str) -> SoftLimit {
    let rest = format!("by: ip, rate: 100/minute, soft: {rest}");
    rule(&rest, Capabilities::MEMORY).soft().unwrap()
}

#[test]
fn a_soft_delay_grows_from_zero_to_its_maximum_and_is_rounded_up() {
    let usual = soft("{ max_delay: 1s }");
    let delays = [100, 21, 20, 19, 15, 10, 1, 0].map(|left| usual.delay(100, left));
    let want = [0, 0, 0, 50, 250, 500, 950, 1_000].map(MS);
    assert_eq!(delays, want);
    let late = soft("{ from: 0.999, max_delay: 2s }");
    assert_eq!(late.delay(100, 1), Nanos::ZERO);
    assert_eq!(late.delay(100, 0), MS(2_000));
    let thirds = soft("{ from: 0.25, max_delay: 1ms }");
    assert_eq!(thirds.delay(4, 3), Nanos::ZERO);
    assert_eq!(thirds.delay(4, 2), Nanos::new(333_334));
    assert_eq!(thirds.delay(4, 1), Nanos::new(666_667));
    assert_eq!(thirds.delay(4, 0), MS(1));
    let early = soft("{ from: 0.001, max_delay: 1h }");
    let largest = u64::MAX / 2;
    assert_eq!(early.delay(largest, 0), Nanos::from_secs(3_600));
    assert_eq!(early.delay(largest, largest), Nanos::ZERO);
    assert_eq!(usual.delay(1, 0), MS(1_000));
}

#[test]
fn a_soft_delay_never_shrinks_as_a_limit_fills() {
    for (from, capacity) in [("0.8", 7), ("0.5", 1_000), ("0.333", 97), ("0.001", 12)] {
        let soft = soft(&format!("{{ from: {from}, max_delay: 1s }}"));
        let delays: Vec<Nanos> = (0..=capacity).map(|used| soft.delay(capacity, capacity - used)).collect();
        assert!(delays.is_sorted(), "{from} of {capacity}: {delays:?}");
        assert_eq!(delays.last(), Some(&MS(1_000)));
    }
}

#[test]
fn a_rule_may_have_only_a_concurrency_limit() {
    let alone = rule("by: ip, concurrent: 5", Capabilities::MEMORY);
    assert_eq!(alone.concurrent(), Some(Concurrency::Fixed(5)));
    assert!(alone.limits(None, "").is_empty());
    let both = rule("by: ip, rate: 9/s, concurrent: adaptive", Capabilities::MEMORY);
    assert_eq!(both.concurrent(), Some(Concurrency::Adaptive));
    assert_eq!(both.limits(None, "").len(), 1);
}

#[track_caller]
fn check_warnings(rest: &str, want: &[&str]) {
    let set = read(rest, Capabilities::UNKNOWN).unwrap();
    let warnings: Vec<String> = lint(&set).iter().map(ToString::to_string).collect();
    let about = |warning: &&String| !warning.contains("keys_file");
    let warnings: Vec<&String> = warnings.iter().filter(about).collect();
    let want: Vec<String> = want.iter().map(|want| format!("rules.yaml:4: rule `api` {want}")).collect();
    assert_eq!(warnings, want.iter().collect::<Vec<_>>(), "{rest}");
}

#[test]
fn a_counting_mode_without_effect_is_warned_about() {
    check_warnings(
        "by: user, rate: 600/minute, counting: leased",
        &["has counting leased, but `600/minute` is less than 8 in 100ms, so that nothing is ever \
           leased; write `counting: exact`"],
    );
    check_warnings("by: user, rate: 80/s, counting: leased", &[]);
    check_warnings("by: user, rate: 8/s, counting: leased 1s", &[]);
    // One rate of several, or one tier, is enough.
    check_warnings("by: user, rate: 600/minute, counting: leased, tiers: { pro: 6000/minute }", &[]);
    check_warnings("by: user, rate: 600/minute, counting: lenient", &[]);
    check_warnings(
        "by: user, rate: 600/minute, algorithm: sliding-window-strict, counting: lenient",
        &["has counting lenient with algorithm sliding-window-strict, which is for limits that are never \
           exceeded; write `counting: exact`, or `algorithm: sliding-window`"],
    );
    check_warnings(
        "by: user, rate: unlimited, concurrent: 5, counting: lenient",
        &[
            "has `concurrent` and no rate: only acquire and release count it, so that every check \
             passes; write a rate beside it unless all callers acquire",
            "has `counting`, but no rate that it could apply to; remove it",
        ],
    );
    check_warnings("by: user, rate: 9/s, concurrent: 5", &[]);
}

#[track_caller]
fn check_explained(rest: &str, priority: Option<&'static str>, want: &str) {
    let set = read(rest, Capabilities::UNKNOWN).unwrap();
    let mut request = Request { ip: Some([192, 0, 2, 7].into()), ..Request::default() };
    if let Some(priority) = priority {
        request = request.with("priority", priority);
    }
    let explained = set.explain(&request, Nanos::ZERO).rules[0].to_string();
    let lines = explained.split("\n  algorithm:").next().unwrap();
    assert_eq!(lines, format!("api: applies\n  counted for: ip\n  {want}"));
}

#[test]
fn counting_priorities_and_permits_are_explained() {
    check_explained("by: ip, rate: 100/minute", Some("critical"), "rate: 100/minute");
    check_explained(
        "by: ip, rate: [6000/minute burst 200, 100/s], counting: leased, algorithm: token-bucket, \
         priority: true, soft: { max_delay: 1s }, concurrent: 50",
        Some("sheddable"),
        "rate: 6000/minute burst 200 and 100/s
  priority: sheddable may use 0.8: 152 of 190 and 72 of 90
  soft: delayed from 0.8 of the limit on, by up to 1s
  counting: leased, for 100ms at most (burst 190 of the 200 written), for 100ms at most (burst 90 of the \
         100 written)
  concurrent: 50, counted by acquire and release alone",
    );
    check_explained(
        "by: ip, rate: 100/minute, counting: leased 250ms, priority: { normal: 0.5, sheddable: 0.5 }",
        None,
        "rate: 100/minute
  priority: normal may use 0.5: 50 of 100
  counting: leased, for 250ms at most",
    );
    check_explained("by: ip, rate: 100/minute, counting: lenient", None, "rate: 100/minute\n  counting: lenient");
    check_explained(
        "by: ip, concurrent: adaptive",
        None,
        "rate: none\n  concurrent: adaptive, counted by acquire and release alone",
    );
}
