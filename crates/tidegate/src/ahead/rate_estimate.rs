//! Estimates the rate of requests for one counter on this node.
//!
//! Requests are counted in slices of time and smoothed from slice to slice by halves, in integers. A slice without
//! requests halves the estimate too, so that a counter that was busy once is soon idle. Knows no limit.

use tidegate_core::units::Nanos;

/// Smoothed values are stored multiplied by this, or low rates would be rounded away.
const SCALE: u64 = 16;

/// Requests and units per slice of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateEstimate {
    slice: Nanos,
    began: Nanos,
    /// The present slice so far.
    current: RateSlice,
    /// The average of earlier slices, times `SCALE`.
    smoothed: RateSlice,
}

#[derive(Clone, Copy, Default, Debug)]
struct RateSlice {
    requests: u64,
    units: u64,
}

impl RateEstimate {
    /// An estimate that begins at `began`. A slice lasts `slice`.
    pub(super) fn new(slice: Nanos, began: Nanos) -> Self {
        let (current, smoothed) = (RateSlice::default(), RateSlice::default());
        RateEstimate { slice: slice.max(Nanos::new(1)), began, current, smoothed }
    }

    /// Records a request of `units` units.
    pub(super) fn record(&mut self, units: u64, now: Nanos) {
        self.advance(now);
        self.current.requests += 1;
        self.current.units = self.current.units.saturating_add(units);
    }

    /// Requests per slice.
    pub(super) fn requests(&self) -> u64 {
        self.current.requests.max(self.smoothed.requests / SCALE)
    }

    /// Units per slice.
    pub(super) fn units(&self) -> u64 {
        self.current.units.max(self.smoothed.units / SCALE)
    }

    fn advance(&mut self, now: Nanos) {
        let slices = now.since(self.began).get() / self.slice.get();
        if slices == 0 {
            return;
        }
        let idle = u32::try_from(slices - 1).unwrap_or(u32::MAX);
        let smooth = |before: u64, now: u64| {
            let both = before.saturating_add(now.saturating_mul(SCALE));
            (both / 2).checked_shr(idle).unwrap_or(0)
        };
        self.smoothed = RateSlice {
            requests: smooth(self.smoothed.requests, self.current.requests),
            units: smooth(self.smoothed.units, self.current.units),
        };
        self.current = RateSlice::default();
        let passed = slices.saturating_mul(self.slice.get());
        self.began = self.began.plus(Nanos::new(passed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of two units each at these milliseconds, in slices of 50. Expects the estimate of requests per slice.
    #[track_caller]
    fn check(at_ms: impl IntoIterator<Item = u64>, want: u64) {
        let mut rate = RateEstimate::new(Nanos::from_millis(50), Nanos::ZERO);
        for at in at_ms {
            rate.record(2, Nanos::from_millis(at));
        }
        assert_eq!((rate.requests(), rate.units()), (want, 2 * want));
    }

    #[test]
    fn a_slice_counts_at_once() {
        check([0; 20], 20);
    }

    #[test]
    fn a_steady_rate_is_the_number_of_requests_in_a_slice() {
        check((0..1_000).step_by(5), 10);
    }

    #[test]
    fn a_slow_rate_stays_at_one_request() {
        check((0..5_000).step_by(500), 1);
    }

    #[test]
    fn idle_time_halves_it_with_every_slice() {
        check([[0; 64].as_slice(), &[50]].concat(), 32);
        check([[0; 64].as_slice(), &[250]].concat(), 2);
        check([[0; 64].as_slice(), &[60_000]].concat(), 1);
        check([[0; 64].as_slice(), &[u64::MAX / 1_000_000]].concat(), 1);
    }
}
