//! A store that charges the widest limit first, for the run that makes this mistake.

use tidegate_core::pass_on;
use tidegate_core::store::{Charge, ChargeSet, Outcome, Store, StoreError, Terms};

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
        let set = ChargeSet::of(charges.map(|(charge, terms)| Charge {
            terms,
            rule: charge.rule,
            limit: charge.limit.clone(),
            ..*charge
        }));
        self.store.charge(&set).await
    }

    pass_on!(self => self.store; peek, refund, grant, force, reserve, settle, seed, hold, renew, release, inspect, reset);
}
