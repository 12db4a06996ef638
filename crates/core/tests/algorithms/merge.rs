//! Two states of one subject merge by maximum: a node restores its counts to a store that lost them.

use proptest::prelude::*;
use tidegate_core::algorithms::{Algorithm, CounterState};
use tidegate_core::units::Nanos;

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, ShippedLimiter};
use crate::rng::TraceRng;
use crate::trace::{ClockKind, TrafficTrace};

/// Two subjects with different histories under one limit, and a moment after both.
fn two(seed: u64) -> (LimitCase, [ShippedLimiter; 2], Nanos) {
    let mut rng = TraceRng::new(seed);
    let algorithm = rng.pick(&Algorithm::ALL);
    let case = LimitCase::random(&mut rng, algorithm);
    let mut now = case.start;
    let accounts = [0, 1].map(|_| {
        let mut subject = ShippedLimiter::new(&case.limit);
        subject.state = Some(case.limit.fresh(case.start));
        let mut trace = TrafficTrace::new(&case, ClockKind::Steady);
        for _ in 0..rng.below(20) {
            trace.step(&mut rng, None);
            let cost = trace.cost(&mut rng, subject.remaining(trace.now));
            if subject.peek(trace.now, cost).verdict.allows() {
                subject.spend(trace.now, cost);
                now = now.max(trace.now);
            }
        }
        subject
    });
    (case, accounts, now)
}

fn merged(a: &ShippedLimiter, b: &ShippedLimiter, now: Nanos) -> ShippedLimiter {
    let mut both = a.clone();
    let (mine, theirs) = (state(&mut both), b.state.as_ref());
    a.limit.merge(mine, theirs.expect("it has a state"), now);
    both
}

fn state(subject: &mut ShippedLimiter) -> &mut CounterState {
    subject.state.as_mut().expect("it has a state")
}

proptest! {
    #![proptest_config(crate::rng::config(4_000))]

    #[test]
    fn merging_twice_is_merging_once(seed: u64) {
        let (_, [a, b], now) = two(seed);
        let once = merged(&a, &b, now);
        prop_assert_eq!(&merged(&once, &b, now).state, &once.state);
        prop_assert_eq!(&merged(&once, &a, now).state, &once.state);
        prop_assert_eq!(&merged(&a, &a, now).state, &a.state);
    }

    #[test]
    fn merging_is_commutative(seed: u64) {
        let (case, [a, b], now) = two(seed);
        prop_assert_eq!(merged(&a, &b, now).state, merged(&b, &a, now).state, "{:?}", case);
    }

    #[test]
    fn merging_never_leaves_more_than_either_state(seed: u64, later: u64) {
        let (case, [a, b], now) = two(seed);
        let both = merged(&a, &b, now);
        for at in [now, now.plus(Nanos::new(later % (2 * case.width())))] {
            let least = a.remaining(at).min(b.remaining(at));
            prop_assert!(both.remaining(at) <= least, "{} of {least}: {case:?}", both.remaining(at));
            if case.spec.algorithm.takes_burst() {
                prop_assert_eq!(both.remaining(at), least, "{:?}", case);
            }
        }
    }
}
