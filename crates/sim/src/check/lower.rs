//! Not too little: who asks gets what the limit has, and without the store what the share has.
//!
//! The oracle is the algorithm itself on the same requests, by the time of the decision, begun with what
//! the store's books hold; without the store, with everything used.

use tidegate_core::algorithms::{Algorithm, Division, Limit, PATIENCE, State};
use tidegate_core::store::{Counting, OnStoreFailure, Source};
use tidegate_core::units::{Cost, Nanos};

use super::{Case, Finding, is_exact, leases, lenient};
use crate::history::{Record, Snapshot};
use crate::scenario::Fault;

/// How long a refusal is held where units are drawn in advance, and a little more.
const HELD: Nanos = Nanos::from_millis(25);

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    let mut found = |promise, detail: Option<String>| {
        findings.extend(detail.map(|detail| Finding { promise, detail }));
    };
    for (from, to) in calm(case) {
        found("who asks gets what the limit has", starved(case, from, to));
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

/// From the first look at the store's books on, so that the oracle begins with what they hold.
fn starved(case: &Case<'_>, from: Nanos, to: Nanos) -> Option<String> {
    let mut snapshots = case.history.snapshots.iter();
    let books = snapshots.find(|books| from <= books.at && books.at < to)?;
    let records = case.history.records.iter();
    let mut records: Vec<&Record> = records
        .filter(|r| books.at <= r.sent && r.done < to)
        .collect();
    records.sort_by_key(|record| asked(record));
    if !records.iter().all(|record| is_exact(record)) {
        return None; // another promise says whether that may be
    }
    let due = replay_all(case, books, &records);
    let admitted = records.iter().filter(|record| record.admitted).count() as u64;
    let counters = case.scenario.counters() as u64;
    let held = unused(case, books.at, to) + untold(case, books.at) + asked_for(case);
    // However much lies elsewhere, it is not all.
    let slack = counters + held.min(due / 4) + in_flight(case, books);
    let enough = (admitted + slack) * 100 >= due * least(case);
    (!enough).then(|| format!("{admitted} of {due} from {} to {to}", books.at))
}

/// Admissions in flight while the books were read. These hold some of them, and neither side counts the others.
fn in_flight(case: &Case<'_>, books: &Snapshot) -> u64 {
    let records = case.history.records.iter();
    let in_flight = records.filter(|r| r.admitted && r.sent < books.at && books.at < r.done);
    in_flight.count() as u64
}

/// How many hundredths of what the oracle admits.
fn least(case: &Case<'_>) -> u64 {
    let far = case.trip() > Nanos::ZERO;
    let leased = |i| case.scenario.counting(i) == Counting::Leased;
    match (&case.scenario.ceiling, case.scenario.counts_ahead()) {
        (_, false) => 99,
        // Two limits can fall out of step: which of the subjects a ceiling admits first decides how much
        // of their own limits is left to fill it later. The oracle is one such order, not the best.
        (Some(_), true) => 85,
        // What was drawn for a surge that has passed by is of no use to the next, elsewhere: neither what
        // ends before it is heard of, nor what comes back to a bucket that would have refilled meanwhile.
        // Under steady load it must be 0.98: see `tests/ahead.rs`.
        (None, true) if far => 70,
        (None, true) if case.counters().any(leased) => 85,
        (None, true) => 92,
    }
}

/// What flows in while far nodes hear that there is nothing, and ask again.
fn asked_for(case: &Case<'_>) -> u64 {
    let of = |counter| {
        let limit = case.scenario.limit(counter);
        let span = 2 * u128::from(case.trip().get());
        let units = u128::from(limit.count()) * span / u128::from(limit.per().get());
        u64::try_from(units).unwrap_or(u64::MAX)
    };
    case.counters().map(of).sum()
}

/// What nodes admitted by their own counts, and the books do not hold yet.
fn untold(case: &Case<'_>, at: Nanos) -> u64 {
    let lenient = |i: &usize| case.scenario.counting(*i) == Counting::Lenient;
    let of = |counter| lenient::untold(case, counter, at);
    case.counters().filter(lenient).map(of).sum()
}

/// What nodes had drawn in advance and not used: at the end, and at the end of every window, after which it
/// is of no use. That there is not too much of it, other promises say.
fn unused(case: &Case<'_>, from: Nanos, to: Nanos) -> u64 {
    let leased = |i: &usize| case.scenario.counting(*i) == Counting::Leased;
    let of = |counter| {
        let mut moments = edges(case, counter, from, to);
        moments.push(to);
        leases::in_hands(case, counter, &moments)
    };
    case.counters().filter(leased).map(of).sum()
}

/// When windows end, so much earlier as a refusal is held.
fn edges(case: &Case<'_>, counter: usize, from: Nanos, to: Nanos) -> Vec<Nanos> {
    let limit = case.scenario.limit(counter);
    let fixed = limit.algorithm() == Algorithm::FixedWindow;
    let books = case.history.snapshots.iter();
    let within = books.filter(|books| fixed && from <= books.at && books.at < to);
    let edge = |books: &Snapshot| {
        let (_, end) = limit.window_at(books.truth)?;
        let ends = books.at.plus(end.since(books.truth));
        (ends < to).then(|| ends.since(HELD))
    };
    let mut edges: Vec<Nanos> = within.filter_map(edge).collect();
    edges.dedup_by_key(|edge| edge.millis_up() / 100);
    edges
}

/// When a request was judged, by the store's clock.
fn asked(record: &Record) -> Nanos {
    match record.source {
        Source::Lease | Source::Lenient => record.began,
        _ => record.at,
    }
}

/// How many of these requests all their limits admit, begun with what the books hold.
pub(super) fn replay_all(case: &Case<'_>, books: &Snapshot, records: &[&Record]) -> u64 {
    let limits: Vec<Limit> = case
        .counters()
        .map(|counter| case.scenario.limit(counter))
        .collect();
    let held = limits.iter().zip(&books.used);
    let mut states: Vec<State> = held
        .map(|(limit, used)| limit.holding(*used, books.truth))
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
