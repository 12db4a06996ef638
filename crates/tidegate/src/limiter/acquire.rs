//! Requests that are open for a while: a slot of every rule that limits how many are, and the charge
//! of every rate, together.
//!
//! Kept true: a request that is refused by any rule holds no slot, as far as the store can be told; one
//! that is full charges nothing. Slots end by themselves, so nothing is lost for longer than they last;
//! and those of a request that nobody waits for any more are freed at once, by whoever can (`guard`).

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::engine::{self, ChargedAs, ConcurrencyLimit, Decision};
use tidegate_core::event::Event;
use tidegate_core::request::{Edge, Request};
use tidegate_core::rules::{Concurrency, Purpose};
use tidegate_core::store::{
    Charge, OnStoreFailure, PermitReply, PermitRequest, Role, RuleOptions, Source, Store,
    StoreError, WorkKind,
};
use tidegate_core::subject::RuleName;
use tidegate_core::units::{Cost, Nanos};

use super::acquire_guard::AcquireGuard;
use super::ticket::{PermitLocation, Ticket, TicketError, TicketPermit};
use super::{Keys, Limiter, LimiterView};

/// How long a slot lasts where nobody says.
pub const DEFAULT_PERMIT_TTL: Nanos = Nanos::from_secs(10);

/// By then a question that nobody waits for any more has reached its store, or never will.
pub const CANCEL_RETRY_AFTER: Nanos = Nanos::from_secs(2);

/// What became of a request that wants to be open.
#[derive(Clone, Debug)]
pub enum Acquired<T = Ticket> {
    /// It is, and has been charged.
    Open {
        /// What keeps it so.
        permit: T,
        /// What was charged.
        decision: Decision,
        /// How each limit on what is open stands.
        limits: SmallVec<[ConcurrencyUsage; 2]>,
    },
    /// A rate or a list refuses it. It is not open.
    Denied(Decision),
    /// Too many are open. It is not, and nothing was charged.
    Full(ConcurrencyDenial),
}

/// A limit on what is open, with this request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConcurrencyUsage {
    /// The rule.
    pub rule: RuleName,
    /// How many may be open.
    pub max_permits: u32,
    /// How many are, this one included if it has a slot.
    pub open: u32,
    /// Whether the rule only watches.
    pub role: Role,
    /// Whether there was room.
    pub granted: bool,
}

/// Too many requests are open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConcurrencyDenial {
    /// The rule that says so.
    pub rule: RuleName,
    /// How many may be open.
    pub max_permits: u32,
    /// How many are, as far as whoever decided knows.
    pub open: u32,
    /// How it was decided.
    pub source: Source,
    /// Whether it is only that the store is out of reach, and the rule says to refuse meanwhile.
    pub unavailable: bool,
    /// A hash of who asked, to spread what many are told at once.
    pub client: u64,
}

/// Why a slot was neither given nor refused.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// The text is no slot of ours.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is nothing to name a holder by.
    #[error("the operating system has no randomness: {0}")]
    NoRandomness(#[from] getrandom::Error),
}

impl<S: Store> Limiter<S> {
    /// Opens a request for as long as `ttl`, unless it is renewed: takes a slot of every rule that
    /// limits how many are open, and charges the rates as `check` does.
    ///
    /// Not cancel-safe: dropped before it has answered, it may leave slots that nobody knows of until
    /// they end. A [`PermitRenewer`](super::PermitRenewer) is, and so is [`Limiter::acquire_with_cancel`].
    ///
    /// # Errors
    /// When the store gave no answer; memory always does.
    pub async fn acquire(
        &self,
        request: Request<'_>,
        ttl: Nanos,
    ) -> Result<Acquired, AcquireError> {
        self.acquire_with_cancel(request, ttl, |_| {}).await
    }

    /// The same for callers that may stop waiting: dropped before it has answered, it hands what may
    /// have been taken to `on_cancel`, for a task that calls [`Limiter::cancel`] with it. Rates that were
    /// charged by then stay charged.
    ///
    /// # Errors
    /// When the store gave no answer; memory always does.
    pub async fn acquire_with_cancel(
        &self,
        request: Request<'_>,
        ttl: Nanos,
        on_cancel: impl FnOnce(Ticket) + Send,
    ) -> Result<Acquired, AcquireError> {
        self.view()
            .acquire_with_cancel(request, ttl, on_cancel)
            .await
    }

    /// Frees the slots of a request that never began. What the store does not hear ends by itself. To be done
    /// again after [`CANCEL_RETRY_AFTER`]: the question for a slot may still be under way, on another connection.
    pub async fn cancel(&self, ticket: &Ticket) {
        for permit in &ticket.permits {
            let freed = self.release_one(ticket, permit, ReleaseCause::NeverStarted);
            let _expires_otherwise = freed.await;
        }
    }

    /// Lets the slots of a request last on; whether it has all of them still. None is taken again.
    ///
    /// # Errors
    /// When the store gave no answer, so that nobody knows.
    pub async fn renew(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        let mut renewed = true;
        for permit in &ticket.permits {
            renewed &= self.renew_one(ticket, permit).await?;
        }
        match renewed {
            true => self.record_open(ticket),
            false => self.open_permits.record_closed(ticket),
        }
        Ok(renewed)
    }

    /// Takes slots again that were lost, where there is room; whether the request has all of them.
    pub(super) async fn reacquire(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        let mut reacquired = true;
        for permit in &ticket.permits {
            reacquired &= match permit.location {
                PermitLocation::Store => {
                    let (max_permits, options) = self.limit_and_options(permit);
                    let again = permit_request(ticket, permit, max_permits, &options);
                    self.store.acquire(&again).await?.granted
                }
                PermitLocation::Node => {
                    let (rule, subject, now) = (&permit.rule, permit.subject, self.clock.now());
                    let until = now.plus(ticket.ttl);
                    let adaptive = &self.adaptive;
                    adaptive.renew(rule, subject, ticket.holder, now, until)
                        || adaptive
                            .acquire(rule, subject, ticket.holder, now, until)
                            .granted
                }
            };
        }
        if reacquired {
            self.record_open(ticket);
        }
        Ok(reacquired)
    }

    /// Ends a request: its slots are free. To end it twice does nothing.
    ///
    /// # Errors
    /// When the store gave no answer. The slots end by themselves then.
    pub async fn release(&self, ticket: &Ticket) -> Result<(), StoreError> {
        self.open_permits.record_closed(ticket);
        let mut released = Ok(());
        for permit in &ticket.permits {
            let one = self
                .release_one(ticket, permit, ReleaseCause::Finished)
                .await;
            released = released.and(one);
        }
        released
    }

    /// A ticket as text that works on every node of the deployment.
    pub fn seal(&self, ticket: &Ticket) -> String {
        ticket.seal(&self.keys.load().secret)
    }

    /// The ticket that `seal` made a text of.
    ///
    /// # Errors
    /// When it is not one of this deployment.
    pub fn unseal(&self, text: &str) -> Result<Ticket, TicketError> {
        Ticket::open(text, &self.keys.load().secret)
    }

    fn record_open(&self, ticket: &Ticket) {
        let now = self.clock.now();
        self.open_permits
            .record_open(ticket, now, now.plus(ticket.ttl));
    }

    async fn renew_one(&self, ticket: &Ticket, permit: &TicketPermit) -> Result<bool, StoreError> {
        if permit.location == PermitLocation::Node {
            let now = self.clock.now();
            let (rule, until) = (&permit.rule, now.plus(ticket.ttl));
            let own = self
                .adaptive
                .renew(rule, permit.subject, ticket.holder, now, until);
            return Ok(own);
        }
        let (max_permits, options) = self.limit_and_options(permit);
        let own = permit_request(ticket, permit, max_permits, &options);
        Ok(self.store.renew(&own).await?.granted)
    }

    async fn release_one(
        &self,
        ticket: &Ticket,
        permit: &TicketPermit,
        cause: ReleaseCause,
    ) -> Result<(), StoreError> {
        let (rule, subject, holder) = (&permit.rule, permit.subject, ticket.holder);
        match (permit.location, cause) {
            (PermitLocation::Store, _) => {
                let (max_permits, options) = self.limit_and_options(permit);
                self.store
                    .release(&permit_request(ticket, permit, max_permits, &options))
                    .await
            }
            (PermitLocation::Node, ReleaseCause::Finished) => {
                self.adaptive
                    .release(rule, subject, holder, self.clock.now());
                Ok(())
            }
            (PermitLocation::Node, ReleaseCause::NeverStarted) => {
                self.adaptive.forget(rule, subject, holder);
                Ok(())
            }
        }
    }

    /// How many may be open under a rule of this name, and what it asks of the store.
    fn limit_and_options(&self, permit: &TicketPermit) -> (u32, RuleOptions) {
        let policy = self.policy.get();
        let rule = policy.rules.rule(permit.rule.as_str());
        let max_permits = match rule.and_then(|rule| rule.concurrent()) {
            Some(Concurrency::Fixed(max)) => max,
            // The rule is gone: who is open under it stays so.
            Some(Concurrency::Adaptive) | None => u32::MAX,
        };
        (
            max_permits,
            rule.map_or(RuleOptions::DEFAULT, |rule| *rule.options()),
        )
    }
}

/// A slot of the store.
fn permit_request<'a>(
    ticket: &Ticket,
    permit: &'a TicketPermit,
    max_permits: u32,
    options: &'a RuleOptions,
) -> PermitRequest<'a> {
    PermitRequest {
        subject: permit.subject,
        rule: &permit.rule,
        holder: ticket.holder,
        max_permits,
        ttl: ticket.ttl,
        options,
    }
}

/// How the use of a slot ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReleaseCause {
    /// The request is over.
    Finished,
    /// It was refused elsewhere, and never began.
    NeverStarted,
}

impl<S: Store> LimiterView<'_, S> {
    /// Opens a request; see [`Limiter::acquire_with_cancel`].
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn acquire_with_cancel(
        &self,
        request: Request<'_>,
        ttl: Nanos,
        on_cancel: impl FnOnce(Ticket) + Send,
    ) -> Result<Acquired, AcquireError> {
        let mut request = request;
        self.identify(&mut request);
        // Charges and permits under one secret, even if it is replaced in between.
        let keys = self.limiter.keys.load_full();
        let mut plan = self.plan_under(&keys, &request, Purpose::Acquire);
        // The rates wait for the store as long as the permits do: they admit the same work.
        plan.set.work = WorkKind::LongWork;
        let ticket = Ticket {
            holder: (self.limiter.new_id)()?,
            ttl,
            permits: SmallVec::new(),
        };
        let mut guard = AcquireGuard::new(ticket, on_cancel);
        if let Some(listed) = plan.listed {
            let decision = self.decision_by_list(listed, plan.client_hash);
            self.notify_decided(&request, &decision);
            return Ok(guard.finish(decision));
        }
        for limit in self.concurrency_limits(&keys, &request) {
            guard.add_permit(ticket_permit_of(&limit));
            let (max_permits, reply) = match self.acquire_one(&limit, guard.ticket()).await {
                Ok(taken) => taken,
                Err(error) => {
                    self.abort(guard).await;
                    return Err(error.into());
                }
            };
            guard.record_reply(ConcurrencyUsage {
                rule: limit.rule.name().clone(),
                max_permits,
                open: reply.in_use,
                role: limit.role,
                granted: reply.granted,
            });
            if let Some(denial) =
                self.denial_of(&limit, max_permits, reply, request.edge, plan.client_hash)
            {
                self.abort(guard).await;
                return Ok(Acquired::Full(denial));
            }
        }
        let outcome = match self.limiter.store.charge(&plan.set).await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.abort(guard).await;
                return Err(error.into());
            }
        };
        let decision = self.decision_of(&plan, &outcome, ChargedAs::IfAdmitted);
        self.notify_decided(&request, &decision);
        if !decision.allowed() {
            self.abort(guard).await;
            return Ok(Acquired::Denied(decision));
        }
        self.limiter.record_open(guard.ticket());
        Ok(guard.finish(decision))
    }

    /// Frees the slots that this node has of a rule and subject; how many it had by itself.
    pub(super) fn release_local(&self, limit: &ConcurrencyLimit<'_>) -> u64 {
        let (limiter, rule, subject) = (self.limiter, limit.rule.name(), limit.subject);
        limiter.open_permits.forget(rule, subject);
        limiter
            .adaptive
            .release_all(rule, subject, limiter.clock.now())
    }

    pub(super) fn concurrency_limits(
        &self,
        keys: &Keys,
        request: &Request<'_>,
    ) -> SmallVec<[ConcurrencyLimit<'_>; 2]> {
        let (rules, limiter) = (&self.policy.rules, self.limiter);
        engine::concurrency_limits(rules, limiter.enforcement, &keys.fingerprint, request)
    }

    /// Takes the slot of one rule; how many may be open, and what was said.
    async fn acquire_one(
        &self,
        limit: &ConcurrencyLimit<'_>,
        ticket: &Ticket,
    ) -> Result<(u32, PermitReply), StoreError> {
        let (limiter, rule) = (self.limiter, limit.rule);
        let max_permits = match limit.max {
            Concurrency::Fixed(max) => max,
            Concurrency::Adaptive => {
                let now = limiter.clock.now();
                let (holder, until) = (ticket.holder, now.plus(ticket.ttl));
                let adaptive = &limiter.adaptive;
                let outcome = adaptive.acquire(rule.name(), limit.subject, holder, now, until);
                let reply = PermitReply {
                    granted: outcome.granted,
                    in_use: outcome.open,
                    source: Source::Exact,
                };
                return Ok((outcome.limit, reply));
            }
        };
        let request = PermitRequest {
            subject: limit.subject,
            rule: rule.name(),
            holder: ticket.holder,
            max_permits,
            ttl: ticket.ttl,
            options: rule.options(),
        };
        Ok((max_permits, limiter.store.acquire(&request).await?))
    }

    /// Why the request is refused by what the limit of one rule said, if it is.
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
        self.limiter.notify_observers(&Event::PermitDenied {
            edge,
            limit,
            source: reply.source,
        });
        (limit.role != Role::Shadow).then(|| ConcurrencyDenial {
            rule: limit.rule.name().clone(),
            max_permits,
            open: reply.in_use,
            source: reply.source,
            unavailable: reply.source == Source::Fallback
                && limit.rule.options().on_failure == OnStoreFailure::Deny,
            client,
        })
    }

    /// Frees the slots of a request that is refused.
    async fn abort<F: FnOnce(Ticket) + Send>(&self, guard: AcquireGuard<F>) {
        self.limiter.cancel(guard.ticket()).await;
        guard.disarm();
    }
}

/// What names the slots of a rule that may have no rate. The limit is any.
pub(super) fn placeholder_charge<'a>(limit: &ConcurrencyLimit<'a>) -> Charge<'a> {
    let spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(1));
    let any = Limit::compile(&spec, Precision::Script).expect("one a second fits every store");
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

/// The slot of one rule.
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
