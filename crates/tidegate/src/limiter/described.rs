//! Asks the store what an [`Inquiry`] wants to know, in its order.

use tidegate_core::described::{Described, Manner};
use tidegate_core::engine::{Ask, Inquiry, Judged};
use tidegate_core::request::Request;
use tidegate_core::store::{ChargeSet, Outcome, Refund, Store, StoreError};
use tidegate_core::units::Nanos;

use super::View;
use super::reservations::no_randomness;

/// How long a store remembers that something was given back. Nothing is ever asked twice under one id,
/// so this only has to outlast the call.
const REMEMBERED: Nanos = Nanos::from_secs(10);

impl<S: Store> View<'_, S> {
    /// Decides a request that Envoy describes: by the limits of its descriptors and by the rules that
    /// apply to `request`, together.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn check_described<'v>(
        &'v self,
        request: Request<'_>,
        described: &Described<'_>,
        manner: Manner,
    ) -> Result<Judged<'v>, StoreError> {
        let mut request = request;
        self.identify(&mut request);
        let (limiter, rules) = (self.limiter, &self.policy.rules);
        let now = || limiter.clock.now();
        let inquiry = Inquiry::new(
            rules,
            limiter.stance,
            &limiter.keys.load().fingerprint,
            &request,
            described,
            manner,
            now,
        );
        let judged = match inquiry.listed() {
            Some(listed) => inquiry.listed_as(rules, listed, now()),
            None => self.asked(inquiry).await?.judged(rules, now),
        };
        self.tell(&request, &judged.decision);
        Ok(judged)
    }

    /// The inquiry with the answers to all its questions.
    async fn asked<'r>(&self, mut inquiry: Inquiry<'r>) -> Result<Inquiry<'r>, StoreError> {
        let store = &self.limiter.store;
        let given_back: Vec<ChargeSet<'r>> = inquiry.given_back().cloned().collect();
        for (at, set) in given_back.into_iter().enumerate() {
            let (before, after) = self.give_back(set).await?;
            inquiry.gave_back(at, &before, &after);
        }
        if let Ask::Peek(set) = inquiry.first() {
            let outcome = store.peek(&set).await?;
            inquiry.heard_first(&outcome);
        }
        let outcome = match inquiry.second() {
            Ask::Nothing => None,
            Ask::Peek(set) => Some(store.peek(&set).await?),
            Ask::Charge(set) => Some(store.charge(&set).await?),
        };
        if let Some(outcome) = outcome {
            inquiry.heard_second(&outcome);
        }
        if let Some(set) = inquiry.third() {
            let outcome = store.force(&set).await?;
            inquiry.heard_third(&outcome);
        }
        Ok(inquiry)
    }

    /// Gives back what is in `set`, in the window of this moment; how it stood before and stands after.
    async fn give_back(&self, set: ChargeSet<'_>) -> Result<(Outcome, Outcome), StoreError> {
        let store = &self.limiter.store;
        let before = store.peek(&set).await?;
        let refund = Refund {
            id: (self.limiter.draw_id)().map_err(no_randomness)?,
            charged: before.at,
            until: before.at.plus(REMEMBERED),
            set,
        };
        store.refund(&refund).await?;
        let after = store.peek(&refund.set).await?;
        Ok((before, after))
    }
}
