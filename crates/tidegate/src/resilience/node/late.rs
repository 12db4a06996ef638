//! Deciding while a reply is late, and taking note of it when it arrives.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::store::{ChargeSet, Life, Outcome, Probe, Reserve, Source, Store};
use tidegate_core::units::{Cost, Nanos};

use super::{Node, SentIn};
use crate::resilience::guard::LateReply;
use crate::resilience::late::{
    CREDIT_LASTS, ChargeFate, Claim, LateEffect, LateId, LateLedger, LateView, Payment, Payments,
};
use crate::resilience::owned::{OwnedCharge, OwnedSet};
use crate::resilience::undo::Manner;
use crate::runtime::Runtime;

/// Whether what fits is paid for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LateIntent {
    Pay,
    Peek,
}

/// A request that was sent, and its place in the ledger.
pub(in crate::resilience) struct Outstanding {
    pub(in crate::resilience) id: LateId,
    pub(in crate::resilience) set: OwnedSet,
}

impl<S: Store + Probe + 'static, R: Runtime> Node<S, R> {
    /// Decides a request whose reply is late. What pays for it is kept in the ledger.
    pub(in crate::resilience) fn decide_late(&self, set: &ChargeSet<'_>) -> (Outcome, Payments) {
        self.judge_late(set, LateIntent::Pay)
    }

    /// What `decide_late` would answer.
    pub(in crate::resilience) fn peek_late(&self, set: &ChargeSet<'_>) -> Outcome {
        self.judge_late(set, LateIntent::Peek).0
    }

    fn judge_late(&self, set: &ChargeSet<'_>, intent: LateIntent) -> (Outcome, Payments) {
        let now = self.store_time();
        self.memory.late.update(|ledger| {
            let views = self.late_views(set, ledger, now);
            let claims: SmallVec<[_; 4]> = views.iter().map(|view| view.claim).collect();
            let (admitted, payments) = ledger.afford(&claims, now);
            if admitted && intent == LateIntent::Pay {
                ledger.pay(&claims, &payments, now);
            }
            let readings = views.iter().zip(&payments);
            let readings = readings.map(|(view, payment)| view.reading(*payment, admitted));
            let outcome = Outcome {
                admitted,
                readings: readings.collect(),
                seen: Vec::new(),
                at: now,
                source: Source::Late,
                clock_stepped: false,
            };
            let kept = |payment| if admitted { payment } else { Payment::None };
            (outcome, payments.into_iter().map(kept).collect())
        })
    }

    fn late_views(
        &self,
        set: &ChargeSet<'_>,
        ledger: &LateLedger,
        now: Nanos,
    ) -> SmallVec<[LateView; 4]> {
        let views = set.charges.iter().map(|charge| {
            let counter = charge.counter();
            let debt = self.memory.local.owed.units(counter, now);
            let newest = self.memory.mirror.newest(charge, now);
            let unconfirmed = (ledger.waiting(counter), debt);
            LateView::new(charge, newest, self.division(counter), unconfirmed, now)
        });
        views.collect()
    }

    /// A request that was not sent is admitted: its units are debt.
    pub(in crate::resilience) fn owe_late(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        payments: &Payments,
    ) {
        let charges = set.charges.iter().map(OwnedCharge::of);
        let (late, at) = (&self.memory.late, self.store_time());
        let effects = late.update(|ledger| ledger.never_sent(charges, payments, at));
        self.run_effects(effects, None);
    }

    /// Waits for late replies and takes note of them.
    pub(in crate::resilience) fn await_late(
        self: &Arc<Self>,
        late: LateReply,
        requests: Vec<Outstanding>,
        manner: Manner,
    ) {
        let node = Arc::clone(self);
        self.runtime.spawn(async move {
            let (sent, epoch) = (late.sent, late.epoch);
            let sets: Vec<ChargeSet<'_>> = requests.iter().map(|r| r.set.set()).collect();
            let answers = node.guard.late_replies(late, &sets).await;
            let mut answers = answers.into_iter().map(Result::ok);
            for (request, set) in requests.iter().zip(&sets) {
                let outcome = answers.next().flatten();
                node.replied_late(request, set, outcome, manner, (sent, epoch));
            }
            // Credits of these replies that nobody has used by then are refunded.
            node.runtime.sleep(CREDIT_LASTS).await;
            let now = node.runtime.now();
            let holds = |charge: &OwnedCharge| node.guard.slot(charge.subject).is_some();
            let late = &node.memory.late;
            let expired = late.update_active(|ledger| ledger.expire(now, holds));
            node.run_effects(expired, epoch);
        });
    }

    fn replied_late(
        self: &Arc<Self>,
        request: &Outstanding,
        set: &ChargeSet<'_>,
        outcome: Option<Outcome>,
        manner: Manner,
        (sent, epoch): (Nanos, Option<Life>),
    ) {
        let lost = outcome.is_none();
        let sent_in = SentIn { at: sent, epoch };
        // What another epoch charged is gone with it.
        let outcome =
            outcome.filter(|o| self.guard.life() == epoch && self.believes_still(set, o, sent_in));
        let charged = |i: usize| {
            let outcome = outcome.as_ref().filter(|outcome| outcome.admitted)?;
            let reading = outcome.readings.get(i)?;
            reading.verdict.allows().then_some(outcome.at)
        };
        let (store_time, now) = (self.store_time(), self.runtime.now());
        let owed = &self.memory.local.owed;
        let effects = self.memory.late.update(|ledger| {
            let fate = |i: usize| match charged(i) {
                Some(_) if manner != Manner::Charge => ChargeFate::Denied,
                Some(at) => ChargeFate::Charged(at),
                None if lost => ChargeFate::Unknown,
                None => ChargeFate::Denied,
            };
            let settle_debt = |charge: &OwnedCharge| owed.cancel(charge, store_time);
            ledger.replied(request.id, fate, (now, store_time), settle_debt)
        });
        self.run_effects(effects, epoch);
        // This node keeps its reservations. What the store reserved beside is settled with nothing.
        if let (Manner::Reserve { .. }, Some(outcome)) = (manner, outcome)
            && outcome.admitted
        {
            self.guard.give_back(set, outcome, epoch, manner);
        }
    }

    /// Whether credits pay for a request that the store has just denied.
    pub(in crate::resilience) fn pays_by_credits(&self, set: &ChargeSet<'_>) -> bool {
        let at = self.store_time();
        self.memory.late.update_active(|ledger| {
            let claims = set.charges.iter().map(|charge| Claim {
                counter: charge.counter(),
                units: charge.cost.get(),
                room: 0,
                role: charge.role,
            });
            ledger.pay_by_credits(&claims.collect::<SmallVec<[_; 4]>>(), at)
        })
    }

    /// An estimate was admitted that the store does not know: this node settles it.
    pub(in crate::resilience) fn reserve_here(
        &self,
        set: &ChargeSet<'_>,
        outcome: &Outcome,
        manner: Manner,
    ) {
        if let Manner::Reserve { id, lasts } = manner {
            let set = set.clone();
            let reserve = Reserve { id, lasts, set };
            self.memory.reserved.enter(&reserve, outcome);
        }
    }

    /// This node's shares count what is unconfirmed, before they decide.
    pub(in crate::resilience) fn share_unconfirmed(&self, set: &ChargeSet<'_>) {
        let (memory, now) = (&self.memory, self.store_time());
        for charge in &set.charges {
            let counter = charge.counter();
            let waiting = memory.late.update_active(|l| l.take_unshared(counter));
            let units = waiting.saturating_add(memory.local.owed.take_unshared(counter));
            if let Some(cost) = Cost::new(units) {
                let division = self.division(counter);
                memory
                    .local
                    .count(charge, cost, division, &memory.mirror, now);
            }
        }
    }

    fn run_effects(self: &Arc<Self>, effects: Vec<LateEffect>, epoch: Option<Life>) {
        let now = self.store_time();
        let mut owes = false;
        for effect in effects {
            match effect {
                LateEffect::Debt {
                    charge,
                    admitted,
                    unshared,
                } => {
                    let mirror = &self.memory.mirror;
                    let empty_at = mirror.empties_at(&charge.charge()).unwrap_or(now);
                    let owed = &self.memory.local.owed;
                    owed.spend_late(&charge, admitted, now, empty_at, unshared);
                    owes = true;
                }
                LateEffect::Refund { charge, charged } => {
                    self.guard.refund_units(charge, charged, epoch);
                }
            }
        }
        if owes {
            self.push_now();
        }
    }
}
