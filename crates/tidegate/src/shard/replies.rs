//! What the replies of a shard reveal: states for the mirror, and losses of counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{Charge, ChargeSet, CounterSnapshot, Epoch, Outcome, Probe, Store};
use tidegate_core::units::Nanos;

use crate::runtime::Runtime;
use crate::shard::event::StoreEvent;
use crate::shard::node::NodeState;
use crate::shard::node::mirror::ObservedAt;
use crate::shard::recovery::recovery_state::RecoveryState;
use crate::shard::shared_shard::{RequestStamp, SharedShard};

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// Whether the store has begun another epoch since a request was sent: its charge is lost with the old epoch. The
    /// node may already trust the new one.
    pub(super) fn epoch_changed(self: &Arc<Self>, sent: RequestStamp) -> bool {
        if self.detect_loss() {
            return true;
        }
        let current = self.epoch();
        current.is_some_and(|current| sent.epoch.is_some_and(|epoch| epoch != current))
    }

    /// Whether the store shows that it may have lost counts: it has a new epoch, or hash slots have moved to it that
    /// may be incomplete.
    pub(crate) fn detect_loss(self: &Arc<Self>) -> bool {
        if self.check_incomplete_slots() {
            return true;
        }
        let is_new_epoch = self.epoch().is_some_and(|epoch| self.is_new_epoch(epoch));
        if is_new_epoch {
            self.record_loss(RecoveryState::mark_epoch_ended);
        }
        is_new_epoch
    }

    /// Reports a charge that was sent and not confirmed: the store may count it in addition to its write-back. A store
    /// counts at most twice a limit, so a cost that can never fit adds no more than that.
    pub(crate) fn report_unconfirmed(&self, set: &ChargeSet<'_>) {
        let counted = set.charges.iter().map(|charge| {
            let max_units = charge.limit.full_capacity().saturating_mul(2);
            charge.cost.get().min(max_units)
        });
        (self.watcher)(StoreEvent::Unconfirmed { units: counted.fold(0, u64::saturating_add) });
    }

    /// Whether the reply to a charge, which was sent while the store was trusted, is from a store that has lost nothing.
    /// If so, records it in the mirror.
    pub(crate) fn trusts_reply(self: &Arc<Self>, set: &ChargeSet<'_>, outcome: &Outcome, sent: RequestStamp) -> bool {
        let trusted = self.lacks_nothing(set, outcome, sent);
        if trusted {
            for (i, charge) in set.charges.iter().enumerate() {
                self.record_counter(charge, i, outcome, sent.at);
            }
        }
        trusted
    }

    /// Whether a reply, to a request that was sent while the store was trusted, is from a store that has lost nothing.
    /// Another reply may have revealed a loss since: a restore that is still to come would absorb a charge.
    pub(crate) fn lacks_nothing(self: &Arc<Self>, set: &ChargeSet<'_>, outcome: &Outcome, sent: RequestStamp) -> bool {
        if !self.is_trusted() || self.epoch_changed(sent) {
            return false;
        }
        let mut seen = set.charges.iter().zip(&outcome.snapshots);
        let is_lost = seen.any(|(charge, seen)| self.is_record_lost(charge, seen, outcome.at));
        if is_lost {
            self.mark_lost();
        }
        !is_lost
    }

    /// Whether the store has lost the record of a counter that the mirror holds.
    pub(super) fn is_record_lost(&self, charge: &Charge<'_>, seen: &CounterSnapshot, at: Nanos) -> bool {
        let now = self.runtime.now();
        !seen.existed && self.node_state.mirror.has_live(charge, at, now)
    }

    /// The store has charged pending units. Returns, for each charge, the units that it will not count after all: the
    /// record was lost, and restoring it absorbs some of them. `None` if the store has begun another epoch, which may
    /// lack all of them.
    pub(crate) fn units_lost_on_restore(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        outcome: &Outcome,
        sent: RequestStamp,
    ) -> Option<Vec<u64>> {
        if self.epoch_changed(sent) {
            return None;
        }
        let mut lost_units = vec![0; set.charges.len()];
        let mut any_lost = false;
        for (i, charge) in set.charges.iter().enumerate() {
            let Some(seen) = outcome.snapshots.get(i) else {
                continue;
            };
            if self.is_record_lost(charge, seen, outcome.at) {
                any_lost = true;
                lost_units[i] = self.node_state.mirror.lost_on_restore(charge, seen, outcome.at);
            } else {
                self.record_counter(charge, i, outcome, sent.at);
            }
        }
        if any_lost {
            self.mark_lost();
        }
        Some(lost_units)
    }

    pub(super) fn is_new_epoch(&self, epoch: Epoch) -> bool {
        let known = self.membership.load().epoch;
        known.is_some_and(|known| known != epoch)
    }

    /// Records the counter of the `i`th charge of a decided set.
    pub(super) fn record_counter(self: &Arc<Self>, charge: &Charge<'_>, i: usize, outcome: &Outcome, sent: Nanos) {
        let (Some(reading), Some(seen)) = (outcome.readings.get(i), outcome.snapshots.get(i)) else {
            return;
        };
        let now = self.runtime.now();
        self.clock.record(sent, now, outcome.at);
        let observed = ObservedAt { now, confirmed: Nanos::new(self.epoch_confirmed_at.load(Ordering::Acquire)), sent };
        let spent = if outcome.admitted && reading.verdict.allows() { charge.cost.get() } else { 0 };
        let mirror = &self.node_state.mirror;
        if mirror.record(charge, spent, seen, outcome.at, observed) {
            self.ping_soon();
        }
    }

    /// The store has lost counts: decides locally from now on, and restores the mirror.
    pub(crate) fn mark_lost(self: &Arc<Self>) {
        self.record_loss(RecoveryState::mark_lost);
    }

    /// The store may lack counts that it should have, whatever was restored so far.
    pub(crate) fn mark_counts_missing(self: &Arc<Self>) {
        self.record_loss(RecoveryState::mark_counts_missing);
    }

    /// Whether hash slots have moved to the store that may be incomplete. Marks their counts as missing.
    pub(crate) fn check_incomplete_slots(self: &Arc<Self>) -> bool {
        let hash_slots = self.store.as_ref().map(|store| store.take_incomplete_hash_slots()).unwrap_or_default();
        let is_incomplete = !hash_slots.is_empty();
        if is_incomplete {
            self.record_loss(|recovery_state, now| recovery_state.mark_slots_missing(hash_slots, now));
        }
        is_incomplete
    }

    pub(super) fn record_loss(self: &Arc<Self>, mark: impl FnOnce(&mut RecoveryState, Nanos) -> bool) {
        let now = self.runtime.now();
        let was_exact = self.update_recovery_state(|recovery_state| {
            let was_exact = mark(recovery_state, now);
            self.trusted.store(false, Ordering::Release);
            was_exact
        });
        if was_exact {
            self.report_loss();
            self.recover_soon();
        }
    }

    /// The store has turned out to have lost counts. Units that it admitted after the loss and before its discovery are
    /// pending: no node's mirror includes them.
    pub(super) fn report_loss(&self) {
        let NodeState { mirror, write_back, late, .. } = &*self.node_state;
        let confirmed = Nanos::new(self.epoch_confirmed_at.load(Ordering::Acquire));
        late.update_active(|ledger| ledger.void_credits(|charge| self.holds(charge.subject)));
        for (charge, admitted) in mirror.take_suspect_charges(|subject| self.holds(subject), confirmed) {
            let (charge, now) = (charge.with_cost(admitted), self.store_time());
            let empty_at = mirror.empties_at(&charge).unwrap_or(now);
            write_back.add(&charge, &charge.limit, now, empty_at);
        }
        (self.watcher)(StoreEvent::CountsLost);
    }
}
