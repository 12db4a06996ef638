//! The shipped code agrees exactly with the oracle, on every step: verdict, remaining, the smallest sufficient wait,
//! the delay of a queue, when more fits, when the state is equivalent to a fresh one.
//!
//! This checks both sides of every bound at once: nothing is admitted that the definition denies, and nothing denied
//! that it admits.

use tidegate_core::algorithms::{Algorithm, Retry, Verdict};
use tidegate_core::invariants::{Admission, within_bound};
use tidegate_core::units::{Cost, Nanos};

use crate::case::LimitCase;
use crate::limiter::{LimiterUnderTest, PeekResult, ShippedLimiter};
use crate::oracle::{self, LimitOracle};
use crate::rng::{TraceRng, for_each_seed};
use crate::trace::{ClockKind, TrafficTrace};

/// The coverage of a run of traces.
#[derive(Default, Debug)]
pub(crate) struct TraceStats {
    pub(crate) steps: u64,
    pub(crate) allowed: u64,
    pub(crate) waits: u64,
    pub(crate) nevers: u64,
    pub(crate) delays: u64,
    pub(crate) set_back: u64,
    pub(crate) ticks: [u64; 3],
}

/// A disagreement, described so that it can be understood without a debugger.
pub(crate) type Agreement<T = ()> = Result<T, String>;

const STEPS: u64 = 200;

/// Runs one trace, of one limit, on one subject.
pub(crate) fn run(
    rng: &mut TraceRng,
    case: &LimitCase,
    clock: ClockKind,
    subject: &mut dyn LimiterUnderTest,
    stats: &mut TraceStats,
) -> Agreement {
    let mut oracle = oracle::of(case);
    let mut trace = TrafficTrace::new(case, clock);
    let mut history = Vec::new();
    let mut last = None;
    stats.ticks[case.limit.tick() as usize] += 1;
    for _ in 0..STEPS {
        trace.step(rng, last);
        let now = trace.now;
        let stepped = subject.persist_step_back(now);
        let expected = oracle::apply_step_back(oracle.as_mut(), case.limit.tick(), now);
        same("set back", stepped, expected, now)?;
        if stepped {
            bounded(case, &history)?;
            history.clear();
        }
        let cost = trace.cost(rng, oracle.room(now));
        let look = agree(case, subject, oracle.as_ref(), now, cost)?;
        stats.count(look, stepped);
        if look.verdict.allows() {
            subject.spend(now, cost);
            oracle.record(now, cost.get());
            history.push(Admission { at: now, units: cost.get() });
        } else {
            subject.record_denial(now, cost);
        }
        last = Some(look);
    }
    bounded(case, &history)
}

fn agree(
    case: &LimitCase,
    subject: &dyn LimiterUnderTest,
    oracle: &dyn LimitOracle,
    now: Nanos,
    cost: Cost,
) -> Agreement<PeekResult> {
    let look = subject.peek(now, cost);
    let (room, capacity) = (oracle.room(now), case.limit.capacity());
    let earliest = |what, wait, units| earliest(what, subject, oracle, now, wait, units);
    same("remaining", look.figures.remaining, room, now)?;
    match look.verdict {
        Verdict::Allow { delay } => {
            same("allowed", true, cost.get() <= room, now)?;
            same("delay", delay, oracle.delay(now), now)?;
        }
        Verdict::Deny { retry: Retry::Never } => same("never", true, cost.get() > capacity, now)?,
        Verdict::Deny { retry: Retry::After(wait) } => {
            let denied = room < cost.get() && cost.get() <= capacity;
            same("denied", true, denied, now)?;
            earliest("retry", wait, cost.get())?;
        }
    }
    if room == capacity {
        same("more_after", look.figures.more_after, Nanos::ZERO, now)?;
        same("reset_after", look.figures.reset_after, Nanos::ZERO, now)?;
    } else {
        earliest("more_after", look.figures.more_after, room + 1)?;
        earliest("reset_after", look.figures.reset_after, capacity)?;
    }
    let reset = look.fresh_at.since(now);
    same("fresh_at", reset, look.figures.reset_after, now)?;
    Ok(look)
}

/// `wait` is enough for `units`, and one nanosecond less is not: for the oracle and for the subject.
fn earliest(
    what: &str,
    subject: &dyn LimiterUnderTest,
    oracle: &dyn LimitOracle,
    now: Nanos,
    wait: Nanos,
    units: u64,
) -> Agreement {
    let cost = Cost::new(units).ok_or("a cost of zero")?;
    let fits = |at| {
        let allowed = subject.peek(at, cost).verdict.allows();
        same(what, allowed, oracle.room(at) >= units, at)?;
        Ok::<bool, String>(allowed)
    };
    let then = now.plus(wait);
    if wait == Nanos::ZERO {
        return Err(format!("{what} at {now}: no wait for {units} that do not fit"));
    }
    // A window after the last calendar edge never ends.
    let enough = then == Nanos::MAX || fits(then)?;
    same(what, enough, true, then)?;
    same(what, fits(then.since(Nanos::new(1)))?, false, then)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T, now: Nanos) -> Agreement {
    if got == want {
        return Ok(());
    }
    let now = now.get();
    Err(format!("{what} at {now}ns: got {got:?}, the oracle gives {want:?}"))
}

fn bounded(case: &LimitCase, history: &[Admission]) -> Agreement {
    within_bound(&case.limit, history).map_err(|violation| violation.to_string())
}

impl TraceStats {
    fn count(&mut self, look: PeekResult, stepped: bool) {
        self.steps += 1;
        self.set_back += u64::from(stepped);
        match look.verdict {
            Verdict::Allow { delay } => {
                self.allowed += 1;
                self.delays += u64::from(delay > Nanos::ZERO);
            }
            Verdict::Deny { retry: Retry::Never } => self.nevers += 1,
            Verdict::Deny { .. } => self.waits += 1,
        }
    }
}

fn agrees(algorithm: Algorithm) {
    let mut stats = TraceStats::default();
    for_each_seed(1_200, |rng| {
        rng.skip(algorithm as u64); // a bucket and a leaky bucket are not to run the same trace
        let case = LimitCase::random(rng, algorithm);
        let clock = rng.pick(&[ClockKind::Steady, ClockKind::Unsteady]);
        let mut subject = ShippedLimiter::new(&case.limit);
        if let Err(wrong) = run(rng, &case, clock, &mut subject, &mut stats) {
            panic!("{wrong}\n{:?} from {:?} {:?}", case.spec, case.start.get(), case.seed);
        }
    });
    eprintln!("{algorithm}: {stats:?}");
    if std::env::var_os("TG_TEST_SEED").is_none() {
        assert!(stats.steps >= 200_000, "{stats:?}");
        assert!(stats.allowed > stats.steps / 5 && stats.waits > stats.steps / 5, "{stats:?}");
        assert!(stats.nevers > 0 && stats.set_back > 100, "{stats:?}");
    }
}

#[test]
fn fixed_window_agrees_with_its_oracle() {
    agrees(Algorithm::FixedWindow);
}

#[test]
fn sliding_log_agrees_with_its_oracle() {
    agrees(Algorithm::SlidingLog);
}

#[test]
fn sliding_window_agrees_with_its_oracle() {
    agrees(Algorithm::SlidingWindow);
}

#[test]
fn strict_window_agrees_with_its_oracle() {
    agrees(Algorithm::SlidingWindowStrict);
}

#[test]
fn token_bucket_agrees_with_its_oracle() {
    agrees(Algorithm::TokenBucket);
}

#[test]
fn leaky_bucket_agrees_with_its_oracle() {
    agrees(Algorithm::LeakyBucket);
}

#[test]
fn leaky_queue_agrees_with_its_oracle() {
    agrees(Algorithm::LeakyQueue);
}
