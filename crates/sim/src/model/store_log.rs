//! What the store did for which node: every unit that was charged, drawn in advance or given back, every
//! estimate and every slot.
//!
//! Kept by the way between them, which knows when a call was sent and whether its answer was heard. The
//! checkers hold it against what nodes admitted.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::store::Settled;
use tidegate_core::units::Nanos;

/// What was done to a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// So many units were charged for a request, or for a debt.
    Charged(u64),
    /// So many units were drawn in advance.
    Drawn(u64),
    /// So many units were to be given back that were charged at this time of the store.
    Returned(u64, Nanos),
}

/// One call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreOp {
    /// For whom.
    pub node: usize,
    /// The bits of the counter.
    pub counter: u128,
    /// When the call was sent.
    pub sent: Nanos,
    /// When the store did it, by its own clock, if it did.
    pub at: Option<Nanos>,
    /// When the node heard so, if it did.
    pub replied_at: Option<Nanos>,
    /// What.
    pub kind: OpKind,
}

/// What was done about an estimate, or to a counter that has some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReservationEventKind {
    /// An estimate was to be charged.
    Reserved {
        /// Of which reservation.
        id: u128,
        /// How long it lasts.
        lasts: Nanos,
        /// Whether it was.
        admitted: bool,
    },
    /// It was to be corrected to what was used; nothing if nobody said.
    Settled {
        /// Of which reservation.
        id: u128,
        /// How much.
        used: Option<u64>,
        /// Whether it was too late for it, by its own dates.
        too_late: bool,
        /// Whether it was.
        settled: Settled,
    },
    /// What was admitted without the store was charged.
    Charged,
    /// What was charged at this time of the store was given back.
    Returned(Nanos),
    /// What nodes remember was put back.
    Restored,
}

/// A counter that a step was about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterChange {
    /// Its bits.
    pub counter: u128,
    /// How much: of an estimate, what was estimated.
    pub units: u64,
    /// What it holds afterwards.
    pub after: u64,
}

/// One step, as the store took it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReservationEvent {
    /// When, by the simulation's clock and by the store's.
    pub now: Nanos,
    /// See `now`.
    pub at: Nanos,
    /// For whom.
    pub node: usize,
    /// What.
    pub kind: ReservationEventKind,
    /// To what.
    pub changes: Vec<CounterChange>,
}

/// What is asked about a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PermitVerb {
    /// To have one.
    Acquire,
    /// To keep it.
    Renew,
    /// To give it back.
    Release,
}

/// One slot that was asked about, as the store did it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitEvent {
    /// When, by the simulation's clock.
    pub now: Nanos,
    /// By which node.
    pub node: usize,
    /// Of which counter.
    pub counter: u128,
    /// For which holder.
    pub holder: u128,
    /// What was asked.
    pub verb: PermitVerb,
    /// How many there may be.
    pub max_open: u32,
    /// Whether the holder has a slot now.
    pub granted: bool,
    /// How many are open.
    pub open: u32,
}

/// All calls, in the order in which the store did them; what was given back, in the order of sending.
#[derive(Clone, Debug, Default)]
pub struct StoreLog {
    ops: Arc<Mutex<Vec<StoreOp>>>,
    /// In the order in which the store did them, if anybody reserves.
    reservation_events: Option<Arc<Mutex<Vec<ReservationEvent>>>>,
    permit_events: Arc<Mutex<Vec<PermitEvent>>>,
}

impl StoreLog {
    /// Those in which every step of a counter is written down, because some of them are estimates.
    pub(crate) fn with_reservations() -> Self {
        StoreLog {
            reservation_events: Some(Arc::default()),
            ..StoreLog::default()
        }
    }

    /// Writes down a call; the place where it is.
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

    /// All of it, leaving none.
    pub(crate) fn take_ops(&self) -> Vec<StoreOp> {
        std::mem::take(&mut *self.ops.lock())
    }

    /// Writes down a step, if anybody reserves.
    pub(super) fn record_reservation(&self, event: impl FnOnce() -> ReservationEvent) {
        if let Some(events) = &self.reservation_events {
            events.lock().push(event());
        }
    }

    /// Writes down what became of a slot.
    pub(super) fn record_permit(&self, event: PermitEvent) {
        self.permit_events.lock().push(event);
    }

    /// All steps, leaving none.
    pub(crate) fn take_reservation_events(&self) -> Vec<ReservationEvent> {
        let events = self.reservation_events.as_ref();
        events.map_or_else(Vec::new, |all| std::mem::take(&mut *all.lock()))
    }

    /// What became of all slots, leaving none.
    pub(crate) fn take_permit_events(&self) -> Vec<PermitEvent> {
        std::mem::take(&mut *self.permit_events.lock())
    }

    /// Whether the store has given or renewed a slot.
    pub(crate) fn has_granted(&self, holder: u128) -> bool {
        let events = self.permit_events.lock();
        let mut latest = events.iter().rev();
        latest.any(|event| event.holder == holder && event.granted)
    }
}
