//! A rule changes while its counters live. Units used stay used, rounded up and never down, under any new parameters,
//! algorithm or tick; and the results after the change keep their own guarantees.

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Retry, Spec, Verdict};
use tidegate_core::units::Nanos;

use crate::case::{LimitCase, TODAY};
use crate::limiter::{LimiterUnderTest, ShippedLimiter, cost};
use crate::rng::{TraceRng, for_each_seed};
use crate::trace::{ClockKind, TrafficTrace};

const DAY: Nanos = Nanos::from_secs(86_400);

/// A subject with some history under `case`, and the end of that history.
fn with_history(rng: &mut TraceRng, case: &LimitCase, clock: ClockKind) -> (ShippedLimiter, Vec<(Nanos, u64)>, Nanos) {
    let mut subject = ShippedLimiter::new(&case.limit);
    let mut trace = TrafficTrace::new(case, clock);
    let mut charged = Vec::new();
    let mut last = None;
    for _ in 0..rng.between(1, 25) {
        trace.step(rng, last);
        if subject.persist_step_back(trace.now) {
            charged.clear(); // they have been moved, and the list no longer has their times
        }
        let cost = trace.cost(rng, subject.remaining(trace.now));
        let look = subject.peek(trace.now, cost);
        last = Some(look);
        if look.verdict.allows() {
            subject.spend(trace.now, cost);
            charged.push((trace.now, cost.get()));
        }
    }
    (subject, charged, trace.now)
}

/// The same subject under another limit.
fn reloaded(subject: &ShippedLimiter, limit: &Limit, now: Nanos) -> ShippedLimiter {
    let (state, _) = subject.at(now);
    ShippedLimiter { limit: limit.clone(), state: Some(limit.adopt(&subject.limit, state, now)) }
}

fn used(subject: &ShippedLimiter, now: Nanos) -> u64 {
    let (state, at) = subject.at(now);
    subject.limit.used(&state, at)
}

/// A random limit that begins at the end of another trace.
fn other(rng: &mut TraceRng, algorithm: Algorithm, now: Nanos) -> LimitCase {
    let case = LimitCase::random(rng, algorithm);
    LimitCase { start: now, ..case }
}

#[test]
fn an_upgrade_applies_at_once_and_charged_units_stay_charged() {
    for before in Algorithm::ALL {
        for after in Algorithm::ALL {
            let old = LimitCase::new(Spec::new(before, 10, DAY));
            let new = LimitCase::new(Spec::new(after, 1_000, DAY));
            let now = Nanos::new(TODAY);
            let mut subject = ShippedLimiter::new(&old.limit);
            subject.spend(now, cost(10));
            let upgraded = reloaded(&subject, &new.limit, now);
            assert_eq!(upgraded.remaining(now), 990, "{before} to {after}");
        }
    }
}

#[test]
fn a_limit_lowered_below_use_denies_and_reports_the_wait() {
    for before in Algorithm::ALL {
        for after in Algorithm::ALL {
            let old = LimitCase::new(Spec::new(before, 1_000, DAY));
            let new = LimitCase::new(Spec::new(after, 10, DAY));
            let now = Nanos::new(TODAY);
            let mut subject = ShippedLimiter::new(&old.limit);
            subject.spend(now, cost(1_000));
            let lowered = reloaded(&subject, &new.limit, now);
            assert_eq!(lowered.remaining(now), 0, "{before} to {after}");
            assert_eq!(used(&lowered, now), 20, "debt is kept up to twice the limit");
            let later = now.plus(DAY).plus(DAY);
            assert_eq!(lowered.remaining(later), 10, "{before} to {after}");
        }
    }
}

/// The newest units of a debt are kept, so that no later time finds less than it should.
#[test]
fn debt_of_many_moments_is_kept_up_to_twice_the_limit_at_any_later_time() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindowStrict] {
        let old = LimitCase::new(Spec::new(algorithm, 1_000, DAY));
        let new = LimitCase::new(Spec::new(algorithm, 10, DAY));
        let hours = |n: u64| Nanos::new(TODAY).plus(Nanos::from_secs(n * 3_600));
        let mut subject = ShippedLimiter::new(&old.limit);
        (0..10).for_each(|hour| subject.spend(hours(hour), cost(5)));
        let mut lowered = reloaded(&subject, &new.limit, hours(10));
        for hour in 10..48 {
            let want = used(&subject, hours(hour)).min(20);
            assert_eq!(used(&lowered, hours(hour)), want, "{algorithm} at {hour}");
        }
        lowered.spend(hours(12), cost(7));
        assert_eq!(used(&lowered, hours(12)), 20, "{algorithm}: forced");
        let (other, mut mine) = (subject.at(hours(12)).0, lowered.at(hours(12)).0);
        let other = new.limit.adopt(&old.limit, other, hours(12));
        new.limit.merge(&mut mine, &other, hours(12));
        let merged = ShippedLimiter { limit: new.limit.clone(), state: Some(mine) };
        assert_eq!(used(&merged, hours(12)), 20, "{algorithm}: merged");
    }
}

/// Between any two limits of any two algorithms, whatever their ticks.
#[test]
fn use_is_never_under_counted_and_every_result_stays_exact() {
    for_each_seed(60_000, |rng| {
        let before = rng.pick(&Algorithm::ALL);
        let other_one = rng.pick(&Algorithm::ALL);
        let after = rng.pick(&[before, other_one]);
        let case = LimitCase::random(rng, before);
        let clock = rng.pick(&[ClockKind::Steady, ClockKind::Unsteady]);
        let (subject, charged, now) = with_history(rng, &case, clock);
        let new = other(rng, after, now);
        let mut adopted = reloaded(&subject, &new.limit, now);
        let alarm = adopted.persist_step_back(now);
        let context = || format!("{case:?}\n{:?}\n{new:?}\n{:?} at {}", subject.state, adopted.state, now.get());

        assert!(!alarm || clock == ClockKind::Unsteady, "false alarm: {}", context());
        let max_debt = 2 * new.limit.capacity();
        if same_windows(before, after) {
            let later = now.plus(Nanos::new(rng.below(2 * new.width())));
            let replayed = replay(&case, &charged, &new.limit, now);
            for at in [now, later] {
                let (kept, floor) = (used(&adopted, at), used(&replayed, at).min(max_debt));
                assert!(kept >= floor, "{kept} of {floor}: {}", context());
            }
        } else {
            let (kept, was) = (used(&adopted, now), used(&subject, now));
            let kept_all = was.min(max_debt) <= kept && kept <= was + 1;
            assert!(kept_all, "{kept} of {was}: {}", context());
        }
        exact(rng, &new, &adopted, now);
    });
}

/// Whether both count in windows of one kind: then a shorter window counts less, and rightly.
fn same_windows(before: Algorithm, after: Algorithm) -> bool {
    before == after && !before.takes_burst()
}

/// The state of the new limit itself, had it been charged with all charges that the old one remembers.
fn replay(old: &LimitCase, charged: &[(Nanos, u64)], limit: &Limit, now: Nanos) -> ShippedLimiter {
    let mut replayed = ShippedLimiter::new(limit);
    if !charged.is_sorted_by_key(|(at, _)| *at) || charged.iter().any(|(at, _)| *at > now) {
        return replayed; // time stands still for some: the list does not show where
    }
    let width = old.width();
    let since = match old.spec.algorithm {
        Algorithm::FixedWindow => old.limit.window_at(now).map_or(0, |(start, _)| start.get()),
        Algorithm::SlidingWindow => (now.get() / width * width).saturating_sub(width),
        _ => {
            let (tick, per_tick) = (old.limit.tick().floor(now), old.limit.tick().nanos());
            ((tick + 1) * per_tick).saturating_sub(width)
        }
    };
    for (at, units) in charged.iter().filter(|(at, _)| at.get() >= since) {
        replayed.spend(*at, cost(*units));
    }
    replayed
}

/// Verdict, remaining and wait agree with each other: (a) and (b) of the contract.
fn exact(rng: &mut TraceRng, case: &LimitCase, subject: &ShippedLimiter, now: Nanos) {
    let remaining = subject.remaining(now);
    for units in [1, remaining + 1, rng.between(1, case.limit.capacity())] {
        let fits = |at| subject.peek(at, cost(units)).verdict.allows();
        match subject.peek(now, cost(units)).verdict {
            Verdict::Allow { .. } => assert!(units <= remaining, "{case:?}"),
            Verdict::Deny { retry: Retry::Never } => assert!(units > case.limit.capacity(), "{case:?}"),
            Verdict::Deny { retry: Retry::After(wait) } => {
                let then = now.plus(wait);
                assert!(units > remaining, "{case:?}");
                assert!(then == Nanos::MAX || fits(then), "{wait} {case:?}");
                assert!(!fits(then.since(Nanos::new(1))), "{wait} {case:?}");
            }
        }
    }
}

/// Nodes with the old and the new rule alternate on one counter, as in every rolling update.
#[test]
fn alternating_rules_over_count_a_bucket_by_less_than_a_unit_each() {
    let buckets = [Algorithm::TokenBucket, Algorithm::LeakyBucket, Algorithm::LeakyQueue];
    for_each_seed(2_000, |rng| {
        let pair = [0, 1].map(|_| {
            let algorithm = rng.pick(&buckets);
            LimitCase::random(rng, algorithm)
        });
        let (mut subject, _, now) = with_history(rng, &pair[0], ClockKind::Steady);
        let first = used(&subject, now);
        let max_debts = pair.each_ref().map(|case| 2 * case.limit.capacity());
        for switch in 1..=20 {
            subject = reloaded(&subject, &pair[switch as usize % 2].limit, now);
            let kept = used(&subject, now);
            assert!(kept <= first + switch, "{kept} of {first}: {pair:?}");
            let floor = first.min(max_debts[0]).min(max_debts[1]);
            assert!(kept >= floor, "{kept} of {first}: {pair:?}");
        }
    });
}

/// The same while time passes, between two precisions of one rule: a store and its fallback.
#[test]
fn two_precisions_of_one_rule_drain_alike() {
    for_each_seed(2_000, |rng| {
        let case = LimitCase::random(rng, Algorithm::TokenBucket);
        let compiled = [Precision::Memory, Precision::Double].map(|precision| Limit::compile(&case.spec, precision));
        let [Ok(memory), Ok(script)] = compiled else {
            return;
        };
        let case = LimitCase { limit: memory.clone(), ..case };
        let (alone, _, mut now) = with_history(rng, &case, ClockKind::Steady);
        let mut switched = alone.clone();
        let limits = [&script, &memory];
        // The drain of the coarser tick may be counted once more, and less than a unit is rounded.
        let coarser = memory.tick().max(script.tick()).nanos();
        let a_tick = u128::from(case.spec.count) * u128::from(coarser);
        let a_tick = a_tick.div_ceil(u128::from(case.width()));
        for switch in 1..=12u64 {
            now = now.plus(Nanos::new(rng.below(case.width() / 4 + 2)));
            switched = reloaded(&switched, limits[switch as usize % 2], now);
            let (with, without) = (used(&switched, now), used(&alone, now));
            assert!(with >= without, "{with} of {without}: {case:?}");
            let max = u128::from(without) + u128::from(switch) * (1 + a_tick);
            assert!(u128::from(with) <= max, "{with} of {without}: {case:?}");
        }
    });
}

#[test]
fn a_new_count_alone_changes_no_counted_unit() {
    for_each_seed(1_500, |rng| {
        let algorithm = rng.pick(&Algorithm::ALL);
        let case = LimitCase::random(rng, algorithm);
        let (subject, _, now) = with_history(rng, &case, ClockKind::Steady);
        let mut spec = case.spec.clone();
        spec.count = spec.count.div_ceil(2).max(spec.count.min(1_000));
        let Ok(limit) = Limit::compile(&spec, case.precision) else {
            return;
        };
        let limit = case.seed.map_or(limit.clone(), |seed| limit.for_subject(seed));
        let there = reloaded(&subject, &limit, now);
        let back = reloaded(&there, &case.limit, now);
        let (before, after) = (used(&subject, now), used(&back, now));
        let same_grain = !matches!(algorithm, Algorithm::SlidingLog) || case.spec.count <= 1_000;
        if same_grain {
            assert!(before <= after && after <= before + 2, "{before} {after}: {case:?}");
        }
    });
}
