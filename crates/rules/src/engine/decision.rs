//! The decision on one request, with every limit it evaluated.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use smallvec::SmallVec;

use super::plan::Origin;
use crate::language::{Rule, RuleKind, RuleSet};
use tidegate_core::algorithms::{Limit, Retry};
use tidegate_core::store::{Degraded, LimitReading, Role, Source};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

/// The outcome for the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecisionKind {
    /// It may pass now.
    Allow,
    /// It may pass after a wait, and has been charged.
    Delay(Nanos),
    /// A limit denies it; nothing has been charged.
    Deny(Retry),
    /// The store is out of reach, and a rule denies in that case. The client has done nothing wrong.
    Unavailable,
    /// The block list denies it.
    Block {
        /// When the block ends, if it does.
        until: Option<Nanos>,
    },
}

/// One limit that a decision evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LimitReport {
    pub(super) origin: Origin,
    pub(super) role: Role,
    pub(super) subject: Fingerprint,
    pub(super) cost: Cost,
    pub(super) reading: LimitReading,
    /// Its rule denies because the store is unavailable, whatever the reading.
    pub(super) is_denied_by_policy: bool,
}

impl LimitReport {
    pub(super) fn allows(&self) -> bool {
        self.reading.verdict.allows() && !self.is_denied_by_policy
    }
}

/// A limit that came with a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AppliedOverride {
    pub(super) limit: Limit,
    pub(super) rate_text: Box<str>,
}

/// Why a request may pass or not. It keeps its rules alive, so that a reload in between cannot change what it reports.
#[must_use = "a denied request is not to pass"]
#[derive(Clone, Debug)]
pub struct Decision {
    pub(super) rules: Arc<RuleSet>,
    pub(super) kind: DecisionKind,
    pub(super) source: Source,
    pub(super) at: Nanos,
    pub(super) clock_stepped: bool,
    pub(super) degraded: Option<Degraded>,
    pub(super) binding: Option<usize>,
    /// A hash of the client, to spread values that many clients receive at once.
    pub(super) client_hash: u64,
    /// The id of the charge, created with its first receipt; `None` if nothing was charged.
    pub(super) charge_id: Option<OnceLock<u128>>,
    pub(super) reports: SmallVec<[LimitReport; 4]>,
    /// The limits that came with the request, for rules of kind `RequestOverride`. Nearly always `None`.
    pub(super) overrides: Option<Box<[AppliedOverride]>>,
    /// Positions of the rules that applied without a rate. Nearly always `None`.
    pub(super) unlimited: Option<Box<[u32]>>,
}

/// A report with the rule and rate it is about.
#[derive(Clone, Copy, Debug)]
pub struct LimitView<'d> {
    /// The rule.
    pub rule: &'d Rule,
    /// Its position in the rules.
    pub position: usize,
    /// The rate, compiled, as far as this request may use it.
    pub limit: &'d Limit,
    /// The rate as written.
    pub rate_text: &'d str,
    /// Whether the rule has several rates for this client.
    pub has_several_rates: bool,
    /// The index of the rate.
    pub rate: u8,
    /// What its verdict means.
    pub role: Role,
    /// The subject of the counter.
    pub subject: Fingerprint,
    /// The units it was or would have been charged.
    pub cost: Cost,
    /// Its verdict and figures.
    pub reading: LimitReading,
    /// Whether it admits the request: its cost fits, and its rule does not deny because the store is unavailable.
    pub allows: bool,
}

impl Decision {
    /// The outcome for the request.
    pub fn kind(&self) -> DecisionKind {
        self.kind
    }

    /// Whether it may pass, now or after a wait.
    pub fn allowed(&self) -> bool {
        matches!(self.kind, DecisionKind::Allow | DecisionKind::Delay(_))
    }

    /// How long to wait before the work may start, if the request may pass.
    pub fn delay(&self) -> Duration {
        match self.kind {
            DecisionKind::Delay(delay) => delay.duration(),
            _ => Duration::ZERO,
        }
    }

    /// When a denied request may pass; `None` if it may pass now, never, or at a time that no limit knows.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            DecisionKind::Deny(Retry::After(wait)) => Some(wait.duration()),
            _ => None,
        }
    }

    /// How this was decided.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whether the store could not decide: what this node knows did, or the option of a rule for that case.
    pub fn is_without_store(&self) -> bool {
        matches!(self.degraded, Some(Degraded::StoreUnavailable | Degraded::DeniedByPolicy { .. }))
    }

    /// The store's time of the decision.
    pub fn at(&self) -> Nanos {
        self.at
    }

    /// Whether stored time had to be set back: an alarm.
    pub fn clock_stepped(&self) -> bool {
        self.clock_stepped
    }

    /// A hash of the client: the same for one client, evenly distributed over clients.
    pub fn client_hash(&self) -> u64 {
        self.client_hash
    }

    /// The id of this decision's charge. `new_id` draws it at the first call; later calls return the same, so that all
    /// receipts of one charge have one id. `None` if nothing was charged.
    pub fn charge_id(&self, new_id: impl FnOnce() -> u128) -> Option<u128> {
        Some(*self.charge_id.as_ref()?.get_or_init(new_id))
    }

    /// The rules that decided.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Every limit that was evaluated, in the order of the rules.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitView<'_>> {
        self.reports.iter().map(|report| self.view(report))
    }

    /// The limit that decided, or that is nearest to a denial.
    pub fn binding(&self) -> Option<LimitView<'_>> {
        Some(self.view(self.reports.get(self.binding?)?))
    }

    /// The enforced limits, the binding one first: the limits that a client may see.
    pub fn enforced(&self) -> impl Iterator<Item = LimitView<'_>> {
        let binding = self.binding;
        let first = binding.and_then(|i| self.reports.get(i));
        let others = self
            .reports
            .iter()
            .enumerate()
            .filter(move |(i, report)| Some(*i) != binding && report.role != Role::Shadow)
            .map(|(_, report)| report);
        first.into_iter().chain(others).map(|report| self.view(report))
    }

    /// Positions of the rules that applied, without the binding one. A rule occurs once, unless several descriptors
    /// lead to it.
    pub fn other_matched_rules(&self) -> impl Iterator<Item = usize> {
        let position = |report: &LimitReport| report.origin.rule;
        let binding = self.binding.and_then(|at| self.reports.get(at));
        let mut last = binding.map(position);
        let binding = last;
        // The rates of one rule are adjacent.
        let limited = self.reports.iter().map(position).filter(move |at| {
            let is_repeated = last.replace(*at) == Some(*at) || binding == Some(*at);
            !is_repeated
        });
        let unlimited = self.unlimited.as_deref().unwrap_or_default();
        limited.chain(unlimited.iter().copied()).map(|at| at as usize)
    }

    /// Whether rules applied besides the binding one: mostly one rule does, and binds.
    pub fn has_other_matched_rules(&self) -> bool {
        self.unlimited.is_some() || self.reports.len() > usize::from(self.binding.is_some())
    }

    /// The limits in shadow mode.
    pub fn shadows(&self) -> impl Iterator<Item = LimitView<'_>> {
        self.reports.iter().filter(|report| report.role == Role::Shadow).map(|report| self.view(report))
    }

    fn view(&self, report: &LimitReport) -> LimitView<'_> {
        let position = report.origin.rule as usize;
        let rule = &self.rules.rules()[position];
        let rate = usize::from(report.origin.rate);
        let (limit, rate_text, has_several_rates) = match &self.overrides {
            Some(overrides) if rule.kind() == RuleKind::RequestOverride => {
                let applied = &overrides[report.origin.class.0 as usize];
                (&applied.limit, &*applied.rate_text, false)
            }
            _ => {
                let rates = rule.rates(report.origin.class);
                let limits = rates.limits_for(report.origin.priority);
                (&limits[rate], rates.text(rate), limits.len() > 1)
            }
        };
        LimitView {
            rule,
            position,
            limit,
            rate_text,
            has_several_rates,
            rate: report.origin.rate,
            role: report.role,
            subject: report.subject,
            cost: report.cost,
            reading: report.reading,
            allows: report.allows(),
        }
    }
}
