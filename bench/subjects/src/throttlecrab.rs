//! `throttlecrab` on its periodic store, behind a mutex as its documentation recommends.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use throttlecrab::{PeriodicStore, RateLimiter};

use crate::{Allowance, BATCH, Key, LimiterSubject};

/// The limiter of the `throttlecrab` crate. Its adaptive store is left out: it is quadratic in the number of
/// keys and would not finish.
pub struct Throttlecrab {
    limiter: Mutex<RateLimiter<PeriodicStore>>,
    allowance: Allowance,
}

impl Throttlecrab {
    #[inline]
    fn charge(&self, limiter: &mut RateLimiter<PeriodicStore>, key: &Key, now: SystemTime) -> bool {
        let Allowance { count, period_secs, burst } = self.allowance;
        let (burst, count) = (burst.get().into(), count.get().into());
        limiter.rate_limit(key.as_str(), burst, count, period_secs.into(), 1, now).is_ok_and(|(admitted, _)| admitted)
    }
}

impl LimiterSubject for Throttlecrab {
    const NAME: &'static str = "throttlecrab";
    type Scratch = ();

    fn new(allowance: Allowance, _keys: usize) -> Self {
        let limiter = Mutex::new(RateLimiter::new(PeriodicStore::new()));
        Throttlecrab { limiter, allowance }
    }

    #[inline]
    fn decide(&self, key: &Key) -> bool {
        let now = SystemTime::now();
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        self.charge(&mut limiter, key, now)
    }

    /// It takes the time as an argument, so a caller can read the clock and take the lock once.
    #[inline]
    fn decide_batch(&self, keys: &[&Key], (): &mut ()) -> usize {
        debug_assert!(keys.len() <= BATCH);
        let now = SystemTime::now();
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        keys.iter().filter(|key| self.charge(&mut limiter, key, now)).count()
    }
}
