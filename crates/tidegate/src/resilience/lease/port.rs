//! The verbs of a store. Charges are decided by what is held here as far as it goes; everything else is
//! for the store behind.

use std::pin::{Pin, pin};
use std::sync::Arc;

use tidegate_core::algorithms::Verdict;
use tidegate_core::pass_on;
use tidegate_core::store::{
    Charge, ChargeSet, Outcome, Refund, Refunded, Reserve, Settle, Settled, Store, StoreError,
};
use tidegate_core::units::Nanos;

use super::place::Visit;
use super::refill::Refill;
use super::{Decided, Inner, Lease, Lender, Part, is_leased};
use crate::resilience::deadline::within;
use crate::resilience::join::join_all;
use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

/// So many are waited for, one after another. More at once are asked for each time, so that a few serve any
/// crowd; and where tasks are not run any more, each ends at once.
const REFILLS: usize = 4;

/// What of a set was decided here, if the store is to decide only the rest of it.
type Left<'a, S, R> = Option<Box<Part<'a, S, R>>>;

/// A decision that waits for more than one answer of the store.
type Waits<'w> = Pin<Box<dyn Future<Output = Answer<Outcome>> + Send + 'w>>;

/// Decisions that are under way, and of which of all sets they are.
type Deciding<'d> = Pin<Box<dyn Future<Output = Vec<(usize, Answer<Outcome>)>> + Send + 'd>>;

impl<S: Lender + 'static, R: Runtime> Lease<S, R> {
    /// Waits for more units, and decides by them. It waits at most for half of the budget, counted from when
    /// they were asked for: a store that is slow to lend is asked itself, while there is time to hear that it
    /// is away.
    async fn decide_soon(&self, set: &ChargeSet<'_>, refill: Arc<Refill>) -> Answer<Outcome> {
        let Inner { store, runtime, .. } = &*self.0;
        let (began, budget) = (runtime.now(), store.budget_of(set));
        let mut next = Decided::Soon(refill);
        for _ in 0..REFILLS {
            let Decided::Soon(refill) = &next else {
                break;
            };
            let gives_up = refill.sent.min(began).plus(Nanos::new(budget.get() / 2));
            let patience = gives_up.since(runtime.now());
            if patience == Nanos::ZERO {
                break; // a timer would take longer than that
            }
            let ended = within(runtime, patience, pin!(refill.ended())).await;
            if ended.is_none() {
                break;
            }
            next = self.0.decide(set, Visit::Again);
        }
        match next {
            Decided::Here(outcome) => Ok(outcome),
            Decided::Partly(part) => self.decide_rest(set, *part).await,
            Decided::Nowhere | Decided::Soon(_) => store.charge_by(began.plus(budget), set).await,
        }
    }

    /// The store decides the rest of a set: what was taken for it is used, or goes back.
    async fn decide_rest<'a>(&self, set: &ChargeSet<'a>, part: Part<'a, S, R>) -> Answer<Outcome> {
        let answer = self.0.store.charge(part.split.rest().unwrap_or(set)).await;
        self.settled(set, part, answer)
    }

    /// The store decides sets, or the rest of some, in one call.
    async fn decide_together<'a>(
        &self,
        sets: &[&ChargeSet<'a>],
        left: Vec<(usize, Left<'a, S, R>)>,
    ) -> Vec<(usize, Answer<Outcome>)> {
        let asked = left.iter().map(|(i, part)| {
            let rest = part.as_ref().and_then(|part| part.split.rest());
            rest.unwrap_or(sets[*i])
        });
        let asked: Vec<&ChargeSet<'_>> = asked.collect();
        let answers = self.0.store.charge_each(&asked).await;
        let each = left.into_iter().zip(answers);
        each.map(|((i, part), answer)| match part {
            Some(part) => (i, self.settled(sets[i], *part, answer)),
            None => (i, answer),
        })
        .collect()
    }

    /// Something may have been given back of these.
    fn reconsider(&self, set: &ChargeSet<'_>) {
        for charge in set.charges.iter().filter(|charge| is_leased(charge)) {
            let place = &self.0.places[self.0.place(charge)];
            place.lock().reconsider(charge);
        }
    }

    fn settled(
        &self,
        set: &ChargeSet<'_>,
        part: Part<'_, S, R>,
        answer: Answer<Outcome>,
    ) -> Answer<Outcome> {
        match answer {
            Ok(rest) => Ok(self.0.settle(set, part, rest)),
            Err(error) => {
                let Part {
                    takings,
                    under_way: _until_they_are_back,
                    ..
                } = part;
                self.0.put_back(takings);
                Err(error)
            }
        }
    }
}

impl<S: Lender + 'static, R: Runtime> Store for Lease<S, R> {
    /// What has to wait for more units or for the rest of a set is boxed: requests that are simply for the
    /// store are many more, and carry less.
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let waits: Option<Waits<'_>> = match self.0.decide(set, Visit::First) {
            Decided::Here(outcome) => return Ok(outcome),
            Decided::Nowhere => None,
            Decided::Soon(refill) => Some(Box::pin(self.decide_soon(set, refill))),
            Decided::Partly(part) => Some(Box::pin(self.decide_rest(set, *part))),
        };
        match waits {
            Some(waits) => waits.await,
            None => self.0.store.charge(set).await,
        }
    }

    /// What the store must be asked is asked together. Those that wait for more units do so beside it.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let (mut answers, mut left) = (Vec::with_capacity(sets.len()), Vec::new());
        let mut deciding: Vec<Deciding<'_>> = Vec::new();
        for (i, set) in sets.iter().enumerate() {
            match self.0.decide(set, Visit::First) {
                Decided::Here(outcome) => answers.push((i, Ok(outcome))),
                Decided::Nowhere => left.push((i, None)),
                Decided::Partly(part) => left.push((i, Some(part))),
                Decided::Soon(refill) => deciding.push(Box::pin(async move {
                    vec![(i, self.decide_soon(set, refill).await)]
                })),
            }
        }
        if !left.is_empty() {
            deciding.push(Box::pin(self.decide_together(sets, left)));
        }
        answers.extend(join_all(deciding).await.into_iter().flatten());
        answers.sort_by_key(|(i, _)| *i);
        answers.into_iter().map(|(_, answer)| answer).collect()
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
        self.reconsider(&refund.set);
        refunded
    }

    /// It may bring estimates back that nobody settled.
    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let reserved = self.0.store.reserve(reserve).await;
        self.reconsider(&reserve.set);
        reserved
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        let settled = self.0.store.settle(settle).await;
        self.reconsider(&settle.set);
        settled
    }

    pass_on!(self => self.0.store; grant, force, seed, hold, renew, release, inspect);

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
