//! What is admitted while a healthy store replies late: not too much, and not too little.

use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::invariants::within_bound;
use tidegate_core::store::Source;
use tidegate_core::units::Nanos;

use super::bounds::{admissions, parts, scaled, whole_and_share};
use super::{Case, Finding, lower};
use crate::history::Record;
use crate::scenario::{Fault, LOAD_BEGINS, Scenario};

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    if !case.scenario.fault.is_lateness() {
        return;
    }
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| Finding { promise, detail }));
    };
    for counter in case.counters() {
        found(
            "late nodes admit the limit and their parts",
            over(case, counter),
        );
        found(
            "late replies cost a unit of each node",
            hardly_over(case, counter),
        );
    }
    found("late replies deny hardly anybody", starved(case));
}

/// The bound of the documents: in any window the limit, and the parts of all nodes.
fn over(case: &Case<'_>, counter: usize) -> Option<String> {
    let spec = case.scenario.spec(counter);
    exceeds(case, counter, &whole_and_share(spec))
}

/// Where every node has seen the counter under load and every reply arrives, it is two hundredths and a unit of
/// each node. A fixed window that begins while the store stalls has been seen by nobody.
fn hardly_over(case: &Case<'_>, counter: usize) -> Option<String> {
    let scenario = case.scenario;
    let fixed = scenario.spec(counter).algorithm == Algorithm::FixedWindow;
    let is_seen = scenario.begins > LOAD_BEGINS && !(fixed && scenario.fault == Fault::Stalls);
    if !is_seen || scenario.fault == Fault::LateAndLost {
        return None; // the bound of nodes that have seen nothing is the one above
    }
    let more = |capacity: u64| (capacity * 102).div_ceil(100) + scenario.nodes as u64;
    exceeds(case, counter, &scaled(scenario.spec(counter), 102, more))
}

/// Whether more is admitted than `limit` has and what flows in while units wait.
fn exceeds(case: &Case<'_>, counter: usize, limit: &Limit) -> Option<String> {
    let any = |record: &Record| record.admitted;
    let mut history = admissions(case, counter, &any);
    let flows = flows_in(case, counter);
    let found = parts(case, &mut history).into_iter().find_map(|part| {
        let violation = within_bound(limit, part).err()?;
        (violation.admitted > violation.bound + flows).then_some(violation)
    });
    found.map(|violation| format!("counter {counter}: {violation}, {flows} flow in"))
}

/// What the store lets go of while units wait: what flows in while a reply is late, by ten budgets at most, and a
/// twentieth of the limit while a credit lasts. It is no more than was admitted late in one window, and nothing
/// where the window is fixed: a unit that the store counts in another window is charged by force.
fn flows_in(case: &Case<'_>, counter: usize) -> u64 {
    let limit = case.scenario.limit(counter);
    if limit.algorithm() == Algorithm::FixedWindow {
        return 0;
    }
    let late = Nanos::new(11 * case.budget().get());
    let units = u128::from(limit.count()) * u128::from(late.get());
    let units = units.div_ceil(u128::from(limit.per().get()));
    let flows = u64::try_from(units).unwrap_or(u64::MAX) + limit.capacity().div_ceil(20) + 1;
    flows.min(admitted_late(case, counter, limit.full_window().plus(late)))
}

/// How many were admitted late within any such span, at most.
fn admitted_late(case: &Case<'_>, counter: usize, span: Nanos) -> u64 {
    let late = case.of(counter);
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
fn starved(case: &Case<'_>) -> Option<String> {
    let scenario = case.scenario;
    let (from, to) = (
        scenario.begins.max(Nanos::from_millis(1_000)),
        scenario.ends,
    );
    let mut snapshots = case.history.snapshots.iter();
    let books = snapshots.find(|books| from <= books.at)?;
    let records = case.history.records.iter();
    let mut records: Vec<&Record> = records
        .filter(|r| books.at <= r.sent && r.done < to)
        .collect();
    records.sort_by_key(|record| record.at);
    let due = lower::replay_all(case, books, &records);
    let admitted = records.iter().filter(|record| record.admitted).count() as u64;
    let slack = scenario.counters() as u64 + scenario.nodes as u64;
    let enough = (admitted + slack) * 100 >= due * least(scenario);
    (!enough).then(|| format!("{admitted} of {due} from {} to {to}", books.at))
}

/// How many hundredths of what an exact limiter admits, as `docs/consistency.md` states them.
fn least(scenario: &Scenario) -> u64 {
    match (scenario.fault, scenario.late_per_mille) {
        (Fault::LateReplies, ..=100) => 98,
        (Fault::LateAndLost, ..=100) => 95,
        (Fault::LateReplies, ..=500) | (Fault::SlowNode, _) => 85,
        (Fault::LateAndLost, ..=500) | (Fault::Stalls, _) => 80,
        _ => 70,
    }
}
