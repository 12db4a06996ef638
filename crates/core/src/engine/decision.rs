//! The answer to one request, with every limit it looked at.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::plan::Origin;
use crate::algorithms::{Limit, Retry};
use crate::rules::{Rule, RuleKind, RuleSet};
use crate::store::{LimitReading, Role, Source};
use crate::subject::Fingerprint;
use crate::units::{Cost, Nanos};

/// What becomes of the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecisionKind {
    /// It may pass now.
    Allow,
    /// It may pass after a wait, and has been charged.
    Delay(Nanos),
    /// A limit refuses it; nothing has been charged.
    Deny(Retry),
    /// The store that counts it is out of reach, and a rule says to refuse meanwhile. The client has
    /// done nothing wrong.
    Unavailable,
    /// The block list refuses it.
    Block {
        /// When the block ends, if it does.
        until: Option<Nanos>,
    },
}

/// One limit a decision looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LimitReport {
    pub(super) origin: Origin,
    pub(super) role: Role,
    pub(super) subject: Fingerprint,
    pub(super) cost: Cost,
    pub(super) reading: LimitReading,
}

/// A limit that came with a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AppliedOverride {
    pub(super) limit: Limit,
    pub(super) rate_text: Box<str>,
}

/// Why a request may pass or not. It keeps the rules it was decided by alive, so that a reload in
/// between cannot make it lie.
#[derive(Clone, Debug)]
pub struct Decision {
    pub(super) rules: Arc<RuleSet>,
    pub(super) kind: DecisionKind,
    pub(super) source: Source,
    pub(super) at: Nanos,
    pub(super) clock_stepped: bool,
    pub(super) binding: Option<usize>,
    /// A hash of who asked, to spread what many are told at once.
    pub(super) client_hash: u64,
    /// Names the charge, once somebody asks for a receipt of it; nothing was charged without.
    pub(super) charge_id: Option<OnceLock<u128>>,
    pub(super) reports: SmallVec<[LimitReport; 4]>,
    /// What the rules that stand for limits of a request's own point to. Nearly always nothing.
    pub(super) overrides: Option<Box<[AppliedOverride]>>,
    /// Positions of the rules that applied without a rate. Nearly always none.
    pub(super) unlimited: Option<Box<[u32]>>,
}

/// A report with the rule and rate it is about.
#[derive(Clone, Copy, Debug)]
pub struct LimitView<'d> {
    /// The rule.
    pub rule: &'d Rule,
    /// Where it stands in the rules.
    pub position: usize,
    /// The rate, compiled, as far as this request may use it.
    pub limit: &'d Limit,
    /// The rate as written.
    pub rate_text: &'d str,
    /// Whether the rule has several rates for this client.
    pub has_several_rates: bool,
    /// Which of the rates.
    pub rate: u8,
    /// What its verdict means.
    pub role: Role,
    /// Whose counter.
    pub subject: Fingerprint,
    /// What it was or would have been charged.
    pub cost: Cost,
    /// What it said.
    pub reading: LimitReading,
}

impl Decision {
    /// What becomes of the request.
    pub fn kind(&self) -> DecisionKind {
        self.kind
    }

    /// Whether it may pass, now or after a wait.
    pub fn allowed(&self) -> bool {
        matches!(self.kind, DecisionKind::Allow | DecisionKind::Delay(_))
    }

    /// How this was decided.
    pub fn source(&self) -> Source {
        self.source
    }

    /// The store's time of the decision.
    pub fn at(&self) -> Nanos {
        self.at
    }

    /// Whether stored time had to be set back: an alarm.
    pub fn clock_stepped(&self) -> bool {
        self.clock_stepped
    }

    /// A hash of who asked: the same for one client, spread over clients.
    pub fn client_hash(&self) -> u64 {
        self.client_hash
    }

    /// What names this decision's charge: drawn by `new_id` the first time it is asked for, the same ever
    /// after, so that all receipts of one charge are one. Nothing if nothing was charged.
    pub fn charge_id(&self, new_id: impl FnOnce() -> u128) -> Option<u128> {
        let id = self.charge_id.as_ref()?;
        Some(*id.get_or_init(new_id))
    }

    /// The rules it was decided by.
    pub fn rules(&self) -> &Arc<RuleSet> {
        &self.rules
    }

    /// Every limit it looked at, in the order of the rules.
    pub fn limits(&self) -> impl ExactSizeIterator<Item = LimitView<'_>> {
        self.reports.iter().map(|report| self.view(report))
    }

    /// The limit that decided, or that is nearest to refusing.
    pub fn binding(&self) -> Option<LimitView<'_>> {
        let report = self.reports.get(self.binding?)?;
        Some(self.view(report))
    }

    /// The enforced limits, the binding one first: what a client may be told.
    pub fn enforced(&self) -> impl Iterator<Item = LimitView<'_>> {
        let binding = self.binding;
        let first = binding.and_then(|i| self.reports.get(i));
        let others = self
            .reports
            .iter()
            .enumerate()
            .filter(move |(i, report)| Some(*i) != binding && report.role != Role::Shadow)
            .map(|(_, report)| report);
        first
            .into_iter()
            .chain(others)
            .map(|report| self.view(report))
    }

    /// Positions of the rules that applied, without the one that binds. A rule comes once, unless several
    /// descriptors lead to it.
    pub fn other_matched_rules(&self) -> impl Iterator<Item = usize> {
        let position = |report: &LimitReport| report.origin.rule;
        let binding = self.binding.and_then(|at| self.reports.get(at));
        let mut last = binding.map(position);
        let binding = last;
        // The rates of one rule stand together.
        let limited = self.reports.iter().map(position).filter(move |at| {
            let is_repeated = last.replace(*at) == Some(*at) || binding == Some(*at);
            !is_repeated
        });
        let unlimited = self.unlimited.as_deref().unwrap_or_default();
        limited
            .chain(unlimited.iter().copied())
            .map(|at| at as usize)
    }

    /// Whether rules applied besides the one that binds: mostly one rule does, and binds.
    pub fn has_other_matched_rules(&self) -> bool {
        self.unlimited.is_some() || self.reports.len() > usize::from(self.binding.is_some())
    }

    /// The limits that only watch.
    pub fn shadows(&self) -> impl Iterator<Item = LimitView<'_>> {
        let shadows = self
            .reports
            .iter()
            .filter(|report| report.role == Role::Shadow);
        shadows.map(|report| self.view(report))
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
        }
    }
}
