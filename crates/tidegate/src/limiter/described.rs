//! Asks the store what an [`Inquiry`] wants to know, in its order.

use tidegate_core::described::{Described, Manner};
use tidegate_core::engine::{Ask, Inquiry, Judged, Stance};
use tidegate_core::request::Request;
use tidegate_core::rules::Listed;
use tidegate_core::store::{ChargeSet, Outcome, Refund, Source, Store, StoreError};
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
        let inquiry = self.inquiry(&request, described, manner);
        let judged = match inquiry.listed() {
            Some(listed) => inquiry.listed_as(rules, listed, now()),
            None => self.asked(inquiry).await?.judged(rules, now),
        };
        self.tell(&request, &judged.decision);
        Ok(judged)
    }

    /// Denies a described request without a look at its limits, as the block list does. For requests
    /// that contradict themselves: Envoy lets pass what gets an error. Where everything only watches,
    /// the request is decided as any other.
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn deny_described<'v>(
        &'v self,
        request: Request<'_>,
        described: &Described<'_>,
        manner: Manner,
    ) -> Result<Judged<'v>, StoreError> {
        if self.limiter.stance == Stance::AllShadow {
            return self.check_described(request, described, manner).await;
        }
        let inquiry = self.inquiry(&request, described, manner);
        let (block, now) = (Listed::Block { until: None }, self.limiter.clock.now());
        let judged = inquiry.listed_as(&self.policy.rules, block, now);
        self.tell(&request, &judged.decision);
        Ok(judged)
    }

    fn inquiry<'v>(
        &'v self,
        request: &Request<'_>,
        described: &Described<'_>,
        manner: Manner,
    ) -> Inquiry<'v> {
        let limiter = self.limiter;
        Inquiry::new(
            &self.policy.rules,
            limiter.stance,
            &limiter.keys.load().fingerprint,
            request,
            described,
            manner,
            || limiter.clock.now(),
        )
    }

    /// The inquiry with the answers to all its questions. They share the time that the caller waits.
    async fn asked<'r>(&self, mut inquiry: Inquiry<'r>) -> Result<Inquiry<'r>, StoreError> {
        let (store, clock) = (&self.limiter.store, &self.limiter.clock);
        let deadline = inquiry.max_wait().map(|wait| clock.now().plus(wait));
        let wait_left = || deadline.map(|deadline| deadline.since(clock.now()));
        let given_back: Vec<ChargeSet<'r>> = inquiry.given_back().cloned().collect();
        for (at, set) in given_back.into_iter().enumerate() {
            let (before, after) = self.give_back(set, &wait_left).await?;
            inquiry.gave_back(at, &before, &after);
        }
        inquiry.set_max_wait(wait_left());
        if let Ask::Peek(set) = inquiry.first() {
            let outcome = store.peek(&set).await?;
            inquiry.heard_first(&outcome);
            inquiry.set_max_wait(wait_left());
        }
        let outcome = match inquiry.second() {
            Ask::Nothing => None,
            Ask::Peek(set) => Some(store.peek(&set).await?),
            Ask::Charge(set) => Some(store.charge(&set).await?),
        };
        if let Some(outcome) = outcome {
            inquiry.heard_second(&outcome);
            inquiry.set_max_wait(wait_left());
        }
        if let Some(set) = inquiry.at_limits() {
            let outcome = store.peek(&set).await?;
            inquiry.heard_at_limits(&outcome);
            inquiry.set_max_wait(wait_left());
        }
        if let Some(set) = inquiry.third() {
            let outcome = store.force(&set).await?;
            inquiry.heard_third(&outcome);
        }
        Ok(inquiry)
    }

    /// Gives back what is in `set`, in the window of this moment; how it stood before and stands after.
    async fn give_back(
        &self,
        mut set: ChargeSet<'_>,
        wait_left: impl Fn() -> Option<Nanos>,
    ) -> Result<(Outcome, Outcome), StoreError> {
        let store = &self.limiter.store;
        set.max_wait = wait_left();
        let before = store.peek(&set).await?;
        if before.source == Source::Fallback {
            // Without the store nothing is given back, which denies too much rather than too little.
            return Ok((before.clone(), before));
        }
        set.max_wait = wait_left();
        let mut refund = Refund {
            id: (self.limiter.draw_id)().map_err(no_randomness)?,
            charged: before.at,
            until: before.at.plus(REMEMBERED),
            set,
        };
        store.refund(&refund).await?;
        refund.set.max_wait = wait_left();
        let after = store.peek(&refund.set).await?;
        Ok((before, after))
    }
}
