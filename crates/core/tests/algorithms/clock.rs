//! Clock steps back. A small step never admits more than no step at all (property (g)). After a large one, stored
//! times are moved to the present and no subject stays stuck.

use tidegate_core::algorithms::{Algorithm, CLOCK_TOLERANCE, Spec};
use tidegate_core::units::Nanos;

use crate::case::{LimitCase, TODAY};
use crate::limiter::{LimiterUnderTest, ShippedLimiter, cost};
use crate::rng::for_each_seed;
use crate::trace::{ClockKind, TrafficTrace};

/// Charges a random subject, then reads the clock once more, `back` before the last charge.
fn after_a_step(back: impl Fn(u64) -> u64, check: impl Fn(&LimitCase, ShippedLimiter, Nanos, Nanos, u64)) {
    for_each_seed(1_200, |rng| {
        let algorithm = rng.pick(&Algorithm::ALL);
        let case = LimitCase::random(rng, algorithm);
        let mut subject = ShippedLimiter::new(&case.limit);
        let mut trace = TrafficTrace::new(&case, ClockKind::Steady);
        let mut last_peek = None;
        for _ in 0..60 {
            trace.step(rng, last_peek);
            let cost = trace.cost(rng, subject.remaining(trace.now));
            let look = subject.peek(trace.now, cost);
            last_peek = Some(look);
            if look.verdict.allows() {
                subject.spend(trace.now, cost);
                let earlier = trace.now.since(Nanos::new(back(rng.next())));
                check(&case, subject.clone(), trace.now, earlier, rng.next());
            }
        }
    });
}

#[test]
fn a_small_step_back_never_admits_more_than_no_step() {
    let small = |random: u64| random % (CLOCK_TOLERANCE.get() + 1);
    after_a_step(small, |case, subject, last, earlier, random| {
        let (stepped, steady) = (subject.remaining(earlier), subject.remaining(last));
        assert!(stepped <= steady, "{stepped} of {steady}: {case:?}");
        assert!(!subject.clone().persist_step_back(earlier), "no alarm: {case:?}");
        if stepped == 0 {
            return;
        }
        let spent = cost(1 + random % stepped);
        let (mut with, mut without) = (subject.clone(), subject);
        with.spend(earlier, spent);
        without.spend(last, spent);
        let width = case.width();
        for ahead in [0, 1, random % width, width, width + random % width, 2 * width] {
            let later = last.plus(Nanos::new(ahead));
            let (with, without) = (with.remaining(later), without.remaining(later));
            assert!(with <= without, "{with} of {without} at +{ahead}: {case:?}");
        }
    });
}

#[test]
fn after_a_large_step_back_no_subject_is_stuck_longer_than_one_charged_just_now() {
    let large = |random: u64| CLOCK_TOLERANCE.get() + 1 + random % (40 * 86_400_000_000_000);
    after_a_step(large, |case, mut subject, last, earlier, _| {
        if last.since(earlier) <= CLOCK_TOLERANCE {
            return; // there is nothing before the epoch to go back to
        }
        let used = case.limit.capacity() - subject.remaining(earlier);
        // A window knows only that it has begun: up to `CLOCK_TOLERANCE` before that, time stands still, and then the
        // window has to end.
        let frozen = if subject.persist_step_back(earlier) {
            Nanos::ZERO
        } else {
            CLOCK_TOLERANCE.plus(Nanos::new(2 * case.width()))
        };
        let used_after = case.limit.capacity() - subject.remaining(earlier);
        assert_eq!(used, used_after, "counts stay: {case:?}");
        assert!(!subject.clone().persist_step_back(earlier), "one alarm: {case:?}");
        let mut charged = ShippedLimiter::new(&case.limit);
        charged.spend(earlier, cost(case.limit.capacity()));
        let [stuck, usual] = [subject, charged].map(|s| s.peek(earlier, cost(1)).fresh_at);
        assert!(stuck <= usual.plus(frozen), "{stuck} {usual}: {case:?}");
    });
}

/// A store that drops the moved state because the request was denied would move it again at every request and deny
/// until the old date returns: for a year, if the clock was a year ahead.
#[test]
fn a_step_back_must_be_written_even_by_a_denial() {
    let a_year = Nanos::from_secs(365 * 86_400);
    for algorithm in Algorithm::ALL {
        let case = LimitCase::new(Spec::new(algorithm, 10, Nanos::from_secs(60)));
        let mut subject = ShippedLimiter::new(&case.limit);
        subject.spend(Nanos::new(TODAY).plus(a_year), cost(10));
        let [today, later] = [0, 120].map(|s| Nanos::new(TODAY).plus(Nanos::from_secs(s)));

        let denied = subject.peek(later, cost(1)).verdict;
        assert!(!denied.allows(), "{algorithm}: not written, and still stuck");
        assert!(subject.persist_step_back(today), "{algorithm}: reported");
        assert_eq!(subject.remaining(today), 0, "{algorithm}: counts stay");
        assert_eq!(subject.remaining(later), 10, "{algorithm}: free two windows later");
    }
}
