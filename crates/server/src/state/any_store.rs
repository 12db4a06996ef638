//! The store of this process: its own memory, memory with a journal on disk, or a store that nodes share.

use std::path::Path;

use tidegate::clock::{Clock, SystemClock};
use tidegate::observe::{JournalFacts, MemoryFacts, StoreFacts};
use tidegate::resilience::ResilienceSettings;
use tidegate::stores::disk::{DiskStore, JournalCounterId, JournalEvent, JournalOpenError};
use tidegate::stores::memory::MemoryStore;
use tidegate::{Limiter, Secret};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits, Refund,
    Refunded, Reservations, Reserve, Restore, RuleOptions, RunId, SINGLE_BATCH, Settle, Settled, SingleOutcomes, Store,
    StoreResult, UnacknowledgedError,
};
use tidegate_core::units::Nanos;
use tidegate_rules::RuleSet;
use tracing::{error, info, warn};

use crate::logging::{RateLimitedLog, panics};
use crate::state::data_dir;
use crate::state::joined_store::JoinedStore;
use crate::store_condition::StoreCondition;

/// The limiter of this process.
pub(crate) type ServerLimiter = Limiter<AnyStore>;

/// The line about refunds that lapse at the memory cap. Any client that refunds a lot can cause them.
static LAPSED_REFUNDS_LOG: RateLimitedLog = RateLimitedLog::new();

/// The line about decisions by shared counters. Any client that invents subjects can cause them.
static OVERFLOW_LOG: RateLimitedLog = RateLimitedLog::new();

/// The store.
pub(crate) enum AnyStore {
    Memory(MemoryStore<SystemClock>),
    Disk(DiskStore<SystemClock>),
    Shared(JoinedStore),
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

    /// Counters in the Redis or Valkey at `url`, or why they cannot be there.
    pub(crate) fn shared_at(url: &str, settings: ResilienceSettings) -> Result<Self, String> {
        JoinedStore::open(url, settings).map(AnyStore::Shared)
    }

    /// The store that nodes share, if it is one.
    pub(crate) fn shared(&self) -> Option<&JoinedStore> {
        match self {
            AnyStore::Shared(shared) => Some(shared),
            AnyStore::Memory(_) | AnyStore::Disk(_) => None,
        }
    }

    /// Whether a decision never waits.
    pub(crate) fn never_wait(&self) -> bool {
        matches!(self, AnyStore::Memory(_))
    }

    /// How many requests are decided together. In memory so many fit the first cache of the processor. A store that
    /// nodes wait for gets all of them at once: they share one wait.
    pub(crate) fn batch_size(&self) -> usize {
        if self.never_wait() { SINGLE_BATCH } else { usize::MAX }
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

    /// Logs the progress of an outage of a shared store, and whether its durable charges are acknowledged. `logged`
    /// is the last cause that was logged why they are not.
    pub(crate) fn report_health(&self, logged: &mut Option<UnacknowledgedError>) {
        if let AnyStore::Shared(shared) = self {
            shared.log_durability(logged);
            shared.report_health();
        }
    }

    /// The condition of the store, for the operator.
    pub(crate) fn condition(&self) -> StoreCondition {
        let (kind, durability) = match self {
            AnyStore::Shared(shared) => return shared.condition(),
            AnyStore::Memory(_) => ("memory", None),
            AnyStore::Disk(store) => ("disk", store.journal_failure().map(|cause| ("disk", cause.as_ref().to_owned()))),
        };
        StoreCondition { kind, is_exact: true, outage: None, durability, errors: Vec::new() }
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
            AnyStore::Shared(shared) => shared.facts(),
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

/// Methods that only call the one of the store.
macro_rules! forward {
    ($($name:ident($($argument:ident: $type:ty),*) -> $reply:ty;)*) => {$(
        async fn $name(&self, $($argument: $type),*) -> $reply {
            dispatch!(self, store => store.$name($($argument),*))
        }
    )*};
}

impl Counters for AnyStore {
    forward! {
        charge(set: &ChargeSet<'_>) -> StoreResult<Outcome>;
        charge_singles(charges: &[Charge<'_>], replies: &mut SingleOutcomes) -> ();
        peek(set: &ChargeSet<'_>) -> StoreResult<Outcome>;
        draw(charge: &Charge<'_>) -> StoreResult<LeaseReply>;
        force(set: &ChargeSet<'_>) -> StoreResult<Outcome>;
        restore(restores: &[Restore<'_>]) -> StoreResult<()>;
        inspect(set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>>;
        reset(set: &ChargeSet<'_>) -> StoreResult<u64>;
    }

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

    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        dispatch!(self, store => store.charge_each(sets))
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
}

impl Permits for AnyStore {
    fn acquire_budget<'o>(&self, rules: impl Iterator<Item = &'o RuleOptions> + Clone) -> Option<Nanos> {
        match self {
            AnyStore::Memory(store) => store.acquire_budget(rules),
            AnyStore::Disk(store) => store.acquire_budget(rules),
            AnyStore::Shared(shared) => shared.store.acquire_budget(rules),
        }
    }

    forward! {
        acquire(permit: &PermitRequest<'_>) -> StoreResult<PermitReply>;
        renew(permit: &PermitRequest<'_>) -> StoreResult<PermitReply>;
        release(permit: &PermitRequest<'_>) -> StoreResult<()>;
    }
}

impl Reservations for AnyStore {
    forward! {
        reserve(reserve: &Reserve<'_>) -> StoreResult<Outcome>;
        settle(settle: &Settle<'_>) -> StoreResult<Settled>;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list of 1,000 checks took 63 round trips, which are ten seconds from another region.
    #[tokio::test]
    async fn a_shared_store_gets_a_list_at_once() {
        let shared = AnyStore::shared_at("redis://127.0.0.1:1", ResilienceSettings::default()).unwrap();
        assert_eq!(shared.batch_size(), usize::MAX);
        assert_eq!(AnyStore::in_memory(SystemClock::new(), 1 << 20).batch_size(), SINGLE_BATCH);
    }

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
