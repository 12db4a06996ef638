//! Reserve and settle calls between a node and its store, with the deliberate mistakes of [`Variant`].

use tidegate_core::store::{ChargeSet, Outcome, Refund, Reserve, Settle, Settled, StoreResult, Used};
use tidegate_core::units::Nanos;

use super::Model;
use super::link::{ModelLink, subjects_of};
use super::store_log::{CounterChange, ReservationEvent, ReservationEventKind};
use crate::variant::Variant;

impl ModelLink {
    /// Charges an estimate for the node.
    pub(super) async fn call_reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        self.call_for(subjects_of(&reserve.set), |model, now| {
            let outcome = self.reserve_estimate(model, reserve, now);
            let event =
                ReservationEventKind::Reserved { id: reserve.id, lasts: reserve.ttl, admitted: outcome.admitted };
            self.log_reservation(model, &reserve.set, event, now);
            outcome
        })
        .await
    }

    fn reserve_estimate(&self, model: &mut Model, reserve: &Reserve<'_>, now: Nanos) -> Outcome {
        let counters = &mut model.counters;
        match self.variant {
            Variant::NeverReturns => counters.charge_estimate(reserve, now),
            Variant::ReturnsEarly => {
                counters.return_expired(&reserve.set, now.plus(reserve.ttl), now);
                counters.charge_estimate(reserve, now)
            }
            _ => counters.reserve(reserve, now),
        }
    }

    /// Settles an estimate for the node.
    pub(super) async fn call_settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        self.call_for(subjects_of(&settle.set), |model, now| {
            let settled = self.settle_estimate(model, settle, now);
            let event = ReservationEventKind::Settled {
                id: settle.id,
                used: match &settle.used {
                    Used::Known(used) => used.first().copied(),
                    Used::Unknown => None,
                },
                too_late: settle.is_too_late(now),
                settled,
            };
            self.log_reservation(model, &settle.set, event, now);
            settled
        })
        .await
    }

    fn settle_estimate(&self, model: &mut Model, settle: &Settle<'_>, now: Nanos) -> Settled {
        let counters = &mut model.counters;
        match (self.variant, &settle.used) {
            (Variant::NeverReturns, Used::Unknown) => Settled::Already,
            (Variant::SettlesTwice, _) => {
                let open = counters.reserved.clone();
                let settled = counters.settle(settle, now);
                counters.reserved = open;
                settled
            }
            (Variant::RefundsInFull, Used::Known(used)) => {
                // As if the difference had been charged just now.
                let before = counters.clone();
                let settled = counters.settle(settle, now);
                if settled == Settled::Done {
                    let reserved = counters.reserved.clone();
                    *counters = before;
                    counters.reserved = reserved;
                    counters.correct_in_full(&settle.set, used, now);
                }
                settled
            }
            (Variant::ForgivesLate, Used::Known(_)) => {
                let before = counters.clone();
                let settled = counters.settle(settle, now);
                if settled == Settled::Late {
                    *counters = before;
                }
                settled
            }
            (Variant::ForgivesDebt, Used::Known(used)) => {
                let charges = settle.set.charges.iter().zip(used);
                let capped = charges.map(|(charge, used)| charge.cost.get().min(*used));
                let less = Settle { used: Used::Known(capped.collect()), ..settle.clone() };
                counters.settle(&less, now)
            }
            _ => counters.settle(settle, now),
        }
    }

    /// Logs a forced charge, and returns its index. Its reply has not arrived yet.
    pub(super) fn log_forced(&self, model: &mut Model, set: &ChargeSet<'_>, now: Nanos) -> Option<usize> {
        self.log_reservation(model, set, ReservationEventKind::Charged { acknowledged: false }, now)
    }

    /// Logs a refund.
    pub(super) fn log_refund_event(&self, model: &mut Model, refund: &Refund<'_>, now: Nanos) {
        self.log_reservation(model, &refund.set, ReservationEventKind::Returned(refund.charged_at), now);
    }

    /// Logs an operation that the store has just performed.
    pub(super) fn log_reservation(
        &self,
        model: &mut Model,
        set: &ChargeSet<'_>,
        event: ReservationEventKind,
        at: Nanos,
    ) -> Option<usize> {
        self.log.record_reservation(|| ReservationEvent {
            now: self.sim.now(),
            at,
            node: self.node,
            kind: event,
            changes: set
                .charges
                .iter()
                .map(|charge| CounterChange {
                    counter: charge.counter(),
                    units: charge.cost.get(),
                    after: model.counters.used(charge.counter(), &charge.limit, at),
                })
                .collect(),
        })
    }
}
