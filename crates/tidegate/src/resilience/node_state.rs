//! The state of one node beside its stores: the last known state of each counter, and what the node admitted
//! without a store.
//!
//! All shards share one `NodeState`, because counters move between shards and a shard may be gone for good: the
//! state must outlive it. It does not know which shard a counter is in.

use std::sync::atomic::AtomicBool;

use tidegate_core::units::Nanos;

use super::late::LateCharges;
use super::local_fallback::LocalFallback;
use super::local_reservations::LocalReservations;
use super::mirror::Mirror;
use super::open_permits::OpenPermits;
use super::settings::ResilienceSettings;

/// The state that a node shares among its shards.
pub(super) struct NodeState {
    /// The last known state of each counter.
    pub(super) mirror: Mirror,
    /// Charges whose replies are late.
    pub(super) late: LateCharges,
    /// This node's shares, which decide without a store, and the write-back queue.
    pub(super) local_fallback: LocalFallback,
    /// The permits that this node has granted.
    pub(super) permits: OpenPermits,
    /// Reservations that were admitted without a store, until they are settled.
    pub(super) reservations: LocalReservations,
    /// Whether the node was without its store when it ended.
    pub(super) restarted_without_store: AtomicBool,
}

impl NodeState {
    /// An empty state. `wall` is the wall-clock time.
    pub(super) fn new(wall: Nanos, settings: &ResilienceSettings) -> Self {
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
