//! What a described request is told in the end: the decision, and a word about each descriptor.

use std::sync::Arc;

use smallvec::SmallVec;

use super::inquiry::{Case, Inquiry, Seat};
use super::lot::{Limited, Lot};
use crate::algorithms::Figures;
use crate::described::{Status, StatusLimit, Unit};
use crate::engine::Judged;
use crate::engine::decision::{Decision, Fate, Report};
use crate::engine::settle::{Spent, binding, settle, settle_listed};
use crate::rules::{Listed, RuleSet};
use crate::store::{Outcome, Reading, Role};
use crate::units::Nanos;

impl<'r> Inquiry<'r> {
    /// The decision of a list, and what each descriptor is told of it.
    pub fn listed_as(&self, rules: &'r Arc<RuleSet>, listed: Listed, at: Nanos) -> Judged<'r> {
        let decision = settle_listed(Arc::clone(rules), listed, self.plan.client, at);
        let mut judged = Judged {
            over: !decision.allowed(),
            decision,
            shadowed: false,
            domain_known: self.domain_known,
            statuses: self.cases.iter().map(|_| Status::FREE).collect(),
        };
        if let Some(first) = judged.statuses.first_mut() {
            first.over = judged.over;
        }
        judged
    }

    /// What all answers come to. `now` is asked for if no store has told the time.
    pub fn judged(self, rules: &'r Arc<RuleSet>, now: impl FnOnce() -> Nanos) -> Judged<'r> {
        let at = self.ruling.at.unwrap_or_else(now);
        let mut readings: SmallVec<[Reading; 4]> =
            self.entries.iter().map(|entry| entry.reading).collect();
        for case in &self.cases {
            if let (Lot::Limited(limited), Seat::Charge(entry)) = (&case.lot, case.seat)
                && limited.is_nothing()
            {
                readings[entry].figures.reset_after = limited.unit.left_at(at);
            }
        }
        let outcome = Outcome {
            admitted: self.ruling.admitted,
            readings,
            seen: Vec::new(),
            at,
            source: self.ruling.source,
            clock_stepped: self.ruling.clock_stepped,
        };
        let mut decision = settle(Arc::clone(rules), &self.plan, &outcome, Spent::Nothing);
        let cases = self.cases.iter().map(|case| self.status(case, at));
        let mut statuses: SmallVec<[Status<'r>; 4]> = cases.collect();
        let shadowed = self.manner.all_shadow && self.would_deny(&statuses);
        let mut free = self.cases.iter();
        if let Some(free) = free.position(|case| matches!(case.lot, Lot::Unmatched))
            && let Some(told) = native(rules, &decision, self.native)
        {
            statuses[free] = told;
        }
        if !self.brought.is_empty() {
            decision.brought = Some(self.brought.into());
        }
        Judged {
            over: !matches!(decision.fate, Fate::Allow | Fate::Delay(_)),
            decision,
            shadowed,
            domain_known: self.domain_known,
            statuses,
        }
    }

    /// Whether descriptors with these statuses deny a request: a limit that is over, or budgets that all
    /// are.
    fn would_deny(&self, statuses: &[Status<'_>]) -> bool {
        let limited = || statuses.iter().filter(|status| status.limit.is_some());
        let over = limited().any(|status| status.over && !status.quota);
        let mut quotas = limited().filter(|status| status.quota).peekable();
        let spent = quotas.peek().is_some() && !self.passes && quotas.all(|status| status.over);
        over || spent
    }

    fn status(&self, case: &Case<'r>, at: Nanos) -> Status<'r> {
        let limited = match &case.lot {
            Lot::Unmatched | Lot::Exempt => return Status::FREE,
            Lot::Unlimited => {
                return Status {
                    remaining: u32::MAX,
                    ..Status::FREE
                };
            }
            Lot::Limited(limited) => limited,
        };
        let (denied, left, left_before, capacity) = match case.seat {
            Seat::None => (false, 0, 0, 0),
            Seat::GivenBack(at) => {
                let refunding = &self.given_back[at];
                let capacity = refunding.set.charges[0].limit.capacity();
                let left = refunding.figures.remaining;
                (false, left, refunding.before, capacity)
            }
            Seat::Charge(at) => {
                let (entry, charge) = (&self.entries[at], &self.plan.set.charges[at]);
                let denied = !entry.reading.verdict.allows();
                let left = entry.reading.figures.remaining;
                (
                    denied,
                    left,
                    entry.left_before,
                    charge.limit.capacity() - entry.spare,
                )
            }
        };
        let watched = self.only_watches(limited);
        Status {
            over: denied && !watched,
            watched_over: denied && watched,
            limit: Some(StatusLimit {
                requests: limited.requests,
                unit: Some(limited.unit),
                name: limited.name,
            }),
            remaining: if denied {
                0
            } else {
                rest(limited, capacity, left)
            },
            reset_after: Some(limited.unit.left_at(at)),
            quota: self.is_quota(limited),
            metadata: limited.metadata,
            used_before: enforced(limited).saturating_sub(rest(limited, capacity, left_before)),
            stats: Some(limited.stats.clone()),
        }
    }
}

/// What is left of a limit, when `left` is of what its counter was charged under.
fn rest(limited: &Limited<'_>, capacity: u64, left: u64) -> u32 {
    let used = u32::try_from(capacity.saturating_sub(left)).unwrap_or(u32::MAX);
    enforced(limited).saturating_sub(used)
}

/// How many a limit lets pass: as many as are written, but no more than a window can count.
fn enforced(limited: &Limited<'_>) -> u32 {
    let counted = u32::try_from(limited.limit.capacity()).unwrap_or(u32::MAX);
    limited.requests.min(counted)
}

/// What the rules beside descriptors say, by the limit of theirs that binds.
fn native<'r>(rules: &'r RuleSet, decision: &Decision, count: usize) -> Option<Status<'r>> {
    let reports = &decision.reports[..count];
    let stands = |report: &Report| report.role == Role::Shadow || report.reading.verdict.allows();
    let admitted = reports.iter().all(stands);
    let report = &reports[binding(reports, admitted)?];
    let rule = &rules.rules()[report.origin.rule as usize];
    let rates = rule.rates(report.origin.class);
    let limit = &rates.limits_for(report.origin.priority)[usize::from(report.origin.rate)];
    let unit = Unit::of_length(limit.per());
    let clipped = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let Figures {
        remaining,
        reset_after,
        ..
    } = report.reading.figures;
    let requests = match (unit, limit.algorithm().takes_burst()) {
        (Some(_), true) => limit.count(),
        _ => limit.capacity(),
    };
    Some(Status {
        over: !admitted,
        limit: Some(StatusLimit {
            requests: clipped(requests),
            unit,
            name: Some(rule.name().as_str()),
        }),
        remaining: if admitted { clipped(remaining) } else { 0 },
        reset_after: Some(reset_after),
        used_before: clipped(limit.capacity().saturating_sub(remaining)),
        ..Status::FREE
    })
}
