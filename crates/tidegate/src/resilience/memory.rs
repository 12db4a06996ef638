//! What a node remembers beside its stores: what it last saw of each counter, and what it admitted
//! without them.
//!
//! One for all parts of a store, because counters move from part to part and a part may be gone for
//! good: what is remembered must outlive it. Which part a counter is in is not known here.

use tidegate_core::units::Nanos;

use super::late::LateCharges;
use super::local::Local;
use super::mirror::Mirror;
use super::open_slots::OpenSlots;
use super::reserved::Reserved;
use super::settings::Settings;

/// The memory of one node.
pub(super) struct Memory {
    /// What was last seen of each counter.
    pub(super) mirror: Mirror,
    /// Charges whose replies are late.
    pub(super) late: LateCharges,
    /// The shares that decide without a store, and what is owed of them.
    pub(super) local: Local,
    /// The slots that it has given out.
    pub(super) slots: OpenSlots,
    /// Estimates admitted that way, until they are settled.
    pub(super) reserved: Reserved,
}

impl Memory {
    /// Nothing yet. `wall` is the time of day.
    pub(super) fn new(wall: Nanos, settings: &Settings) -> Self {
        Memory {
            mirror: Mirror::new(settings.remembered),
            late: LateCharges::default(),
            local: Local::new(wall, settings.remembered),
            slots: OpenSlots::new(settings.remembered),
            reserved: Reserved::new(settings.remembered),
        }
    }
}
