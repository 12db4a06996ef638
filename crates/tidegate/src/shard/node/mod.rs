//! The state of one node beside its stores: the last known state of each counter, and what the node admitted
//! without a store.
//!
//! All shards share one `NodeState`, because counters move between shards and a shard may be gone for good: the
//! state must outlive it. It does not know which shard a counter is in.

mod eviction;
pub(crate) mod local_admissions;
pub(crate) mod local_fallback;
mod local_reservations;
mod local_units;
pub(crate) mod mirror;
pub(crate) mod open_permits;
mod released_permits;
mod share_usage;
pub(crate) mod striped_map;
pub(crate) mod write_back;

use std::sync::atomic::AtomicBool;

use tidegate_core::units::Nanos;

use crate::clock::ManualClock;
use crate::shard::late::LateCharges;
use crate::shard::node::local_reservations::LocalReservations;
use crate::shard::node::mirror::Mirror;
use crate::shard::node::open_permits::OpenPermits;
use crate::shard::node::share_usage::ShareUsage;
use crate::shard::node::write_back::WriteBackQueue;
use crate::shard::settings::ResilienceSettings;
use crate::stores::memory::{MemoryStore, TABLES_PER_SWEEP};

/// The state that a node shares among its shards.
pub(crate) struct NodeState {
    /// The last known state of each counter.
    pub(crate) mirror: Mirror,
    /// Charges whose replies are late.
    pub(crate) late: LateCharges,
    /// The counters of this node's shares, which decide without a store.
    shares: MemoryStore<ManualClock>,
    /// What the shares have admitted and has not drained.
    usage: ShareUsage,
    /// Units that a store does not count yet.
    pub(crate) write_back: WriteBackQueue,
    /// The permits that this node has granted.
    pub(crate) permits: OpenPermits,
    /// Reservations that were admitted without a store, until they are settled.
    pub(crate) reservations: LocalReservations,
    /// Whether the node was without its store when it ended.
    pub(crate) restarted_without_store: AtomicBool,
}

impl NodeState {
    /// An empty state. `wall` is the wall-clock time.
    pub(crate) fn new(wall: Nanos, settings: &ResilienceSettings) -> Self {
        let max = settings.max_mirrored;
        NodeState {
            mirror: Mirror::new(max),
            late: LateCharges::default(),
            shares: MemoryStore::with_cap(ManualClock::at(wall), settings.memory_cap),
            usage: ShareUsage::new(max),
            write_back: WriteBackQueue::new(max),
            permits: OpenPermits::new(max),
            reservations: LocalReservations::new(max),
            restarted_without_store: AtomicBool::new(false),
        }
    }

    /// Evicts some expired counters of the shares, by the store's time `now`.
    pub(crate) fn evict_expired(&self, now: Nanos) {
        self.shares.sweep_at(TABLES_PER_SWEEP, now);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
    use tidegate_core::store::{ChargeIntent, ChargeSet, NodeId, RuleOptions};
    use tidegate_core::subject::{Fingerprint, RuleName};
    use tidegate_core::units::Cost;

    use super::*;
    use crate::owned_charge::OwnedCharge;
    use crate::shard::recovery::membership::Membership;

    const CAP: u64 = 8 << 20;

    /// Admits a request of each of `subjects` subjects by the shares.
    pub(super) fn admit(state: &NodeState, subjects: u128, now: Nanos) {
        let me = NodeId(1);
        let nodes = Membership { me, members: vec![me], nodes: 1, is_complete: true, share_percent: 80, epoch: None };
        let spec = Spec::new(Algorithm::FixedWindow, 100, Nanos::from_secs(10));
        let limit = Limit::compile(&spec, Precision::Memory).expect("a valid rate");
        for subject in 0..subjects {
            let subject = Fingerprint::new(subject.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
            let rule = RuleName::new("rule");
            let charge = OwnedCharge::new(subject, rule, 0, limit.clone(), Cost::ONE, RuleOptions::DEFAULT);
            let set = ChargeSet::of_one(charge.charge());
            assert!(state.decide_by_share(&set, ChargeIntent::Charge, &nodes, now).admitted);
        }
    }

    fn node_state() -> NodeState {
        NodeState::new(Nanos::ZERO, &ResilienceSettings { memory_cap: CAP, ..ResilienceSettings::default() })
    }

    /// They had a gigabyte of their own, whatever the cap.
    #[test]
    fn the_shares_stay_below_the_memory_cap() {
        let stats = node_state().shares.stats();
        assert!(stats.cap <= CAP, "{stats:?}");
    }

    /// What an outage had filled stayed until the process ended.
    #[test]
    fn expired_counters_of_the_shares_are_evicted() {
        let state = node_state();
        admit(&state, 10_000, Nanos::ZERO);
        assert_eq!(state.shares.stats().keys, 10_000);
        for _ in 0..10_000 {
            state.evict_expired(Nanos::from_secs(60));
        }
        assert_eq!(state.shares.stats().keys, 0);
    }
}

#[cfg(all(test, feature = "redis"))]
mod maintenance_tests {
    use std::sync::Arc;

    use tidegate_core::store::Counters;

    use super::tests::admit;
    use super::*;
    use crate::clock::Clock;
    use crate::resilience::resilient;
    use crate::runtime::Runtime;
    use crate::stores::redis::{RedisConfig, RedisStore};

    /// A runtime that runs no task, and whose time is set by hand.
    #[derive(Clone)]
    struct IdleRuntime(ManualClock);

    impl Runtime for IdleRuntime {
        fn now(&self) -> Nanos {
            self.0.now()
        }

        fn wall(&self) -> Nanos {
            self.0.now()
        }

        fn sleep(&self, _: Nanos) -> impl Future<Output = ()> + Send + 'static {
            std::future::pending()
        }

        fn spawn(&self, _: impl Future<Output = ()> + Send + 'static) {}

        fn random(&self) -> u64 {
            7
        }
    }

    #[tokio::test]
    async fn the_maintenance_of_the_store_reaches_the_shares() {
        let redis = RedisStore::open(&RedisConfig::new("redis://127.0.0.1:1")).expect("an address");
        let start = Nanos::from_secs(1_000);
        let runtime = IdleRuntime(ManualClock::at(start));
        let node = resilient(redis, runtime.clone(), ResilienceSettings::default(), Arc::new(|_| {}));
        let state = &node.store().0.node_state;
        admit(state, 100, start);
        let keys_after_sweeps = || {
            (0..10_000).for_each(|_| node.evict_expired());
            state.shares.stats().keys
        };
        assert_eq!(keys_after_sweeps(), 100);
        runtime.0.advance(Nanos::from_secs(60));
        assert_eq!(keys_after_sweeps(), 0);
    }
}
