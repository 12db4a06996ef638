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
    /// Charges that have nothing left to settle here, and until when a client may settle their reservation again: they
    /// were settled here, or not charged. By counter and id of the reservation, because the other charges of a
    /// reservation may be in the store, or in another shard.
    settled: HashMap<(u128, u128), Nanos>,
}

impl LocalReservations {
    pub(crate) fn new(max: usize) -> Self {
        let state = LocalReservationTable { ledger: ReservationLedger::new(max), settled: HashMap::new() };
        LocalReservations { state: Mutex::new(state), max }
    }

    pub(crate) fn insert(&self, reserve: &Reserve<'_>, outcome: &Outcome) {
        let mut state = self.state.lock();
        if state.ledger.make_room(reserve, outcome.at).is_err() {
            return;
        }
        state.ledger.record_all(reserve, outcome);
        let settle_deadline = outcome.at.plus(reserve.ttl).plus(reserve.ttl);
        for (charge, reading) in reserve.set.charges.iter().zip(&outcome.readings) {
            if !reading.verdict.allows() {
                state.record_settled((charge.counter(), reserve.id), settle_deadline, self.max, outcome.at);
            }
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

    /// As `close`, for a client, with `None` for the charges that only the store may hold. Remembers what is settled
    /// here, because the client may send the settle again. The store may hold the same charges, because its reply was
    /// lost: settled there as well, they would be charged twice.
    pub(crate) fn settle(&self, settle: &Settle<'_>, now: Nanos) -> Vec<Option<ReservationState>> {
        let mut state = self.state.lock();
        let found = state.ledger.close(settle);
        let charges = settle.set.charges.iter().zip(found).map(|(charge, found)| {
            let key = (charge.counter(), settle.id);
            if found == ReservationState::Unknown {
                return state.settled.contains_key(&key).then_some(found);
            }
            if settle.used != Used::Unknown {
                state.record_settled(key, settle.settle_deadline(), self.max, now);
            }
            Some(found)
        });
        charges.collect()
    }
}

impl LocalReservationTable {
    fn record_settled(&mut self, key: (u128, u128), until: Nanos, max: usize, now: Nanos) {
        if self.settled.len() >= max {
            self.settled.retain(|_, until| *until > now);
        }
        if self.settled.len() < max {
            self.settled.insert(key, until);
        }
    }
}
