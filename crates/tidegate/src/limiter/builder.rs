//! Builds a limiter: rules, secret, clock and store, each given once.

use std::error::Error;
use std::fmt;
#[cfg(feature = "disk")]
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(feature = "redis")]
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::store::Capabilities;
use tidegate_rules::SourceFile;
use tidegate_rules::engine::EnforceMode;
use tidegate_rules::event::Observer;

use super::open_permit_gauge::OpenPermitGauge;
#[cfg(feature = "redis")]
use super::redis_counters::RedisCounters;
use super::settlement_retries::SettlementRetries;
use super::{IdSource, Keys, Limiter, random_id};
use crate::adaptive::Adaptive;
use crate::clock::{Clock, SystemClock};
use crate::live::LiveValue;
use crate::policy::{LoadError, Policy};
#[cfg(feature = "redis")]
use crate::resilience::{ResilienceSettings, StoreEvent, resilient};
#[cfg(feature = "redis")]
use crate::runtime::TokioRuntime;
use crate::secret::Secret;
#[cfg(feature = "disk")]
use crate::stores::disk::{DiskStore, JournalCounterId};
use crate::stores::memory::{DEFAULT_CAP, MemoryStore};
#[cfg(feature = "redis")]
use crate::stores::redis::{Redis, RedisConfig};

/// Configures a [`Limiter`]. Only the rules have no default.
///
/// ```
/// use tidegate::{Limiter, Request};
///
/// let limiter = Limiter::builder()
///     .yaml("version: 1\nrules: [{ name: api, by: user, rate: 2/hour }]")
///     .memory_cap(64 << 20)
///     .build()?;
/// assert!(limiter.check_now(Request::default().with("user", "ada")).allowed());
/// # Ok::<(), tidegate::BuildError>(())
/// ```
#[must_use = "a builder does nothing until it builds"]
pub struct LimiterBuilder<C = SystemClock> {
    rules: GivenRules,
    secret: Option<Secret>,
    clock: C,
    memory_cap: Option<u64>,
    enforcement: EnforceMode,
    observers: Vec<Arc<dyn Observer>>,
    new_id: IdSource,
}

/// Counters in memory, see [`LimiterBuilder::build`].
pub type MemoryCounters<C = SystemClock> = MemoryStore<C>;

/// Counters in memory of which the durable ones are on disk, see [`LimiterBuilder::build_on_disk`].
#[cfg(feature = "disk")]
pub type DiskCounters<C = SystemClock> = DiskStore<C>;

/// How long a reply may take before it counts as lost. Longer than any decision waits, so that a charge whose reply
/// comes late can be refunded.
#[cfg(feature = "redis")]
const MAX_REPLY_TIME: Duration = Duration::from_secs(5);
/// How long [`LimiterBuilder::connect`] waits for the store.
#[cfg(feature = "redis")]
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The rules as given.
enum GivenRules {
    Missing,
    Text(String),
    Path(PathBuf),
    Policy(Box<Policy>),
}

/// Why a limiter cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No rules were given.
    #[error("a limiter has no rules; give it some by `yaml`, `rules_file` or `policy`")]
    NoRules,
    /// The rules are invalid or cannot be read.
    #[error(transparent)]
    Rules(#[from] LoadError),
    /// No secret was given, although the counters outlive the process.
    #[error("counters that outlive the process need the `secret` that names them")]
    NoSecret,
    /// The store cannot be used.
    #[error("the store cannot be used: {0}")]
    Store(Box<dyn Error + Send + Sync>),
    /// No secret was given, and a random one cannot be drawn.
    #[error("the operating system has no randomness: {0}")]
    NoRandomness(#[from] getrandom::Error),
}

impl LimiterBuilder {
    pub(super) fn new() -> Self {
        LimiterBuilder {
            rules: GivenRules::Missing,
            secret: None,
            clock: SystemClock::new(),
            memory_cap: None,
            enforcement: EnforceMode::AsWritten,
            observers: Vec::new(),
            new_id: Box::new(random_id),
        }
    }
}

impl<C: Clock + 'static> LimiterBuilder<C> {
    /// Decides by the rules in `text`. `docs/rules.md` describes their language.
    pub fn yaml(mut self, text: impl Into<String>) -> Self {
        self.rules = GivenRules::Text(text.into());
        self
    }

    /// Decides by the rules in a file, or in all files of a folder, and by the keys file that they name.
    pub fn rules_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.rules = GivenRules::Path(path.into());
        self
    }

    /// Decides by `policy`.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.rules = GivenRules::Policy(Box::new(policy));
        self
    }

    /// The secret of the deployment. Nodes that share counters or accept each other's receipts share it. Without one
    /// the limiter draws a secret of its own.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = Some(secret);
        self
    }

    /// Another clock, for tests. The limiter and the counters in memory share it.
    pub fn clock<D: Clock + 'static>(self, clock: D) -> LimiterBuilder<D> {
        let LimiterBuilder { rules, secret, clock: _, memory_cap, enforcement, observers, new_id } = self;
        LimiterBuilder { rules, secret, clock, memory_cap, enforcement, observers, new_id }
    }

    /// Another cap than 1 GiB on the memory of counters. Permits take up to a sixteenth as much besides, and tracked
    /// reservations a thirty-second. At the cap new clients share counters and are denied together; a live counter is
    /// never evicted. A limiter with a shared store uses that memory only while it decides without the store.
    pub fn memory_cap(mut self, bytes: u64) -> Self {
        self.memory_cap = Some(bytes);
        self
    }

    /// Runs every rule in shadow mode: limits are evaluated, and no request is denied.
    pub fn shadow(mut self) -> Self {
        self.enforcement = EnforceMode::AllShadow;
        self
    }

    /// Notifies `observer` of every decision.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observers.push(observer);
        self
    }

    /// Takes the ids of charges, reservations and permits from `source` instead of the system's randomness, so that a
    /// simulation can be replayed. Ids must be unique within a deployment.
    pub fn id_source(mut self, source: impl Fn() -> u128 + Send + Sync + 'static) -> Self {
        self.new_id = Box::new(move || Ok(source()));
        self
    }

    /// Builds a limiter with counters in memory.
    ///
    /// # Errors
    /// When there are no rules or they are invalid.
    pub fn build(self) -> Result<Limiter<MemoryStore<C>>, BuildError>
    where
        C: Clone,
    {
        let store = self.memory();
        self.finish(Capabilities::MEMORY, |_, _| Ok(store))
    }

    fn memory(&self) -> MemoryStore<C>
    where
        C: Clone,
    {
        MemoryStore::with_cap(self.clock.clone(), self.memory_cap.unwrap_or(DEFAULT_CAP))
    }

    /// Builds a limiter with counters in memory, where those of rules with `durability: disk` are also in a file and
    /// survive a crash. The file is made if it does not exist. Must be used within a tokio runtime.
    ///
    /// # Errors
    /// When there are no rules or no secret, or the file cannot be used.
    #[cfg(feature = "disk")]
    pub fn build_on_disk(self, file: impl AsRef<Path>) -> Result<Limiter<DiskCounters<C>>, BuildError>
    where
        C: Clone,
    {
        let memory = self.memory();
        if self.secret.is_none() {
            return Err(BuildError::NoSecret);
        }
        self.finish(Capabilities::JOURNAL, |policy, secret| {
            let limit = |counter: JournalCounterId<'_>| counter.limit_under(&policy.rules);
            let opened = DiskStore::open(file.as_ref(), secret, memory, limit, Box::new(|_| {}));
            let (store, _restored) = opened.map_err(|error| BuildError::Store(error.into()))?;
            Ok(store)
        })
    }

    /// Builds a limiter that shares its counters, in Redis or Valkey, with every node that has the same secret. `url`
    /// is `redis://HOST:PORT`, `rediss:` for TLS, `unix:PATH`, `redis+sentinel:` or `redis+cluster:`; `docs/redis.md`
    /// has the details. While the store does not reply, this node decides by its share of each limit.
    ///
    /// Cancel-safe: dropped before it has finished, the call leaves nothing behind but the mark of the secret in the
    /// store. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When there are no rules or no secret, or the store does not reply within five seconds, or its nodes have another
    /// secret.
    #[cfg(feature = "redis")]
    pub async fn connect(self, url: &str) -> Result<Limiter<RedisCounters>, BuildError> {
        let secret = self.secret.as_ref().ok_or(BuildError::NoSecret)?;
        let redis = Redis::open(&RedisConfig { reply_timeout: MAX_REPLY_TIME, ..RedisConfig::new(url) });
        let redis = redis.map_err(|error| BuildError::Store(error.into()))?;
        // Nothing is counted before the nodes agree on the secret, which names the counters.
        redis.lock();
        let joined = async {
            redis.ready().await;
            redis.share_secret(Some(secret)).await
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, joined).await {
            Ok(joined) => joined.map_err(|error| BuildError::Store(error.into()))?,
            Err(late) => {
                let cause = redis.last_error().map_or_else(|| late.into(), Into::into);
                return Err(BuildError::Store(cause));
            }
        };
        redis.unlock();
        let exact = Arc::<tokio::sync::Notify>::default();
        let reached = Arc::clone(&exact);
        let on_event = Arc::new(move |event| {
            if event == StoreEvent::Exact {
                exact.notify_one();
            }
        });
        let memory_cap = self.memory_cap.unwrap_or(DEFAULT_CAP);
        let settings = ResilienceSettings { memory_cap, ..ResilienceSettings::default() };
        let store = resilient(redis, TokioRuntime::new()?, settings, on_event);
        let limiter = self.finish(Capabilities::SHARED, |_, _| Ok(RedisCounters(store)))?;
        // A node that starts decides by its share until it knows the others.
        let _exact_or_late = tokio::time::timeout(CONNECT_TIMEOUT, reached.notified()).await;
        Ok(limiter)
    }

    /// Builds a limiter with counters in `store`. Rules that are given as text or as a file may require anything that
    /// some store can do; those of a [`Policy`] were checked when it was made.
    ///
    /// # Errors
    /// When there are no rules or they are invalid.
    pub fn build_on<S>(self, store: S) -> Result<Limiter<S>, BuildError> {
        self.finish(Capabilities::UNKNOWN, |_, _| Ok(store))
    }

    fn finish<S>(
        self,
        capabilities: Capabilities,
        store: impl FnOnce(&Policy, &Secret) -> Result<S, BuildError>,
    ) -> Result<Limiter<S>, BuildError> {
        let policy = match self.rules {
            GivenRules::Missing => return Err(BuildError::NoRules),
            GivenRules::Text(text) => {
                let file = SourceFile { name: "rules.yaml", text: &text };
                Policy::parse_for(&[file], capabilities).map_err(LoadError::from)?
            }
            GivenRules::Path(path) => Policy::load_for(&path, capabilities)?,
            GivenRules::Policy(policy) => *policy,
        };
        let secret = self.secret.map_or_else(Secret::random, Ok)?;
        let share = self.memory_cap.map(|bytes| bytes / 32);
        Ok(Limiter {
            store: store(&policy, &secret)?,
            policy: Arc::new(LiveValue::new(policy)),
            keys: ArcSwap::from_pointee(Keys::of(secret)),
            enforcement: self.enforcement,
            clock: Arc::new(self.clock),
            observers: self.observers,
            adaptive: share.map_or_else(Adaptive::default, Adaptive::with_memory_cap),
            open_permits: share.map_or_else(OpenPermitGauge::default, OpenPermitGauge::with_memory_cap),
            settlement_retries: SettlementRetries::with_memory_cap(self.memory_cap.unwrap_or(DEFAULT_CAP)),
            new_id: self.new_id,
        })
    }
}

impl<C> fmt::Debug for LimiterBuilder<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").finish_non_exhaustive()
    }
}
