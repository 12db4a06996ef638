//! Refunds never admit more than if the refunded charge had never been made. For a bucket that requires a cap, and a
//! test here shows the result without it.

use tidegate_core::algorithms::{Algorithm, CounterState};
use tidegate_core::invariants::{Admission, within_bound};
use tidegate_core::units::{Cost, Nanos};

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, ShippedLimiter, cost};
use crate::rng::{TraceRng, for_each_seed};
use crate::trace::{ClockKind, TrafficTrace};

/// How a charge is refunded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RefundMode {
    /// As shipped: only the units that cannot have drained since.
    Capped,
    /// In full, as most limiters do.
    InFull,
}

struct PendingRefund {
    charged: Nanos,
    cost: Cost,
    at_step: u64,
}

/// A subject with refunds, and the same one without the refunded charges.
struct RefundComparison<'a> {
    with: &'a ShippedLimiter,
    without: &'a ShippedLimiter,
    /// Whether every refund has been made.
    all_refunded: bool,
}

/// One trace with refunds; `each` sees both twins at every step. Returns the admissions that were not refunded.
fn run(
    rng: &mut TraceRng,
    case: &LimitCase,
    mode: RefundMode,
    mut each: impl FnMut(&mut TraceRng, RefundComparison<'_>, Nanos),
) -> Vec<Admission> {
    let (mut subject, mut without) = (ShippedLimiter::new(&case.limit), ShippedLimiter::new(&case.limit));
    let mut trace = TrafficTrace::new(case, ClockKind::Steady);
    let mut pending: Vec<PendingRefund> = Vec::new();
    let mut history = Vec::new();
    let mut last = None;
    for step in 0..120 {
        trace.step(rng, last);
        let now = trace.now;
        for due in pending.extract_if(.., |refund| refund.at_step <= step) {
            refund(&mut subject, now, &due, mode);
        }
        let twins = RefundComparison { with: &subject, without: &without, all_refunded: pending.is_empty() };
        each(rng, twins, now);
        let cost = trace.cost(rng, subject.remaining(now));
        let look = subject.peek(now, cost);
        last = Some(look);
        if !look.verdict.allows() {
            continue;
        }
        subject.spend(now, cost);
        if rng.once_in(2) {
            pending.push(PendingRefund { charged: now, cost, at_step: step + 1 + rng.below(6) });
        } else {
            without.spend(now, cost);
            history.push(Admission { at: now, units: cost.get() });
        }
    }
    history
}

fn refund(subject: &mut ShippedLimiter, now: Nanos, due: &PendingRefund, mode: RefundMode) {
    if mode == RefundMode::Capped {
        subject.refund(now, due.charged, due.cost);
        return;
    }
    let one_unit = match ShippedLimiter::charged(subject, cost(1)) {
        CounterState::Bucket(bucket) => bucket.level,
        _ => unreachable!("only buckets are refunded in full here"),
    };
    let (mut state, _) = subject.at(now);
    if let CounterState::Bucket(bucket) = &mut state {
        bucket.level = bucket.level.saturating_sub(due.cost.get() * one_unit);
    }
    subject.state = Some(state);
}

impl ShippedLimiter {
    /// A fresh state charged once.
    fn charged(&self, cost: Cost) -> CounterState {
        let mut fresh = ShippedLimiter::new(&self.limit);
        fresh.spend(Nanos::ZERO, cost);
        fresh.state.expect("it was charged")
    }
}

#[test]
fn a_refund_never_leaves_more_than_if_the_charge_had_not_been_made() {
    for_each_seed(700, |rng| {
        let algorithm = rng.pick(&Algorithm::ALL);
        let case = LimitCase::random(rng, algorithm);
        run(rng, &case, RefundMode::Capped, |rng, twins, now| {
            let later = now.plus(Nanos::new(rng.below(2 * case.width())));
            for at in [now, later] {
                let (with, without) = (twins.with.remaining(at), twins.without.remaining(at));
                assert!(with <= without, "{with} of {without}: {case:?}");
                if twins.all_refunded && !algorithm.takes_burst() {
                    assert_eq!(with, without, "a window refunds all: {case:?}");
                }
            }
        });
    });
}

#[test]
fn the_bound_holds_through_any_refunds() {
    for_each_seed(700, |rng| {
        let algorithm = rng.pick(&Algorithm::ALL);
        let case = LimitCase::random(rng, algorithm);
        let history = run(rng, &case, RefundMode::Capped, |_, _, _| {});
        if let Err(violation) = within_bound(&case.limit, &history) {
            panic!("{violation}: {case:?}");
        }
    });
}

/// The reason for the cap, on the same traces.
#[test]
fn a_refund_in_full_would_break_the_bound_of_a_bucket() {
    let (mut capped, mut in_full) = (0, 0);
    for seed in 0..300 {
        let mut rng = TraceRng::new(seed);
        let case = LimitCase::random(&mut rng, Algorithm::TokenBucket);
        let choices = rng.next();
        let broken = |mode| {
            let history = run(&mut TraceRng::new(choices), &case, mode, |_, _, _| {});
            u32::from(within_bound(&case.limit, &history).is_err())
        };
        capped += broken(RefundMode::Capped);
        in_full += broken(RefundMode::InFull);
    }
    assert_eq!(capped, 0);
    assert!(in_full > 20, "only {in_full} of 300 traces broken");
}

/// An immediate refund is complete, so that an abandoned request costs nothing.
#[test]
fn a_refund_in_the_same_instant_is_complete() {
    for_each_seed(300, |rng| {
        let algorithm = rng.pick(&Algorithm::ALL);
        let case = LimitCase::random(rng, algorithm);
        let mut subject = ShippedLimiter::new(&case.limit);
        let first = cost(rng.between(1, case.limit.capacity()));
        subject.spend(case.start, first);
        let before = subject.clone();
        let spent = cost(rng.between(1, case.limit.capacity()));
        subject.spend(case.start, spent);
        subject.refund(case.start, case.start, spent);
        let later = case.start.plus(Nanos::new(rng.below(2 * case.width())));
        for at in [case.start, later] {
            assert_eq!(subject.remaining(at), before.remaining(at), "{case:?}");
        }
    });
}
