//! The same bounds, checked by an outside observer.
//!
//! A client knows only that an admission was decided between its request and the response. An interval counts only
//! spans that lie wholly inside, so every reported violation is real: no false alarm, but spans across an edge escape.
//! The times are those of a clock that agrees with the deciding clock; where it may be off, widen the spans by that
//! much.

use super::{Admission, Violation, ticks_per_window, violation, within_bound};
use crate::algorithms::{Algorithm, Limit};
use crate::units::Nanos;

/// Units admitted at some instant from `from` to `to`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AdmissionSpan {
    /// The earliest possible instant.
    pub from: Nanos,
    /// The latest possible instant.
    pub to: Nanos,
    /// The units admitted.
    pub units: u64,
}

impl AdmissionSpan {
    /// The same span, less certain by `by` on both sides.
    #[must_use]
    pub fn widened(self, by: Nanos) -> AdmissionSpan {
        AdmissionSpan { from: self.from.since(by), to: self.to.plus(by), units: self.units }
    }
}

/// Checks every interval against the bound of the limit, as [`within_bound`] does.
///
/// Windows: linear. Others: quadratic, over every pair of spans.
pub fn surely_within_bound(limit: &Limit, spans: &[AdmissionSpan]) -> Result<(), Violation> {
    let width = ticks_per_window(limit);
    let per_unit = u128::from(width);
    let rate_bound = |burst: u64| {
        move |ticks: u64| {
            let refilled = u128::from(ticks) * u128::from(limit.count()) / per_unit;
            u128::from(burst) + refilled
        }
    };
    match limit.algorithm() {
        Algorithm::FixedWindow => check_windows(limit, spans, |at| limit.window_at(at)),
        Algorithm::SlidingLog | Algorithm::SlidingWindowStrict => {
            let windows = |ticks: u64| u128::from(ticks / width) + 1;
            check_intervals(limit, spans, |ticks| windows(ticks) * u128::from(limit.count()))
        }
        Algorithm::SlidingWindow => {
            check_windows(limit, spans, |at| Some(limit.tick().floor(at) / width))?;
            check_intervals(limit, spans, rate_bound(limit.count()))
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
            check_intervals(limit, spans, rate_bound(limit.capacity()))
        }
    }
}

/// Spans across an edge may belong to either side and are left out. The others are placed at their start: that is in
/// their window, and in no guard that they were not in.
fn check_windows<W: PartialEq>(
    limit: &Limit,
    spans: &[AdmissionSpan],
    window: impl Fn(Nanos) -> W,
) -> Result<(), Violation> {
    let inside = spans.iter().filter(|s| window(s.from) == window(s.to));
    let mut history: Vec<Admission> = inside.map(|span| Admission { at: span.from, units: span.units }).collect();
    history.sort_by_key(|admission| admission.at);
    match limit.algorithm() {
        Algorithm::SlidingWindow => super::check_aligned_windows(limit, &super::in_ticks(limit, &history)),
        _ => within_bound(limit, &history),
    }
}

/// Checks all spans between the start of one span and the end of another.
fn check_intervals(limit: &Limit, spans: &[AdmissionSpan], bound_for: impl Fn(u64) -> u128) -> Result<(), Violation> {
    let tick = |at: Nanos| limit.tick().floor(at);
    let mut by_end = spans.to_vec();
    by_end.sort_by_key(|span| span.to);
    for first in spans {
        let (from, mut admitted) = (tick(first.from), 0u64);
        for last in by_end.iter().filter(|span| span.from >= first.from) {
            admitted = admitted.saturating_add(last.units);
            let to = tick(last.to);
            let bound = bound_for(to - from);
            if u128::from(admitted) > bound {
                return Err(violation(limit, from, to, admitted, bound));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Precision, Spec};

    /// A limit of two per second; spans in milliseconds.
    #[track_caller]
    fn check(algorithm: Algorithm, spans_ms: &[(u64, u64)], want: &str) {
        let spec = Spec::new(algorithm, 2, Nanos::from_secs(1));
        let limit = Limit::compile(&spec, Precision::Memory).unwrap();
        let span = |(from, to): &(u64, u64)| AdmissionSpan {
            from: Nanos::from_millis(*from),
            to: Nanos::from_millis(*to),
            units: 1,
        };
        let spans: Vec<AdmissionSpan> = spans_ms.iter().map(span).collect();
        let result = match surely_within_bound(&limit, &spans) {
            Ok(()) => "holds".to_owned(),
            Err(violation) => violation.to_string(),
        };
        assert_eq!(result, want, "{algorithm} {spans_ms:?}");
    }

    #[test]
    fn spans_wholly_inside_an_interval_exceed_the_bound() {
        let crowd = &[(0, 100), (50, 200), (150, 400)];
        for algorithm in Algorithm::ALL {
            let want = match algorithm {
                Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                    "3 units from 0ns to 150ms, where at most 2 may pass"
                }
                _ => "3 units from 0ns to 400ms, where at most 2 may pass",
            };
            check(algorithm, crowd, want);
        }
    }

    #[test]
    fn spans_that_may_lie_outside_an_interval_do_not_count() {
        for algorithm in Algorithm::ALL {
            check(algorithm, &[(0, 100), (50, 200), (900, 1_100)], "holds");
            check(algorithm, &[(0, 100), (0, 1_100), (1_050, 1_100)], "holds");
        }
    }

    #[test]
    fn a_long_span_hides_no_other_span() {
        let want = "3 units from 100ms to 400ms, where at most 2 may pass";
        let spans = &[(100, 5_000), (100, 200), (100, 300), (200, 400)];
        check(Algorithm::TokenBucket, spans, want);
        check(Algorithm::SlidingLog, spans, want);
    }
}
