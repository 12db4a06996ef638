//! What a store's answer means for the request.

use std::cmp::Reverse;
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use super::decision::{Decision, Fate, Report};
use super::plan::Plan;
use crate::algorithms::{Retry, Verdict};
use crate::rules::{Listed, RuleSet};
use crate::store::{Charge, OnStoreFailure, Outcome, Role, Source};
use crate::units::Nanos;

/// Whether what was decided was also charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spent {
    /// If it was admitted.
    IfAdmitted,
    /// If it was admitted, and not for good: there is no receipt of it. Refunded and given back at its
    /// end, it would come back twice.
    AsEstimate,
    /// It was only asked about.
    Nothing,
}

/// A decision that needed no store.
pub fn settle_listed(rules: Arc<RuleSet>, listed: Listed, client: u64, at: Nanos) -> Decision {
    let (fate, source) = match listed {
        Listed::Allow => (Fate::Allow, Source::AllowList),
        Listed::Block { until } => (Fate::Block { until }, Source::BlockList),
    };
    Decision {
        rules,
        fate,
        source,
        at,
        clock_stepped: false,
        binding: None,
        client,
        charge_id: None,
        reports: SmallVec::new(),
        brought: None,
        unlimited: None,
    }
}

/// Turns a plan and the store's answer to it into a decision.
pub fn settle(rules: Arc<RuleSet>, plan: &Plan<'_>, outcome: &Outcome, spent: Spent) -> Decision {
    let mut decision = Decision {
        rules,
        fate: Fate::Allow,
        source: Source::None,
        at: outcome.at,
        clock_stepped: outcome.clock_stepped,
        binding: None,
        client: plan.client,
        charge_id: (spent == Spent::IfAdmitted && outcome.admitted).then(OnceLock::new),
        reports: SmallVec::new(),
        brought: None,
        unlimited: (!plan.unlimited.is_empty()).then(|| plan.unlimited.as_slice().into()),
    };
    // Made in their place: they are most of a decision.
    let reports = &mut decision.reports;
    let charges = plan.set.charges.iter().zip(&plan.origins);
    for ((charge, origin), reading) in charges.zip(&outcome.readings) {
        reports.push(Report {
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
    decision.fate = match outcome.admitted {
        true => admitted(reports, slowed(&decision.rules, plan, outcome, spent)),
        false if refused_unasked(plan, outcome) => Fate::Unavailable,
        false => Fate::Deny(retry(reports)),
    };
    decision.binding = binding(reports, outcome.admitted);
    decision
}

/// Whether a rule that wants to be refused without its store was refused for that.
fn refused_unasked(plan: &Plan<'_>, outcome: &Outcome) -> bool {
    let refuses = |charge: &Charge<'_>| {
        charge.role != Role::Shadow && charge.terms.on_failure == OnStoreFailure::Deny
    };
    // Of a store in parts, another rule's part may have decided.
    let mut charges = plan.set.charges.iter().zip(&outcome.readings);
    let refused = charges.any(|(charge, reading)| refuses(charge) && !reading.verdict.allows());
    outcome.source == Source::Fallback && refused
}

/// The longest delay that the soft limits ask for, as far as the caller can wait: the request is within
/// every limit, and is never refused for it. A node that decides by its share of a limit does not know
/// how much of the whole is in use, and asks for none.
fn slowed(rules: &RuleSet, plan: &Plan<'_>, outcome: &Outcome, spent: Spent) -> Nanos {
    if !rules.has_soft_limits() || outcome.source == Source::Fallback {
        return Nanos::ZERO;
    }
    let charges = plan.set.charges.iter().zip(&plan.origins);
    let delays = charges.zip(&outcome.readings);
    let delays = delays.filter_map(|((charge, origin), reading)| {
        let soft = rules.rules()[origin.rule as usize].soft()?;
        let remaining = match spent {
            Spent::IfAdmitted | Spent::AsEstimate => reading.figures.remaining,
            Spent::Nothing => reading.figures.remaining.saturating_sub(charge.cost.get()),
        };
        let counts = charge.role != Role::Shadow && reading.verdict.allows();
        counts.then(|| soft.delay(charge.limit.capacity(), remaining))
    });
    let longest = delays.max().unwrap_or(Nanos::ZERO);
    plan.patience.map_or(longest, |most| longest.min(most))
}

/// The longest delay: that of the soft limits, or one that an enforced queue asks for.
fn admitted(reports: &[Report], slowed: Nanos) -> Fate {
    let delays = enforced(reports).map(|(_, report)| match report.reading.verdict {
        Verdict::Allow { delay } => delay,
        Verdict::Deny { .. } => Nanos::ZERO,
    });
    match delays.fold(slowed, Nanos::max) {
        Nanos::ZERO => Fate::Allow,
        delay => Fate::Delay(delay),
    }
}

/// All enforced limits must pass, and each passes from its own moment on: the latest of them. Of the
/// quotas one is enough: the earliest.
fn retry(reports: &[Report]) -> Retry {
    let of = |role| {
        let reports = reports.iter().filter(move |report| report.role == role);
        reports.filter_map(violated)
    };
    let (enforced, quota) = (of(Role::Enforce).max(), of(Role::Quota).min());
    enforced.max(quota).unwrap_or(Retry::After(Nanos::ZERO))
}

fn violated(report: &Report) -> Option<Retry> {
    match report.reading.verdict {
        Verdict::Deny { retry } => Some(retry),
        Verdict::Allow { .. } => None,
    }
}

/// Refused: the violated limit that keeps longest. Allowed: the one with room for the fewest more
/// requests like this; of equals, the one that takes longest to have more. A quota that had no room
/// did not decide.
pub(super) fn binding(reports: &[Report], admitted: bool) -> Option<usize> {
    if admitted {
        enforced(reports)
            .filter(|(_, report)| report.reading.verdict.allows())
            .min_by_key(|(_, report)| {
                let figures = report.reading.figures;
                let like_this = figures.remaining / report.cost.get();
                (like_this, Reverse(figures.more_after))
            })
            .map(|(i, _)| i)
    } else {
        enforced(reports)
            .filter_map(|(i, report)| Some((i, violated(report)?)))
            .max_by_key(|(i, retry)| (*retry, Reverse(*i)))
            .map(|(i, _)| i)
    }
}

fn enforced(reports: &[Report]) -> impl Iterator<Item = (usize, &Report)> {
    let all = reports.iter().enumerate();
    all.filter(|(_, report)| report.role != Role::Shadow)
}
