//! The response to a described request: the decision, and the status of each descriptor.

use std::sync::Arc;

use smallvec::SmallVec;

use super::descriptor_decision::{DescriptorDecision, DescriptorState, FiguresIndex};
use super::descriptor_match::{DescriptorMatch, MatchedLimit};
use crate::engine::decide::{ChargedAs, binding, decide, decide_listed};
use crate::engine::decision::{Decision, LimitReport};
use crate::envoy::{Status, StatusLimit, Unit};
use crate::language::{ListDecision, RuleSet};
use tidegate_core::algorithms::Figures;
use tidegate_core::store::Role;
use tidegate_core::units::Nanos;

/// The response to a described request.
#[derive(Clone, Debug)]
pub struct DescriptorResponse<'r> {
    /// Whether the caller must deny it.
    pub over_limit: bool,
    /// The decision on the whole request, native rules included.
    pub decision: Decision,
    /// Whether its descriptors would have denied it without shadow mode for all.
    pub shadow_denied: bool,
    /// Whether any file names its domain.
    pub domain_known: bool,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'r>; 4]>,
}

impl<'r> DescriptorDecision<'r> {
    /// The decision of a list, and the status of each descriptor.
    pub fn decide_by_list(&self, rules: &'r Arc<RuleSet>, listed: ListDecision, at: Nanos) -> DescriptorResponse<'r> {
        let decision = decide_listed(Arc::clone(rules), listed, self.plan.client_hash, at);
        let mut response = DescriptorResponse {
            over_limit: !decision.allowed(),
            decision,
            shadow_denied: false,
            domain_known: self.domain_known,
            statuses: self.descriptors.iter().map(|_| Status::NO_LIMIT).collect(),
        };
        if let Some(first) = response.statuses.first_mut() {
            first.over_limit = response.over_limit;
        }
        response
    }

    /// The response, from all replies. `now` is called if no reply had a time.
    pub fn finish(mut self, rules: &'r Arc<RuleSet>, now: impl FnOnce() -> Nanos) -> DescriptorResponse<'r> {
        let at = if self.has_reply { self.interim.at } else { now() };
        self.interim.at = at;
        self.interim.readings = self.progress.iter().map(|progress| progress.reading).collect();
        for descriptor in &self.descriptors {
            if let (DescriptorMatch::Limited(limited), FiguresIndex::Charge(charge)) =
                (&descriptor.matched, descriptor.figures_at)
                && limited.denies_all()
            {
                self.interim.readings[charge].figures.reset_after = limited.unit.time_left_at(at);
            }
        }
        let mut decision = decide(Arc::clone(rules), &self.plan, &self.interim, ChargedAs::Nothing);
        let statuses = self.descriptors.iter().map(|descriptor| self.status(descriptor, at));
        let mut statuses: SmallVec<[Status<'r>; 4]> = statuses.collect();
        let shadow_denied = self.options.all_shadow && self.would_deny(&statuses);
        let mut descriptors = self.descriptors.iter();
        if let Some(unmatched) = descriptors.position(|each| matches!(each.matched, DescriptorMatch::Unmatched))
            && let Some(status) = native_status(rules, &decision, self.native_count)
        {
            statuses[unmatched] = status;
        }
        if !self.overrides.is_empty() {
            decision.overrides = Some(self.overrides.into());
        }
        DescriptorResponse {
            over_limit: !decision.allowed(),
            decision,
            shadow_denied,
            domain_known: self.domain_known,
            statuses,
        }
    }

    /// Whether descriptors with these statuses deny a request: any limit is over, or all budgets are.
    fn would_deny(&self, statuses: &[Status<'_>]) -> bool {
        let limited = || statuses.iter().filter(|status| status.limit.is_some());
        let over = limited().any(|status| status.over_limit && !status.quota);
        let mut quotas = limited().filter(|status| status.quota).peekable();
        let all_quotas_over =
            quotas.peek().is_some() && !self.has_passing_quota && quotas.all(|status| status.over_limit);
        over || all_quotas_over
    }

    fn status(&self, descriptor: &DescriptorState<'r>, at: Nanos) -> Status<'r> {
        let limited = match &descriptor.matched {
            DescriptorMatch::Unmatched | DescriptorMatch::Exempt => return Status::NO_LIMIT,
            DescriptorMatch::Unlimited => {
                return Status { remaining: u32::MAX, ..Status::NO_LIMIT };
            }
            DescriptorMatch::Limited(limited) => limited,
        };
        let (denied, left, left_before, capacity) = match descriptor.figures_at {
            FiguresIndex::None => (false, 0, 0, 0),
            FiguresIndex::Refund(at) => {
                let refund = &self.refunds[at];
                let capacity = refund.set.charges[0].limit.capacity();
                let left = refund.figures.remaining;
                (false, left, refund.remaining_before, capacity)
            }
            FiguresIndex::Charge(at) => {
                let (progress, charge) = (&self.progress[at], &self.plan.set.charges[at]);
                let denied = !progress.reading.verdict.allows();
                let left = progress.reading.figures.remaining;
                (denied, left, progress.remaining_before, charge.limit.capacity() - progress.extra_capacity)
            }
        };
        let shadow = self.is_shadow(limited);
        Status {
            over_limit: denied && !shadow,
            shadow_over_limit: denied && shadow,
            limit: Some(StatusLimit { requests: limited.requests, unit: Some(limited.unit), name: limited.name }),
            remaining: if denied { 0 } else { remaining_of(limited, capacity, left) },
            reset_after: Some(limited.unit.time_left_at(at)),
            quota: self.is_quota(limited),
            metadata: limited.metadata,
            used_before: enforced(limited).saturating_sub(remaining_of(limited, capacity, left_before)),
            stats: Some(limited.stats.clone()),
        }
    }
}

/// The units left of a limit, when `counter_left` units are left of the limit that its counter was charged under.
fn remaining_of(limited: &MatchedLimit<'_>, capacity: u64, counter_left: u64) -> u32 {
    let used = u32::try_from(capacity.saturating_sub(counter_left)).unwrap_or(u32::MAX);
    enforced(limited).saturating_sub(used)
}

/// The effective limit: as written, but at most what a window can count.
fn enforced(limited: &MatchedLimit<'_>) -> u32 {
    let counted = u32::try_from(limited.limit.capacity()).unwrap_or(u32::MAX);
    limited.requests.min(counted)
}

/// The status of the native rules, by the binding limit among theirs.
fn native_status<'r>(rules: &'r RuleSet, decision: &Decision, count: usize) -> Option<Status<'r>> {
    let reports = &decision.reports[..count];
    let allows = |report: &LimitReport| report.role == Role::Shadow || report.allows();
    let admitted = reports.iter().all(allows);
    let report = &reports[binding(reports, admitted)?];
    let rule = &rules.rules()[report.origin.rule as usize];
    let rates = rule.rates(report.origin.class);
    let limit = &rates.limits_for(report.origin.priority)[usize::from(report.origin.rate)];
    let unit = Unit::of_length(limit.per());
    let clipped = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let Figures { remaining, reset_after, .. } = report.reading.figures;
    let requests = match (unit, limit.algorithm().takes_burst()) {
        (Some(_), true) => limit.count(),
        _ => limit.capacity(),
    };
    Some(Status {
        over_limit: !admitted,
        limit: Some(StatusLimit { requests: clipped(requests), unit, name: Some(rule.name().as_str()) }),
        remaining: if admitted { clipped(remaining) } else { 0 },
        reset_after: Some(reset_after),
        used_before: clipped(limit.capacity().saturating_sub(remaining)),
        ..Status::NO_LIMIT
    })
}
