//! What a journal around this store needs: how a counter stands.

use tidegate_core::algorithms::CounterState;
use tidegate_core::store::Charge;
use tidegate_core::units::Nanos;

use super::MemoryStore;

/// A counter that has something to tell.
pub(crate) struct StateSnapshot {
    /// Under the limit that was asked about.
    pub(crate) state: CounterState,
    /// From when on it is as good as none.
    pub(crate) fresh_at: Nanos,
}

impl<C> MemoryStore<C> {
    /// How the counter of a charge stands under its limit; nothing if it is as good as none.
    pub(crate) fn snapshot_at(&self, charge: &Charge<'_>, now: Nanos) -> Option<StateSnapshot> {
        let (limit, charges) = (charge.limit.as_ref(), std::slice::from_ref(charge));
        let mut locks = self.lock_counters(charges);
        let transaction = self.begin_transaction(&mut locks, charges, self.time_point(now));
        let (state, moment) = transaction.counters[0].state_under(limit, now);
        let fresh_at = limit.fresh_at(&state, moment);
        (fresh_at > now).then_some(StateSnapshot { state, fresh_at })
    }
}
