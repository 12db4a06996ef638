//! Exponential back-off before the next connection to a control plane. The waits have jitter, so that a fleet that lost
//! its control plane does not reconnect all at once.

use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: Duration,
    pub(crate) max: Duration,
}

/// Short enough for a restart, long enough for a long outage.
impl Default for Backoff {
    fn default() -> Self {
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60) }
    }
}

/// Minimum wait, whatever is configured.
const MIN_WAIT: Duration = Duration::from_millis(10);

impl Backoff {
    /// The wait after `failures` failures in a row: between half of it and the whole, by a `jitter` between 0 and 1.
    pub(crate) fn wait(self, failures: u32, jitter: f64) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.min(20));
        let whole = doubled.min(self.max).max(MIN_WAIT);
        whole.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum_with_jitter_in_the_upper_half() {
        let backoff = Backoff { first: Duration::from_secs(10), max: Duration::from_secs(60) };
        let secs = |failures, chance| backoff.wait(failures, chance).as_secs();
        assert_eq!([0, 1, 2, 3, 99].map(|n| secs(n, 1.0)), [10, 20, 40, 60, 60]);
        assert_eq!([0, 3].map(|n| secs(n, 0.0)), [5, 30]);
        let none = Backoff { first: Duration::ZERO, max: Duration::ZERO };
        assert!(none.wait(0, 0.0) > Duration::ZERO, "never zero");
    }
}
