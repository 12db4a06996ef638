//! What a node remembers beside its stores: what it last saw of each counter, and what it admitted
//! without them.
//!
//! One for all parts of a store, because counters move from part to part and a part may be gone for
//! good: what is remembered must outlive it. Which part a counter is in is not known here.

use tidegate_core::units::Nanos;

use super::late::LateCharges;
use super::local_fallback::LocalFallback;
use super::local_reservations::LocalReservations;
use super::mirror::Mirror;
use super::open_permits::OpenPermits;
use super::settings::ResilienceSettings;

/// The memory of one node.
pub(super) struct NodeState {
    /// What was last seen of each counter.
    pub(super) mirror: Mirror,
    /// Charges whose replies are late.
    pub(super) late: LateCharges,
    /// The shares that decide without a store, and what is owed of them.
    pub(super) local_fallback: LocalFallback,
    /// The slots that it has given out.
    pub(super) permits: OpenPermits,
    /// Estimates admitted that way, until they are settled.
    pub(super) reservations: LocalReservations,
}

impl NodeState {
    /// Nothing yet. `wall` is the time of day.
    pub(super) fn new(wall: Nanos, settings: &ResilienceSettings) -> Self {
        NodeState {
            mirror: Mirror::new(settings.max_mirrored),
            late: LateCharges::default(),
            local_fallback: LocalFallback::new(wall, settings.max_mirrored),
            permits: OpenPermits::new(settings.max_mirrored),
            reservations: LocalReservations::new(settings.max_mirrored),
        }
    }
}
