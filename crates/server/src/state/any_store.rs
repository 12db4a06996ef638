//! The store of this process: its own memory, memory with a journal on disk, or a store that nodes share.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::clock::{Clock, SystemClock};
use tidegate::observe::{DurabilityState, JournalFacts, MemoryFacts, SharedSeries, StoreFacts};
use tidegate::resilience::{self, LocalAdmissions, PendingUnits, Resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::disk::{DiskStore, JournalCounterId, JournalEvent, JournalOpenError};
use tidegate::stores::memory::MemoryStore;
use tidegate::stores::redis::{Redis, RedisConfig, RedisStoreError, SecretError};
use tidegate::{Limiter, Secret};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, FailureCause, FailureKind, Inspection, LeaseReply, NodeId, Outcome, PermitReply,
    PermitRequest, Permits, Refund, Refunded, Reservations, Reserve, Restore, RuleOptions, RunId, Settle, Settled,
    SingleOutcomes, Store, StoreResult, UnacknowledgedError,
};
use tidegate_core::subject::RuleName;
use tidegate_rules::RuleSet;
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::logging::panics;
use crate::logging::rate_limited_log::RateLimitedLog;
use crate::state::data_dir;
use crate::state::store_events::StoreObserver;
use crate::state::store_health::{StoreHealth, StoreOutage};

/// The limiter of this process.
pub(crate) type ServerLimiter = Limiter<AnyStore>;

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
/// How requests are decided without the store.
pub(crate) const LOCAL_DECISION_NOTE: &str = "this node decides by its share of each limit";
/// How often to check whether decisions are exact.
const EXACT_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The line about refunds that lapse at the memory cap. Any client that refunds a lot can cause them.
static LAPSED_REFUNDS_LOG: RateLimitedLog = RateLimitedLog::new();

/// The line about decisions by shared counters. Any client that invents subjects can cause them.
static OVERFLOW_LOG: RateLimitedLog = RateLimitedLog::new();

/// The store.
pub(crate) enum AnyStore {
    Memory(MemoryStore<SystemClock>),
    Disk(DiskStore<SystemClock>),
    Shared(SharedStore),
}

/// A store that nodes share.
pub(crate) struct SharedStore {
    store: Resilient<Redis, TokioRuntime>,
    /// The same store without the layers around it.
    redis: Redis,
    series: Arc<SharedSeries>,
    health: Arc<StoreHealth>,
    /// Notified when the store has lost counts or the secret.
    loss_notify: Arc<Notify>,
}

/// The condition of a store. Contains no address, user or secret.
pub(crate) struct StoreCondition {
    /// The kind of store.
    pub(crate) kind: &'static str,
    /// Whether the store makes the decisions, not this node's share.
    pub(crate) is_exact: bool,
    /// The current outage, if there is one.
    pub(crate) outage: Option<StoreOutage>,
    /// Why counts are not as safe as `durability` in the rules requires, if they are not.
    pub(crate) durability: Option<DurabilityFailure>,
    /// The number of calls that failed since the start, by kind.
    pub(crate) errors: Vec<(FailureKind, u64)>,
}

/// Why counts are not as safe as their rules require. Rules without `durability` are not affected.
pub(crate) struct DurabilityFailure {
    /// Where the counts should be: `disk` or `replica`, as in `tidegate_durability_failing`.
    pub(crate) kind: &'static str,
    /// The cause. Contains no address, user or path.
    pub(crate) cause: String,
}

/// Why a shared store cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SharedStoreError {
    #[error("--store: {0}")]
    Address(#[from] RedisStoreError),
    #[error("no randomness: {0}")]
    NoRandomness(#[from] getrandom::Error),
}

impl AnyStore {
    pub(crate) fn in_memory(clock: SystemClock, cap: u64) -> Self {
        AnyStore::Memory(MemoryStore::with_cap(clock, cap))
    }

    /// Counters in memory, restored from the journal in `folder` with the limits of `rules`.
    pub(crate) fn on_disk(
        clock: SystemClock,
        cap: u64,
        folder: &Path,
        secret: &Secret,
        rules: &RuleSet,
    ) -> Result<Self, JournalOpenError> {
        let (memory, journal) = (MemoryStore::with_cap(clock, cap), data_dir::journal_path(folder));
        let limit = |of: JournalCounterId<'_>| of.limit_under(rules);
        let opened = panics::without_panic_reports(|| {
            DiskStore::open(&journal, secret, memory, limit, Box::new(log_journal_event))
        });
        let (store, found) = opened?;
        let (counters, without_rule) = (found.counters, found.without_rule);
        info!(counters, without_rule, "durable counts restored");
        Ok(AnyStore::Disk(store))
    }

    /// Counters in the Redis or Valkey at `url`. Nothing is counted there before [`join`] has the secret that the
    /// nodes share.
    pub(crate) fn shared(url: &str, settings: resilience::ResilienceSettings) -> Result<Self, SharedStoreError> {
        let bare = Redis::open(&RedisConfig {
            reply_timeout: settings.budget.duration().max(MAX_REPLY_TIME),
            ..RedisConfig::new(url)
        })?;
        bare.lock();
        let series = Arc::<SharedSeries>::default();
        let (lost, health) = (Arc::<Notify>::default(), Arc::<StoreHealth>::default());
        let observer = StoreObserver {
            series: Arc::clone(&series),
            health: Arc::clone(&health),
            failures: Arc::clone(&settings.failures),
            loss_notify: Arc::clone(&lost),
        };
        let watcher = Arc::new(move |event| observer.on_event(&event));
        let store = resilience::resilient(bare.clone(), TokioRuntime::new()?, settings, watcher);
        Ok(AnyStore::Shared(SharedStore { store, redis: bare, series, health, loss_notify: lost }))
    }

    /// Whether a decision never waits.
    pub(crate) fn never_wait(&self) -> bool {
        matches!(self, AnyStore::Memory(_))
    }

    /// Warns of decisions by the counters that new clients share at the memory cap. `reported` is the number of
    /// such decisions before.
    pub(crate) fn report_overflow(&self, reported: &mut u64) {
        let Some(store) = self.memory() else {
            return;
        };
        let overflowed = store.stats().overflow;
        if overflowed > *reported && OVERFLOW_LOG.count().is_some() {
            let decisions = overflowed - *reported;
            warn!(
                decisions,
                "counters are at --memory-cap: clients without one share a few, and are denied together; raise it, or limit \
                 by address, which clients cannot invent"
            );
            *reported = overflowed;
        }
    }

    /// Logs the progress of an outage of the store.
    pub(crate) fn report_health(&self) {
        let AnyStore::Shared(shared) = self else {
            return;
        };
        let failures = shared.store.failures();
        let (last, errors) = (failures.last(), failures.total());
        if let Some(report) = shared.health.tick(Instant::now(), last, errors) {
            report.log();
        }
    }

    /// The condition of the store, for the operator.
    pub(crate) fn condition(&self) -> StoreCondition {
        let kind = match self {
            AnyStore::Memory(_) => "memory",
            AnyStore::Disk(_) => "disk",
            AnyStore::Shared(_) => "shared",
        };
        let AnyStore::Shared(shared) = self else {
            return StoreCondition {
                kind,
                is_exact: true,
                outage: None,
                durability: self.durability_failure(),
                errors: Vec::new(),
            };
        };
        let failures = shared.store.failures();
        let counts = FailureKind::ALL.map(|kind| (kind, failures.of(kind)));
        StoreCondition {
            kind,
            is_exact: shared.series.is_exact() && !shared.series.is_open(),
            outage: shared.health.outage(),
            durability: self.durability_failure(),
            errors: counts.into_iter().filter(|(_, count)| *count > 0).collect(),
        }
    }

    fn durability_failure(&self) -> Option<DurabilityFailure> {
        let (kind, cause) = match self {
            AnyStore::Memory(_) => return None,
            AnyStore::Disk(store) => ("disk", store.journal_failure()?.as_ref().to_owned()),
            AnyStore::Shared(shared) => ("replica", shared.redis.unacknowledged()?.to_string()),
        };
        Some(DurabilityFailure { kind, cause })
    }

    /// Logs why durable charges are not acknowledged, another line when the cause changes, and a last line when
    /// they are acknowledged again. `logged` is the last cause that was logged.
    pub(crate) fn log_durability(&self, logged: &mut Option<UnacknowledgedError>) {
        let AnyStore::Shared(shared) = self else {
            return;
        };
        let why = shared.redis.unacknowledged();
        match (&why, &*logged) {
            (Some(why), None) => {
                warn!("durable charges are not acknowledged: {why}; {LOCAL_DECISION_NOTE}")
            }
            (Some(why), Some(before)) if why != before => {
                warn!("durable charges are not acknowledged for another reason: {why}");
            }
            (None, Some(_)) => info!("durable charges are acknowledged again"),
            _ => return,
        }
        *logged = why;
    }

    fn memory(&self) -> Option<&MemoryStore<SystemClock>> {
        match self {
            AnyStore::Memory(store) => Some(store),
            AnyStore::Disk(store) => Some(store.memory()),
            AnyStore::Shared(_) => None,
        }
    }

    /// Whether a refund lapsed because of the memory cap. Its receipt is still good then, but memory has no room to
    /// remember its id. On a node with a shared store this never happens.
    fn is_lapsed_at_cap(&self, lapsed: &Refund<'_>) -> bool {
        let memory = self.memory();
        memory.is_some_and(|memory| memory.clock().now() < lapsed.expires_at)
    }

    pub(crate) fn facts(&self) -> StoreFacts<'_> {
        match self {
            AnyStore::Shared(shared) => StoreFacts::Shared {
                series: &shared.series,
                failures: shared.store.failures(),
                clock: shared.store.clock_reading(),
                durability: match shared.redis.unacknowledged() {
                    Some(_) => DurabilityState::Failing,
                    None => DurabilityState::Satisfied,
                },
                overshoot: shared.store.overshoot(),
                leases: shared.store.leases(),
            },
            AnyStore::Memory(store) => StoreFacts::Memory(memory_facts(store)),
            AnyStore::Disk(store) => {
                let stats = store.journal_stats();
                let journal = JournalFacts {
                    commits: stats.commits,
                    written: stats.written,
                    lost: stats.lost,
                    failing: stats.failing,
                };
                StoreFacts::Memory(MemoryFacts { journal: Some(journal), ..memory_facts(store.memory()) })
            }
        }
    }
}

fn memory_facts(store: &MemoryStore<SystemClock>) -> MemoryFacts {
    let stats = store.stats();
    MemoryFacts {
        keys: stats.keys,
        bytes: stats.bytes,
        cap_bytes: stats.cap,
        overflowed: stats.overflow,
        swept: stats.swept,
        converted: stats.converted,
        clock_steps: stats.clock_steps,
        journal: None,
    }
}

/// Logs a change of the journal once.
fn log_journal_event(event: JournalEvent) {
    match event {
        JournalEvent::Failing(why) => {
            error!("{why}; durable counts are in memory alone, and rules with `on_store_failure: deny` deny")
        }
        JournalEvent::Recovered => {
            info!("durable counts are on disk again, including those of the outage")
        }
    }
}

/// Reads the secret of the nodes that share the store, or publishes `own` to them, and begins to count there. Until
/// then this node decides by its share of each limit. A store without a secret gets the secret that it was last
/// `known` by. Returns the secret once this node counts there.
pub(crate) async fn join(limiter: &ServerLimiter, own: Option<&Secret>, known: Option<&Secret>) -> Option<Secret> {
    let AnyStore::Shared(shared) = limiter.store() else {
        return None;
    };
    if own.is_none() {
        shared.await_restored_secret().await;
    }
    let secret = match (own, known) {
        (None, Some(known)) => {
            let restored = || shared.redis.restore_secret(known, false);
            shared.agree_on_secret(restored).await
        }
        _ => shared.agree_on_secret(|| shared.redis.share_secret(own)).await,
    };
    limiter.use_secret(secret.clone());
    shared.redis.unlock();
    Some(secret)
}

/// Waits until decisions are exact.
pub(crate) async fn wait_until_exact(limiter: &ServerLimiter) {
    let AnyStore::Shared(shared) = limiter.store() else {
        return;
    };
    while !shared.series.is_exact() {
        tokio::time::sleep(EXACT_POLL_INTERVAL).await;
    }
}

/// Restores the secret whenever the store has lost it; otherwise a new node would count under another one. Also
/// checks at intervals, because the key alone may have been deleted.
pub(crate) async fn maintain_secret(limiter: &ServerLimiter, mut secret: Secret, given: bool) {
    let AnyStore::Shared(shared) = limiter.store() else {
        return;
    };
    loop {
        let _lost_or_time = timeout(SECRET_CHECK_INTERVAL, shared.loss_notify.notified()).await;
        let theirs = shared.agree_on_secret(|| shared.redis.restore_secret(&secret, given)).await;
        if theirs.fingerprint_key() != secret.fingerprint_key() {
            warn!("the nodes of this store have another secret now; counting under that one");
            limiter.use_secret(theirs.clone());
            secret = theirs;
        }
        shared.redis.unlock();
    }
}

/// What this node has admitted without the shared store.
pub(crate) fn local_admissions(limiter: &ServerLimiter) -> LocalAdmissions {
    match limiter.store() {
        AnyStore::Shared(shared) => shared.store.local_admissions(),
        AnyStore::Memory(_) | AnyStore::Disk(_) => LocalAdmissions::default(),
    }
}

/// How often `local_admissions` changed otherwise than by time.
pub(crate) fn admission_changes(limiter: &ServerLimiter) -> u64 {
    match limiter.store() {
        AnyStore::Shared(shared) => shared.store.admission_changes(),
        AnyStore::Memory(_) | AnyStore::Disk(_) => 0,
    }
}

/// Restores what this node had admitted when it ended.
pub(crate) fn restore_local_admissions(limiter: &ServerLimiter, admissions: &LocalAdmissions) {
    let AnyStore::Shared(shared) = limiter.store() else {
        return;
    };
    let policy = limiter.policy().load();
    let limit_of = |of: &PendingUnits| {
        let counter = JournalCounterId { rule: &of.rule, rate: of.rate, tag: of.limit.tag, subject: of.subject };
        let of_rule = || {
            let rule = policy.rules.rule(of.rule.as_str())?;
            Some((counter.limit_under(&policy.rules)?, *rule.options()))
        };
        of_rule().or_else(|| Some((of.limit.compile()?, RuleOptions::DEFAULT)))
    };
    let options_of = |rule: &RuleName| policy.rules.rule(rule.as_str()).map_or(RuleOptions::DEFAULT, |r| *r.options());
    let counters = shared.store.restore_local_admissions(admissions, limit_of, options_of);
    let permits = admissions.permits.len();
    if counters + permits > 0 {
        info!(counters, permits, "what was admitted without the store counts on");
    }
    if let without_limit @ 1.. = admissions.units.len() - counters {
        warn!(without_limit, "pending charges of rules that are gone are dropped");
    }
}

/// Returns outstanding leases when this node ends, so that other nodes can use the units at once.
pub(crate) async fn return_leases(limiter: &ServerLimiter) {
    let AnyStore::Shared(shared) = limiter.store() else {
        return;
    };
    let before = shared.store.leases();
    shared.store.drain().await;
    let after = shared.store.leases();
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
pub(crate) fn log_not_joined(limiter: &ServerLimiter) {
    if limiter.store().condition().outage.is_some() {
        return;
    }
    let fault = join_failure_reason(limiter);
    warn!(fault, "the store is not joined yet; {LOCAL_DECISION_NOTE}");
}

/// Why the store cannot be used, if known.
pub(crate) fn join_failure_reason(limiter: &ServerLimiter) -> String {
    let AnyStore::Shared(shared) = limiter.store() else {
        return String::new();
    };
    let fault = shared.redis.last_error().map(|fault| fault.to_string());
    let outage_cause = || Some(shared.health.outage()?.cause.to_string());
    let known = fault.or_else(outage_cause);
    known.unwrap_or_else(|| "it does not reply in time".to_owned())
}

/// The nodes that share the store, once the membership is complete.
pub(crate) fn membership(limiter: &ServerLimiter) -> Vec<NodeId> {
    match limiter.store() {
        AnyStore::Shared(shared) => shared.store.members(),
        AnyStore::Memory(_) | AnyStore::Disk(_) => Vec::new(),
    }
}

impl SharedStore {
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
            tokio::time::sleep(SECRET_RETRY_DELAY).await;
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
            let cause = match request_secret().await {
                Ok(secret) => {
                    let errors = self.store.failures().total();
                    if let Some(report) = self.health.joined(Instant::now(), errors) {
                        report.log();
                    }
                    return secret;
                }
                Err(SecretError::Gone) => continue,
                // A single failed call may belong to a connection that was just replaced.
                Err(SecretError::Store(_)) if attempts == 1 => None,
                Err(SecretError::Store(fault)) => Some(fault.cause()),
                Err(error) => {
                    self.redis.lock();
                    Some(FailureCause::new(FailureKind::Other, error.to_string()))
                }
            };
            if let Some(cause) = cause {
                self.report_join_failure(&cause);
            }
            tokio::time::sleep(SECRET_RETRY_DELAY).await;
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
        if !self.redis.is_locked() {
            return;
        }
        let failures = self.store.failures();
        failures.record(cause);
        let (now, errors) = (Instant::now(), failures.total());
        if let Some(report) = self.health.not_joined(now, cause, errors) {
            report.log();
        }
    }
}

/// Calls one method on the store. Futures that may wait go to the heap: without that, every decision in memory,
/// which never waits, would carry space for them.
macro_rules! dispatch {
    ($self:ident, $store:ident => $reply:expr) => {
        match $self {
            AnyStore::Memory($store) => $reply.await,
            AnyStore::Disk($store) => Box::pin($reply).await,
            AnyStore::Shared(shared) => {
                let $store = &shared.store;
                Box::pin($reply).await
            }
        }
    };
}

impl Counters for AnyStore {
    fn evict_expired(&self) {
        match self {
            AnyStore::Memory(store) => store.evict_expired(),
            AnyStore::Disk(store) => store.evict_expired(),
            AnyStore::Shared(shared) => shared.store.evict_expired(),
        }
    }

    fn run_id(&self, options: &RuleOptions) -> Option<RunId> {
        match self {
            AnyStore::Memory(store) => store.run_id(options),
            AnyStore::Disk(store) => store.run_id(options),
            AnyStore::Shared(shared) => shared.store.run_id(options),
        }
    }

    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        dispatch!(self, store => store.charge(set))
    }

    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        dispatch!(self, store => store.charge_each(sets))
    }

    async fn charge_singles(&self, charges: &[Charge<'_>], replies: &mut SingleOutcomes) {
        dispatch!(self, store => store.charge_singles(charges, replies));
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        dispatch!(self, store => store.peek(set))
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let refunded = dispatch!(self, store => store.refund(refund));
        if matches!(refunded, Ok(Refunded::Lapsed))
            && self.is_lapsed_at_cap(refund)
            && let Some(times) = LAPSED_REFUNDS_LOG.count()
        {
            warn!(times, "not refunded: at --memory-cap there is no room to remember that a receipt was used");
        }
        refunded
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        dispatch!(self, store => store.draw(charge))
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        dispatch!(self, store => store.force(set))
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        dispatch!(self, store => store.restore(restores))
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        dispatch!(self, store => store.inspect(set))
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        dispatch!(self, store => store.reset(set))
    }
}

impl Permits for AnyStore {
    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        dispatch!(self, store => store.acquire(permit))
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        dispatch!(self, store => store.renew(permit))
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        dispatch!(self, store => store.release(permit))
    }
}

impl Reservations for AnyStore {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        dispatch!(self, store => store.reserve(reserve))
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        dispatch!(self, store => store.settle(settle))
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::units::Nanos;

    use super::*;

    /// Valid receipts at the cap and late receipts both get `lapsed`. The log line counts only the valid ones: only
    /// they are a reason to raise the cap.
    #[tokio::test]
    async fn refunds_that_lapse_at_the_memory_cap_do_not_count_as_late() {
        const MAX_REFUNDS: u128 = 1_000_000;
        let clock = SystemClock::new();
        let counters = AnyStore::in_memory(clock, 1 << 20);
        let good = clock.now().plus(Nanos::from_secs(3_600));
        let refund = |id, expires_at| Refund { id, charged_at: clock.now(), expires_at, set: ChargeSet::default() };
        let late = refund(MAX_REFUNDS, Nanos::ZERO);
        assert_eq!(counters.refund(&late).await.unwrap(), Refunded::Lapsed);
        assert!(!counters.is_lapsed_at_cap(&late));
        let mut done = 0;
        while counters.refund(&refund(done, good)).await.unwrap() == Refunded::Done {
            done += 1;
            assert!(done < MAX_REFUNDS, "the cap bounds nothing");
        }
        assert!(done > 0);
        assert!(counters.is_lapsed_at_cap(&refund(done, good)));
        let again = counters.refund(&refund(0, good)).await.unwrap();
        assert_eq!(again, Refunded::Already, "a used receipt stays used");
    }
}
