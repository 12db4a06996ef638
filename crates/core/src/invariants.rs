//! The bounds that hold for all admissions of one subject, whichever limiter admitted them.
//!
//! Pure predicates over a history of admissions, in integers: the interval bounds of every algorithm, checked over all
//! pairs of admissions in one pass. Tests, simulator and soak runs all use them. They know the parameters of a limit
//! and nothing of its state, so they judge any limiter.
//!
//! A history is in the order of admission and by one clock, that of the decisions. A reading before an earlier one
//! counts as the earlier one, because time stands still for a subject while its clock catches up. After a clock step
//! back for good, begin a new history.

mod spans;

use crate::algorithms::{Algorithm, Limit};
use crate::units::Nanos;

pub use self::spans::{AdmissionSpan, surely_within_bound};

/// Units admitted at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Admission {
    /// The reading of the deciding clock.
    pub at: Nanos,
    /// The units admitted.
    pub units: u64,
}

/// An interval that admitted more than its limit allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{admitted} units from {from} to {to}, where at most {bound} may pass")]
pub struct Violation {
    /// The first admission of the interval.
    pub from: Nanos,
    /// The last.
    pub to: Nanos,
    /// Units admitted from the first to the last, both included.
    pub admitted: u64,
    /// The maximum for the interval.
    pub bound: u64,
}

/// Checks every interval of a history against the bound of the limit.
///
/// | algorithm | bound |
/// |---|---|
/// | fixed window | `L` in each window, including the units that the guard charged to it |
/// | sliding log, strict window | `L` in any span shorter than `W` |
/// | sliding window | `L` in each aligned window, and `L + D * L / W` in any interval `D` |
/// | buckets, queue | `B + D * L / W` in any interval `D` |
///
/// Linear in the length of the history. Intervals are measured in the ticks of the limit.
pub fn within_bound(limit: &Limit, history: &[Admission]) -> Result<(), Violation> {
    let admissions = in_ticks(limit, history);
    match limit.algorithm() {
        Algorithm::FixedWindow => check_fixed_windows(limit, &admissions),
        Algorithm::SlidingLog | Algorithm::SlidingWindowStrict => {
            check_any_window(limit, &admissions, ticks_per_window(limit))
        }
        Algorithm::SlidingWindow => {
            check_aligned_windows(limit, &admissions)?;
            check_rate(limit, &admissions, limit.count(), 0)
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
            check_rate(limit, &admissions, limit.capacity(), 0)
        }
    }
}

/// Checks the departures of a queue, in order and at the instants when their delays ended: in any interval `D` at most
/// the largest cost and `(D + 1 tick) * L / W`.
pub fn steady_release(limit: &Limit, departures: &[Admission]) -> Result<(), Violation> {
    let admissions = in_ticks(limit, departures);
    let largest = admissions.iter().map(|admission| admission.units).max().unwrap_or(0);
    check_rate(limit, &admissions, largest, 1)
}

/// The maximum number of units in any span shorter than `width`, by the readings as they are.
pub fn busiest(history: &[Admission], width: Nanos) -> u64 {
    let (mut max, mut in_window, mut oldest) = (0, 0, 0);
    for newest in history {
        in_window += newest.units;
        while newest.at.since(history[oldest].at) >= width {
            in_window -= history[oldest].units;
            oldest += 1;
        }
        max = max.max(in_window);
    }
    max
}

/// An admission in ticks, never before the preceding one.
#[derive(Clone, Copy)]
struct TickAdmission {
    tick: u64,
    units: u64,
}

fn in_ticks(limit: &Limit, history: &[Admission]) -> Vec<TickAdmission> {
    let mut newest = 0;
    let admissions = history.iter().map(|admission| {
        newest = limit.tick().floor(admission.at).max(newest);
        TickAdmission { tick: newest, units: admission.units }
    });
    admissions.collect()
}

fn ticks_per_window(limit: &Limit) -> u64 {
    limit.tick().floor(limit.per())
}

/// A bucket filled by every admission and drained at the rate. It overflows at an admission exactly when some interval
/// that ends there exceeds the bound: the one that began when it was last empty.
fn check_rate(limit: &Limit, admissions: &[TickAdmission], burst: u64, slack_ticks: u64) -> Result<(), Violation> {
    let (per_unit, per_tick) = (u128::from(ticks_per_window(limit)), u128::from(limit.count()));
    let slack = u128::from(slack_ticks) * per_tick;
    let max_level = u128::from(burst) * per_unit + slack;
    let (mut level, mut from, mut last, mut admitted) = (0u128, 0, 0, 0u64);
    for admission in admissions {
        let drained = u128::from(admission.tick - last) * per_tick;
        level = level.saturating_sub(drained);
        if level == 0 {
            (from, admitted) = (admission.tick, 0);
        }
        last = admission.tick;
        level = level.saturating_add(u128::from(admission.units) * per_unit);
        admitted = admitted.saturating_add(admission.units);
        if level > max_level {
            let refilled = u128::from(admission.tick - from) * per_tick;
            let bound = (max_level + refilled) / per_unit;
            return Err(violation(limit, from, admission.tick, admitted, bound));
        }
    }
    Ok(())
}

/// Two pointers: the sum of all admissions less than `width` older than the newest.
fn check_any_window(limit: &Limit, admissions: &[TickAdmission], width: u64) -> Result<(), Violation> {
    let (mut in_window, mut oldest) = (0u64, 0);
    for newest in admissions {
        in_window = in_window.saturating_add(newest.units);
        while newest.tick - admissions[oldest].tick >= width {
            in_window -= admissions[oldest].units;
            oldest += 1;
        }
        if in_window > limit.count() {
            let (from, bound) = (admissions[oldest].tick, limit.count().into());
            return Err(violation(limit, from, newest.tick, in_window, bound));
        }
    }
    Ok(())
}

fn check_aligned_windows(limit: &Limit, admissions: &[TickAdmission]) -> Result<(), Violation> {
    let width = ticks_per_window(limit);
    let same = |a: &TickAdmission, b: &TickAdmission| a.tick / width == b.tick / width;
    admissions.chunk_by(same).try_for_each(|window| check_any_window(limit, window, width))
}

/// The units of a window, and the units that its guard carries over to the next one.
fn check_fixed_windows(limit: &Limit, admissions: &[TickAdmission]) -> Result<(), Violation> {
    let (mut end, mut from, mut in_window, mut guarded) = (Nanos::ZERO, None, 0u64, 0u64);
    let mut guarded_from = None;
    for admission in admissions {
        let at = limit.tick().start(admission.tick);
        let Some((start, own_end)) = limit.window_at(at) else { return Ok(()) };
        if own_end != end {
            (from, in_window) = if start == end { (guarded_from, guarded) } else { (None, 0) };
            (end, guarded, guarded_from) = (own_end, 0, None);
        }
        in_window = in_window.saturating_add(admission.units);
        from = from.or(Some(admission.tick));
        if limit.guard() > Nanos::ZERO && end.since(at) <= limit.guard() {
            guarded = guarded.saturating_add(admission.units);
            guarded_from = guarded_from.or(Some(admission.tick));
        }
        if in_window > limit.count() {
            let (from, bound) = (from.unwrap_or(admission.tick), limit.count().into());
            return Err(violation(limit, from, admission.tick, in_window, bound));
        }
    }
    Ok(())
}

fn violation(limit: &Limit, from: u64, to: u64, admitted: u64, bound: u128) -> Violation {
    Violation {
        from: limit.tick().start(from),
        to: limit.tick().start(to),
        admitted,
        bound: u64::try_from(bound).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Precision, Spec};

    #[track_caller]
    fn check(algorithm: Algorithm, admitted_at_ms: &[u64], want: &str) {
        let spec = Spec::new(algorithm, 2, Nanos::from_secs(1));
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let history: Vec<Admission> =
            admitted_at_ms.iter().map(|ms| Admission { at: Nanos::from_millis(*ms), units: 1 }).collect();
        let result = match within_bound(&limit, &history) {
            Ok(()) => "holds".to_owned(),
            Err(violation) => violation.to_string(),
        };
        assert_eq!(result, want, "{algorithm} {admitted_at_ms:?}");
    }

    #[test]
    fn each_algorithm_has_its_own_bound() {
        let edge = &[998, 999, 1_000, 1_001];
        check(Algorithm::FixedWindow, edge, "holds");
        let log = "3 units from 998ms to 1s, where at most 2 may pass";
        check(Algorithm::SlidingLog, edge, log);
        check(Algorithm::SlidingWindowStrict, edge, log);
        check(Algorithm::SlidingWindow, edge, log);
        check(Algorithm::TokenBucket, edge, log);
        check(Algorithm::TokenBucket, &[0, 0, 500, 1_000], "holds");
    }

    #[test]
    fn a_reading_before_an_earlier_one_counts_as_the_earlier_one() {
        check(Algorithm::TokenBucket, &[1_000, 1_000, 500], "3 units from 1s to 1s, where at most 2 may pass");
    }

    #[test]
    fn the_busiest_window_is_half_open() {
        let at = |ms| Admission { at: Nanos::from_millis(ms), units: 1 };
        let history = [at(0), at(999), at(1_000)];
        assert_eq!(busiest(&history, Nanos::from_secs(1)), 2);
    }
}
