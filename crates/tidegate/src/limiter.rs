//! The limiter: identify, plan, charge, decide, notify the observers.
//!
//! Invariant: a decision uses one set of rules from beginning to end. A [`LimiterView`] holds that set, and a
//! reload in between changes only later decisions. Observers are notified afterwards and cannot change anything.

mod acquire;
mod acquire_guard;
mod background;
mod builder;
mod described;
mod key_charges;
mod library_request;
mod open_permits;
mod permit_renewer;
mod reservations;
mod settlement_retries;
mod ticket;
mod unit_costs;

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_core::store::{ChargeSet, Inspection, Outcome, Refunded, Store, StoreError};
use tidegate_core::subject::{FingerprintKey, RuleName};
use tidegate_core::units::Nanos;
use tidegate_rules::engine::{self, ChargePlan, ChargedAs, Decision, EnforceMode};
use tidegate_rules::event::{Event, Observer};
use tidegate_rules::request::{ApiKey, Edge, Request};
use tidegate_rules::{Explanation, ListDecision, Purpose, Rule};

use crate::clock::Clock;
use crate::identity::Digest;
use crate::live::{LiveValue, Versioned};
use crate::policy::Policy;
use crate::receipt::{Receipt, ReceiptError, ReceiptKind};
use crate::secret::Secret;
use crate::stores::memory::MemoryStore;

use self::acquire::placeholder_charge;
pub use self::acquire::{
    AcquireError, Acquired, CANCEL_RETRY_AFTER, ConcurrencyDenial, ConcurrencyUsage, DEFAULT_PERMIT_TTL,
};
pub use self::builder::{BuildError, LimiterBuilder};
pub use self::key_charges::{KeyAction, KeyCharge, KeyFamily};
pub use self::open_permits::MAX_COUNTED_TICKETS;
use self::open_permits::OpenPermitGauge;
pub use self::permit_renewer::{Permit, PermitRenewer};
pub use self::reservations::{Reservation, SettleError, Settlement};
pub use self::settlement_retries::MAX_PENDING_SETTLEMENTS;
use self::settlement_retries::SettlementRetries;
pub use self::ticket::{Ticket, TicketError};
use crate::adaptive::Adaptive;

/// Decides requests by rules. Share it in an `Arc`.
pub struct Limiter<S = MemoryStore> {
    store: S,
    policy: Arc<LiveValue<Policy>>,
    keys: ArcSwap<Keys>,
    enforcement: EnforceMode,
    clock: Arc<dyn Clock>,
    observers: Vec<Arc<dyn Observer>>,
    adaptive: Adaptive,
    open_permits: OpenPermitGauge,
    settlement_retries: SettlementRetries,
    new_id: IdSource,
}

/// Source of unique ids for charges, reservations and permit holders.
type IdSource = Box<dyn Fn() -> Result<u128, getrandom::Error> + Send + Sync>;

fn random_id() -> Result<u128, getrandom::Error> {
    let mut id = [0; 16];
    getrandom::fill(&mut id)?;
    Ok(u128::from_ne_bytes(id))
}

/// The secret and the fingerprint key that is derived from it once.
struct Keys {
    secret: Secret,
    fingerprint: FingerprintKey,
}

impl Keys {
    fn of(secret: Secret) -> Self {
        Keys { fingerprint: secret.fingerprint_key(), secret }
    }
}

impl<S> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = &mut f.debug_struct("Limiter");
        let rules = self.policy.load().rules.rules().len();
        fields.field("rules", &rules).field("enforcement", &self.enforcement).finish_non_exhaustive()
    }
}

/// Why a refund did not happen.
#[derive(Debug, thiserror::Error)]
pub enum RefundError {
    /// The receipt was not issued by this deployment.
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    /// The store did not reply.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Limiter {
    /// Configures a limiter. Its counters are in memory, unless it is built on another store.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::new()
    }

    /// A limiter in memory that decides by the rules in `text`.
    ///
    /// # Errors
    /// When the rules are invalid. The error says where and what to write instead.
    pub fn from_yaml(text: &str) -> Result<Self, BuildError> {
        Limiter::builder().yaml(text).build()
    }
}

impl<S> Limiter<S> {
    /// Whether every rule runs in shadow mode, so that no request is ever denied.
    pub fn is_shadow_only(&self) -> bool {
        self.enforcement == EnforceMode::AllShadow
    }

    /// Replaces the secret, by the one of the deployment whose store this node has just joined. Counters and
    /// receipts made under the previous secret are no longer found.
    pub fn use_secret(&self, secret: Secret) {
        self.keys.store(Arc::new(Keys::of(secret)));
    }

    /// The store that holds the counters.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The rules and keys in force, to read, replace or follow.
    pub fn policy(&self) -> &Arc<LiveValue<Policy>> {
        &self.policy
    }

    /// The number of open permits of each rule with `concurrent`, as far as this node knows.
    pub fn open_requests(&self) -> Vec<OpenRequests> {
        let (now, limits) = (self.clock.now(), self.adaptive.limits());
        let open = self.open_permits.by_rule(now);
        let policy = self.policy.get();
        let rules = policy.rules.rules().iter();
        let limited = rules.filter(|rule| rule.concurrent().is_some());
        limited
            .map(|rule| OpenRequests {
                rule: rule.name().clone(),
                open: open.get(rule.name().as_str()).copied().unwrap_or(0),
                adaptive: limits.get(rule.name().as_str()).copied(),
            })
            .collect()
    }

    fn notify_observers(&self, event: &Event<'_>) {
        for observer in &self.observers {
            observer.on_event(event);
        }
    }

    /// A view of the limiter under the rules in force now.
    pub fn view(&self) -> LimiterView<'_, S> {
        LimiterView { limiter: self, policy: self.policy.get() }
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a request, and charges it if it is allowed.
    ///
    /// # Errors
    /// When the store gives no reply; the memory store always replies.
    pub async fn check(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        self.view().check(request).await
    }

    /// The decision `check` would make, without charging.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn peek(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        self.view().peek(request).await
    }

    /// A receipt for a decision that charged something. It allows a later refund.
    ///
    /// # Errors
    /// When the operating system has no randomness for its id.
    pub fn receipt(&self, decision: &Decision) -> Result<Option<String>, getrandom::Error> {
        let id = (self.new_id)()?;
        let receipt = Receipt::of(decision, || id, |options| self.store.run_id(options));
        Ok(receipt.map(|receipt| receipt.seal(&self.keys.load().secret)))
    }

    /// Refunds the charges named by a receipt, once. Counters that live in one process can be refunded only by
    /// the run of the process that charged them.
    ///
    /// # Errors
    /// When the receipt was not issued by this deployment, or the store gives no reply.
    pub async fn refund(&self, receipt: &str) -> Result<Refunded, RefundError> {
        let receipt = Receipt::open(receipt, ReceiptKind::Charge, &self.keys.load().secret)?;
        let policy = self.policy.get();
        match receipt.refund(&policy.rules, |options| self.store.run_id(options)) {
            Ok(refund) => Ok(self.store.refund(&refund).await?),
            Err(nothing_to_refund) => Ok(nothing_to_refund),
        }
    }
}

/// A limiter bound to the rules of one moment.
pub struct LimiterView<'l, S> {
    limiter: &'l Limiter<S>,
    policy: Arc<Versioned<Policy>>,
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
        let mut request = request;
        self.identify(&mut request);
        let plan = self.plan(&request);
        let decision = match plan.listed {
            Some(listed) => self.decision_by_list(listed, plan.client_hash),
            None => {
                let outcome = self.limiter.store.charge(&plan.set).await?;
                self.decision_of(&plan, &outcome, ChargedAs::IfAdmitted)
            }
        };
        self.notify_decided(&request, &decision);
        Ok(decision)
    }

    /// Decides several requests, each on its own and in order, and returns one result per request. Afterwards
    /// the addresses and keys in `requests` have the form that these rules use. Cancellation is as for
    /// [`LimiterView::check`], for each request.
    pub async fn check_each<'r>(&'r self, requests: &mut [Request<'r>]) -> Vec<Result<Decision, StoreError>> {
        for request in &mut *requests {
            self.identify(request);
        }
        let plans: Vec<_> = requests.iter().map(|r| self.plan(r)).collect();
        // A request decided by a list has an empty set: charging that touches no counter.
        let sets: Vec<&ChargeSet<'_>> = plans.iter().map(|plan| &plan.set).collect();
        let outcomes = self.limiter.store.charge_each(&sets).await;
        let mut decided = Vec::with_capacity(plans.len());
        for ((request, plan), outcome) in requests.iter().zip(&plans).zip(outcomes) {
            let decision = decided.push_mut(match (plan.listed, outcome) {
                (Some(listed), _) => Ok(self.decision_by_list(listed, plan.client_hash)),
                (None, Ok(outcome)) => Ok(self.decision_of(plan, &outcome, ChargedAs::IfAdmitted)),
                (None, Err(error)) => Err(error),
            });
            if let Ok(decision) = decision {
                self.notify_decided(request, decision);
            }
        }
        decided
    }

    /// The decision `check` would make, without charging. Observers are not notified.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn peek(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        let mut request = request;
        self.identify(&mut request);
        let plan = self.plan(&request);
        Ok(match plan.listed {
            Some(listed) => self.decision_by_list(listed, plan.client_hash),
            None => {
                let outcome = self.limiter.store.peek(&plan.set).await?;
                self.decision_of(&plan, &outcome, ChargedAs::Nothing)
            }
        })
    }

    /// The usage of every limit that applies to the request's client.
    ///
    /// # Errors
    /// When the store gives no reply.
    pub async fn inspect(&self, request: Request<'_>) -> Result<Vec<LimitUsage>, StoreError> {
        let mut request = request;
        self.identify(&mut request);
        let keys = self.limiter.keys.load_full();
        let ChargePlan { set, origins, .. } = self.plan_every_limit(&keys, &mut request);
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
    /// without an address and without the attributes that a rule counts by.
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
        self.identify(&mut request);
        let keys = self.limiter.keys.load_full();
        let ChargePlan { mut set, origins, .. } = self.plan_every_limit(&keys, &mut request);
        let rules = self.policy.rules.rules();
        let charges = set.charges.into_iter().zip(origins);
        let selected = charges.filter(|(_, origin)| {
            let rule = &rules[origin.rule as usize];
            selects(rule, &request)
        });
        set.charges = selected.map(|(charge, _)| charge).collect();
        let mut limits = self.concurrency_limits(&keys, &request);
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

impl<S> LimiterView<'_, S> {
    /// The rules and keys of this view.
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
    fn identify<'r>(&'r self, request: &mut Request<'r>) {
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

    fn plan(&self, request: &Request<'_>) -> ChargePlan<'_> {
        self.plan_under(&self.limiter.keys.load(), request, Purpose::Check)
    }

    /// As `plan`, for callers that fingerprint more than once: all fingerprints use one secret.
    fn plan_under(&self, keys: &Keys, request: &Request<'_>, purpose: Purpose) -> ChargePlan<'_> {
        let limiter = self.limiter;
        engine::plan(&self.policy.rules, limiter.enforcement, &keys.fingerprint, request, purpose, || {
            limiter.clock.now()
        })
    }

    fn decision_by_list(&self, listed: ListDecision, client: u64) -> Decision {
        let rules = Arc::clone(&self.policy.rules);
        engine::decide_listed(rules, listed, client, self.limiter.clock.now())
    }

    fn decision_of(&self, plan: &ChargePlan<'_>, outcome: &Outcome, charged: ChargedAs) -> Decision {
        engine::decide(Arc::clone(&self.policy.rules), plan, outcome, charged)
    }

    /// Plans every limit of the request's client, in every unit and regardless of the lists.
    fn plan_every_limit(&self, keys: &Keys, request: &mut Request<'_>) -> ChargePlan<'_> {
        request.costs.clear(); // a unit without a cost costs one, so that every unit counts
        let (limiter, rules) = (self.limiter, &self.policy.rules);
        let key = &keys.fingerprint;
        engine::plan_charges(rules, limiter.enforcement, key, request, Purpose::Check)
    }

    fn notify_decided(&self, request: &Request<'_>, decision: &Decision) {
        self.limiter.notify_observers(&Event::Decided { request, decision });
    }
}

/// The open permits of one rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenRequests {
    /// The rule.
    pub rule: RuleName,
    /// Permits that were acquired or renewed at this node, and have neither been released here nor expired.
    pub open: u64,
    /// The lowest limit that this node has found for any subject, if the rule is adaptive.
    pub adaptive: Option<u32>,
}

/// A client's usage of one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitUsage {
    /// The rule.
    pub rule: String,
    /// The rate as written: `1000/minute burst 200`.
    pub rate: String,
    /// The maximum the limit can hold.
    pub capacity: u64,
    /// The usage; `None` if the store has no counter for the client, which means that all of it is left.
    pub inspection: Option<Inspection>,
}

impl<C: Clock> Limiter<MemoryStore<C>> {
    /// Decides without a runtime: the memory store never waits.
    pub fn check_now(&self, request: Request<'_>) -> Decision {
        let view = self.view();
        let mut request = request;
        view.identify(&mut request);
        let plan = view.plan(&request);
        let decision = match plan.listed {
            Some(listed) => view.decision_by_list(listed, plan.client_hash),
            None => view.decision_of(&plan, &self.store.charge_now(&plan.set), ChargedAs::IfAdmitted),
        };
        view.notify_decided(&request, &decision);
        decision
    }

    /// The current time of the clock by which this limiter counts.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }
}
