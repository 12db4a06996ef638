//! A store wrapper that charges the widest limit first, for the variant that makes this mistake.

use tidegate_core::store::{
    Charge, ChargeSet, Counters, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits, Refund,
    Refunded, Reservations, Reserve, Restore, RuleOptions, Settle, Settled, Store, StoreResult,
};
use tidegate_core::units::Nanos;

/// Charges limits in the given order, or in reverse.
pub(crate) struct ReversedOrder<S> {
    pub(crate) store: S,
    pub(crate) reversed: bool,
}

impl<S: Store> Counters for ReversedOrder<S> {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        if !self.reversed {
            return self.store.charge(set).await;
        }
        let reversed =
            |charge: &Charge<'_>| RuleOptions { specificity: u8::MAX - charge.options.specificity, ..*charge.options };
        let options: Vec<RuleOptions> = set.charges.iter().map(reversed).collect();
        let charges = set.charges.iter().zip(&options);
        let set = ChargeSet::of(charges.map(|(charge, options)| Charge {
            options,
            rule: charge.rule,
            limit: charge.limit.clone(),
            ..*charge
        }));
        self.store.charge(&set).await
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.store.peek(set).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        self.store.refund(refund).await
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        self.store.draw(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.store.force(set).await
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        self.store.restore(restores).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.store.inspect(set).await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        self.store.reset(set).await
    }
}

impl<S: Store> Permits for ReversedOrder<S> {
    fn acquire_budget<'o>(&self, rules: impl Iterator<Item = &'o RuleOptions> + Clone) -> Option<Nanos> {
        self.store.acquire_budget(rules)
    }

    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.store.acquire(permit).await
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.store.renew(permit).await
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        self.store.release(permit).await
    }
}

impl<S: Store> Reservations for ReversedOrder<S> {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        self.store.reserve(reserve).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        self.store.settle(settle).await
    }
}
