//! Slots as they go over the way between a node and its store, with every mistake that can be made of it
//! there.

use tidegate_core::store::{Held, Hold};
use tidegate_core::units::Nanos;

use super::books::{Passage, Verb};
use super::link::{Answer, Link};
use super::slots::Slots;
use crate::variant::Variant;

/// Longer than any run.
const FOR_EVER: Nanos = Nanos::from_secs(1_000_000);

impl Link {
    /// Asks about a slot for the node, and writes down what became of it.
    pub(super) async fn ask_for_slot(&self, hold: &Hold<'_>, verb: Verb) -> Answer<Held> {
        self.trip_for(vec![hold.subject], |model, now| {
            let held = self.at_the_door(&mut model.slots, hold, verb, now);
            self.books.pass(Passage {
                now: self.sim.now(),
                node: self.node,
                counter: hold.counter(),
                holder: hold.holder,
                verb,
                most: hold.most,
                granted: held.granted,
                open: held.open,
            });
            held
        })
        .await
    }

    fn at_the_door(&self, slots: &mut Slots, hold: &Hold<'_>, verb: Verb, now: Nanos) -> Held {
        let unending = Hold {
            lasts: FOR_EVER,
            ..*hold
        };
        let hold = match self.variant {
            Variant::SlotsNeverEnd => &unending,
            _ => hold,
        };
        match (verb, self.variant) {
            // A renewal that takes what is not there.
            (Verb::Renew, Variant::RenewsReleased) => slots.hold(hold, now),
            (Verb::Hold, _) => slots.hold(hold, now),
            (Verb::Renew, _) => slots.renew(hold, now),
            (Verb::Release, Variant::ReleasesNothing) => slots.renew(hold, now),
            (Verb::Release, Variant::ReleasesAnother) => {
                let another = slots.another(hold, now);
                let other = Hold {
                    holder: another.unwrap_or(hold.holder),
                    ..*hold
                };
                slots.release(&other, now);
                slots.release(hold, now)
            }
            (Verb::Release, _) => slots.release(hold, now),
        }
    }
}
