//! Slow, obviously correct results.
//!
//! An oracle keeps the plain list of admissions and defines one thing, the units that may still be admitted at an
//! instant, straight from the definition of its algorithm. Verdict, retry, reset and `more_after` follow from that by
//! their own definitions (`agreement`). Nothing here shares a formula with the shipped code: no levels, no counters,
//! no reduced units; all numbers are `i128`.

mod bucket;
mod fixed;
mod log;
mod sliding;
mod strict;

use tidegate_core::algorithms::{Algorithm, CLOCK_TOLERANCE};
use tidegate_core::units::{Nanos, Tick};

use crate::case::LimitCase;

pub(crate) trait LimitOracle {
    /// The largest cost that may be admitted at `now`, by the definition.
    fn room(&self, now: Nanos) -> u64;
    /// Records an admission, whether there was room or not.
    fn record(&mut self, now: Nanos, units: u64);
    /// How far `now` lies before the newest admission, as far as the algorithm can tell.
    fn ahead(&self, now: Nanos) -> i128;
    /// The clock was set back for good: the newest admission is now.
    fn set_back(&mut self, now: Nanos);
    /// How long an admitted request waits.
    fn delay(&self, _now: Nanos) -> Nanos {
        Nanos::ZERO
    }
}

/// The oracle for one case.
pub(crate) fn of(case: &LimitCase) -> Box<dyn LimitOracle> {
    match case.spec.algorithm {
        Algorithm::FixedWindow => Box::new(fixed::FixedWindowOracle::new(case)),
        Algorithm::SlidingLog => Box::new(log::SlidingLogOracle::new(case)),
        Algorithm::SlidingWindow => Box::new(sliding::SlidingWindowOracle::new(case)),
        Algorithm::SlidingWindowStrict => Box::new(strict::StrictWindowOracle::new(case)),
        Algorithm::TokenBucket | Algorithm::LeakyBucket => Box::new(bucket::BucketOracle::new(case)),
        Algorithm::LeakyQueue => Box::new(bucket::BucketOracle::queue(case)),
    }
}

/// Whether the clock was set back by more than the tolerance. If so, moves the oracle there.
pub(crate) fn apply_step_back(oracle: &mut dyn LimitOracle, tick: Tick, now: Nanos) -> bool {
    let stepped = oracle.ahead(now) > ticks(tick, CLOCK_TOLERANCE);
    if stepped {
        oracle.set_back(now);
    }
    stepped
}

pub(crate) fn ticks(tick: Tick, at: Nanos) -> i128 {
    i128::from(at.get()) / i128::from(tick.nanos())
}

fn nanos(tick: Tick, at: i128) -> Nanos {
    let whole = at * i128::from(tick.nanos());
    Nanos::new(u64::try_from(whole).unwrap_or(u64::MAX))
}

fn units(room: i128) -> u64 {
    u64::try_from(room.max(0)).expect("the room never exceeds the count")
}

/// One admission: its time, in ticks, and its units.
#[derive(Clone, Copy)]
struct OracleAdmission {
    at: i128,
    units: i128,
}

fn newest(list: &[OracleAdmission]) -> Option<i128> {
    list.iter().map(|a| a.at).max()
}

fn shift(list: &mut [OracleAdmission], back: i128) {
    for admitted in list {
        admitted.at -= back;
    }
}
