//! The shipped code says exactly what the oracle says, on every step: verdict, remaining, the smallest
//! sufficient wait, the delay of a queue, when more fits, when the state is as good as fresh.
//!
//! This is both sides of every bound at once: nothing is admitted that the definition refuses, and
//! nothing refused that it admits.

use tidegate_core::algorithms::{Algorithm, Retry, Verdict};
use tidegate_core::invariants::{Admission, within_bound};
use tidegate_core::units::{Cost, Nanos};

use crate::case::Case;
use crate::oracle::{self, Oracle};
use crate::rng::{Rng, for_each_seed};
use crate::subject::{Look, Shipped, Subject};
use crate::trace::{Clock, Trace};

/// What a run of traces met on its way.
#[derive(Default, Debug)]
pub(crate) struct Met {
    pub(crate) steps: u64,
    pub(crate) allowed: u64,
    pub(crate) waits: u64,
    pub(crate) nevers: u64,
    pub(crate) delays: u64,
    pub(crate) set_back: u64,
    pub(crate) ticks: [u64; 3],
}

/// A disagreement, told so that it can be understood without a debugger.
pub(crate) type Agreed<T = ()> = Result<T, String>;

const STEPS: u64 = 200;

/// Runs one trace, of one limit, on one subject.
pub(crate) fn run(
    rng: &mut Rng,
    case: &Case,
    clock: Clock,
    subject: &mut dyn Subject,
    met: &mut Met,
) -> Agreed {
    let mut oracle = oracle::of(case);
    let mut trace = Trace::new(case, clock);
    let mut history = Vec::new();
    let mut told = None;
    met.ticks[case.limit.tick() as usize] += 1;
    for _ in 0..STEPS {
        trace.step(rng, told);
        let now = trace.now;
        let stepped = subject.settle(now);
        let expected = oracle::settle(oracle.as_mut(), case.limit.tick(), now);
        same("set back", stepped, expected, now)?;
        if stepped {
            bounded(case, &history)?;
            history.clear();
        }
        let cost = trace.cost(rng, oracle.room(now));
        let look = agree(case, subject, oracle.as_ref(), now, cost)?;
        met.count(look, stepped);
        if look.verdict.allows() {
            subject.spend(now, cost);
            oracle.record(now, cost.get());
            history.push(Admission {
                at: now,
                units: cost.get(),
            });
        } else {
            subject.refused(now, cost);
        }
        told = Some(look);
    }
    bounded(case, &history)
}

fn agree(
    case: &Case,
    subject: &dyn Subject,
    oracle: &dyn Oracle,
    now: Nanos,
    cost: Cost,
) -> Agreed<Look> {
    let look = subject.look(now, cost);
    let (room, capacity) = (oracle.room(now), case.limit.capacity());
    let earliest = |what, wait, units| earliest(what, subject, oracle, now, wait, units);
    same("remaining", look.figures.remaining, room, now)?;
    match look.verdict {
        Verdict::Allow { delay } => {
            same("allowed", true, cost.get() <= room, now)?;
            same("delay", delay, oracle.delay(now), now)?;
        }
        Verdict::Deny {
            retry: Retry::Never,
        } => same("never", true, cost.get() > capacity, now)?,
        Verdict::Deny {
            retry: Retry::After(wait),
        } => {
            let refused = room < cost.get() && cost.get() <= capacity;
            same("refused", true, refused, now)?;
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
    subject: &dyn Subject,
    oracle: &dyn Oracle,
    now: Nanos,
    wait: Nanos,
    units: u64,
) -> Agreed {
    let cost = Cost::new(units).ok_or("asked for nothing")?;
    let fits = |at| {
        let allowed = subject.look(at, cost).verdict.allows();
        same(what, allowed, oracle.room(at) >= units, at)?;
        Ok::<bool, String>(allowed)
    };
    let then = now.plus(wait);
    if wait == Nanos::ZERO {
        return Err(format!(
            "{what} at {now}: no wait for {units} that do not fit"
        ));
    }
    // A window past the last calendar edge never ends.
    let enough = then == Nanos::MAX || fits(then)?;
    same(what, enough, true, then)?;
    same(what, fits(then.since(Nanos::new(1)))?, false, then)
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T, now: Nanos) -> Agreed {
    if got == want {
        return Ok(());
    }
    let now = now.get();
    Err(format!(
        "{what} at {now}ns: got {got:?}, the oracle says {want:?}"
    ))
}

fn bounded(case: &Case, history: &[Admission]) -> Agreed {
    within_bound(&case.limit, history).map_err(|violation| violation.to_string())
}

impl Met {
    fn count(&mut self, look: Look, stepped: bool) {
        self.steps += 1;
        self.set_back += u64::from(stepped);
        match look.verdict {
            Verdict::Allow { delay } => {
                self.allowed += 1;
                self.delays += u64::from(delay > Nanos::ZERO);
            }
            Verdict::Deny {
                retry: Retry::Never,
            } => self.nevers += 1,
            Verdict::Deny { .. } => self.waits += 1,
        }
    }
}

fn agrees(algorithm: Algorithm) {
    let mut met = Met::default();
    for_each_seed(1_200, |rng| {
        rng.skip(algorithm as u64); // a bucket and a leaky bucket are not to run the same trace
        let case = Case::random(rng, algorithm);
        let clock = rng.pick(&[Clock::Steady, Clock::Unsteady]);
        let mut subject = Shipped::new(&case.limit);
        if let Err(wrong) = run(rng, &case, clock, &mut subject, &mut met) {
            panic!(
                "{wrong}\n{:?} from {:?} {:?}",
                case.spec,
                case.start.get(),
                case.seed
            );
        }
    });
    eprintln!("{algorithm}: {met:?}");
    if std::env::var_os("TG_TEST_SEED").is_none() {
        assert!(met.steps >= 200_000, "{met:?}");
        assert!(
            met.allowed > met.steps / 5 && met.waits > met.steps / 5,
            "{met:?}"
        );
        assert!(met.nevers > 0 && met.set_back > 100, "{met:?}");
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
