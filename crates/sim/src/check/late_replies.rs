//! Admissions while a healthy store replies late: bounds from both sides.

use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::invariants::within_bound;
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use super::bounds::{admissions, limit_plus_shares, scaled, segments};
use super::{BrokenPromise, CheckCase, under_admission};
use crate::history::DecisionRecord;
use crate::scenario::{LOAD_BEGINS, Scenario, SimFault};

pub(super) fn judge(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    if !case.scenario.fault.is_lateness() {
        return;
    }
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| BrokenPromise { promise, detail }));
    };
    for counter in case.counters() {
        found("late replies admit at most the limit plus the shares", over_admission(case, counter));
        found("late replies add at most 2% and a unit per node", over_admission_when_seen(case, counter));
    }
    found("late replies deny few requests", under_admitted(case));
}

/// The documented bound: in any window the limit plus the shares of all nodes.
fn over_admission(case: &CheckCase<'_>, counter: usize) -> Option<String> {
    let spec = case.scenario.spec(counter);
    exceeds(case, counter, &limit_plus_shares(spec))
}

/// Where every node has seen the counter under load and every reply arrives, the bound is 2% of the limit and
/// a unit per node. A fixed window that begins while the store stalls has been seen by no node.
fn over_admission_when_seen(case: &CheckCase<'_>, counter: usize) -> Option<String> {
    let scenario = case.scenario;
    let fixed = scenario.spec(counter).algorithm == Algorithm::FixedWindow;
    let is_seen = scenario.fault_begins > LOAD_BEGINS && !(fixed && scenario.fault == SimFault::Stalls);
    if !is_seen || scenario.fault == SimFault::LateAndLost {
        return None; // nodes that have seen nothing have the bound above
    }
    let more = |capacity: u64| (capacity * 102).div_ceil(100) + scenario.nodes as u64;
    exceeds(case, counter, &scaled(scenario.spec(counter), 102, more))
}

/// Whether more is admitted than `limit` plus the inflow while units wait.
fn exceeds(case: &CheckCase<'_>, counter: usize, limit: &Limit) -> Option<String> {
    let any = |record: &DecisionRecord| record.admitted;
    let mut history = admissions(case, counter, &any);
    let inflow = inflow(case, counter);
    let found = segments(case, &mut history).into_iter().find_map(|segment| {
        let violation = within_bound(limit, segment).err()?;
        (violation.admitted > violation.bound + inflow).then_some(violation)
    });
    found.map(|violation| format!("counter {counter}: {violation}, with an inflow of {inflow}"))
}

/// The units that the store drains while units wait: the inflow while a reply is late, for at most ten
/// budgets, and a twentieth of the limit while a credit lasts. At most the units that were admitted late in
/// one window. Zero for fixed windows: a unit that the store counts in another window is charged by force.
fn inflow(case: &CheckCase<'_>, counter: usize) -> u64 {
    let limit = case.scenario.limit(counter);
    if limit.algorithm() == Algorithm::FixedWindow {
        return 0;
    }
    let late = Nanos::new(11 * case.budget().get());
    let units = u128::from(limit.count()) * u128::from(late.get());
    let units = units.div_ceil(u128::from(limit.per().get()));
    let inflow = u64::try_from(units).unwrap_or(u64::MAX) + limit.capacity().div_ceil(20) + 1;
    inflow.min(admitted_late(case, counter, limit.full_window().plus(late)))
}

/// The maximum number of late admissions within any such span.
fn admitted_late(case: &CheckCase<'_>, counter: usize, span: Nanos) -> u64 {
    let late = case.records_of(counter);
    let late = late.filter(|record| record.admitted && record.source == Source::Late);
    let mut times: Vec<Nanos> = late.map(|record| record.at).collect();
    times.sort_unstable();
    let within = times.iter().enumerate().map(|(i, from)| {
        let to = from.plus(span);
        times.partition_point(|at| *at <= to) - i
    });
    within.max().unwrap_or(0) as u64
}

/// The shortfall against an exact limiter on the same requests, if it is too large.
fn under_admitted(case: &CheckCase<'_>) -> Option<String> {
    let scenario = case.scenario;
    let (from, to) = (scenario.fault_begins.max(Nanos::from_millis(1_000)), scenario.ends);
    let mut snapshots = case.history.snapshots.iter();
    let snapshot = snapshots.find(|snapshot| from <= snapshot.at)?;
    let records = case.history.records.iter();
    let mut records: Vec<&DecisionRecord> = records.filter(|r| snapshot.at <= r.sent && r.done < to).collect();
    records.sort_by_key(|record| record.at);
    let expected = under_admission::replay_all(case, snapshot, &records);
    let admitted = records.iter().filter(|record| record.admitted).count() as u64;
    let slack = scenario.counters() as u64 + scenario.nodes as u64;
    let enough = (admitted + slack) * 100 >= expected * min_percent(scenario);
    (!enough).then(|| format!("{admitted} of {expected} from {} to {to}", snapshot.at))
}

/// The required percentage of what an exact limiter admits, as `docs/consistency.md` states it.
fn min_percent(scenario: &Scenario) -> u64 {
    match (scenario.fault, scenario.late_per_mille) {
        (SimFault::LateReplies, ..=100) => 98,
        (SimFault::LateAndLost, ..=100) => 95,
        (SimFault::LateReplies, ..=500) | (SimFault::SlowNode, _) => 85,
        (SimFault::LateAndLost, ..=500) | (SimFault::Stalls, _) => 80,
        _ => 70,
    }
}
