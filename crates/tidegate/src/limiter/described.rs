//! Runs the store calls of a [`DescriptorDecision`], in its order.

use tidegate_core::store::{ChargeSet, Outcome, Refund, Store, StoreError};
use tidegate_core::units::Nanos;
use tidegate_rules::ListDecision;
use tidegate_rules::engine::{DescriptorDecision, DescriptorResponse, EnforceMode, StoreCall};
use tidegate_rules::envoy::{DescribedRequest, DescriptorOptions};
use tidegate_rules::request::Request;

use super::LimiterView;
use super::reservations::no_randomness;

/// How long a store remembers the id of a refund. No refund is sent twice under one id, so this only has to
/// outlast the call.
const REFUND_ID_TTL: Nanos = Nanos::from_secs(10);

impl<S: Store> LimiterView<'_, S> {
    /// Decides a request that Envoy describes: by the limits of its descriptors and by the rules that
    /// apply to `request`, together. Dropped before it has finished, the call may have charged some of the limits.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn check_described<'v>(
        &'v self,
        request: Request<'_>,
        described: &DescribedRequest<'_>,
        options: DescriptorOptions,
    ) -> Result<DescriptorResponse<'v>, StoreError> {
        let mut request = request;
        self.identify(&mut request);
        let (limiter, rules) = (self.limiter, &self.policy.rules);
        let now = || limiter.clock.now();
        let decision = self.descriptor_decision(&request, described, options);
        let response = match decision.listed() {
            Some(listed) => decision.decide_by_list(rules, listed, now()),
            None => self.run_steps(decision).await?.finish(rules, now),
        };
        self.notify_decided(&request, &response.decision);
        Ok(response)
    }

    /// Denies a described request without evaluating its limits, as the block list does. For requests that
    /// contradict themselves: Envoy lets a request pass when it gets an error. In shadow mode the request is decided
    /// like any other.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn deny_described<'v>(
        &'v self,
        request: Request<'_>,
        described: &DescribedRequest<'_>,
        options: DescriptorOptions,
    ) -> Result<DescriptorResponse<'v>, StoreError> {
        if self.limiter.enforcement == EnforceMode::AllShadow || options.all_shadow {
            return self.check_described(request, described, options).await;
        }
        let decision = self.descriptor_decision(&request, described, options);
        let (block, now) = (ListDecision::Block { until: None }, self.limiter.clock.now());
        let response = decision.decide_by_list(&self.policy.rules, block, now);
        self.notify_decided(&request, &response.decision);
        Ok(response)
    }

    fn descriptor_decision<'v>(
        &'v self,
        request: &Request<'_>,
        described: &DescribedRequest<'_>,
        options: DescriptorOptions,
    ) -> DescriptorDecision<'v> {
        let limiter = self.limiter;
        DescriptorDecision::new(
            &self.policy.rules,
            limiter.enforcement,
            &self.keys.fingerprint,
            request,
            described,
            options,
            || limiter.clock.now(),
        )
    }

    /// Runs all store calls of a decision. They share the time that the caller waits.
    async fn run_steps<'r>(&self, mut decision: DescriptorDecision<'r>) -> Result<DescriptorDecision<'r>, StoreError> {
        let (store, clock) = (&self.limiter.store, &self.limiter.clock);
        let deadline = decision.max_wait().map(|wait| clock.now().plus(wait));
        let wait_left = || deadline.map(|deadline| deadline.since(clock.now()));
        let refunds: Vec<ChargeSet<'r>> = decision.refunds().cloned().collect();
        for (at, set) in refunds.into_iter().enumerate() {
            let (before, after) = self.refund_set(set, &wait_left).await?;
            decision.record_refund(at, &before, &after);
        }
        decision.set_max_wait(wait_left());
        if let StoreCall::Peek(set) = decision.peek_phase() {
            let outcome = store.peek(&set).await?;
            decision.record_peek(&outcome);
            decision.set_max_wait(wait_left());
        }
        let outcome = match decision.charge_phase() {
            StoreCall::None => None,
            StoreCall::Peek(set) => Some(store.peek(&set).await?),
            StoreCall::Charge(set) => Some(store.charge(&set).await?),
        };
        if let Some(outcome) = outcome {
            decision.record_charge(&outcome);
            decision.set_max_wait(wait_left());
        }
        if let Some(set) = decision.exceeded_phase() {
            let outcome = store.peek(&set).await?;
            decision.record_exceeded(&outcome);
            decision.set_max_wait(wait_left());
        }
        if let Some(set) = decision.force_phase() {
            let outcome = store.force(&set).await?;
            decision.record_force(&outcome);
        }
        Ok(decision)
    }

    /// Refunds `set` in the current window. Returns the state before and after. A refund that fails, because the store is
    /// late or down, counts as none: that denies too much rather than too little.
    async fn refund_set(
        &self,
        mut set: ChargeSet<'_>,
        wait_left: impl Fn() -> Option<Nanos>,
    ) -> Result<(Outcome, Outcome), StoreError> {
        let store = &self.limiter.store;
        set.max_wait = wait_left();
        let before = store.peek(&set).await?;
        set.max_wait = wait_left();
        let mut refund = Refund {
            id: (self.limiter.new_id)().map_err(no_randomness)?,
            charged_at: before.at,
            expires_at: before.at.plus(REFUND_ID_TTL),
            set,
        };
        if store.refund(&refund).await.is_err() {
            return Ok((before.clone(), before));
        }
        refund.set.max_wait = wait_left();
        let after = store.peek(&refund.set).await?;
        Ok((before, after))
    }
}
