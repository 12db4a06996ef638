//! A shared store that may be slow, down, or lose counts, and limits that work meanwhile.
//!
//! Two components around the shards of a store: [`Ahead`] decides without a call where it may, and [`ShardedStore`]
//! decides while a shard cannot. This module puts them together.

use std::sync::Arc;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{NodeId, RuleOptions, Shards};
use tidegate_core::subject::RuleName;

use crate::ahead::Ahead;
use crate::runtime::Runtime;
pub(crate) use crate::shard::{AggregateObserver, InFlightGuard, OwnedCharge, join_all, within};
pub use crate::shard::{
    Breaker, BreakerChange, BreakerSettings, ClockEvent, ClockLevel, ClockOffset, ClockReading, ClockTolerance,
    ClockWatch, FailureCounts, LocalAdmissions, LocalPermit, PendingLimit, PendingUnits, PermitSync,
    ResilienceSettings, ShardObserver, ShardedStore, StoreEvent, Watcher,
};

/// A shared store that may fail, with all layers of this module around it.
pub type Resilient<P, R> = Ahead<ShardedStore<P, R>, R>;

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
    let (max_entries, max_denial_age) = (settings.max_ahead, settings.max_denial_age);
    let me = settings.me.unwrap_or_else(|| NodeId(runtime.random()));
    let sharded = ShardedStore::new(shards, runtime.clone(), me, settings, observer);
    Ahead::new(sharded, runtime, max_entries, max_denial_age)
}

impl<P: Shards + 'static, R: Runtime> Resilient<P, R> {
    /// The members as last listed, to be saved for the next start.
    pub fn members(&self) -> Vec<NodeId> {
        self.store().members()
    }

    /// What this node has admitted without the store, to be saved for the next start.
    pub fn local_admissions(&self) -> LocalAdmissions {
        self.store().local_admissions()
    }

    /// How often `local_admissions` changed. Time alone changes nothing that must be saved.
    pub fn admission_changes(&self) -> u64 {
        self.store().admission_changes()
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
        self.store().restore_local_admissions(admissions, limit_of, options_of)
    }

    /// The offset between the store's clock and this node's.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.store().clock_reading()
    }

    /// How often the store failed, by kind, and the cause of the last failure.
    pub fn failures(&self) -> &FailureCounts {
        self.store().failures()
    }
}
