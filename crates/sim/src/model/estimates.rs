//! Estimates and settlements as they go over the way between a node and its store, with every mistake that
//! can be made of it there.

use tidegate_core::store::{ChargeSet, Outcome, Refund, Reserve, Settle, Settled, Used};
use tidegate_core::units::Nanos;

use super::Model;
use super::books::{Posting, Step, Touched};
use super::link::{Answer, Link, subjects};
use crate::variant::Variant;

impl Link {
    /// Charges an estimate for the node.
    pub(super) async fn estimate(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        self.trip_for(subjects(&reserve.set), |model, now| {
            let outcome = self.charge_estimate(model, reserve, now);
            let step = Step::Reserved {
                id: reserve.id,
                lasts: reserve.lasts,
                admitted: outcome.admitted,
            };
            self.post(model, &reserve.set, step, now);
            outcome
        })
        .await
    }

    fn charge_estimate(&self, model: &mut Model, reserve: &Reserve<'_>, now: Nanos) -> Outcome {
        let counters = &mut model.counters;
        match self.variant {
            Variant::NeverReturns => counters.charge_estimate(reserve, now),
            Variant::ReturnsEarly => {
                counters.bring_back(&reserve.set, now.plus(reserve.lasts), now);
                counters.charge_estimate(reserve, now)
            }
            _ => counters.reserve(reserve, now),
        }
    }

    /// Corrects an estimate for the node.
    pub(super) async fn correct(&self, settle: &Settle<'_>) -> Answer<Settled> {
        self.trip_for(subjects(&settle.set), |model, now| {
            let settled = self.settle_estimate(model, settle, now);
            let step = Step::Settled {
                id: settle.id,
                used: match &settle.used {
                    Used::Known(used) => used.first().copied(),
                    Used::Unsaid => None,
                },
                too_late: settle.is_too_late(now),
                settled,
            };
            self.post(model, &settle.set, step, now);
            settled
        })
        .await
    }

    fn settle_estimate(&self, model: &mut Model, settle: &Settle<'_>, now: Nanos) -> Settled {
        let counters = &mut model.counters;
        match (self.variant, &settle.used) {
            (Variant::NeverReturns, Used::Unsaid) => Settled::Already,
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
                let less = Settle {
                    used: Used::Known(capped.collect()),
                    ..settle.clone()
                };
                counters.settle(&less, now)
            }
            _ => counters.settle(settle, now),
        }
    }

    /// Writes down a debt that was charged.
    pub(super) fn post_debt(&self, model: &mut Model, set: &ChargeSet<'_>, now: Nanos) {
        self.post(model, set, Step::Charged, now);
    }

    /// Writes down a refund that was made.
    pub(super) fn post_refund(&self, model: &mut Model, refund: &Refund<'_>, now: Nanos) {
        self.post(model, &refund.set, Step::Returned(refund.charged), now);
    }

    /// Writes down a step that the store has just taken.
    pub(super) fn post(&self, model: &mut Model, set: &ChargeSet<'_>, step: Step, at: Nanos) {
        self.books.post(|| Posting {
            now: self.sim.now(),
            at,
            node: self.node,
            step,
            touched: set
                .charges
                .iter()
                .map(|charge| Touched {
                    counter: charge.counter(),
                    units: charge.cost.get(),
                    after: model.counters.used(charge.counter(), &charge.limit, at),
                })
                .collect(),
        });
    }
}
