//! Keeps limits working while the shared store is slow, down, or has lost counts.
//!
//! No decision waits for the store longer than its budget, none fails because the store does, and lost counts are
//! restored. From the outside in:
//!
//! - Ahead of the store: `deny_cache` remembers denials, `lease` decides by leases, `lenient` by the last synced
//!   state. `split_set` separates the charges that these decide from the rest of a set.
//! - The shared store and its shards: [`crate::shard`].
//!
//! Time, tasks and randomness come from a [`Runtime`], so the simulator runs this very code.

mod deny_cache;
mod lease;
mod lenient;
mod split_set;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{NodeId, RuleOptions, Shards};
use tidegate_core::subject::RuleName;

pub use self::deny_cache::DenyCache;
pub use self::lease::{LeaseStats, LeasingStore, Lender};
pub use self::lenient::{LenientStore, NodeCountFn, Overshoot};
use crate::runtime::Runtime;
pub(crate) use crate::shard::{AggregateObserver, OwnedCharge, join_all, within};
pub use crate::shard::{
    Breaker, BreakerChange, BreakerSettings, ClockEvent, ClockLevel, ClockOffset, ClockReading, ClockTolerance,
    ClockWatch, FailureCounts, LocalAdmissions, LocalPermit, PendingLimit, PendingUnits, PermitSync,
    ResilienceSettings, ShardObserver, ShardedStore, StoreEvent, Watcher,
};

/// A shared store that may fail, with all layers of this module around it.
pub type Resilient<P, R> = DenyCache<LeasingStore<LenientStore<ShardedStore<P, R>, R>, R>, R>;

/// Puts all layers around a store and its shards, in order. The node id is that of the settings, or a random one.
pub fn resilient<P: Shards + 'static, R: Runtime>(
    shards: P,
    runtime: R,
    settings: ResilienceSettings,
    watcher: Watcher,
) -> Resilient<P, R> {
    let observer = Arc::new(AggregateObserver::new(watcher));
    resilient_shards(shards, runtime, settings, observer)
}

/// Does the same as [`resilient`], and reports the events of each shard.
pub fn resilient_shards<P: Shards + 'static, R: Runtime>(
    shards: P,
    runtime: R,
    settings: ResilienceSettings,
    observer: Arc<dyn ShardObserver>,
) -> Resilient<P, R> {
    let (max_denials, max_denial_age) = (settings.max_denials, settings.max_denial_age);
    let (max_leases, max_views) = (settings.max_leases, settings.max_views);
    let me = settings.me.unwrap_or_else(|| NodeId(runtime.random()));
    let sharded = ShardedStore::new(shards, runtime.clone(), me, settings, observer);
    let node_source = sharded.clone();
    let nodes: NodeCountFn = Arc::new(move || node_source.nodes());
    let late = sharded.clone();
    let has_late_charges = Arc::new(move |counter| late.has_late_charges(counter));
    let lenient = LenientStore::new(sharded, runtime.clone(), max_views, nodes);
    let lease = LeasingStore::new(lenient, runtime.clone(), max_leases);
    DenyCache::new(lease, runtime, max_denials, max_denial_age).bypass_when(has_late_charges)
}

impl<P: Shards + 'static, R: Runtime> Resilient<P, R> {
    /// The members as last listed, to be saved for the next start.
    pub fn members(&self) -> Vec<NodeId> {
        self.sharded().members()
    }

    /// What this node has admitted without the store, to be saved for the next start.
    pub fn local_admissions(&self) -> LocalAdmissions {
        self.sharded().local_admissions()
    }

    /// How often `local_admissions` changed. Time alone changes nothing that must be saved.
    pub fn admission_changes(&self) -> u64 {
        self.sharded().admission_changes()
    }

    /// Restores what this node had admitted without the store before a restart. `limit_of` finds the limit and the
    /// options that the rule of some units has now, `options_of` the options of the rule of a permit. Returns how many
    /// of the counters with units still have a rule.
    pub fn restore_local_admissions(
        &self,
        admissions: &LocalAdmissions,
        limit_of: impl Fn(&PendingUnits) -> Option<(Limit, RuleOptions)>,
        options_of: impl Fn(&RuleName) -> RuleOptions,
    ) -> usize {
        self.sharded().restore_local_admissions(admissions, limit_of, options_of)
    }

    /// The offset between the store's clock and this node's.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.sharded().clock_reading()
    }

    /// By how many units each lenient rule may be exceeded, as of the last sync.
    pub fn overshoot(&self) -> BTreeMap<Box<str>, Overshoot> {
        self.store().store().overshoot()
    }

    /// How often the store failed, by kind, and the cause of the last failure.
    pub fn failures(&self) -> &FailureCounts {
        self.sharded().failures()
    }

    /// How many units were drawn, returned, lapsed and are outstanding.
    pub fn leases(&self) -> LeaseStats {
        self.store().stats()
    }

    /// Shuts down cleanly: returns all leases and syncs all lenient charges. From then on the store decides
    /// everything.
    pub async fn drain(&self) {
        self.store().return_all().await;
        self.store().store().flush().await;
    }

    fn sharded(&self) -> &ShardedStore<P, R> {
        self.store().store().store()
    }
}
