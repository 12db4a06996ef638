//! What every edge shares: the limiter, the numbers and the ids. Denials are logged by [`denials`](crate::denials).

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use http::{HeaderMap, HeaderValue, header};
use tidegate::clock::{Clock, SystemClock};
use tidegate::http::{BodyStyle, Context, ResetStyle};
use tidegate::observe::Metrics;
use tidegate::{Acquired, Limiter, OVERTAKEN, Reservation, SlotError, Ticket};
use tidegate_core::engine::Decision;
use tidegate_core::request::{Edge, Request};
use tidegate_core::store::StoreError;
use tidegate_core::units::Nanos;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::warn;

use crate::config::LogSubjects;
use crate::counters::Counters;
use crate::denials::{second, told_as_count};
use crate::drain::Phase;
use crate::edges::auth::wire::Reading;
use crate::edges::envoy::{EnvoyOptions, Statistics};
use crate::first_config::{FirstConfig, MissingConfigError};
use crate::ids::{Id, Ids};
use crate::readiness::Readiness;
use crate::waiting::Waiting;

/// The limiter of this process.
pub(crate) type Gate = Limiter<Counters>;

/// What edges share.
pub(crate) struct Service {
    pub(crate) limiter: Gate,
    pub(crate) clock: SystemClock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ids: Ids,
    pub(crate) reset: ResetStyle,
    pub(crate) log_subjects: LogSubjects,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) reading: ArcSwapOption<Reading>,
    pub(crate) envoy: EnvoyOptions,
    pub(crate) envoy_statistics: Option<Statistics>,
    /// Whether there is a configuration to decide by: a service that starts without one has none until it is loaded.
    pub(crate) first_config: FirstConfig,
}

/// Which of the rules that apply a request charges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChargeScope {
    /// All of them.
    All,
    /// Those with a unit: the plain cost is 0.
    Units,
    /// None: a peek.
    Nothing,
}

impl ChargeScope {
    /// Whether any rule may be charged.
    pub(crate) fn charges(self) -> bool {
        self != ChargeScope::Nothing
    }
}

impl Service {
    /// Lets `work` wait for the store, if that ever makes it wait.
    pub(crate) fn wait_for<F: Future>(&self, work: F) -> Waiting<F> {
        match self.limiter.store().never_wait() {
            true => Waiting::never(work),
            false => Waiting::perhaps(work),
        }
    }

    /// Whether there is a configuration to decide requests of this edge by. Without one nothing is allowed.
    pub(crate) fn require_config(&self, edge: Edge) -> Result<(), MissingConfigError> {
        self.first_config.require(edge)
    }

    /// Whether requests should be sent here.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness::of(*self.phase.borrow(), self.first_config.require_all())
    }

    /// Whether to go on sending requests here, as the reference service tells it.
    pub(crate) fn is_healthy(&self) -> bool {
        let configured = || {
            let policy = self.limiter.policy().load();
            self.require_config(Edge::Envoy).is_ok() && policy.rules.domains().len() > 0
        };
        let serving = *self.phase.borrow() == Phase::Serving;
        serving && (!self.envoy.healthy_when_configured || configured())
    }

    /// Decides one request and records how long that took.
    pub(crate) async fn decide(
        &self,
        request: Request<'_>,
        scope: ChargeScope,
    ) -> Result<Decision, StoreError> {
        let edge = request.edge;
        let begun = Instant::now();
        let decision = match scope {
            ChargeScope::Nothing => self.limiter.peek(request).await,
            ChargeScope::Units => self.limiter.check_units(request).await,
            ChargeScope::All => self.limiter.check(request).await,
        };
        self.metrics.took(edge, begun.elapsed());
        decision
    }

    /// Opens one request, and takes the time. Whoever stops waiting for it leaves no slot taken.
    pub(crate) async fn open(
        self: &Arc<Self>,
        request: Request<'_>,
        lasts: Nanos,
    ) -> Result<Acquired, SlotError> {
        let edge = request.edge;
        let begun = Instant::now();
        let left = |ticket| Arc::clone(self).forgo_soon(ticket);
        let acquired = self.limiter.acquire_or(request, lasts, left).await;
        self.metrics.took(edge, begun.elapsed());
        acquired
    }

    /// Frees what was taken for a caller that hung up. When the process is ending there is nobody to do
    /// so, and the slots end by themselves.
    fn forgo_soon(self: Arc<Self>, ticket: Ticket) {
        if let Ok(tokio) = Handle::try_current() {
            tokio.spawn(async move {
                self.limiter.forgo(&ticket).await;
                tokio::time::sleep(Duration::from_nanos(OVERTAKEN.get())).await;
                self.limiter.forgo(&ticket).await;
            });
        }
    }

    /// Decides one request and reserves what it may cost, and takes the time.
    pub(crate) async fn reserve(
        &self,
        request: Request<'_>,
        lasts: Nanos,
    ) -> Result<Reservation, StoreError> {
        let edge = request.edge;
        let begun = Instant::now();
        let reservation = self.limiter.reserve(request, lasts).await;
        self.metrics.took(edge, begun.elapsed());
        reservation
    }

    /// How sub-requests are read under the rules in force. Made once for each set of rules.
    pub(crate) fn reading(&self) -> Arc<Reading> {
        let policy = self.limiter.policy().load();
        let known = self.reading.load();
        match &*known {
            Some(known) if Arc::ptr_eq(&known.rules, &policy.rules) => Arc::clone(known),
            _ => {
                let fresh = Arc::new(Reading::of(&policy.rules));
                self.reading.store(Some(Arc::clone(&fresh)));
                fresh
            }
        }
    }

    /// What an answer needs besides its decision.
    pub(crate) fn context<'a>(&self, id: &'a Id, body: BodyStyle) -> Context<'a> {
        let wall = self.clock.wall();
        Context {
            id: id.as_str(),
            wall,
            reset: self.reset,
            body,
            receipt: None,
            reservation: None,
        }
    }

    /// A receipt for a decision, if one is wanted and something was charged.
    pub(crate) fn receipt(&self, wanted: bool, decision: &Decision) -> Option<String> {
        if !wanted {
            return None;
        }
        self.limiter.receipt(decision).unwrap_or_else(|error| {
            warn!(%error, "no receipt");
            None
        })
    }

    /// Tells the counts of rules that have gone quiet. To be called every second.
    pub(crate) fn settle_lines(&self) {
        let now = second(self.clock.now());
        self.metrics.settle_lines(now, told_as_count);
    }

    /// Logs, once for each set of rules, which of them no request has matched. To be called every few
    /// seconds.
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
            count,
            requests,
            "rules matched no request since they were loaded; tidegate explain says why"
        );
    }
}

/// Whether a client wants refusals as problem details.
pub(crate) fn body_style(headers: &HeaderMap) -> BodyStyle {
    let wants = |value: &HeaderValue| {
        value
            .to_str()
            .is_ok_and(|text| text.contains("application/problem+json"))
    };
    match headers.get_all(header::ACCEPT).iter().any(wants) {
        true => BodyStyle::Problem,
        false => BodyStyle::Plain,
    }
}
