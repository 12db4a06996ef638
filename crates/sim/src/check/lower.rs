//! Not too little: who asks gets what the limit has, and without the store what the share has.
//!
//! The oracle is the algorithm itself on the same requests, begun with everything used. By the time
//! of the decision, so that an oracle with less cannot have admitted more.

use std::borrow::Cow;

use tidegate_core::algorithms::{Division, Limit};
use tidegate_core::store::Source;
use tidegate_core::units::{Cost, Nanos};

use super::{Case, Finding, is_exact};
use crate::scenario::Fault;
use crate::world::Record;

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    for subject in case.subjects() {
        let mut found = |promise, detail: Option<String>| {
            let detail = detail.map(|detail| format!("subject {subject}: {detail}"));
            findings.extend(detail.map(|detail| Finding { promise, detail }));
        };
        for (from, to) in calm(case) {
            let detail = starved(case, subject, from, to);
            found("who asks gets 0.95 of the limit", detail);
        }
        found("nodes alone use 0.9 of their share", idle(case, subject));
    }
}

/// When nothing goes wrong and nothing is left of it.
fn calm(case: &Case<'_>) -> Vec<(Nanos, Nanos)> {
    let scenario = case.scenario;
    let window = scenario.spec.window.length();
    let start = Nanos::from_secs(1);
    let after = case.settled().plus(window).plus(window);
    match scenario.fault {
        Fault::None | Fault::Drift => vec![(start, scenario.ends)],
        Fault::Pause | Fault::Chaos | Fault::Gray => vec![(start, scenario.begins)],
        Fault::StepForward | Fault::StepBack => {
            // Nothing is stuck longer than a window.
            vec![(start, scenario.begins), (after, scenario.ends)]
        }
        _ => vec![(start, scenario.begins), (after, scenario.ends)],
    }
}

fn starved(case: &Case<'_>, subject: usize, from: Nanos, to: Nanos) -> Option<String> {
    let records = case.of(subject).filter(|r| from <= r.done && r.done < to);
    let mut records: Vec<&Record> = records.collect();
    records.sort_by_key(|record| record.at);
    if !records.iter().all(|record| is_exact(record)) {
        return None; // another promise says whether that may be
    }
    let limit = case.scenario.limit();
    let due = replay(&limit, &records);
    let admitted = records.iter().filter(|record| record.admitted).count() as u64;
    let enough = admitted * 100 + 100 >= due * 95;
    (!enough).then(|| format!("{admitted} of {due} from {from} to {to}"))
}

/// How many of these requests the limit admits, begun with all of it used.
fn replay(limit: &Limit, records: &[&Record]) -> u64 {
    let Some(first) = records.first() else {
        return 0;
    };
    let mut state = limit.holding(limit.capacity(), first.at);
    let mut admitted = 0;
    for record in records {
        let at = limit.advance(&mut state, record.at);
        if limit.judge(&state, at, Cost::ONE).allows() {
            limit.spend(&mut state, at, Cost::ONE);
            admitted += 1;
        }
    }
    admitted
}

/// In an outage, once what was seeded has drained.
fn idle(case: &Case<'_>, subject: usize) -> Option<String> {
    let scenario = case.scenario;
    if !scenario.fault.is_outage() || scenario.fault == Fault::Slow {
        return None;
    }
    let limit: Cow<'_, Limit> = Cow::Owned(scenario.limit());
    let nodes = u32::try_from(scenario.nodes).unwrap_or(u32::MAX);
    // The last in line has the least.
    let share = limit.share(Division {
        percent: 80,
        nodes,
        place: Some(nodes - 1),
    })?;
    let window = scenario.spec.window.length();
    let from = scenario.begins.plus(Nanos::from_millis(1_300)).plus(window);
    let (mut due, mut admitted) = (0, 0);
    for node in 0..scenario.nodes {
        let own = case.of(subject).filter(|r| r.node == node);
        let own: Vec<&Record> = own
            .filter(|r| from <= r.done && r.done < scenario.clears)
            .collect();
        due += replay(&share, &own);
        admitted += own
            .iter()
            .filter(|r| r.admitted && r.source == Source::Fallback)
            .count();
    }
    let slack = u64::from(nodes);
    let enough = (admitted as u64 + slack) * 10 >= due * 9;
    (!enough).then(|| format!("{admitted} of {due}"))
}
