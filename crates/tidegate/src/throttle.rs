//! One quota, counted by a key: the smallest use of Tidegate.

use std::borrow::Cow;
use std::fmt;
#[cfg(feature = "tokio")]
use std::time::Duration;

#[cfg(feature = "tokio")]
use tidegate_core::algorithms::Retry;
use tidegate_core::algorithms::{Limit, Verdict};
use tidegate_core::store::{Charge, ChargeSet, LimitReading, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, FingerprintKey, RuleName};
use tidegate_core::units::{Cost, Nanos};

use crate::clock::{Clock, SystemClock};
use crate::quota::{Quota, ThrottleError};
use crate::stores::memory::MemoryStore;

/// One quota for many keys, in memory. `check` never waits and needs no runtime.
///
/// ```
/// use tidegate::{Quota, Throttle};
///
/// let logins = Throttle::new("5/minute")?;
/// assert!(logins.check("alice").allows());
///
/// let searches = Throttle::new(Quota::per_minute(1_000).burst(200))?;
/// let denied = (0..201).find(|_| !searches.check("client-17").allows());
/// assert_eq!(denied, Some(200));
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

impl Throttle {
    /// A throttle for a quota, or for a rate in the notation of rules: `5/minute`, `1000/minute burst 200`.
    ///
    /// # Errors
    /// When the rate cannot be parsed or computed exactly. The error says what to write instead.
    pub fn new<Q>(quota: Q) -> Result<Self, ThrottleError>
    where
        Q: TryInto<Quota>,
        ThrottleError: From<Q::Error>,
    {
        Self::with_clock(quota, SystemClock::new())
    }
}

impl<C: Clock> Throttle<C> {
    /// As `new`, with another clock, for tests.
    ///
    /// # Errors
    /// As `new`.
    pub fn with_clock<Q>(quota: Q, clock: C) -> Result<Self, ThrottleError>
    where
        Q: TryInto<Quota>,
        ThrottleError: From<Q::Error>,
    {
        let mut key = [0; 16];
        getrandom::fill(&mut key)?;
        Ok(Throttle {
            limit: quota.try_into()?.compile()?,
            name: RuleName::new("throttle"),
            key: FingerprintKey::new(key),
            store: MemoryStore::new(clock),
        })
    }

    /// The same with another cap on the memory for counters than 1 GiB. At the cap new keys share counters and are
    /// denied together; a live counter is never evicted. To be set before the first check: it forgets all counts.
    #[must_use]
    pub fn memory_cap(self, bytes: u64) -> Self {
        Throttle { store: self.store.recapped(bytes), ..self }
    }

    /// The same without keys: all requests share the quota.
    pub fn unkeyed(self) -> UnkeyedThrottle<C> {
        UnkeyedThrottle(self)
    }

    /// Charges one unit to `key` if the quota allows it.
    pub fn check<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> Verdict {
        self.check_at(key.as_ref(), self.store.clock().now())
    }

    /// Charges `cost` to `key` if the quota allows it, and returns what is left.
    pub fn spend<K: AsRef<[u8]> + ?Sized>(&self, key: &K, cost: Cost) -> LimitReading {
        let (now, charge) = (self.store.clock().now(), self.charge_of(key, cost));
        self.store.charge_one_at(&charge, now).0
    }

    /// What `check` would decide, without charging.
    pub fn peek<K: AsRef<[u8]> + ?Sized>(&self, key: &K) -> LimitReading {
        let set = ChargeSet::of_one(self.charge_of(key, Cost::ONE));
        self.store.peek_now(&set).readings[0]
    }

    /// Forgets what `key` has used.
    pub fn reset<K: AsRef<[u8]> + ?Sized>(&self, key: &K) {
        let set = ChargeSet::of_one(self.charge_of(key, Cost::ONE));
        self.store.reset_at(&set, self.store.clock().now());
    }

    /// Decides one request for each key, in order, with a single reading of the clock.
    pub fn check_each<'k, K: AsRef<[u8]> + ?Sized + 'k>(
        &self,
        keys: impl IntoIterator<Item = &'k K>,
    ) -> impl Iterator<Item = Verdict> {
        let now = self.store.clock().now();
        keys.into_iter().map(move |key| self.check_at(key.as_ref(), now))
    }

    /// Keys that have a counter, including those that have refilled and have not been swept yet.
    pub fn len(&self) -> usize {
        usize::try_from(self.store.stats().keys).unwrap_or(usize::MAX)
    }

    /// Whether no key has a counter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Evicts the counters of keys that have refilled, and returns how many. New keys evict them too, so that memory
    /// stays bounded without it.
    pub fn sweep(&self) -> u64 {
        self.store.sweep(usize::MAX)
    }

    /// Never inlined: as one function the hash and the charge are inlined into it, which saves twenty instructions.
    #[inline(never)]
    fn check_at(&self, key: &[u8], now: Nanos) -> Verdict {
        let subject = self.key.fingerprint(key);
        let counter = self.name.counter(subject, 0);
        let charge = || self.charge(subject, Cost::ONE);
        self.store.verdict_one_at(counter, &self.limit, Cost::ONE, now, charge)
    }

    fn charge_of<K: AsRef<[u8]> + ?Sized>(&self, key: &K, cost: Cost) -> Charge<'_> {
        self.charge(self.key.fingerprint(key.as_ref()), cost)
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

/// One quota for everything: a [`Throttle`] without keys.
///
/// ```
/// let imports = tidegate::Throttle::new("2/hour")?.unkeyed();
/// assert!(imports.check().allows());
/// # Ok::<(), tidegate::ThrottleError>(())
/// ```
#[derive(Debug)]
pub struct UnkeyedThrottle<C = SystemClock>(Throttle<C>);

impl<C: Clock> UnkeyedThrottle<C> {
    /// Charges one unit if the quota allows it.
    pub fn check(&self) -> Verdict {
        self.0.check("")
    }

    /// Charges `cost` if the quota allows it, and returns what is left.
    pub fn spend(&self, cost: Cost) -> LimitReading {
        self.0.spend("", cost)
    }

    /// What `check` would decide, without charging.
    pub fn peek(&self) -> LimitReading {
        self.0.peek("")
    }

    /// Forgets what was used.
    pub fn reset(&self) {
        self.0.reset("");
    }

    /// Waits as [`Throttle::until_ready`]. Cancel-safe.
    #[cfg(feature = "tokio")]
    pub async fn until_ready(&self) {
        self.0.until_ready("").await;
    }

    /// Waits as [`Throttle::acquire`]. Cancel-safe.
    ///
    /// # Errors
    /// At once, if the quota can never hold the cost.
    #[cfg(feature = "tokio")]
    pub async fn acquire(&self, cost: Cost) -> Result<(), CostTooLargeError> {
        self.0.acquire("", cost).await
    }
}

/// The cost is more than the quota can ever hold.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a cost of {cost} is more than the quota can ever hold")]
#[non_exhaustive]
pub struct CostTooLargeError {
    /// The cost.
    pub cost: u64,
}

#[cfg(feature = "tokio")]
impl<C: Clock> Throttle<C> {
    /// Waits until the quota allows one unit for `key`, and charges it.
    ///
    /// Waiters are not queued: each tries again when it may pass, and the first to do so wins. Cancel-safe: a future
    /// that is dropped before it is ready has charged nothing.
    pub async fn until_ready<K: AsRef<[u8]> + ?Sized>(&self, key: &K) {
        while let Some(wait) = self.wait_of(key, Cost::ONE).unwrap_or(Some(Duration::MAX)) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Waits until the quota allows `cost` for `key`, and charges it. Cancel-safe, as [`Throttle::until_ready`].
    ///
    /// # Errors
    /// At once, if the quota can never hold the cost.
    pub async fn acquire<K: AsRef<[u8]> + ?Sized>(&self, key: &K, cost: Cost) -> Result<(), CostTooLargeError> {
        while let Some(wait) = self.wait_of(key, cost)? {
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    /// Charges `cost`, or returns how long to wait for it.
    fn wait_of<K: AsRef<[u8]> + ?Sized>(&self, key: &K, cost: Cost) -> Result<Option<Duration>, CostTooLargeError> {
        match self.spend(key, cost).verdict {
            Verdict::Deny { retry: Retry::After(wait) } => Ok(Some(wait.duration())),
            Verdict::Deny { retry: Retry::Never } => Err(CostTooLargeError { cost: cost.get() }),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn throttle() -> (Throttle<ManualClock>, ManualClock) {
        let clock = ManualClock::at(Nanos::from_secs(1_000_000));
        let throttle = Throttle::with_clock(Quota::per_minute(2).burst(2), clock.clone());
        (throttle.unwrap(), clock)
    }

    #[test]
    fn keys_are_counted_apart_and_any_bytes_are_a_key() {
        let (throttle, _) = throttle();
        let taken = |key: &[u8]| throttle.check(key).allows();
        assert_eq!([taken(b"a"), taken(b"a"), taken(b"a")], [true, true, false]);
        assert!(taken(b"\xff\0"));
        assert!(throttle.check(&"b".to_owned()).allows());
        assert_eq!(throttle.len(), 3);
    }

    #[test]
    fn a_peek_charges_nothing_and_a_reset_forgets() {
        let (throttle, clock) = throttle();
        assert!(throttle.is_empty());
        assert_eq!(throttle.peek("a").figures.remaining, 2);
        assert!(throttle.spend("a", Cost::new(2).unwrap()).verdict.allows());
        assert!(!throttle.peek("a").verdict.allows());
        throttle.reset("a");
        assert_eq!(throttle.peek("a").figures.remaining, 2);
        assert!(throttle.check("a").allows());
        clock.advance(Nanos::from_secs(120));
        assert_eq!(throttle.sweep(), 1);
        assert!(throttle.is_empty());
    }

    #[test]
    fn without_keys_all_requests_share_the_quota() {
        let clock = ManualClock::at(Nanos::from_secs(1_000_000));
        let throttle = Throttle::with_clock(Quota::per_minute(2).burst(2), clock).unwrap().unkeyed();
        assert!(throttle.spend(Cost::new(2).unwrap()).verdict.allows());
        let verdict = throttle.check();
        assert_eq!(verdict.retry_after(), Some(std::time::Duration::from_secs(30)));
        throttle.reset();
        assert_eq!(throttle.peek().figures.remaining, 2);
    }

    /// Many keys at a small cap: those without room share a counter and none is free.
    #[test]
    fn at_the_memory_cap_new_keys_are_denied_together() {
        let (throttle, _) = throttle();
        let throttle = throttle.memory_cap(1 << 20);
        let allowed =
            (0..100_000_u32).filter(|key| throttle.spend(&key.to_be_bytes(), Cost::new(2).unwrap()).verdict.allows());
        let allowed = allowed.count();
        assert!((1_000..99_000).contains(&allowed), "{allowed}");
        assert!(throttle.len() < 100_000);
    }

    #[cfg(feature = "tokio")]
    mod waiting {
        use super::*;

        /// The paused clock of tokio: it moves to the next timer when nothing else is to be done.
        struct PausedClock(tokio::time::Instant);

        impl Clock for PausedClock {
            fn now(&self) -> Nanos {
                Nanos::from_secs(1_000_000).plus(self.0.elapsed().into())
            }
        }

        #[tokio::test(start_paused = true)]
        async fn a_waiter_passes_when_its_unit_has_refilled_and_no_sooner() {
            let began = tokio::time::Instant::now();
            let quota = Quota::per_minute(2).burst(2);
            let throttle = Throttle::with_clock(quota, PausedClock(began)).unwrap();
            throttle.until_ready("a").await;
            throttle.until_ready("a").await;
            assert_eq!(began.elapsed(), Duration::ZERO);
            throttle.until_ready("a").await;
            let waited = began.elapsed();
            assert!((30_000..30_010).contains(&waited.as_millis()), "{waited:?}");
            throttle.acquire("a", Cost::new(2).unwrap()).await.unwrap();
            let waited = began.elapsed();
            assert!((90_000..90_020).contains(&waited.as_millis()), "{waited:?}");
        }

        #[tokio::test(start_paused = true)]
        async fn a_cost_that_never_fits_does_not_wait_and_a_dropped_waiter_charges_nothing() {
            let began = tokio::time::Instant::now();
            let quota = Quota::per_minute(2).burst(2);
            let throttle = Throttle::with_clock(quota, PausedClock(began)).unwrap();
            let too_large = throttle.acquire("a", Cost::new(3).unwrap()).await;
            assert_eq!(too_large, Err(CostTooLargeError { cost: 3 }));
            throttle.acquire("a", Cost::new(2).unwrap()).await.unwrap();
            let waiting = throttle.until_ready("a");
            let timed_out = tokio::time::timeout(Duration::from_secs(1), waiting).await;
            assert!(timed_out.is_err());
            tokio::time::advance(Duration::from_secs(59)).await;
            assert_eq!(throttle.peek("a").figures.remaining, 2);
        }
    }
}
