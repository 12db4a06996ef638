//! The store's books against what was really admitted: nothing is forgiven, nothing charged twice.
//!
//! The ledger charges every admission, whoever made it, at its own time to one true counter. After a
//! recovery the store must know of all of it; and for a fixed window, where time changes nothing
//! within a window, of no more than that and what may have been charged without an answer.

use tidegate::resilience::Event;
use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::store::{OnStoreFailure, Source};
use tidegate_core::units::{Cost, Nanos};

use super::{BUDGET, Case, Finding};
use crate::history::{Record, Snapshot};
use crate::scenario::Fault;

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    // Nodes that each admit the whole limit owe more than the store keeps of a debt.
    let allows = case.scenario.on_failure == OnStoreFailure::Allow;
    if case.scenario.fault.steps_clock() || case.scenario.fault == Fault::Chaos || allows {
        return;
    }
    for counter in case.counters() {
        let limit = case.scenario.limit(counter);
        let mut records: Vec<&Record> = case.of(counter).filter(|r| r.admitted).collect();
        records.sort_by_key(|record| time(record));
        let jitter = case.jitter(counter);
        for snapshot in &case.history.snapshots {
            let detail = compare(case, counter, &limit, &records, snapshot, jitter);
            if let Some((promise, detail)) = detail {
                let detail = format!("counter {counter} at {}: {detail}", snapshot.at);
                findings.push(Finding { promise, detail });
                break;
            }
        }
    }
}

/// When it was decided, by the store's clock. A node that has not met the store yet may be far off.
fn time(record: &Record) -> Nanos {
    let gap = record
        .truth
        .since(record.at)
        .max(record.at.since(record.truth));
    match gap > Nanos::from_secs(1) {
        true => record.truth,
        false => record.at,
    }
}

fn compare(
    case: &Case<'_>,
    counter: usize,
    limit: &Limit,
    admitted: &[&Record],
    snapshot: &Snapshot,
    jitter: u64,
) -> Option<(&'static str, String)> {
    let fault = case.scenario.fault;
    let calm_until = match fault {
        Fault::None | Fault::Drift => case.scenario.ends,
        _ => case.scenario.begins,
    };
    let calm = snapshot.at < calm_until || snapshot.at >= case.settled();
    if !calm || case.unsettled(snapshot.at) {
        return None;
    }
    let mut known = admitted.iter().filter(|r| r.done <= snapshot.at).peekable();
    let mut state = limit.fresh(known.peek().map_or(snapshot.truth, |first| time(first)));
    for record in known {
        let at = limit.advance(&mut state, time(record));
        limit.spend(&mut state, at, Cost::ONE);
    }
    let at = limit.advance(&mut state, snapshot.truth);
    let (due, booked) = (limit.used(&state, at), snapshot.used[counter]);
    let forgiven = due.saturating_sub(booked);
    if indebted(case, counter, limit, snapshot) {
        return None;
    }
    let forgotten = forgotten(case, counter, snapshot) + jitter;
    if forgiven > forgotten + drained(case, counter, limit, snapshot) {
        return Some(("nothing is forgiven", format!("{booked} booked of {due}")));
    }
    let more = unanswered(case, counter, limit, snapshot) + jitter;
    let more = more + given_back(case, counter, limit, snapshot);
    // Where acknowledgements are lost, debts are charged again on purpose; and who did not know the
    // store's time had windows of its own.
    let told = !matches!(fault, Fault::Gray | Fault::LateStore);
    let twice = limit.algorithm() == Algorithm::FixedWindow && told && booked > due + more;
    twice.then(|| {
        let detail = format!("{booked} booked of {due}, {more} unanswered");
        ("nothing is charged twice", detail)
    })
}

/// Debt beyond twice the capacity is not kept by any algorithm, so what is owed then is forgiven.
fn indebted(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> bool {
    let recent = |s: &&Snapshot| {
        let span = snapshot.at.since(s.at);
        s.at <= snapshot.at && span <= limit.per().plus(limit.per())
    };
    let mut recent = case.history.snapshots.iter().filter(recent);
    recent.any(|s| s.used[counter] >= 2 * limit.capacity())
}

/// What a bucket lets go of twice: a node that has not seen the counter does not know that the
/// store's own level is still draining, and lets its debt drain beside it.
fn drained(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> u64 {
    let buckets = limit.algorithm().takes_burst() && snapshot.at > case.scenario.begins;
    let clear = case.scenario.fault.is_outage()
        || matches!(case.scenario.fault, Fault::Restart | Fault::Failover);
    let known = clear && case.scenario.spread(counter);
    match (buckets, known) {
        (false, _) => 0,
        // They differ in what they last saw.
        (true, true) => 2 * case.scenario.nodes as u64,
        // Cut off while others are not, a node cannot know how full the store stays.
        (true, false) if case.scenario.fault == Fault::Gray => limit.capacity(),
        (true, false) => limit.capacity() * 4 / 5 + 1,
    }
}

/// What may be missing: what a dead node had not pushed, and what a loss hid.
fn forgotten(case: &Case<'_>, counter: usize, snapshot: &Snapshot) -> u64 {
    let fault = case.scenario.fault;
    if snapshot.at < case.scenario.begins {
        return 0;
    }
    let window = case.scenario.spec.window.length();
    let recent = |r: &&Record| snapshot.at.since(r.done) <= window.plus(window);
    let near = |r: &&Record| {
        let mut losses = case.history.losses.iter();
        losses.any(|at| r.done >= *at && r.done <= at.plus(Nanos::from_millis(230)))
    };
    let dead = |r: &&Record| case.history.deaths.iter().any(|(_, node)| *node == r.node);
    let admitted = case.of(counter).filter(|r| r.admitted).filter(recent);
    match fault {
        Fault::Flush => admitted
            .filter(near)
            .filter(|r| r.source == Source::Exact)
            .count() as u64,
        Fault::DeathWithStore | Fault::NodeDeath => admitted.filter(dead).count() as u64,
        // Stopped for longer than the others wait, it is as good as dead.
        Fault::Pause => {
            let paused = |r: &&Record| case.history.pauses.iter().any(|(_, _, n)| *n == r.node);
            admitted.filter(paused).count() as u64
        }
        _ => 0,
    }
}

/// What was charged for requests that a wider limit refused, and is on its way back; or stays charged,
/// where something went wrong since.
fn given_back(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> u64 {
    if case.scenario.parts == 1 {
        return 0;
    }
    let refused = case.of(counter).filter(|r| !r.admitted);
    let wrong = |r: &&Record| {
        let since = case.scenario.begins.since(BUDGET) <= r.done && r.done <= case.settled();
        since && case.scenario.fault != Fault::None && r.source == Source::Fallback
    };
    let recent = |r: &&Record| snapshot.at.since(r.sent) <= limit.per().plus(BUDGET);
    let under_way = |r: &&Record| r.done.plus(BUDGET) >= snapshot.at && r.sent <= snapshot.at;
    let not_back = refused.filter(|r| recent(r) && (wrong(r) || under_way(r)));
    not_back.count() as u64
}

/// What may have been charged without an answer that counted: every decision that waited in vain,
/// and what is under way.
fn unanswered(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> u64 {
    let window = limit.per();
    let recent = |r: &&Record| snapshot.at.since(r.sent) <= window.plus(BUDGET).plus(BUDGET);
    let before = |r: &&Record| r.sent <= snapshot.at;
    let late = |r: &&Record| r.source == Source::Fallback && r.done > r.sent;
    let under_way = |r: &&Record| r.done > snapshot.at;
    let records = || case.of(counter).filter(before).filter(recent);
    let in_vain = records().filter(late).count();
    let crossing = crossing(case, counter, limit, snapshot);
    // A debt that met a store which had lost its counts is charged again.
    let mut lost = case.history.events.iter().rev();
    let lost = lost
        .find(|(_, _, event)| *event == Event::Lost)
        .map(|(at, _, _)| *at);
    let local = |r: &&Record| r.source == Source::Fallback && r.admitted;
    let unsure = records()
        .filter(local)
        .filter(|r| lost.is_some_and(|at| r.done <= at))
        .count();
    (in_vain + crossing + unsure + records().filter(under_way).count()) as u64 + case.history.died
}

/// A push under way as a window ends is charged to the next one.
fn crossing(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> usize {
    let Some((start, _)) = limit.window_at(snapshot.truth) else {
        return 0;
    };
    let began = snapshot.at.since(snapshot.truth.since(start));
    let pushed = case.history.events.iter().any(|(at, _, event)| {
        let at_the_edge = *at >= began && at.since(began) <= BUDGET;
        at_the_edge && matches!(event, Event::Pushed { .. })
    });
    let local = case
        .of(counter)
        .filter(|r| r.source == Source::Fallback && r.admitted);
    let before = local.filter(|r| r.at < start && start.since(r.at) <= limit.per());
    if pushed { before.count() } else { 0 }
}
