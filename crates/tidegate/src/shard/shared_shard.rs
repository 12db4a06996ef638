//! One shard as this node sees it: its state, and what is published of it for decisions.
//!
//! `decisions`, `verbs` and `late_calls` decide, and `replies` looks at what comes back. `recovery` and its modules run in
//! the background, never on the path of a decision. All of them call the store through `call`.
//!
//! Invariants: the state of recovery changes only in `update_recovery_state`, which publishes the membership under
//! the same lock; decisions read only what is published. At most one task recovers, and at most one pushes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tidegate_core::algorithms::Division;
use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, Epoch, HashSlot, NodeId, Outcome, Probe, Store};
use tidegate_core::units::Nanos;

use crate::runtime::Runtime;
use crate::shard::call::in_flight::InFlight;
use crate::shard::event::{StoreEvent, Watcher};
use crate::shard::node::NodeState;
use crate::shard::recovery;
use crate::shard::recovery::clock_watch::{ClockReading, ClockWatch};
use crate::shard::recovery::membership::Membership;
use crate::shard::recovery::recovery_state::RecoveryState;
use crate::shard::recovery::store_clock::StoreClock;
use crate::shard::settings::ResilienceSettings;

/// Counters in one call to the store: enough to fill a packet, few enough to be quick.
pub(crate) const MAX_PER_CALL: usize = 32;
/// Hash slots in flight at once, one call each: together they are still quick.
pub(crate) const MAX_CONCURRENT_CALLS: usize = 32;

/// One shard as this node sees it. `node_state` is shared with the node's other shards; it touches only the counters
/// that its shard holds.
pub(crate) struct SharedShard<S, R> {
    /// `None`: there is no store to call.
    pub(super) store: Option<Arc<S>>,
    pub(super) calls: Arc<InFlight>,
    pub(super) refunds_in_flight: Arc<AtomicUsize>,
    pub(crate) runtime: R,
    pub(crate) node_state: Arc<NodeState>,
    pub(crate) clock: StoreClock,
    /// Compares the shard's clock with this node's wall clock.
    pub(super) clock_watch: Mutex<ClockWatch>,
    /// Changed only through `update_recovery_state`, which publishes the membership.
    pub(super) recovery_state: Mutex<RecoveryState>,
    /// Published from `recovery_state` for decisions: the nodes and the epoch.
    pub(super) membership: ArcSwap<Membership>,
    /// Published for decisions: whether the store is trusted. Set only after the push that follows a recovery.
    pub(super) trusted: AtomicBool,
    pub(super) settings: ResilienceSettings,
    pub(super) watcher: Watcher,
    /// When the last ping that confirmed the epoch was sent.
    pub(super) epoch_confirmed_at: AtomicU64,
    pub(super) recovering: AtomicBool,
    pub(super) pushing: AtomicBool,
    pub(super) ping_queued: AtomicBool,
    pub(super) syncing_permits: AtomicBool,
    /// When the newest ping with a reply was sent.
    pub(super) last_ping_reply: AtomicU64,
    /// When the breaker last closed, as of the last ping.
    pub(super) last_closed_at: AtomicU64,
    /// When a node that had ended without its store first trusted it.
    pub(super) reached_at: AtomicU64,
}

/// What may be done with a shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ShardState {
    /// Nothing: the breaker is open, and only pings reach it. This node's share decides.
    Down,
    /// It replies and may lack counts: this node restores what it remembers, and its share decides.
    Recovering,
    /// It decides.
    Exact,
}

/// When a request was sent, by the local clock, and the epoch of the store at that time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestStamp {
    pub(crate) at: Nanos,
    pub(crate) epoch: Option<Epoch>,
}

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// A shard without a status yet, which is pinged from now on; or no shard at all. `time` is its probable time.
    pub(crate) fn new(
        store: Option<S>,
        node_state: Arc<NodeState>,
        runtime: R,
        me: NodeId,
        time: Nanos,
        settings: ResilienceSettings,
        watcher: Watcher,
    ) -> Arc<Self> {
        let recovery_state = RecoveryState::new(me, &settings);
        let shard = Arc::new(SharedShard {
            membership: ArcSwap::from_pointee(recovery_state.membership()),
            recovery_state: Mutex::new(recovery_state),
            store: store.map(Arc::new),
            calls: InFlight::new(&settings, Arc::clone(&watcher)),
            refunds_in_flight: Arc::default(),
            node_state,
            clock: StoreClock::new(runtime.now(), time),
            clock_watch: Mutex::new(ClockWatch::new(settings.clock_tolerance)),
            trusted: AtomicBool::new(false),
            runtime,
            settings,
            watcher,
            recovering: AtomicBool::new(false),
            pushing: AtomicBool::new(false),
            ping_queued: AtomicBool::new(false),
            syncing_permits: AtomicBool::new(false),
            last_ping_reply: AtomicU64::new(0),
            last_closed_at: AtomicU64::new(0),
            reached_at: AtomicU64::new(0),
            epoch_confirmed_at: AtomicU64::new(0),
        });
        if shard.store.is_some() {
            let pings = recovery::run_pings(Arc::downgrade(&shard), shard.runtime.clone());
            shard.runtime.spawn(pings);
        }
        shard
    }

    /// The store's time, as this node estimates it.
    pub(crate) fn store_time(&self) -> Nanos {
        self.clock.at(self.runtime.now())
    }

    /// What may be done with the shard.
    pub(crate) fn state(&self) -> ShardState {
        match (self.breaker_is_open(), self.is_trusted()) {
            (true, _) => ShardState::Down,
            (false, true) => ShardState::Exact,
            (false, false) => ShardState::Recovering,
        }
    }

    /// Whether the shard was trusted when it last replied. It may be down by now: then a call fails at once.
    pub(crate) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Acquire)
    }

    /// The shard's epoch while it is trusted about the counter of `charge`, `None` otherwise. A shard that reports no
    /// epoch has a constant one.
    pub(crate) fn epoch_of(&self, charge: &Charge<'_>) -> Option<Epoch> {
        let trusted = !self.bypasses_store(&ChargeSet::of_one(charge.clone()));
        trusted.then(|| self.epoch().unwrap_or(Epoch(0)))
    }

    /// Decides by this node's shares.
    pub(crate) fn decide_by_share(&self, set: &ChargeSet<'_>, intent: ChargeIntent) -> Outcome {
        self.node_state.decide_by_share(set, intent, &self.membership.load(), self.store_time())
    }

    /// This node's share of a counter's limits.
    pub(crate) fn division(&self, counter: u128) -> Division {
        self.membership.load().division(counter)
    }

    /// Whether a set must be decided without the store although the store may reply: the shard is not trusted, or a
    /// counter has units of an outage to write back. The breaker is consulted later, by the call.
    pub(crate) fn bypasses_store(&self, set: &ChargeSet<'_>) -> bool {
        let write_back = &self.node_state.write_back;
        !self.is_trusted() || set.charges.iter().any(|charge| write_back.must_decide_locally(charge.counter()))
    }

    /// The stamp of a request that is sent now.
    pub(crate) fn sent_now(&self) -> RequestStamp {
        RequestStamp { at: self.runtime.now(), epoch: self.epoch() }
    }

    /// Changes the state of recovery, and publishes what decisions need of it.
    pub(super) fn update_recovery_state<T>(&self, change: impl FnOnce(&mut RecoveryState) -> T) -> T {
        let mut recovery_state = self.recovery_state.lock();
        let result = change(&mut recovery_state);
        let membership = recovery_state.membership();
        // Published under the lock, so that changes are published in their order.
        if **self.membership.load() != membership {
            self.membership.store(Arc::new(membership));
        }
        result
    }

    /// The store's time was `at`, in an exchange that has just ended and took `took`.
    pub(crate) fn check_clock(&self, took: Nanos, at: Nanos) {
        let sent = self.runtime.wall().since(took);
        let events = self.clock_watch.lock().record(sent, took, at);
        for event in events {
            (self.watcher)(StoreEvent::Clock(event));
        }
    }

    /// The offset of the clocks, once there was a reply.
    pub(crate) fn clock_reading(&self) -> Option<ClockReading> {
        self.clock_watch.lock().reading()
    }

    /// The members as last listed, once the list is complete.
    pub(crate) fn members(&self) -> Vec<NodeId> {
        self.recovery_state.lock().members()
    }
}

/// Groups items by hash slot, in the order in which the hash slots first occur: a call is for one hash slot.
pub(crate) fn by_hash_slot<T: Clone>(all: &[(HashSlot, T)]) -> Vec<Vec<T>> {
    let mut positions: BTreeMap<HashSlot, usize> = BTreeMap::new();
    let mut groups: Vec<Vec<T>> = Vec::new();
    for (hash_slot, one) in all {
        let position = *positions.entry(*hash_slot).or_insert(groups.len());
        if position == groups.len() {
            groups.push(Vec::new());
        }
        groups[position].push(one.clone());
    }
    groups
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use tidegate_core::store::StoreStatus;

    use super::*;
    use crate::runtime::TokioRuntime;
    use crate::stores::redis::RedisStore;

    pub(super) fn shard() -> Arc<SharedShard<RedisStore, TokioRuntime>> {
        let settings = ResilienceSettings::default();
        let node_state = Arc::new(NodeState::new(Nanos::ZERO, &settings));
        let runtime = TokioRuntime::new().expect("the system provides randomness");
        let watcher: Watcher = Arc::new(|_| {});
        let me = NodeId(1);
        SharedShard::new(None, node_state, runtime, me, Nanos::ZERO, settings, watcher)
    }

    /// During an outage every decision of every core once waited for this lock, and hashed all nodes inside it. With
    /// the lock in the path of a decision, this test never ends.
    #[test]
    pub(super) fn a_decision_does_not_wait_for_the_lock_of_the_recovery_state() {
        let shard = shard();
        let _held = shard.recovery_state.lock();
        assert_eq!(shard.division(7).nodes, 8, "the default");
        assert!(!shard.is_new_epoch(Epoch(7)));
    }

    #[test]
    pub(super) fn a_change_of_the_recovery_state_is_published() {
        let shard = shard();
        let status =
            StoreStatus { epoch: Epoch(7), at: Nanos::ZERO, complete_until: Nanos::ZERO, heartbeats: Vec::new() };
        for second in [1, 2] {
            let now = Nanos::from_secs(second);
            shard.update_recovery_state(|recovery_state| recovery_state.on_status(&status, now, || false));
        }
        assert!(shard.is_new_epoch(Epoch(8)) && !shard.is_new_epoch(Epoch(7)));
        let division = shard.division(7);
        assert_eq!((division.nodes, division.rank), (1, Some(0)));
    }
}
