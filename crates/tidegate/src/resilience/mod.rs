//! A shared store that may be slow, down, or lose counts, and limits that work meanwhile.
//!
//! Two components around the shards of a store: [`Ahead`] decides without a call where it may, and [`ShardedStore`]
//! decides while a shard cannot. This module puts them together.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Charge, ChargeSet, Epoch, NodeId, PermitRequest, RuleOptions, Shards};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;

use crate::ahead::{Ahead, BackingStore};
use crate::runtime::Runtime;
use crate::shard::AggregateObserver;
pub use crate::shard::{
    Breaker, BreakerChange, BreakerSettings, ClockEvent, ClockLevel, ClockOffset, ClockReading, ClockTolerance,
    ClockWatch, FailureCounts, LocalAdmissions, LocalPermit, PendingLimit, PendingUnits, PermitSync,
    ResilienceSettings, ShardObserver, ShardedStore, StoreEvent, Watcher,
};

/// A shared store that may fail, with both components around it.
pub type Resilient<P, R> = Ahead<ShardedStore<P, R>, R>;

/// Puts both components around a store and its shards. The node id is that of the settings, or a random one.
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

impl<P: Shards + 'static, R: Runtime> BackingStore for ShardedStore<P, R> {
    fn epoch_of(&self, charge: &Charge<'_>) -> Option<Epoch> {
        self.0.epoch_of(charge)
    }

    fn budget_of(&self, set: &ChargeSet<'_>) -> Nanos {
        self.0.charge_budget_of(set)
    }

    fn nodes(&self) -> u64 {
        self.0.nodes()
    }

    fn has_late_charges(&self, counter: u128) -> bool {
        self.0.node_state.late.has_late_charges(counter)
    }
}

/// A permit from before a restart lasts no longer than this, to whatever time the wall clock was set meanwhile.
const MAX_RESTORED_TTL: Nanos = Nanos::from_secs(3_600);

impl<P: Shards + 'static, R: Runtime> Resilient<P, R> {
    /// The members as last listed by any shard, to be saved for the next start.
    pub fn members(&self) -> Vec<NodeId> {
        self.store().0.members()
    }

    /// What this node has admitted without the store, to be saved for the next start.
    pub fn local_admissions(&self) -> LocalAdmissions {
        let shards = &self.store().0;
        let (now, wall) = (shards.runtime.now(), shards.runtime.wall());
        let admissions = shards.node_state.local_admissions(shards.store_time(), now, wall);
        LocalAdmissions { without_store: !shards.is_exact(), ..admissions }
    }

    /// How often `local_admissions` changed. Time alone changes nothing that must be saved.
    pub fn admission_changes(&self) -> u64 {
        let shards = &self.store().0;
        2 * shards.node_state.admission_changes() + u64::from(shards.is_exact())
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
        let shards = &self.store().0;
        let (now, wall, node_state) = (shards.runtime.now(), shards.runtime.wall(), &shards.node_state);
        node_state.restarted_without_store.store(admissions.without_store, Ordering::Release);
        for permit in &admissions.permits {
            let request = PermitRequest {
                subject: permit.subject,
                rule: &permit.rule,
                holder: permit.holder,
                max_permits: u32::MAX,
                ttl: permit.until.since(wall).min(MAX_RESTORED_TTL),
                options: &options_of(&permit.rule),
                max_wait: None,
            };
            node_state.permits.restore(&request, permit.sync, now);
        }
        let found = admissions.units.iter().filter_map(|saved| {
            let (limit, options) = limit_of(saved)?;
            node_state.restore_units(saved, &limit, options);
            Some(())
        });
        found.count()
    }

    /// The offset between the clocks of this node and of a shard: that of the worst shard.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.store().0.clock_reading()
    }

    /// How often any shard failed, by kind, and the cause of the last failure.
    pub fn failures(&self) -> &FailureCounts {
        &self.store().0.settings.failures
    }
}
