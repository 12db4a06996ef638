//! The `Store` verbs. What can be decided here is; everything else goes to the store behind.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{
    Charge, ChargeSet, Counters, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits, Refund,
    Refunded, Reservations, Reserve, Restore, RuleOptions, Settle, Settled, StoreResult,
};
use tidegate_core::units::Nanos;

use super::decision::{SplitSet, Undecided, may_decide_ahead};
use super::leased_counter::LeaseAttempt;
use super::{Ahead, AheadInner, BackingStore};
use crate::runtime::{InFlightGuard, Runtime, join_all, within};

/// How many refills a request waits for, one after another. Each draw is larger than the one before, so a few serve any
/// crowd. Where tasks no longer run each refill ends at once, and the wait must end too.
const MAX_REFILLS: usize = 4;

/// Decisions in flight, with the indices of their sets.
type DecisionBatchFuture<'d> = Pin<Box<dyn Future<Output = Vec<(usize, StoreResult<Outcome>)>> + Send + 'd>>;

impl<S: BackingStore + 'static, R: Runtime> AheadInner<S, R> {
    fn cached_denial(&self, set: &ChargeSet<'_>, now: Nanos) -> Option<Outcome> {
        self.table.cached_denial(set, now).filter(|_| !self.has_late_charges(set))
    }

    fn record_denials(&self, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos) {
        if !outcome.admitted && !self.has_late_charges(set) {
            self.table.record_denials(set, outcome, sent, self.max_denial_age);
        }
    }

    fn has_late_charges(&self, set: &ChargeSet<'_>) -> bool {
        set.charges.iter().any(|charge| self.store.has_late_charges(charge.counter()))
    }

    /// Records a reply of the store to `set`, sent at `sent`.
    fn record_reply(self: &Arc<Self>, set: &ChargeSet<'_>, reply: &StoreResult<Outcome>, sent: Nanos) {
        if let Ok(outcome) = reply
            && !self.draining.load(Ordering::SeqCst)
        {
            self.table.record_views(set, outcome, sent, self.runtime.now());
        }
        if may_decide_ahead(set) {
            self.start_task();
        }
    }

    /// Decides what can be decided of a set, and draws leases.
    fn decide<'a>(self: &Arc<Self>, set: &ChargeSet<'a>, attempt: LeaseAttempt) -> Result<Outcome, Undecided<'a>> {
        if !may_decide_ahead(set) {
            return Err(Undecided::Remote);
        }
        // Units counted for the only charge of a set are never returned.
        let in_flight = (set.charges.len() > 1).then(|| InFlightGuard::begin(&self.in_flight));
        if self.draining.load(Ordering::SeqCst) {
            return Err(Undecided::Remote);
        }
        let mut draws = Vec::new();
        let decision = self.table.decide(set, attempt, self.runtime.now(), &mut draws);
        if !draws.is_empty() {
            self.spawn_draws(draws);
        }
        match decision {
            Err(Undecided::Split(mut split)) => {
                split.in_flight = in_flight;
                Err(Undecided::Split(split))
            }
            // A wait so long might leave no time to call the store.
            Err(Undecided::Refill(refill)) if !refill.is_quick(self.store.budget_of(set)) => Err(Undecided::Remote),
            decision => decision,
        }
    }

    /// The store decides a whole set.
    async fn charge_remote(self: &Arc<Self>, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let sent = self.runtime.now();
        let reply = self.store.charge(set).await;
        self.record_reply(set, &reply, sent);
        reply
    }

    /// Decides a set that waits for a refill or for the store. It waits for refills for at most half of the budget,
    /// counted from when the draw was sent: if a draw is slow the store decides, while there is still time to find out
    /// that it is down.
    async fn complete<'a>(self: &Arc<Self>, set: &ChargeSet<'a>, mut undecided: Undecided<'a>) -> StoreResult<Outcome> {
        let (began, budget) = (self.runtime.now(), self.store.budget_of(set));
        for _ in 0..MAX_REFILLS {
            let Undecided::Refill(refill) = &undecided else {
                break;
            };
            let deadline = refill.sent.min(began).plus(Nanos::new(budget.get() / 2));
            let wait = deadline.since(self.runtime.now());
            if wait == Nanos::ZERO || within(&self.runtime, wait, pin!(refill.ended())).await.is_none() {
                break; // a timer would take longer than no time
            }
            match self.decide(set, LeaseAttempt::Retry) {
                Ok(outcome) => return Ok(outcome),
                Err(still) => undecided = still,
            }
        }
        let sent = self.runtime.now();
        match undecided {
            Undecided::Split(split) => {
                let (rest, is_denied) = (&split.rest, split.is_denied());
                let rest = if is_denied { self.store.peek(rest).await } else { self.store.charge(rest).await };
                self.finish(set, *split, rest, sent)
            }
            Undecided::Remote | Undecided::Refill(_) => {
                let max_wait = Some(began.plus(budget).since(sent));
                self.charge_remote(&ChargeSet { max_wait, ..set.clone() }).await
            }
        }
    }

    /// The store has decided the rest of a set.
    fn finish(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        split: SplitSet<'_>,
        rest: StoreResult<Outcome>,
        sent: Nanos,
    ) -> StoreResult<Outcome> {
        self.record_reply(&split.rest, &rest, sent);
        let outcome = self.table.finish(set, split, rest, self.runtime.now());
        self.start_task();
        outcome
    }

    /// The store decides whole sets and the rest of others in one call.
    async fn charge_together<'a>(
        self: &Arc<Self>,
        sets: &[&ChargeSet<'a>],
        remaining: Vec<(usize, Option<Box<SplitSet<'a>>>)>,
    ) -> Vec<(usize, StoreResult<Outcome>)> {
        let sent = self.runtime.now();
        let remote = remaining.iter().map(|(i, split)| split.as_ref().map_or(sets[*i], |split| &split.rest));
        let remote: Vec<&ChargeSet<'_>> = remote.collect();
        let replies = self.store.charge_each(&remote).await;
        let each = remaining.into_iter().zip(replies).map(|((i, split), reply)| match split {
            Some(split) => (i, self.finish(sets[i], *split, reply, sent)),
            None => {
                self.record_reply(sets[i], &reply, sent);
                (i, reply)
            }
        });
        each.collect()
    }
}

impl<S: BackingStore + 'static, R: Runtime> Counters for Ahead<S, R> {
    fn evict_expired(&self) {
        self.0.store.evict_expired();
    }

    /// A decision that waits for a refill or for the rest of a set is boxed: requests that simply go to the store are
    /// far more frequent, and their futures stay small.
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let sent = self.0.runtime.now();
        if let Some(cached) = self.0.cached_denial(set, sent) {
            return Ok(cached);
        }
        let outcome = match self.0.decide(set, LeaseAttempt::First) {
            Ok(outcome) => outcome,
            Err(Undecided::Remote) => self.0.charge_remote(set).await?,
            Err(undecided) => Box::pin(self.0.complete(set, undecided)).await?,
        };
        self.0.record_denials(set, &outcome, sent);
        Ok(outcome)
    }

    /// Charges the sets for the store in one call. All other sets are decided at the same time.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let sent = self.0.runtime.now();
        let (mut replies, mut remaining) = (Vec::with_capacity(sets.len()), Vec::new());
        let mut deciding: Vec<DecisionBatchFuture<'_>> = Vec::new();
        for (i, set) in sets.iter().enumerate() {
            if let Some(cached) = self.0.cached_denial(set, sent) {
                replies.push((i, Ok(cached)));
                continue;
            }
            match self.0.decide(set, LeaseAttempt::First) {
                Ok(outcome) => replies.push((i, Ok(outcome))),
                Err(Undecided::Remote) => remaining.push((i, None)),
                Err(Undecided::Split(split)) if !split.is_denied() => remaining.push((i, Some(split))),
                Err(undecided) => {
                    deciding.push(Box::pin(async move { vec![(i, self.0.complete(set, undecided).await)] }))
                }
            }
        }
        if !remaining.is_empty() {
            deciding.push(Box::pin(self.0.charge_together(sets, remaining)));
        }
        replies.extend(join_all(deciding).await.into_iter().flatten());
        replies.sort_by_key(|(i, _)| *i);
        let record = |(i, reply): (usize, StoreResult<Outcome>)| {
            reply.inspect(|outcome| self.0.record_denials(sets[i], outcome, sent))
        };
        replies.into_iter().map(record).collect()
    }

    /// Fresh views decide a set of their own. Otherwise the units of leases are added to what the store reports.
    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let AheadInner { store, runtime, table, .. } = &*self.0;
        if let Some(outcome) = table.peek(set, runtime.now()) {
            return Ok(outcome);
        }
        let mut outcome = store.peek(set).await?;
        table.add_leased_units(set, &mut outcome, runtime.now());
        Ok(outcome)
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let refunded = self.0.store.refund(refund).await;
        self.0.table.forget_denials(&refund.set, self.0.runtime.now());
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

    /// Unsynced units of these counters are dropped with their views, and leases drawn before are void: their charge is
    /// reset with the rest. Other nodes use up their leases.
    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        self.0.table.forget(set, self.0.runtime.now());
        let forgotten = self.0.store.reset(set).await;
        self.0.table.forget(set, self.0.runtime.now());
        forgotten
    }
}

impl<S: BackingStore + 'static, R: Runtime> Permits for Ahead<S, R> {
    fn acquire_budget<'o>(&self, rules: impl Iterator<Item = &'o RuleOptions> + Clone) -> Option<Nanos> {
        self.0.store.acquire_budget(rules)
    }

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

impl<S: BackingStore + 'static, R: Runtime> Reservations for Ahead<S, R> {
    /// A remembered denial applies to a reservation too. A reserve that reached the store may have refunded expired
    /// reservations, so the denials of its counters end.
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        let sent = self.0.runtime.now();
        if let Some(cached) = self.0.cached_denial(&reserve.set, sent) {
            return Ok(cached);
        }
        let reserved = self.0.store.reserve(reserve).await;
        self.0.table.forget_denials(&reserve.set, sent); // its own denial is remembered
        reserved.inspect(|outcome| self.0.record_denials(&reserve.set, outcome, sent))
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        let settled = self.0.store.settle(settle).await;
        self.0.table.forget_denials(&settle.set, self.0.runtime.now());
        settled
    }
}
