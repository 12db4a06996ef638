//! Limiters with deliberate faults. The traces that the shipped limiter passes must catch each fault: a check that no
//! fault can fail proves nothing.

use tidegate_core::algorithms::{Algorithm, CounterState, Limit, Precision, Retry, Verdict};
use tidegate_core::units::{Cost, Nanos};

use crate::agreement::{TraceStats, run};
use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, PeekResult, ShippedLimiter, cost};
use crate::rng::TraceRng;
use crate::trace::ClockKind;

/// One fault around a correct limiter.
struct BrokenLimiter {
    inner: ShippedLimiter,
    fault: LimiterFault,
    last_charge: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LimiterFault {
    DeniesAll,
    AdmitsAll,
    AdmitsOneTooMany,
    DeniesTheLast,
    ChargesDenials,
    SavesUpIdleTime,
    ForgetsAfterAWindow,
    RefillsWhenTheClockGoesBack,
    ReportsTheWindowAsWait,
    ReportsOneTooFew,
    ResetsATickLate,
}

impl BrokenLimiter {
    fn new(limit: &Limit, fault: LimiterFault) -> Self {
        BrokenLimiter { inner: ShippedLimiter::new(limit), fault, last_charge: Nanos::ZERO }
    }

    /// The correct limiter, with the fault applied.
    fn misled(&self, now: Nanos) -> ShippedLimiter {
        let mut inner = self.inner.clone();
        match (self.fault, &mut inner.state) {
            (LimiterFault::SavesUpIdleTime, Some(CounterState::Bucket(bucket))) => {
                // A bucket that keeps filling without requests: idle time is worth more.
                let idle = now.since(self.last_charge).get() / inner.limit.tick().nanos();
                bucket.last = bucket.last.saturating_sub(idle);
            }
            (LimiterFault::RefillsWhenTheClockGoesBack, Some(CounterState::Bucket(bucket))) => {
                bucket.last = bucket.last.min(inner.limit.tick().floor(now));
            }
            (LimiterFault::ForgetsAfterAWindow, state) if now.since(self.last_charge) >= inner.limit.per() => {
                *state = None;
            }
            _ => {}
        }
        inner
    }
}

impl LimiterUnderTest for BrokenLimiter {
    fn peek(&self, now: Nanos, wanted: Cost) -> PeekResult {
        let mut look = self.misled(now).peek(now, wanted);
        let remaining = look.figures.remaining;
        let allow = Verdict::Allow { delay: Nanos::ZERO };
        let deny = |wait| Verdict::Deny { retry: Retry::After(wait) };
        match self.fault {
            LimiterFault::DeniesAll => look.verdict = deny(Nanos::from_secs(1)),
            LimiterFault::AdmitsAll => look.verdict = allow,
            LimiterFault::AdmitsOneTooMany if wanted.get() <= remaining + 1 => look.verdict = allow,
            LimiterFault::DeniesTheLast if wanted.get() == remaining => {
                look.verdict = deny(look.figures.more_after);
            }
            LimiterFault::ReportsTheWindowAsWait if !look.verdict.allows() => {
                look.verdict = deny(self.inner.limit.per());
            }
            LimiterFault::ReportsOneTooFew => look.figures.remaining = remaining.saturating_sub(1),
            LimiterFault::ResetsATickLate if look.figures.reset_after > Nanos::ZERO => {
                let tick = Nanos::new(self.inner.limit.tick().nanos());
                look.figures.reset_after = look.figures.reset_after.plus(tick);
            }
            _ => {}
        }
        look
    }

    fn spend(&mut self, now: Nanos, cost: Cost) {
        self.inner = self.misled(now);
        self.inner.spend(now, cost);
        self.last_charge = now;
    }

    fn record_denial(&mut self, now: Nanos, wanted: Cost) {
        if self.fault == LimiterFault::ChargesDenials {
            let units = wanted.get().min(self.inner.limit.capacity());
            self.inner.spend(now, cost(units));
        }
    }

    fn persist_step_back(&mut self, now: Nanos) -> bool {
        self.inner.persist_step_back(now)
    }
}

/// The number of traces, of 40, in which the fault is detected.
fn caught(algorithm: Algorithm, fault: LimiterFault) -> usize {
    let trace = |seed: &u64| {
        let mut rng = TraceRng::new(*seed);
        let case = LimitCase::random(&mut rng, algorithm);
        let mut subject = BrokenLimiter::new(&case.limit, fault);
        let mut stats = TraceStats::default();
        run(&mut rng, &case, ClockKind::Unsteady, &mut subject, &mut stats).is_err()
    };
    (0..40).filter(trace).count()
}

#[test]
fn every_fault_is_caught_in_every_algorithm_that_can_have_it() {
    use LimiterFault::*;
    let anywhere = [
        DeniesAll,
        AdmitsAll,
        AdmitsOneTooMany,
        DeniesTheLast,
        ChargesDenials,
        ReportsTheWindowAsWait,
        ReportsOneTooFew,
        ResetsATickLate,
    ];
    for algorithm in Algorithm::ALL {
        for fault in anywhere {
            let count = caught(algorithm, fault);
            assert!(count >= 20, "{algorithm} {fault:?}: {count} of 40");
        }
    }
    for fault in [SavesUpIdleTime, RefillsWhenTheClockGoesBack] {
        for algorithm in [Algorithm::TokenBucket, Algorithm::LeakyQueue] {
            let count = caught(algorithm, fault);
            assert!(count >= 10, "{algorithm} {fault:?}: {count} of 40");
        }
    }
    // A window later the sliding window still weights the last one.
    let count = caught(Algorithm::SlidingWindow, ForgetsAfterAWindow);
    assert!(count >= 10, "{count} of 40");
}

/// The bound alone, without an oracle, detects a bucket that saves up idle time.
#[test]
fn saved_up_idle_time_breaks_the_interval_bound() {
    use tidegate_core::algorithms::Spec;
    use tidegate_core::invariants::{Admission, within_bound};
    let spec = Spec::new(Algorithm::TokenBucket, 10, Nanos::from_secs(10)).burst(10);
    let honest = Limit::compile(&spec, Precision::Memory).expect("a plain rate");
    // Seventeen at once after a week of silence.
    let at = Nanos::from_secs(7 * 86_400);
    let history = [Admission { at, units: 17 }];
    let violation = within_bound(&honest, &history).expect_err("17 is not 10");
    assert_eq!((violation.admitted, violation.bound), (17, 10));
}
