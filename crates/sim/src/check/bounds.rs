//! Upper bounds: the admissions of the store, the local admissions of nodes, and both together.

use tidegate_core::algorithms::{Division, Limit, Spec};
use tidegate_core::invariants::{Admission, within_bound};
use tidegate_core::store::{Counting, OnStoreFailure, Source};
use tidegate_core::units::Nanos;

use super::{BrokenPromise, CheckCase};
use crate::history::DecisionRecord;
use crate::model::{OpKind, StoreOp};
use crate::scenario::{SimFault, compile};

/// The percentage of the limit that all nodes together admit without the store.
const SHARE: u32 = 80;

/// The share of a node without membership.
const ALONE: Division = Division { percent: SHARE, nodes: 8, rank: None };

pub(super) fn judge(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    if case.scenario.fault == SimFault::FailoverSkewed {
        return judge_stepped_clock(case, findings);
    }
    for counter in case.counters() {
        if case.scenario.counting(counter) == Counting::Lenient {
            continue; // lenient counting has a bound of its own
        }
        let exact = |r: &DecisionRecord| matches!(r.source, Source::Exact | Source::Lease);
        // A request may combine a local decision on one limit with a lease on another. The charge of the
        // lease is older than the request.
        let leased = case.scenario.counting(counter) == Counting::Leased;
        let local = |r: &DecisionRecord| {
            let older = leased && case.scenario.ceiling.is_some() && r.at < r.store_time_sent;
            r.source == Source::Fallback && !older
        };
        let both = |r: &DecisionRecord| exact(r) || r.is_local();
        let spec = case.scenario.spec(counter);
        let mut check = |promise, limit: &Limit, which: &dyn Fn(&DecisionRecord) -> bool, slack: u64| {
            let mut history = admissions(case, counter, which);
            for segment in segments(case, &mut history) {
                let Err(violation) = within_bound(limit, segment) else {
                    continue;
                };
                // Separate from the bound, because lost units are no part of any algorithm.
                if violation.admitted > violation.bound + slack {
                    let detail = format!("counter {counter}: {violation}, plus {slack} that may be lost");
                    findings.push(BrokenPromise { promise, detail });
                    break;
                }
            }
        };
        let limit = case.scenario.promised_limit(counter);
        let jitter = case.jitter(counter) + lease_clock_slack(case, counter);
        if case.scenario.shards > 1 && !case.is_hit(counter) && !case.is_charged_after_hit(counter) {
            let any = |_: &DecisionRecord| true;
            check("counters on healthy shards admit at most the limit", &limit, &any, jitter);
            continue;
        }
        if !case.scenario.fault.loses_counts() {
            check("the store admits at most the limit", &limit, &exact, jitter);
        }
        match case.scenario.on_failure {
            OnStoreFailure::Local if case.scenario.fault == SimFault::LateStore => {
                // No node knows the number of nodes or the store's time.
                let alone = limit.share(ALONE);
                for node in 0..case.scenario.nodes {
                    let own = |r: &DecisionRecord| local(r) && r.node == node;
                    let share = alone.as_ref().unwrap_or(&limit);
                    check("a node without membership admits at most an eighth", share, &own, jitter);
                }
            }
            OnStoreFailure::Local => {
                if case.scenario.shards == 1 || case.is_hit(counter) {
                    check("nodes without the store admit at most their shares", &shares_limit(spec), &local, jitter);
                }
                let (promise, lost) = ("at most the limit plus the shares is admitted", lost_units(case, counter));
                check(promise, &limit_plus_shares(spec), &both, lost + jitter);
            }
            OnStoreFailure::Allow => {
                for node in 0..case.scenario.nodes {
                    let own = |r: &DecisionRecord| local(r) && r.node == node;
                    check("a node without the store admits at most the limit", &limit, &own, 0);
                }
            }
            OnStoreFailure::Deny => {
                let any = case.records_of(counter).find(|r| local(r) && r.admitted);
                findings.extend(any.map(|record| BrokenPromise {
                    promise: "nothing passes without the store",
                    detail: format!("{record:?}"),
                }));
            }
        }
    }
}

/// For clock steps that are too small for a state to show. By true time, a step adds one window to the limit
/// and the shares.
fn judge_stepped_clock(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    if case.scenario.on_failure != OnStoreFailure::Local {
        return;
    }
    for counter in case.counters() {
        let spec = case.scenario.spec(counter);
        let max = scaled(spec, 280, |capacity| 2 * capacity + shares_of_all_nodes(capacity));
        let admitted = case.records_of(counter).filter(|r| r.admitted);
        let history: Vec<Admission> = admitted.map(|record| Admission { at: record.done, units: 1 }).collect();
        findings.extend(within_bound(&max, &history).err().map(|violation| BrokenPromise {
            promise: "a clock step adds at most one window",
            detail: format!("counter {counter}: {violation}"),
        }));
    }
}

/// The maximum that a counter admitted, in percent of its limit.
pub(super) fn admitted_percent(case: &CheckCase<'_>, counter: usize) -> u64 {
    let any = |record: &DecisionRecord| record.admitted;
    let mut history = admissions(case, counter, &any);
    let segments = segments(case, &mut history);
    let within = |percent: &u64| {
        let limit = scaled(case.scenario.spec(counter), *percent, |capacity| (capacity * percent).div_ceil(100));
        segments.iter().all(|segment| within_bound(&limit, segment).is_ok())
    };
    (100..=300).find(within).unwrap_or(u64::MAX)
}

pub(super) fn admissions(
    case: &CheckCase<'_>,
    counter: usize,
    which: &dyn Fn(&DecisionRecord) -> bool,
) -> Vec<Admission> {
    let timed = case.admitted(counter).into_iter();
    let which = timed.filter(|timed| which(timed.record));
    let admission = |timed: super::times::Timed<'_>| Admission { at: timed.used, units: 1 };
    which.map(admission).collect()
}

/// The slack of leases where the store's clock is unreliable. A lease held across a clock step was charged in
/// another time. A node that measures the lifetime of a lease by a clock that is a tenth slower uses it a
/// tenth too long.
fn lease_clock_slack(case: &CheckCase<'_>, counter: usize) -> u64 {
    let limit = case.scenario.limit(counter);
    let (Some(lease), fault) = (limit.lease_ttl(), case.scenario.fault) else {
        return 0;
    };
    let flows_in = |span: Nanos| {
        let units = u128::from(limit.count()) * u128::from(span.get());
        units.div_ceil(u128::from(limit.per().get())) as u64
    };
    if fault == SimFault::Drift {
        return if limit.algorithm().takes_burst() {
            flows_in(Nanos::new(lease.get() / 8)) + 1
        } else {
            flows_in(lease) * case.scenario.nodes as u64
        };
    }
    if !fault.steps_clock() {
        return 0;
    }
    let begins = case.scenario.fault_begins;
    let drawn = case.ops_of(counter).map(|entry| match entry.kind {
        OpKind::Drawn(units) if entry.sent <= begins && begins.since(entry.sent) <= lease => units,
        _ => 0,
    });
    drawn.sum()
}

/// Splits a history where the store's clock is set back; each segment is in the order of that clock.
pub(super) fn segments<'h>(case: &CheckCase<'_>, history: &'h mut [Admission]) -> Vec<&'h [Admission]> {
    if !case.scenario.fault.steps_clock() {
        history.sort_by_key(|admission| admission.at);
        return vec![history];
    }
    let same_segment = |a: &Admission, b: &Admission| {
        let gap = a.at.since(b.at).max(b.at.since(a.at));
        gap < Nanos::from_secs(600)
    };
    let mut segments = Vec::new();
    for segment in history.chunk_by_mut(same_segment) {
        segment.sort_by_key(|admission| admission.at);
        segments.push(&*segment);
    }
    segments
}

/// The limit that all shares together keep.
pub(super) fn shares_limit(spec: &Spec) -> Limit {
    scaled(spec, u64::from(SHARE), shares_of_all_nodes)
}

/// The limit plus the shares, for the beginning and the end of an outage.
pub(super) fn limit_plus_shares(spec: &Spec) -> Limit {
    let both = |capacity| capacity + shares_of_all_nodes(capacity);
    scaled(spec, 100 + u64::from(SHARE), both)
}

fn shares_of_all_nodes(capacity: u64) -> u64 {
    let division = Division { percent: SHARE, nodes: 1, rank: Some(0) };
    division.total(capacity)
}

/// The same limit at `percent` of the rate, with the capacity that `units` computes from its own.
pub(super) fn scaled(spec: &Spec, percent: u64, units: impl Fn(u64) -> u64) -> Limit {
    let mut scaled = spec.clone();
    scaled.lease_ttl = None;
    if spec.algorithm.takes_burst() {
        let window = Nanos::new(spec.window.length().get() * 100);
        scaled = Spec::new(spec.algorithm, spec.count * percent, window);
        scaled.burst = Some(units(spec.burst.unwrap_or(spec.count)));
    } else {
        scaled.count = units(spec.count);
    }
    compile(&scaled)
}

/// Units that the store lost and no node can restore: those admitted between a loss and its detection, and
/// those charged by a node that died with the store since any survivor last read the counter.
fn lost_units(case: &CheckCase<'_>, counter: usize) -> u64 {
    let history = case.history;
    if case.scenario.counts_ahead() {
        return unseen_charges(case, counter);
    }
    let exact = |r: &&DecisionRecord| r.admitted && r.source == Source::Exact;
    let mut lost = 0;
    for at in &history.losses {
        let undetected = |record: &&DecisionRecord| {
            let until = match case.scenario.fault {
                SimFault::Flush | SimFault::Chaos => Nanos::from_millis(230),
                _ => Nanos::from_millis(5),
            };
            record.done >= *at && record.done <= at.plus(until)
        };
        lost += case.records_of(counter).filter(exact).filter(undetected).count();
    }
    if case.scenario.fault == SimFault::DeathWithStore {
        for (at, dead) in &history.deaths {
            let survivors = case.records_of(counter).filter(|r| r.node != *dead && r.done <= *at);
            let seen = survivors.filter(|r| r.source == Source::Exact).map(|r| r.at).max();
            let own = case.records_of(counter).filter(|r| r.node == *dead && r.done <= *at);
            let unseen = own.filter(exact).filter(|r| seen.is_none_or(|seen| r.at > seen));
            lost += unseen.count();
        }
    }
    lost as u64
}

/// The maximum one-way time of a call within a zone.
const MAX_LOCAL_TRIP: Nanos = Nanos::from_millis(1);

/// The same for runs that count ahead, by the charges of the store: which units of a lease were used is
/// unknown.
pub(super) fn unseen_charges(case: &CheckCase<'_>, counter: usize) -> u64 {
    let units = |entry: &StoreOp| match entry.kind {
        OpKind::Charged(units) | OpKind::Drawn(units) if entry.at.is_some() => units,
        _ => 0,
    };
    let mut lost = 0;
    for at in &case.history.losses {
        let until = match case.scenario.fault {
            SimFault::Flush | SimFault::Chaos => Nanos::from_millis(230),
            _ => case.budget(),
        };
        let until = at.plus(until).plus(case.budget()).plus(case.max_round_trip());
        // Calls in flight reached the store after the loss.
        let arrives =
            |entry: &StoreOp| entry.sent.plus(case.scenario.extra_latency_of(entry.node)).plus(MAX_LOCAL_TRIP);
        let near = |entry: &&StoreOp| *at <= arrives(entry) && entry.sent <= until;
        lost += case.ops_of(counter).filter(near).map(units).sum::<u64>();
    }
    for (at, gone) in nodes_with_lost_state(case) {
        let before = |entry: &&StoreOp| entry.sent <= at;
        let seen = case.ops_of(counter).filter(before);
        let seen = seen.filter(|e| e.node != gone && e.replied_at.is_none_or(|replied_at| replied_at <= at));
        let seen = seen.filter_map(|entry| entry.at).max();
        let own = case.ops_of(counter).filter(before);
        let own = own.filter(|entry| entry.node == gone);
        let unseen = own.filter(|entry| seen.is_none_or(|seen| entry.at > Some(seen)));
        lost += unseen.map(units).sum::<u64>();
    }
    lost
}

/// Nodes whose state may be lost with them, and when: a node that died with the store; and after FLUSHALL,
/// which no connection shows, any node. A node that reaches a store which other nodes have filled again takes
/// its counts for complete.
fn nodes_with_lost_state(case: &CheckCase<'_>) -> Vec<(Nanos, usize)> {
    let (history, nodes) = (case.history, case.scenario.nodes);
    match case.scenario.fault {
        SimFault::DeathWithStore => history.deaths.clone(),
        SimFault::Flush => {
            let losses = history.losses.iter();
            let each = losses.flat_map(|at| (0..nodes).map(|node| (*at, node)));
            each.collect()
        }
        _ => Vec::new(),
    }
}
