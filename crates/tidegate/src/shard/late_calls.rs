//! Decides while a reply is late, records the reply when it arrives, and runs the effects of the late ledger.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, Epoch, Outcome, Probe, Reserve, Source, Store};
use tidegate_core::units::{Cost, Nanos};

use crate::owned_charge::{OwnedCharge, OwnedSet};
use crate::runtime::Runtime;
use crate::shard::call::SentCharge;
use crate::shard::late::{
    CREDIT_TTL, Claim, LateChargeResult, LateEffect, LateId, LateLedger, LateView, Payment, Payments,
};
use crate::shard::refund::ChargeKind;
use crate::shard::shared_shard::{RequestStamp, SharedShard};

/// A request that was sent, and its id in the ledger.
pub(crate) struct OutstandingRequest {
    pub(crate) id: LateId,
    pub(crate) set: OwnedSet,
}

impl<S: Store + Probe + 'static, R: Runtime> SharedShard<S, R> {
    /// Decides a request whose reply is late by the newest state. The ledger records what pays for it, unless it is a
    /// peek.
    pub(crate) fn decide_by_newest(&self, set: &ChargeSet<'_>, intent: ChargeIntent) -> (Outcome, Payments) {
        let now = self.store_time();
        self.node_state.late.update(|ledger| {
            let views = self.late_views(set, ledger, now);
            let claims: SmallVec<[_; 4]> = views.iter().map(|view| view.claim).collect();
            let payments = ledger.affordable_payments(&claims, now);
            let admitted = set.admits(|i| payments[i] != Payment::None);
            if admitted && intent != ChargeIntent::Peek {
                ledger.pay(&claims, &payments, now);
            }
            let readings = views.iter().zip(&payments).map(|(view, payment)| view.reading(*payment, admitted));
            let outcome = Outcome::new(admitted, readings.collect(), now, Source::Late);
            let if_admitted = |payment| if admitted { payment } else { Payment::None };
            (outcome, payments.into_iter().map(if_admitted).collect())
        })
    }

    fn late_views(&self, set: &ChargeSet<'_>, ledger: &LateLedger, now: Nanos) -> SmallVec<[LateView; 4]> {
        let views = set.charges.iter().map(|charge| {
            let counter = charge.counter();
            let pending = self.node_state.write_back.units(counter, now);
            let newest = self.node_state.mirror.newest_state(charge, now);
            let unconfirmed = (ledger.waiting(counter), pending);
            LateView::new(charge, newest, self.division(counter), unconfirmed, now)
        });
        views.collect()
    }

    /// A request that was not sent is admitted: its units are pending.
    pub(crate) fn write_back_unsent(self: &Arc<Self>, set: &ChargeSet<'_>, payments: &Payments) {
        let charges = set.charges.iter().map(OwnedCharge::of);
        let (late, at) = (&self.node_state.late, self.store_time());
        let effects = late.update(|ledger| ledger.never_sent(charges, payments, at));
        self.run_effects(effects, None);
    }

    /// Spawns a task that awaits late replies and records them.
    pub(crate) fn await_late(
        self: &Arc<Self>,
        charge: SentCharge,
        requests: Vec<OutstandingRequest>,
        kind: ChargeKind,
    ) {
        let shard = Arc::clone(self);
        self.runtime.spawn(async move {
            let sent = charge.stamp;
            let sets: Vec<ChargeSet<'_>> = requests.iter().map(|r| r.set.set()).collect();
            let replies = shard.await_late_replies(charge, &sets.iter().collect::<Vec<_>>()).await;
            let mut replies = replies.into_iter().map(Result::ok);
            for (request, set) in requests.iter().zip(&sets) {
                shard.record_late_reply(request, set, replies.next().flatten(), kind, sent);
            }
            // Credits of these replies that are still unused are refunded: none of them is recorded after this.
            let until = shard.runtime.now().plus(CREDIT_TTL);
            shard.runtime.sleep(CREDIT_TTL).await;
            let counters = sets.iter().flat_map(|set| set.charges.iter().map(Charge::counter));
            let holds = |charge: &OwnedCharge| shard.holds(charge.subject);
            let expired = shard.node_state.late.update_active(|ledger| ledger.expire(counters, until, holds));
            shard.run_effects(expired, sent.epoch);
        });
    }

    fn record_late_reply(
        self: &Arc<Self>,
        request: &OutstandingRequest,
        set: &ChargeSet<'_>,
        outcome: Option<Outcome>,
        kind: ChargeKind,
        sent: RequestStamp,
    ) {
        let (lost, epoch) = (outcome.is_none(), sent.epoch);
        // Units that were charged in another epoch are lost with it.
        let outcome = outcome.filter(|o| self.epoch() == epoch && self.trusts_reply(set, o, sent));
        let charged = |i: usize| {
            let outcome = outcome.as_ref().filter(|outcome| outcome.admitted)?;
            let reading = outcome.readings.get(i)?;
            reading.verdict.allows().then_some(outcome.at)
        };
        let (store_time, now) = (self.store_time(), self.runtime.now());
        let write_back = &self.node_state.write_back;
        let effects = self.node_state.late.update(|ledger| {
            let result_of = |i: usize| match charged(i) {
                Some(_) if kind != ChargeKind::Charge => LateChargeResult::Denied,
                Some(at) => LateChargeResult::Charged(at),
                None if lost => LateChargeResult::Unknown,
                None => LateChargeResult::Denied,
            };
            let cancel_pending = |charge: &OwnedCharge| write_back.cancel(charge, store_time);
            ledger.replied(request.id, result_of, (now, store_time), cancel_pending)
        });
        self.run_effects(effects, epoch);
        // This node holds its own reservation. What the store reserved in addition is settled with zero used.
        if let (ChargeKind::Reserve { .. }, Some(outcome)) = (kind, outcome)
            && outcome.admitted
        {
            self.refund_in_background(set, outcome, epoch, kind);
        }
    }

    /// Pays by credits for a request that the store has just denied, if they cover it.
    pub(crate) fn pay_by_credits(&self, set: &ChargeSet<'_>) -> Option<Payments> {
        self.node_state.late.update_active(|ledger| {
            let claims: SmallVec<[_; 4]> = set.charges.iter().map(|charge| Claim::new(charge, 0)).collect();
            ledger.pay_by_credits(&claims, self.store_time())
        })
    }

    /// A reservation was admitted that the store does not know: this node holds it.
    pub(crate) fn reserve_here(&self, set: &ChargeSet<'_>, outcome: &Outcome, kind: ChargeKind) {
        if let ChargeKind::Reserve { id, ttl } = kind {
            let set = set.clone();
            let reserve = Reserve { id, ttl, set };
            self.node_state.reservations.insert(&reserve, outcome);
        }
    }

    /// Counts unconfirmed units toward this node's shares, before the shares decide.
    pub(crate) fn count_unconfirmed(&self, set: &ChargeSet<'_>) {
        let node_state = &self.node_state;
        for charge in &set.charges {
            let counter = charge.counter();
            let waiting = node_state.late.update_active(|l| l.take_unshared(counter));
            let units = waiting.saturating_add(node_state.write_back.take_unshared(counter));
            if let Some(cost) = Cost::new(units) {
                node_state.count_admitted(charge, cost, &self.membership.load(), self.store_time());
            }
        }
    }

    fn run_effects(self: &Arc<Self>, effects: Vec<LateEffect>, epoch: Option<Epoch>) {
        let now = self.store_time();
        let mut has_pending = false;
        for effect in effects {
            match effect {
                LateEffect::WriteBack { charge, admitted, unshared } => {
                    let mirror = &self.node_state.mirror;
                    let empty_at = mirror.empties_at(&charge.charge()).unwrap_or(now);
                    let write_back = &self.node_state.write_back;
                    write_back.add_late(&charge, admitted, now, empty_at, unshared);
                    has_pending = true;
                }
                LateEffect::Refund { charge, charged } => {
                    self.refund_units(charge, charged, epoch);
                }
            }
        }
        if has_pending {
            self.schedule_push(Nanos::ZERO);
        }
    }
}
