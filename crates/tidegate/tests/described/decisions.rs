//! The statuses of descriptors, and what they are charged.

use tidegate::LimiterBuilder;
use tidegate::envoy::{ChargeOnDenial, DescriptorOptions, ZeroHits};
use tidegate::request::Request;
use tidegate::units::Nanos;

use crate::fixture::{DescriptorFixture, described, policy};

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
fn a_limit_allows_the_same_number_in_each_window() {
    let fixture = DescriptorFixture::new(SIMPLE);
    fixture.check("user=a", "pass: ok 2 of 3/minute");
    fixture.check("user=a", "pass: ok 1 of 3/minute");
    fixture.check("user=a", "pass: ok 0 of 3/minute");
    fixture.check("user=a", "deny: over 0 of 3/minute");
    fixture.check("user=b", "pass: ok 2 of 3/minute");
    fixture.check("user=vip", "pass: ok 4 of 5/minute");
    fixture.check("other=a", "pass: free");
    fixture.advance_secs(59);
    fixture.check("user=a", "deny: over 0 of 3/minute");
    fixture.advance_secs(1);
    fixture.check("user=a", "pass: ok 2 of 3/minute");
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
fn a_denied_request_is_charged_nothing() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("path=/ hits=2", "pass: ok 0 of 2/hour");
    for _ in 0..3 {
        let denied = "deny: ok 3 of 3/minute | over 0 of 2/hour";
        fixture.check("user=a | path=/", denied);
    }
    fixture.check("user=a", "pass: ok 2 of 3/minute");
}

#[test]
fn with_reference_options_a_denied_request_is_charged_on_all_its_limits() {
    let fixture = DescriptorFixture::new(THREE_KINDS).with_options(all());
    fixture.check("path=/ hits=2", "pass: ok 0 of 2/hour");
    fixture.check("user=a | path=/", "deny: ok 2 of 3/minute | over 0 of 2/hour");
    fixture.check("user=a | path=/", "deny: ok 1 of 3/minute | over 0 of 2/hour");
    fixture.check("user=a", "pass: ok 0 of 3/minute");
}

#[test]
fn under_the_flag_that_stops_counting_only_the_denying_limit_is_charged() {
    let fixture = DescriptorFixture::new(THREE_KINDS)
        .with_options(DescriptorOptions { charge_on_denial: ChargeOnDenial::Violated, ..DescriptorOptions::default() });
    fixture.check("path=/", "pass: ok 1 of 2/hour");
    let denied = "deny: ok 3 of 3/minute | over 0 of 2/hour";
    fixture.check("user=a | path=/ hits=2", denied);
    fixture.check("user=a", "pass: ok 2 of 3/minute");
    fixture.check("path=/", "deny: over 0 of 2/hour");
}

#[test]
fn hits_that_do_not_fit_are_denied_whole_and_fewer_still_fit() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("user=a hits=4", "deny: over 0 of 3/minute");
    fixture.check("user=a hits=2", "pass: ok 1 of 3/minute");
    fixture.check("user=a hits=2", "deny: over 0 of 3/minute");
    fixture.check("user=a hits=1", "pass: ok 0 of 3/minute");
}

#[test]
fn a_limit_in_shadow_is_reported_empty_and_denies_nothing() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("watched=x", "pass: ok 0 of 1/minute");
    fixture.check("watched=x", "pass: watched 0 of 1/minute");
    fixture.check("watched=x | user=a", "pass: watched 0 of 1/minute | ok 2 of 3/minute");
}

#[test]
fn one_budget_with_room_is_enough() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("a=1 | b=1", "pass: ok 0 of 1/minute | ok 1 of 2/minute");
    fixture.check("a=1 | b=1", "pass: over 0 of 1/minute | ok 0 of 2/minute");
    fixture.check("a=1 | b=1", "deny: over 0 of 1/minute | over 0 of 2/minute");
    fixture.check("a=1 | free=1", "deny: over 0 of 1/minute | unlimited");
    fixture.check("a=1 | other=1", "deny: over 0 of 1/minute | free");
    fixture.check("a=1 | b=2", "pass: over 0 of 1/minute | ok 1 of 2/minute");
}

#[test]
fn a_budget_with_room_does_not_help_a_limit_that_is_over() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
    for _ in 0..2 {
        let denied = "deny: over 0 of 3/minute | ok 1 of 1/minute";
        fixture.check("user=a | a=1", denied);
    }
}

#[test]
fn where_all_limits_are_budgets_a_descriptor_without_a_limit_passes() {
    let fixture = DescriptorFixture::new(THREE_KINDS)
        .with_options(DescriptorOptions { all_quota: true, ..DescriptorOptions::default() });
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
    fixture.check("user=a", "deny: over 0 of 3/minute");
    fixture.check("user=a | path=/", "pass: over 0 of 3/minute | ok 1 of 2/hour");
    fixture.check("user=a | other=1", "pass: over 0 of 3/minute | free");
    fixture.check("user=a | exempt=1", "pass: over 0 of 3/minute | free");
    fixture.check("user=a | free=1", "deny: over 0 of 3/minute | unlimited");
    fixture.check("user=a | watched=1 hits=2", "pass: over 0 of 3/minute | watched 0 of 1/minute");
}

#[test]
fn where_all_is_shadow_statuses_stay_and_nothing_is_denied() {
    let fixture = DescriptorFixture::new(THREE_KINDS)
        .with_options(DescriptorOptions { all_shadow: true, ..DescriptorOptions::default() });
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
    fixture.check("user=a | path=/", "pass: over 0 of 3/minute | ok 1 of 2/hour");
    fixture.check("none=1 | watched=1", "pass: over 0 of 0/minute | ok 0 of 1/minute");
    fixture.check("watched=1", "pass: watched 0 of 1/minute");
}

#[test]
fn a_limiter_in_shadow_mode_treats_every_limit_as_shadow() {
    let fixture = DescriptorFixture::with(policy(&[THREE_KINDS]).unwrap(), LimiterBuilder::shadow);
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
    fixture.check("user=a | none=1", "pass: watched 0 of 3/minute | watched 0 of 0/minute");
}

#[test]
fn limits_of_zero_and_unlimited_ones_call_no_store() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("none=1", "deny: over 0 of 0/minute");
    fixture.check("none=1 none", "deny: over 0 of 0/minute");
    fixture.check("none=1 | user=a", "deny: over 0 of 0/minute | ok 3 of 3/minute");
    fixture.check("free=1 hits=9", "pass: unlimited");
    fixture.check("exempt=1", "pass: free");
    assert_eq!(fixture.limiter.store().stats().keys, 0);
}

#[test]
fn a_check_without_hits_charges_nothing_and_is_over_when_nothing_is_left() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("user=a none", "pass: ok 3 of 3/minute");
    fixture.check("user=a hits=2", "pass: ok 1 of 3/minute");
    fixture.check("user=a none", "pass: ok 1 of 3/minute");
    fixture.check("user=a", "pass: ok 0 of 3/minute");
    let denied = "deny: over 0 of 3/minute | ok 2 of 2/hour";
    fixture.check("user=a none | path=/", denied);
    fixture.check("path=/ none", "pass: ok 2 of 2/hour");
    fixture.check("a=1 none | b=1 none", "pass: ok 1 of 1/minute | ok 2 of 2/minute");
    fixture.check("b=1 hits=2", "pass: ok 0 of 2/minute");
    fixture.check("a=1 none | b=1", "pass: ok 1 of 1/minute | over 0 of 2/minute");
    fixture.check("a=1", "pass: ok 0 of 1/minute");
    fixture.check("a=1 none | b=1", "deny: over 0 of 1/minute | over 0 of 2/minute");
}

/// As the scripts of the reference check it: a budget that is just used up passes once more, and only a charge beyond
/// it makes it over.
#[test]
fn with_reference_options_a_request_without_hits_is_over_above_the_limit() {
    let fixture = DescriptorFixture::new(THREE_KINDS).with_options(all());
    fixture.check("b=1 used=2", "pass: ok 0 of 2/minute");
    fixture.check("b=1 none", "pass: ok 0 of 2/minute");
    fixture.check("b=1 used=1", "deny: over 0 of 2/minute");
    fixture.check("b=1 none", "deny: over 0 of 2/minute");
    fixture.check("a=1 none | b=1 none", "pass: ok 1 of 1/minute | over 0 of 2/minute");
    // The same by denied requests.
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
    fixture.check("user=a none", "pass: ok 0 of 3/minute");
    fixture.check("user=a", "deny: over 0 of 3/minute");
    fixture.check("user=a none", "deny: over 0 of 3/minute");
    // Together with a descriptor that is charged to the same counter.
    fixture.check("user=b hits=2", "pass: ok 1 of 3/minute");
    fixture.check("user=b none | user=b", "pass: ok 1 of 3/minute | ok 0 of 3/minute");
    fixture.check("none=1 none", "deny: over 0 of 0/minute");
    fixture.advance_secs(60);
    fixture.check("b=1 none", "pass: ok 2 of 2/minute");
}

/// A denial that is counted at its limit is written under that limit only while it has counted no more.
#[test]
fn a_denial_under_a_smaller_limit_does_not_erase_the_count_of_the_larger() {
    let fixture = DescriptorFixture::new(THREE_KINDS).with_options(all());
    fixture.check("user=a limit=100/minute hits=99", "pass: ok 1 of 100/minute");
    fixture.check("user=a", "deny: over 0 of 3/minute");
    fixture.check("user=a used=5", "deny: over 0 of 3/minute");
    fixture.check("user=a limit=100/minute", "pass: ok 0 of 100/minute");
    fixture.check("user=a limit=100/minute", "deny: over 0 of 100/minute");
}

/// Under the flag that stops counting, a descriptor's own hits were charged to limits that passed.
#[test]
fn under_the_flag_that_stops_counting_own_hits_are_charged_like_others() {
    let fixture = DescriptorFixture::new(THREE_KINDS)
        .with_options(DescriptorOptions { charge_on_denial: ChargeOnDenial::Violated, ..all() });
    fixture.check("path=/ used=2", "pass: ok 0 of 2/hour");
    let denied = "deny: ok 3 of 3/minute | over 0 of 2/hour";
    fixture.check("user=a used=1 | path=/ used=1", denied);
    fixture.check("user=a used=1 | path=/ used=1", denied);
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
    fixture.check("path=/ none", "deny: over 0 of 2/hour");
}

#[test]
fn a_request_that_passes_only_because_all_is_shadow_is_reported_as_such() {
    let shadowed = |words: &[&str], all_quota| {
        let fixture = DescriptorFixture::new(THREE_KINDS).with_options(DescriptorOptions {
            all_shadow: true,
            all_quota,
            ..all()
        });
        let judged = words.iter().map(|words| {
            fixture.judge(Request::default(), &described(words), |judged| {
                assert!(!judged.over_limit);
                judged.shadow_denied
            })
        });
        judged.collect::<Vec<bool>>()
    };
    assert_eq!(shadowed(&["a=1", "a=1", "a=1 | b=1"], false), [false, true, false]);
    assert_eq!(shadowed(&["user=a hits=3", "user=a | b=1"], false), [false, true]);
    assert_eq!(shadowed(&["user=a hits=4", "user=a hits=4 | other=1"], true), [true, false]);
    assert_eq!(shadowed(&["watched=1 hits=2", "free=1"], false), [false, false]);
}

/// Token budgets: the cost of a response is known after it was sent.
#[test]
fn used_units_are_counted_although_they_do_not_fit() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("user=a used=2 | path=/", "pass: ok 1 of 3/minute | ok 1 of 2/hour");
    fixture.check("user=a used=2 | path=/", "deny: over 0 of 3/minute | ok 1 of 2/hour");
    fixture.check("user=a", "deny: over 0 of 3/minute");
    fixture.check("path=/", "pass: ok 0 of 2/hour");
    fixture.check("user=b used=1 | path=/", "deny: ok 2 of 3/minute | over 0 of 2/hour");
    fixture.check("user=b", "pass: ok 1 of 3/minute");
    fixture.advance_secs(60);
    fixture.check("user=a", "pass: ok 2 of 3/minute");
}

/// Usage under a smaller limit wrote the counter anew under that limit, and the count of the larger was lost.
#[test]
fn usage_under_a_smaller_limit_does_not_erase_the_count_of_the_larger() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("user=a limit=100/minute hits=100", "pass: ok 0 of 100/minute");
    fixture.check("user=a limit=1/minute used=1", "deny: over 0 of 1/minute");
    fixture.check("user=a limit=100/minute", "deny: over 0 of 100/minute");
    fixture.check("user=a used=1", "deny: over 0 of 3/minute");
    fixture.check("user=a limit=100/minute", "deny: over 0 of 100/minute");
}

#[test]
fn refunded_units_can_be_charged_again_and_no_more() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("user=a back=5", "pass: ok 3 of 3/minute");
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
    fixture.check("user=a back=1", "pass: ok 1 of 3/minute");
    fixture.check("user=a", "pass: ok 0 of 3/minute");
    fixture.check("user=a back=9", "pass: ok 3 of 3/minute");
    fixture.check("user=a hits=4", "deny: over 0 of 3/minute");
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
    fixture.check("user=a back=2 | path=/", "pass: ok 2 of 3/minute | ok 1 of 2/hour");
    fixture.check("none=1 back=1", "pass: ok 0 of 0/minute");
    fixture.check("other=1 back=1", "pass: free");
}

#[test]
fn a_limit_of_the_request_shares_the_counter_of_the_same_unit() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("user=a limit=10/minute hits=2", "pass: ok 8 of 10/minute");
    fixture.check("user=a", "pass: ok 0 of 3/minute");
    fixture.check("user=a", "deny: over 0 of 3/minute");
    fixture.check("user=a limit=10/minute", "pass: ok 6 of 10/minute");
    fixture.check("user=a limit=10/hour", "pass: ok 9 of 10/hour");
    fixture.check("user=a limit=2/minute", "deny: over 0 of 2/minute");
    fixture.check("user=a limit=0/minute", "deny: over 0 of 0/minute");
    fixture.check("user=a limit=10/minute", "pass: ok 5 of 10/minute");
    fixture.check("free=1 limit=1/minute", "pass: ok 0 of 1/minute");
    fixture.check("watched=1 limit=0/day", "deny: over 0 of 0/day");
    fixture.check("unknown: user=a limit=0/minute", "pass: free");
}

#[test]
fn a_limit_above_the_capacity_of_a_window_is_reported_as_written_with_the_true_remainder() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    let (max, counted) = (u32::MAX, u32::MAX / 2);
    let words = format!("user=a limit={max}/year");
    let want = format!("pass: ok {} of {max}/year", counted - 1);
    fixture.check(&words, &want);
    let want = format!("pass: ok 0 of {max}/year");
    fixture.check(&format!("{words} hits={}", counted - 1), &want);
    fixture.check(&words, &format!("deny: over 0 of {max}/year"));
}

#[test]
fn one_counter_named_twice_is_charged_twice() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.check("user=a | user=a", "pass: ok 1 of 3/minute | ok 1 of 3/minute");
    fixture.check("user=a | user=a", "deny: ok 1 of 3/minute | over 0 of 3/minute");
    fixture.check("user=a", "pass: ok 0 of 3/minute");
}

#[test]
fn one_counter_under_two_limits_is_charged_under_the_smaller() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    let both = "user=a hits=2 | user=a limit=9/minute hits=2";
    fixture.check(both, "deny: ok 3 of 3/minute | over 0 of 9/minute");
    fixture.check("user=a hits=3", "pass: ok 0 of 3/minute");
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
        let fixture = DescriptorFixture::new(&text(unit));
        let (one, none) = (format!("pass: ok 0 of 1/{unit}"), format!("deny: over 0 of 1/{unit}"));
        fixture.check("k=1", &one);
        fixture.advance_secs(secs - 1);
        fixture.check("k=1", &none);
        fixture.advance_secs(1);
        fixture.check("k=1", &one);
    }
}

#[test]
fn every_status_with_a_limit_reports_the_end_of_its_window() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    fixture.advance_secs(12);
    let request = described("user=a | path=/ hits=3 | none=1 | free=1 | other=1");
    let resets = fixture.judge(Request::default(), &request, |judged| {
        let resets = judged.statuses.iter().map(|status| status.reset_after);
        resets.map(|reset| reset.map(Nanos::secs_up)).collect::<Vec<_>>()
    });
    assert_eq!(resets, [Some(48), Some(3_588), Some(48), None, None]);
}

#[test]
fn a_status_reports_earlier_usage() {
    let fixture = DescriptorFixture::new(THREE_KINDS);
    let used =
        |words: &str| fixture.judge(Request::default(), &described(words), |judged| judged.statuses[0].used_before);
    let requests =
        ["user=a hits=2", "user=a none", "user=a hits=3", "user=a", "user=a", "user=a back=1", "user=a none"];
    assert_eq!(requests.map(used), [0, 2, 2, 2, 3, 3, 2]);
}
