//! The log of the store's operations, with the node of each: every unit charged, drawn or refunded, every
//! reservation and every permit.
//!
//! The link writes the log, because it knows when a call was sent and whether its reply arrived. The checkers
//! compare the log with the admissions of the nodes.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::store::Settled;
use tidegate_core::units::Nanos;

/// An operation on a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// Units charged for a request or a write-back.
    Charged(u64),
    /// Units drawn as a lease.
    Drawn(u64),
    /// Units to refund, and the store's time at which they were charged.
    Returned(u64, Nanos),
}

/// One call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreOp {
    /// The node that sent the call.
    pub node: usize,
    /// The bits of the counter.
    pub counter: u128,
    /// When the call was sent.
    pub sent: Nanos,
    /// When the store performed it, by its own clock; `None` if it never did.
    pub at: Option<Nanos>,
    /// When the reply arrived; `None` if it never did.
    pub replied_at: Option<Nanos>,
    /// The operation.
    pub kind: OpKind,
}

/// An operation on a reservation, or on a counter that has reservations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationEventKind {
    /// A request to charge an estimate.
    Reserved {
        /// The id of the reservation.
        id: u128,
        /// The lifetime of the reservation.
        lasts: Nanos,
        /// Whether the estimate was admitted.
        admitted: bool,
    },
    /// A request to correct an estimate to the used units.
    Settled {
        /// The id of the reservation.
        id: u128,
        /// The used units; `None` when the reservation expired without a settlement.
        used: Option<u64>,
        /// Whether the reservation had expired, by its own dates.
        too_late: bool,
        /// The result.
        settled: Settled,
    },
    /// A write-back of admissions without the store was charged.
    Charged {
        /// Whether the reply arrived. Without it, the node charges the units once more.
        acknowledged: bool,
    },
    /// A refund, with the store's time of the charge.
    Returned(Nanos),
    /// Remembered states were restored.
    Restored,
}

/// A counter that an operation changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterChange {
    /// The bits of the counter.
    pub counter: u128,
    /// The units of the operation; for an estimate, the estimated units.
    pub units: u64,
    /// Units in use afterwards.
    pub after: u64,
}

/// One operation, as the store performed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReservationEvent {
    /// When it was performed, by the simulation's clock.
    pub now: Nanos,
    /// When it was performed, by the store's clock.
    pub at: Nanos,
    /// The node that sent the call.
    pub node: usize,
    /// The operation.
    pub kind: ReservationEventKind,
    /// The changed counters.
    pub changes: Vec<CounterChange>,
}

/// An operation on a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PermitVerb {
    /// Acquire a permit.
    Acquire,
    /// Renew a permit.
    Renew,
    /// Release a permit.
    Release,
}

/// One operation on a permit, as the store performed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitEvent {
    /// When it was performed, by the simulation's clock.
    pub now: Nanos,
    /// The node that sent the call.
    pub node: usize,
    /// The bits of the counter.
    pub counter: u128,
    /// The holder of the permit.
    pub holder: u128,
    /// The operation.
    pub verb: PermitVerb,
    /// The maximum number of open permits.
    pub max_open: u32,
    /// Whether the holder has a permit afterwards.
    pub granted: bool,
    /// The number of open permits afterwards.
    pub open: u32,
}

/// All calls, in the order in which the store performed them; refunds, in the order of sending.
#[derive(Clone, Debug, Default)]
pub struct StoreLog {
    ops: Arc<Mutex<Vec<StoreOp>>>,
    /// Operations in the order of the store, if the run has reservations.
    reservation_events: Option<Arc<Mutex<Vec<ReservationEvent>>>>,
    permit_events: Arc<Mutex<Vec<PermitEvent>>>,
}

impl StoreLog {
    /// A log of every operation on a counter, for runs with reservations.
    pub(crate) fn with_reservations() -> Self {
        StoreLog { reservation_events: Some(Arc::default()), ..StoreLog::default() }
    }

    /// Logs a call and returns its index.
    pub(super) fn push_op(&self, op: StoreOp) -> usize {
        let mut ops = self.ops.lock();
        ops.push(op);
        ops.len() - 1
    }

    /// Completes an entry.
    pub(super) fn update_op(&self, index: usize, update: impl FnOnce(&mut StoreOp)) {
        if let Some(op) = self.ops.lock().get_mut(index) {
            update(op);
        }
    }

    /// Takes all entries.
    pub(crate) fn take_ops(&self) -> Vec<StoreOp> {
        std::mem::take(&mut *self.ops.lock())
    }

    /// Logs an operation, if the run has reservations, and returns its index.
    pub(super) fn record_reservation(&self, event: impl FnOnce() -> ReservationEvent) -> Option<usize> {
        let mut events = self.reservation_events.as_ref()?.lock();
        events.push(event());
        Some(events.len() - 1)
    }

    /// The reply to a write-back arrived.
    pub(super) fn acknowledge_write_back(&self, index: usize) {
        if let Some(events) = &self.reservation_events
            && let Some(event) = events.lock().get_mut(index)
        {
            event.kind = ReservationEventKind::Charged { acknowledged: true };
        }
    }

    /// Logs an operation on a permit.
    pub(super) fn record_permit(&self, event: PermitEvent) {
        self.permit_events.lock().push(event);
    }

    /// Takes all operations on reservations.
    pub(crate) fn take_reservation_events(&self) -> Vec<ReservationEvent> {
        let events = self.reservation_events.as_ref();
        events.map_or_else(Vec::new, |all| std::mem::take(&mut *all.lock()))
    }

    /// Takes all operations on permits.
    pub(crate) fn take_permit_events(&self) -> Vec<PermitEvent> {
        std::mem::take(&mut *self.permit_events.lock())
    }

    /// Whether a permit of `holder` was released before.
    pub(super) fn has_released(&self, holder: u128) -> bool {
        let events = self.permit_events.lock();
        events.iter().any(|event| event.holder == holder && event.verb == PermitVerb::Release)
    }

    /// Whether the store has granted or renewed a permit of `holder`.
    pub(crate) fn has_granted(&self, holder: u128) -> bool {
        let events = self.permit_events.lock();
        let mut latest = events.iter().rev();
        latest.any(|event| event.holder == holder && event.granted)
    }
}
