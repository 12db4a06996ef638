//! Not too much: what the store admitted, what nodes admitted by themselves, and both together.

use tidegate_core::algorithms::{Division, Limit, Spec};
use tidegate_core::invariants::{Admission, within_bound};
use tidegate_core::store::{Counting, OnStoreFailure, Source};
use tidegate_core::units::Nanos;

use super::{Case, Finding};
use crate::history::Record;
use crate::model::{Deed, Entry};
use crate::scenario::{Fault, compiled};

/// What nodes together admit without the store, in hundredths.
const SHARE: u32 = 80;

/// The share of a node that knows nobody.
const ALONE: Division = Division {
    percent: SHARE,
    nodes: 8,
    place: None,
};

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    if case.scenario.fault == Fault::FailoverSkewed {
        return stepped(case, findings);
    }
    for counter in case.counters() {
        if case.scenario.counting(counter) == Counting::Lenient {
            continue; // it has a bound of its own
        }
        let exact = |r: &Record| matches!(r.source, Source::Exact | Source::Lease);
        // Beside a limit that was decided without the store, another may have been decided by a lease:
        // its charge is older than the request.
        let leased = case.scenario.counting(counter) == Counting::Leased;
        let local = |r: &Record| {
            let older = leased && case.scenario.ceiling.is_some() && r.at < r.began;
            r.source == Source::Fallback && !older
        };
        let both = |r: &Record| exact(r) || r.is_local();
        let spec = case.scenario.spec(counter);
        let mut check = |promise, limit: &Limit, which: &dyn Fn(&Record) -> bool, more: u64| {
            let mut history = admissions(case, counter, which);
            for part in parts(case, &mut history) {
                let Err(violation) = within_bound(limit, part) else {
                    continue;
                };
                // Told apart from the bound, because what is lost is no part of any algorithm.
                if violation.admitted > violation.bound + more {
                    let detail = format!("counter {counter}: {violation}, {more} more if lost");
                    findings.push(Finding { promise, detail });
                    break;
                }
            }
        };
        let limit = case.scenario.promise(counter);
        let jitter = case.jitter(counter) + carried(case, counter);
        if case.scenario.parts > 1 && !case.hits(counter) && !case.behind_the_hit(counter) {
            let any = |_: &Record| true;
            check(
                "who is elsewhere is admitted the limit",
                &limit,
                &any,
                jitter,
            );
            continue;
        }
        if !case.scenario.fault.loses_counts() {
            check("the store admits its limit", &limit, &exact, jitter);
        }
        match case.scenario.on_failure {
            OnStoreFailure::Local if case.scenario.fault == Fault::LateStore => {
                // Nobody knows how many nodes there are, nor the store's time.
                let alone = limit.share(ALONE);
                for node in 0..case.scenario.nodes {
                    let own = |r: &Record| local(r) && r.node == node;
                    let share = alone.as_ref().unwrap_or(&limit);
                    check(
                        "a node that knows nobody admits an eighth",
                        share,
                        &own,
                        jitter,
                    );
                }
            }
            OnStoreFailure::Local => {
                if case.scenario.parts == 1 || case.hits(counter) {
                    check(
                        "nodes alone admit their share",
                        &share(spec),
                        &local,
                        jitter,
                    );
                }
                let (promise, lost) = ("the limit and the share is the most", lost(case, counter));
                check(promise, &whole_and_share(spec), &both, lost + jitter);
            }
            OnStoreFailure::Allow => {
                for node in 0..case.scenario.nodes {
                    let own = |r: &Record| local(r) && r.node == node;
                    check("a node alone admits the limit", &limit, &own, 0);
                }
            }
            OnStoreFailure::Deny => {
                let any = case.of(counter).find(|r| local(r) && r.admitted);
                findings.extend(any.map(|record| Finding {
                    promise: "nothing passes without the store",
                    detail: format!("{record:?}"),
                }));
            }
        }
    }
}

/// Where the clock itself jumps by less than its states can tell: by true time, one window more than
/// the limit and the share.
fn stepped(case: &Case<'_>, findings: &mut Vec<Finding>) {
    if case.scenario.on_failure != OnStoreFailure::Local {
        return;
    }
    for counter in case.counters() {
        let spec = case.scenario.spec(counter);
        let most = scaled(spec, 280, |capacity| 2 * capacity + of_all_nodes(capacity));
        let admitted = case.of(counter).filter(|r| r.admitted);
        let history: Vec<Admission> = admitted
            .map(|record| Admission {
                at: record.done,
                units: 1,
            })
            .collect();
        findings.extend(
            within_bound(&most, &history)
                .err()
                .map(|violation| Finding {
                    promise: "a jump of the clock is worth one window",
                    detail: format!("counter {counter}: {violation}"),
                }),
        );
    }
}

/// How much of its limit a counter admitted at most, in hundredths.
pub(super) fn factor(case: &Case<'_>, counter: usize) -> u64 {
    let any = |record: &Record| record.admitted;
    let mut history = admissions(case, counter, &any);
    let parts = parts(case, &mut history);
    let within = |percent: &u64| {
        let limit = scaled(case.scenario.spec(counter), *percent, |capacity| {
            (capacity * percent).div_ceil(100)
        });
        parts.iter().all(|part| within_bound(&limit, part).is_ok())
    };
    (100..=300).find(within).unwrap_or(u64::MAX)
}

pub(super) fn admissions(
    case: &Case<'_>,
    counter: usize,
    which: &dyn Fn(&Record) -> bool,
) -> Vec<Admission> {
    let timed = case.admitted(counter).into_iter();
    let which = timed.filter(|timed| which(timed.record));
    let admission = |timed: super::times::Timed<'_>| Admission {
        at: timed.used,
        units: 1,
    };
    which.map(admission).collect()
}

/// What units drawn in advance may add where the store's clock is not to be relied on: who holds them
/// when it jumps has been charged in another time, and who measures their life by a clock that runs a
/// tenth slower uses them a tenth too long.
fn carried(case: &Case<'_>, counter: usize) -> u64 {
    let limit = case.scenario.limit(counter);
    let (Some(lease), fault) = (limit.lease(), case.scenario.fault) else {
        return 0;
    };
    let flows_in = |span: Nanos| {
        let units = u128::from(limit.count()) * u128::from(span.get());
        units.div_ceil(u128::from(limit.per().get())) as u64
    };
    if fault == Fault::Drift {
        return match limit.algorithm().takes_burst() {
            true => flows_in(Nanos::new(lease.get() / 8)) + 1,
            false => flows_in(lease) * case.scenario.nodes as u64,
        };
    }
    if !fault.steps_clock() {
        return 0;
    }
    let begins = case.scenario.begins;
    let drawn = case.entries(counter).map(|entry| match entry.deed {
        Deed::Drawn(units) if entry.sent <= begins && begins.since(entry.sent) <= lease => units,
        _ => 0,
    });
    drawn.sum()
}

/// Histories end where the store's clock is set back, and are in its order.
pub(super) fn parts<'h>(case: &Case<'_>, history: &'h mut [Admission]) -> Vec<&'h [Admission]> {
    if !case.scenario.fault.steps_clock() {
        history.sort_by_key(|admission| admission.at);
        return vec![history];
    }
    let far = |a: &Admission, b: &Admission| {
        let gap = a.at.since(b.at).max(b.at.since(a.at));
        gap < Nanos::from_secs(600)
    };
    let mut parts = Vec::new();
    for part in history.chunk_by_mut(far) {
        part.sort_by_key(|admission| admission.at);
        parts.push(&*part);
    }
    parts
}

/// The limit that all shares together keep.
pub(super) fn share(spec: &Spec) -> Limit {
    scaled(spec, u64::from(SHARE), of_all_nodes)
}

/// The limit and the shares, where an outage begins or ends.
pub(super) fn whole_and_share(spec: &Spec) -> Limit {
    let both = |capacity| capacity + of_all_nodes(capacity);
    scaled(spec, 100 + u64::from(SHARE), both)
}

fn of_all_nodes(capacity: u64) -> u64 {
    let division = Division {
        percent: SHARE,
        nodes: 1,
        place: Some(0),
    };
    division.whole(capacity)
}

/// The same limit at so many hundredths of the rate, and holding `units` of its capacity.
pub(super) fn scaled(spec: &Spec, percent: u64, units: impl Fn(u64) -> u64) -> Limit {
    let mut scaled = spec.clone();
    scaled.leased = None;
    if spec.algorithm.takes_burst() {
        let window = Nanos::new(spec.window.length().get() * 100);
        scaled = Spec::new(spec.algorithm, spec.count * percent, window);
        scaled.burst = Some(units(spec.burst.unwrap_or(spec.count)));
    } else {
        scaled.count = units(spec.count);
    }
    compiled(&scaled)
}

/// What the store forgot and nobody can remember: what was admitted between a loss and its notice,
/// and what a node that died with it had charged since any survivor last looked.
fn lost(case: &Case<'_>, counter: usize) -> u64 {
    let history = case.history;
    if case.scenario.counts_ahead() {
        return unseen(case, counter);
    }
    let exact = |r: &&Record| r.admitted && r.source == Source::Exact;
    let mut lost = 0;
    for at in &history.losses {
        let noticed = |record: &&Record| {
            let until = match case.scenario.fault {
                Fault::Flush | Fault::Chaos => Nanos::from_millis(230),
                _ => Nanos::from_millis(5),
            };
            record.done >= *at && record.done <= at.plus(until)
        };
        lost += case.of(counter).filter(exact).filter(noticed).count();
    }
    if case.scenario.fault == Fault::DeathWithStore {
        for (at, dead) in &history.deaths {
            let survivors = case
                .of(counter)
                .filter(|r| r.node != *dead && r.done <= *at);
            let seen = survivors
                .filter(|r| r.source == Source::Exact)
                .map(|r| r.at)
                .max();
            let own = case
                .of(counter)
                .filter(|r| r.node == *dead && r.done <= *at);
            let unseen = own
                .filter(exact)
                .filter(|r| seen.is_none_or(|seen| r.at > seen));
            lost += unseen.count();
        }
    }
    lost as u64
}

/// A call is on its way for so long at most, next door.
const JUST_SENT: Nanos = Nanos::from_millis(1);

/// The same where units are drawn in advance, by what the store charged: which of them were used is
/// not to be told apart.
pub(super) fn unseen(case: &Case<'_>, counter: usize) -> u64 {
    let units = |entry: &Entry| match entry.deed {
        Deed::Charged(units) | Deed::Drawn(units) if entry.at.is_some() => units,
        _ => 0,
    };
    let mut lost = 0;
    for at in &case.history.losses {
        let until = match case.scenario.fault {
            Fault::Flush | Fault::Chaos => Nanos::from_millis(230),
            _ => case.budget(),
        };
        let until = at.plus(until).plus(case.budget()).plus(case.trip());
        // What was under way met the store that had lost them.
        let arrives = |entry: &Entry| {
            entry
                .sent
                .plus(case.scenario.far(entry.node))
                .plus(JUST_SENT)
        };
        let near = |entry: &&Entry| *at <= arrives(entry) && entry.sent <= until;
        lost += case.entries(counter).filter(near).map(units).sum::<u64>();
    }
    for (at, gone) in gone(case) {
        let before = |entry: &&Entry| entry.sent <= at;
        let seen = case.entries(counter).filter(before);
        let seen = seen.filter(|e| e.node != gone && e.heard.is_none_or(|heard| heard <= at));
        let seen = seen.filter_map(|entry| entry.at).max();
        let own = case.entries(counter).filter(before);
        let own = own.filter(|entry| entry.node == gone);
        let unseen = own.filter(|entry| seen.is_none_or(|seen| entry.at > Some(seen)));
        lost += unseen.map(units).sum::<u64>();
    }
    lost
}

/// Who may have known something that is lost with it, and when: who died with the store; and after
/// FLUSHALL, which no connection shows, anybody: who meets a store that others have filled again takes
/// what it says for what it had.
fn gone(case: &Case<'_>) -> Vec<(Nanos, usize)> {
    let (history, nodes) = (case.history, case.scenario.nodes);
    match case.scenario.fault {
        Fault::DeathWithStore => history.deaths.clone(),
        Fault::Flush => {
            let losses = history.losses.iter();
            let each = losses.flat_map(|at| (0..nodes).map(|node| (*at, node)));
            each.collect()
        }
        _ => Vec::new(),
    }
}
