//! The state of a described request until its decision: every limit that decides it, and the phase of each.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::descriptor_match::{self, DescriptorMatch, MatchedLimit};
use crate::engine::decision::AppliedOverride;
use crate::engine::plan::{ChargePlan, EnforceMode, Origin, plan};
use crate::envoy::{DescribedRequest, DescriptorOptions, Hits, ZeroHits};
use crate::language::{ListDecision, Purpose, RateClass, RuleKind, RuleSet, counter_name, rate_text, window};
use crate::request::{Priority, Request};
use tidegate_core::algorithms::{Figures, Limit, Retry, Verdict};
use tidegate_core::store::{Charge, ChargeSet, LimitReading, Outcome, Role, Source};
use tidegate_core::subject::FingerprintKey;
use tidegate_core::units::{Cost, Nanos};

/// A described request before its decision.
#[derive(Debug)]
pub struct DescriptorDecision<'r> {
    /// Every limit that decides: those of rules, then those of descriptors.
    pub(super) plan: ChargePlan<'r>,
    /// The number of rule limits among them.
    pub(super) native_count: usize,
    /// The phase of each, and its reading.
    pub(super) progress: SmallVec<[ChargeProgress; 4]>,
    pub(super) descriptors: SmallVec<[DescriptorState<'r>; 4]>,
    pub(super) refunds: SmallVec<[RefundProgress<'r>; 1]>,
    pub(super) overrides: Vec<AppliedOverride>,
    rules: &'r RuleSet,
    pub(super) domain_known: bool,
    pub(super) enforce_mode: EnforceMode,
    pub(super) options: DescriptorOptions,
    /// Whether a budget has room regardless of the store.
    pub(super) has_passing_quota: bool,
    /// The decision so far, without readings: those are in `progress`.
    pub(super) interim: Outcome,
    /// Whether a reply had a time.
    pub(super) has_reply: bool,
}

/// One descriptor.
#[derive(Debug)]
pub(super) struct DescriptorState<'r> {
    pub(super) matched: DescriptorMatch<'r>,
    pub(super) figures_at: FiguresIndex,
}

/// The place of a descriptor's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FiguresIndex {
    /// None: no store call is about it.
    None,
    /// With a charge of the plan.
    Charge(usize),
    /// With a refund.
    Refund(usize),
}

/// One charge of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargeProgress {
    pub(super) phase: ChargePhase,
    /// Whether it is charged even if the request is denied.
    pub(super) charged_on_denial: bool,
    pub(super) reading: LimitReading,
    /// The units left before its charge.
    pub(super) remaining_before: u64,
    /// Whether it has been charged.
    pub(super) charged: bool,
    /// Units that its charge's limit has beyond the limit of the descriptor.
    pub(super) extra_capacity: u64,
    /// Whether its counter is known to be at its limit and not above.
    pub(super) at_limit: bool,
}

/// The phase in which a limit is evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChargePhase {
    /// Never: it denies everything.
    Never,
    /// First, without a charge.
    Peek,
    /// After all peeks.
    Charge,
}

/// A refund, with the figures before and after it.
#[derive(Debug)]
pub(super) struct RefundProgress<'r> {
    pub(super) set: ChargeSet<'r>,
    pub(super) remaining_before: u64,
    pub(super) figures: Figures,
}

const NO_READING: LimitReading = LimitReading { verdict: Verdict::Deny { retry: Retry::Never }, figures: NO_FIGURES };

pub(super) const NO_FIGURES: Figures = Figures { remaining: 0, reset_after: Nanos::ZERO, more_after: Nanos::ZERO };

impl<'r> DescriptorDecision<'r> {
    /// Finds every limit that `request` and its description must pass, unless a list decides. `now` is only used to
    /// expire entries of the lists.
    pub fn new(
        rules: &'r RuleSet,
        enforce_mode: EnforceMode,
        key: &FingerprintKey,
        request: &Request<'_>,
        described: &DescribedRequest<'_>,
        options: DescriptorOptions,
        now: impl FnOnce() -> Nanos,
    ) -> Self {
        let native_mode = if options.all_shadow { EnforceMode::AllShadow } else { enforce_mode };
        let plan = plan(rules, native_mode, key, request, Purpose::Check, now);
        let native_count = plan.set.charges.len();
        let mut decision = DescriptorDecision {
            plan,
            native_count,
            progress: SmallVec::from_elem(ChargeProgress::of(native_phase(described), false), native_count),
            descriptors: SmallVec::new(),
            refunds: SmallVec::new(),
            overrides: Vec::new(),
            domain_known: false,
            enforce_mode,
            options,
            rules,
            has_passing_quota: false,
            interim: Outcome::new(true, SmallVec::new(), Nanos::ZERO, Source::Exact),
            has_reply: false,
        };
        let matches = descriptor_match::match_each(rules, key, described);
        decision.domain_known = matches.is_some();
        let matches = matches.filter(|_| decision.plan.listed.is_none()).unwrap_or_default();
        let matches = matches.into_iter().chain(std::iter::repeat_with(|| DescriptorMatch::Unmatched));
        for (descriptor, matched) in described.descriptors.iter().zip(matches) {
            let state = decision.add_descriptor(matched, descriptor.hits);
            decision.descriptors.push(state);
        }
        decision
    }

    /// The decision of a list, if there is one; then no store call is needed.
    pub fn listed(&self) -> Option<ListDecision> {
        self.plan.listed
    }

    /// The longest the caller waits for the decision.
    pub fn max_wait(&self) -> Option<Nanos> {
        self.plan.set.max_wait
    }

    /// Sets how long the caller still waits, for the store calls that follow.
    pub fn set_max_wait(&mut self, max_wait: Option<Nanos>) {
        self.plan.set.max_wait = max_wait;
    }

    /// A hash of the client.
    pub fn client(&self) -> u64 {
        self.plan.client_hash
    }

    /// Adds a descriptor and assigns a place for its figures.
    fn add_descriptor(&mut self, matched: DescriptorMatch<'r>, hits: Hits) -> DescriptorState<'r> {
        self.has_passing_quota |= self.is_passing_quota(&matched, hits);
        let DescriptorMatch::Limited(limited) = &matched else {
            return DescriptorState { matched, figures_at: FiguresIndex::None };
        };
        let figures_at = match hits {
            Hits::Refund(_) if limited.denies_all() => FiguresIndex::None,
            Hits::Refund(cost) => {
                let charge = self.charge(limited, cost);
                self.refunds.push(RefundProgress {
                    set: self.plan.set.subset([charge]),
                    remaining_before: 0,
                    figures: NO_FIGURES,
                });
                FiguresIndex::Refund(self.refunds.len() - 1)
            }
            Hits::Charge(cost) => self.add_charge(limited, cost, ChargeProgress::of(ChargePhase::Charge, false)),
            Hits::Used(cost) => self.add_charge(limited, cost, ChargeProgress::of(ChargePhase::Charge, true)),
            Hits::Check => self.add_charge(limited, Cost::ONE, ChargeProgress::of(ChargePhase::Peek, false)),
        };
        DescriptorState { matched, figures_at }
    }

    /// Adds a charge to the plan.
    fn add_charge(&mut self, limited: &MatchedLimit<'r>, cost: Cost, mut progress: ChargeProgress) -> FiguresIndex {
        if limited.denies_all() {
            progress.phase = ChargePhase::Never;
        }
        let mut charge = self.charge(limited, cost);
        let is_override = self.rules.rules()[limited.rule as usize].kind() == RuleKind::RequestOverride;
        let class = RateClass(self.overrides.len() as u32); // at most one per descriptor
        self.plan.origins.push(Origin {
            rule: limited.rule,
            class: if is_override { class } else { RateClass::default() },
            rate: 0,
            priority: Priority::default(),
        });
        if is_override {
            self.overrides.push(AppliedOverride {
                limit: charge.limit.as_ref().clone(),
                rate_text: rate_text(limited.requests, limited.unit),
            });
        }
        if progress.phase == ChargePhase::Peek && self.options.zero_hits == ZeroHits::OverAboveLimit {
            let raised = self.raised_limit(limited, &charge);
            progress.extra_capacity = raised.capacity() - charge.limit.capacity();
            charge.limit = Cow::Owned(raised);
        }
        self.use_smaller_limit(&mut charge, progress.phase);
        self.plan.set.charges.push(charge);
        self.progress.push(progress);
        FiguresIndex::Charge(self.progress.len() - 1)
    }

    /// The limit of a charge, raised by one: a check for one unit passes unless its counter is above the limit. The
    /// maximum limit stays unchanged.
    pub(super) fn raised_limit(&self, limited: &MatchedLimit<'_>, charge: &Charge<'_>) -> Limit {
        let requests = u32::try_from(charge.limit.capacity()).unwrap_or(u32::MAX);
        window(requests.saturating_add(1), limited.unit, self.rules.descriptors.precision)
    }

    /// A counter that a request names under two limits is charged under the smaller, because a store
    /// reads it under one at a time.
    fn use_smaller_limit(&mut self, charge: &mut Charge<'r>, phase: ChargePhase) {
        let known = self.plan.set.charges.iter_mut().zip(&self.progress);
        for (known, progress) in known.skip(self.native_count) {
            let same = known.subject == charge.subject && known.rule == charge.rule;
            let same = same && progress.phase == phase;
            if same && known.limit.capacity() < charge.limit.capacity() {
                charge.limit = known.limit.clone();
            } else if same && known.limit.capacity() > charge.limit.capacity() {
                known.limit = charge.limit.clone();
            }
        }
    }

    fn charge(&self, limited: &MatchedLimit<'r>, cost: Cost) -> Charge<'r> {
        Charge {
            subject: limited.subject,
            rule: counter_name(limited.unit),
            rate: 0,
            limit: limited.limit.clone(),
            cost,
            role: self.role(limited),
            options: self.rules.rules()[limited.rule as usize].options(),
        }
    }

    fn role(&self, limited: &MatchedLimit<'_>) -> Role {
        let is_shadow = self.options.all_shadow || self.is_shadow(limited);
        match (is_shadow, self.is_quota(limited)) {
            (true, _) => Role::Shadow,
            (false, true) => Role::Quota,
            (false, false) => Role::Enforce,
        }
    }

    /// Whether a limit is never reported as over.
    pub(super) fn is_shadow(&self, limited: &MatchedLimit<'_>) -> bool {
        limited.shadow || self.enforce_mode == EnforceMode::AllShadow
    }

    pub(super) fn is_quota(&self, limited: &MatchedLimit<'_>) -> bool {
        limited.quota || self.options.all_quota
    }

    /// Whether a descriptor is a budget that cannot be over: then no budget denies. Where all descriptors are budgets,
    /// one without a limit is such a budget, but an unlimited one is not.
    fn is_passing_quota(&self, matched: &DescriptorMatch<'_>, hits: Hits) -> bool {
        match matched {
            DescriptorMatch::Unlimited => false,
            DescriptorMatch::Unmatched | DescriptorMatch::Exempt => self.options.all_quota,
            DescriptorMatch::Limited(limited) => {
                let never_over = self.is_shadow(limited) || matches!(hits, Hits::Refund(_));
                self.is_quota(limited) && never_over
            }
        }
    }
}

/// If every descriptor only checks or refunds, the call charges no native rule either.
fn native_phase(described: &DescribedRequest<'_>) -> ChargePhase {
    let charges = |hits| matches!(hits, Hits::Charge(_) | Hits::Used(_));
    if described.descriptors.iter().any(|d| charges(d.hits)) { ChargePhase::Charge } else { ChargePhase::Peek }
}

impl ChargeProgress {
    const fn of(phase: ChargePhase, charged_on_denial: bool) -> Self {
        ChargeProgress {
            phase,
            charged_on_denial,
            reading: NO_READING,
            remaining_before: 0,
            charged: false,
            extra_capacity: 0,
            at_limit: false,
        }
    }
}
