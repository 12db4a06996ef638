//! Estimates that were admitted without the store. Only this node knows of them: settled elsewhere they
//! are not found, and what was estimated stands.

use parking_lot::Mutex;
use tidegate_core::store::{ChargeSet, Kept, Ledger, Outcome, Reserve, Settle};

/// Reservations of this node alone. Bounded; what finds no room stands as it was estimated.
pub(super) struct Reserved(Mutex<Ledger>);

impl Reserved {
    pub(super) fn new(most: usize) -> Self {
        Reserved(Mutex::new(Ledger::new(most)))
    }

    pub(super) fn enter(&self, reserve: &Reserve<'_>, outcome: &Outcome) {
        let mut ledger = self.0.lock();
        if ledger.make_room(reserve, outcome.at).is_ok() {
            ledger.enter_all(reserve, outcome);
        }
    }

    /// The counters of a set were reset.
    pub(super) fn forget(&self, set: &ChargeSet<'_>) {
        let mut ledger = self.0.lock();
        for charge in &set.charges {
            ledger.forget(charge.counter());
        }
    }

    pub(super) fn close(&self, settle: &Settle<'_>) -> Vec<Kept> {
        self.0.lock().close(settle)
    }
}
