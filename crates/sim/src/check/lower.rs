//! Not too little: who asks gets what the limit has, and without the store what the share has.
//!
//! The oracle is the algorithm itself on the same requests, begun with everything used. By the time
//! of the decision, so that an oracle with less cannot have admitted more.

use tidegate_core::algorithms::{Division, Limit, PATIENCE, State};
use tidegate_core::store::{Counting, OnStoreFailure, Source};
use tidegate_core::units::{Cost, Nanos};

use super::{Case, Finding, is_exact, lenient};
use crate::history::Record;
use crate::scenario::Fault;

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| Finding { promise, detail }));
    };
    for (from, to) in calm(case) {
        found("who asks gets 0.95 of the limit", starved(case, from, to));
    }
    for subject in 0..case.scenario.subjects.len() {
        found("nodes alone use 0.9 of their share", idle(case, subject));
    }
}

/// When nothing goes wrong and nothing is left of it.
fn calm(case: &Case<'_>) -> Vec<(Nanos, Nanos)> {
    let scenario = case.scenario;
    let window = scenario.spec.window.length();
    let start = Nanos::from_secs(1);
    let after = case.settled().plus(window).plus(window);
    let spans = match scenario.fault {
        Fault::None | Fault::Drift => vec![(start, scenario.ends)],
        Fault::Pause | Fault::Chaos | Fault::Gray => vec![(start, scenario.begins)],
        Fault::FailoverSkewed => {
            let later = after.plus(PATIENCE);
            vec![(start, scenario.begins), (later, scenario.ends)]
        }
        // Nothing is stuck longer than a window, not after a step of hours either.
        _ => vec![(start, scenario.begins), (after, scenario.ends)],
    };
    let [_] = scenario.bouts[..] else {
        return under_load(case, &spans);
    };
    spans
}

/// What of these spans is under load.
fn under_load(case: &Case<'_>, spans: &[(Nanos, Nanos)]) -> Vec<(Nanos, Nanos)> {
    let bouts = case.scenario.bouts.iter();
    let cut = bouts.flat_map(|bout| {
        let within = |span: &(Nanos, Nanos)| (span.0.max(bout.0), span.1.min(bout.1));
        spans.iter().map(within)
    });
    cut.filter(|(from, to)| from < to).collect()
}

fn starved(case: &Case<'_>, from: Nanos, to: Nanos) -> Option<String> {
    let records = case.history.records.iter();
    let mut records: Vec<&Record> = records.filter(|r| from <= r.done && r.done < to).collect();
    records.sort_by_key(|record| asked(record));
    if !records.iter().all(|record| is_exact(record)) {
        return None; // another promise says whether that may be
    }
    let due = replay_all(case, &records);
    let admitted = records.iter().filter(|record| record.admitted).count() as u64;
    let slack = case.scenario.counters() as u64 + owed(case);
    // Two limits can fall out of step: which of the subjects a ceiling admits first decides how much
    // of their own limits is left to fill it later. The oracle is one such order, not the best.
    let least = match (&case.scenario.ceiling, case.scenario.counts_ahead()) {
        (Some(_), false) => 85,
        // What is held of one limit lies idle while the other refuses.
        (Some(_), true) => 75,
        // At a few thousand requests in two seconds, what lies in hands at the end is a few hundredths.
        // Over ten seconds it must be 0.98: see `tests/leases.rs`.
        (None, _) => 95,
    };
    let enough = (admitted + slack) * 100 >= due * least;
    (!enough).then(|| format!("{admitted} of {due} from {from} to {to}"))
}

/// What was admitted beyond a limit that nodes count for themselves is owed, and missing afterwards.
fn owed(case: &Case<'_>) -> u64 {
    let lenient = |i: &usize| case.scenario.counting(*i) == Counting::Lenient;
    let counters = case.counters().filter(lenient);
    counters.map(|i| lenient::overshoot(case, i).0).sum()
}

/// When a request was judged, by the store's clock.
fn asked(record: &Record) -> Nanos {
    match record.source {
        Source::Lease | Source::Lenient => record.began,
        _ => record.at,
    }
}

/// How many of these requests all their limits admit, begun with everything used.
fn replay_all(case: &Case<'_>, records: &[&Record]) -> u64 {
    let Some(first) = records.first() else {
        return 0;
    };
    let limits: Vec<Limit> = case
        .counters()
        .map(|counter| case.scenario.limit(counter))
        .collect();
    let mut states: Vec<State> = limits
        .iter()
        .map(|limit| limit.holding(limit.capacity(), asked(first)))
        .collect();
    let ceiling = case.scenario.subjects.len();
    let mut admitted = 0;
    for record in records {
        let of = [record.subject, ceiling];
        let of: Vec<usize> = of.into_iter().filter(|i| *i < limits.len()).collect();
        let mut fits = true;
        for i in &of {
            let at = limits[*i].advance(&mut states[*i], asked(record));
            fits &= limits[*i].judge(&states[*i], at, Cost::ONE).allows();
        }
        if fits {
            admitted += 1;
            for i in &of {
                let at = limits[*i].advance(&mut states[*i], asked(record));
                limits[*i].spend(&mut states[*i], at, Cost::ONE);
            }
        }
    }
    admitted
}

/// How many of these requests the limit admits, begun with all of it used.
fn replay(limit: &Limit, records: &[&Record]) -> u64 {
    let Some(first) = records.first() else {
        return 0;
    };
    let mut state = limit.holding(limit.capacity(), asked(first));
    let mut admitted = 0;
    for record in records {
        let at = limit.advance(&mut state, asked(record));
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
    let simple = scenario.ceiling.is_none() && scenario.on_failure == OnStoreFailure::Local;
    if !scenario.fault.is_outage() || scenario.fault == Fault::Slow || !simple {
        return None;
    }
    let limit = scenario.limit(subject);
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
