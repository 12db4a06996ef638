//! Requests that stay open for a while: a permit of every rule with `concurrent`, and the charge of every rate,
//! together.
//!
//! Invariant: a request denied by any rule holds no permit, as far as the store can be reached, and a request
//! denied for lack of a permit is charged nothing. Permits expire, so that none is lost for longer than its TTL. The
//! permits of a cancelled request are released at once by the caller's `on_cancel` (`acquire_guard`).

use std::borrow::Cow;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{
    Charge, ChargeSet, Degraded, PermitReply, PermitRequest, Role, RuleOptions, Source, Store, StoreError, WorkKind,
};
use tidegate_core::subject::RuleName;
use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::engine::{self, ChargedAs, ConcurrencyLimit, Decision};
use tidegate_rules::event::Event;
use tidegate_rules::request::{Edge, Request};
use tidegate_rules::{Concurrency, Purpose};

use super::acquire_guard::AcquireGuard;
use super::ticket::{PermitLocation, Ticket, TicketError, TicketPermit};
use super::{Limiter, LimiterView};
use crate::adaptive::AdaptiveOutcome;
use crate::runtime::join_all;

/// TTL of a permit if the caller sets none.
pub const DEFAULT_PERMIT_TTL: Duration = Duration::from_secs(10);

/// How long after a cancel to cancel again: by then the cancelled call has reached its store, or never will.
pub const CANCEL_RETRY_AFTER: Duration = Duration::from_secs(2);

/// The result of an acquire.
#[must_use = "a request that is not open is not to be served"]
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum Acquired<T = Ticket> {
    /// The request is open, and has been charged.
    Open {
        /// What keeps the request open.
        permit: T,
        /// What was charged.
        decision: Decision,
        /// The usage of each concurrency limit.
        limits: SmallVec<[ConcurrencyUsage; 2]>,
    },
    /// A rate or a list denies the request. It is not open.
    Denied(Decision),
    /// Too many requests are open. This one is not, and nothing was charged.
    Full(ConcurrencyDenial),
}

/// The usage of a concurrency limit, with this request.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct ConcurrencyUsage {
    /// The rule.
    pub rule: RuleName,
    /// The number of requests that may be open.
    pub max_permits: u32,
    /// The number of open requests, including this one if it has a permit.
    pub open: u32,
    /// Whether the rule enforces or runs in shadow mode.
    pub role: Role,
    /// Whether this request has a permit.
    pub granted: bool,
}

/// A denial because too many requests are open.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct ConcurrencyDenial {
    /// The rule that denies.
    pub rule: RuleName,
    /// The number of requests that may be open.
    pub max_permits: u32,
    /// The number of open requests, as far as the deciding store or node knows.
    pub open: u32,
    /// How it was decided.
    pub source: Source,
    /// Whether the denial only means that the store is unavailable and the rule denies meanwhile.
    pub unavailable: bool,
    /// A hash of the client, to spread the retries of many clients.
    pub client: u64,
}

/// Why a permit was neither granted nor denied.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum AcquireError {
    /// The text is not a permit of this deployment.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// The store did not reply.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no randomness for the id of a holder.
    #[error("the operating system has no randomness: {0}")]
    NoRandomness(#[from] getrandom::Error),
}

impl<S: Store> Limiter<S> {
    /// Opens a request for `ttl`, unless it is renewed: acquires a permit of every rule with `concurrent`, and
    /// charges the rates as `check` does.
    ///
    /// Not cancel-safe: dropped before it has finished, the call may leave permits that no caller knows of until
    /// they expire. [`PermitRenewer`](super::PermitRenewer) and [`Limiter::acquire_with_cancel`] are cancel-safe.
    ///
    /// # Errors
    /// When the store gives no reply; the memory store always replies.
    pub async fn acquire(&self, request: Request<'_>, ttl: Duration) -> Result<Acquired, AcquireError> {
        self.acquire_with_cancel(request, ttl, |_| {}).await
    }

    /// As [`Limiter::acquire`], for callers that may stop waiting. Dropped before it has finished, the call passes
    /// the permits that may have been acquired to `on_cancel`, for a task that calls [`Limiter::cancel`] with them.
    /// Rates that were charged by then stay charged.
    ///
    /// # Errors
    /// When the store gives no reply; the memory store always replies.
    pub async fn acquire_with_cancel(
        &self,
        request: Request<'_>,
        ttl: Duration,
        on_cancel: impl FnOnce(Ticket) + Send,
    ) -> Result<Acquired, AcquireError> {
        self.view().acquire(request, ttl, on_cancel).await
    }

    /// Releases the permits of a request that never started. A permit whose release does not reach the store
    /// expires. Call it again after [`CANCEL_RETRY_AFTER`]: the acquire may still be in flight on another connection.
    /// Dropped before it has finished, the call may leave permits that then expire.
    pub async fn cancel(&self, ticket: &Ticket) {
        self.cancel_within(ticket, None).await;
    }

    /// The same for a caller that waits no longer than `max_wait`. A release that takes longer is synced later.
    async fn cancel_within(&self, ticket: &Ticket, max_wait: Option<Nanos>) {
        let releasing = ticket.permits.iter().map(|permit| {
            let cause = ReleaseCause::NeverStarted;
            self.release_one(ticket, permit, cause, max_wait)
        });
        let _expire_otherwise = join_all(releasing).await;
    }

    /// Extends the permits of a request by its TTL. Returns whether it still has all of them. None is reacquired. All
    /// calls are in flight at once.
    /// Cancel-safe: dropped before it has finished, the call may have extended them.
    ///
    /// # Errors
    /// When the store gives no reply, so that the state of the permits is unknown.
    pub async fn renew(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        let renewing = ticket.permits.iter().map(|permit| self.renew_one(ticket, permit));
        let renewed: Vec<bool> = join_all(renewing).await.into_iter().collect::<Result<_, _>>()?;
        let renewed = !renewed.contains(&false);
        if renewed {
            self.record_open(ticket);
        } else {
            self.open_permits.record_closed(ticket);
        }
        Ok(renewed)
    }

    /// Reacquires lost permits where there is room. Returns whether the request has all of them.
    pub(super) async fn reacquire(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        let reacquiring = ticket.permits.iter().map(|permit| self.reacquire_one(ticket, permit));
        let reacquired: Vec<bool> = join_all(reacquiring).await.into_iter().collect::<Result<_, _>>()?;
        let reacquired = !reacquired.contains(&false);
        if reacquired {
            self.record_open(ticket);
        }
        Ok(reacquired)
    }

    async fn reacquire_one(&self, ticket: &Ticket, permit: &TicketPermit) -> Result<bool, StoreError> {
        Ok(match permit.location {
            PermitLocation::Store => {
                let (max_permits, options) = self.limit_and_options(permit);
                self.store.acquire(&permit_request(ticket, permit, max_permits, &options, None)).await?.granted
            }
            PermitLocation::Node => {
                self.renew_one(ticket, permit).await? || self.acquire_adaptive(ticket, permit).granted
            }
        })
    }

    /// Ends a request and releases its permits, all at once. To end it twice does nothing. Dropped before it has finished, the call
    /// may leave permits that then expire; it may be repeated.
    ///
    /// # Errors
    /// When the store gives no reply. The permits then expire.
    pub async fn release(&self, ticket: &Ticket) -> Result<(), StoreError> {
        self.open_permits.record_closed(ticket);
        let permits = ticket.permits.iter();
        let releasing = permits.map(|permit| self.release_one(ticket, permit, ReleaseCause::Finished, None));
        join_all(releasing).await.into_iter().collect()
    }

    /// Seals a ticket as text that works on every node of the deployment.
    pub fn seal(&self, ticket: &Ticket) -> String {
        ticket.seal(&self.keys.load().secret)
    }

    /// Opens the text of a ticket that `seal` made.
    ///
    /// # Errors
    /// When the text is not a ticket of this deployment.
    pub fn unseal(&self, text: &str) -> Result<Ticket, TicketError> {
        Ticket::open(text, &self.keys.load().secret)
    }

    fn record_open(&self, ticket: &Ticket) {
        let now = self.clock.now();
        self.open_permits.record_open(ticket, now, now.plus(ticket.ttl));
    }

    async fn renew_one(&self, ticket: &Ticket, permit: &TicketPermit) -> Result<bool, StoreError> {
        let now = self.clock.now();
        if permit.location == PermitLocation::Node {
            let until = now.plus(ticket.ttl);
            return Ok(self.adaptive.renew(&permit.rule, permit.subject, ticket.holder, now, until));
        }
        let (max_permits, options) = self.limit_and_options(permit);
        Ok(self.store.renew(&permit_request(ticket, permit, max_permits, &options, None)).await?.granted)
    }

    fn acquire_adaptive(&self, ticket: &Ticket, permit: &TicketPermit) -> AdaptiveOutcome {
        let now = self.clock.now();
        self.adaptive.acquire(&permit.rule, permit.subject, ticket.holder, now, now.plus(ticket.ttl))
    }

    async fn release_one(
        &self,
        ticket: &Ticket,
        permit: &TicketPermit,
        cause: ReleaseCause,
        max_wait: Option<Nanos>,
    ) -> Result<(), StoreError> {
        let (rule, subject, holder) = (&permit.rule, permit.subject, ticket.holder);
        match (permit.location, cause) {
            (PermitLocation::Store, _) => {
                let (max_permits, options) = self.limit_and_options(permit);
                self.store.release(&permit_request(ticket, permit, max_permits, &options, max_wait)).await
            }
            (PermitLocation::Node, ReleaseCause::Finished) => {
                self.adaptive.release(rule, subject, holder, self.clock.now());
                Ok(())
            }
            (PermitLocation::Node, ReleaseCause::NeverStarted) => {
                self.adaptive.forget(rule, subject, holder);
                Ok(())
            }
        }
    }

    /// The maximum of open permits under the rule of this name, and the options of the rule.
    fn limit_and_options(&self, permit: &TicketPermit) -> (u32, RuleOptions) {
        let policy = self.policy.get();
        let rule = policy.rules.rule(permit.rule.as_str());
        let max_permits = match rule.and_then(|rule| rule.concurrent()) {
            Some(Concurrency::Fixed(max)) => max,
            // The rule is gone: requests that are open under it stay open.
            Some(Concurrency::Adaptive) | None => u32::MAX,
        };
        (max_permits, rule.map_or(RuleOptions::DEFAULT, |rule| *rule.options()))
    }
}

/// The request for a permit of the store.
fn permit_request<'a>(
    ticket: &Ticket,
    permit: &'a TicketPermit,
    max_permits: u32,
    options: &'a RuleOptions,
    max_wait: Option<Nanos>,
) -> PermitRequest<'a> {
    PermitRequest {
        subject: permit.subject,
        rule: &permit.rule,
        holder: ticket.holder,
        max_permits,
        ttl: ticket.ttl,
        options,
        max_wait,
    }
}

/// Why a permit is released.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReleaseCause {
    /// The request is over.
    Finished,
    /// The request was denied by another limit, and never started.
    NeverStarted,
}

impl<S: Store> LimiterView<'_, S> {
    async fn acquire(
        &self,
        request: Request<'_>,
        ttl: Duration,
        on_cancel: impl FnOnce(Ticket) + Send,
    ) -> Result<Acquired, AcquireError> {
        let mut request = request;
        let mut plan = self.prepare(&mut request, Purpose::Acquire);
        // The rates wait for the store as long as the permits do: they admit the same work.
        plan.set.work = WorkKind::LongWork;
        let ticket = Ticket { holder: (self.limiter.new_id)()?, ttl: ttl.into(), permits: SmallVec::new() };
        let mut guard = AcquireGuard::new(ticket, on_cancel);
        if let Some(listed) = plan.listed {
            let decision = self.decision_by_list(listed, plan.client_hash);
            self.notify_decided(&request, &decision);
            return Ok(guard.finish(decision));
        }
        let mut permit_source = Source::Exact;
        let limits = self.concurrency_limits(&request);
        let deadline = self.acquire_deadline(&limits, &plan.set);
        for limit in limits {
            let permit = ticket_permit_of(&limit);
            guard.ticket.permits.push(permit.clone());
            let acquiring = self.acquire_one(&limit, &guard.ticket, &permit, self.wait_left(deadline));
            let (max_permits, reply) = match acquiring.await {
                Ok(acquired) => acquired,
                Err(error) => {
                    self.abort(guard, deadline).await;
                    return Err(error.into());
                }
            };
            if reply.source != Source::Exact {
                permit_source = reply.source;
            }
            guard.record_reply(ConcurrencyUsage {
                rule: limit.rule.name().clone(),
                max_permits,
                open: reply.in_use,
                role: limit.role,
                granted: reply.granted,
            });
            if let Some(denial) = self.denial_of(&limit, max_permits, reply, request.edge, plan.client_hash) {
                self.abort(guard, deadline).await;
                return Ok(Acquired::Full(denial));
            }
        }
        plan.set.max_wait = self.wait_left(deadline);
        let mut outcome = match self.limiter.store.charge(&plan.set).await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.abort(guard, deadline).await;
                return Err(error.into());
            }
        };
        if outcome.admitted && outcome.source == Source::Exact {
            outcome.source = permit_source;
        }
        let decision = self.decision_of(&plan, &outcome, ChargedAs::IfAdmitted);
        self.notify_decided(&request, &decision);
        if !decision.allowed() {
            self.abort(guard, deadline).await;
            return Ok(Acquired::Denied(decision));
        }
        self.limiter.record_open(&guard.ticket);
        Ok(guard.finish(decision))
    }

    /// Releases the permits of a rule and subject that this node knows. Returns the number of those that only this
    /// node holds.
    pub(super) fn release_local(&self, limit: &ConcurrencyLimit<'_>) -> u64 {
        let (limiter, rule, subject) = (self.limiter, limit.rule.name(), limit.subject);
        limiter.open_permits.forget(rule, subject);
        limiter.adaptive.release_all(rule, subject, limiter.clock.now())
    }

    pub(super) fn concurrency_limits(&self, request: &Request<'_>) -> SmallVec<[ConcurrencyLimit<'_>; 2]> {
        let (rules, limiter) = (&self.policy.rules, self.limiter);
        engine::concurrency_limits(rules, limiter.enforcement, &self.keys.fingerprint, request)
    }

    /// When an acquire stops waiting for the store. Its permits, its rates and, if it is denied, its releases share the
    /// time.
    fn acquire_deadline(&self, limits: &[ConcurrencyLimit<'_>], set: &ChargeSet<'_>) -> Option<Nanos> {
        let limiter = self.limiter;
        let in_store = limits.iter().filter(|limit| limit.max != Concurrency::Adaptive);
        let rules = in_store.map(|limit| limit.rule.options());
        let rules = rules.chain(set.charges.iter().map(|charge| charge.options));
        let budget = limiter.store.acquire_budget(rules);
        let wait = [budget, set.max_wait].into_iter().flatten().min()?;
        Some(limiter.clock.now().plus(wait))
    }

    /// What is left until a deadline.
    fn wait_left(&self, deadline: Option<Nanos>) -> Option<Nanos> {
        deadline.map(|deadline| deadline.since(self.limiter.clock.now()))
    }

    /// Acquires a permit of one rule. Returns the maximum of open permits, and the reply.
    async fn acquire_one(
        &self,
        limit: &ConcurrencyLimit<'_>,
        ticket: &Ticket,
        permit: &TicketPermit,
        max_wait: Option<Nanos>,
    ) -> Result<(u32, PermitReply), StoreError> {
        match limit.max {
            Concurrency::Fixed(max_permits) => {
                let request = permit_request(ticket, permit, max_permits, limit.rule.options(), max_wait);
                Ok((max_permits, self.limiter.store.acquire(&request).await?))
            }
            Concurrency::Adaptive => {
                let AdaptiveOutcome { granted, open: in_use, limit } = self.limiter.acquire_adaptive(ticket, permit);
                Ok((limit, PermitReply { granted, in_use, source: Source::Exact, degraded: None }))
            }
        }
    }

    /// The denial that follows from the reply for one rule, if any.
    fn denial_of(
        &self,
        limit: &ConcurrencyLimit<'_>,
        max_permits: u32,
        reply: PermitReply,
        edge: Edge,
        client: u64,
    ) -> Option<ConcurrencyDenial> {
        if reply.granted {
            return None;
        }
        self.limiter.notify_observers(&Event::PermitDenied { edge, limit, source: reply.source });
        (limit.role != Role::Shadow).then(|| ConcurrencyDenial {
            rule: limit.rule.name().clone(),
            max_permits,
            open: reply.in_use,
            source: reply.source,
            unavailable: matches!(reply.degraded, Some(Degraded::DeniedByPolicy { .. })),
            client,
        })
    }

    /// Releases the permits of a request that is denied, in the background what is not released by `deadline`.
    async fn abort<F: FnOnce(Ticket) + Send>(&self, guard: AcquireGuard<F>, deadline: Option<Nanos>) {
        self.limiter.cancel_within(&guard.ticket, self.wait_left(deadline)).await;
        guard.disarm();
    }
}

/// A charge that identifies the permits of a rule which may have no rate. Its limit is arbitrary.
pub(super) fn placeholder_charge<'a>(limit: &ConcurrencyLimit<'a>) -> Charge<'a> {
    let spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(1));
    let any = Limit::compile(&spec, Precision::Double).expect("one a second fits every store");
    Charge {
        subject: limit.subject,
        rule: limit.rule.name(),
        rate: 0,
        limit: Cow::Owned(any),
        cost: Cost::ONE,
        role: limit.role,
        options: limit.rule.options(),
    }
}

fn ticket_permit_of(limit: &ConcurrencyLimit<'_>) -> TicketPermit {
    TicketPermit {
        rule: limit.rule.name().clone(),
        subject: limit.subject,
        location: match limit.max {
            Concurrency::Fixed(_) => PermitLocation::Store,
            Concurrency::Adaptive => PermitLocation::Node,
        },
    }
}
