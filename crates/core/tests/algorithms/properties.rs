//! The guarantees of every algorithm to a caller: properties (c) to (f) and (h) of the common contract. (a) and (b)
//! are part of `agreement`, (g) of `clock`.

use tidegate_core::algorithms::{Algorithm, Retry, Verdict};
use tidegate_core::units::Nanos;

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, ShippedLimiter, cost};
use crate::rng::{TraceRng, for_each_seed};
use crate::trace::{ClockKind, TrafficTrace};

/// Drives random traffic, and passes the subject to the property `each` before every request.
fn always(clock: ClockKind, mut each: impl FnMut(&mut TraceRng, &LimitCase, &ShippedLimiter, Nanos)) {
    for_each_seed(560, |rng| {
        let algorithm = rng.pick(&Algorithm::ALL);
        let case = LimitCase::random(rng, algorithm);
        let mut subject = ShippedLimiter::new(&case.limit);
        let mut trace = TrafficTrace::new(&case, clock);
        let mut last = None;
        for _ in 0..100 {
            trace.step(rng, last);
            subject.persist_step_back(trace.now);
            each(rng, &case, &subject, trace.now);
            let cost = trace.cost(rng, subject.remaining(trace.now));
            let look = subject.peek(trace.now, cost);
            if look.verdict.allows() {
                subject.spend(trace.now, cost);
            }
            last = Some(look);
        }
    });
}

/// The wait before a retry; `None` if the cost never fits.
fn wait(verdict: Verdict) -> Option<Nanos> {
    match verdict {
        Verdict::Allow { .. } => Some(Nanos::ZERO),
        Verdict::Deny { retry: Retry::After(wait) } => Some(wait),
        Verdict::Deny { retry: Retry::Never } => None,
    }
}

#[test]
fn a_cost_fits_exactly_when_it_is_not_above_remaining() {
    always(ClockKind::Unsteady, |rng, case, subject, now| {
        let remaining = subject.remaining(now);
        let any = rng.between(1, case.limit.capacity() + 1);
        for units in [1, any, remaining.max(1), remaining + 1] {
            let allowed = subject.peek(now, cost(units)).verdict.allows();
            assert_eq!(allowed, units <= remaining, "{units} of {remaining}: {case:?}");
        }
    });
}

#[test]
fn a_larger_cost_never_waits_less() {
    always(ClockKind::Unsteady, |rng, case, subject, now| {
        let (a, b) = (rng.between(1, case.limit.capacity() + 1), rng.between(1, case.limit.capacity() + 1));
        let [small, large] = [a.min(b), a.max(b)].map(|units| wait(subject.peek(now, cost(units)).verdict));
        let longer = large.is_none_or(|large| small.is_some_and(|small| small <= large));
        assert!(longer, "{small:?} {large:?}: {case:?}");
    });
}

#[test]
fn without_traffic_remaining_never_shrinks() {
    always(ClockKind::Unsteady, |rng, case, subject, now| {
        let mut last = subject.remaining(now);
        let mut later = now;
        for _ in 0..4 {
            later = later.plus(Nanos::new(rng.below(case.width())));
            let remaining = subject.remaining(later);
            assert!(remaining >= last, "{remaining} after {last}: {case:?}");
            last = remaining;
        }
    });
}

/// Even if a store wrote back the state of every peek, no result would change.
#[test]
fn a_peek_changes_no_result() {
    always(ClockKind::Steady, |rng, case, subject, now| {
        let mut peeked = subject.clone();
        let mut later = now;
        for _ in 0..3 {
            later = later.plus(Nanos::new(rng.below(case.width() / 2 + 2)));
            let (seen, _) = peeked.at(later);
            peeked.state = Some(seen);
        }
        let units = cost(rng.between(1, case.limit.capacity() + 1));
        let [with, without] = [&peeked, subject].map(|s| s.peek(later, units));
        assert_eq!(with.verdict, without.verdict, "{case:?}");
        assert_eq!(with.figures, without.figures, "{case:?}");
    });
}

#[test]
fn evicting_a_fresh_state_changes_no_result() {
    always(ClockKind::Steady, |rng, case, subject, now| {
        let fresh_at = subject.peek(now, cost(1)).fresh_at.max(now);
        if fresh_at == Nanos::MAX {
            return; // a window past the last calendar edge never ends
        }
        let evicted = ShippedLimiter::new(&case.limit);
        let mut later = fresh_at;
        for _ in 0..3 {
            let units = rng.between(1, case.limit.capacity() + 1);
            let kept = subject.peek(later, cost(units));
            let lost = evicted.peek(later, cost(units));
            assert_eq!(kept.verdict, lost.verdict, "{case:?}");
            assert_eq!(kept.figures, lost.figures, "{case:?}");
            later = later.plus(Nanos::new(rng.below(2 * case.width())));
        }
        let just_before = fresh_at.since(Nanos::new(1));
        if fresh_at > now && just_before >= now {
            let remaining = subject.remaining(just_before);
            assert!(remaining < case.limit.capacity(), "fresh too late: {case:?}");
        }
    });
}

/// A denied cost changes no state, and a second advance changes no state either.
#[test]
fn a_denial_changes_no_state() {
    always(ClockKind::Unsteady, |_, case, subject, now| {
        let (before, at) = subject.at(now);
        let mut after = before.clone();
        let too_much = cost(subject.remaining(now) + 1);
        assert!(!case.limit.judge(&after, at, too_much).allows());
        assert_eq!(before, after);
        let again = case.limit.advance(&mut after, now);
        assert_eq!(before, after, "advancing twice is advancing once: {case:?}");
        assert!(!again.stepped_back());
    });
}
