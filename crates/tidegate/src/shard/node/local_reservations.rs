//! Reservations that were admitted without the store. Only this node knows them: a settle on another node does not
//! find them, and the reserved units stay charged.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidegate_core::store::{ChargeSet, Outcome, ReservationLedger, ReservationState, Reserve, Settle, Used};
use tidegate_core::units::Nanos;

/// The reservations of this node. Bounded: one that finds no room stays charged as reserved.
pub(crate) struct LocalReservations {
    state: Mutex<LocalReservationTable>,
    max: usize,
}

struct LocalReservationTable {
    ledger: ReservationLedger,
    /// Reservations that were settled here, and until when a client may settle them again.
    settled: HashMap<u128, Nanos>,
}

impl LocalReservations {
    pub(crate) fn new(max: usize) -> Self {
        let state = LocalReservationTable { ledger: ReservationLedger::new(max), settled: HashMap::new() };
        LocalReservations { state: Mutex::new(state), max }
    }

    pub(crate) fn insert(&self, reserve: &Reserve<'_>, outcome: &Outcome) {
        let ledger = &mut self.state.lock().ledger;
        if ledger.make_room(reserve, outcome.at).is_ok() {
            ledger.record_all(reserve, outcome);
        }
    }

    /// The counters of a set were reset.
    pub(crate) fn forget(&self, set: &ChargeSet<'_>) {
        let ledger = &mut self.state.lock().ledger;
        for charge in &set.charges {
            ledger.remove_counter(charge.counter());
        }
    }

    /// Closes a reservation. Returns its state for each charge, as it was before.
    pub(crate) fn close(&self, settle: &Settle<'_>) -> Vec<ReservationState> {
        self.state.lock().ledger.close(settle)
    }

    /// As `close`, for a client: remembers that the reservation is settled, because the client may send the settle
    /// again.
    pub(crate) fn settle(&self, settle: &Settle<'_>, now: Nanos) -> Vec<ReservationState> {
        let mut state = self.state.lock();
        let found = state.ledger.close(settle);
        if settle.used != Used::Unknown && found.iter().any(|reservation| *reservation != ReservationState::Unknown) {
            state.record_settled(settle, self.max, now);
        }
        found
    }

    /// Whether it was settled here. The store may hold the same reservation, because its reply was lost: settled there
    /// as well, it would be charged twice.
    pub(crate) fn is_settled(&self, settle: &Settle<'_>) -> bool {
        self.state.lock().settled.contains_key(&settle.id)
    }
}

impl LocalReservationTable {
    fn record_settled(&mut self, settle: &Settle<'_>, max: usize, now: Nanos) {
        if self.settled.len() >= max {
            self.settled.retain(|_, until| *until > now);
        }
        if self.settled.len() < max {
            self.settled.insert(settle.id, settle.settle_deadline());
        }
    }
}
