//! How nodes behave: every request is answered, in time, by the right clock; the breaker opens and
//! closes in turn and nothing is asked while it is open; all is exact again soon.

use tidegate::resilience::Event;
use tidegate_core::store::{Counting, Source};
use tidegate_core::units::Nanos;

use super::{Case, Finding, is_exact};
use crate::history::Record;
use crate::model::{Deed, Entry};
use crate::scenario::{Fault, Work};

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| Finding { promise, detail }));
    };
    found("every request is answered", unanswered(case));
    found("no decision is later than its budget", late(case));
    found("the store's clock decides", wrong_clock(case));
    for line in 0..case.scenario.parts {
        found(
            "a breaker opens and closes in turn",
            out_of_turn(case, line),
        );
        found(
            "nothing is asked while the breaker is open",
            asked_while_open(case, line),
        );
    }
    found("all is exact soon after a recovery", not_exact(case));
    found(
        "a deny cache refuses only what the store would",
        hasty(case),
    );
}

/// Whether somebody notices that a store has forgotten.
pub(super) fn judge_notice(case: &Case<'_>, findings: &mut Vec<Finding>) {
    findings.extend(unnoticed(case).map(|detail| Finding {
        promise: "a loss is noticed within 100 ms",
        detail,
    }));
}

fn unanswered(case: &Case<'_>) -> Option<String> {
    let history = case.history;
    if let Some(error) = history.failed.first() {
        return Some(format!(
            "{} failed, the first: {error}",
            history.failed.len()
        ));
    }
    let answered = history.records.len() as u64 + history.died;
    let missing = history.asked.saturating_sub(answered);
    (missing > 0).then(|| format!("{missing} of {} are not", history.asked))
}

fn touches_a_pause(case: &Case<'_>, record: &Record) -> bool {
    let mut pauses = case.history.pauses.iter();
    pauses
        .any(|(from, to, node)| *node == record.node && record.sent <= *to && record.done >= *from)
}

fn late(case: &Case<'_>) -> Option<String> {
    let mut records = case.history.records.iter();
    let late =
        records.find(|r| r.done.since(r.sent) > case.budget() && !touches_a_pause(case, r))?;
    Some(format!("{} at {late:?}", late.done.since(late.sent)))
}

/// Answers carry the store's time: to a round trip when it was asked, and to what half a round trip
/// leaves open when it was not.
fn wrong_clock(case: &Case<'_>) -> Option<String> {
    let fault = case.scenario.fault;
    if fault.steps_clock() || matches!(fault, Fault::Drift | Fault::Pause | Fault::Chaos) {
        return None;
    }
    let off = |record: &&Record| {
        let gap = record
            .truth
            .since(record.at)
            .max(record.at.since(record.truth));
        // A unit that was drawn in advance has the time it was charged, whatever else was asked.
        let lasts = longest_lease(case).max(last_word(case));
        gap > case.budget().plus(case.budget()).plus(lasts)
    };
    // Who has not met the store yet has only its own clock; and who has met one part may not have met
    // the next.
    let met = |record: &&Record| {
        let mut events = case.history.events.iter();
        let died = case
            .history
            .deaths
            .iter()
            .find(|(_, node)| *node == record.node);
        let since = died.map_or(Nanos::ZERO, |(at, _)| *at);
        events.any(|(at, node, event)| {
            let exact = *event == Event::Exact && *node == record.node;
            exact && *at >= since && *at <= record.done
        })
    };
    let meets_parts = fault == Fault::NodeDeath && case.scenario.parts > 1;
    let mut records = case.history.records.iter();
    let wrong = records.find(|record| {
        let knew = met(record) && !meets_parts;
        off(record) && (knew || !is_local(record))
    })?;
    Some(format!("{wrong:?}"))
}

fn longest_lease(case: &Case<'_>) -> Nanos {
    let leases = case
        .counters()
        .filter_map(|i| case.scenario.limit(i).lease());
    leases.max().unwrap_or(Nanos::ZERO)
}

/// Who counts for itself reckons from the store's last word, which is no older than this.
fn last_word(case: &Case<'_>) -> Nanos {
    let lenient = |i| case.scenario.counting(i) == Counting::Lenient;
    match case.counters().any(lenient) {
        true => Nanos::from_millis(50),
        false => Nanos::ZERO,
    }
}

fn is_local(record: &Record) -> bool {
    record.is_local()
}

fn out_of_turn(case: &Case<'_>, line: usize) -> Option<String> {
    for node in 0..case.scenario.nodes {
        let mut open = false;
        let events = case.history.events_of(line);
        for (at, _, event) in events.filter(|(_, of, _)| *of == node) {
            match (event, open) {
                (Event::BreakerOpened { .. }, false) => open = true,
                (Event::BreakerClosed, true) => open = false,
                (Event::BreakerOpened { .. } | Event::BreakerClosed, _) => {
                    let dies = case.history.deaths.iter().any(|(_, dead)| *dead == node);
                    if !dies {
                        return Some(format!("node {node} at {at}: {event:?} again"));
                    }
                    open = matches!(event, Event::BreakerOpened { .. });
                }
                _ => {}
            }
        }
    }
    None
}

fn asked_while_open(case: &Case<'_>, line: usize) -> Option<String> {
    let history = case.history;
    for node in 0..case.scenario.nodes {
        if history.deaths.iter().any(|(_, dead)| *dead == node) {
            continue;
        }
        let events = history.events_of(line).filter(|(_, of, _)| *of == node);
        let changes = events.filter_map(|(at, _, event)| match event {
            Event::BreakerOpened { .. } => Some((*at, true)),
            Event::BreakerClosed => Some((*at, false)),
            _ => None,
        });
        let changes: Vec<(Nanos, bool)> = changes.collect();
        let sent = history.sent.iter();
        let own = sent.filter(|sent| sent.node == node && sent.line == line);
        for sent in own {
            let before = changes.iter().take_while(|(at, _)| *at < sent.at);
            if before.last().is_some_and(|(_, open)| *open)
                && !changes.iter().any(|(at, _)| *at == sent.at)
            {
                return Some(format!("node {node} at {}", sent.at));
            }
        }
    }
    None
}

/// Where the breaker opened twice it rightly takes longer.
fn not_exact(case: &Case<'_>) -> Option<String> {
    let fault = case.scenario.fault;
    if matches!(fault, Fault::Pause | Fault::Chaos | Fault::Gray) {
        return None;
    }
    let opened = |node, line| {
        let events = case.history.events_of(line);
        let opened =
            events.filter(|(_, of, e)| *of == node && matches!(e, Event::BreakerOpened { .. }));
        opened.count()
    };
    let mut lines = 0..case.scenario.parts;
    if lines.any(|line| (0..case.scenario.nodes).any(|node| opened(node, line) > 1)) {
        return None;
    }
    let (from, settled) = (case.scenario.begins, case.settled());
    let calm = |r: &&Record| r.sent >= settled || (r.done < from && fault != Fault::NodeDeath);
    let mut records = case.history.records.iter().filter(calm);
    let local = records.find(|record| !is_exact(record))?;
    Some(format!("{local:?}"))
}

fn hasty(case: &Case<'_>) -> Option<String> {
    let fault = case.scenario.fault;
    if case.scenario.work != Work::Checks {
        return None; // what is settled elsewhere comes back early, and there are other promises about it
    }
    let lenient = |counter| case.scenario.counting(counter) == Counting::Lenient;
    if case.counters().any(lenient) {
        // A node knows of what it admitted itself before the store does.
        return None;
    }
    if case.scenario.parts > 1 && case.scenario.ceiling.is_some() {
        // What is charged for a request that a wider limit refuses is given back, and the caches of
        // those who were refused meanwhile are not told.
        return None;
    }
    let calm_until = match fault {
        // What a stopped node charged too late is given back, and the cache is not told.
        Fault::None | Fault::NodeDeath => case.scenario.ends,
        Fault::Drift => Nanos::ZERO,
        _ => case.scenario.begins,
    };
    let mut hasty = case.history.hasty.iter().filter(|r| r.done < calm_until);
    let hasty = match case.scenario.counts_ahead() {
        true => hasty.find(|record| !held(case, record)),
        false => hasty.next(),
    };
    Some(format!("{:?}", hasty?))
}

/// Where units are drawn in advance, a refusal is held on to for 20 ms, so that the store is left alone
/// while its counter is all but used up. And what comes back to the store from other nodes is not told
/// to those who were refused, for as long as a refusal is remembered.
fn held(case: &Case<'_>, record: &Record) -> bool {
    let since = |span| {
        record
            .done
            .since(Nanos::from_millis(span))
            .since(case.budget())
    };
    let refused = |r: &Record| {
        let here = r.node == record.node && r.subject == record.subject;
        here && !r.admitted && r.source != Source::DenyCache
    };
    let earlier = case
        .history
        .records
        .partition_point(|r| r.done <= record.done);
    let earlier = case.history.records[..earlier].iter().rev();
    let mut lately = earlier.take_while(|r| r.done >= since(20));
    lately.any(refused)
        || lately_done(case, since(20), record, |entry| {
            // That nothing was left to draw is a refusal too.
            matches!(entry.deed, Deed::Drawn(_)) && entry.node == record.node
        })
        || lately_done(case, since(1_000), record, |entry| {
            matches!(entry.deed, Deed::Returned(..))
        })
}

/// Whether the store did such a thing between `from` and a decision.
fn lately_done(
    case: &Case<'_>,
    from: Nanos,
    record: &Record,
    such: impl Fn(&Entry) -> bool,
) -> bool {
    let books = &case.history.books;
    // Nearly in the order of sending: none is under way for longer than this.
    let early = from.since(Nanos::from_secs(2));
    let first = books.partition_point(|entry| entry.sent < early);
    let since = books[first..].iter();
    let mut before = since.take_while(|entry| entry.sent.since(record.done) == Nanos::ZERO);
    before.any(|entry| entry.at.is_some() && from <= entry.sent && such(entry))
}

/// Under load, some node sees within 100 ms that its store has forgotten.
fn unnoticed(case: &Case<'_>) -> Option<String> {
    // Of several stores only one has forgotten.
    // And who has units in hand need not ask it.
    let elsewhere = case.scenario.parts > 1 || case.scenario.counts_ahead();
    if case.scenario.fault != Fault::Flush || elsewhere {
        return None;
    }
    let lost = *case.history.losses.first()?;
    // Load is somebody who was admitted lately and asks again at a node that has seen him.
    let limit = case.scenario.limit(0);
    let lively = (0..case.scenario.subjects.len()).any(|subject| {
        let recent = |from: Nanos, to: Nanos, node: Option<usize>| {
            let mut records = case.of(subject);
            let within = move |r: &&Record| from <= r.done && r.done <= to;
            records.find(move |r| {
                within(r)
                    && node.is_none_or(|node| r.node == node)
                    && r.source == Source::Exact
                    && (r.admitted || r.done > lost)
                    && (r.sent >= lost || r.done <= lost)
            })
        };
        let hundredth = Nanos::new(limit.per().get() / limit.count().max(1) / 2);
        let before = recent(lost.since(hundredth), lost, None);
        let after = |node| recent(lost, lost.plus(Nanos::from_millis(60)), Some(node));
        before.is_some_and(|record| after(record.node).is_some())
    });
    let mut events = case.history.events.iter();
    let noticed = events.any(|(at, _, event)| {
        *event == Event::Lost && *at >= lost && *at <= lost.plus(Nanos::from_millis(100))
    });
    (lively && !noticed).then(|| format!("lost at {lost}"))
}
