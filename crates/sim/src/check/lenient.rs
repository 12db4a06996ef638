//! Local counts that are synchronised later: how far over the limit, and how soon seen by all.
//!
//! Judged where nothing goes wrong. Every admission is charged to one true counter at the time it was
//! made; what that holds beyond its capacity is the overshoot. A node that admits must have known of
//! all that anybody admitted 100 ms ago.

use std::collections::VecDeque;

use tidegate_core::algorithms::{Limit, State};
use tidegate_core::store::{Counting, Source};
use tidegate_core::units::{Cost, Nanos};

use super::times::Timed;
use super::{Case, Finding};
use crate::history::Record;
use crate::scenario::Bout;

/// How soon every node must know of a request.
const SEEN_BY_ALL: Nanos = Nanos::from_millis(100);

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    for counter in case.counters() {
        if case.scenario.counting(counter) != Counting::Lenient {
            continue;
        }
        let mut found = |promise, detail: Option<String>| {
            let detail = detail.map(|detail| format!("counter {counter}: {detail}"));
            findings.extend(detail.map(|detail| Finding { promise, detail }));
        };
        let (over, bound) = overshoot(case, counter);
        let beyond = (over > bound).then(|| format!("{over}, at most {bound}"));
        found("a limit is exceeded by no more than is told", beyond);
        found(
            "a request is seen by all within 100 ms",
            unseen(case, counter),
        );
    }
}

/// What was admitted in a calm bout, in the order of use.
fn admitted<'a>(case: &'a Case<'_>, counter: usize, bout: Bout) -> Vec<Timed<'a>> {
    let within = |timed: &Timed<'_>| bout.0 <= timed.record.sent && timed.record.done < bout.1;
    let mut admitted = case.admitted(counter);
    admitted.retain(within);
    admitted.sort_by_key(|timed| timed.used);
    admitted
}

/// What was admitted by then and the store need not have been told.
pub(super) fn untold(case: &Case<'_>, counter: usize, at: Nanos) -> u64 {
    let lately = |r: &&Record| {
        let own = r.admitted && r.source == Source::Lenient;
        own && r.sent <= at && at.since(r.done) <= SEEN_BY_ALL
    };
    case.of(counter).filter(lately).count() as u64
}

/// The overshoot, and `(N - 1) * min(L, what the busiest node admits before it hears of the others)`.
pub(super) fn overshoot(case: &Case<'_>, counter: usize) -> (u64, u64) {
    let limit = case.scenario.limit(counter);
    let others = case.scenario.nodes.saturating_sub(1) as u64;
    let (mut over, mut most) = (0, 0);
    for bout in case.calm_bouts() {
        let admitted = admitted(case, counter, bout);
        over = over.max(highest(&limit, &admitted).saturating_sub(limit.capacity()));
        most = most.max(busiest(case, &admitted));
    }
    (over, others * most.min(limit.capacity()))
}

/// The most that the true counter held.
fn highest(limit: &Limit, admitted: &[Timed<'_>]) -> u64 {
    let Some(first) = admitted.first() else {
        return 0;
    };
    let mut state = limit.fresh(first.used);
    let used = admitted
        .iter()
        .map(|timed| spend(limit, &mut state, timed.used));
    used.max().unwrap_or(0)
}

/// Charges one unit, whether it fits or not; how much is used then.
fn spend(limit: &Limit, state: &mut State, at: Nanos) -> u64 {
    let moment = limit.advance(state, at);
    limit.spend(state, moment, Cost::ONE);
    limit.used(state, moment)
}

/// The most that one node admitted before it had to hear of the others.
fn busiest(case: &Case<'_>, admitted: &[Timed<'_>]) -> u64 {
    let mut lately = vec![VecDeque::new(); case.scenario.nodes];
    let each = admitted.iter().map(|timed| {
        let own: &mut VecDeque<Nanos> = &mut lately[timed.record.node];
        own.push_back(timed.used);
        while own
            .front()
            .is_some_and(|then| timed.used.since(*then) > SEEN_BY_ALL)
        {
            own.pop_front();
        }
        own.len() as u64
    });
    each.max().unwrap_or(0)
}

/// An admission by a node that cannot have known what was admitted 100 ms ago.
fn unseen(case: &Case<'_>, counter: usize) -> Option<String> {
    let limit = case.scenario.limit(counter);
    let mut bouts = case.calm_bouts().into_iter();
    bouts.find_map(|bout| unseen_in(&limit, &admitted(case, counter, bout)))
}

fn unseen_in(limit: &Limit, admitted: &[Timed<'_>]) -> Option<String> {
    let first = admitted.first()?;
    // What everybody must know of, and how far that goes.
    let (mut known, mut upto) = (limit.fresh(first.used), 0);
    for (i, timed) in admitted.iter().enumerate() {
        let seen = |then: &Timed<'_>| timed.used.since(then.used) > SEEN_BY_ALL;
        while seen(&admitted[upto]) {
            spend(limit, &mut known, admitted[upto].used);
            upto += 1;
        }
        // One in seven shows as much, and takes a seventh of the time.
        if timed.record.source != Source::Lenient || i % 7 != 0 {
            continue;
        }
        let mut view = known.clone();
        // Of what it asked the store for itself, the answers may still be under way.
        let own = admitted[upto..i].iter();
        let own = own.filter(|own| own.record.node == timed.record.node);
        for own in own.filter(|own| own.record.source == Source::Lenient) {
            spend(limit, &mut view, own.used);
        }
        let at = limit.advance(&mut view, timed.used);
        if !limit.judge(&view, at, Cost::ONE).allows() {
            let used = limit.used(&view, at);
            return Some(format!(
                "{used} were known to be used by {:?}",
                timed.record
            ));
        }
    }
    None
}
