//! What may be open at once: nobody is let in beside those who are, and no place stays taken that nobody
//! has.
//!
//! Who is in is what clients know: from the answer that let them in to when they went, died, or were told
//! that their slot is gone; and never longer than a slot lasts without a word from a node. Who may be in is
//! everybody whose slot somebody may still have to wait for.

use tidegate_core::algorithms::Division;
use tidegate_core::store::{OnStoreFailure, Source};
use tidegate_core::units::Nanos;

use super::{Case, Finding};
use crate::history::{Errand, Record, Stay, Visit};
use crate::model::{Passage, Verb};
use crate::scenario::{Fault, Places};

/// From when to when.
type Span = (Nanos, Nanos);

pub(super) fn judge(case: &Case<'_>, places: Places, findings: &mut Vec<Finding>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| Finding { promise, detail }));
    };
    for subject in 0..case.scenario.subjects.len() {
        let inside = Inside::new(case, places, subject);
        found("the limit and the share are the most", crowd(&inside));
        found(
            "the store lets nobody in beside those who are",
            beside(&inside),
        );
        found("who is refused finds no room", refused_with_room(&inside));
        found("no slot outlasts its holder", left_over(&inside));
        found("what was given back is not renewed", renewed_late(&inside));
        let promise = "who renews in time keeps the slot";
        found(promise, lost_in_calm(&inside));
    }
    found(
        "in the end there is room for all",
        not_all_free(case, places),
    );
}

/// Everybody of one subject.
struct Inside<'a> {
    case: &'a Case<'a>,
    places: Places,
    subject: usize,
    /// Who is in for certain, and when.
    truly: Vec<(&'a Stay, Span)>,
    /// Who may have a slot, and when.
    perhaps: Vec<(&'a Stay, Span)>,
}

impl<'a> Inside<'a> {
    fn new(case: &'a Case<'a>, places: Places, subject: usize) -> Self {
        let stays = case.history.stays.iter();
        let stays: Vec<&Stay> = stays.filter(|stay| stay.subject == subject).collect();
        let truly = stays.iter();
        let truly = truly.flat_map(|stay| {
            let spans = truly_in(case, places, stay);
            spans.into_iter().map(|span| (*stay, span))
        });
        let perhaps = stays.iter();
        let perhaps = perhaps.map(|stay| (*stay, perhaps_in(case, places, stay)));
        Inside {
            truly: truly.collect(),
            perhaps: perhaps.collect(),
            case,
            places,
            subject,
        }
    }

    fn passages(&self) -> impl Iterator<Item = &'a Passage> {
        let of = |passage: &&Passage| {
            let mut stays = self.perhaps.iter();
            stays.any(|(stay, _)| stay.holder == Some(passage.holder))
        };
        let counter = self.case.history.passages.iter().find(of);
        let counter = counter.map(|passage| passage.counter);
        let all = self.case.history.passages.iter();
        all.filter(move |passage| Some(passage.counter) == counter)
    }
}

/// When a client went by itself, if it did: it gave its slot back, died, or its node did that kept it.
fn went(case: &Case<'_>, stay: &Stay) -> Nanos {
    let mut visits = stay.visits.iter();
    let released = visits.find(|visit| visit.what == Errand::Release);
    let released = released.map(|visit| visit.sent);
    let mut deaths = case.history.deaths.iter();
    let death = deaths.find(|(at, node)| stay.kept && *node == stay.node && *at >= stay.sent);
    let ends = [released, stay.died, death.map(|(at, _)| *at)];
    ends.into_iter().flatten().min().unwrap_or(Nanos::MAX)
}

/// How long a slot lasts at least, as its holder must reckon.
fn at_least(case: &Case<'_>, lasts: Nanos) -> Nanos {
    match case.scenario.fault {
        Fault::Drift => Nanos::new(lasts.get() * 8 / 9),
        _ => lasts,
    }
}

/// And at most, as others must.
fn at_most(case: &Case<'_>, lasts: Nanos) -> Nanos {
    match case.scenario.fault {
        Fault::Drift => Nanos::new(lasts.get() * 9 / 8),
        _ => lasts,
    }
}

/// When a client is in for certain.
fn truly_in(case: &Case<'_>, places: Places, stay: &Stay) -> Vec<Span> {
    let (Some(from), Some(_)) = (stay.done, stay.holder) else {
        return Vec::new();
    };
    let went = went(case, stay);
    let mut spans = Vec::new();
    let mut open = Some(from);
    let mut until = stay.sent.plus(at_least(case, places.lasts));
    for visit in &stay.visits {
        let Some(done) = visit.done else { continue };
        match visit.what {
            Errand::Renew(true) if stay.kept => open = open.or(Some(done)),
            Errand::Renew(true) => until = until.max(visit.sent.plus(at_least(case, places.lasts))),
            Errand::Renew(false) => {
                spans.extend(
                    open.take()
                        .map(|from| (from, visit.sent.min(until_of(stay, until)))),
                );
            }
            Errand::Release => break,
        }
    }
    spans.extend(open.map(|from| (from, until_of(stay, until))));
    let lost = lost_at(case, stay);
    let cut = spans
        .into_iter()
        .map(|(from, to)| (from, to.min(went).min(lost)));
    cut.filter(|(from, to)| from < to).collect()
}

/// A node that keeps a slot says itself when it is lost.
fn until_of(stay: &Stay, until: Nanos) -> Nanos {
    match stay.kept {
        true => Nanos::MAX,
        false => until,
    }
}

/// When a slot may be gone that nobody gave back: a clock that jumps ends all; and what only a node knew
/// that died together with the store is known to nobody.
fn lost_at(case: &Case<'_>, stay: &Stay) -> Nanos {
    let begins = case.scenario.begins;
    let was_in = stay.done.is_some_and(|done| done <= begins);
    match case.scenario.fault {
        fault if fault.steps_clock() && was_in => begins,
        Fault::DeathWithStore if was_in => {
            let dead = case.history.deaths.last().map(|(_, node)| *node);
            let seen = |visit: &&Visit| visit.done.is_some_and(|done| done <= begins);
            let last = stay.visits.iter().rfind(seen);
            let last = last.map_or(stay.node, |visit| visit.node);
            match dead == Some(last) {
                true => begins,
                false => Nanos::MAX,
            }
        }
        _ => Nanos::MAX,
    }
}

/// From when to when a client may have a slot as far as anybody else can tell.
fn perhaps_in(case: &Case<'_>, places: Places, stay: &Stay) -> Span {
    let lasts = at_most(case, places.lasts)
        .plus(case.budget())
        .plus(case.budget());
    let asked = stay.visits.iter().map(|visit| visit.sent).max();
    let ends = asked.unwrap_or(stay.sent).max(stay.sent).plus(lasts);
    let refused = stay.done.filter(|_| stay.holder.is_none());
    // A release that was answered, with nothing wrong, is over; else it is told later, or ends by itself.
    let mut released = stay
        .visits
        .iter()
        .filter(|visit| visit.what == Errand::Release);
    let released =
        released.find_map(|visit| visit.done.filter(|done| is_calm(case, visit.sent, *done)));
    let gone = match (refused, released) {
        (Some(done), _) if is_calm(case, stay.sent, done) => done,
        (_, Some(done)) => done,
        // A node that keeps a slot renews it without a word, until it is given back.
        _ if stay.kept => kept_until(case, places, stay).plus(lasts),
        _ => ends,
    };
    (stay.sent, gone)
}

fn kept_until(case: &Case<'_>, places: Places, stay: &Stay) -> Nanos {
    let went = went(case, stay);
    let told = went.plus(case.settled().since(case.scenario.begins));
    let hit = went.plus(places.lasts) >= case.scenario.begins && went <= case.settled();
    if hit { told } else { went }
}

/// Whether nothing goes wrong from `from` to `to`, and nothing is left of it.
fn is_calm(case: &Case<'_>, from: Nanos, to: Nanos) -> bool {
    match case.scenario.fault {
        Fault::None | Fault::Drift => true,
        _ => to < case.scenario.begins || from > case.settled(),
    }
}

/// The same, and slots have ended that were lost in it.
fn is_over(case: &Case<'_>, places: Places, at: Nanos) -> bool {
    match case.scenario.fault {
        Fault::None | Fault::Drift => true,
        _ => at < case.scenario.begins || at > case.settled().plus(places.lasts).plus(places.lasts),
    }
}

fn within(spans: &[(&Stay, Span)], at: Nanos) -> usize {
    let inside = |(_, (from, to)): &&(&Stay, Span)| *from <= at && at < *to;
    spans.iter().filter(inside).count()
}

/// How many may be in while the store is away: those who were, and what all nodes may give by themselves.
fn with_the_share(case: &Case<'_>, places: Places) -> usize {
    let division = Division {
        percent: 80,
        nodes: 1,
        place: Some(0),
    };
    let share = match case.scenario.on_failure {
        OnStoreFailure::Deny => 0,
        OnStoreFailure::Local => division.whole(u64::from(places.most)),
        OnStoreFailure::Allow => u64::from(places.most) * case.scenario.nodes as u64,
    };
    // Who does not know the others yet reckons with eight nodes, and gives one place at least.
    let strangers = match case.scenario.fault {
        Fault::LateStore => case.scenario.nodes,
        _ => 0,
    };
    (places.most as usize) + (share as usize).max(strangers)
}

fn crowd(inside: &Inside<'_>) -> Option<String> {
    let most = with_the_share(inside.case, inside.places) + unnoticed(inside);
    let crowded = |(stay, (from, _)): &&(&Stay, Span)| {
        stay.done == Some(*from) && within(&inside.truly, *from) > most
    };
    let (stay, (from, _)) = inside.truly.iter().find(crowded)?;
    let are = within(&inside.truly, *from);
    Some(format!("{are} are in, {most} may be, with {stay:?}"))
}

/// Those who were let in after the store had lost everything and before anybody noticed.
fn unnoticed(inside: &Inside<'_>) -> usize {
    let near = |at: Nanos| {
        let mut losses = inside.case.history.losses.iter();
        losses.any(|lost| *lost <= at && at <= lost.plus(Nanos::from_millis(230)))
    };
    let stays = inside.truly.iter();
    stays
        .filter(|(stay, _)| stay.done.is_some_and(near))
        .count()
}

/// When the store gives a slot that is not in use already, fewer than the limit are in.
fn beside(inside: &Inside<'_>) -> Option<String> {
    let (case, most) = (inside.case, inside.places.most);
    for passage in inside.passages() {
        let gives = passage.verb == Verb::Hold && passage.granted && passage.most == most;
        // What nodes gave without the store it hears of when it is back, and not all of it at once.
        if !gives || !is_calm(case, passage.now, passage.now) {
            continue;
        }
        let others = inside.truly.iter().filter(|(stay, (from, to))| {
            let other = stay.holder != Some(passage.holder);
            other && *from <= passage.now && passage.now < *to
        });
        let others = others.count();
        if others >= most as usize {
            return Some(format!("{others} are in: {passage:?}"));
        }
    }
    None
}

/// Who is refused by the store finds as many as may be who may be in.
fn refused_with_room(inside: &Inside<'_>) -> Option<String> {
    let (case, most) = (inside.case, inside.places.most as usize);
    let refused = |r: &&Record| r.subject == inside.subject && !r.admitted;
    for record in case.history.records.iter().filter(refused) {
        let calm = is_over(case, inside.places, record.sent) && keeps_time(case, record.done);
        if record.source != Source::Exact || !calm {
            continue;
        }
        let others = inside.perhaps.iter().filter(|(stay, (from, to))| {
            // Of those who asked together, only who was let in.
            let own = stay.done == Some(record.done) && stay.holder.is_none();
            !own && *from <= record.done && record.sent <= *to
        });
        let others = others.count();
        if others < most {
            return Some(format!("{others} may be in: {record:?}"));
        }
    }
    None
}

/// Whether slots end when they should: the store goes by its own clock, and one that was set back lets those
/// of the dead last as much longer.
fn keeps_time(case: &Case<'_>, at: Nanos) -> bool {
    let back = matches!(case.scenario.fault, Fault::StepBack | Fault::FailoverSkewed);
    !back || at < case.scenario.begins
}

/// The store counts nobody who cannot be in.
fn left_over(inside: &Inside<'_>) -> Option<String> {
    let case = inside.case;
    for passage in inside.passages() {
        let over = is_over(case, inside.places, passage.now);
        let looked_at = passage.now >= case.scenario.last_look();
        if !over || looked_at || !keeps_time(case, passage.now) {
            continue;
        }
        let others = within(&inside.perhaps, passage.now);
        if (passage.open as usize) > others {
            return Some(format!("{others} may be in: {passage:?}"));
        }
    }
    None
}

/// Who gave a slot back and heard so is not told later that it is held. When the store is away or has just
/// lost everything, a node that gave or renewed the slot and was not the one to take it back knows no better.
fn renewed_late(inside: &Inside<'_>) -> Option<String> {
    for (stay, _) in &inside.perhaps {
        let mut visits = stay.visits.iter();
        let release = visits.find(|visit| visit.what == Errand::Release);
        let Some((sent, done)) = release.and_then(|visit| Some((visit.sent, visit.done?))) else {
            continue;
        };
        let mut later = stay.visits.iter().filter(|visit| visit.sent >= done);
        let held = |visit: &Visit| {
            let told = visit.done.filter(|_| visit.what == Errand::Renew(true));
            told.is_some_and(|told| is_calm(inside.case, sent, told))
        };
        if later.any(held) {
            return Some(format!("{stay:?}"));
        }
    }
    None
}

/// Who renews before the end, with nothing wrong, is not told that the slot is gone.
fn lost_in_calm(inside: &Inside<'_>) -> Option<String> {
    let case = inside.case;
    for (stay, _) in &inside.perhaps {
        let went = went(case, stay);
        let told = stay.visits.iter().find(|visit| {
            let is_denied = visit.what == Errand::Renew(false) && visit.sent < went;
            let replied_in_calm = |done| is_calm(case, stay.sent, done);
            is_denied && visit.done.is_some_and(replied_in_calm)
        });
        if let Some(visit) = told {
            return Some(format!("{visit:?} of {stay:?}"));
        }
    }
    None
}

/// When all have gone, as many can be had as there are, and no more.
fn not_all_free(case: &Case<'_>, places: Places) -> Option<String> {
    if !keeps_time(case, case.scenario.ends) {
        return None;
    }
    let filled = &case.history.filled;
    let wrong = filled.iter().position(|filled| *filled != places.most)?;
    Some(format!(
        "{} of {} of subject {wrong}",
        filled[wrong], places.most
    ))
}
