//! Extreme values of every number: nothing panics, wraps around or admits by accident.

use std::sync::Arc;

use tidegate_core::algorithms::{
    Algorithm, CounterState, Limit, MAX_LOG_ENTRIES, Precision, Spec, SpecError, Verdict, Window,
};
use tidegate_core::units::{Nanos, Tick};

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, ShippedLimiter, cost};
use crate::rng::{TraceRng, for_each_seed};

const EDGES: [u64; 14] = [
    1,
    2,
    999,
    1_000,
    1_001,
    (u32::MAX / 2) as u64,
    (u32::MAX / 2) as u64 + 1,
    u32::MAX as u64,
    (1 << 53) - 1,
    1 << 53,
    (1 << 62) + 1,
    (1 << 63) - 25,
    u64::MAX - 1,
    u64::MAX,
];

fn extreme(rng: &mut TraceRng) -> u64 {
    match rng.below(3) {
        0 => rng.next() >> rng.below(64),
        _ => rng.pick(&EDGES),
    }
    .max(1)
}

fn spec(rng: &mut TraceRng) -> Spec {
    let algorithm = rng.pick(&Algorithm::ALL);
    let width = Nanos::new(extreme(rng));
    let mut spec = Spec::new(algorithm, extreme(rng), width);
    spec.burst = (algorithm.takes_burst() && rng.once_in(2)).then(|| extreme(rng));
    spec.max_delay = rng.once_in(2).then(|| Nanos::new(extreme(rng)));
    spec.stagger = rng.once_in(4);
    spec.guard = Nanos::new(rng.below(2) * extreme(rng));
    spec.window = match rng.below(4) {
        0 => Window::Shifted { width, phase: Nanos::new(extreme(rng)) },
        1 => {
            let mut edges = [extreme(rng), extreme(rng), extreme(rng)].map(Nanos::new);
            edges.sort();
            let edges: Arc<[Nanos]> = edges.into();
            Window::Edges { edges, nominal: width }
        }
        _ => Window::Span(width),
    };
    spec
}

/// Every verb, at both ends of time, with every cost.
fn exercise(rng: &mut TraceRng, limit: &Limit) -> CounterState {
    let mut state = limit.fresh(Nanos::new(extreme(rng)));
    for _ in 0..12 {
        let now = Nanos::new(extreme(rng) - rng.below(2));
        let at = limit.advance(&mut state, now);
        let wanted = cost(extreme(rng));
        let figures = limit.figures(&state, at);
        let allowed = limit.judge(&state, at, wanted).allows();
        assert_eq!(allowed, wanted.get() <= figures.remaining, "{limit:?}");
        match rng.below(4) {
            0 => limit.refund(&mut state, at, Nanos::new(extreme(rng)), wanted),
            1 => limit.merge(&mut state, &limit.with_used(extreme(rng), now), now),
            _ => limit.spend(&mut state, at, wanted),
        }
        assert!(limit.remaining(&state, at) <= limit.capacity());
    }
    state
}

#[test]
fn no_number_is_too_large_to_be_decided() {
    let mut compiled = 0;
    for_each_seed(60_000, |rng| {
        let precision = rng.pick(&[Precision::Memory, Precision::Double]);
        let limits = [spec(rng), spec(rng)].map(|spec| Limit::compile(&spec, precision));
        let [Ok(old), Ok(new)] = limits else { return };
        let [old, new] = [old, new].map(|limit| limit.for_subject(rng.next()));
        compiled += 1;
        let state = exercise(rng, &old);
        let now = Nanos::new(extreme(rng));
        let mut state = new.adopt(&old, state, now);
        let at = new.advance(&mut state, now);
        let _ = new.figures(&state, at);
        let _ = new.full_window();
    });
    assert!(compiled > 2_000 || compiled == 1, "{compiled}");
}

#[test]
fn a_rate_that_cannot_be_exact_is_rejected() {
    let check = |spec: &Spec, precision, want| {
        assert_eq!(Limit::compile(spec, precision).err(), Some(want), "{spec:?}");
    };
    let minute = Nanos::from_secs(60);
    let max = u64::from(u32::MAX / 2);
    let zero = Spec::new(Algorithm::TokenBucket, 0, minute);
    check(&zero, Precision::Memory, SpecError::Zero);
    let burst = Spec::new(Algorithm::SlidingLog, 5, minute).burst(9);
    check(&burst, Precision::Memory, SpecError::BurstOnWindow);
    let many = Spec::new(Algorithm::FixedWindow, max + 1, minute);
    check(&many, Precision::Memory, SpecError::TooMany { max });
    let instant = Spec::new(Algorithm::TokenBucket, 5, Nanos::ZERO);
    check(&instant, Precision::Memory, SpecError::Inexact);
    let fine = Spec::new(Algorithm::SlidingWindow, 5, Nanos::new(1_500));
    check(&fine, Precision::Double, SpecError::Inexact);
    let huge = Spec::new(Algorithm::TokenBucket, 1, Nanos::MAX).burst(u64::MAX);
    check(&huge, Precision::Memory, SpecError::Inexact);
}

/// A million a day is one per 86.4 ms: in lowest terms it needs no coarser tick.
#[test]
fn a_rate_is_reduced_to_lowest_terms() {
    let tick = |count| {
        let day = Nanos::from_secs(86_400);
        let spec = Spec::new(Algorithm::TokenBucket, count, day).burst(1_000_000);
        Limit::compile(&spec, Precision::Double).map(|limit| limit.tick())
    };
    assert_eq!(tick(1_000_000), Ok(Tick::Micro));
    assert_eq!(tick(999_983), Ok(Tick::Milli));
}

/// A caller may be less patient than the rule, never more.
#[test]
fn a_patient_caller_does_not_lengthen_the_queue() {
    let mut spec = Spec::new(Algorithm::LeakyQueue, 10, Nanos::from_secs(1));
    spec.max_delay = Some(Nanos::from_millis(200));
    let case = LimitCase::new(spec);
    let admitted = |max_delay: Nanos| {
        let mut subject = ShippedLimiter::new(&case.limit.clone().with_max_delay(max_delay));
        let fits = |subject: &ShippedLimiter| match subject.peek(case.start, cost(1)).verdict {
            Verdict::Allow { delay } => delay <= max_delay,
            Verdict::Deny { .. } => false,
        };
        (0..10)
            .take_while(|_| {
                let fits = fits(&subject);
                subject.spend(case.start, cost(1));
                fits
            })
            .count()
    };
    assert_eq!(admitted(Nanos::ZERO), 1);
    assert_eq!(admitted(Nanos::from_millis(100)), 2);
    assert_eq!(admitted(Nanos::from_millis(200)), 3);
    assert_eq!(admitted(Nanos::from_secs(60)), 3);
}

/// A log is a record in a store: debt and merging must not let it grow beyond the capacity of the record.
#[test]
fn a_log_never_outgrows_its_record() {
    let case = LimitCase::new(Spec::new(Algorithm::SlidingLog, 1_000, Nanos::from_secs(60)));
    let entries = |subject: &ShippedLimiter| match &subject.state {
        Some(CounterState::Log(log)) => log.entries().len() as u64,
        _ => 0,
    };
    let mut accounts = [0, 1].map(|offset| {
        let mut subject = ShippedLimiter::new(&case.limit);
        for i in 0..1_500 {
            let at = case.start.plus(Nanos::new(2 * i + offset));
            subject.spend(at, cost(1)); // forced, as a settlement does
            assert!(entries(&subject) <= MAX_LOG_ENTRIES);
        }
        subject
    });
    let now = case.start.plus(Nanos::from_secs(1));
    let other = accounts[1].state.clone().expect("it was charged");
    let mine = accounts[0].state.as_mut().expect("it was charged");
    case.limit.merge(mine, &other, now);
    assert!(entries(&accounts[0]) <= MAX_LOG_ENTRIES);
    assert_eq!(accounts[0].remaining(now), 0);

    let once = accounts[0].clone();
    let mine = accounts[0].state.as_mut().expect("it was charged");
    case.limit.merge(mine, &other, now);
    assert_eq!(accounts[0].state, once.state, "merging twice is merging once");
}
