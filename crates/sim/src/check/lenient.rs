//! Local counts that are synchronised later: how far over the limit, and how soon seen by all.
//!
//! Judged where nothing goes wrong. Every admission is charged to one true counter at the time it was
//! made; what that holds beyond its capacity is the overshoot. A node that admits must have known of
//! all that anybody admitted 100 ms ago.

use std::collections::VecDeque;

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::{Counting, Source};
use tidegate_core::units::{Cost, Nanos};

use super::times::Timed;
use super::{BrokenPromise, CheckCase};
use crate::history::DecisionRecord;
use crate::scenario::LoadPeriod;

/// How soon every node must know of a request.
const MAX_VISIBILITY_DELAY: Nanos = Nanos::from_millis(100);

pub(super) fn judge(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    for counter in case.counters() {
        if case.scenario.counting(counter) != Counting::Lenient {
            continue;
        }
        let mut found = |promise, detail: Option<String>| {
            let detail = detail.map(|detail| format!("counter {counter}: {detail}"));
            findings.extend(detail.map(|detail| BrokenPromise { promise, detail }));
        };
        let (over, bound) = overshoot(case, counter);
        let beyond = (over > bound).then(|| format!("{over}, at most {bound}"));
        found("a limit is exceeded by no more than is told", beyond);
        found(
            "a request is seen by all within 100 ms",
            unseen_admission(case, counter),
        );
    }
}

/// What was admitted in a calm bout, in the order of use.
fn admitted<'a>(case: &'a CheckCase<'_>, counter: usize, period: LoadPeriod) -> Vec<Timed<'a>> {
    let within = |timed: &Timed<'_>| period.0 <= timed.record.sent && timed.record.done < period.1;
    let mut admitted = case.admitted(counter);
    admitted.retain(within);
    admitted.sort_by_key(|timed| timed.used);
    admitted
}

/// What was admitted by then and the store need not have been told.
pub(super) fn unsynced(case: &CheckCase<'_>, counter: usize, at: Nanos) -> u64 {
    let lately = |r: &&DecisionRecord| {
        let own = r.admitted && r.source == Source::Lenient;
        own && r.sent <= at && at.since(r.done) <= MAX_VISIBILITY_DELAY
    };
    case.records_of(counter).filter(lately).count() as u64
}

/// The overshoot, and `(N - 1) * min(L, what one node admits before it hears of the others)`.
pub(super) fn overshoot(case: &CheckCase<'_>, counter: usize) -> (u64, u64) {
    let limit = case.scenario.limit(counter);
    let others = case.scenario.nodes.saturating_sub(1) as u64;
    let (mut over, mut max) = (0, 0);
    for period in case.calm_periods() {
        let admitted = admitted(case, counter, period);
        over = over.max(peak_usage(&limit, &admitted).saturating_sub(limit.capacity()));
        max = max.max(max_per_node(case, &admitted));
    }
    (over, others * max.min(limit.capacity()))
}

/// The most that the true counter held.
fn peak_usage(limit: &Limit, admitted: &[Timed<'_>]) -> u64 {
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
fn spend(limit: &Limit, state: &mut CounterState, at: Nanos) -> u64 {
    let moment = limit.advance(state, at);
    limit.spend(state, moment, Cost::ONE);
    limit.used(state, moment)
}

/// The most that one node admitted before it had to hear of the others.
fn max_per_node(case: &CheckCase<'_>, admitted: &[Timed<'_>]) -> u64 {
    let mut lately = vec![VecDeque::new(); case.scenario.nodes];
    let each = admitted.iter().map(|timed| {
        let own: &mut VecDeque<Nanos> = &mut lately[timed.record.node];
        own.push_back(timed.used);
        while own
            .front()
            .is_some_and(|then| timed.used.since(*then) > MAX_VISIBILITY_DELAY)
        {
            own.pop_front();
        }
        own.len() as u64
    });
    each.max().unwrap_or(0)
}

/// An admission by a node that cannot have known what was admitted 100 ms ago.
fn unseen_admission(case: &CheckCase<'_>, counter: usize) -> Option<String> {
    let limit = case.scenario.limit(counter);
    let mut periods = case.calm_periods().into_iter();
    periods.find_map(|period| unseen_within(&limit, &admitted(case, counter, period)))
}

fn unseen_within(limit: &Limit, admitted: &[Timed<'_>]) -> Option<String> {
    let first = admitted.first()?;
    // What everybody must know of, and how far that goes.
    let (mut known, mut upto) = (limit.fresh(first.used), 0);
    for (i, timed) in admitted.iter().enumerate() {
        let seen = |then: &Timed<'_>| timed.used.since(then.used) > MAX_VISIBILITY_DELAY;
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
