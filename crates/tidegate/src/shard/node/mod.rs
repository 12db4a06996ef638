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
mod share_usage;
pub(crate) mod striped_map;
pub(crate) mod write_back;

use std::sync::atomic::AtomicBool;

use tidegate_core::units::Nanos;

use crate::shard::late::LateCharges;
use crate::shard::node::local_fallback::LocalFallback;
use crate::shard::node::local_reservations::LocalReservations;
use crate::shard::node::mirror::Mirror;
use crate::shard::node::open_permits::OpenPermits;
use crate::shard::settings::ResilienceSettings;

/// The state that a node shares among its shards.
pub(crate) struct NodeState {
    /// The last known state of each counter.
    pub(crate) mirror: Mirror,
    /// Charges whose replies are late.
    pub(crate) late: LateCharges,
    /// This node's shares, which decide without a store, and the write-back queue.
    pub(crate) local_fallback: LocalFallback,
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
        NodeState {
            mirror: Mirror::new(settings.max_mirrored),
            late: LateCharges::default(),
            local_fallback: LocalFallback::new(wall, settings.max_mirrored),
            permits: OpenPermits::new(settings.max_mirrored),
            reservations: LocalReservations::new(settings.max_mirrored),
            restarted_without_store: AtomicBool::new(false),
        }
    }
}
