//! How fast requests for one counter come to this node.
//!
//! Counted in slices of time and smoothed from one to the next by halves, in integers. A slice without
//! requests halves it too, so that what was busy once is soon forgotten. Knows no limit.

use tidegate_core::units::Nanos;

use super::newcomer::Newcomer;

/// The smoothed part is kept in so many parts of one, or small paces would be rounded away.
const FINE: u64 = 16;

/// What comes in one slice of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    slice: Nanos,
    began: Nanos,
    /// In this slice so far.
    now: Flow,
    /// In one of those before, in parts of one.
    before: Flow,
}

#[derive(Clone, Copy, Default, Debug)]
struct Flow {
    requests: u64,
    units: u64,
}

impl Pace {
    /// What came so far. A slice lasts `slice`.
    pub(super) fn new(slice: Nanos, so_far: &Newcomer) -> Self {
        Pace {
            slice: slice.max(Nanos::new(1)),
            began: so_far.began,
            now: Flow {
                requests: so_far.requests,
                units: so_far.units,
            },
            before: Flow::default(),
        }
    }

    /// A request of so many units.
    pub(super) fn note(&mut self, units: u64, now: Nanos) {
        self.pass(now);
        self.now.requests += 1;
        self.now.units = self.now.units.saturating_add(units);
    }

    /// Requests in a slice.
    pub(super) fn requests(&self) -> u64 {
        self.now.requests.max(self.before.requests / FINE)
    }

    /// Units in a slice.
    pub(super) fn units(&self) -> u64 {
        self.now.units.max(self.before.units / FINE)
    }

    fn pass(&mut self, now: Nanos) {
        let slices = now.since(self.began).get() / self.slice.get();
        if slices == 0 {
            return;
        }
        let idle = u32::try_from(slices - 1).unwrap_or(u32::MAX);
        let smooth = |before: u64, now: u64| {
            let both = before.saturating_add(now.saturating_mul(FINE));
            (both / 2).checked_shr(idle).unwrap_or(0)
        };
        self.before = Flow {
            requests: smooth(self.before.requests, self.now.requests),
            units: smooth(self.before.units, self.now.units),
        };
        self.now = Flow::default();
        let passed = slices.saturating_mul(self.slice.get());
        self.began = self.began.plus(Nanos::new(passed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests of two units each at these milliseconds, in slices of 50: how many it makes of them.
    #[track_caller]
    fn check(at_ms: impl IntoIterator<Item = u64>, want: u64) {
        let mut pace = Pace::new(Nanos::from_millis(50), &Newcomer::default());
        for at in at_ms {
            pace.note(2, Nanos::from_millis(at));
        }
        assert_eq!((pace.requests(), pace.units()), (want, 2 * want));
    }

    #[test]
    fn a_slice_counts_at_once() {
        check([0; 20], 20);
    }

    #[test]
    fn a_steady_pace_is_what_comes_in_a_slice() {
        check((0..1_000).step_by(5), 10);
    }

    #[test]
    fn a_slow_pace_stays_below_one() {
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
