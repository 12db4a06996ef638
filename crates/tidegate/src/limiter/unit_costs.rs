//! Requests whose plain cost is 0.
//!
//! Rules without a unit are then only peeked. Rules with a unit are charged as for any other request: the cost
//! that `costs` names, and 1 for a unit it does not name. A plain cost of 0 never makes a unit free.

use tidegate_core::store::{Store, StoreError};
use tidegate_rules::Purpose;
use tidegate_rules::engine::Decision;
use tidegate_rules::request::Request;

use super::{ChargedAs, Limiter, LimiterView};

impl<S: Store> Limiter<S> {
    /// Decides a request whose plain cost is 0: charges the rules with a unit and peeks the others. Cancellation is as
    /// for [`LimiterView::check`].
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn check_units(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        self.view().check_units(request).await
    }
}

impl<S: Store> LimiterView<'_, S> {
    /// Decides a request whose plain cost is 0. A rule without a unit denies the request if not even a cost of 1
    /// would fit, and is charged nothing. Rules with a unit are charged as by [`LimiterView::check`]. If no rule
    /// with a unit applies, this is [`LimiterView::peek`]. Cancellation is as for [`LimiterView::check`].
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn check_units(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        let mut request = request;
        let plan = self.prepare(&mut request, Purpose::Check);
        if let Some(listed) = plan.listed {
            return Ok(self.decision_by_list(listed, plan.client_hash));
        }
        let (plain, units) = plan.split_by_unit(&self.policy.rules);
        if !plain.set.charges.is_empty() || units.set.charges.is_empty() {
            let outcome = self.limiter.store.peek(&plain.set).await?;
            let decision = self.decision_of(&plain, &outcome, ChargedAs::Nothing);
            if units.set.charges.is_empty() || !decision.allowed() {
                return Ok(decision);
            }
        }
        let outcome = self.limiter.store.charge(&units.set).await?;
        let decision = self.decision_of(&units, &outcome, ChargedAs::IfAdmitted);
        self.notify_decided(&request, &decision);
        Ok(decision)
    }
}
