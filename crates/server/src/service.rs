//! What every edge shares: the limiter, the numbers, the ids, and the line in the log for a denial.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, header};
use ipnet::IpNet;
use tidegate::clock::{Clock, SystemClock};
use tidegate::http::{BodyStyle, Context, ResetStyle};
use tidegate::identity::Trusted;
use tidegate::observe::{Line, Metrics, RuleSeries};
use tidegate::stores::memory::MemoryStore;
use tidegate::{Limiter, Policy};
use tidegate_core::algorithms::Retry;
use tidegate_core::engine::{Decision, Edge, Fate, Request};
use tidegate_core::store::StoreError;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::drain::Phase;
use crate::ids::{Id, Ids};
use crate::logs::Shown;

/// The limiter of this process.
pub(crate) type Gate = Limiter<MemoryStore<SystemClock>>;

/// What edges share.
pub(crate) struct Service {
    pub(crate) limiter: Gate,
    pub(crate) clock: SystemClock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) ids: Ids,
    pub(crate) reset: ResetStyle,
    pub(crate) phase: watch::Receiver<Phase>,
}

impl Service {
    /// Decides one request, or only looks, and takes the time.
    pub(crate) fn decide(&self, request: Request<'_>, peek: bool) -> Result<Decision, StoreError> {
        let edge = request.edge;
        let begun = Instant::now();
        let decision = match peek {
            true => at_once(self.limiter.peek(request)),
            false => Ok(self.limiter.check_now(request)),
        };
        self.metrics.took(edge, begun.elapsed());
        decision
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

    /// Writes a denial to the log, unless its rule has filled this second. `request` is only asked
    /// for when a line is written.
    pub(crate) fn log_denial<'a>(
        &self,
        id: &Id,
        edge: Edge,
        decision: &Decision,
        request: impl FnOnce() -> Option<Request<'a>>,
    ) {
        if decision.allowed() {
            return;
        }
        let second = self.second();
        let asked = |series: &RuleSeries| (series.lines.denial(second), series.name().to_owned());
        let (Line::Write { missed }, rule) = self.metrics.with_binding(decision, asked) else {
            self.metrics.lines_skipped.inc();
            return;
        };
        if missed > 0 {
            told_as_count(&rule, missed);
        }
        let request = request().unwrap_or_default();
        let text = |name| Shown(request.text(name).unwrap_or_default()).to_string();
        info!(
            id = id.as_str(),
            rule,
            edge = edge.name(),
            source = decision.source().name(),
            ip = request.ip.map(|ip| ip.to_string()).unwrap_or_default(),
            method = text("method"),
            path = text("path"),
            retry_after_ms = retry_ms(decision),
            "denied"
        );
    }

    /// Tells the counts of rules that have gone quiet. To be called every second.
    pub(crate) fn settle_lines(&self) {
        self.metrics.settle_lines(self.second(), told_as_count);
    }

    fn second(&self) -> u32 {
        u32::try_from(self.clock.now().get() / 1_000_000_000).unwrap_or(u32::MAX)
    }
}

/// The output of a future that never waits, as those of the memory store do not. Called outside of
/// async functions, it keeps their state, which is moved with every request, small.
pub(crate) fn at_once<F: Future>(future: F) -> F::Output {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => unreachable!("the memory store never waits"),
    }
}

fn told_as_count(rule: &str, count: u64) {
    info!(rule, count, "denied more than the log has room for");
}

fn retry_ms(decision: &Decision) -> Option<u64> {
    match decision.fate() {
        Fate::Deny(Retry::After(wait)) => Some(wait.millis_up()),
        _ => None,
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

/// Whose word about a client's address a sub-request is taken for: this machine's, and that of the
/// proxies the rules name.
pub(crate) fn trusted_by(policy: &Policy) -> Trusted {
    let loopback = ["127.0.0.0/8", "::1/128"].map(|net| net.parse::<IpNet>().expect("a network"));
    let named = policy.rules.identity().trusted_proxies.iter().copied();
    Trusted::new(loopback.into_iter().chain(named))
}
