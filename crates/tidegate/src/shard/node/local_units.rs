//! Units of one counter that this node counts apart from the store, under a limit that may change.

use tidegate_core::algorithms::{CounterState, Limit, Moment};
use tidegate_core::store::Charge;
use tidegate_core::units::{Cost, Nanos};

use crate::owned_charge::OwnedCharge;

/// The units of one counter.
pub(super) struct LocalUnits {
    /// The counter, by one of its charges.
    pub(super) charge: OwnedCharge,
    /// The limit under which they are counted.
    pub(super) limit: Limit,
    pub(super) state: CounterState,
}

impl LocalUnits {
    pub(super) fn advance(&mut self, at: Nanos) -> Moment {
        self.limit.advance(&mut self.state, at)
    }

    /// The units in use at `at`.
    pub(super) fn units(&mut self, at: Nanos) -> u64 {
        let moment = self.advance(at);
        self.limit.used(&self.state, moment)
    }

    pub(super) fn spend(&mut self, cost: Cost, at: Nanos) {
        let moment = self.advance(at);
        self.limit.spend(&mut self.state, moment, cost);
    }

    pub(super) fn refund(&mut self, cost: Cost, charged: Nanos, at: Nanos) {
        let moment = self.advance(at);
        self.limit.refund(&mut self.state, moment, charged, cost);
    }

    /// Counts under `limit` from now on, which is that of `charge`.
    pub(super) fn change_limit(&mut self, charge: &Charge<'_>, limit: &Limit, at: Nanos) {
        if self.limit.tag() != limit.tag() {
            self.state = limit.adopt(&self.limit, self.state.clone(), at);
            (self.limit, self.charge) = (limit.clone(), OwnedCharge::of(charge));
        }
    }
}
