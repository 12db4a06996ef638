//! Concurrency limits: no permit is granted over the limit, and no permit stays taken without a holder.
//!
//! Certain holders are known from the clients: from the reply that granted the permit until the client
//! released it, died, or learned that it was lost; and never longer than the lifetime of a permit without a
//! reply from a node. Possible holders are all clients whose permits may still have to expire.

use tidegate_core::algorithms::Division;
use tidegate_core::store::{OnStoreFailure, Source};
use tidegate_core::units::Nanos;

use super::{BrokenPromise, CheckCase};
use crate::history::{DecisionRecord, PermitCall, PermitOp, PermitSession};
use crate::model::{PermitEvent, PermitVerb};
use crate::scenario::{PermitWork, SimFault};

/// Begin and end.
type TimeRange = (Nanos, Nanos);

pub(super) fn judge(case: &CheckCase<'_>, permits: PermitWork, findings: &mut Vec<BrokenPromise>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| BrokenPromise { promise, detail }));
    };
    for subject in 0..case.scenario.subjects.len() {
        let subject_permits = SubjectPermits::new(case, permits, subject);
        found("at most the limit plus the shares hold permits", over_limit(&subject_permits));
        found("the store grants no permit over the limit", granted_over_limit(&subject_permits));
        found("a denial means that all permits may be held", denied_with_room(&subject_permits));
        found("no permit outlasts its holder", outlasting(&subject_permits));
        found("a released permit is not renewed", renewed_after_release(&subject_permits));
        let promise = "a permit renewed in time is kept";
        found(promise, lost_while_calm(&subject_permits));
    }
    found("all permits are free at the end", not_all_free(case, permits));
}

/// All sessions of one subject.
struct SubjectPermits<'a> {
    case: &'a CheckCase<'a>,
    permits: PermitWork,
    subject: usize,
    /// The spans in which a client certainly holds a permit.
    certain: Vec<(&'a PermitSession, TimeRange)>,
    /// The spans in which a client may hold a permit.
    possible: Vec<(&'a PermitSession, TimeRange)>,
}

impl<'a> SubjectPermits<'a> {
    fn new(case: &'a CheckCase<'a>, permits: PermitWork, subject: usize) -> Self {
        let sessions = case.history.permit_sessions.iter();
        let sessions: Vec<&PermitSession> = sessions.filter(|session| session.subject == subject).collect();
        let certain = sessions.iter();
        let certain = certain.flat_map(|session| {
            let spans = certain_spans(case, permits, session);
            spans.into_iter().map(|span| (*session, span))
        });
        let possible = sessions.iter();
        let possible = possible.map(|session| (*session, possible_span(case, permits, session)));
        SubjectPermits { certain: certain.collect(), possible: possible.collect(), case, permits, subject }
    }

    fn events(&self) -> impl Iterator<Item = &'a PermitEvent> {
        let of = |event: &&PermitEvent| {
            let mut sessions = self.possible.iter();
            sessions.any(|(session, _)| session.holder == Some(event.holder))
        };
        let counter = self.case.history.permit_events.iter().find(of);
        let counter = counter.map(|event| event.counter);
        let all = self.case.history.permit_events.iter();
        all.filter(move |event| Some(event.counter) == counter)
    }
}

/// When a client left: it released its permit, died, or the node died that renewed the permit.
fn left_at(case: &CheckCase<'_>, session: &PermitSession) -> Nanos {
    let mut calls = session.calls.iter();
    let released = calls.find(|call| call.op == PermitOp::Release);
    let released = released.map(|call| call.sent);
    let mut deaths = case.history.deaths.iter();
    let death = deaths.find(|(at, node)| session.auto_renewed && *node == session.node && *at >= session.sent);
    let ends = [released, session.client_died, death.map(|(at, _)| *at)];
    ends.into_iter().flatten().min().unwrap_or(Nanos::MAX)
}

/// The minimum lifetime of a permit, as its holder must assume.
fn min_lifetime(case: &CheckCase<'_>, lasts: Nanos) -> Nanos {
    match case.scenario.fault {
        SimFault::Drift => Nanos::new(lasts.get() * 8 / 9),
        _ => lasts,
    }
}

/// The maximum lifetime of a permit, as all others must assume.
fn max_lifetime(case: &CheckCase<'_>, lasts: Nanos) -> Nanos {
    match case.scenario.fault {
        SimFault::Drift => Nanos::new(lasts.get() * 9 / 8),
        _ => lasts,
    }
}

/// The spans in which a client certainly holds a permit.
fn certain_spans(case: &CheckCase<'_>, permits: PermitWork, session: &PermitSession) -> Vec<TimeRange> {
    let (Some(from), Some(_)) = (session.done, session.holder) else {
        return Vec::new();
    };
    let left_at = left_at(case, session);
    let mut spans = Vec::new();
    let mut open = Some(from);
    let mut until = session.sent.plus(min_lifetime(case, permits.lasts));
    for call in &session.calls {
        let Some(done) = call.done else { continue };
        match call.op {
            PermitOp::Renew(true) if session.auto_renewed => open = open.or(Some(done)),
            PermitOp::Renew(true) => until = until.max(call.sent.plus(min_lifetime(case, permits.lasts))),
            PermitOp::Renew(false) => {
                spans.extend(open.take().map(|from| (from, call.sent.min(expiry_of(session, until)))));
            }
            PermitOp::Release => break,
        }
    }
    spans.extend(open.map(|from| (from, expiry_of(session, until))));
    let lost = lost_at(case, session);
    let cut = spans.into_iter().map(|(from, to)| (from, to.min(left_at).min(lost)));
    cut.filter(|(from, to)| from < to).collect()
}

/// A node that renews a permit by itself reports when it is lost.
fn expiry_of(session: &PermitSession, until: Nanos) -> Nanos {
    if session.auto_renewed { Nanos::MAX } else { until }
}

/// When an unreleased permit may be lost: a clock step ends all permits; a permit that only a node knew which
/// died together with the store is lost.
fn lost_at(case: &CheckCase<'_>, session: &PermitSession) -> Nanos {
    let begins = case.scenario.fault_begins;
    let held_before = session.done.is_some_and(|done| done <= begins);
    match case.scenario.fault {
        fault if fault.steps_clock() && held_before => begins,
        SimFault::DeathWithStore if held_before => {
            let dead = case.history.deaths.last().map(|(_, node)| *node);
            let seen = |call: &&PermitCall| call.done.is_some_and(|done| done <= begins);
            let last = session.calls.iter().rfind(seen);
            let last = last.map_or(session.node, |call| call.node);
            if dead == Some(last) { begins } else { Nanos::MAX }
        }
        _ => Nanos::MAX,
    }
}

/// The span in which a client may hold a permit, as far as any other party can know.
fn possible_span(case: &CheckCase<'_>, permits: PermitWork, session: &PermitSession) -> TimeRange {
    let lasts = max_lifetime(case, permits.lasts).plus(case.budget()).plus(case.budget());
    // A renewal without a reply of the store begins when the node stops waiting.
    let last_call = session.calls.iter().map(|call| call.done.unwrap_or(call.sent)).max();
    let ends = last_call.unwrap_or(session.sent).max(session.sent).plus(lasts);
    let denied = session.done.filter(|_| session.holder.is_none());
    // A release with a reply and without a fault is final; otherwise it is sent later, or the permit expires.
    let mut released = session.calls.iter().filter(|call| call.op == PermitOp::Release);
    let released = released.find_map(|call| call.done.filter(|done| is_calm(case, call.sent, *done)));
    let gone = match (denied, released) {
        (Some(done), _) if is_calm(case, session.sent, done) => done,
        (_, Some(done)) => done,
        // A node that auto-renews a permit does so until it is released.
        _ if session.auto_renewed => renewed_until(case, permits, session).plus(lasts),
        _ => ends,
    };
    (session.sent, gone)
}

fn renewed_until(case: &CheckCase<'_>, permits: PermitWork, session: &PermitSession) -> Nanos {
    let left_at = left_at(case, session);
    let released_by = left_at.plus(case.recovered_at().since(case.scenario.fault_begins));
    let hit = left_at.plus(permits.lasts) >= case.scenario.fault_begins && left_at <= case.recovered_at();
    if hit { released_by } else { left_at }
}

/// Whether there is no fault and no after-effect of one from `from` to `to`.
fn is_calm(case: &CheckCase<'_>, from: Nanos, to: Nanos) -> bool {
    match case.scenario.fault {
        SimFault::None | SimFault::Drift => true,
        _ => to < case.scenario.fault_begins || from > case.recovered_at(),
    }
}

/// The same, and the permits that were lost in the fault have expired.
fn is_recovered(case: &CheckCase<'_>, permits: PermitWork, at: Nanos) -> bool {
    match case.scenario.fault {
        SimFault::None | SimFault::Drift => true,
        _ => at < case.scenario.fault_begins || at > case.recovered_at().plus(permits.lasts).plus(permits.lasts),
    }
}

/// Whether the store counts no permit that was released, at any node. A permit that a node restored is released again by
/// the node that released it, for the last time two seconds after that node had restored its own. A node that died
/// forgets what it released.
fn is_released_again(case: &CheckCase<'_>, at: Nanos) -> bool {
    let last_release = case.recovered_at().plus(Nanos::from_secs(1));
    at > last_release && case.history.deaths.is_empty()
}

/// Whether the permit of a session was denied or released by the end of the recovery, and no renewal succeeded or was in
/// flight later: a node without the store may have granted that one.
fn is_released_for_good(case: &CheckCase<'_>, session: &PermitSession) -> bool {
    let ended_by_then = |done: Nanos| done <= case.recovered_at();
    if session.holder.is_none() {
        return session.done.is_some_and(ended_by_then);
    }
    let mut calls = session.calls.iter();
    let release = calls.find(|call| call.op == PermitOp::Release && call.done.is_some_and(ended_by_then));
    let Some(release) = release else {
        return false;
    };
    let mut renewals = session.calls.iter().filter(|call| call.op == PermitOp::Renew(true));
    renewals.all(|call| call.done.is_some_and(|renewed| renewed < release.sent))
}

fn count_at(spans: &[(&PermitSession, TimeRange)], at: Nanos) -> usize {
    let is_within = |(_, (from, to)): &&(&PermitSession, TimeRange)| *from <= at && at < *to;
    spans.iter().filter(is_within).count()
}

/// The maximum number of holders while the store is unavailable: those before, plus the shares of all nodes.
fn max_with_shares(case: &CheckCase<'_>, permits: PermitWork) -> usize {
    let division = Division { percent: 80, nodes: 1, rank: Some(0) };
    let share = match case.scenario.on_failure {
        OnStoreFailure::Deny => 0,
        OnStoreFailure::Local => division.total(u64::from(permits.max_open)),
        OnStoreFailure::Allow => u64::from(permits.max_open) * case.scenario.nodes as u64,
    };
    // A node without membership assumes eight nodes, and grants at least one permit.
    let minimum = match case.scenario.fault {
        SimFault::LateStore => case.scenario.nodes,
        _ => 0,
    };
    (permits.max_open as usize) + (share as usize).max(minimum)
}

fn over_limit(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let max = max_with_shares(subject_permits.case, subject_permits.permits) + admitted_after_loss(subject_permits);
    let exceeds = |(session, (from, _)): &&(&PermitSession, TimeRange)| {
        session.done == Some(*from) && count_at(&subject_permits.certain, *from) > max
    };
    let (session, (from, _)) = subject_permits.certain.iter().find(exceeds)?;
    let are = count_at(&subject_permits.certain, *from);
    Some(format!("{are} hold permits, {max} may, with {session:?}"))
}

/// Holders who were admitted after the store had lost everything and before any node detected it.
fn admitted_after_loss(subject_permits: &SubjectPermits<'_>) -> usize {
    let near = |at: Nanos| {
        let mut losses = subject_permits.case.history.losses.iter();
        losses.any(|lost| *lost <= at && at <= lost.plus(Nanos::from_millis(230)))
    };
    let sessions = subject_permits.certain.iter();
    sessions.filter(|(session, _)| session.done.is_some_and(near)).count()
}

/// When the store grants a new permit, fewer than the limit are certainly held.
fn granted_over_limit(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let (case, max) = (subject_permits.case, subject_permits.permits.max_open);
    for event in subject_permits.events() {
        let gives = event.verb == PermitVerb::Acquire && event.granted && event.max_open == max;
        // Permits that nodes granted without the store reach it after its return, and not all at once.
        if !gives || !is_calm(case, event.now, event.now) {
            continue;
        }
        let others = subject_permits.certain.iter().filter(|(session, (from, to))| {
            let other = session.holder != Some(event.holder);
            other && *from <= event.now && event.now < *to
        });
        let others = others.count();
        if others >= max as usize {
            return Some(format!("{others} hold permits: {event:?}"));
        }
    }
    None
}

/// When the store denies, all permits may be held.
fn denied_with_room(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let (case, max) = (subject_permits.case, subject_permits.permits.max_open as usize);
    let denied = |r: &&DecisionRecord| r.subject == subject_permits.subject && !r.admitted;
    for record in case.history.records.iter().filter(denied) {
        let calm = is_recovered(case, subject_permits.permits, record.sent) && clock_is_steady(case, record.done);
        if record.source != Source::Exact || !calm {
            continue;
        }
        let others = subject_permits.possible.iter().filter(|(session, (from, to))| {
            // Of requests at the same time, only those with a grant count.
            let own = session.done == Some(record.done) && session.holder.is_none();
            !own && *from <= record.done && record.sent <= *to
        });
        let others = others.count();
        if others < max {
            return Some(format!("{others} may hold permits: {record:?}"));
        }
    }
    None
}

/// Whether permits expire on time. The store uses its own clock, and after that was set back, permits of dead
/// clients last longer by as much.
fn clock_is_steady(case: &CheckCase<'_>, at: Nanos) -> bool {
    let back = matches!(case.scenario.fault, SimFault::StepBack | SimFault::FailoverSkewed);
    !back || at < case.scenario.fault_begins
}

/// The store counts no permit that cannot be held.
fn outlasting(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let case = subject_permits.case;
    for event in subject_permits.events() {
        let over = is_recovered(case, subject_permits.permits, event.now) || is_released_again(case, event.now);
        let looked_at = event.now >= case.scenario.final_check_at();
        if !over || looked_at || !clock_is_steady(case, event.now) {
            continue;
        }
        let possible = subject_permits.possible.iter();
        let released_again = is_released_again(case, event.now);
        let others = possible.filter(|(session, (from, to))| {
            let is_released = released_again && is_released_for_good(case, session);
            *from <= event.now && event.now < *to && !is_released
        });
        let others = others.count();
        if (event.open as usize) > others {
            return Some(format!("{others} may hold permits: {event:?}"));
        }
    }
    None
}

/// A renewal after a confirmed release does not succeed. While the store is unavailable or has just lost
/// everything, a node that granted or renewed the permit and did not release it itself cannot know better.
fn renewed_after_release(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    for (session, _) in &subject_permits.possible {
        let mut calls = session.calls.iter();
        let release = calls.find(|call| call.op == PermitOp::Release);
        let Some((sent, done)) = release.and_then(|call| Some((call.sent, call.done?))) else {
            continue;
        };
        let mut later = session.calls.iter().filter(|call| call.sent >= done);
        let was_renewed = |call: &PermitCall| {
            let renewed_at = call.done.filter(|_| call.op == PermitOp::Renew(true));
            renewed_at.is_some_and(|renewed_at| is_calm(subject_permits.case, sent, renewed_at))
        };
        if later.any(was_renewed) {
            return Some(format!("{session:?}"));
        }
    }
    None
}

/// A renewal before the expiry and without a fault does not fail.
fn lost_while_calm(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let case = subject_permits.case;
    for (session, _) in &subject_permits.possible {
        let left_at = left_at(case, session);
        let denied = session.calls.iter().find(|call| {
            let is_denied = call.op == PermitOp::Renew(false) && call.sent < left_at;
            let replied_in_calm = |done| is_calm(case, session.sent, done);
            is_denied && call.done.is_some_and(replied_in_calm)
        });
        if let Some(call) = denied {
            return Some(format!("{call:?} of {session:?}"));
        }
    }
    None
}

/// When all clients have left, exactly the limit can be acquired.
fn not_all_free(case: &CheckCase<'_>, permits: PermitWork) -> Option<String> {
    if !clock_is_steady(case, case.scenario.ends) {
        return None;
    }
    let filled = &case.history.permits_at_end;
    let wrong = filled.iter().position(|filled| *filled != permits.max_open)?;
    Some(format!("{} of {} of subject {wrong}", filled[wrong], permits.max_open))
}
