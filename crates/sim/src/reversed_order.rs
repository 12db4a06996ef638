//! A store wrapper that charges the widest limit first, for the variant that makes this mistake.

use tidegate_core::delegate_store;
use tidegate_core::store::{Charge, ChargeSet, Outcome, RuleOptions, Store, StoreResult};

/// Charges limits in the given order, or in reverse.
pub(crate) struct ReversedOrder<S> {
    pub(crate) store: S,
    pub(crate) reversed: bool,
}

impl<S: Store> Store for ReversedOrder<S> {
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

    delegate_store!(self => self.store; peek, refund, draw, force, reserve, settle, restore, acquire, renew, release, inspect, reset);
}
