//! The one way from an edge to the limiter.
//!
//! A `Decider` demands a configuration, checks names, decides, records durations, logs denials and failures of the
//! store, and assigns ids and receipts, alike for every edge. An edge parses bytes into a request, makes one call and
//! renders the result. Knows no wire format.

mod denial_log;
mod error;
pub(crate) mod first_config;
mod maybe_ready;
pub(crate) mod readiness;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tidegate::clock::{Clock, SystemClock};
use tidegate::http::{BodyStyle, ResetStyle, ResponseContext};
use tidegate::live::Versioned;
use tidegate::observe::{Counter, Metrics, NetworkMetrics};
use tidegate::runtime::join_all;
use tidegate::{
    Acquired, Actual, CANCEL_RETRY_AFTER, ConcurrencyDenial, ConcurrencyUsage, KeyAction, KeyCharge, KeyFamily,
    LimitUsage, LimiterView, Policy, Reservation, Settlement, Ticket,
};
use tidegate_core::algorithms::{Figures, Retry, Verdict};
use tidegate_core::store::{
    LimitReading, Refunded, Reserve, SINGLE_BATCH, SingleOutcome, SingleOutcomes, Source, StoreError,
};
use tidegate_core::units::Nanos;
use tidegate_rules::engine::{Decision, DescriptorResponse};
use tidegate_rules::envoy::{DescribedRequest, DescriptorOptions};
use tidegate_rules::event::{Event, Observer};
use tidegate_rules::request::{Edge, Request};
use tidegate_rules::{Explanation, RuleSet, may_have_case_mismatch};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

use self::denial_log::DenialScope;
use self::error::log_store_error;
pub(crate) use self::first_config::{ConfigSource, FirstConfig, MissingConfigError};
use self::maybe_ready::MaybeReady;
use self::readiness::Readiness;
use crate::config::LogSubjects;
use crate::logging::{DecisionId, DecisionIds, writer};
use crate::net::ShutdownPhase;
use crate::state::late_replies::{LateReplies, LatenessReport};
use crate::state::{AnyStore, ServerLimiter};
use crate::store_condition::StoreCondition;
pub(crate) use denial_log::listed_subject;
pub(crate) use error::{DecideError, InputError};

/// The limiter under the rules of one moment.
pub(crate) type DeciderView<'l> = LimiterView<'l, AnyStore>;

/// The outcome for each key of one call.
pub(crate) type KeyOutcomes = SingleOutcomes;
/// The outcome for one key.
pub(crate) type KeyOutcome = SingleOutcome;
/// How many keys one call takes without an allocation.
pub(crate) const KEY_BATCH: usize = SINGLE_BATCH;
/// Maximum time until a reservation has to be settled.
pub(crate) const MAX_RESERVATION_TTL: Nanos = Reserve::MAX_TTL;

/// Decides the requests of every edge.
pub(crate) struct Decider {
    limiter: Arc<ServerLimiter>,
    clock: SystemClock,
    metrics: Arc<Metrics>,
    ids: DecisionIds,
    reset: ResetStyle,
    log_subjects: LogSubjects,
    phase: watch::Receiver<ShutdownPhase>,
    first_config: Arc<FirstConfig>,
    rule_loads: Arc<Counter>,
}

/// What the start and the policy watcher share with a [`Decider`], to put rules in force and to maintain the limiter.
/// Edges do not have it.
#[derive(Clone)]
pub(crate) struct DeciderControl {
    pub(crate) limiter: Arc<ServerLimiter>,
    pub(crate) clock: SystemClock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) log_subjects: LogSubjects,
    /// Whether a configuration is loaded. A service that starts without one has none until its first load succeeds.
    pub(crate) first_config: Arc<FirstConfig>,
    /// Rules that came into force. Keys do not count.
    pub(crate) rule_loads: Arc<Counter>,
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

/// Options of one request besides its attributes and costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CheckOptions {
    pub(crate) scope: ChargeScope,
    /// Whether the caller wants a receipt.
    pub(crate) receipt: bool,
}

/// A decided request.
pub(crate) struct Checked {
    pub(crate) decision: Decision,
    /// If one was wanted and something was charged.
    pub(crate) receipt: Option<String>,
}

/// A decided request of a list.
pub(crate) struct CheckedItem<'a> {
    pub(crate) id: DecisionId,
    pub(crate) decision: &'a Decision,
    pub(crate) receipt: Option<String>,
}

/// A decided request of Envoy.
pub(crate) struct CheckedDescriptors<'v> {
    pub(crate) id: DecisionId,
    pub(crate) response: DescriptorResponse<'v>,
    pub(crate) took: Duration,
}

/// Whether it is clear which client sends a request of Envoy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientIdentity {
    Clear,
    /// The request is denied, because a block of this client could not be applied.
    Ambiguous,
}

/// The result of a request for permits.
pub(crate) enum AcquireOutcome {
    /// All permits are acquired.
    Open { decision: Decision, limits: SmallVec<[ConcurrencyUsage; 2]>, token: String, receipt: Option<String> },
    /// A rate denies the request.
    Denied(Decision),
    /// A rule has no permit left.
    Full(ConcurrencyDenial),
}

impl ChargeScope {
    /// From a plain cost. If it is absent, the cost is 1.
    pub(crate) fn of_cost(cost: Option<u64>) -> Self {
        if cost == Some(0) { ChargeScope::Units } else { ChargeScope::All }
    }
}

impl CheckOptions {
    /// Charges all rules, without a receipt.
    pub(crate) const CHARGE: CheckOptions = CheckOptions { scope: ChargeScope::All, receipt: false };

    /// The same without charging.
    pub(crate) fn peeking(self) -> Self {
        CheckOptions { scope: ChargeScope::Nothing, ..self }
    }
}

impl Decider {
    pub(crate) fn new(
        control: &DeciderControl,
        ids: DecisionIds,
        reset: ResetStyle,
        phase: watch::Receiver<ShutdownPhase>,
    ) -> Self {
        let DeciderControl { limiter, clock, metrics, log_subjects, first_config, rule_loads } = control.clone();
        Decider { limiter, clock, metrics, ids, reset, log_subjects, phase, first_config, rule_loads }
    }

    /// Wraps the work of an edge: polled in place if the store never waits, boxed otherwise.
    pub(crate) fn run<F: Future>(&self, work: F) -> MaybeReady<F> {
        if self.limiter.store().never_wait() { MaybeReady::poll_now(work) } else { MaybeReady::boxed(work) }
    }

    /// Decides one request. `request_for_log` is the request once more, for the log.
    pub(crate) async fn check<'a>(
        &self,
        id: &DecisionId,
        request: Request<'_>,
        options: CheckOptions,
        request_for_log: impl FnOnce() -> Option<Request<'a>>,
    ) -> Result<Checked, DecideError> {
        let view = self.view_for(request.edge)?;
        self.check_under(&view, id, request, options, request_for_log).await
    }

    /// Decides one request that was parsed under the rules of `view`.
    pub(crate) async fn check_under<'a>(
        &self,
        view: &DeciderView<'_>,
        id: &DecisionId,
        request: Request<'_>,
        options: CheckOptions,
        request_for_log: impl FnOnce() -> Option<Request<'a>>,
    ) -> Result<Checked, DecideError> {
        validate_names(&view.policy().rules, &request)?;
        let edge = request.edge;
        let started = Instant::now();
        let decision = match options.scope {
            ChargeScope::Nothing => view.peek(request).await,
            ChargeScope::Units => view.check_units(request).await,
            ChargeScope::All => view.check(request).await,
        };
        self.metrics.record_duration(edge, started.elapsed());
        let decision = decision?;
        let receipt = self.conclude(id, edge, &decision, options, request_for_log);
        Ok(Checked { decision, receipt })
    }

    /// How many requests are decided together.
    pub(crate) fn batch_size(&self) -> usize {
        self.limiter.store().batch_size()
    }

    /// Decides requests in order, all under the same rules. They have been validated. `each` gets the results in order.
    ///
    /// Requests of one scope after another are decided together. After a late decision no other waits for the store.
    pub(crate) async fn check_list(
        &self,
        mut requests: Vec<Request<'_>>,
        options: &[CheckOptions],
        mut each: impl FnMut(Result<CheckedItem<'_>, DecideError>),
    ) {
        let Some(edge) = requests.first().map(|request| request.edge) else {
            return;
        };
        let view = self.limiter.view();
        let (mut rest, mut max_wait) = (requests.as_mut_slice(), None);
        let mut took = Duration::ZERO;
        for options in batches(options, self.batch_size()) {
            let requests;
            (requests, rest) = rest.split_at_mut(options.len());
            if max_wait.is_some() {
                requests.iter_mut().for_each(|request| request.max_wait = max_wait);
            }
            let started = Instant::now();
            let decisions = check_batch(&view, requests, options[0].scope).await;
            took += started.elapsed();
            let mut made = decisions.iter().flatten();
            max_wait = max_wait.or(made.any(|decision| decision.source() == Source::Late).then_some(Nanos::ZERO));
            for ((decision, options), request) in decisions.into_iter().zip(options).zip(requests.iter()) {
                let id = self.next_id();
                match decision {
                    Ok(decision) => {
                        let receipt = self.conclude(&id, edge, &decision, *options, || Some(request.clone()));
                        each(Ok(CheckedItem { id, decision: &decision, receipt }));
                    }
                    Err(error) => each(Err(error.into())),
                }
            }
        }
        self.metrics.record_duration(edge, took);
    }

    /// Logs a decision and makes its receipt.
    fn conclude<'a>(
        &self,
        id: &DecisionId,
        edge: Edge,
        decision: &Decision,
        options: CheckOptions,
        request_for_log: impl FnOnce() -> Option<Request<'a>>,
    ) -> Option<String> {
        if options.scope == ChargeScope::Nothing {
            return None;
        }
        self.log_denials(id, edge, (decision, DenialScope::All), request_for_log);
        if options.receipt { self.receipt(decision) } else { None }
    }

    /// Decides one request of Envoy. `view` is a [`Decider::view_for`], `request` the native form, and
    /// `request_for_log` the same once more, for the log.
    pub(crate) async fn check_described<'v, 'a>(
        &self,
        view: &'v DeciderView<'_>,
        (described, request): (&DescribedRequest<'_>, Request<'_>),
        identity: ClientIdentity,
        options: DescriptorOptions,
        request_for_log: impl FnOnce() -> Option<Request<'a>>,
    ) -> Result<CheckedDescriptors<'v>, DecideError> {
        let edge = request.edge;
        let started = Instant::now();
        let response = match identity {
            ClientIdentity::Clear => view.check_described(request, described, options).await,
            ClientIdentity::Ambiguous => view.deny_described(request, described, options).await,
        };
        let took = started.elapsed();
        self.metrics.record_duration(edge, took);
        let (id, response) = (self.next_id(), response?);
        let scope = if response.over_limit { DenialScope::All } else { DenialScope::Shadow };
        self.log_denials(&id, edge, (&response.decision, scope), request_for_log);
        Ok(CheckedDescriptors { id, response, took })
    }

    /// Charges keys under the limits that come with them.
    pub(crate) async fn charge_keys(&self, edge: Edge, charges: &[KeyCharge<'_>], results: &mut KeyOutcomes) {
        let started = Instant::now();
        self.limiter.charge_keys(edge, charges, results).await;
        self.metrics.record_duration(edge, started.elapsed());
        for (charge, result) in charges.iter().zip(results.iter()) {
            match result {
                Ok(outcome) if !outcome.admitted && charge.action != KeyAction::Peek => {
                    self.log_keyed_denial(edge, charge.family.name(), outcome);
                }
                Ok(_) => {}
                Err(error) => log_store_error(error),
            }
        }
    }

    /// Denies a key whose limit has no room for any request. No counter is read. Returns whether the request is denied:
    /// in shadow mode it is not.
    pub(crate) fn deny_key(&self, edge: Edge, family: &KeyFamily) -> bool {
        let figures = Figures { remaining: 0, reset_after: Nanos::ZERO, more_after: Nanos::ZERO };
        let outcome = SingleOutcome {
            admitted: self.limiter.is_shadow_only(),
            reading: LimitReading { verdict: Verdict::Deny { retry: Retry::Never }, figures },
            at: self.clock.now(),
            source: Source::Exact,
        };
        self.metrics.on_event(&Event::Charged { edge, family: family.name(), outcome: &outcome });
        if !outcome.admitted {
            self.log_keyed_denial(edge, family.name(), &outcome);
        }
        !outcome.admitted
    }

    /// Acquires permits for one request.
    ///
    /// Cancel-safe: a caller that stops waiting leaves no permit acquired.
    pub(crate) async fn acquire<'a>(
        self: &Arc<Self>,
        id: &DecisionId,
        request: Request<'_>,
        (ttl, receipt): (Nanos, bool),
        request_for_log: impl FnOnce() -> Option<Request<'a>>,
    ) -> Result<AcquireOutcome, DecideError> {
        self.validate(&request)?;
        let edge = request.edge;
        let started = Instant::now();
        let on_abandoned = |ticket| Arc::clone(self).cancel_in_background(ticket);
        let acquired = self.limiter.acquire_with_cancel(request, ttl.duration(), on_abandoned).await;
        self.metrics.record_duration(edge, started.elapsed());
        Ok(match acquired? {
            Acquired::Open { permit, decision, limits } => {
                self.log_denials(id, edge, (&decision, DenialScope::Shadow), request_for_log);
                AcquireOutcome::Open {
                    receipt: if receipt { self.receipt(&decision) } else { None },
                    token: self.limiter.seal(&permit),
                    decision,
                    limits,
                }
            }
            Acquired::Denied(decision) => {
                self.log_denials(id, edge, (&decision, DenialScope::All), request_for_log);
                AcquireOutcome::Denied(decision)
            }
            Acquired::Full(denial) => {
                self.log_concurrency_denial(id, edge, &denial);
                AcquireOutcome::Full(denial)
            }
        })
    }

    /// Releases the permits of a caller that hung up. While the process shuts down there is no runtime to do so, and
    /// the permits expire.
    fn cancel_in_background(self: Arc<Self>, ticket: Ticket) {
        if let Ok(tokio) = Handle::try_current() {
            tokio.spawn(async move {
                self.limiter.cancel(&ticket).await;
                tokio::time::sleep(CANCEL_RETRY_AFTER).await;
                self.limiter.cancel(&ticket).await;
            });
        }
    }

    /// Renews the permits of a token. Returns whether all were still open, and how long they last now.
    pub(crate) async fn renew(&self, token: &str) -> Result<(bool, Nanos), DecideError> {
        let ticket = self.limiter.unseal(token)?;
        Ok((self.limiter.renew(&ticket).await?, ticket.ttl().into()))
    }

    /// Releases the permits of a token. Idempotent.
    pub(crate) async fn release(&self, token: &str) -> Result<(), DecideError> {
        let ticket = self.limiter.unseal(token)?;
        Ok(self.limiter.release(&ticket).await?)
    }

    /// Decides one request and reserves its estimated cost.
    pub(crate) async fn reserve<'a>(
        &self,
        id: &DecisionId,
        request: Request<'_>,
        ttl: Nanos,
        request_for_log: impl FnOnce() -> Option<Request<'a>>,
    ) -> Result<Reservation, DecideError> {
        self.validate(&request)?;
        let edge = request.edge;
        let started = Instant::now();
        let reservation = self.limiter.reserve(request, ttl.duration()).await;
        self.metrics.record_duration(edge, started.elapsed());
        let reservation = reservation?;
        self.log_denials(id, edge, (&reservation.decision, DenialScope::All), request_for_log);
        Ok(reservation)
    }

    /// Settles a reservation by its actual cost.
    pub(crate) async fn settle(&self, edge: Edge, token: &str, actual: &Actual) -> Result<Settlement, DecideError> {
        // Without the rules of its charge a settlement would be lost.
        self.require_config(edge)?;
        Ok(self.limiter.settle(token, actual).await?)
    }

    /// Refunds the charges of a receipt.
    pub(crate) async fn refund(&self, edge: Edge, receipt: &str) -> Result<Refunded, DecideError> {
        self.require_config(edge)?;
        Ok(self.limiter.refund(receipt).await?)
    }

    /// The use of every limit that applies to a request, and why it applies.
    pub(crate) async fn inspect(&self, request: Request<'_>) -> Result<(Explanation, Vec<LimitUsage>), DecideError> {
        let view = self.view_for(request.edge)?;
        validate_names(&view.policy().rules, &request)?;
        let explanation = view.explain(request.clone());
        Ok((explanation, view.inspect(request).await?))
    }

    /// Resets the counters of one client, or only that of one rule. Returns how many.
    pub(crate) async fn reset(
        &self,
        request: Request<'_>,
        rule: Option<&str>,
    ) -> Result<(Explanation, u64), DecideError> {
        let view = self.view_for(request.edge)?;
        validate_names(&view.policy().rules, &request)?;
        let explanation = view.explain(request.clone());
        let counters = match rule {
            None => view.reset(request).await,
            Some(rule) if explanation.rules.iter().any(|view| view.rule.as_str() == rule) => {
                view.reset_rule(rule, request).await
            }
            Some(_) => return Err(InputError::new("rule", "no active rule has this name").into()),
        };
        Ok((explanation, counters?))
    }

    /// Which rules apply to a request, and why.
    pub(crate) fn explain(&self, request: Request<'_>) -> Result<Explanation, DecideError> {
        let view = self.view_for(request.edge)?;
        validate_names(&view.policy().rules, &request)?;
        Ok(view.explain(request))
    }

    /// Explains requests in order, all under the same rules. They have been validated. An explanation has a part for
    /// each rule, and all together have no more than `max_parts`.
    pub(crate) fn explain_list(
        &self,
        requests: Vec<Request<'_>>,
        max_parts: usize,
        each: impl FnMut(Explanation),
    ) -> Result<(), DecideError> {
        let view = self.limiter.view();
        let rules = view.policy().rules.rules().len();
        let max = (max_parts / rules.max(1)).max(1);
        if requests.len() > max {
            let reason = format!("with {rules} rules a list has at most {max} requests; send fewer");
            return Err(InputError::new(format!("[{max}]"), reason).into());
        }
        requests.into_iter().map(|request| view.explain(request)).for_each(each);
        Ok(())
    }

    /// A receipt for a decision, if something was charged.
    fn receipt(&self, decision: &Decision) -> Option<String> {
        self.limiter.receipt(decision).unwrap_or_else(|error| {
            warn!(%error, "could not create a receipt");
            None
        })
    }

    /// Fails while no configuration for requests of this edge is loaded. Without one nothing is allowed.
    pub(crate) fn require_config(&self, edge: Edge) -> Result<(), DecideError> {
        Ok(self.first_config.require(edge)?)
    }

    /// Checks that there is a configuration and that the rules know the names of a request.
    pub(crate) fn validate(&self, request: &Request<'_>) -> Result<(), DecideError> {
        self.require_config(request.edge)?;
        if has_plain_names(request) {
            return Ok(());
        }
        Ok(check_names(&self.limiter.policy().load().rules, request)?)
    }

    /// The limiter under the rules of this moment, if a configuration for requests of this edge is loaded. This is
    /// checked first: a view from before the load has the empty policy of the start, which allows everything.
    pub(crate) fn view_for(&self, edge: Edge) -> Result<DeciderView<'_>, DecideError> {
        self.require_config(edge)?;
        Ok(self.limiter.view())
    }

    pub(crate) fn next_id(&self) -> DecisionId {
        self.ids.next()
    }

    /// The rules and keys in force.
    pub(crate) fn policy(&self) -> Arc<Versioned<Policy>> {
        self.limiter.policy().get()
    }

    /// The digest of the rules in force, as the log has it.
    pub(crate) fn rules_hash(&self) -> String {
        self.metrics.reload.hash.lock().clone()
    }

    /// How often rules came into force, and how often new ones were rejected.
    pub(crate) fn rule_loads(&self) -> (u64, u64) {
        (self.rule_loads.get(), self.metrics.reload.rejected.get())
    }

    pub(crate) fn count_response(&self, edge: Edge, status: u16) {
        self.metrics.count_response(edge, status);
    }

    pub(crate) fn network_metrics(&self) -> &NetworkMetrics {
        &self.metrics.network
    }

    /// Whether this peer speaks for many clients: a program on this machine, or a proxy that the rules name.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        let policy = self.limiter.policy().load();
        peer.is_loopback() || policy.rules.identity().trusted_proxies.iter().any(|net| net.contains(&peer))
    }

    /// Whether the process is not shutting down.
    pub(crate) fn is_serving(&self) -> bool {
        *self.phase.borrow() == ShutdownPhase::Serving
    }

    /// Whether a configuration with a domain of Envoy is loaded.
    pub(crate) fn has_domains(&self) -> bool {
        self.require_config(Edge::Envoy).is_ok() && self.limiter.policy().load().rules.domains().len() > 0
    }

    /// Whether load balancers should send requests to this node.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness::of(*self.phase.borrow(), self.first_config.require_all())
    }

    /// The condition of the store.
    pub(crate) fn store_condition(&self) -> StoreCondition {
        self.limiter.store().condition()
    }

    /// All metrics of this process, in the Prometheus text format.
    pub(crate) fn expose_metrics(&self) -> String {
        self.metrics.lines_dropped.set(writer::dropped_lines());
        let facts = self.limiter.store().facts();
        self.metrics.set_open(self.limiter.open_requests());
        self.metrics.expose(env!("CARGO_PKG_VERSION"), &facts)
    }

    /// The parts of a response that are not in its decision.
    pub(crate) fn context<'a>(&self, id: &'a DecisionId, body: BodyStyle) -> ResponseContext<'a> {
        let wall = self.clock.wall();
        ResponseContext { id: id.as_str(), wall, reset: self.reset, body, receipt: None, reservation: None }
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

    /// Logs that the store begins or ceases to reply later than the budget. Called every few seconds.
    pub(crate) fn report_lateness(&self, replies: &mut LateReplies) {
        let (late, exact) = (self.metrics.decided_by(Source::Late), self.metrics.decided_by(Source::Exact));
        match replies.update(late, exact) {
            Some(LatenessReport::Late { late, decisions }) => warn!(
                late,
                decisions,
                "the store replies later than the budget, and most requests are decided by the newest state that this \
                 node has seen; run `tidegate doctor` for its round trip, then speed it up or raise `--store-budget`"
            ),
            Some(LatenessReport::InTime) => info!("the store replies within the budget again"),
            None => {}
        }
    }
}

/// The requests of a list that are decided together: of one scope, and at most `max`.
fn batches(options: &[CheckOptions], max: usize) -> impl Iterator<Item = &[CheckOptions]> {
    options.chunk_by(|one, next| one.scope == next.scope).flat_map(move |run| run.chunks(max))
}

async fn check_batch<'r>(
    view: &'r DeciderView<'_>,
    requests: &mut [Request<'r>],
    scope: ChargeScope,
) -> Vec<Result<Decision, StoreError>> {
    match scope {
        ChargeScope::All => view.check_each(requests).await,
        ChargeScope::Units => join_all(requests.iter().cloned().map(|request| view.check_units(request))).await,
        ChargeScope::Nothing => join_all(requests.iter().cloned().map(|request| view.peek(request))).await,
    }
}

/// Checks the names of a request, if it has names that need a check.
fn validate_names(rules: &RuleSet, request: &Request<'_>) -> Result<(), InputError> {
    if has_plain_names(request) { Ok(()) } else { check_names(rules, request) }
}

/// Whether the names of a request need no check, like those of most requests.
fn has_plain_names(request: &Request<'_>) -> bool {
    request.costs.is_empty() && !may_have_case_mismatch(request)
}

/// Rejects attributes that differ from a known one by case, because no rule would match them, and costs in units that
/// the rules do not know, because nothing would be charged for them.
pub(crate) fn check_names(rules: &RuleSet, request: &Request<'_>) -> Result<(), InputError> {
    if let Some(miscased) = rules.find_case_mismatch(request) {
        return Err(InputError::new(miscased.name, miscased.to_string()).inside("attributes"));
    }
    match rules.unknown_unit(request) {
        Some(unknown) => Err(InputError::new(unknown.unit, unknown.to_string()).inside("costs")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::start::build_decider;
    use crate::config::SettingsLayer;
    use crate::net::ShutdownHandle;
    use crate::state::NodeIdentity;
    use tidegate_rules::{SourceFile, parse};

    /// `/v1/auth` read headers by one rule set and decided by the next if a reload came in between.
    #[tokio::test]
    async fn a_request_is_decided_under_the_rules_it_was_parsed_by() {
        let settings = SettingsLayer::default().resolve().unwrap();
        let (drain, _idle) = ShutdownHandle::new();
        let built = build_decider(&settings, None, &NodeIdentity::open(None).unwrap(), &drain);
        let Ok((decider, control)) = built else { panic!("the built-in rules cannot be read") };
        let ip = || Request { edge: Edge::Auth, ip: "203.0.113.9".parse().ok(), ..Request::default() };
        let id = decider.next_id();
        let view = decider.view_for(Edge::Auth).unwrap();
        let text = "version: 1\nrules: [{ name: next, by: ip, rate: 1/hour }]";
        control.limiter.replace_policy(Policy::of(parse(&[SourceFile { name: "next", text }]).unwrap()));
        let binding = |checked: &Checked| checked.decision.binding().map(|limit| limit.rule.name().to_string());
        let under = decider.check_under(&view, &id, ip(), CheckOptions::CHARGE, || None).await.unwrap();
        assert_eq!(binding(&under).as_deref(), Some("client"));
        let after = decider.check(&id, ip(), CheckOptions::CHARGE, || None).await.unwrap();
        assert_eq!(binding(&after).as_deref(), Some("next"));
    }

    /// A list waited once for every 16 requests, and once for every peek.
    #[test]
    fn requests_of_one_scope_are_decided_together() {
        let options = |letter| {
            let scope = match letter {
                'a' => ChargeScope::All,
                'u' => ChargeScope::Units,
                _ => ChargeScope::Nothing,
            };
            CheckOptions { scope, receipt: false }
        };
        for (scopes, max, want) in [
            ("aaaaa", usize::MAX, vec![5]),
            ("aaaaa", 2, vec![2, 2, 1]),
            ("aannnua", usize::MAX, vec![2, 3, 1, 1]),
            ("", usize::MAX, vec![]),
        ] {
            let options: Vec<CheckOptions> = scopes.chars().map(options).collect();
            let lengths: Vec<usize> = batches(&options, max).map(<[_]>::len).collect();
            assert_eq!(lengths, want, "{scopes}");
        }
    }
}
