//! Lenient counting: the overshoot, and how soon all nodes see an admission.
//!
//! Judged only in calm periods. Every admission is charged to one true counter at its own time; the units
//! beyond its capacity are the overshoot. A node that admits must know of all admissions that are older than
//! 100 ms.

use std::collections::VecDeque;

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::{Counting, Source};
use tidegate_core::units::{Cost, Nanos};

use super::times::Timed;
use super::{BrokenPromise, CheckCase};
use crate::history::DecisionRecord;
use crate::scenario::LoadPeriod;

/// Every node must know of a request within this time.
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
        let beyond = (over > bound).then(|| format!("{over}, the bound is {bound}"));
        found("the overshoot of lenient counting is bounded", beyond);
        found("every node sees a request within 100 ms", unseen_admission(case, counter));
    }
}

/// Admissions of a calm period, in the order of use.
fn admitted<'a>(case: &'a CheckCase<'_>, counter: usize, period: LoadPeriod) -> Vec<Timed<'a>> {
    let within = |timed: &Timed<'_>| period.0 <= timed.record.sent && timed.record.done < period.1;
    let mut admitted = case.admitted(counter);
    admitted.retain(within);
    admitted.sort_by_key(|timed| timed.used);
    admitted
}

/// Admissions up to `at` that may not be synced yet.
pub(super) fn unsynced(case: &CheckCase<'_>, counter: usize, at: Nanos) -> u64 {
    let lately = |r: &&DecisionRecord| {
        let own = r.admitted && r.source == Source::Lenient;
        own && r.sent <= at && at.since(r.done) <= MAX_VISIBILITY_DELAY
    };
    case.records_of(counter).filter(lately).count() as u64
}

/// The overshoot, and `(N - 1) * min(L, admissions of one node before it must see the others')`.
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

/// The maximum of the true counter.
fn peak_usage(limit: &Limit, admitted: &[Timed<'_>]) -> u64 {
    let Some(first) = admitted.first() else {
        return 0;
    };
    let mut state = limit.fresh(first.used);
    let used = admitted.iter().map(|timed| spend(limit, &mut state, timed.used));
    used.max().unwrap_or(0)
}

/// Charges one unit, whether it fits or not, and returns the units in use.
fn spend(limit: &Limit, state: &mut CounterState, at: Nanos) -> u64 {
    let moment = limit.advance(state, at);
    limit.spend(state, moment, Cost::ONE);
    limit.used(state, moment)
}

/// The maximum that one node admitted before it had to see the others' admissions.
fn max_per_node(case: &CheckCase<'_>, admitted: &[Timed<'_>]) -> u64 {
    let mut lately = vec![VecDeque::new(); case.scenario.nodes];
    let each = admitted.iter().map(|timed| {
        let own: &mut VecDeque<Nanos> = &mut lately[timed.record.node];
        own.push_back(timed.used);
        while own.front().is_some_and(|then| timed.used.since(*then) > MAX_VISIBILITY_DELAY) {
            own.pop_front();
        }
        own.len() as u64
    });
    each.max().unwrap_or(0)
}

/// An admission by a node that cannot have known the admissions of 100 ms ago.
fn unseen_admission(case: &CheckCase<'_>, counter: usize) -> Option<String> {
    let limit = case.scenario.limit(counter);
    let mut periods = case.calm_periods().into_iter();
    periods.find_map(|period| unseen_within(&limit, &admitted(case, counter, period)))
}

fn unseen_within(limit: &Limit, admitted: &[Timed<'_>]) -> Option<String> {
    let first = admitted.first()?;
    // The state that every node must know, and the index up to which it goes.
    let (mut known, mut upto) = (limit.fresh(first.used), 0);
    for (i, timed) in admitted.iter().enumerate() {
        let seen = |then: &Timed<'_>| timed.used.since(then.used) > MAX_VISIBILITY_DELAY;
        while seen(&admitted[upto]) {
            spend(limit, &mut known, admitted[upto].used);
            upto += 1;
        }
        // One in seven shows as much, in a seventh of the time.
        if timed.record.source != Source::Lenient || i % 7 != 0 {
            continue;
        }
        let mut view = known.clone();
        // Replies to the node's own calls may still be in flight.
        let own = admitted[upto..i].iter();
        let own = own.filter(|own| own.record.node == timed.record.node);
        for own in own.filter(|own| own.record.source == Source::Lenient) {
            spend(limit, &mut view, own.used);
        }
        let at = limit.advance(&mut view, timed.used);
        if !limit.judge(&view, at, Cost::ONE).allows() {
            let used = limit.used(&view, at);
            return Some(format!("{used} were known to be used at {:?}", timed.record));
        }
    }
    None
}
