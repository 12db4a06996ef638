//! Each algorithm on a few arrivals, to be read as its specification.

use tidegate_core::algorithms::{Algorithm, Retry, Spec, Verdict};
use tidegate_core::units::Nanos;

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, ShippedLimiter, cost};

/// Sends requests of cost 1 at the given milliseconds under a rate such as `token-bucket 10/1000ms burst 5`, and
/// compares the results. Repeats are written `allow*3`.
#[track_caller]
fn check(rate: &str, arrivals_ms: &[u64], want: &str) {
    let case = LimitCase::new(parse(rate));
    let mut subject = ShippedLimiter::new(&case.limit);
    let mut results: Vec<(String, usize)> = Vec::new();
    for ms in arrivals_ms {
        let at = Nanos::from_millis(*ms);
        let result = match subject.peek(at, cost(1)).verdict {
            Verdict::Allow { delay: Nanos::ZERO } => "allow".to_owned(),
            Verdict::Allow { delay } => format!("delay({delay})"),
            Verdict::Deny { retry: Retry::After(wait) } => format!("deny({wait})"),
            Verdict::Deny { retry: Retry::Never } => "never".to_owned(),
        };
        if !result.starts_with("deny") {
            subject.spend(at, cost(1));
        }
        match results.last_mut() {
            Some((last, times)) if *last == result => *times += 1,
            _ => results.push((result, 1)),
        }
    }
    let results: Vec<String> = results
        .into_iter()
        .map(|(result, times)| match times {
            1 => result,
            _ => format!("{result}*{times}"),
        })
        .collect();
    assert_eq!(results.join(" "), want, "{rate}");
}

fn parse(rate: &str) -> Spec {
    let mut words = rate.split(' ');
    let mut word = || words.next();
    let algorithm = word().and_then(Algorithm::from_name).expect("an algorithm");
    let (count, window) = word().and_then(|w| w.split_once('/')).expect("N/DURATION");
    let mut spec = Spec::new(algorithm, number(count), millis(window));
    while let Some(option) = word() {
        let value = word().expect("an option has a value");
        match option {
            "burst" => spec.burst = Some(number(value)),
            "guard" => spec.guard = millis(value),
            "max_delay" => spec.max_delay = Some(millis(value)),
            _ => panic!("no such option: {option}"),
        }
    }
    spec
}

fn millis(text: &str) -> Nanos {
    Nanos::from_millis(number(text.trim_end_matches("ms")))
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// `times` arrivals at one moment.
fn at(ms: u64, times: usize) -> Vec<u64> {
    vec![ms; times]
}

#[test]
fn idle_time_is_not_saved_up_beyond_the_burst() {
    check("token-bucket 1/1000ms burst 2", &[0, 0, 60_000, 60_000, 60_000], "allow*4 deny(1s)");
}

/// A limiter of the field let 17 requests pass a burst of 10 after some idle time.
#[test]
fn no_idle_time_lets_seventeen_pass_a_burst_of_ten() {
    for idle_ms in [0, 1, 999, 1_000, 1_700, 10_000, 86_400_000, 31_536_000_000] {
        let arrivals = [at(0, 10), at(idle_ms + 20_000, 17)].concat();
        let want = "allow*20 deny(1s)*7";
        check("token-bucket 10/10000ms burst 10", &arrivals, want);
        check("leaky-bucket 10/10000ms burst 10", &arrivals, want);
    }
}

#[test]
fn a_bucket_refills_one_by_one() {
    check(
        "token-bucket 10/1000ms burst 2",
        &[0, 0, 0, 99, 100, 100, 199, 300],
        "allow*2 deny(100ms) deny(1ms) allow deny(100ms) deny(1ms) allow",
    );
}

#[test]
fn a_fixed_window_passes_twice_its_limit_around_an_edge() {
    let around = [at(999, 3), at(1_000, 3)].concat();
    check("fixed-window 2/1000ms", &around, "allow*2 deny(1ms) allow*2 deny(1s)");
}

#[test]
fn a_guard_keeps_the_burst_on_one_side_of_the_edge() {
    let around = [at(999, 3), at(1_000, 1), at(1_999, 1), at(2_000, 2)].concat();
    check(
        "fixed-window 2/1000ms guard 100ms",
        &around,
        // The request at 999 is charged to both windows; no other is.
        "allow*2 deny(1.001s) deny(1s) deny(1ms) allow*2",
    );
}

#[test]
fn a_guard_carries_over_only_the_units_admitted_within_it() {
    check("fixed-window 3/1000ms guard 100ms", &[0, 0, 950, 1_000, 1_000, 1_000], "allow*5 deny(1s)");
}

#[test]
fn a_log_frees_each_unit_when_its_own_window_has_passed() {
    check(
        "sliding-log 2/1000ms",
        &[0, 400, 500, 999, 1_000, 1_399, 1_400],
        "allow*2 deny(500ms) deny(1ms) allow deny(1ms) allow",
    );
}

#[test]
fn a_sliding_window_weights_the_previous_window_by_its_part_in_view() {
    // At 1000 all four still weigh; at 1250 three, at 1500 two.
    check(
        "sliding-window 4/1000ms",
        &[999, 999, 999, 999, 1_000, 1_249, 1_250, 1_250, 1_500],
        "allow*4 deny(250ms) deny(1ms) allow deny(250ms) allow",
    );
}

#[test]
fn a_strict_window_drops_a_sub_window_only_as_a_whole() {
    // The sub-window from 0 to 100 leaves at 1100, when its last instant is a window old.
    check(
        "sliding-window-strict 2/1000ms",
        &[0, 50, 1_000, 1_099, 1_100, 1_100, 1_100],
        "allow*2 deny(100ms) deny(1ms) allow*2 deny(1.1s)",
    );
}

#[test]
fn a_queue_spaces_requests_out_and_denies_when_it_is_full() {
    check(
        "leaky-queue 10/1000ms burst 3",
        &[0, 0, 0, 0, 100, 1_000],
        "allow delay(100ms) delay(200ms) deny(100ms) delay(200ms) allow",
    );
}

#[test]
fn a_queue_denies_requests_that_would_wait_too_long() {
    check(
        "leaky-queue 10/1000ms burst 10 max_delay 150ms",
        &[0, 0, 0, 50],
        "allow delay(100ms) deny(50ms) delay(150ms)",
    );
}

#[test]
fn a_cost_above_the_capacity_never_fits() {
    for algorithm in Algorithm::ALL {
        let case = LimitCase::new(Spec::new(algorithm, 10, Nanos::from_secs(1)));
        let never = Verdict::Deny { retry: Retry::Never };
        let look = ShippedLimiter::new(&case.limit).peek(case.start, cost(11));
        assert_eq!(look.verdict, never, "{algorithm}");
    }
}
