//! The interval bounds, from both sides: `invariants` finds the violations that a check of all pairs finds, and an
//! adversary reaches the bounds and not a unit more.

use proptest::prelude::*;
use tidegate_core::algorithms::{Algorithm, Spec, Verdict};
use tidegate_core::invariants::{Admission, busiest, steady_release, within_bound};
use tidegate_core::units::Nanos;

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, ShippedLimiter, cost};
use crate::rng::for_each_seed;
use crate::trace::{ClockKind, TrafficTrace};

/// The bound of an algorithm over the interval from tick `from` to tick `to`, both included.
fn bound(case: &LimitCase, from: u64, to: u64) -> u128 {
    let count = u128::from(case.spec.count);
    let (span, width) = (u128::from(to - from), u128::from(case.width()));
    match case.spec.algorithm {
        Algorithm::FixedWindow => {
            let windows = u128::from(to) / width - u128::from(from) / width + 1;
            windows * count
        }
        Algorithm::SlidingLog | Algorithm::SlidingWindowStrict => (span / width + 1) * count,
        Algorithm::SlidingWindow => {
            let one_window = u128::from(to) / width == u128::from(from) / width;
            let weighed = count + span * count / width;
            if one_window { count } else { weighed }
        }
        _ => u128::from(case.limit.capacity()) + span * count / width,
    }
}

/// All pairs, the slow way.
fn holds_for_all_pairs(case: &LimitCase, history: &[Admission]) -> bool {
    (0..history.len()).all(|first| {
        let mut admitted = 0u128;
        history[first..].iter().all(|last| {
            admitted += u128::from(last.units);
            admitted <= bound(case, history[first].at.get(), last.at.get())
        })
    })
}

proptest! {
    #![proptest_config(crate::rng::config(6_000))]

    /// Synthetic histories near the bound.
    #[test]
    fn one_pass_finds_the_violations_that_all_pairs_find(
        which in 0..7usize,
        count in 1u64..8,
        width in 1u64..30,
        steps in prop::collection::vec((0u64..12, 1u64..4), 1..14),
    ) {
        let case = LimitCase::new(Spec::new(Algorithm::ALL[which], count, Nanos::new(width)));
        let mut at = 0;
        let history: Vec<Admission> = steps
            .into_iter()
            .map(|(step, units)| {
                at += step;
                Admission { at: Nanos::new(at), units }
            })
            .collect();
        let result = within_bound(&case.limit, &history);
        prop_assert_eq!(result.is_ok(), holds_for_all_pairs(&case, &history), "{:?}", result);
        if let Err(violation) = result {
            let inside = history.iter().filter(|a| violation.from <= a.at && a.at <= violation.to);
            prop_assert!(violation.admitted <= inside.map(|a| a.units).sum());
            prop_assert!(violation.admitted > violation.bound);
        }
    }
}

/// Charges all units that are admitted: all at the end of one window, then any that fit, as soon as they fit, for five
/// windows.
fn greedy(algorithm: Algorithm) -> Vec<Admission> {
    let width = Nanos::from_millis(100);
    let case = LimitCase::new(Spec::new(algorithm, 10, width));
    let mut subject = ShippedLimiter::new(&case.limit);
    let mut history = Vec::new();
    for ms in 99..600 {
        let at = Nanos::from_millis(ms);
        let units = subject.remaining(at);
        if units > 0 {
            subject.spend(at, cost(units));
            history.push(Admission { at, units });
        }
    }
    assert_eq!(within_bound(&case.limit, &history), Ok(()));
    history
}

#[test]
fn an_adversary_gets_the_documented_maximum_in_one_window() {
    let peak = |algorithm| busiest(&greedy(algorithm), Nanos::from_millis(100));
    assert_eq!(peak(Algorithm::FixedWindow), 20);
    assert_eq!(peak(Algorithm::SlidingLog), 10);
    assert_eq!(peak(Algorithm::SlidingWindow), 19);
    assert_eq!(peak(Algorithm::SlidingWindowStrict), 10);
    assert_eq!(peak(Algorithm::TokenBucket), 19); // its twentieth comes as the window ends
    assert_eq!(peak(Algorithm::LeakyBucket), 19);
}

/// The other side: constant demand gets the rate, and of the strict window at least 10/11 of it.
#[test]
fn constant_demand_gets_the_guaranteed_rate() {
    let total = |algorithm| greedy(algorithm).iter().map(|a| a.units).sum::<u64>();
    assert_eq!(total(Algorithm::FixedWindow), 10 + 5 * 10);
    assert_eq!(total(Algorithm::SlidingLog), 6 * 10);
    assert_eq!(total(Algorithm::TokenBucket), 10 + 5 * 10);
    assert!(total(Algorithm::SlidingWindow) >= 5 * 10);
    assert!(total(Algorithm::SlidingWindowStrict) >= 5 * 10 * 10 / 11);
}

#[test]
fn a_queue_releases_at_its_rate() {
    for_each_seed(1_000, |rng| {
        let case = LimitCase::random(rng, Algorithm::LeakyQueue);
        let mut subject = ShippedLimiter::new(&case.limit);
        let mut trace = TrafficTrace::new(&case, ClockKind::Steady);
        let mut departures = Vec::new();
        let mut last = None;
        for _ in 0..100 {
            trace.step(rng, last);
            let cost = trace.cost(rng, subject.remaining(trace.now));
            let look = subject.peek(trace.now, cost);
            last = Some(look);
            if let Verdict::Allow { delay } = look.verdict {
                let max_delay = case.spec.max_delay.unwrap_or(Nanos::MAX);
                assert!(delay <= max_delay, "{delay} of {max_delay}: {case:?}");
                subject.spend(trace.now, cost);
                let at = trace.now.plus(delay);
                if at == Nanos::MAX {
                    return; // a queue of centuries ends with time itself
                }
                departures.push(Admission { at, units: cost.get() });
            }
        }
        let in_order = departures.is_sorted_by_key(|departure| departure.at);
        assert!(in_order, "first come, first served: {case:?}");
        if let Err(violation) = steady_release(&case.limit, &departures) {
            panic!("{violation}: {case:?}");
        }
    });
}

/// A release that ignores its delays is detected.
#[test]
fn a_queue_that_does_not_delay_is_not_steady() {
    let case = LimitCase::new(Spec::new(Algorithm::LeakyQueue, 10, Nanos::from_secs(1)));
    let at_once = [Admission { at: case.start, units: 1 }; 10];
    let violation = steady_release(&case.limit, &at_once).expect_err("ten at once");
    assert_eq!(violation.bound, 1);
}

/// Fixed windows with a guard: no burst on both sides of an edge.
#[test]
fn within_a_guard_of_an_edge_no_more_than_the_limit_passes() {
    let mut spec = Spec::new(Algorithm::FixedWindow, 10, Nanos::from_millis(100));
    spec.guard = Nanos::from_millis(20);
    let case = LimitCase::new(spec);
    for_each_seed(500, |rng| {
        let mut subject = ShippedLimiter::new(&case.limit);
        let mut history = Vec::new();
        let mut at = case.start;
        for _ in 0..100 {
            at = at.plus(Nanos::from_millis(rng.below(8)));
            let left = subject.remaining(at);
            if left > 0 {
                let units = rng.between(1, left);
                subject.spend(at, cost(units));
                history.push(Admission { at, units });
            }
        }
        assert!(busiest(&history, Nanos::from_millis(20)) <= 10);
        assert_eq!(within_bound(&case.limit, &history), Ok(()));
    });
}
