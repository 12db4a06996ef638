//! The verbs of a store. Charges are decided by what is held here as far as it goes; everything else is
//! for the store behind.

use tidegate_core::algorithms::Verdict;
use tidegate_core::pass_on;
use tidegate_core::store::{Charge, ChargeSet, Outcome, Refund, Refunded, Store, StoreError};
use tidegate_core::units::Nanos;

use super::{Decided, Lease, Lender, Part, is_leased};
use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

impl<S: Lender + 'static, R: Runtime> Lease<S, R> {
    /// The store has answered what was not decided here: what was taken is used, or goes back.
    fn settled(
        &self,
        set: &ChargeSet<'_>,
        decided: Decided<'_, S, R>,
        answer: Answer<Outcome>,
    ) -> Answer<Outcome> {
        match (decided, answer) {
            (Decided::Partly(part), Ok(rest)) => Ok(self.0.settle(set, *part, rest)),
            (Decided::Partly(part), Err(error)) => {
                let Part {
                    takings,
                    under_way: _until_they_are_back,
                    ..
                } = *part;
                self.0.put_back(takings);
                Err(error)
            }
            (_, answer) => answer,
        }
    }
}

impl<'a, S, R> Decided<'a, S, R> {
    /// What the store is to be asked of a set, if anything.
    fn asks<'s>(&'s self, set: &'s ChargeSet<'a>) -> Option<&'s ChargeSet<'a>> {
        match self {
            Decided::Here(_) => None,
            Decided::Nowhere => Some(set),
            Decided::Partly(part) => part.split.rest(),
        }
    }
}

impl<S: Lender + 'static, R: Runtime> Store for Lease<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let decided = match self.0.decide(set) {
            Decided::Here(outcome) => return Ok(outcome),
            decided => decided,
        };
        let asked = decided.asks(set).unwrap_or(set);
        let answer = self.0.store.charge(asked).await;
        self.settled(set, decided, answer)
    }

    /// What the store must be asked is asked together.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let decided: Vec<Decided<'_, S, R>> = sets.iter().map(|set| self.0.decide(set)).collect();
        let asked = decided.iter().zip(sets);
        let asked: Vec<&ChargeSet<'_>> = asked.filter_map(|(d, set)| d.asks(set)).collect();
        let answers = match asked.is_empty() {
            true => Vec::new(),
            false => self.0.store.charge_each(&asked).await,
        };
        let mut answers = answers.into_iter();
        let each = sets.iter().zip(decided);
        each.filter_map(|(set, decided)| match decided {
            Decided::Here(outcome) => Some(Ok(outcome)),
            asked => Some(self.settled(set, asked, answers.next()?)),
        })
        .collect()
    }

    /// What is held here is there for the taking.
    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let mut outcome = self.0.store.peek(set).await?;
        let (now, mut turned) = (self.0.runtime.now(), false);
        let leased = set.charges.iter().zip(&mut outcome.readings);
        for (charge, reading) in leased.filter(|(charge, _)| is_leased(charge)) {
            let place = self.0.places[self.0.place(charge)].lock();
            let ready = place.ready(charge, now);
            if ready >= charge.cost.get() && !reading.verdict.allows() {
                reading.verdict = Verdict::Allow { delay: Nanos::ZERO };
                turned = true;
            }
            let figures = &mut reading.figures;
            let remaining = figures.remaining.saturating_add(ready);
            figures.remaining = remaining.min(charge.limit.capacity());
        }
        if turned {
            outcome.admitted = set.admits(|i| outcome.readings[i].verdict.allows());
        }
        Ok(outcome)
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let refunded = self.0.store.refund(refund).await;
        for charge in refund.set.charges.iter().filter(|c| is_leased(c)) {
            let place = &self.0.places[self.0.place(charge)];
            place.lock().reconsider(charge);
        }
        refunded
    }

    pass_on!(self => self.0.store; grant, force, reserve, settle, seed, hold, renew, release, inspect);

    /// What was drawn before is void: its charge is forgotten with the rest. Other nodes use up what they
    /// hold.
    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        let forgotten = self.0.store.reset(set).await;
        let counters: Vec<u128> = set.charges.iter().map(Charge::counter).collect();
        // A counter has a place for each limit it was ever charged under.
        for place in &self.0.places {
            let dropped = place.lock().drop_all(&counters);
            self.0.lapsed(dropped);
        }
        forgotten
    }
}
