//! The verbs of a store, each divided among the parts that it concerns.

use std::collections::BTreeMap;
use std::pin::Pin;

use tidegate_core::store::{
    Charge, ChargeSet, Granted, Held, Hold, Inspection, Life, Outcome, Parts, Refund, Refunded,
    Reserve, Seed, Settle, Settled, Store, StoreError, Used,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use super::Spread;
use super::groups::{Group, by_place};
use super::tally::Tally;
use crate::resilience::join::join_all;
use crate::resilience::lease::Lender;
use crate::resilience::undo::Manner;
use crate::runtime::{Runtime, mix};

type Answer<T> = Result<T, StoreError>;

/// Charges that are under way, and which of all sets they are.
type Charging<'c> = Pin<Box<dyn Future<Output = Vec<(usize, Answer<Outcome>)>> + Send + 'c>>;

impl<P: Parts + 'static, R: Runtime> Lender for Spread<P, R> {
    fn life_of(&self, charge: &Charge<'_>) -> Option<Life> {
        self.0.place_of(charge.subject).store.life_of(charge)
    }

    fn budget_of(&self, set: &ChargeSet<'_>) -> Nanos {
        self.0.budget_of(set, Manner::Charge)
    }

    async fn charge_by(&self, until: Nanos, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let (places, of) = self.0.places_of(subjects(set));
        let charge = Manner::Charge;
        Ok(match places.as_slice() {
            [] => self.0.nothing_asked(),
            [only] => only.store.charge_by(until, set, charge).await.outcome,
            _ => {
                self.0
                    .charge_in_turn(until, set, &places, &of, charge)
                    .await
            }
        })
    }
}

impl<P: Parts + 'static, R: Runtime> Store for Spread<P, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let (places, of) = self.0.places_of(subjects(set));
        match places.as_slice() {
            [] => Ok(self.0.nothing_asked()),
            [only] => only.store.charge(set).await,
            _ => {
                let charging = self
                    .0
                    .charge_in_turn(Nanos::MAX, set, &places, &of, Manner::Charge);
                Ok(charging.await)
            }
        }
    }

    /// Those that are in one place each are asked about together, part by part. All parts are under
    /// way at once, and so are the rest.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let mut batches = BTreeMap::new();
        let mut charging: Vec<Charging<'_>> = Vec::new();
        for (i, set) in sets.iter().enumerate() {
            let (mut places, _) = self.0.places_of(subjects(set));
            match (places.len(), places.pop()) {
                (1, Some(only)) => {
                    let new = || (only.store, Vec::new());
                    let (_, of) = batches.entry(only.part).or_insert_with(new);
                    of.push(i);
                }
                _ => charging.push(Box::pin(async move { vec![(i, self.charge(set).await)] })),
            }
        }
        for (store, of) in batches.into_values() {
            charging.push(Box::pin(async move {
                let batch: Vec<&ChargeSet<'_>> = of.iter().map(|i| sets[*i]).collect();
                let answers = store.charge_each(&batch).await;
                of.into_iter().zip(answers).collect()
            }));
        }
        let mut answers: Vec<_> = join_all(charging).await.into_iter().flatten().collect();
        answers.sort_by_key(|(i, _)| *i);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let (places, of) = self.0.places_of(subjects(set));
        match places.as_slice() {
            [] => Ok(self.0.nothing_asked()),
            [only] => only.store.peek(set).await,
            _ => Ok(self.0.peek_apart(set, &places, &of).await),
        }
    }

    /// Each place gives back its own, under an id of its own, so that a second refund finds it
    /// everywhere. The result is that of one place, see `one_result`.
    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let (places, of) = self.0.places_of(subjects(&refund.set));
        if let [only] = places.as_slice() {
            return only.store.refund(refund).await;
        }
        let groups = by_place(&refund.set, &of);
        let refunding = groups.iter().map(async |group| {
            let own = Refund {
                id: refund.id ^ own_id(group),
                set: group.set.clone(),
                ..*refund
            };
            places[group.place].store.refund(&own).await
        });
        let done = join_all(refunding).await.into_iter();
        let done: Vec<Refunded> = done.collect::<Answer<_>>()?;
        Ok(one_result(&done, &Refunded::Lapsed))
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        self.0.place_of(charge.subject).store.grant(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let (places, of) = self.0.places_of(subjects(set));
        if let [only] = places.as_slice() {
            return only.store.force(set).await;
        }
        let groups = by_place(set, &of);
        let forcing = groups.iter().map(|g| places[g.place].store.force(&g.set));
        let mut tally = Tally::new(set.charges.len());
        for (group, outcome) in groups.iter().zip(join_all(forcing).await) {
            tally.note(group, &outcome?);
        }
        Ok(tally.outcome(true))
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let (set, manner) = (&reserve.set, Manner::of(reserve));
        let (places, of) = self.0.places_of(subjects(set));
        match places.as_slice() {
            [] => Ok(self.0.nothing_asked()),
            [only] => only.store.reserve(reserve).await,
            _ => Ok(self
                .0
                .charge_in_turn(Nanos::MAX, set, &places, &of, manner)
                .await),
        }
    }

    /// Each place settles its own. Where one gave no answer all of it may be sent again. The result is that
    /// of one place, see `one_result`.
    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        let (places, of) = self.0.places_of(subjects(&settle.set));
        if let [only] = places.as_slice() {
            return only.store.settle(settle).await;
        }
        let groups = by_place(&settle.set, &of);
        let settling = groups.iter().map(async |group| {
            let used = match &settle.used {
                Used::Known(used) => {
                    let own = group.of.iter().filter_map(|i| used.get(*i).copied());
                    Used::Known(own.collect())
                }
                Used::Unsaid => Used::Unsaid,
            };
            let own = Settle {
                set: group.set.clone(),
                used,
                ..*settle
            };
            places[group.place].store.settle(&own).await
        });
        let done = join_all(settling).await.into_iter();
        let done: Vec<Settled> = done.collect::<Answer<_>>()?;
        Ok(one_result(&done, &Settled::Lapsed))
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        let (places, of) = self
            .0
            .places_of(seeds.iter().map(|seed| seed.charge.subject));
        let seeding = places.iter().enumerate().map(async |(i, place)| {
            let here = of.iter().zip(seeds).filter(|(of, _)| **of == i);
            let here: Vec<Seed<'_>> = here.map(|(_, seed)| seed.clone()).collect();
            place.store.seed(&here).await
        });
        join_all(seeding).await.into_iter().collect()
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.0.place_of(hold.subject).store.hold(hold).await
    }

    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.0.place_of(hold.subject).store.renew(hold).await
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.0.place_of(hold.subject).store.release(hold).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        let (places, of) = self.0.places_of(subjects(set));
        let groups = by_place(set, &of);
        let inspecting = groups.iter().map(|g| places[g.place].store.inspect(&g.set));
        let mut inspections: Vec<Option<Inspection>> = vec![None; set.charges.len()];
        for (group, found) in groups.iter().zip(join_all(inspecting).await) {
            for (i, inspection) in group.of.iter().zip(found?) {
                inspections[*i] = inspection;
            }
        }
        Ok(inspections)
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        let (places, of) = self.0.places_of(subjects(set));
        let groups = by_place(set, &of);
        let resetting = groups.iter().map(|g| places[g.place].store.reset(&g.set));
        join_all(resetting).await.into_iter().sum()
    }
}

fn subjects(set: &ChargeSet<'_>) -> impl Iterator<Item = Fingerprint> {
    set.charges.iter().map(|charge| charge.subject)
}

/// The result of a verb that each place does once, from one result per place: that of the first place that
/// has not lapsed. The places are in the order of the charges, the same on every node. So when several nodes
/// send one id at the same moment, one place decides which of them was first, and only that one is `Done`.
fn one_result<T: Copy + PartialEq>(results: &[T], lapsed: &T) -> T {
    let first = results.iter().find(|result| *result != lapsed);
    *first.unwrap_or(lapsed)
}

/// What tells the refund of one place from those of the others. Made of a subject, because a place may
/// be in another part by the next time, but a subject stays in its slot.
fn own_id(group: &Group<'_>) -> u128 {
    let subject = group.set.charges.first().map(|charge| charge.subject);
    let bits = subject.map_or(0, Fingerprint::bits);
    let halves = [bits as u64, (bits >> 64) as u64].map(mix);
    u128::from(halves[0]) << 64 | u128::from(halves[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes that sent one receipt at the same moment were both first somewhere, and both reported `Done`.
    #[test]
    fn of_nodes_that_are_each_first_at_one_place_one_is_done() {
        use Refunded::{Already, Done, Lapsed};
        for (places, want) in [
            ([Done, Already], Done),
            ([Already, Done], Already),
            ([Done, Done], Done),
            ([Already, Already], Already),
            ([Lapsed, Done], Done),
            ([Lapsed, Already], Already),
            ([Done, Lapsed], Done),
            ([Lapsed, Lapsed], Lapsed),
        ] {
            assert_eq!(one_result(&places, &Lapsed), want, "{places:?}");
        }
    }
}
