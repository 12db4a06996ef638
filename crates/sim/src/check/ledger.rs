//! The store's books against what was really admitted: nothing is forgiven, nothing charged twice.
//!
//! The ledger charges every admission, whoever made it, at its own time to one true counter. After a
//! recovery the store must know of all of it; and for a fixed window, where time changes nothing
//! within a window, of no more than that and what may have been charged without an answer.

use std::collections::BTreeSet;

use tidegate::resilience::Event;
use tidegate_core::algorithms::{Algorithm, Limit, State};
use tidegate_core::store::{Counting, OnStoreFailure, Source};
use tidegate_core::units::{Cost, Nanos};

use super::bounds::unseen;
use super::times::Timed;
use super::{Case, Finding};
use crate::history::{Record, Snapshot};
use crate::model::{Deed, GIVEN_UP};
use crate::scenario::Fault;

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    // Nodes that each admit the whole limit owe more than the store keeps of a debt.
    let allows = case.scenario.on_failure == OnStoreFailure::Allow;
    if case.scenario.fault.steps_clock() || case.scenario.fault == Fault::Chaos || allows {
        return;
    }
    for counter in case.counters() {
        let detail = Ledger::of(case, counter).first_fault();
        findings.extend(detail.map(|(promise, detail)| {
            let detail = format!("counter {counter} {detail}");
            Finding { promise, detail }
        }));
    }
}

/// Nodes that count for themselves tell the store within this.
const TOLD_WITHIN: Nanos = Nanos::from_millis(100);

/// Every admission of a counter, and the two true counters that follow from them.
struct Ledger<'a> {
    case: &'a Case<'a>,
    counter: usize,
    limit: Limit,
    /// Admissions in the order in which they were charged.
    admitted: Vec<Timed<'a>>,
    /// Charged when they were answered.
    due: TrueCounter,
    /// Charged when the store may have charged them, at the earliest.
    least: TrueCounter,
    jitter: u64,
}

/// A counter that is charged with every admission, at a time that the checker knows.
struct TrueCounter {
    limit: Limit,
    /// When each admission is charged and when it was answered, in the order of charges.
    charges: Vec<(Nanos, Nanos)>,
    /// Of these, so many were answered by the last time anybody looked; and what they make.
    known: usize,
    state: State,
}

impl TrueCounter {
    fn new(limit: &Limit, mut charges: Vec<(Nanos, Nanos)>) -> Self {
        charges.sort_unstable();
        let first = charges.first().map_or(Nanos::ZERO, |(charged, _)| *charged);
        TrueCounter {
            limit: limit.clone(),
            state: limit.fresh(first),
            charges,
            known: 0,
        }
    }

    /// What is used by all that was answered by then.
    fn used(&mut self, snapshot: &Snapshot) -> u64 {
        let answered = |charge: &&(Nanos, Nanos)| charge.1 <= snapshot.at;
        let spend = |limit: &Limit, state: &mut State, charged: Nanos| {
            let at = limit.advance(state, charged);
            limit.spend(state, at, Cost::ONE);
        };
        // Those in front of the first that is not answered yet stay so.
        while let Some((charged, _)) = self.charges.get(self.known).filter(answered) {
            spend(&self.limit, &mut self.state, *charged);
            self.known += 1;
        }
        let mut state = if self.known == 0 {
            self.limit.fresh(snapshot.truth)
        } else {
            self.state.clone()
        };
        // Nobody is answered more than this before being charged.
        let soon = snapshot.truth.plus(Nanos::from_secs(2));
        let rest = self.charges[self.known..].iter();
        for (charged, _) in rest.take_while(|charge| charge.0 <= soon).filter(answered) {
            spend(&self.limit, &mut state, *charged);
        }
        let at = self.limit.advance(&mut state, snapshot.truth);
        self.limit.used(&state, at)
    }
}

impl<'a> Ledger<'a> {
    fn of(case: &'a Case<'a>, counter: usize) -> Self {
        let limit = case.scenario.limit(counter);
        let mut admitted = case.admitted(counter);
        admitted.sort_by_key(|timed| timed.charged);
        let early = early(case, &limit);
        let paid = paid_by_late_charges(case, counter, &admitted);
        let times = |early: Nanos| {
            let times = admitted.iter().zip(&paid).map(|(timed, paid)| {
                let late = *paid || timed.record.source == Source::Late;
                let early = if late { early } else { Nanos::ZERO };
                // A charge pays for no admission of a later fixed window.
                let window = limit.window_at(timed.charged);
                let start = window.map_or(Nanos::ZERO, |(start, _)| start);
                (timed.charged.since(early).max(start), timed.record.done)
            });
            TrueCounter::new(&limit, times.collect())
        };
        Ledger {
            due: times(Nanos::ZERO),
            least: times(early),
            jitter: case.jitter(counter),
            case,
            counter,
            limit,
            admitted,
        }
    }

    fn first_fault(mut self) -> Option<(&'static str, String)> {
        let case = self.case;
        case.history.snapshots.iter().find_map(|snapshot| {
            let (promise, detail) = self.compare(snapshot)?;
            Some((promise, format!("at {}: {detail}", snapshot.at)))
        })
    }

    fn compare(&mut self, snapshot: &Snapshot) -> Option<(&'static str, String)> {
        let (case, counter) = (self.case, self.counter);
        let fault = case.scenario.fault;
        let calm_until = match fault {
            Fault::None | Fault::Drift => case.scenario.ends,
            _ => case.scenario.begins,
        };
        let calm = snapshot.at < calm_until || snapshot.at >= case.settled();
        if !calm || case.unsettled(snapshot.at) {
            return None;
        }
        let (due, booked) = (self.due.used(snapshot), snapshot.used[counter]);
        let least = self.least.used(snapshot);
        let limit = &self.limit;
        let forgiven = least.saturating_sub(booked);
        // Where acknowledgements are lost, debts are charged again on purpose; and who did not know
        // the store's time had windows of its own.
        let told = !matches!(fault, Fault::Gray | Fault::LateStore);
        let more = limit.algorithm() == Algorithm::FixedWindow && told && booked > due;
        if (forgiven == 0 && !more) || indebted(case, counter, limit, snapshot) {
            return None;
        }
        let forgotten = forgotten(case, counter, snapshot)
            + self.jitter
            + self.untold(snapshot.at)
            + self.outstanding(snapshot);
        if forgiven > forgotten + drained(case, counter, limit, snapshot) {
            let detail = format!("{booked} booked of {least}, {due} by the answers");
            return Some(("nothing is forgiven", detail));
        }
        let open = unanswered(case, counter, limit, snapshot)
            + self.jitter
            + given_back(case, counter, limit, snapshot)
            + self.held(snapshot)
            + self.told_late(snapshot)
            + self.kept(snapshot)
            + self.misdated(snapshot);
        (more && booked > due + open).then(|| {
            let detail = format!("{booked} booked of {due}, {open} unanswered");
            ("nothing is charged twice", detail)
        })
    }

    /// What was admitted late and whose request or reply is lost, until the connection is given up.
    fn outstanding(&self, snapshot: &Snapshot) -> u64 {
        let loses = [Fault::BlackHole, Fault::Gray, Fault::LateAndLost];
        if !loses.contains(&self.case.scenario.fault) {
            return 0;
        }
        let outstanding = self.admitted.iter().filter(|timed| {
            let record = timed.record;
            let given_up = record.sent.plus(GIVEN_UP).plus(Nanos::from_millis(100));
            record.source == Source::Late && record.done <= snapshot.at && snapshot.at < given_up
        });
        outstanding.count() as u64
    }

    fn is_lenient(&self) -> bool {
        self.case.scenario.counting(self.counter) == Counting::Lenient
    }

    /// What nodes count for themselves and have not told the store by then.
    fn untold(&self, at: Nanos) -> u64 {
        self.untold_between(at, at)
    }

    /// The same, where it is not known when exactly that was.
    fn untold_between(&self, from: Nanos, to: Nanos) -> u64 {
        let lately = |record: &Record| {
            let told = record.done.plus(TOLD_WITHIN);
            record.source == Source::Lenient && record.sent <= to && from <= told
        };
        let lately = self.admitted.iter().filter(|timed| lately(timed.record));
        lately.count() as u64
    }

    /// What they admitted as the window before ended, and told the store in this one.
    fn told_late(&self, snapshot: &Snapshot) -> u64 {
        let Some((start, _)) = self.limit.window_at(snapshot.truth) else {
            return 0;
        };
        let past = snapshot.truth.since(start);
        let edge = snapshot.at.since(past);
        // By a clock that drifts by a tenth.
        let unsure = match self.case.scenario.fault {
            Fault::Drift => Nanos::new(past.get() / 8),
            _ => Nanos::ZERO,
        };
        self.untold_between(edge.since(unsure), edge.plus(unsure))
    }

    /// What far nodes admitted by themselves about when this window began: they know the store's time to
    /// half a round trip.
    fn misdated(&self, snapshot: &Snapshot) -> u64 {
        let Some((start, _)) = self.limit.window_at(snapshot.truth) else {
            return 0;
        };
        let about = |r: &Record| {
            let gap = r.truth.since(start).max(start.since(r.truth));
            r.is_local() && gap <= self.case.scenario.far(r.node)
        };
        let about = self.admitted.iter().filter(|timed| about(timed.record));
        about.count() as u64
    }

    /// What a node had told the store already when another limit refused the request.
    fn kept(&self, snapshot: &Snapshot) -> u64 {
        let case = self.case;
        if !self.is_lenient() {
            return 0;
        }
        let span = self.limit.per().plus(TOLD_WITHIN);
        let refused = |r: &&Record| {
            let recent = r.sent <= snapshot.at && snapshot.at.since(r.sent) <= span;
            recent && !r.admitted && r.done > r.sent
        };
        case.of(self.counter).filter(refused).count() as u64
    }

    /// What was drawn in advance in this window and is not known to be used.
    fn held(&self, snapshot: &Snapshot) -> u64 {
        let Some((start, _)) = self.limit.window_at(snapshot.truth) else {
            return 0;
        };
        // What the guard of the window before charged to this one too.
        let start = start.since(self.limit.guard());
        let case = self.case;
        let drawn = case.entries(self.counter).filter_map(|entry| {
            let Deed::Drawn(units) = entry.deed else {
                return None;
            };
            let within = entry
                .at
                .is_some_and(|at| start <= at && at <= snapshot.truth);
            within.then_some(units)
        });
        let used = self.admitted.iter().filter(|timed| {
            let answered = timed.record.done <= snapshot.at;
            answered && timed.record.source == Source::Lease && timed.charged >= start
        });
        drawn.sum::<u64>().saturating_sub(used.count() as u64)
    }
}

/// How much earlier than it is answered the store may have charged an admission whose reply is late. Its own
/// charge is in flight for a budget. A credit that pays for it was charged before its own late reply, and lasts.
fn early(case: &Case<'_>, limit: &Limit) -> Nanos {
    let window = limit.full_window();
    let credit = Nanos::from_millis(250).min(Nanos::new(window.get() / 20));
    lateness(case).plus(credit).min(window)
}

/// How long a reply may be outstanding that arrives at all.
fn lateness(case: &Case<'_>) -> Nanos {
    let budget = case.budget().get();
    match case.scenario.fault {
        fault if fault.is_lateness() => Nanos::new(11 * budget),
        // A store that is slow on both ways.
        Fault::Slow => Nanos::from_millis(251),
        _ => Nanos::new(2 * budget),
    }
}

/// Which admissions without the store an earlier charge of the same node may have paid for. Its reply was
/// outstanding, and its units were not needed by its own request, which was denied or paid by a credit. When the
/// reply arrives, they settle what is pending of the counter. Each charge pays once.
fn paid_by_late_charges(case: &Case<'_>, counter: usize, admitted: &[Timed<'_>]) -> Vec<bool> {
    let lateness = lateness(case);
    let charged: BTreeSet<(usize, Nanos)> = case
        .entries(counter)
        .filter(|entry| matches!(entry.deed, Deed::Charged(_)))
        .map(|entry| (entry.node, entry.sent))
        .collect();
    let outstanding = case.of(counter).filter(|r| r.is_local());
    let mut unused: Vec<&Record> = outstanding
        .filter(|r| charged.contains(&(r.node, r.sent)))
        .collect();
    unused.sort_by_key(|r| r.sent);
    let mut by_answer: Vec<usize> = (0..admitted.len()).collect();
    by_answer.sort_by_key(|i| admitted[*i].record.done);
    let mut paid = vec![false; admitted.len()];
    for i in by_answer {
        let record = admitted[i].record;
        if record.source != Source::Fallback {
            continue;
        }
        unused.retain(|r| record.done <= r.sent.plus(lateness));
        let pays = |r: &&Record| r.node == record.node && r.sent <= record.done;
        if let Some(place) = unused.iter().position(pays) {
            unused.remove(place);
            paid[i] = true;
        }
    }
    paid
}

/// Debt beyond twice the capacity is not kept by any algorithm, so what is owed then is forgiven.
fn indebted(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> bool {
    let recent = |s: &&Snapshot| {
        let span = snapshot.at.since(s.at);
        s.at <= snapshot.at && span <= limit.per().plus(limit.per())
    };
    let mut recent = case.history.snapshots.iter().filter(recent);
    recent.any(|s| s.used[counter] >= 2 * limit.capacity())
}

/// What a bucket lets go of twice: a node that has not seen the counter does not know that the
/// store's own level is still draining, and lets its debt drain beside it.
fn drained(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> u64 {
    let buckets = limit.algorithm().takes_burst() && snapshot.at > case.scenario.begins;
    let clear = case.scenario.fault.is_outage()
        || (case.scenario.fault.is_lateness() && case.scenario.fault != Fault::LateAndLost)
        || matches!(case.scenario.fault, Fault::Restart | Fault::Failover);
    let known = clear && case.scenario.spread(counter);
    match (buckets, known) {
        (false, _) => 0,
        // They differ in what they last saw.
        (true, true) => 2 * case.scenario.nodes as u64 + unheard(case, counter),
        // Cut off while others are not, a node cannot know how full the store stays.
        (true, false) if case.scenario.fault == Fault::Gray => limit.capacity(),
        (true, false) => limit.capacity() * 4 / 5 + 1,
    }
}

/// What nodes admitted by their own counts, or drew in advance, before the fault, and not all the others
/// know of: who has units in hand does not look at the store for up to the life of a lease.
fn unheard(case: &Case<'_>, counter: usize) -> u64 {
    let begins = case.scenario.begins;
    let since = |at: Nanos, span: Nanos| begins.since(span) <= at && at <= begins.plus(TOLD_WITHIN);
    let lenient = case.of(counter).filter(|r| {
        let own = r.admitted && r.source == Source::Lenient;
        own && since(r.done, TOLD_WITHIN.plus(TOLD_WITHIN))
    });
    let lease = case.scenario.limit(counter).lease();
    let drawn = case
        .entries(counter)
        .map(|entry| match (entry.deed, lease) {
            (Deed::Drawn(units), Some(lease)) if since(entry.sent, lease) => units,
            _ => 0,
        });
    lenient.count() as u64 + drawn.sum::<u64>()
}

/// What may be missing: what a dead node had not pushed, and what a loss hid.
fn forgotten(case: &Case<'_>, counter: usize, snapshot: &Snapshot) -> u64 {
    let fault = case.scenario.fault;
    if snapshot.at < case.scenario.begins {
        return 0;
    }
    let window = case.scenario.spec.window.length();
    let recent = |r: &&Record| snapshot.at.since(r.done) <= window.plus(window);
    let near = |r: &&Record| {
        let mut losses = case.history.losses.iter();
        losses.any(|at| r.done >= *at && r.done <= at.plus(Nanos::from_millis(230)))
    };
    let dead = |r: &&Record| case.history.deaths.iter().any(|(_, node)| *node == r.node);
    let admitted = case.of(counter).filter(|r| r.admitted).filter(recent);
    match fault {
        // And a unit or two of each node in the moment of the loss itself.
        Fault::Flush if case.scenario.counts_ahead() => {
            unseen(case, counter) + 2 * case.scenario.nodes as u64
        }
        Fault::Flush => admitted
            .filter(near)
            .filter(|r| r.source == Source::Exact)
            .count() as u64,
        Fault::DeathWithStore | Fault::NodeDeath => admitted.filter(dead).count() as u64,
        // Stopped for longer than the others wait, it is as good as dead.
        Fault::Pause => {
            let paused = |r: &&Record| case.history.pauses.iter().any(|(_, _, n)| *n == r.node);
            admitted.filter(paused).count() as u64
        }
        _ => 0,
    }
}

/// What was charged for requests that a wider limit refused, and is on its way back; or stays charged,
/// where something went wrong since.
fn given_back(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> u64 {
    if case.scenario.parts == 1 {
        return 0;
    }
    let refused = case.of(counter).filter(|r| !r.admitted);
    let wrong = |r: &&Record| {
        let since = case.scenario.begins.since(case.budget()) <= r.done && r.done <= case.settled();
        since && case.scenario.fault != Fault::None && r.is_local()
    };
    let recent = |r: &&Record| snapshot.at.since(r.sent) <= limit.per().plus(case.budget());
    let under_way =
        |r: &&Record| r.done.plus(case.budget()) >= snapshot.at && r.sent <= snapshot.at;
    let not_back = refused.filter(|r| recent(r) && (wrong(r) || under_way(r)));
    not_back.count() as u64
}

/// What may have been charged without an answer that counted: every decision that waited in vain,
/// and what is under way.
fn unanswered(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> u64 {
    let window = limit.per();
    let recent =
        |r: &&Record| snapshot.at.since(r.sent) <= window.plus(case.budget()).plus(case.budget());
    let before = |r: &&Record| r.sent <= snapshot.at;
    let late = |r: &&Record| r.is_local() && r.done > r.sent;
    let under_way = |r: &&Record| r.done > snapshot.at;
    let records = || case.of(counter).filter(before).filter(recent);
    let in_vain = records().filter(late).count();
    let crossing = crossing(case, counter, limit, snapshot);
    // A debt that met a store which had lost its counts is charged again.
    let mut lost = case.history.events.iter().rev();
    let lost = lost
        .find(|(_, _, event)| *event == Event::Lost)
        .map(|(at, _, _)| *at);
    let local = |r: &&Record| r.is_local() && r.admitted;
    let unsure = records()
        .filter(local)
        .filter(|r| lost.is_some_and(|at| r.done <= at))
        .count();
    (in_vain + crossing + unsure + records().filter(under_way).count()) as u64 + case.history.died
}

/// A push under way as a window ends, or as its guard begins, is charged to the next one.
fn crossing(case: &Case<'_>, counter: usize, limit: &Limit, snapshot: &Snapshot) -> usize {
    let Some((start, _)) = limit.window_at(snapshot.truth) else {
        return 0;
    };
    let began = snapshot.at.since(snapshot.truth.since(start));
    let began = began.since(limit.guard());
    let pushed = case.history.events.iter().any(|(at, _, event)| {
        let at_the_edge = *at >= began && at.since(began) <= case.budget().plus(limit.guard());
        at_the_edge && matches!(event, Event::Pushed { .. } | Event::LatePushed { .. })
    });
    let local = case.of(counter).filter(|r| r.is_local() && r.admitted);
    let before = local.filter(|r| r.at < start && start.since(r.at) <= limit.per());
    if pushed { before.count() } else { 0 }
}
