//! The other verbs of one shard: refunds, leases, debts, permits, reservations and resets.

use std::sync::Arc;

use smallvec::smallvec;
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{
    Charge, ChargeIntent, ChargeSet, Degraded, Inspection, LeaseReply, LimitReading, OnStoreFailure, Outcome,
    PermitReply, PermitRequest, Probe, Refund, Refunded, ReservationState, Restore, Settle, Settled, Source, Store,
    StoreResult,
};
use tidegate_core::units::{Cost, Nanos};

use crate::runtime::Runtime;
use crate::shard::call::{BACKGROUND_TIMEOUT, LATE_REPLY_TIMEOUT, untrusted};
use crate::shard::decisions::was_sent;
use crate::shard::node::local_fallback::permit_share;
use crate::shard::refund::{ChargeKind, id_of_part, part_of};
use crate::shard::shared_shard::SharedShard;

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// Only the store knows whether an id was refunded before: every node would refund it once. While the store cannot
    /// be called this is an error, and may be sent again.
    pub(crate) async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        if self.bypasses_store(&refund.set) {
            return Err(untrusted());
        }
        self.follow_up(&refund.set, |store| store.refund(refund)).await
    }

    /// Leases are drawn from the store only, never from a share. Their units are in the mirror like any charge, and so
    /// are restored into a store that lost them.
    pub(crate) async fn draw(self: &Arc<Self>, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        if self.bypasses_store(&ChargeSet::of_one(charge.clone())) {
            return Err(untrusted());
        }
        let sent = self.sent_now();
        let lease = self.call(Nanos::MAX, BACKGROUND_TIMEOUT, |store| store.draw(charge)).await?;
        let (set, outcome) = as_charge(charge, &lease);
        if self.trusts_reply(&set, &outcome, sent) { Ok(lease) } else { Err(untrusted()) }
    }

    /// Forced units cannot be denied locally: they are pending until the store can be called.
    pub(crate) async fn force(self: &Arc<Self>, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        if !self.bypasses_store(set) {
            let sent = self.sent_now();
            let budget = self.settings.budget_of(&[set], ChargeKind::Charge).max(self.settings.budget);
            let until = self.deadline_of(Nanos::MAX, &[set]);
            let reply = self.call(until, budget, |store| store.force(set)).await;
            let was_sent = was_sent(&reply);
            if let Ok(outcome) = reply
                && self.trusts_reply(set, &outcome, sent)
            {
                return Ok(outcome);
            }
            if was_sent {
                self.report_unconfirmed(set);
            }
        }
        let outcome = self.decide_by_share(set, ChargeIntent::Force);
        self.schedule_push(self.settings.push_delay);
        Ok(outcome)
    }

    pub(crate) async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        self.call(Nanos::MAX, BACKGROUND_TIMEOUT, |store| store.restore(restores)).await
    }

    /// Local counts are no substitute: a client that has used up its limit would seem to have used nothing.
    pub(crate) async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.call(Nanos::MAX, self.settings.follow_up_wait(None), |store| store.inspect(set)).await
    }

    /// Local state is removed only after the store has replied: after an error nothing is lost.
    pub(crate) async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        let in_store = self.call(Nanos::MAX, self.settings.follow_up_wait(None), |store| store.reset(set)).await?;
        Ok(in_store.max(self.node_state.reset(set, self.store_time())))
    }

    /// This node records a permit that the store has granted: it is restored if the store loses it, and counts toward
    /// this node's share while the store is down.
    pub(crate) async fn acquire(self: &Arc<Self>, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        let permits = &self.node_state.permits;
        let (sent, epoch) = (self.runtime.now(), self.known_epoch());
        let mut was_requested = false;
        if self.may_acquire() {
            let reply = self.acquire_in_store(permit).await;
            was_requested = was_sent(&reply);
            if let Ok(permit_reply) = reply
                && self.trusts_permits(epoch)
            {
                if permit_reply.granted {
                    permits.record_acquired(permit, permit_reply.in_use, sent, self.store_time());
                }
                return Ok(permit_reply);
            }
        }
        let share = permit_share(permit, self.division(permit.counter()));
        let mut permit_reply = permits.acquire(permit, share, self.runtime.now());
        if !permit_reply.granted && permit.options.on_failure == OnStoreFailure::Deny {
            permit_reply.degraded = Some(Degraded::DeniedByPolicy { charge: 0 });
        }
        if was_requested && !permit_reply.granted {
            permits.begin_release(permit, self.runtime.now()); // its reply may only be late
        }
        Ok(permit_reply)
    }

    pub(crate) async fn acquire_in_store(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        let budget = permit.options.budget.unwrap_or(self.settings.long_work());
        self.call(self.permit_deadline(permit), budget, |store| store.acquire(permit)).await
    }

    /// Without the store, a permit that this node knows is renewed. For other permits this is an error.
    pub(crate) async fn renew(self: &Arc<Self>, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        let permits = &self.node_state.permits;
        let (sent, epoch) = (self.runtime.now(), self.known_epoch());
        let was_open = permits.is_open(permit, sent);
        let reply = if !self.is_trusted() {
            Err(untrusted())
        } else if permits.is_local_only(permit, sent) {
            self.register_permit(permit).await
        } else {
            let budget = self.settings.follow_up_wait(permit.options.budget);
            self.call(self.permit_deadline(permit), budget, |store| store.renew(permit)).await
        };
        let now = self.runtime.now();
        let trusted = reply.is_ok() && self.trusts_permits(epoch);
        match reply {
            Ok(permit_reply) if trusted => {
                match (permit_reply.granted, was_open && !permits.is_open(permit, now)) {
                    (true, false) => permits.record_acquired(permit, permit_reply.in_use, sent, self.store_time()),
                    (true, true) => {} // released in the meantime
                    (false, _) => permits.remove(permit),
                }
                Ok(permit_reply)
            }
            Ok(_) => permits.renew(permit, now).ok_or_else(untrusted),
            Err(error) => permits.renew(permit, now).ok_or(error),
        }
    }

    /// Releases a permit wherever it was acquired. If the store cannot be called now, the release is synced later.
    pub(crate) async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        let permits = &self.node_state.permits;
        permits.begin_release(permit, self.runtime.now());
        if self.is_trusted() {
            let _synced_later = self.release_in_store(permit).await;
        }
        Ok(())
    }

    /// Releases a permit in the store. After an error it is still to be synced.
    pub(crate) async fn release_in_store(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        let budget = self.settings.follow_up_wait(permit.options.budget);
        let until = self.permit_deadline(permit);
        self.call(until, budget, |store| store.release(permit)).await?;
        self.node_state.permits.record_released(permit, self.store_time(), self.runtime.now());
        Ok(())
    }

    /// When the caller of a permit call stops waiting.
    fn permit_deadline(&self, permit: &PermitRequest<'_>) -> Nanos {
        permit.max_wait.map_or(Nanos::MAX, |max_wait| self.runtime.now().plus(max_wait))
    }

    /// Settles what this node holds of a reservation here, and the rest in the store. Only the store can settle what it
    /// holds: while it cannot be called this is an error, and may be sent again.
    pub(crate) async fn settle(self: &Arc<Self>, settle: &Settle<'_>) -> StoreResult<Settled> {
        let found = self.node_state.reservations.settle(settle, self.store_time());
        let (here, in_store): (Vec<usize>, Vec<usize>) = (0..found.len()).partition(|i| found[*i].is_some());
        let (here, in_store) = (part_of(settle, &here), part_of(settle, &in_store));
        let found: Vec<ReservationState> = found.into_iter().flatten().collect();
        self.correct_estimate(&here, &found).await?;
        let settled_here = here.outcome(&found, self.store_time());
        if in_store.set.charges.is_empty() {
            return Ok(settled_here);
        }
        let settled_in_store = self.follow_up(&in_store.set, |store| store.settle(&in_store)).await?;
        Ok(match settled_here {
            Settled::Done | Settled::Late => settled_here,
            Settled::Already | Settled::Lapsed => settled_in_store,
        })
    }

    /// Corrects a reservation that was admitted without the store: locally while the store does not count it, at the
    /// store once it does. Units whose refund is lost stay charged.
    async fn correct_estimate(self: &Arc<Self>, settle: &Settle<'_>, found: &[ReservationState]) -> StoreResult<()> {
        let more = settle.extra_charges(found);
        if !more.charges.is_empty() {
            self.force(&more).await?;
        }
        let set = settle.refunds(found);
        let Some(first) = set.charges.first() else {
            return Ok(());
        };
        let refund = Refund {
            id: id_of_part(settle.id, first.subject),
            charged_at: settle.refunds_charged_at(found),
            expires_at: self.store_time().plus(LATE_REPLY_TIMEOUT),
            set,
        };
        if self.bypasses_store(&refund.set) {
            self.node_state.refund_to_share(&refund, &self.membership.load(), self.store_time());
        } else {
            let _lost_or_done = self.follow_up(&refund.set, |store| store.refund(&refund)).await;
        }
        Ok(())
    }
}

/// A drawn lease as a charge and its outcome.
fn as_charge<'a>(charge: &Charge<'a>, lease: &LeaseReply) -> (ChargeSet<'a>, Outcome) {
    let units = Cost::new(lease.units);
    let set = ChargeSet::of_one(Charge { cost: units.unwrap_or(charge.cost), ..charge.clone() });
    let reading = LimitReading { verdict: Verdict::Allow { delay: Nanos::ZERO }, figures: lease.figures };
    let outcome = Outcome::new(units.is_some(), smallvec![reading], lease.at, Source::Exact);
    (set, Outcome { snapshots: lease.snapshot.iter().cloned().collect(), ..outcome })
}
