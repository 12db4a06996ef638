//! A store that nodes share: how a node joins it, and the secret that names its counters.
//!
//! Nothing is counted there before the node has the secret that the nodes share. Until then this node decides by its
//! share of each limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidegate::Secret;
use tidegate::observe::{DurabilityState, StoreFacts};
use tidegate::resilience::{self, LocalAdmissions, PendingUnits, ResilienceSettings, Resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::disk::JournalCounterId;
use tidegate::stores::redis::{Redis, RedisConfig, SecretError};
use tidegate_core::store::{FailureCause, FailureKind, RuleOptions, UnacknowledgedError};
use tidegate_core::subject::RuleName;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::state::ServerLimiter;
use crate::state::store_events::StoreObserver;
use crate::state::store_health::{LOCAL_DECISION_NOTE, log_report};
use crate::store_condition::StoreCondition;

/// How long a reply may take before it counts as lost. Longer than any decision waits, so that a charge whose reply
/// comes late can be refunded.
const MAX_REPLY_TIME: Duration = Duration::from_secs(5);

/// How long to wait before the secret is requested from the store again.
const SECRET_RETRY_DELAY: Duration = Duration::from_millis(200);

/// How often to check that the store still has the secret. A deleted secret is restored so soon that a new node can
/// wait for it (`Redis::awaits_secret`).
const SECRET_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How long a node waits for a connection before it reports why it has none.
const CONNECT_REPORT_DELAY: Duration = Duration::from_secs(1);

/// The cure for a server that evicts counters.
const EVICTION: &str =
    "the store evicts keys when it is full, and an evicted counter is forgotten; set `maxmemory-policy noeviction`";

/// How often to check whether decisions are exact.
const EXACT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A store that nodes share.
pub(crate) struct JoinedStore {
    pub(super) store: Resilient<Redis, TokioRuntime>,
    /// The same store without the components around it.
    redis: Redis,
    /// Its events, as they are counted and reported.
    observer: Arc<StoreObserver>,
    /// The last policy of its servers that was logged because it evicts counters.
    eviction_policy: Mutex<Option<String>>,
}

impl JoinedStore {
    /// Counters in the Redis or Valkey at `url`, or why they cannot be there.
    pub(super) fn open(url: &str, settings: ResilienceSettings) -> Result<Self, String> {
        let reply_timeout = settings.budget.duration().max(MAX_REPLY_TIME);
        let redis = Redis::open(&RedisConfig { reply_timeout, ..RedisConfig::new(url) });
        let redis = redis.map_err(|error| format!("--store: {error}"))?;
        redis.lock();
        let observer = Arc::new(StoreObserver::new(Arc::clone(&settings.failures)));
        let events = Arc::clone(&observer);
        let watcher = Arc::new(move |event| events.on_event(&event));
        let runtime = TokioRuntime::new().map_err(|error| format!("no randomness: {error}"))?;
        let store = resilience::resilient(redis.clone(), runtime, settings, watcher);
        Ok(JoinedStore { store, redis, observer, eviction_policy: Mutex::default() })
    }

    /// Reads the secret of the nodes that share the store, or publishes `own` to them, and begins to count there. A
    /// store without a secret gets the secret that it was last `known` by. Returns the secret once this node counts
    /// there.
    pub(crate) async fn join(&self, limiter: &ServerLimiter, own: Option<&Secret>, known: Option<&Secret>) -> Secret {
        if own.is_none() {
            self.await_restored_secret().await;
        }
        let secret = match (own, known) {
            (None, Some(known)) => self.agree_on_secret(|| self.redis.restore_secret(known, false)).await,
            _ => self.agree_on_secret(|| self.redis.share_secret(own)).await,
        };
        limiter.use_secret(secret.clone());
        self.redis.unlock();
        secret
    }

    /// Waits until decisions are exact.
    pub(crate) async fn wait_until_exact(&self) {
        while !self.observer.series.is_exact() {
            sleep(EXACT_POLL_INTERVAL).await;
        }
    }

    /// Restores the secret whenever the store has lost it; otherwise a new node would count under another one. Also
    /// checks at intervals, because the key alone may have been deleted.
    pub(crate) async fn maintain_secret(&self, limiter: &ServerLimiter, mut secret: Secret, given: bool) {
        loop {
            let _lost_or_time = timeout(SECRET_CHECK_INTERVAL, self.observer.loss_notify.notified()).await;
            let theirs = self.agree_on_secret(|| self.redis.restore_secret(&secret, given)).await;
            if theirs.fingerprint_key() != secret.fingerprint_key() {
                warn!("the nodes of this store have another secret now; counting under that one");
                limiter.use_secret(theirs.clone());
                secret = theirs;
            }
            self.redis.unlock();
        }
    }

    /// Restores what this node had admitted when it ended.
    pub(super) fn restore_local_admissions(&self, limiter: &ServerLimiter, admissions: &LocalAdmissions) {
        let policy = limiter.policy().load();
        let limit_of = |of: &PendingUnits| {
            let counter = JournalCounterId { rule: &of.rule, rate: of.rate, tag: of.limit.tag, subject: of.subject };
            let of_rule = || {
                let rule = policy.rules.rule(of.rule.as_str())?;
                Some((counter.limit_under(&policy.rules)?, *rule.options()))
            };
            of_rule().or_else(|| Some((of.limit.compile()?, RuleOptions::DEFAULT)))
        };
        let options_of =
            |rule: &RuleName| policy.rules.rule(rule.as_str()).map_or(RuleOptions::DEFAULT, |r| *r.options());
        let counters = self.store.restore_local_admissions(admissions, limit_of, options_of);
        let permits = admissions.permits.len();
        if counters + permits > 0 {
            info!(counters, permits, "restored the charges and permits admitted without the store");
        }
        if let without_limit @ 1.. = admissions.units.len() - counters {
            warn!(without_limit, "pending charges of rules that are gone are dropped");
        }
    }

    /// Returns outstanding leases when this node ends, so that other nodes can use the units at once.
    pub(crate) async fn return_leases(&self) {
        let before = self.store.lease_stats();
        self.store.drain().await;
        let after = self.store.lease_stats();
        let units = after.units_returned - before.units_returned;
        if units > 0 {
            info!(units, "returned leased units");
        }
        let units = after.units_outstanding + after.units_lapsed - before.units_lapsed;
        if units > 0 {
            warn!(units, "leased units were not returned to the store in time");
        }
    }

    /// Logs why this node has not joined the store, unless the line about an outage names the cause.
    pub(crate) fn log_not_joined(&self) {
        if self.observer.health.outage().is_none() {
            let cause = self.join_failure_reason();
            warn!(cause, "the store is not joined yet; {LOCAL_DECISION_NOTE}");
        }
    }

    /// Why the store cannot be used, if known.
    pub(crate) fn join_failure_reason(&self) -> String {
        let error = self.redis.last_error().map(|error| error.to_string());
        let known = error.or_else(|| Some(self.observer.health.outage()?.cause.to_string()));
        known.unwrap_or_else(|| "it does not reply in time".to_owned())
    }

    /// Logs the progress of an outage of the store, what was written back after it, and a policy of the server that
    /// evicts counters.
    pub(super) fn report_health(&self) {
        self.observer.log_written_back();
        let policy = self.redis.eviction_policy();
        let mut logged = self.eviction_policy.lock();
        if let Some(policy) = policy.as_deref().filter(|policy| logged.as_deref() != Some(*policy)) {
            warn!(policy, "{EVICTION}");
            *logged = Some(policy.to_owned());
        }
        drop(logged);
        let (failures, unserved) = (self.store.failures(), self.redis.unserved());
        self.observer.series.set_unserved(unserved.is_some());
        let report = self.observer.health.set_unserved(Instant::now(), unserved.clone(), failures.total());
        if let (Some(_), Some(cause)) = (&report, &unserved) {
            failures.record(cause);
        }
        log_report(report);
        log_report(self.observer.health.tick(Instant::now(), failures.last(), failures.total()));
    }

    /// Logs why durable charges are not acknowledged, another line when the cause changes, and a last line when
    /// they are acknowledged again. `logged` is the last cause that was logged.
    pub(super) fn log_durability(&self, logged: &mut Option<UnacknowledgedError>) {
        let why = self.redis.unacknowledged();
        match (&why, &*logged) {
            (Some(why), None) => warn!("durable charges are not acknowledged: {why}; {LOCAL_DECISION_NOTE}"),
            (Some(why), Some(before)) if why != before => {
                warn!("durable charges are not acknowledged for another reason: {why}");
            }
            (None, Some(_)) => info!("durable charges are acknowledged again"),
            _ => return,
        }
        *logged = why;
    }

    pub(super) fn condition(&self) -> StoreCondition {
        let failures = self.store.failures();
        let counts = FailureKind::ALL.map(|kind| (kind, failures.of(kind)));
        StoreCondition {
            kind: "shared",
            is_exact: self.observer.series.is_exact() && !self.observer.series.is_open(),
            outage: self.observer.health.outage(),
            durability: self.redis.unacknowledged().map(|cause| ("replica", cause.to_string())),
            errors: counts.into_iter().filter(|(_, count)| *count > 0).collect(),
        }
    }

    pub(super) fn facts(&self) -> StoreFacts<'_> {
        StoreFacts::Shared {
            series: &self.observer.series,
            failures: self.store.failures(),
            clock: self.store.clock_reading(),
            durability: match self.redis.unacknowledged() {
                Some(_) => DurabilityState::Failing,
                None => DurabilityState::Satisfied,
            },
            overshoot: self.store.overshoot(),
            leases: self.store.lease_stats(),
        }
    }

    /// Waits while the secret is missing and a node that knows it is about to restore it.
    async fn await_restored_secret(&self) {
        let mut logged = false;
        loop {
            self.wait_connected().await;
            if !matches!(self.redis.awaits_secret().await, Ok(true)) {
                return;
            }
            if !logged {
                warn!("the store's secret was deleted; waiting for a running node to restore it");
                logged = true;
            }
            sleep(SECRET_RETRY_DELAY).await;
        }
    }

    /// Requests the secret until this node may count in the store. Reports why it may not.
    async fn agree_on_secret<F>(&self, request_secret: impl Fn() -> F) -> Secret
    where
        F: Future<Output = Result<Secret, SecretError>>,
    {
        let mut attempts = 0_u32;
        loop {
            attempts += 1;
            self.wait_connected().await;
            match request_secret().await {
                Ok(secret) => {
                    log_report(self.observer.health.joined(Instant::now(), self.store.failures().total()));
                    return secret;
                }
                Err(SecretError::Gone) => continue,
                // A single failed call may belong to a connection that was just replaced.
                Err(SecretError::Store(_)) if attempts == 1 => {}
                Err(SecretError::Store(fault)) => self.report_join_failure(&fault.cause()),
                Err(error) => {
                    self.redis.lock();
                    self.report_join_failure(&FailureCause::new(FailureKind::Other, error.to_string()));
                }
            }
            sleep(SECRET_RETRY_DELAY).await;
        }
    }

    /// Waits for a connection, and reports why there is none.
    async fn wait_connected(&self) {
        while timeout(CONNECT_REPORT_DELAY, self.redis.ready()).await.is_err() {
            if let Some(fault) = self.redis.last_error() {
                self.report_join_failure(&fault.cause());
            }
        }
    }

    /// Reports why this node has not joined the store. Does nothing once it has joined: then the breaker reports
    /// failed calls.
    fn report_join_failure(&self, cause: &FailureCause) {
        if self.redis.is_locked() {
            let failures = self.store.failures();
            failures.record(cause);
            log_report(self.observer.health.not_joined(Instant::now(), cause, failures.total()));
        }
    }
}
