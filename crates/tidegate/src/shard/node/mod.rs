//! The state of one node beside its stores: the last known state of each counter, and what the node admitted
//! without a store.
//!
//! All shards share one `NodeState`, because counters move between shards and a shard may be gone for good: the
//! state must outlive it. It does not know which shard a counter is in.

mod eviction;
pub(crate) mod local_admissions;
pub(crate) mod local_fallback;
mod local_reservations;
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
use crate::stores::memory::MemoryStore;

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
            shares: MemoryStore::new(ManualClock::at(wall)),
            usage: ShareUsage::new(max),
            write_back: WriteBackQueue::new(max),
            permits: OpenPermits::new(max),
            reservations: LocalReservations::new(max),
            restarted_without_store: AtomicBool::new(false),
        }
    }
}
