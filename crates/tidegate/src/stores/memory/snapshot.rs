//! The state of a counter, for a journal around this store.

use tidegate_core::algorithms::CounterState;
use tidegate_core::store::Charge;
use tidegate_core::units::Nanos;

use super::MemoryStore;

/// The state of a counter that is not fresh.
pub(crate) struct StateSnapshot {
    /// The state under the given limit.
    pub(crate) state: CounterState,
    /// When it becomes equivalent to a fresh state.
    pub(crate) fresh_at: Nanos,
}

impl<C> MemoryStore<C> {
    /// The state of the counter of a charge under its limit; `None` if it is equivalent to a fresh one.
    pub(crate) fn snapshot_at(&self, charge: &Charge<'_>, now: Nanos) -> Option<StateSnapshot> {
        let (limit, charges) = (charge.limit.as_ref(), std::slice::from_ref(charge));
        let mut locks = self.lock_counters(charges);
        let transaction = self.begin_transaction(&mut locks, charges, self.time_point(now));
        let (state, moment) = transaction.counters[0].state_under(limit, now);
        let fresh_at = limit.fresh_at(&state, moment);
        (fresh_at > now).then_some(StateSnapshot { state, fresh_at })
    }
}
