//! A store that charges the widest limit first, for the run that makes this mistake.

use tidegate_core::store::{
    Charge, ChargeSet, Granted, Held, Hold, Inspection, Outcome, Refund, Refunded, Reserve, Seed,
    Settle, Settled, Store, StoreError, Terms,
};

type Answer<T> = Result<T, StoreError>;

/// A store as it is, or with the order of limits turned round.
pub(crate) struct Backwards<S> {
    pub(crate) store: S,
    pub(crate) turned: bool,
}

impl<S: Store> Store for Backwards<S> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        if !self.turned {
            return self.store.charge(set).await;
        }
        let turned = |charge: &Charge<'_>| Terms {
            named_by: u8::MAX - charge.terms.named_by,
            ..*charge.terms
        };
        let terms: Vec<Terms> = set.charges.iter().map(turned).collect();
        let charges = set.charges.iter().zip(&terms);
        let set = ChargeSet {
            charges: charges
                .map(|(charge, terms)| Charge {
                    terms,
                    rule: charge.rule,
                    limit: charge.limit.clone(),
                    ..*charge
                })
                .collect(),
        };
        self.store.charge(&set).await
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.store.peek(set).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        self.store.refund(refund).await
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        self.store.grant(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.store.force(set).await
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        self.store.reserve(reserve).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        self.store.settle(settle).await
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        self.store.seed(seeds).await
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.store.hold(hold).await
    }

    async fn renew(&self, hold: &Hold<'_>) -> Answer<Held> {
        self.store.renew(hold).await
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        self.store.release(hold).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        self.store.inspect(set).await
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        self.store.reset(set).await
    }
}
