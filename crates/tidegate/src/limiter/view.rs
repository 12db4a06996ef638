//! One decision after another under the rules, keys and secret of one moment.

use std::fmt;
use std::sync::Arc;

use tidegate_core::store::{ChargeSet, Outcome, Reserve, Store, StoreError};
use tidegate_core::units::Nanos;
use tidegate_rules::engine::{self, ChargePlan, ChargedAs, Decision, EnforceMode};
use tidegate_rules::event::Event;
use tidegate_rules::request::{ApiKey, Edge, Request};
use tidegate_rules::{Explanation, ListDecision, Purpose, Rule};

use super::acquire::placeholder_charge;
use super::{Keys, LimitUsage, Limiter, library_request};
use crate::identity::Digest;
use crate::live::Versioned;
use crate::policy::Policy;

/// A limiter bound to the rules, keys and secret of one moment.
pub struct LimiterView<'l, S> {
    pub(super) limiter: &'l Limiter<S>,
    pub(super) policy: Arc<Versioned<Policy>>,
    pub(super) keys: Arc<Keys>,
}

/// What happens to the charges of a request.
#[derive(Clone, Copy)]
pub(super) enum Operation {
    /// They are charged if all limits allow them.
    Check,
    /// Nothing: the limits are only read, and observers are not notified.
    Peek,
    /// They are charged as an estimate.
    Reserve { id: u128, ttl: Nanos },
}

impl<S: Store> LimiterView<'_, S> {
    /// Decides a request, and charges it if it is allowed.
    ///
    /// Cancellation: dropped before it has finished, the call may have charged the request or some of its limits.
    /// Those charges stand, which denies too much rather than too little, and no observer is notified.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn check(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        self.decide(&mut { request }, Operation::Check).await
    }

    /// The decision `check` would make, without charging. Observers are not notified. Cancel-safe.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn peek(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        self.decide(&mut { request }, Operation::Peek).await
    }

    /// Decides several requests, each on its own and in order, and returns one result per request. Afterwards
    /// the addresses and keys in `requests` have the form that these rules use. Cancellation is as for
    /// [`LimiterView::check`], for each request.
    pub async fn check_each<'r>(&'r self, requests: &mut [Request<'r>]) -> Vec<Result<Decision, StoreError>> {
        let plans: Vec<_> = requests.iter_mut().map(|request| self.prepare(request, Purpose::Check)).collect();
        // A request decided by a list has an empty set: charging that touches no counter.
        let sets: Vec<&ChargeSet<'_>> = plans.iter().map(|plan| &plan.set).collect();
        let outcomes = self.limiter.store.charge_each(&sets).await;
        let planned = requests.iter().zip(&plans).zip(outcomes);
        let decided = planned.map(|((request, plan), outcome)| {
            let decision = match plan.listed {
                Some(listed) => self.decision_by_list(listed, plan.client_hash),
                None => self.decision_of(plan, &outcome?, ChargedAs::IfAdmitted),
            };
            self.notify_decided(request, &decision);
            Ok(decision)
        });
        decided.collect()
    }

    /// Decides a request by the lists or by the store.
    pub(super) async fn decide<'r>(
        &'r self,
        request: &mut Request<'r>,
        operation: Operation,
    ) -> Result<Decision, StoreError> {
        let (store, plan) = (&self.limiter.store, self.prepare(request, Purpose::Check));
        let decision = match (plan.listed, operation) {
            (Some(listed), _) => self.decision_by_list(listed, plan.client_hash),
            (None, Operation::Check) => {
                let outcome = store.charge(&plan.set).await?;
                self.decision_of(&plan, &outcome, ChargedAs::IfAdmitted)
            }
            (None, Operation::Peek) => {
                let outcome = store.peek(&plan.set).await?;
                self.decision_of(&plan, &outcome, ChargedAs::Nothing)
            }
            (None, Operation::Reserve { id, ttl }) => {
                let outcome = store.reserve(&Reserve { id, ttl, set: plan.set.clone() }).await?;
                self.decision_of(&plan, &outcome, ChargedAs::Reservation)
            }
        };
        if !matches!(operation, Operation::Peek) {
            self.notify_decided(request, &decision);
        }
        Ok(decision)
    }

    /// The usage of every limit that applies to the request's client.
    ///
    /// Cancel-safe.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn inspect(&self, request: Request<'_>) -> Result<Vec<LimitUsage>, StoreError> {
        let mut request = request;
        let ChargePlan { set, origins, .. } = self.plan_every_limit(&mut request);
        let found = self.limiter.store.inspect(&set).await?;
        let charges = set.charges.iter().zip(origins);
        let usages = charges.zip(found).map(|((charge, origin), inspection)| {
            let rule = &self.policy.rules.rules()[origin.rule as usize];
            let written = rule.rates(origin.class).text(origin.rate.into());
            LimitUsage {
                rule: charge.rule.as_str().to_owned(),
                rate: written.to_owned(),
                capacity: charge.limit.capacity(),
                inspection,
            }
        });
        Ok(usages.collect())
    }

    /// Resets every counter and releases every permit of the client of `request`, under every limit that applies
    /// to it, and returns the number of counters and permits. The holder of such a permit finds out at its next
    /// renewal. Counters that other clients share are left alone: those of `by: global`, and those of requests
    /// without an address and without the attributes that a rule counts by. Dropped before it has finished, the call may have reset
    /// some of them.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn reset(&self, request: Request<'_>) -> Result<u64, StoreError> {
        self.reset_where(request, |rule, request| rule.has_own_counter(request)).await
    }

    /// Resets the same for the rule named `rule` alone, including a counter that other clients share.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn reset_rule(&self, rule: &str, request: Request<'_>) -> Result<u64, StoreError> {
        self.reset_where(request, |each, _| each.name().as_str() == rule).await
    }

    async fn reset_where(
        &self,
        request: Request<'_>,
        selects: impl Fn(&Rule, &Request<'_>) -> bool,
    ) -> Result<u64, StoreError> {
        let mut request = request;
        let ChargePlan { mut set, origins, .. } = self.plan_every_limit(&mut request);
        let rules = self.policy.rules.rules();
        let charges = set.charges.into_iter().zip(origins);
        let selected = charges.filter(|(_, origin)| selects(&rules[origin.rule as usize], &request));
        set.charges = selected.map(|(charge, _)| charge).collect();
        let mut limits = self.concurrency_limits(&request);
        limits.retain(|limit| selects(limit.rule, &request));
        for limit in &limits {
            let rule = limit.rule.name();
            if !set.charges.iter().any(|charge| charge.rule == rule) {
                set.charges.push(placeholder_charge(limit));
            }
        }
        let forgotten = self.limiter.store.reset(&set).await?;
        let freed = limits.iter().map(|limit| self.release_local(limit));
        Ok(forgotten + freed.sum::<u64>())
    }
}

#[cfg(feature = "internals")]
impl<S: Store> LimiterView<'_, S> {
    /// Decides a request whose plain cost is 0. A rule without a unit denies the request if not even a cost of 1
    /// would fit, and is charged nothing. Rules with a unit are charged as by [`LimiterView::check`]. If no rule
    /// with a unit applies, this is [`LimiterView::peek`], but observers are notified of a denial. Cancellation is as
    /// for [`LimiterView::check`].
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn check_units(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        let mut request = request;
        let plan = self.prepare(&mut request, Purpose::Check);
        if let Some(listed) = plan.listed {
            let decision = self.decision_by_list(listed, plan.client_hash);
            self.notify_decided(&request, &decision);
            return Ok(decision);
        }
        let (plain, units) = plan.split_by_unit(&self.policy.rules);
        if !plain.set.charges.is_empty() || units.set.charges.is_empty() {
            let outcome = self.limiter.store.peek(&plain.set).await?;
            let decision = self.decision_of(&plain, &outcome, ChargedAs::Nothing);
            if !decision.allowed() {
                self.notify_decided(&request, &decision);
            }
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

impl<S> LimiterView<'_, S> {
    /// The rules and keys of this view.
    #[cfg(feature = "internals")]
    pub fn policy(&self) -> &Versioned<Policy> {
        &self.policy
    }

    /// Explains which list or which rules decide a request, and why the others do not. Charges nothing.
    pub fn explain(&self, request: Request<'_>) -> Explanation {
        let mut request = request;
        self.identify(&mut request);
        let now = self.limiter.clock.now();
        let mut explanation = self.policy.rules.explain(&request, now);
        // In shadow mode the block list denies no request either.
        let blocked = matches!(explanation.listed, Some((ListDecision::Block { .. }, _)));
        if blocked && self.limiter.enforcement == EnforceMode::AllShadow {
            explanation.listed = None;
        }
        explanation
    }

    /// Brings the request's address into canonical form and looks up its key.
    pub(super) fn identify<'r>(&'r self, request: &mut Request<'r>) {
        if request.edge == Edge::Library {
            library_request::normalize(request);
        }
        let canon = self.policy.ip_normalizer();
        request.ip = request.ip.map(|ip| canon.client(ip).addr());
        if let (Some(key), Some(keys)) = (request.api_key, &self.policy.keys) {
            request.api_key = keys.get(&Digest::from_bytes(key.digest)).map(|holder| ApiKey {
                digest: key.digest,
                tier: Some(holder.tier),
                name: Some(holder.name).filter(|name| !name.is_empty()),
            });
            request.unlisted_key = request.api_key.is_none().then_some(key.digest);
        }
    }

    /// Identifies the client of a request, and finds the list that decides it or the charges that do.
    pub(super) fn prepare<'r>(&'r self, request: &mut Request<'r>, purpose: Purpose) -> ChargePlan<'r> {
        self.identify(request);
        let (limiter, rules) = (self.limiter, &self.policy.rules);
        engine::plan(rules, limiter.enforcement, &self.keys.fingerprint, request, purpose, || limiter.clock.now())
    }

    pub(super) fn decision_by_list(&self, listed: ListDecision, client: u64) -> Decision {
        let rules = Arc::clone(&self.policy.rules);
        engine::decide_listed(rules, listed, client, self.limiter.clock.now())
    }

    pub(super) fn decision_of(&self, plan: &ChargePlan<'_>, outcome: &Outcome, charged: ChargedAs) -> Decision {
        engine::decide(Arc::clone(&self.policy.rules), plan, outcome, charged)
    }

    /// Plans every limit of the request's client, in every unit and regardless of the lists.
    fn plan_every_limit<'r>(&'r self, request: &mut Request<'r>) -> ChargePlan<'r> {
        self.identify(request);
        request.costs.clear(); // a unit without a cost costs one, so that every unit counts
        let (limiter, rules) = (self.limiter, &self.policy.rules);
        engine::plan_charges(rules, limiter.enforcement, &self.keys.fingerprint, request, Purpose::Check)
    }

    pub(super) fn notify_decided(&self, request: &Request<'_>, decision: &Decision) {
        self.limiter.notify_observers(&Event::Decided { request, decision });
    }
}

impl<S> fmt::Debug for LimiterView<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterView").field("limiter", self.limiter).finish_non_exhaustive()
    }
}
