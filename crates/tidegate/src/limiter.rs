//! The limiter: identify, plan, charge, decide, notify the observers.
//!
//! Invariant: a decision uses one set of rules and one secret from beginning to end. A [`LimiterView`] holds them, and
//! a reload in between changes only later decisions. Observers are notified afterwards and cannot change anything.

mod acquire;
mod acquire_guard;
mod builder;
#[cfg(feature = "internals")]
mod described;
#[cfg(feature = "internals")]
mod key_charges;
mod library_request;
mod open_permit_gauge;
mod permit_renewer;
mod reservations;
mod settlement_retries;
mod ticket;
mod view;

use std::convert::Infallible;
use std::fmt;
#[cfg(feature = "live")]
use std::io;
#[cfg(feature = "live")]
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_core::store::{Inspection, Refunded, Store, StoreError};
use tidegate_core::subject::{FingerprintKey, RuleName};
use tidegate_core::units::Nanos;
use tidegate_rules::Purpose;
use tidegate_rules::engine::{ChargedAs, Decision, EnforceMode};
use tidegate_rules::event::{Event, Observer};
use tidegate_rules::request::Request;

use crate::clock::Clock;
use crate::live::LiveValue;
use crate::policy::Policy;
#[cfg(feature = "live")]
use crate::policy::{PolicyEvent, PolicyFollower};
use crate::receipt::{Receipt, ReceiptError, ReceiptKind};
use crate::runtime::Runtime;
use crate::secret::Secret;
use crate::stores::memory::MemoryStore;

pub use self::acquire::{
    AcquireError, Acquired, CANCEL_RETRY_AFTER, ConcurrencyDenial, ConcurrencyUsage, DEFAULT_PERMIT_TTL,
};
#[cfg(feature = "disk")]
pub use self::builder::DiskCounters;
#[cfg(feature = "redis")]
pub use self::builder::RedisCounters;
pub use self::builder::{BuildError, LimiterBuilder, MemoryCounters};
#[cfg(feature = "internals")]
pub use self::key_charges::{KeyAction, KeyCharge, KeyFamily};
pub use self::open_permit_gauge::MAX_COUNTED_TICKETS;
use self::open_permit_gauge::OpenPermitGauge;
pub use self::permit_renewer::{Permit, PermitRenewer};
pub use self::reservations::{Reservation, SettleError, Settlement};
pub use self::settlement_retries::PENDING_SETTLEMENTS_CAP_PART;
use self::settlement_retries::SettlementRetries;
pub use self::ticket::{Ticket, TicketError};
pub use self::view::LimiterView;
use crate::adaptive::Adaptive;

/// Decides requests by rules. Share it in an `Arc`.
pub struct Limiter<S = MemoryStore> {
    store: S,
    pub(crate) policy: Arc<LiveValue<Policy>>,
    keys: ArcSwap<Keys>,
    enforcement: EnforceMode,
    clock: Arc<dyn Clock>,
    observers: Vec<Arc<dyn Observer>>,
    adaptive: Adaptive,
    open_permits: OpenPermitGauge,
    settlement_retries: SettlementRetries,
    new_id: IdSource,
}

/// How often expired counters are evicted.
const EVICTION_INTERVAL: Nanos = Nanos::from_millis(100);

/// How often settlements without a reply are retried.
const SETTLEMENT_RETRY_INTERVAL: Nanos = Nanos::from_millis(250);

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
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
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
    /// The store that holds the counters.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Replaces the rules and keys. Decisions in flight finish by the previous ones; counts go on.
    pub fn replace_policy(&self, policy: Policy) {
        let replaced: Result<u64, Infallible> = self.policy.replace_with(|| Ok(policy));
        let _version = replaced;
    }

    /// A view of the limiter under the rules, keys and secret of this moment.
    pub fn view(&self) -> LimiterView<'_, S> {
        LimiterView { limiter: self, policy: self.policy.get(), keys: self.keys.load_full() }
    }

    fn notify_observers(&self, event: &Event<'_>) {
        for observer in &self.observers {
            observer.on_event(event);
        }
    }
}

#[cfg(feature = "internals")]
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

    /// The current time of the clock by which this limiter counts.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }
}

impl<S: Store> Limiter<S> {
    /// Decides a request, and charges it if it is allowed.
    ///
    /// Cancellation: dropped before it has finished, the call may have charged the request or some of its limits.
    /// Those charges stand, which denies too much rather than too little.
    ///
    /// # Errors
    /// When the store gives no reply; the memory store always replies.
    pub async fn check(&self, request: Request<'_>) -> Result<Decision, StoreError> {
        self.view().check(request).await
    }

    /// The decision `check` would make, without charging. Cancel-safe.
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
    /// the run of the process that charged them. Dropped before it has finished, the call may have refunded; it may be
    /// repeated.
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

impl<S: Store + 'static> Limiter<S> {
    /// Starts the background work of this limiter: it evicts expired counters, refunds the estimates of reservations
    /// that are not settled in time, and retries settlements that the store did not reply to. To be called once. The
    /// tasks end when the limiter is dropped.
    ///
    /// Checks need none of this. Without it memory stays bounded by its cap, and estimates stay charged until the next
    /// reservation of the same client.
    pub fn spawn_background<R: Runtime>(self: &Arc<Self>, runtime: &R) {
        // Two tasks, because retries wait for the store.
        let (limiter, timer) = (Arc::downgrade(self), runtime.clone());
        runtime.spawn(async move {
            while let Some(limiter) = limiter.upgrade() {
                limiter.store.evict_expired();
                drop(limiter);
                timer.sleep(EVICTION_INTERVAL).await;
            }
        });
        let (limiter, timer) = (Arc::downgrade(self), runtime.clone());
        runtime.spawn(async move {
            while let Some(limiter) = limiter.upgrade() {
                limiter.retry_settlements().await;
                drop(limiter);
                timer.sleep(SETTLEMENT_RETRY_INTERVAL).await;
            }
        });
    }
}

#[cfg(feature = "internals")]
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

/// The open permits of one rule.
#[cfg(feature = "internals")]
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
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
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

#[cfg(feature = "live")]
impl PolicyFollower {
    /// Keeps the policy of `limiter` in step with the rules at `path` and the keys file they name. `report` is called
    /// for everything that comes into force, and once for every error.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start<S>(
        limiter: &Limiter<S>,
        path: impl AsRef<Path>,
        report: impl Fn(PolicyEvent<'_>) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::follow(Arc::clone(&limiter.policy), path.as_ref(), report)
    }
}

impl<C: Clock> Limiter<MemoryStore<C>> {
    /// Decides without a runtime: the memory store never waits.
    pub fn check_now(&self, request: Request<'_>) -> Decision {
        let (view, mut request) = (self.view(), request);
        let plan = view.prepare(&mut request, Purpose::Check);
        let decision = match plan.listed {
            Some(listed) => view.decision_by_list(listed, plan.client_hash),
            None => view.decision_of(&plan, &self.store.charge_now(&plan.set), ChargedAs::IfAdmitted),
        };
        view.notify_decided(&request, &decision);
        decision
    }
}
