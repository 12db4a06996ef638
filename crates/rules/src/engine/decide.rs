//! Turns a store's reply into a decision on the request.

use std::cmp::Reverse;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::decision::{Decision, DecisionKind, LimitReport};
use super::plan::ChargePlan;
use crate::language::{ListDecision, RuleSet};
use tidegate_core::algorithms::{Retry, Verdict};
use tidegate_core::store::{Degraded, Outcome, Role, Source};
use tidegate_core::units::Nanos;

/// Whether the decision charged anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargedAs {
    /// Charged if admitted.
    IfAdmitted,
    /// Charged if admitted, and not for good: there is no receipt. With one, the same units could be refunded twice,
    /// by the receipt and at the end of the reservation.
    Reservation,
    /// Nothing: the store was only peeked.
    Nothing,
}

/// A decision that needed no store.
pub fn decide_listed(rules: Arc<RuleSet>, listed: ListDecision, client_hash: u64, at: Nanos) -> Decision {
    let (kind, source) = match listed {
        ListDecision::Allow => (DecisionKind::Allow, Source::AllowList),
        ListDecision::Block { until } => (DecisionKind::Block { until }, Source::BlockList),
    };
    Decision {
        rules,
        kind,
        source,
        at,
        clock_stepped: false,
        degraded: None,
        binding: None,
        client_hash,
        charge_id: None,
        reports: SmallVec::new(),
        overrides: None,
        unlimited: None,
    }
}

/// Turns a plan and the store's reply to it into a decision.
pub fn decide(rules: Arc<RuleSet>, plan: &ChargePlan<'_>, outcome: &Outcome, charged_as: ChargedAs) -> Decision {
    let mut decision = Decision {
        rules,
        kind: DecisionKind::Allow,
        source: Source::None,
        at: outcome.at,
        clock_stepped: outcome.clock_stepped,
        degraded: outcome.degraded,
        binding: None,
        client_hash: plan.client_hash,
        charge_id: (charged_as == ChargedAs::IfAdmitted && outcome.admitted).then(OnceLock::new),
        reports: SmallVec::new(),
        overrides: None,
        unlimited: (!plan.unlimited.is_empty()).then(|| plan.unlimited.as_slice().into()),
    };
    // Built in place: they are most of a decision.
    let reports = &mut decision.reports;
    let charges = plan.set.charges.iter().zip(&plan.origins);
    let denied_by_policy = match outcome.degraded {
        Some(Degraded::DeniedByPolicy { charge }) => plan.origins.get(usize::from(charge)).map(|origin| origin.rule),
        _ => None,
    };
    for ((charge, origin), reading) in charges.zip(&outcome.readings) {
        reports.push(LimitReport {
            is_denied_by_policy: denied_by_policy == Some(origin.rule),
            origin: *origin,
            role: charge.role,
            subject: charge.subject,
            cost: charge.cost,
            reading: *reading,
        });
    }
    if !reports.is_empty() {
        decision.source = outcome.source;
    }
    decision.kind = if outcome.admitted {
        admitted(reports, soft_delay(&decision.rules, plan, outcome, charged_as))
    } else if denied_by_policy.is_some() {
        DecisionKind::Unavailable
    } else {
        DecisionKind::Deny(retry(reports))
    };
    decision.binding = binding(reports, outcome.admitted);
    decision
}

/// The longest delay of the soft limits, as far as the caller can wait: the request is within every limit, and is
/// never denied for it. A node that decides by its share of a limit does not know the usage of the whole limit, and
/// adds no delay.
fn soft_delay(rules: &RuleSet, plan: &ChargePlan<'_>, outcome: &Outcome, charged_as: ChargedAs) -> Nanos {
    if !rules.has_soft_limits() || outcome.degraded == Some(Degraded::StoreUnavailable) {
        return Nanos::ZERO;
    }
    let delays = plan.set.charges.iter().zip(&plan.origins).zip(&outcome.readings);
    let delays = delays.filter_map(|((charge, origin), reading)| {
        let soft = rules.rules()[origin.rule as usize].soft()?;
        let remaining = match charged_as {
            ChargedAs::IfAdmitted | ChargedAs::Reservation => reading.figures.remaining,
            ChargedAs::Nothing => reading.figures.remaining.saturating_sub(charge.cost.get()),
        };
        let applies = charge.role != Role::Shadow && reading.verdict.allows();
        applies.then(|| soft.delay(charge.limit.capacity(), remaining))
    });
    let longest = delays.max().unwrap_or(Nanos::ZERO);
    plan.max_delay.map_or(longest, |max_delay| longest.min(max_delay))
}

/// The longest delay: that of the soft limits, or that of a queue that is not in shadow mode.
fn admitted(reports: &[LimitReport], soft_delay: Nanos) -> DecisionKind {
    let delays = not_shadow(reports).map(|(_, report)| match report.reading.verdict {
        Verdict::Allow { delay } => delay,
        Verdict::Deny { .. } => Nanos::ZERO,
    });
    match delays.fold(soft_delay, Nanos::max) {
        Nanos::ZERO => DecisionKind::Allow,
        delay => DecisionKind::Delay(delay),
    }
}

/// When a retry may pass. All enforced limits must pass, each from its own moment on: the latest of them. Of the
/// quotas one is enough: the earliest.
fn retry(reports: &[LimitReport]) -> Retry {
    let of = |role| reports.iter().filter(move |report| report.role == role).filter_map(retry_of);
    let (enforced, quota) = (of(Role::Enforce).max(), of(Role::Quota).min());
    enforced.max(quota).unwrap_or(Retry::After(Nanos::ZERO))
}

fn retry_of(report: &LimitReport) -> Option<Retry> {
    match report.reading.verdict {
        Verdict::Deny { retry } => Some(retry),
        Verdict::Allow { .. } => None,
    }
}

/// The binding limit. If denied: a limit denied by policy, or else the violated limit with the longest wait. If admitted: the limit with room for the
/// fewest more requests of this cost; among equals, the one with the longest wait for more. A quota without room did
/// not decide.
pub(super) fn binding(reports: &[LimitReport], admitted: bool) -> Option<usize> {
    if admitted {
        not_shadow(reports)
            .filter(|(_, report)| report.reading.verdict.allows())
            .min_by_key(|(_, report)| {
                let figures = report.reading.figures;
                let like_this = figures.remaining / report.cost.get();
                (like_this, Reverse(figures.more_after))
            })
            .map(|(i, _)| i)
    } else {
        not_shadow(reports)
            .filter(|(_, report)| !report.allows())
            .max_by_key(|(i, report)| (report.is_denied_by_policy, retry_of(report), Reverse(*i)))
            .map(|(i, _)| i)
    }
}

/// The limits that can deny: those of enforced rules, and quotas.
fn not_shadow(reports: &[LimitReport]) -> impl Iterator<Item = (usize, &LimitReport)> {
    reports.iter().enumerate().filter(|(_, report)| report.role != Role::Shadow)
}
