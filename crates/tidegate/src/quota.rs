//! How much a throttle allows: a count per window, in types instead of text.

use std::convert::Infallible;
use std::str::FromStr;
use std::time::Duration;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::rate::{PerWindow, Rate, RateError, RateWindow, parse_rate};
use tidegate_core::units::Nanos;

/// A count per window, with an optional burst and algorithm.
///
/// Without a burst a quota is a sliding window, with one a token bucket that refills at that rate.
///
/// ```
/// use tidegate::Quota;
///
/// const LOGINS: Quota = Quota::per_minute(5);
/// const SEARCHES: Quota = Quota::per_minute(1_000).burst(200);
/// assert_eq!("1000/minute burst 200".parse(), Ok(SEARCHES));
/// # let _ = LOGINS;
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Quota {
    count: u64,
    window: Nanos,
    burst: Option<u64>,
    algorithm: Option<Algorithm>,
}

impl Quota {
    /// `count` in any second.
    #[must_use]
    pub const fn per_second(count: u64) -> Self {
        Self::per_secs(count, 1)
    }

    /// `count` in any minute.
    #[must_use]
    pub const fn per_minute(count: u64) -> Self {
        Self::per_secs(count, 60)
    }

    /// `count` in any hour.
    #[must_use]
    pub const fn per_hour(count: u64) -> Self {
        Self::per_secs(count, 3_600)
    }

    /// `count` in any 24 hours.
    #[must_use]
    pub const fn per_day(count: u64) -> Self {
        Self::per_secs(count, 86_400)
    }

    /// `count` in any `window`.
    #[must_use]
    pub fn per(count: u64, window: Duration) -> Self {
        Quota { window: window.into(), ..Self::per_secs(count, 0) }
    }

    const fn per_secs(count: u64, secs: u64) -> Self {
        Quota { count, window: Nanos::from_secs(secs), burst: None, algorithm: None }
    }

    /// The same with a burst: how much may pass at once after a pause.
    #[must_use]
    pub const fn burst(self, burst: u64) -> Self {
        Quota { burst: Some(burst), ..self }
    }

    /// The same, counted by this algorithm.
    #[must_use]
    pub const fn algorithm(self, algorithm: Algorithm) -> Self {
        Quota { algorithm: Some(algorithm), ..self }
    }

    pub(crate) fn compile(self) -> Result<Limit, RateError> {
        let default = match self.burst {
            Some(_) => Algorithm::TokenBucket,
            None => Algorithm::SlidingWindow,
        };
        let algorithm = self.algorithm.unwrap_or(default);
        let spec = Spec { burst: self.burst, ..Spec::new(algorithm, self.count, self.window) };
        let rate = PerWindow { count: self.count, window: RateWindow::Duration(self.window), burst: self.burst };
        rate.compile(&spec, Precision::Memory)
    }
}

/// Parses a rate in the notation of rules: `5/minute`, `100/5m`, `1000/minute burst 200`. A month is 30 days.
impl FromStr for Quota {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let rate = parse_rate(text)?;
        // A rate that limits nothing or is not exact is an error now, not at the first request.
        rate.limit()?;
        match rate {
            Rate::PerWindow(rate) => Ok(Quota {
                count: rate.count,
                window: match rate.window {
                    RateWindow::Duration(span) => span,
                    RateWindow::Calendar(unit) => unit.nominal_length(),
                },
                burst: rate.burst,
                algorithm: None,
            }),
            Rate::Unlimited => unreachable!("`unlimited` has no limit, which is an error above"),
        }
    }
}

impl TryFrom<&str> for Quota {
    type Error = RateError;

    fn try_from(text: &str) -> Result<Self, RateError> {
        text.parse()
    }
}

/// Why a throttle cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// The rate cannot be parsed or is not exact.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The operating system has no randomness for the hash key.
    #[error("no randomness for the hash key: {0}")]
    Random(#[from] getrandom::Error),
}

impl From<Infallible> for ThrottleError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(quota: Quota, algorithm: Algorithm, capacity: u64) {
        let limit = quota.compile().unwrap();
        assert_eq!((limit.algorithm(), limit.capacity()), (algorithm, capacity));
    }

    #[test]
    fn a_burst_makes_a_token_bucket_and_an_algorithm_can_be_chosen() {
        check(Quota::per_minute(5), Algorithm::SlidingWindow, 5);
        check(Quota::per_minute(5).burst(20), Algorithm::TokenBucket, 20);
        let log = Quota::per_hour(5).algorithm(Algorithm::SlidingLog);
        check(log, Algorithm::SlidingLog, 5);
    }

    #[test]
    fn a_text_is_the_same_quota() {
        assert_eq!("5/second".parse(), Ok(Quota::per_second(5)));
        assert_eq!("5/day".parse(), Ok(Quota::per_day(5)));
        let per_five_minutes = Quota::per(100, Duration::from_secs(300)).burst(7);
        assert_eq!(Quota::try_from("100/5m burst 7"), Ok(per_five_minutes));
    }

    #[test]
    fn a_quota_that_limits_nothing_or_allows_nothing_is_an_error() {
        let text = |quota: &str| quota.parse::<Quota>().unwrap_err().to_string();
        assert!(text("unlimited").contains("limits nothing"));
        assert!(text("0/minute").contains("would deny everything"));
        let zero = Quota::per_minute(0).compile().unwrap_err().to_string();
        assert!(zero.contains("would deny everything"), "{zero}");
        let burst = Quota::per_minute(1).burst(2).algorithm(Algorithm::SlidingLog);
        let burst = burst.compile().unwrap_err().to_string();
        assert!(burst.contains("keeps no burst"), "{burst}");
    }
}
