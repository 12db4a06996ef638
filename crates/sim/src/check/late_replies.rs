//! What is admitted while a healthy store replies late: not too much, and not too little.

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
        found(
            "late nodes admit the limit and their parts",
            over_admission(case, counter),
        );
        found(
            "late replies cost a unit of each node",
            over_admission_when_seen(case, counter),
        );
    }
    found("late replies deny hardly anybody", under_admitted(case));
}

/// The bound of the documents: in any window the limit, and the parts of all nodes.
fn over_admission(case: &CheckCase<'_>, counter: usize) -> Option<String> {
    let spec = case.scenario.spec(counter);
    exceeds(case, counter, &limit_plus_shares(spec))
}

/// Where every node has seen the counter under load and every reply arrives, it is two hundredths and a unit of
/// each node. A fixed window that begins while the store stalls has been seen by nobody.
fn over_admission_when_seen(case: &CheckCase<'_>, counter: usize) -> Option<String> {
    let scenario = case.scenario;
    let fixed = scenario.spec(counter).algorithm == Algorithm::FixedWindow;
    let is_seen =
        scenario.fault_begins > LOAD_BEGINS && !(fixed && scenario.fault == SimFault::Stalls);
    if !is_seen || scenario.fault == SimFault::LateAndLost {
        return None; // the bound of nodes that have seen nothing is the one above
    }
    let more = |capacity: u64| (capacity * 102).div_ceil(100) + scenario.nodes as u64;
    exceeds(case, counter, &scaled(scenario.spec(counter), 102, more))
}

/// Whether more is admitted than `limit` has and what flows in while units wait.
fn exceeds(case: &CheckCase<'_>, counter: usize, limit: &Limit) -> Option<String> {
    let any = |record: &DecisionRecord| record.admitted;
    let mut history = admissions(case, counter, &any);
    let inflow = inflow(case, counter);
    let found = segments(case, &mut history)
        .into_iter()
        .find_map(|segment| {
            let violation = within_bound(limit, segment).err()?;
            (violation.admitted > violation.bound + inflow).then_some(violation)
        });
    found.map(|violation| format!("counter {counter}: {violation}, {inflow} flow in"))
}

/// What the store lets go of while units wait: what flows in while a reply is late, by ten budgets at most, and a
/// twentieth of the limit while a credit lasts. It is no more than was admitted late in one window, and nothing
/// where the window is fixed: a unit that the store counts in another window is charged by force.
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

/// How many were admitted late within any such span, at most.
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

/// At most so many fewer are admitted than an exact limiter admits of the same requests.
fn under_admitted(case: &CheckCase<'_>) -> Option<String> {
    let scenario = case.scenario;
    let (from, to) = (
        scenario.fault_begins.max(Nanos::from_millis(1_000)),
        scenario.ends,
    );
    let mut snapshots = case.history.snapshots.iter();
    let snapshot = snapshots.find(|snapshot| from <= snapshot.at)?;
    let records = case.history.records.iter();
    let mut records: Vec<&DecisionRecord> = records
        .filter(|r| snapshot.at <= r.sent && r.done < to)
        .collect();
    records.sort_by_key(|record| record.at);
    let expected = under_admission::replay_all(case, snapshot, &records);
    let admitted = records.iter().filter(|record| record.admitted).count() as u64;
    let slack = scenario.counters() as u64 + scenario.nodes as u64;
    let enough = (admitted + slack) * 100 >= expected * min_percent(scenario);
    (!enough).then(|| format!("{admitted} of {expected} from {} to {to}", snapshot.at))
}

/// How many hundredths of what an exact limiter admits, as `docs/consistency.md` states them.
fn min_percent(scenario: &Scenario) -> u64 {
    match (scenario.fault, scenario.late_per_mille) {
        (SimFault::LateReplies, ..=100) => 98,
        (SimFault::LateAndLost, ..=100) => 95,
        (SimFault::LateReplies, ..=500) | (SimFault::SlowNode, _) => 85,
        (SimFault::LateAndLost, ..=500) | (SimFault::Stalls, _) => 80,
        _ => 70,
    }
}
