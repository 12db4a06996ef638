//! What may be open at once: nobody is let in beside those who are, and no place stays taken that nobody
//! has.
//!
//! Who is in is what clients know: from the answer that let them in to when they went, died, or were told
//! that their slot is gone; and never longer than a slot lasts without a word from a node. Who may be in is
//! everybody whose slot somebody may still have to wait for.

use tidegate_core::algorithms::Division;
use tidegate_core::store::{OnStoreFailure, Source};
use tidegate_core::units::Nanos;

use super::{BrokenPromise, CheckCase};
use crate::history::{DecisionRecord, PermitCall, PermitOp, PermitSession};
use crate::model::{PermitEvent, PermitVerb};
use crate::scenario::{PermitWork, SimFault};

/// From when to when.
type TimeRange = (Nanos, Nanos);

pub(super) fn judge(case: &CheckCase<'_>, permits: PermitWork, findings: &mut Vec<BrokenPromise>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| BrokenPromise { promise, detail }));
    };
    for subject in 0..case.scenario.subjects.len() {
        let subject_permits = SubjectPermits::new(case, permits, subject);
        found(
            "the limit and the share are the most",
            over_limit(&subject_permits),
        );
        found(
            "the store lets nobody in beside those who are",
            granted_over_limit(&subject_permits),
        );
        found(
            "who is refused finds no room",
            denied_with_room(&subject_permits),
        );
        found("no slot outlasts its holder", outlasting(&subject_permits));
        found(
            "what was given back is not renewed",
            renewed_after_release(&subject_permits),
        );
        let promise = "who renews in time keeps the slot";
        found(promise, lost_while_calm(&subject_permits));
    }
    found(
        "in the end there is room for all",
        not_all_free(case, permits),
    );
}

/// Everybody of one subject.
struct SubjectPermits<'a> {
    case: &'a CheckCase<'a>,
    permits: PermitWork,
    subject: usize,
    /// Who is in for certain, and when.
    certain: Vec<(&'a PermitSession, TimeRange)>,
    /// Who may have a slot, and when.
    possible: Vec<(&'a PermitSession, TimeRange)>,
}

impl<'a> SubjectPermits<'a> {
    fn new(case: &'a CheckCase<'a>, permits: PermitWork, subject: usize) -> Self {
        let sessions = case.history.permit_sessions.iter();
        let sessions: Vec<&PermitSession> = sessions
            .filter(|session| session.subject == subject)
            .collect();
        let certain = sessions.iter();
        let certain = certain.flat_map(|session| {
            let spans = certain_spans(case, permits, session);
            spans.into_iter().map(|span| (*session, span))
        });
        let possible = sessions.iter();
        let possible = possible.map(|session| (*session, possible_span(case, permits, session)));
        SubjectPermits {
            certain: certain.collect(),
            possible: possible.collect(),
            case,
            permits,
            subject,
        }
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

/// When a client went by itself, if it did: it gave its slot back, died, or its node did that kept it.
fn left_at(case: &CheckCase<'_>, session: &PermitSession) -> Nanos {
    let mut calls = session.calls.iter();
    let released = calls.find(|call| call.op == PermitOp::Release);
    let released = released.map(|call| call.sent);
    let mut deaths = case.history.deaths.iter();
    let death = deaths
        .find(|(at, node)| session.auto_renewed && *node == session.node && *at >= session.sent);
    let ends = [released, session.client_died, death.map(|(at, _)| *at)];
    ends.into_iter().flatten().min().unwrap_or(Nanos::MAX)
}

/// How long a slot lasts at least, as its holder must reckon.
fn min_lifetime(case: &CheckCase<'_>, lasts: Nanos) -> Nanos {
    match case.scenario.fault {
        SimFault::Drift => Nanos::new(lasts.get() * 8 / 9),
        _ => lasts,
    }
}

/// And at most, as others must.
fn max_lifetime(case: &CheckCase<'_>, lasts: Nanos) -> Nanos {
    match case.scenario.fault {
        SimFault::Drift => Nanos::new(lasts.get() * 9 / 8),
        _ => lasts,
    }
}

/// When a client is in for certain.
fn certain_spans(
    case: &CheckCase<'_>,
    permits: PermitWork,
    session: &PermitSession,
) -> Vec<TimeRange> {
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
            PermitOp::Renew(true) => {
                until = until.max(call.sent.plus(min_lifetime(case, permits.lasts)))
            }
            PermitOp::Renew(false) => {
                spans.extend(
                    open.take()
                        .map(|from| (from, call.sent.min(expiry_of(session, until)))),
                );
            }
            PermitOp::Release => break,
        }
    }
    spans.extend(open.map(|from| (from, expiry_of(session, until))));
    let lost = lost_at(case, session);
    let cut = spans
        .into_iter()
        .map(|(from, to)| (from, to.min(left_at).min(lost)));
    cut.filter(|(from, to)| from < to).collect()
}

/// A node that keeps a slot says itself when it is lost.
fn expiry_of(session: &PermitSession, until: Nanos) -> Nanos {
    match session.auto_renewed {
        true => Nanos::MAX,
        false => until,
    }
}

/// When a slot may be gone that nobody gave back: a clock that jumps ends all; and what only a node knew
/// that died together with the store is known to nobody.
fn lost_at(case: &CheckCase<'_>, session: &PermitSession) -> Nanos {
    let begins = case.scenario.fault_begins;
    let was_in = session.done.is_some_and(|done| done <= begins);
    match case.scenario.fault {
        fault if fault.steps_clock() && was_in => begins,
        SimFault::DeathWithStore if was_in => {
            let dead = case.history.deaths.last().map(|(_, node)| *node);
            let seen = |call: &&PermitCall| call.done.is_some_and(|done| done <= begins);
            let last = session.calls.iter().rfind(seen);
            let last = last.map_or(session.node, |call| call.node);
            match dead == Some(last) {
                true => begins,
                false => Nanos::MAX,
            }
        }
        _ => Nanos::MAX,
    }
}

/// From when to when a client may have a slot as far as anybody else can tell.
fn possible_span(case: &CheckCase<'_>, permits: PermitWork, session: &PermitSession) -> TimeRange {
    let lasts = max_lifetime(case, permits.lasts)
        .plus(case.budget())
        .plus(case.budget());
    let last_call = session.calls.iter().map(|call| call.sent).max();
    let ends = last_call
        .unwrap_or(session.sent)
        .max(session.sent)
        .plus(lasts);
    let denied = session.done.filter(|_| session.holder.is_none());
    // A release that was answered, with nothing wrong, is over; else it is told later, or ends by itself.
    let mut released = session
        .calls
        .iter()
        .filter(|call| call.op == PermitOp::Release);
    let released =
        released.find_map(|call| call.done.filter(|done| is_calm(case, call.sent, *done)));
    let gone = match (denied, released) {
        (Some(done), _) if is_calm(case, session.sent, done) => done,
        (_, Some(done)) => done,
        // A node that keeps a slot renews it without a word, until it is given back.
        _ if session.auto_renewed => renewed_until(case, permits, session).plus(lasts),
        _ => ends,
    };
    (session.sent, gone)
}

fn renewed_until(case: &CheckCase<'_>, permits: PermitWork, session: &PermitSession) -> Nanos {
    let left_at = left_at(case, session);
    let released_by = left_at.plus(case.recovered_at().since(case.scenario.fault_begins));
    let hit =
        left_at.plus(permits.lasts) >= case.scenario.fault_begins && left_at <= case.recovered_at();
    if hit { released_by } else { left_at }
}

/// Whether nothing goes wrong from `from` to `to`, and nothing is left of it.
fn is_calm(case: &CheckCase<'_>, from: Nanos, to: Nanos) -> bool {
    match case.scenario.fault {
        SimFault::None | SimFault::Drift => true,
        _ => to < case.scenario.fault_begins || from > case.recovered_at(),
    }
}

/// The same, and slots have ended that were lost in it.
fn is_recovered(case: &CheckCase<'_>, permits: PermitWork, at: Nanos) -> bool {
    match case.scenario.fault {
        SimFault::None | SimFault::Drift => true,
        _ => {
            at < case.scenario.fault_begins
                || at > case.recovered_at().plus(permits.lasts).plus(permits.lasts)
        }
    }
}

fn count_at(spans: &[(&PermitSession, TimeRange)], at: Nanos) -> usize {
    let is_within = |(_, (from, to)): &&(&PermitSession, TimeRange)| *from <= at && at < *to;
    spans.iter().filter(is_within).count()
}

/// How many may be in while the store is away: those who were, and what all nodes may give by themselves.
fn max_with_shares(case: &CheckCase<'_>, permits: PermitWork) -> usize {
    let division = Division {
        percent: 80,
        nodes: 1,
        rank: Some(0),
    };
    let share = match case.scenario.on_failure {
        OnStoreFailure::Deny => 0,
        OnStoreFailure::Local => division.total(u64::from(permits.max_open)),
        OnStoreFailure::Allow => u64::from(permits.max_open) * case.scenario.nodes as u64,
    };
    // Who does not know the others yet reckons with eight nodes, and gives one place at least.
    let minimum = match case.scenario.fault {
        SimFault::LateStore => case.scenario.nodes,
        _ => 0,
    };
    (permits.max_open as usize) + (share as usize).max(minimum)
}

fn over_limit(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let max = max_with_shares(subject_permits.case, subject_permits.permits)
        + admitted_after_loss(subject_permits);
    let exceeds = |(session, (from, _)): &&(&PermitSession, TimeRange)| {
        session.done == Some(*from) && count_at(&subject_permits.certain, *from) > max
    };
    let (session, (from, _)) = subject_permits.certain.iter().find(exceeds)?;
    let are = count_at(&subject_permits.certain, *from);
    Some(format!("{are} are in, {max} may be, with {session:?}"))
}

/// Those who were let in after the store had lost everything and before anybody noticed.
fn admitted_after_loss(subject_permits: &SubjectPermits<'_>) -> usize {
    let near = |at: Nanos| {
        let mut losses = subject_permits.case.history.losses.iter();
        losses.any(|lost| *lost <= at && at <= lost.plus(Nanos::from_millis(230)))
    };
    let sessions = subject_permits.certain.iter();
    sessions
        .filter(|(session, _)| session.done.is_some_and(near))
        .count()
}

/// When the store gives a slot that is not in use already, fewer than the limit are in.
fn granted_over_limit(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let (case, max) = (subject_permits.case, subject_permits.permits.max_open);
    for event in subject_permits.events() {
        let gives = event.verb == PermitVerb::Acquire && event.granted && event.max_open == max;
        // What nodes gave without the store it hears of when it is back, and not all of it at once.
        if !gives || !is_calm(case, event.now, event.now) {
            continue;
        }
        let others = subject_permits
            .certain
            .iter()
            .filter(|(session, (from, to))| {
                let other = session.holder != Some(event.holder);
                other && *from <= event.now && event.now < *to
            });
        let others = others.count();
        if others >= max as usize {
            return Some(format!("{others} are in: {event:?}"));
        }
    }
    None
}

/// Who is refused by the store finds as many as may be who may be in.
fn denied_with_room(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let (case, max) = (
        subject_permits.case,
        subject_permits.permits.max_open as usize,
    );
    let denied = |r: &&DecisionRecord| r.subject == subject_permits.subject && !r.admitted;
    for record in case.history.records.iter().filter(denied) {
        let calm = is_recovered(case, subject_permits.permits, record.sent)
            && clock_is_steady(case, record.done);
        if record.source != Source::Exact || !calm {
            continue;
        }
        let others = subject_permits
            .possible
            .iter()
            .filter(|(session, (from, to))| {
                // Of those who asked together, only who was let in.
                let own = session.done == Some(record.done) && session.holder.is_none();
                !own && *from <= record.done && record.sent <= *to
            });
        let others = others.count();
        if others < max {
            return Some(format!("{others} may be in: {record:?}"));
        }
    }
    None
}

/// Whether slots end when they should: the store goes by its own clock, and one that was set back lets those
/// of the dead last as much longer.
fn clock_is_steady(case: &CheckCase<'_>, at: Nanos) -> bool {
    let back = matches!(
        case.scenario.fault,
        SimFault::StepBack | SimFault::FailoverSkewed
    );
    !back || at < case.scenario.fault_begins
}

/// The store counts nobody who cannot be in.
fn outlasting(subject_permits: &SubjectPermits<'_>) -> Option<String> {
    let case = subject_permits.case;
    for event in subject_permits.events() {
        let over = is_recovered(case, subject_permits.permits, event.now);
        let looked_at = event.now >= case.scenario.final_check_at();
        if !over || looked_at || !clock_is_steady(case, event.now) {
            continue;
        }
        let others = count_at(&subject_permits.possible, event.now);
        if (event.open as usize) > others {
            return Some(format!("{others} may be in: {event:?}"));
        }
    }
    None
}

/// Who gave a slot back and heard so is not told later that it is held. When the store is away or has just
/// lost everything, a node that gave or renewed the slot and was not the one to take it back knows no better.
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

/// Who renews before the end, with nothing wrong, is not told that the slot is gone.
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

/// When all have gone, as many can be had as there are, and no more.
fn not_all_free(case: &CheckCase<'_>, permits: PermitWork) -> Option<String> {
    if !clock_is_steady(case, case.scenario.ends) {
        return None;
    }
    let filled = &case.history.permits_at_end;
    let wrong = filled
        .iter()
        .position(|filled| *filled != permits.max_open)?;
    Some(format!(
        "{} of {} of subject {wrong}",
        filled[wrong], permits.max_open
    ))
}
