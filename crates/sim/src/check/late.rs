//! What is admitted while a healthy store replies late: not too much, and not too little.

use tidegate_core::invariants::within_bound;
use tidegate_core::units::Nanos;

use super::bounds::{admissions, parts, scaled, whole_and_share};
use super::{Case, Finding, lower};
use crate::history::Record;
use crate::scenario::{Fault, LOAD_BEGINS};

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
            "few late replies cost a unit of each node",
            hardly_over(case, counter),
        );
    }
    found("late replies deny hardly anybody", starved(case));
}

/// The bound of the documents: in any window the limit, and the parts of all nodes.
fn over(case: &Case<'_>, counter: usize) -> Option<String> {
    let spec = case.scenario.spec(counter);
    let any = |record: &Record| record.admitted;
    let mut history = admissions(case, counter, &any);
    let most = whole_and_share(spec);
    let flows = flows_in(case, counter);
    let found = parts(case, &mut history).into_iter().find_map(|part| {
        let violation = within_bound(&most, part).err()?;
        (violation.admitted > violation.bound + flows).then_some(violation)
    });
    found.map(|violation| format!("counter {counter}: {violation}, {flows} flow in"))
}

/// Where every node hears of the counter all the time, it is two hundredths and a unit of each node.
fn hardly_over(case: &Case<'_>, counter: usize) -> Option<String> {
    let scenario = case.scenario;
    if scenario.fault != Fault::LateReplies || scenario.late_per_mille > 100 {
        return None;
    }
    let seen = case.scenario.begins > LOAD_BEGINS;
    if !seen {
        return None; // counters that nobody has seen
    }
    let spec = scenario.spec(counter);
    let any = |record: &Record| record.admitted;
    let mut history = admissions(case, counter, &any);
    let more = |capacity: u64| (capacity * 102).div_ceil(100) + scenario.nodes as u64;
    let most = scaled(spec, 102, more);
    let flows = flows_in(case, counter);
    let found = parts(case, &mut history).into_iter().find_map(|part| {
        let violation = within_bound(&most, part).err()?;
        (violation.admitted > violation.bound + flows).then_some(violation)
    });
    found.map(|violation| format!("counter {counter}: {violation}, {flows} flow in"))
}

/// What the store lets go of while units wait: a twentieth of the limit while a credit lasts, and what flows in
/// while a reply is late, by ten budgets at most.
fn flows_in(case: &Case<'_>, counter: usize) -> u64 {
    let limit = case.scenario.limit(counter);
    let late = Nanos::new(11 * case.budget().get());
    let units = u128::from(limit.count()) * u128::from(late.get());
    let units = units.div_ceil(u128::from(limit.per().get()));
    u64::try_from(units).unwrap_or(u64::MAX) + limit.capacity().div_ceil(20) + 1
}

/// At most two hundredths fewer than an exact limiter admits of the same requests, where one reply in ten
/// is late.
fn starved(case: &Case<'_>) -> Option<String> {
    let scenario = case.scenario;
    if scenario.fault != Fault::LateReplies || scenario.late_per_mille > 100 {
        return None;
    }
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
    let enough = (admitted + slack) * 100 >= due * 98;
    (!enough).then(|| format!("{admitted} of {due} from {} to {to}", books.at))
}
