//! Getting along without the store: no decision waits for it longer than its budget, none fails
//! because it did, and what it forgot is put back.
//!
//! From the outside in: `deny_cache` remembers refusals; `lease` decides by units drawn in advance, of
//! sets that it may have to `split_set`; `spread` divides a request among the parts of
//! a store; `fallback` decides by this node's share of each limit (`local_fallback`) when a part cannot be asked
//! or believed, and by the newest state seen when its reply is `late`; `guard` is the part behind `deadline`, `bulkhead` and `breaker`. Beside them `supervisor`
//! pings, puts the `mirror` and the `open_permits` back into a part that lost them, and charges what is
//! `write_back`; these, and what was `local_reservations` here, are the `node_state` that all parts share. `recovery_state` knows
//! when a part may be believed and who else shares it; `store_clock` tells its time and `clock_watch`
//! whether it is off. Each is a store around a store or a pure state machine, and none knows which store it
//! is. Time, tasks and chance come from a [`Runtime`], so the simulator runs this very code.

mod breaker;
mod bulkhead;
mod clock_watch;
mod deadline;
mod deny_cache;
mod event;
mod eviction;
mod failure_counts;
mod fallback;
mod guard;
mod in_flight;
mod join;
mod late;
mod lease;
mod lenient;
mod local_fallback;
mod local_reservations;
mod membership;
mod mirror;
mod node_state;
mod open_permits;
mod owned_charge;
mod pending_units;
mod recovery_state;
mod refund;
mod settings;
mod shards;
mod split_set;
mod store_clock;
mod striped_map;
mod supervisor;
mod write_back;

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{NodeId, RuleOptions, Shards};

pub use self::breaker::{Breaker, BreakerChange};
pub use self::clock_watch::{
    ClockEvent, ClockLevel, ClockOffset, ClockReading, ClockTolerance, ClockWatch,
};
pub use self::deny_cache::DenyCache;
pub use self::event::{StoreEvent, Watcher};
pub use self::failure_counts::FailureCounts;
pub use self::fallback::FallbackStore;
pub(crate) use self::join::join_all;
pub use self::lease::{LeaseStats, LeasingStore, Lender};
pub use self::lenient::{LenientStore, NodeCountFn, Overshoot};
pub use self::pending_units::{PendingLimit, PendingUnits};
pub use self::settings::{BreakerSettings, ResilienceSettings};
use self::shards::AggregateObserver;
pub use self::shards::{ShardObserver, ShardedStore};
use crate::runtime::Runtime;

/// A shared store that may fail, with everything around it.
pub type Resilient<P, R> = DenyCache<LeasingStore<LenientStore<ShardedStore<P, R>, R>, R>, R>;

/// Puts everything around a store and its parts, in order. The node it makes has the id that the
/// settings name, else one of its own.
pub fn resilient<P: Shards + 'static, R: Runtime>(
    shards: P,
    runtime: R,
    settings: ResilienceSettings,
    watcher: Watcher,
) -> Resilient<P, R> {
    let observer = Arc::new(AggregateObserver::new(watcher));
    resilient_shards(shards, runtime, settings, observer)
}

/// The same, for someone who wants to know of each part.
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
    /// The nodes as last listed, to be kept for the next start.
    pub fn members(&self) -> Vec<NodeId> {
        self.sharded().members()
    }

    /// What this node has admitted and the store does not count yet, to be kept for the next start.
    pub fn pending(&self) -> Vec<PendingUnits> {
        self.sharded().pending()
    }

    /// Goes on with what was pending before a restart. `limit_of` finds the limit that its rule has now, and
    /// the rule's terms. How many counters of it have a rule.
    pub fn restore_pending(
        &self,
        pending: &[PendingUnits],
        limit_of: impl Fn(&PendingUnits) -> Option<(Limit, RuleOptions)>,
    ) -> usize {
        self.sharded().restore_pending(pending, limit_of)
    }

    /// How far the store's clock and this node's are apart.
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.sharded().clock_reading()
    }

    /// By how many units each lenient rule may be exceeded, as of a moment ago.
    pub fn overshoot(&self) -> BTreeMap<Box<str>, Overshoot> {
        self.store().store().overshoot()
    }

    /// How often the store failed, by kind, and why it failed last.
    pub fn failures(&self) -> &FailureCounts {
        self.sharded().failures()
    }

    /// What became of units drawn in advance.
    pub fn leases(&self) -> LeaseStats {
        self.store().stats()
    }

    /// Ends well: what was drawn in advance goes back, what was admitted by hearsay is told, and from now
    /// on the store is asked about everything.
    pub async fn drain(&self) {
        self.store().return_all().await;
        self.store().store().flush().await;
    }

    fn sharded(&self) -> &ShardedStore<P, R> {
        self.store().store().store()
    }
}
