//! Keeps limits working while the shared store is slow, down, or has lost counts.
//!
//! No decision waits for the store longer than its budget, none fails because the store does, and lost counts are
//! restored. From the outside in, behind [`Ahead`]:
//!
//! - Per shard: `shards` divides a request among the shards. `fallback` decides by this node's share
//!   (`local_fallback`) while a shard is down or not trusted, and by the newest state (`late`) while its reply is
//!   late. `guard` puts `deadline`, `bulkhead` and `breaker` around the shard.
//! - Per shard, in the background: `supervisor` pings, restores `mirror` and `open_permits` into a shard that lost
//!   them, and charges the units of `write_back`. `recovery_state` decides when a shard is trusted and tracks its
//!   `membership`, `store_clock` estimates its time, `clock_watch` checks its clock.
//! - Per node: `node_state` holds the mirror, the permits, the write-back queue, the late charges and
//!   `local_reservations`. All shards share it.
//!
//! Each module is a store around a store or a pure state machine. None knows which store is behind it. Time, tasks
//! and randomness come from a [`Runtime`], so the simulator runs this very code.

mod breaker;
mod bulkhead;
mod clock_watch;
mod deadline;
mod event;
mod eviction;
mod failure_counts;
mod fallback;
mod guard;
mod in_flight;
mod join;
mod late;
mod local_admissions;
mod local_fallback;
mod local_reservations;
mod membership;
mod mirror;
mod node_state;
mod open_permits;
mod owned_charge;
mod recovery_state;
mod refund;
mod settings;
mod shards;
mod share_usage;
mod store_clock;
mod striped_map;
mod supervisor;
mod write_back;

use std::sync::Arc;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{NodeId, RuleOptions, Shards};
use tidegate_core::subject::RuleName;

pub use self::breaker::{Breaker, BreakerChange};
pub use self::clock_watch::{ClockEvent, ClockLevel, ClockOffset, ClockReading, ClockTolerance, ClockWatch};
pub(crate) use self::deadline::within;
pub use self::event::{StoreEvent, Watcher};
pub use self::failure_counts::FailureCounts;
pub use self::fallback::FallbackStore;
pub(crate) use self::join::join_all;
pub use self::local_admissions::{LocalAdmissions, LocalPermit, PendingLimit, PendingUnits};
pub use self::open_permits::PermitSync;
pub(crate) use self::owned_charge::OwnedCharge;
pub use self::settings::{BreakerSettings, ResilienceSettings};
use self::shards::AggregateObserver;
pub use self::shards::{ShardObserver, ShardedStore};
use crate::ahead::Ahead;
use crate::runtime::Runtime;

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
