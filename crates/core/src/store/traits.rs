//! The verbs of a store, in three traits. Every verb is atomic.

use std::future::Future;

use super::{
    Charge, ChargeSet, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Refund, Refunded, Reserve, Restore,
    RuleOptions, RunId, Settle, Settled, SingleOutcome, SingleOutcomes, StoreError, StoreResult,
};
use crate::units::Nanos;

/// Counters of the units that were charged.
pub trait Counters: Send + Sync {
    /// The run that bounds the lifetime of counts with these options; `None` for counts that nodes share and that
    /// outlive a process. A charge can be refunded only in the run that counted it.
    fn run_id(&self, _options: &RuleOptions) -> Option<RunId> {
        None
    }

    /// Charges every limit of one request in a single step: all are charged or none is.
    fn charge(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// How this store implements [`Store::charge_each`], which callers use.
    fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> impl Future<Output = Vec<StoreResult<Outcome>>> + Send {
        async move {
            let mut outcomes = Vec::with_capacity(sets.len());
            for set in sets {
                outcomes.push(self.charge(set).await);
            }
            outcomes
        }
    }

    /// Charges limits that stand alone, each on its own, in order, and appends the results to `replies`.
    fn charge_singles(&self, charges: &[Charge<'_>], replies: &mut SingleOutcomes) -> impl Future<Output = ()> + Send {
        async move {
            let sets: Vec<ChargeSet<'_>> = charges.iter().cloned().map(ChargeSet::of_one).collect();
            let sets: Vec<&ChargeSet<'_>> = sets.iter().collect();
            let outcomes = one_reply_per_set(sets.len(), self.charge_batch(&sets).await);
            replies.extend(outcomes.into_iter().map(|outcome| Ok(SingleOutcome::of(&outcome?))));
        }
    }

    /// The result that `charge` would have, without charging.
    fn peek(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Refunds an earlier charge, once, as far as the bounds allow.
    fn refund(&self, refund: &Refund<'_>) -> impl Future<Output = StoreResult<Refunded>> + Send;

    /// Draws a lease from one limit: up to the charge's cost and to half of what is left, rounded up, so that other
    /// nodes find some; or an eighth of the cost if that is more and available, so that the limit is exhausted in a
    /// few draws.
    fn draw(&self, charge: &Charge<'_>) -> impl Future<Output = StoreResult<LeaseReply>> + Send;

    /// Charges even beyond the limit: debt, for costs known only afterwards.
    fn force(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Merges known states, by maximum per limit.
    fn restore(&self, restores: &[Restore<'_>]) -> impl Future<Output = StoreResult<()>> + Send;

    /// The state of each counter; `None` for a subject never seen or fully refilled.
    fn inspect(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Vec<Option<Inspection>>>> + Send;

    /// Removes all state of some rules and subjects: the counters, their open reservations, and the permits of every
    /// holder. The set names each rule by charges of all its rates. Returns the number of counters and permits
    /// removed.
    fn reset(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<u64>> + Send;

    /// Evicts some expired counters. Called a few times per second; a store that does this by itself does nothing.
    fn evict_expired(&self) {}
}

/// Permits of concurrency limits.
pub trait Permits: Send + Sync {
    /// How long an acquire under rules with these options waits for this store, over all of its calls; `None` for a
    /// store that bounds no wait.
    fn acquire_budget<'o>(&self, _rules: impl Iterator<Item = &'o RuleOptions> + Clone) -> Option<Nanos> {
        None
    }

    /// Acquires a permit, or renews it.
    fn acquire(&self, permit: &PermitRequest<'_>) -> impl Future<Output = StoreResult<PermitReply>> + Send;

    /// Renews a permit. Acquires none: a permit that was released or has expired stays so, however late a renewal
    /// arrives.
    fn renew(&self, permit: &PermitRequest<'_>) -> impl Future<Output = StoreResult<PermitReply>> + Send;

    /// Releases a permit. Releasing a permit that is not held does nothing.
    fn release(&self, permit: &PermitRequest<'_>) -> impl Future<Output = StoreResult<()>> + Send;
}

/// Charges whose cost is known only at the end of the work.
pub trait Reservations: Send + Sync {
    /// Charges an estimate like `charge`, and remembers it until it is settled. Expired estimates of the same rule and
    /// subject are refunded first, even if this one does not fit.
    fn reserve(&self, reserve: &Reserve<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Corrects an estimate to the units used, once: a lower use is refunded as far as the bounds allow, a higher use
    /// becomes debt. It may be sent again when the reply is lost.
    fn settle(&self, settle: &Settle<'_>) -> impl Future<Output = StoreResult<Settled>> + Send;
}

/// A store: counters, permits and reservations. It is implemented for every type that has all three, so what is written
/// here holds for every store.
pub trait Store: Counters + Permits + Reservations {
    /// Charges several requests, each on its own, in order. One clock reading may serve them all. There is one reply
    /// for each set: a store that replies with another number has failed, and each set has that error.
    fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> impl Future<Output = Vec<StoreResult<Outcome>>> + Send {
        async move { one_reply_per_set(sets.len(), self.charge_batch(sets).await) }
    }
}

impl<S: Counters + Permits + Reservations> Store for S {}

/// A store returned a number of replies that differs from the number of sets. The pairing of replies and sets is
/// unknown then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found} replies to {expected} charge sets")]
pub struct ReplyCountError {
    /// The number of sets.
    pub expected: usize,
    /// The number of replies.
    pub found: usize,
}

/// The replies of a store to `sets` charge sets, if there is one for each. Otherwise an error for each set: a list that
/// is too short would silently shorten the caller's batch.
fn one_reply_per_set(sets: usize, replies: Vec<StoreResult<Outcome>>) -> Vec<StoreResult<Outcome>> {
    if replies.len() == sets {
        return replies;
    }
    let error = ReplyCountError { expected: sets, found: replies.len() };
    let rejected = |_| Err(StoreError::Rejected { command: "charge_each", source: Box::new(error) });
    (0..sets).map(rejected).collect()
}
