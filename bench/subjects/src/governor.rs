//! `governor`, keyed, on its default state store (DashMap) and default clock (quanta).

use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::{Allowance, Key, LimiterSubject};

/// The keyed limiter of the `governor` crate.
pub struct Governor(DefaultKeyedRateLimiter<Key>);

impl LimiterSubject for Governor {
    const NAME: &'static str = "governor";
    type Scratch = ();

    fn new(allowance: Allowance, _keys: usize) -> Self {
        let unit = Duration::from_secs(allowance.period_secs.into()) / allowance.count.get();
        let quota =
            Quota::with_period(unit).expect("an allowance refills a unit after some time").allow_burst(allowance.burst);
        Governor(RateLimiter::keyed(quota))
    }

    #[inline]
    fn decide(&self, key: &Key) -> bool {
        self.0.check_key(key).is_ok()
    }
}
