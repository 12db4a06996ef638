//! The `Store` verbs. Leases decide charges as far as they can; everything else goes to the store behind.

use std::pin::{Pin, pin};
use std::sync::Arc;

use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits, Refund,
    Refunded, Reservations, Reserve, Restore, Settle, Settled, StoreResult,
};
use tidegate_core::units::Nanos;

use super::entry::LeaseAttempt;
use super::refill::Refill;
use super::{LeaseDecision, LeasingStore, LeasingStoreInner, Lender, PartialDecision, is_leased};
use crate::resilience::join_all;
use crate::resilience::within;
use crate::runtime::Runtime;

/// How many refills a request waits for, one after another. Each draw is larger than the one before, so a few serve any
/// crowd. Where tasks no longer run each refill ends at once, and the wait must end too.
const MAX_REFILLS: usize = 4;

/// The local part of a set, if the store is to decide only the rest of it.
type MaybePartial<'a, S, R> = Option<Box<PartialDecision<'a, S, R>>>;

/// A decision that waits for more than one reply of the store.
type DecisionFuture<'w> = Pin<Box<dyn Future<Output = StoreResult<Outcome>> + Send + 'w>>;

/// Decisions in flight, with the indices of their sets.
type DecisionBatchFuture<'d> = Pin<Box<dyn Future<Output = Vec<(usize, StoreResult<Outcome>)>> + Send + 'd>>;

impl<S: Lender + 'static, R: Runtime> LeasingStore<S, R> {
    /// Waits for refills, and decides by them. It waits for at most half of the budget, counted from when the draw was
    /// sent: if a draw is slow the store decides, while there is still time to find out that it is down.
    async fn decide_after_refill(&self, set: &ChargeSet<'_>, refill: Arc<Refill>) -> StoreResult<Outcome> {
        let LeasingStoreInner { store, runtime, .. } = &*self.0;
        let (began, budget) = (runtime.now(), store.budget_of(set));
        let mut next = LeaseDecision::AwaitRefill(refill);
        for _ in 0..MAX_REFILLS {
            let LeaseDecision::AwaitRefill(refill) = &next else {
                break;
            };
            let deadline = refill.sent.min(began).plus(Nanos::new(budget.get() / 2));
            let wait = deadline.since(runtime.now());
            if wait == Nanos::ZERO {
                break; // a timer would take longer than that
            }
            let ended = within(runtime, wait, pin!(refill.ended())).await;
            if ended.is_none() {
                break;
            }
            next = self.0.decide(set, LeaseAttempt::Retry);
        }
        match next {
            LeaseDecision::Local(outcome) => Ok(outcome),
            LeaseDecision::Partial(partial) => self.decide_rest(set, *partial).await,
            LeaseDecision::Remote | LeaseDecision::AwaitRefill(_) => {
                store.charge_with_deadline(began.plus(budget), set).await
            }
        }
    }

    /// The store decides the rest of a set: its units are used, or returned.
    async fn decide_rest<'a>(&self, set: &ChargeSet<'a>, partial: PartialDecision<'a, S, R>) -> StoreResult<Outcome> {
        let reply = self.0.store.charge(partial.split.remote().unwrap_or(set)).await;
        self.finish_partial(set, partial, reply)
    }

    /// The store decides whole sets and the rest of others in one call.
    async fn decide_together<'a>(
        &self,
        sets: &[&ChargeSet<'a>],
        remaining: Vec<(usize, MaybePartial<'a, S, R>)>,
    ) -> Vec<(usize, StoreResult<Outcome>)> {
        let remote_sets = remaining.iter().map(|(i, partial)| {
            let rest = partial.as_ref().and_then(|partial| partial.split.remote());
            rest.unwrap_or(sets[*i])
        });
        let remote_sets: Vec<&ChargeSet<'_>> = remote_sets.collect();
        let replies = self.0.store.charge_each(&remote_sets).await;
        let each = remaining.into_iter().zip(replies);
        each.map(|((i, partial), reply)| match partial {
            Some(partial) => (i, self.finish_partial(sets[i], *partial, reply)),
            None => (i, reply),
        })
        .collect()
    }

    /// Units of these counters may have been refunded.
    fn clear_exhausted(&self, set: &ChargeSet<'_>) {
        for charge in set.charges.iter().filter(|charge| is_leased(charge)) {
            let entry = &self.0.entries[self.0.entry_index(charge)];
            entry.lock().clear_exhausted(charge);
        }
    }

    fn finish_partial(
        &self,
        set: &ChargeSet<'_>,
        partial: PartialDecision<'_, S, R>,
        reply: StoreResult<Outcome>,
    ) -> StoreResult<Outcome> {
        match reply {
            Ok(rest) => Ok(self.0.finish_partial(set, partial, rest)),
            Err(error) => {
                let PartialDecision { taken_leases, in_flight: _until_returned, .. } = partial;
                self.0.return_taken(taken_leases);
                Err(error)
            }
        }
    }
}

impl<S: Lender + 'static, R: Runtime> Counters for LeasingStore<S, R> {
    /// A decision that waits for a refill or for the rest of a set is boxed: requests that simply go to the store are
    /// far more frequent, and their futures stay small.
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let deciding: Option<DecisionFuture<'_>> = match self.0.decide(set, LeaseAttempt::First) {
            LeaseDecision::Local(outcome) => return Ok(outcome),
            LeaseDecision::Remote => None,
            LeaseDecision::AwaitRefill(refill) => Some(Box::pin(self.decide_after_refill(set, refill))),
            LeaseDecision::Partial(partial) => Some(Box::pin(self.decide_rest(set, *partial))),
        };
        match deciding {
            Some(deciding) => deciding.await,
            None => self.0.store.charge(set).await,
        }
    }

    /// Charges the sets for the store in one call. Sets that wait for a refill do so in parallel.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let (mut replies, mut remaining) = (Vec::with_capacity(sets.len()), Vec::new());
        let mut deciding: Vec<DecisionBatchFuture<'_>> = Vec::new();
        for (i, set) in sets.iter().enumerate() {
            match self.0.decide(set, LeaseAttempt::First) {
                LeaseDecision::Local(outcome) => replies.push((i, Ok(outcome))),
                LeaseDecision::Remote => remaining.push((i, None)),
                LeaseDecision::Partial(partial) => remaining.push((i, Some(partial))),
                LeaseDecision::AwaitRefill(refill) => {
                    deciding.push(Box::pin(async move { vec![(i, self.decide_after_refill(set, refill).await)] }))
                }
            }
        }
        if !remaining.is_empty() {
            deciding.push(Box::pin(self.decide_together(sets, remaining)));
        }
        replies.extend(join_all(deciding).await.into_iter().flatten());
        replies.sort_by_key(|(i, _)| *i);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    /// Adds the units of leases to what the store reports.
    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let mut outcome = self.0.store.peek(set).await?;
        let (now, mut became_allowed) = (self.0.runtime.now(), false);
        let leased = set.charges.iter().zip(&mut outcome.readings);
        for (charge, reading) in leased.filter(|(charge, _)| is_leased(charge)) {
            let entry = self.0.entries[self.0.entry_index(charge)].lock();
            let available = entry.available(charge, now);
            if available >= charge.cost.get() && !reading.verdict.allows() {
                reading.verdict = Verdict::Allow { delay: Nanos::ZERO };
                became_allowed = true;
            }
            let figures = &mut reading.figures;
            let remaining = figures.remaining.saturating_add(available);
            figures.remaining = remaining.min(charge.limit.capacity());
        }
        if became_allowed {
            outcome.admitted = set.admits(|i| outcome.readings[i].verdict.allows());
        }
        Ok(outcome)
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let refunded = self.0.store.refund(refund).await;
        self.clear_exhausted(&refund.set);
        refunded
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        self.0.store.draw(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.0.store.force(set).await
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        self.0.store.restore(restores).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.0.store.inspect(set).await
    }

    /// Leases drawn before are void: their charge is reset with the rest. Other nodes use up their leases.
    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        let forgotten = self.0.store.reset(set).await;
        let counters: Vec<u128> = set.charges.iter().map(Charge::counter).collect();
        // A counter has an entry for each limit that it was ever charged under.
        for entry in &self.0.entries {
            let discarded = entry.lock().discard(&counters);
            self.0.record_lapsed(discarded);
        }
        forgotten
    }
}

impl<S: Lender + 'static, R: Runtime> Permits for LeasingStore<S, R> {
    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.0.store.acquire(permit).await
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.0.store.renew(permit).await
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        self.0.store.release(permit).await
    }
}

impl<S: Lender + 'static, R: Runtime> Reservations for LeasingStore<S, R> {
    /// It may refund expired reservations.
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        let reserved = self.0.store.reserve(reserve).await;
        self.clear_exhausted(&reserve.set);
        reserved
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        let settled = self.0.store.settle(settle).await;
        self.clear_exhausted(&settle.set);
        settled
    }
}
