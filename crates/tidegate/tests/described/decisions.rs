//! What descriptors are told, and what they are charged.

use tidegate::envoy::{ChargeOnDenial, DescriptorOptions, ZeroHits};
use tidegate::request::Request;
use tidegate::units::Nanos;

use crate::fixture::{DescriptorFixture, described};

const SIMPLE: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: user
    value: vip
    rate_limit: { unit: minute, requests_per_unit: 5 }
";

#[test]
fn a_limit_lets_just_as_many_pass_in_each_window() {
    let bench = DescriptorFixture::new(SIMPLE);
    bench.check("user=a", "pass: ok 2 of 3/minute");
    bench.check("user=a", "pass: ok 1 of 3/minute");
    bench.check("user=a", "pass: ok 0 of 3/minute");
    bench.check("user=a", "refuse: over 0 of 3/minute");
    bench.check("user=b", "pass: ok 2 of 3/minute");
    bench.check("user=vip", "pass: ok 4 of 5/minute");
    bench.check("other=a", "pass: free");
    bench.advance_secs(59);
    bench.check("user=a", "refuse: over 0 of 3/minute");
    bench.advance_secs(1);
    bench.check("user=a", "pass: ok 2 of 3/minute");
}

const THREE_KINDS: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 3 }
  - key: path
    rate_limit: { unit: hour, requests_per_unit: 2 }
  - key: watched
    shadow_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: a
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: b
    quota_mode: true
    rate_limit: { unit: minute, requests_per_unit: 2 }
  - key: free
    rate_limit: { unlimited: true }
  - key: none
    rate_limit: { unit: minute }
  - key: exempt
";

fn all() -> DescriptorOptions {
    DescriptorOptions {
        charge_on_denial: ChargeOnDenial::All,
        zero_hits: ZeroHits::OverAboveLimit,
        ..DescriptorOptions::default()
    }
}

#[test]
fn a_refused_request_pays_nothing() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("path=/ hits=2", "pass: ok 0 of 2/hour");
    for _ in 0..3 {
        let denied = "refuse: ok 3 of 3/minute | over 0 of 2/hour";
        bench.check("user=a | path=/", denied);
    }
    bench.check("user=a", "pass: ok 2 of 3/minute");
}

#[test]
fn with_reference_options_a_denied_request_pays_all_its_limits() {
    let bench = DescriptorFixture::new(THREE_KINDS).with_options(all());
    bench.check("path=/ hits=2", "pass: ok 0 of 2/hour");
    bench.check(
        "user=a | path=/",
        "refuse: ok 2 of 3/minute | over 0 of 2/hour",
    );
    bench.check(
        "user=a | path=/",
        "refuse: ok 1 of 3/minute | over 0 of 2/hour",
    );
    bench.check("user=a", "pass: ok 0 of 3/minute");
}

#[test]
fn under_the_flag_that_stops_counting_only_what_refuses_is_paid() {
    let bench = DescriptorFixture::new(THREE_KINDS).with_options(DescriptorOptions {
        charge_on_denial: ChargeOnDenial::Violated,
        ..DescriptorOptions::default()
    });
    bench.check("path=/", "pass: ok 1 of 2/hour");
    let denied = "refuse: ok 3 of 3/minute | over 0 of 2/hour";
    bench.check("user=a | path=/ hits=2", denied);
    bench.check("user=a", "pass: ok 2 of 3/minute");
    bench.check("path=/", "refuse: over 0 of 2/hour");
}

#[test]
fn what_does_not_fit_is_refused_whole_and_a_smaller_one_still_fits() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("user=a hits=4", "refuse: over 0 of 3/minute");
    bench.check("user=a hits=2", "pass: ok 1 of 3/minute");
    bench.check("user=a hits=2", "refuse: over 0 of 3/minute");
    bench.check("user=a hits=1", "pass: ok 0 of 3/minute");
}

#[test]
fn a_limit_in_shadow_is_reported_empty_and_denies_nothing() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("watched=x", "pass: ok 0 of 1/minute");
    bench.check("watched=x", "pass: watched 0 of 1/minute");
    bench.check(
        "watched=x | user=a",
        "pass: watched 0 of 1/minute | ok 2 of 3/minute",
    );
}

#[test]
fn of_budgets_one_with_room_is_enough() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("a=1 | b=1", "pass: ok 0 of 1/minute | ok 1 of 2/minute");
    bench.check("a=1 | b=1", "pass: over 0 of 1/minute | ok 0 of 2/minute");
    bench.check(
        "a=1 | b=1",
        "refuse: over 0 of 1/minute | over 0 of 2/minute",
    );
    bench.check("a=1 | free=1", "refuse: over 0 of 1/minute | unlimited");
    bench.check("a=1 | other=1", "refuse: over 0 of 1/minute | free");
    bench.check("a=1 | b=2", "pass: over 0 of 1/minute | ok 1 of 2/minute");
}

#[test]
fn a_budget_with_room_does_not_help_a_limit_that_is_over() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
    for _ in 0..2 {
        let denied = "refuse: over 0 of 3/minute | ok 1 of 1/minute";
        bench.check("user=a | a=1", denied);
    }
}

#[test]
fn where_all_are_budgets_what_has_no_limit_passes() {
    let bench = DescriptorFixture::new(THREE_KINDS).with_options(DescriptorOptions {
        all_quota: true,
        ..DescriptorOptions::default()
    });
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
    bench.check("user=a", "refuse: over 0 of 3/minute");
    bench.check(
        "user=a | path=/",
        "pass: over 0 of 3/minute | ok 1 of 2/hour",
    );
    bench.check("user=a | other=1", "pass: over 0 of 3/minute | free");
    bench.check("user=a | exempt=1", "pass: over 0 of 3/minute | free");
    bench.check("user=a | free=1", "refuse: over 0 of 3/minute | unlimited");
    bench.check(
        "user=a | watched=1 hits=2",
        "pass: over 0 of 3/minute | watched 0 of 1/minute",
    );
}

#[test]
fn where_all_is_shadow_statuses_stay_and_nothing_is_refused() {
    let bench = DescriptorFixture::new(THREE_KINDS).with_options(DescriptorOptions {
        all_shadow: true,
        ..DescriptorOptions::default()
    });
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
    bench.check(
        "user=a | path=/",
        "pass: over 0 of 3/minute | ok 1 of 2/hour",
    );
    bench.check(
        "none=1 | watched=1",
        "pass: over 0 of 0/minute | ok 0 of 1/minute",
    );
    bench.check("watched=1", "pass: watched 0 of 1/minute");
}

#[test]
fn a_limiter_in_shadow_takes_every_limit_for_one() {
    let bench = DescriptorFixture::new(THREE_KINDS).in_shadow();
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
    bench.check(
        "user=a | none=1",
        "pass: watched 0 of 3/minute | watched 0 of 0/minute",
    );
}

#[test]
fn limits_of_nothing_and_without_bounds_ask_no_store() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("none=1", "refuse: over 0 of 0/minute");
    bench.check("none=1 none", "refuse: over 0 of 0/minute");
    bench.check(
        "none=1 | user=a",
        "refuse: over 0 of 0/minute | ok 3 of 3/minute",
    );
    bench.check("free=1 hits=9", "pass: unlimited");
    bench.check("exempt=1", "pass: free");
    assert_eq!(bench.limiter.store().stats().keys, 0);
}

#[test]
fn a_question_without_hits_spends_nothing_and_is_over_when_nothing_is_left() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("user=a none", "pass: ok 3 of 3/minute");
    bench.check("user=a hits=2", "pass: ok 1 of 3/minute");
    bench.check("user=a none", "pass: ok 1 of 3/minute");
    bench.check("user=a", "pass: ok 0 of 3/minute");
    let denied = "refuse: over 0 of 3/minute | ok 2 of 2/hour";
    bench.check("user=a none | path=/", denied);
    bench.check("path=/ none", "pass: ok 2 of 2/hour");
    bench.check(
        "a=1 none | b=1 none",
        "pass: ok 1 of 1/minute | ok 2 of 2/minute",
    );
    bench.check("b=1 hits=2", "pass: ok 0 of 2/minute");
    bench.check(
        "a=1 none | b=1",
        "pass: ok 1 of 1/minute | over 0 of 2/minute",
    );
    bench.check("a=1", "pass: ok 0 of 1/minute");
    bench.check(
        "a=1 none | b=1",
        "refuse: over 0 of 1/minute | over 0 of 2/minute",
    );
}

/// As the scripts of the reference check it: a budget that is just spent passes once more, and only what
/// is charged beyond it makes it over.
#[test]
fn with_reference_options_a_request_without_hits_is_over_above_the_limit() {
    let bench = DescriptorFixture::new(THREE_KINDS).with_options(all());
    bench.check("b=1 used=2", "pass: ok 0 of 2/minute");
    bench.check("b=1 none", "pass: ok 0 of 2/minute");
    bench.check("b=1 used=1", "refuse: over 0 of 2/minute");
    bench.check("b=1 none", "refuse: over 0 of 2/minute");
    bench.check(
        "a=1 none | b=1 none",
        "pass: ok 1 of 1/minute | over 0 of 2/minute",
    );
    // The same by requests that are denied.
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
    bench.check("user=a none", "pass: ok 0 of 3/minute");
    bench.check("user=a", "refuse: over 0 of 3/minute");
    bench.check("user=a none", "refuse: over 0 of 3/minute");
    // Beside a descriptor that is charged for the same counter.
    bench.check("user=b hits=2", "pass: ok 1 of 3/minute");
    bench.check(
        "user=b none | user=b",
        "pass: ok 1 of 3/minute | ok 0 of 3/minute",
    );
    bench.check("none=1 none", "refuse: over 0 of 0/minute");
    bench.advance_secs(60);
    bench.check("b=1 none", "pass: ok 2 of 2/minute");
}

/// A denial that is counted at its limit is written under it only while it has counted no more.
#[test]
fn a_denial_under_a_smaller_limit_does_not_wipe_the_larger() {
    let bench = DescriptorFixture::new(THREE_KINDS).with_options(all());
    bench.check(
        "user=a limit=100/minute hits=99",
        "pass: ok 1 of 100/minute",
    );
    bench.check("user=a", "refuse: over 0 of 3/minute");
    bench.check("user=a used=5", "refuse: over 0 of 3/minute");
    bench.check("user=a limit=100/minute", "pass: ok 0 of 100/minute");
    bench.check("user=a limit=100/minute", "refuse: over 0 of 100/minute");
}

/// Under the flag that stops counting, hits of a descriptor's own were charged to limits that passed.
#[test]
fn under_the_flag_that_stops_counting_own_hits_are_paid_like_others() {
    let bench = DescriptorFixture::new(THREE_KINDS).with_options(DescriptorOptions {
        charge_on_denial: ChargeOnDenial::Violated,
        ..all()
    });
    bench.check("path=/ used=2", "pass: ok 0 of 2/hour");
    let denied = "refuse: ok 3 of 3/minute | over 0 of 2/hour";
    bench.check("user=a used=1 | path=/ used=1", denied);
    bench.check("user=a used=1 | path=/ used=1", denied);
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
    bench.check("path=/ none", "refuse: over 0 of 2/hour");
}

#[test]
fn a_request_that_passes_only_because_all_is_shadow_is_reported_as_such() {
    let shadowed = |words: &[&str], all_quota| {
        let bench = DescriptorFixture::new(THREE_KINDS).with_options(DescriptorOptions {
            all_shadow: true,
            all_quota,
            ..all()
        });
        let judged = words.iter().map(|words| {
            bench.judge(Request::default(), &described(words), |judged| {
                assert!(!judged.over_limit);
                judged.shadow_denied
            })
        });
        judged.collect::<Vec<bool>>()
    };
    assert_eq!(
        shadowed(&["a=1", "a=1", "a=1 | b=1"], false),
        [false, true, false]
    );
    assert_eq!(
        shadowed(&["user=a hits=3", "user=a | b=1"], false),
        [false, true]
    );
    assert_eq!(
        shadowed(&["user=a hits=4", "user=a hits=4 | other=1"], true),
        [true, false]
    );
    assert_eq!(
        shadowed(&["watched=1 hits=2", "free=1"], false),
        [false, false]
    );
}

/// Token budgets: what an answer has cost is known when it has been given.
#[test]
fn what_has_been_used_is_counted_though_it_does_not_fit() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check(
        "user=a used=2 | path=/",
        "pass: ok 1 of 3/minute | ok 1 of 2/hour",
    );
    bench.check(
        "user=a used=2 | path=/",
        "refuse: over 0 of 3/minute | ok 1 of 2/hour",
    );
    bench.check("user=a", "refuse: over 0 of 3/minute");
    bench.check("path=/", "pass: ok 0 of 2/hour");
    bench.check(
        "user=b used=1 | path=/",
        "refuse: ok 2 of 3/minute | over 0 of 2/hour",
    );
    bench.check("user=b", "pass: ok 1 of 3/minute");
    bench.advance_secs(60);
    bench.check("user=a", "pass: ok 2 of 3/minute");
}

/// What is used under a limit that was smaller wrote the counter anew under that, and what the larger
/// had counted was gone.
#[test]
fn what_has_been_used_under_a_smaller_limit_does_not_wipe_the_larger() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check(
        "user=a limit=100/minute hits=100",
        "pass: ok 0 of 100/minute",
    );
    bench.check("user=a limit=1/minute used=1", "refuse: over 0 of 1/minute");
    bench.check("user=a limit=100/minute", "refuse: over 0 of 100/minute");
    bench.check("user=a used=1", "refuse: over 0 of 3/minute");
    bench.check("user=a limit=100/minute", "refuse: over 0 of 100/minute");
}

#[test]
fn what_is_given_back_can_be_had_again_and_no_more() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("user=a back=5", "pass: ok 3 of 3/minute");
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
    bench.check("user=a back=1", "pass: ok 1 of 3/minute");
    bench.check("user=a", "pass: ok 0 of 3/minute");
    bench.check("user=a back=9", "pass: ok 3 of 3/minute");
    bench.check("user=a hits=4", "refuse: over 0 of 3/minute");
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
    bench.check(
        "user=a back=2 | path=/",
        "pass: ok 2 of 3/minute | ok 1 of 2/hour",
    );
    bench.check("none=1 back=1", "pass: ok 0 of 0/minute");
    bench.check("other=1 back=1", "pass: free");
}

#[test]
fn a_limit_of_the_request_shares_the_counter_of_the_same_unit() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check("user=a limit=10/minute hits=2", "pass: ok 8 of 10/minute");
    bench.check("user=a", "pass: ok 0 of 3/minute");
    bench.check("user=a", "refuse: over 0 of 3/minute");
    bench.check("user=a limit=10/minute", "pass: ok 6 of 10/minute");
    bench.check("user=a limit=10/hour", "pass: ok 9 of 10/hour");
    bench.check("user=a limit=2/minute", "refuse: over 0 of 2/minute");
    bench.check("user=a limit=0/minute", "refuse: over 0 of 0/minute");
    bench.check("user=a limit=10/minute", "pass: ok 5 of 10/minute");
    bench.check("free=1 limit=1/minute", "pass: ok 0 of 1/minute");
    bench.check("watched=1 limit=0/day", "refuse: over 0 of 0/day");
    bench.check("unknown: user=a limit=0/minute", "pass: free");
}

#[test]
fn a_limit_above_what_a_window_holds_is_reported_as_written_and_what_is_left_as_it_is() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    let (max, counted) = (u32::MAX, u32::MAX / 2);
    let words = format!("user=a limit={max}/year");
    let want = format!("pass: ok {} of {max}/year", counted - 1);
    bench.check(&words, &want);
    let want = format!("pass: ok 0 of {max}/year");
    bench.check(&format!("{words} hits={}", counted - 1), &want);
    bench.check(&words, &format!("refuse: over 0 of {max}/year"));
}

#[test]
fn one_counter_named_twice_is_charged_twice() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.check(
        "user=a | user=a",
        "pass: ok 1 of 3/minute | ok 1 of 3/minute",
    );
    bench.check(
        "user=a | user=a",
        "refuse: ok 1 of 3/minute | over 0 of 3/minute",
    );
    bench.check("user=a", "pass: ok 0 of 3/minute");
}

#[test]
fn one_counter_under_two_limits_is_charged_under_the_smaller() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    let both = "user=a hits=2 | user=a limit=9/minute hits=2";
    bench.check(both, "refuse: ok 3 of 3/minute | over 0 of 9/minute");
    bench.check("user=a hits=3", "pass: ok 0 of 3/minute");
}

#[test]
fn windows_begin_at_multiples_of_their_length() {
    let text = |unit: &str| {
        format!(
            "domain: d\ndescriptors:\n  - key: k\n    rate_limit: \
             {{ unit: {unit}, requests_per_unit: 1 }}\n"
        )
    };
    for (unit, secs) in [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", 86_400),
        ("week", 7 * 86_400),
        ("month", 30 * 86_400),
        ("year", 365 * 86_400),
    ] {
        let bench = DescriptorFixture::new(&text(unit));
        let (one, none) = (
            format!("pass: ok 0 of 1/{unit}"),
            format!("refuse: over 0 of 1/{unit}"),
        );
        bench.check("k=1", &one);
        bench.advance_secs(secs - 1);
        bench.check("k=1", &none);
        bench.advance_secs(1);
        bench.check("k=1", &one);
    }
}

#[test]
fn every_status_with_a_limit_tells_when_its_window_ends() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    bench.advance_secs(12);
    let request = described("user=a | path=/ hits=3 | none=1 | free=1 | other=1");
    let resets = bench.judge(Request::default(), &request, |judged| {
        let resets = judged.statuses.iter().map(|status| status.reset_after);
        resets
            .map(|reset| reset.map(Nanos::secs_up))
            .collect::<Vec<_>>()
    });
    assert_eq!(resets, [Some(48), Some(3_588), Some(48), None, None]);
}

#[test]
fn a_status_tells_what_was_used_before() {
    let bench = DescriptorFixture::new(THREE_KINDS);
    let used = |words: &str| {
        bench.judge(Request::default(), &described(words), |judged| {
            judged.statuses[0].used_before
        })
    };
    let requests = [
        "user=a hits=2",
        "user=a none",
        "user=a hits=3",
        "user=a",
        "user=a",
        "user=a back=1",
        "user=a none",
    ];
    assert_eq!(requests.map(used), [0, 2, 2, 2, 3, 3, 2]);
}
