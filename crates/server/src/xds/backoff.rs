//! How long to wait before a control plane is asked again: twice as long each time, and spread, so that
//! a fleet that lost it does not come back as one.

use std::time::Duration;

/// The waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
}

/// Soon enough for a restart, seldom enough for a long absence.
impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            first: Duration::from_secs(1),
            max: Duration::from_secs(60),
        }
    }
}

/// No plane is asked more often than this, whatever was written.
const MIN_WAIT: Duration = Duration::from_millis(10);

impl Backoff {
    /// The wait after so many failures in a row, with a chance between 0 and 1: between half of it and
    /// the whole.
    pub(super) fn wait(self, failures: u32, jitter: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(20));
        let whole = doubled.min(self.max).max(MIN_WAIT);
        whole.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_are_spread_over_their_upper_half() {
        let backoff = Backoff {
            first: Duration::from_secs(10),
            max: Duration::from_secs(60),
        };
        let secs = |failures, chance| backoff.wait(failures, chance).as_secs();
        assert_eq!([0, 1, 2, 3, 99].map(|n| secs(n, 1.0)), [10, 20, 40, 60, 60]);
        assert_eq!([0, 3].map(|n| secs(n, 0.0)), [5, 30]);
        let none = Backoff {
            first: Duration::ZERO,
            max: Duration::ZERO,
        };
        assert!(none.wait(0, 0.0) > Duration::ZERO, "never without a pause");
    }
}
