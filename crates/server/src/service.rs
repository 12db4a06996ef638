//! The state that every edge shares: the limiter, the metrics and the decision ids. [`denials`](crate::logging::denials) logs
//! denials.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderValue, header};
use tidegate::clock::{Clock, SystemClock};
use tidegate::http::{BodyStyle, ResetStyle, ResponseContext};
use tidegate::observe::Metrics;
use tidegate::{AcquireError, Acquired, CANCEL_RETRY_AFTER, Limiter, Reservation, Ticket};
use tidegate_core::store::StoreError;
use tidegate_core::units::Nanos;
use tidegate_rules::engine::Decision;
use tidegate_rules::request::{Edge, Request};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::warn;

use crate::app::readiness::Readiness;
use crate::app::shutdown::ShutdownPhase;
use crate::config::LogSubjects;
use crate::edges::envoy::{EnvoyOptions, EnvoyStatistics};
use crate::edges::proxy_auth::wire::ProxyHeaderPolicy;
use crate::logging::decision_ids::{DecisionId, DecisionIds};
use crate::logging::denials::{log_missed_count, second};
use crate::maybe_ready::MaybeReady;
use crate::policy::first_config::{FirstConfig, MissingConfigError};
use crate::state::any_store::AnyStore;

/// The limiter of this process.
pub(crate) type ServerLimiter = Limiter<AnyStore>;

/// The state that every edge shares.
pub(crate) struct Service {
    pub(crate) limiter: Arc<ServerLimiter>,
    pub(crate) clock: SystemClock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ids: DecisionIds,
    pub(crate) reset: ResetStyle,
    pub(crate) log_subjects: LogSubjects,
    pub(crate) phase: watch::Receiver<ShutdownPhase>,
    pub(crate) proxy_header_policy: ArcSwapOption<ProxyHeaderPolicy>,
    pub(crate) envoy: EnvoyOptions,
    pub(crate) envoy_statistics: Option<EnvoyStatistics>,
    /// Whether a configuration is loaded. A service that starts without one has none until its first load succeeds.
    pub(crate) first_config: FirstConfig,
}

/// The rules that a request charges, of those that apply to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChargeScope {
    /// All rules.
    All,
    /// Only rules with a unit: the plain cost is 0.
    Units,
    /// No rule: a peek.
    Nothing,
}

impl ChargeScope {
    pub(crate) fn charges(self) -> bool {
        self != ChargeScope::Nothing
    }
}

impl Service {
    /// Wraps a decision: polled in place if the store never waits, boxed otherwise.
    pub(crate) fn wait_for<F: Future>(&self, work: F) -> MaybeReady<F> {
        if self.limiter.store().never_wait() { MaybeReady::poll_now(work) } else { MaybeReady::boxed(work) }
    }

    /// Fails while no configuration for requests of this edge is loaded. Without one nothing is allowed.
    pub(crate) fn require_config(&self, edge: Edge) -> Result<(), MissingConfigError> {
        self.first_config.require(edge)
    }

    /// Whether load balancers should send requests to this node.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness::of(*self.phase.borrow(), self.first_config.require_all())
    }

    /// Health in the terms of Envoy's reference service: serving and, if so configured, with at least one domain.
    pub(crate) fn is_healthy(&self) -> bool {
        let configured = || {
            let policy = self.limiter.policy().load();
            self.require_config(Edge::Envoy).is_ok() && policy.rules.domains().len() > 0
        };
        let serving = *self.phase.borrow() == ShutdownPhase::Serving;
        serving && (!self.envoy.healthy_when_configured || configured())
    }

    /// Decides one request and records the duration.
    pub(crate) async fn decide(&self, request: Request<'_>, scope: ChargeScope) -> Result<Decision, StoreError> {
        let edge = request.edge;
        let started = Instant::now();
        let decision = match scope {
            ChargeScope::Nothing => self.limiter.peek(request).await,
            ChargeScope::Units => self.limiter.check_units(request).await,
            ChargeScope::All => self.limiter.check(request).await,
        };
        self.metrics.record_duration(edge, started.elapsed());
        decision
    }

    /// Acquires permits for one request and records the duration.
    ///
    /// Cancel-safe: a caller that stops waiting leaves no permit acquired.
    pub(crate) async fn acquire(self: &Arc<Self>, request: Request<'_>, ttl: Nanos) -> Result<Acquired, AcquireError> {
        let edge = request.edge;
        let started = Instant::now();
        let on_abandoned = |ticket| Arc::clone(self).spawn_cancel(ticket);
        let acquired = self.limiter.acquire_with_cancel(request, ttl.duration(), on_abandoned).await;
        self.metrics.record_duration(edge, started.elapsed());
        acquired
    }

    /// Releases the permits of a caller that hung up. While the process shuts down there is no runtime to do so, and
    /// the permits expire.
    fn spawn_cancel(self: Arc<Self>, ticket: Ticket) {
        if let Ok(tokio) = Handle::try_current() {
            tokio.spawn(async move {
                self.limiter.cancel(&ticket).await;
                tokio::time::sleep(CANCEL_RETRY_AFTER).await;
                self.limiter.cancel(&ticket).await;
            });
        }
    }

    /// Decides one request, reserves its estimated cost and records the duration.
    pub(crate) async fn reserve(&self, request: Request<'_>, ttl: Nanos) -> Result<Reservation, StoreError> {
        let edge = request.edge;
        let started = Instant::now();
        let reservation = self.limiter.reserve(request, ttl.duration()).await;
        self.metrics.record_duration(edge, started.elapsed());
        reservation
    }

    /// How sub-requests are read under the active rules. Built once for each rule set.
    pub(crate) fn proxy_header_policy(&self) -> Arc<ProxyHeaderPolicy> {
        let policy = self.limiter.policy().load();
        let known = self.proxy_header_policy.load();
        match &*known {
            Some(known) if Arc::ptr_eq(&known.rules, &policy.rules) => Arc::clone(known),
            _ => {
                let fresh = Arc::new(ProxyHeaderPolicy::of(&policy.rules));
                self.proxy_header_policy.store(Some(Arc::clone(&fresh)));
                fresh
            }
        }
    }

    /// The parts of a response that are not in its decision.
    pub(crate) fn context<'a>(&self, id: &'a DecisionId, body: BodyStyle) -> ResponseContext<'a> {
        let wall = self.clock.wall();
        ResponseContext { id: id.as_str(), wall, reset: self.reset, body, receipt: None, reservation: None }
    }

    /// A receipt for a decision, if the caller wants one and something was charged.
    pub(crate) fn receipt(&self, wanted: bool, decision: &Decision) -> Option<String> {
        if !wanted {
            return None;
        }
        self.limiter.receipt(decision).unwrap_or_else(|error| {
            warn!(%error, "could not create a receipt");
            None
        })
    }

    /// Logs the counts of skipped lines of rules that deny nothing any more. Called at every maintenance tick.
    pub(crate) fn log_missed_denials(&self) {
        let now = second(self.clock.now());
        self.metrics.take_skipped_lines(now, log_missed_count);
    }

    /// Logs, once for each rule set, the rules that no request has matched. Called every few seconds.
    pub(crate) fn report_unmatched(&self) {
        const MAX_NAMES: usize = 20;
        let Some(unmatched) = self.metrics.take_unmatched() else {
            return;
        };
        let (count, requests) = (unmatched.rules.len(), unmatched.requests);
        let mut rules = unmatched.rules;
        rules.truncate(MAX_NAMES);
        warn!(
            rules = rules.join(", "),
            count, requests, "rules matched no request since they were loaded; run `tidegate explain` to see why"
        );
    }
}

/// The body style of denials: problem details if the client accepts them.
pub(crate) fn body_style(headers: &HeaderMap) -> BodyStyle {
    let wants = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains("application/problem+json"));
    if headers.get_all(header::ACCEPT).iter().any(wants) { BodyStyle::Problem } else { BodyStyle::Plain }
}
