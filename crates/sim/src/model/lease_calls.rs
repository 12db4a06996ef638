//! Lease and refund calls between a node and its store, with the deliberate mistakes of [`Variant`].

use tidegate_core::store::{Charge, ChargeSet, LeaseReply, Refund, Refunded, StoreResult};
use tidegate_core::units::{Cost, Nanos};

use super::Model;
use super::link::{ModelLink, subjects_of};
use super::store_log::OpKind;
use crate::variant::Variant;

impl ModelLink {
    /// Draws a lease for the node and logs it.
    pub(super) async fn call_draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        let sent = self.sim.now();
        let drawing = self.call_for(vec![charge.subject], |model, now| {
            let drawn = self.draw_units(model, charge, now);
            let kind = OpKind::Drawn(drawn.units);
            let index = self.log_op(charge.counter(), sent, Some(now), kind);
            (drawn, index)
        });
        let (drawn, index) = match drawing.await {
            Err(_) if self.variant == Variant::LeasesWithoutStore => {
                return Ok(self.invent_lease(charge));
            }
            drawn => drawn?,
        };
        let replied_at = self.sim.now();
        self.log.update_op(index, |op| op.replied_at = Some(replied_at));
        if self.variant == Variant::UsesReturnedLease
            && let Some(units) = Cost::new(drawn.units)
        {
            self.refund_at_once(charge, units, drawn.at);
        }
        Ok(self.as_received(charge, drawn))
    }

    fn draw_units(&self, model: &mut Model, charge: &Charge<'_>, now: Nanos) -> LeaseReply {
        match self.variant {
            Variant::LeasesUncharged => {
                let mut aside = model.counters.clone();
                aside.draw(charge, now)
            }
            _ => model.counters.draw(charge, now),
        }
    }

    /// The reply as the node receives it.
    fn as_received(&self, charge: &Charge<'_>, drawn: LeaseReply) -> LeaseReply {
        match self.variant {
            Variant::ForgetsLeases => LeaseReply { snapshot: None, ..drawn },
            Variant::LeasesMore => LeaseReply { units: drawn.units * 2, ..drawn },
            // As if the lease had been charged at the start of the window and had the whole window left.
            Variant::OutlastsWindows => {
                LeaseReply { at: charge.limit.window_at(drawn.at).map_or(drawn.at, |w| w.0), ..drawn }
            }
            _ => drawn,
        }
    }

    /// An uncharged lease, as a node without the store would invent it.
    fn invent_lease(&self, charge: &Charge<'_>) -> LeaseReply {
        let now = self.model.lock().time(self.sim.now());
        let mut state = charge.limit.fresh(now);
        let at = charge.limit.advance(&mut state, now);
        LeaseReply { units: charge.cost.get(), figures: charge.limit.figures(&state, at), snapshot: None, at: now }
    }

    fn refund_at_once(&self, charge: &Charge<'_>, units: Cost, charged: Nanos) {
        let mut model = self.model.lock();
        let now = model.time(self.sim.now());
        let refund = Refund {
            id: u128::from(self.sim.with_rng(crate::Rng::next_u64)),
            charged_at: charged,
            expires_at: now.plus(Nanos::from_secs(10)),
            set: ChargeSet::of([Charge { cost: units, ..charge.clone() }]),
        };
        model.counters.refund(&refund, now);
        let kind = OpKind::Returned(units.get(), charged);
        self.log_op(charge.counter(), self.sim.now(), Some(now), kind);
    }

    /// Refunds units for the node.
    pub(super) async fn call_refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        if self.variant == Variant::NeverRefunds {
            return Ok(Refunded::Done);
        }
        let again = Refund { id: !refund.id, ..refund.clone() };
        let twice = self.variant == Variant::RetriesRefunds;
        let mut indexes = self.log_refund_ops(refund);
        if twice {
            indexes.extend(self.log_refund_ops(&again));
        }
        self.call_for(subjects_of(&refund.set), |model, now| {
            if twice {
                model.counters.refund(&again, now);
            }
            let refunded = match self.variant {
                Variant::RefundsInFull => {
                    let charged = now;
                    let full = Refund { charged_at: charged, ..refund.clone() };
                    model.counters.refund(&full, now)
                }
                _ => model.counters.refund(refund, now),
            };
            if refunded == Refunded::Done {
                for index in indexes {
                    self.log.update_op(index, |op| op.at = Some(now));
                }
                self.log_refund_event(model, refund, now);
            }
            refunded
        })
        .await
    }

    fn log_refund_ops(&self, refund: &Refund<'_>) -> Vec<usize> {
        let sent = self.sim.now();
        let charges = refund.set.charges.iter();
        let logged = charges.map(|charge| {
            let kind = OpKind::Returned(charge.cost.get(), refund.charged_at);
            self.log_op(charge.counter(), sent, None, kind)
        });
        logged.collect()
    }
}
