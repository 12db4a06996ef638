//! One rate, counted by a key: the smallest use of Tidegate.

use std::borrow::Cow;
use std::fmt;

use tidegate_core::algorithms::{Limit, Verdict};
use tidegate_core::store::{Charge, LimitReading, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, FingerprintKey, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::{RateError, parse_rate};

use crate::clock::{Clock, SystemClock};
use crate::secret::Secret;
use crate::stores::memory::MemoryStore;

/// One rate for many keys, in memory. A throttle never waits and needs no runtime.
///
/// ```
/// let logins = tidegate::Throttle::new("5/minute")?;
/// assert!(logins.check("alice").allows());
/// # Ok::<(), tidegate::ThrottleError>(())
/// ```
pub struct Throttle<C = SystemClock> {
    limit: Limit,
    name: RuleName,
    key: FingerprintKey,
    store: MemoryStore<C>,
}

impl<C> fmt::Debug for Throttle<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = &mut f.debug_struct("Throttle");
        fields.field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Why a throttle cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ThrottleError {
    /// The rate cannot be parsed or is not exact.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// The operating system has no randomness for the hash key.
    #[error("no randomness for the hash key: {0}")]
    Random(#[from] getrandom::Error),
}

impl Throttle {
    /// A throttle for a rate in the syntax of rules files: `5/minute`, `1000/minute burst 200`. A rate without
    /// a burst is a sliding window, a rate with a burst is a token bucket.
    ///
    /// # Errors
    /// When the rate cannot be parsed. The error names what to write instead.
    pub fn new(rate: &str) -> Result<Self, ThrottleError> {
        Self::with_clock(rate, SystemClock::new())
    }
}

impl<C: Clock> Throttle<C> {
    /// As `new`, with another clock, for tests.
    ///
    /// # Errors
    /// When the rate cannot be parsed.
    pub fn with_clock(rate: &str, clock: C) -> Result<Self, ThrottleError> {
        Self::of(parse_rate(rate)?.limit()?, clock)
    }

    /// A throttle for a limit of any algorithm.
    ///
    /// # Errors
    /// When the operating system has no randomness for the hash key.
    pub fn of(limit: Limit, clock: C) -> Result<Self, ThrottleError> {
        Ok(Throttle {
            limit,
            name: RuleName::new("throttle"),
            key: Secret::random()?.fingerprint_key(),
            store: MemoryStore::new(clock),
        })
    }

    /// Charges one unit to `key` if the limit allows it.
    pub fn check(&self, key: &str) -> Verdict {
        self.check_at(key, self.store.clock().now())
    }

    /// Charges `cost` to `key` if the limit allows it, and returns what is left.
    pub fn spend(&self, key: &str, cost: Cost) -> LimitReading {
        let now = self.store.clock().now();
        self.store
            .charge_one_at(
                &self.charge(self.key.fingerprint(key.as_bytes()), cost),
                now,
            )
            .0
    }

    /// Decides one request for each key, in order, with a single reading of the clock.
    pub fn check_each<'k>(
        &self,
        keys: impl IntoIterator<Item = &'k str>,
    ) -> impl Iterator<Item = Verdict> {
        let now = self.store.clock().now();
        keys.into_iter().map(move |key| self.check_at(key, now))
    }

    #[inline]
    fn check_at(&self, key: &str, now: Nanos) -> Verdict {
        let subject = self.key.fingerprint(key.as_bytes());
        let counter = self.name.counter(subject, 0);
        let charge = || self.charge(subject, Cost::ONE);
        self.store
            .verdict_one_at(counter, &self.limit, Cost::ONE, now, charge)
    }

    fn charge(&self, subject: Fingerprint, cost: Cost) -> Charge<'_> {
        Charge {
            subject,
            rule: &self.name,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost,
            role: Role::Enforce,
            options: &RuleOptions::DEFAULT,
        }
    }
}
