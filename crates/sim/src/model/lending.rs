//! Units drawn in advance and units given back, as they go over the way between a node and its store,
//! with every mistake that can be made of it there.

use tidegate_core::store::{Charge, ChargeSet, Granted, Refund, Refunded};
use tidegate_core::units::{Cost, Nanos};

use super::Model;
use super::books::Deed;
use super::link::{Answer, Link, subjects};
use crate::variant::Variant;

impl Link {
    /// Draws units for the node, and writes down what it is given.
    pub(super) async fn lend(&self, charge: &Charge<'_>) -> Answer<Granted> {
        let sent = self.sim.now();
        let lending = self.trip_for(vec![charge.subject], |model, now| {
            let granted = self.draw(model, charge, now);
            let deed = Deed::Drawn(granted.units);
            let place = self.book(charge.counter(), sent, Some(now), deed);
            (granted, place)
        });
        let (granted, place) = match lending.await {
            Err(_) if self.variant == Variant::LendsWithoutTheStore => {
                return Ok(self.make_up(charge));
            }
            lent => lent?,
        };
        let heard = self.sim.now();
        self.books.amend(place, |entry| entry.heard = Some(heard));
        if self.variant == Variant::UsesWhatItGaveBack
            && let Some(units) = Cost::new(granted.units)
        {
            self.give_back_at_once(charge, units, granted.at);
        }
        Ok(self.told(charge, granted))
    }

    fn draw(&self, model: &mut Model, charge: &Charge<'_>, now: Nanos) -> Granted {
        match self.variant {
            Variant::LendsUncharged => {
                let mut aside = model.counters.clone();
                aside.grant(charge, now)
            }
            _ => model.counters.grant(charge, now),
        }
    }

    /// What the node makes of the answer.
    fn told(&self, charge: &Charge<'_>, granted: Granted) -> Granted {
        match self.variant {
            Variant::ForgetsGrants => Granted {
                seen: None,
                ..granted
            },
            Variant::LendsMore => Granted {
                units: granted.units * 2,
                ..granted
            },
            // As if it had been charged as the window began, and had all of it before it.
            Variant::OutlastsWindows => Granted {
                at: charge
                    .limit
                    .window_at(granted.at)
                    .map_or(granted.at, |w| w.0),
                ..granted
            },
            _ => granted,
        }
    }

    /// Units that nobody charged, by a node that is alone.
    fn make_up(&self, charge: &Charge<'_>) -> Granted {
        let now = self.model.lock().time(self.sim.now());
        let mut state = charge.limit.fresh(now);
        let at = charge.limit.advance(&mut state, now);
        Granted {
            units: charge.cost.get(),
            figures: charge.limit.figures(&state, at),
            seen: None,
            at: now,
        }
    }

    fn give_back_at_once(&self, charge: &Charge<'_>, units: Cost, charged: Nanos) {
        let mut model = self.model.lock();
        let now = model.time(self.sim.now());
        let refund = Refund {
            id: u128::from(self.sim.draw(crate::Rng::any)),
            charged,
            until: now.plus(Nanos::from_secs(10)),
            set: ChargeSet::of([Charge {
                cost: units,
                ..charge.clone()
            }]),
        };
        model.counters.refund(&refund, now);
        let deed = Deed::Returned(units.get(), charged);
        self.book(charge.counter(), self.sim.now(), Some(now), deed);
    }

    /// Gives units back for the node.
    pub(super) async fn take_back(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        if self.variant == Variant::NeverTakesBack {
            return Ok(Refunded::Done);
        }
        let again = Refund {
            id: !refund.id,
            ..refund.clone()
        };
        let twice = self.variant == Variant::RetriesRefunds;
        let mut places = self.book_refund(refund);
        if twice {
            places.extend(self.book_refund(&again));
        }
        self.trip_for(subjects(&refund.set), |model, now| {
            if twice {
                model.counters.refund(&again, now);
            }
            let refunded = match self.variant {
                Variant::RefundsInFull => {
                    let charged = now;
                    let full = Refund {
                        charged,
                        ..refund.clone()
                    };
                    model.counters.refund(&full, now)
                }
                _ => model.counters.refund(refund, now),
            };
            if refunded == Refunded::Done {
                for place in places {
                    self.books.amend(place, |entry| entry.at = Some(now));
                }
                self.post_refund(model, refund, now);
            }
            refunded
        })
        .await
    }

    fn book_refund(&self, refund: &Refund<'_>) -> Vec<usize> {
        let sent = self.sim.now();
        let charges = refund.set.charges.iter();
        let booked = charges.map(|charge| {
            let deed = Deed::Returned(charge.cost.get(), refund.charged);
            self.book(charge.counter(), sent, None, deed)
        });
        booked.collect()
    }
}
