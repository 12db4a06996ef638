//! Compares the store's counters with the true admissions: no admission goes uncharged, nothing is charged
//! twice.
//!
//! The ledger charges every admission of every node, at its own time, to one true counter. After a recovery
//! the store's counter must include all of them. In a fixed window, time changes nothing, so there the
//! store's counter must hold no more than them plus the charges that may have been made without a reply.

use std::collections::BTreeSet;

use tidegate::resilience::StoreEvent;
use tidegate_core::algorithms::{Algorithm, CounterState, Limit};
use tidegate_core::store::{Counting, OnStoreFailure, Source};
use tidegate_core::units::{Cost, Nanos};

use super::bounds::unseen_charges;
use super::times::Timed;
use super::{BrokenPromise, CheckCase};
use crate::history::{DecisionRecord, StoreSnapshot};
use crate::model::{CONNECTION_TIMEOUT, OpKind};
use crate::scenario::SimFault;

pub(super) fn judge(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    // Nodes that each admit the whole limit have more debt than a counter can hold.
    let allows = case.scenario.on_failure == OnStoreFailure::Allow;
    if case.scenario.fault.steps_clock() || case.scenario.fault == SimFault::Chaos || allows {
        return;
    }
    for counter in case.counters() {
        let detail = AdmissionLedger::of(case, counter).first_mismatch();
        findings.extend(detail.map(|(promise, detail)| {
            let detail = format!("counter {counter} {detail}");
            BrokenPromise { promise, detail }
        }));
    }
}

/// Lenient nodes sync within this time.
const MAX_SYNC_DELAY: Nanos = Nanos::from_millis(100);

/// All admissions of a counter, and the two true counters that follow from them.
struct AdmissionLedger<'a> {
    case: &'a CheckCase<'a>,
    counter: usize,
    limit: Limit,
    /// Admissions in the order of their charges.
    admitted: Vec<Timed<'a>>,
    /// Every admission is charged at the time that its decision carries.
    by_reply: TrueCounter,
    /// Every admission is charged at the earliest time at which the store may have charged it.
    earliest: TrueCounter,
    jitter: u64,
}

/// A counter that is charged with every admission, at a time that the checker knows.
struct TrueCounter {
    limit: Limit,
    /// The time of the charge and of the reply of each admission, in the order of charges.
    charges: Vec<(Nanos, Nanos)>,
    /// The length of the prefix of `charges` that had replies at the last snapshot; `state` is its sum.
    known: usize,
    state: CounterState,
}

impl TrueCounter {
    fn new(limit: &Limit, mut charges: Vec<(Nanos, Nanos)>) -> Self {
        charges.sort_unstable();
        let first = charges.first().map_or(Nanos::ZERO, |(charged, _)| *charged);
        TrueCounter { limit: limit.clone(), state: limit.fresh(first), charges, known: 0 }
    }

    /// The units in use by all admissions that had a reply at the snapshot.
    fn used(&mut self, snapshot: &StoreSnapshot) -> u64 {
        let replied = |charge: &&(Nanos, Nanos)| charge.1 <= snapshot.at;
        let spend = |limit: &Limit, state: &mut CounterState, charged: Nanos| {
            let at = limit.advance(state, charged);
            limit.spend(state, at, Cost::ONE);
        };
        // A reply stays, so this prefix only grows.
        while let Some((charged, _)) = self.charges.get(self.known).filter(replied) {
            spend(&self.limit, &mut self.state, *charged);
            self.known += 1;
        }
        let mut state = if self.known == 0 { self.limit.fresh(snapshot.store_time) } else { self.state.clone() };
        // No charge is dated more than this after its reply.
        let soon = snapshot.store_time.plus(Nanos::from_secs(2));
        let rest = self.charges[self.known..].iter();
        for (charged, _) in rest.take_while(|charge| charge.0 <= soon).filter(replied) {
            spend(&self.limit, &mut state, *charged);
        }
        let at = self.limit.advance(&mut state, snapshot.store_time);
        self.limit.used(&state, at)
    }
}

impl<'a> AdmissionLedger<'a> {
    fn of(case: &'a CheckCase<'a>, counter: usize) -> Self {
        let limit = case.scenario.limit(counter);
        let mut admitted = case.admitted(counter);
        admitted.sort_by_key(|timed| timed.charged);
        let early = max_early_charge(case, &limit);
        let paid = paid_by_late_charges(case, counter, &admitted);
        let times = |early: Nanos| {
            let times = admitted.iter().zip(&paid).map(|(timed, paid)| {
                let late = *paid || timed.record.source == Source::Late;
                let early = if late { early } else { Nanos::ZERO };
                // A charge does not pay for an admission of a later fixed window.
                let window = limit.window_at(timed.charged);
                let start = window.map_or(Nanos::ZERO, |(start, _)| start);
                (timed.charged.since(early).max(start), timed.record.done)
            });
            TrueCounter::new(&limit, times.collect())
        };
        AdmissionLedger {
            by_reply: times(Nanos::ZERO),
            earliest: times(early),
            jitter: case.jitter(counter),
            case,
            counter,
            limit,
            admitted,
        }
    }

    fn first_mismatch(mut self) -> Option<(&'static str, String)> {
        let case = self.case;
        case.history.snapshots.iter().find_map(|snapshot| {
            let (promise, detail) = self.compare(snapshot)?;
            Some((promise, format!("at {}: {detail}", snapshot.at)))
        })
    }

    fn compare(&mut self, snapshot: &StoreSnapshot) -> Option<(&'static str, String)> {
        let (case, counter) = (self.case, self.counter);
        let fault = case.scenario.fault;
        let calm_until = match fault {
            SimFault::None | SimFault::Drift => case.scenario.ends,
            _ => case.scenario.fault_begins,
        };
        let calm = snapshot.at < calm_until || snapshot.at >= case.recovered_at();
        if !calm || case.is_recovering(snapshot.at) {
            return None;
        }
        let (by_reply, recorded) = (self.by_reply.used(snapshot), snapshot.used[counter]);
        let earliest = self.earliest.used(snapshot);
        let limit = &self.limit;
        let forgiven = earliest.saturating_sub(recorded);
        // Where acknowledgements are lost, write-backs are retried on purpose. A node that did not know the
        // store's time had windows of its own.
        let acknowledged = !matches!(fault, SimFault::Gray | SimFault::LateStore);
        let more = limit.algorithm() == Algorithm::FixedWindow && acknowledged && recorded > by_reply;
        if (forgiven == 0 && !more) || is_in_debt(case, counter, limit, snapshot) {
            return None;
        }
        let lost =
            lost_units(case, counter, snapshot) + self.jitter + self.unsynced(snapshot.at) + self.outstanding(snapshot);
        if forgiven > lost + double_drained(case, counter, limit, snapshot) {
            let detail = format!("{recorded} charged of {earliest}, {by_reply} by the replies");
            return Some(("no admission goes uncharged", detail));
        }
        let open = unconfirmed(case, counter, limit, snapshot)
            + self.jitter
            + pending_refunds(case, counter, limit, snapshot)
            + self.unused_leases(snapshot)
            + self.synced_late(snapshot)
            + self.synced_then_denied(snapshot)
            + self.misdated(snapshot);
        (more && recorded > by_reply + open).then(|| {
            let detail = format!("{recorded} charged of {by_reply}, {open} unconfirmed");
            ("nothing is charged twice", detail)
        })
    }

    /// Late admissions whose request or reply is lost, until their connection times out.
    fn outstanding(&self, snapshot: &StoreSnapshot) -> u64 {
        let loses = [SimFault::BlackHole, SimFault::Gray, SimFault::LateAndLost];
        if !loses.contains(&self.case.scenario.fault) {
            return 0;
        }
        let outstanding = self.admitted.iter().filter(|timed| {
            let record = timed.record;
            let given_up = record.sent.plus(CONNECTION_TIMEOUT).plus(Nanos::from_millis(100));
            record.source == Source::Late && record.done <= snapshot.at && snapshot.at < given_up
        });
        outstanding.count() as u64
    }

    fn is_lenient(&self) -> bool {
        self.case.scenario.counting(self.counter) == Counting::Lenient
    }

    /// Units of lenient counting that are not synced at `at`.
    fn unsynced(&self, at: Nanos) -> u64 {
        self.unsynced_between(at, at)
    }

    /// The same, for an instant that is only known to be between `from` and `to`.
    fn unsynced_between(&self, from: Nanos, to: Nanos) -> u64 {
        let lately = |record: &DecisionRecord| {
            let synced_by = record.done.plus(MAX_SYNC_DELAY);
            record.source == Source::Lenient && record.sent <= to && from <= synced_by
        };
        let lately = self.admitted.iter().filter(|timed| lately(timed.record));
        lately.count() as u64
    }

    /// Units of lenient counting that were admitted at the end of the previous window and synced in this one.
    fn synced_late(&self, snapshot: &StoreSnapshot) -> u64 {
        let Some((start, _)) = self.limit.window_at(snapshot.store_time) else {
            return 0;
        };
        let past = snapshot.store_time.since(start);
        let edge = snapshot.at.since(past);
        // The clock drifts by a tenth.
        let unsure = match self.case.scenario.fault {
            SimFault::Drift => Nanos::new(past.get() / 8),
            _ => Nanos::ZERO,
        };
        self.unsynced_between(edge.since(unsure), edge.plus(unsure))
    }

    /// Local admissions of far nodes near the start of this window. These nodes know the store's time to half
    /// a round trip.
    fn misdated(&self, snapshot: &StoreSnapshot) -> u64 {
        let Some((start, _)) = self.limit.window_at(snapshot.store_time) else {
            return 0;
        };
        let about = |r: &DecisionRecord| {
            let gap = r.store_time_done.since(start).max(start.since(r.store_time_done));
            r.is_local() && gap <= self.case.scenario.extra_latency_of(r.node)
        };
        let about = self.admitted.iter().filter(|timed| about(timed.record));
        about.count() as u64
    }

    /// Units that a node had synced already when another limit denied the request.
    fn synced_then_denied(&self, snapshot: &StoreSnapshot) -> u64 {
        let case = self.case;
        if !self.is_lenient() {
            return 0;
        }
        let span = self.limit.per().plus(MAX_SYNC_DELAY);
        let denied = |r: &&DecisionRecord| {
            let recent = r.sent <= snapshot.at && snapshot.at.since(r.sent) <= span;
            recent && !r.admitted && r.done > r.sent
        };
        case.records_of(self.counter).filter(denied).count() as u64
    }

    /// Units of leases drawn in this window that are not known to be used.
    fn unused_leases(&self, snapshot: &StoreSnapshot) -> u64 {
        let Some((start, _)) = self.limit.window_at(snapshot.store_time) else {
            return 0;
        };
        // The guard of the previous window charges to this one, too.
        let start = start.since(self.limit.guard());
        let case = self.case;
        let drawn = case.ops_of(self.counter).filter_map(|entry| {
            let OpKind::Drawn(units) = entry.kind else {
                return None;
            };
            let within = entry.at.is_some_and(|at| start <= at && at <= snapshot.store_time);
            within.then_some(units)
        });
        let used = self.admitted.iter().filter(|timed| {
            let replied = timed.record.done <= snapshot.at;
            replied && timed.record.source == Source::Lease && timed.charged >= start
        });
        drawn.sum::<u64>().saturating_sub(used.count() as u64)
    }
}

/// How much earlier than the decision the store may have charged an admission whose reply is late. The charge
/// that pays for it, its own or that of a credit, is outstanding for at most [`lateness`]. A credit then lasts
/// for 250 ms or a twentieth of the window.
fn max_early_charge(case: &CheckCase<'_>, limit: &Limit) -> Nanos {
    let window = limit.full_window();
    let credit = Nanos::from_millis(250).min(Nanos::new(window.get() / 20));
    lateness(case).plus(credit).min(window)
}

/// The maximum time from a call to its reply, for replies that arrive.
fn lateness(case: &CheckCase<'_>) -> Nanos {
    let budget = case.budget().get();
    match case.scenario.fault {
        fault if fault.is_lateness() => Nanos::new(11 * budget),
        // A store that is slow in both directions.
        SimFault::Slow => Nanos::from_millis(251),
        _ => Nanos::new(2 * budget),
    }
}

/// Which admissions without the store an earlier charge of the same node may have paid for. Its reply was
/// outstanding, and its own request did not need its units because it was denied or paid by a credit. When
/// the reply arrives, its units pay for pending units of the counter. Each charge pays once.
fn paid_by_late_charges(case: &CheckCase<'_>, counter: usize, admitted: &[Timed<'_>]) -> Vec<bool> {
    let lateness = lateness(case);
    let charged: BTreeSet<(usize, Nanos)> = case
        .ops_of(counter)
        .filter(|entry| matches!(entry.kind, OpKind::Charged(_)))
        .map(|entry| (entry.node, entry.sent))
        .collect();
    let outstanding = case.records_of(counter).filter(|r| r.is_local());
    let mut unused: Vec<&DecisionRecord> = outstanding.filter(|r| charged.contains(&(r.node, r.sent))).collect();
    unused.sort_by_key(|r| r.sent);
    let mut by_reply: Vec<usize> = (0..admitted.len()).collect();
    by_reply.sort_by_key(|i| admitted[*i].record.done);
    let mut paid = vec![false; admitted.len()];
    for i in by_reply {
        let record = admitted[i].record;
        if record.source != Source::Fallback {
            continue;
        }
        unused.retain(|r| record.done <= r.sent.plus(lateness));
        let pays = |r: &&DecisionRecord| r.node == record.node && r.sent <= record.done;
        if let Some(index) = unused.iter().position(pays) {
            unused.remove(index);
            paid[i] = true;
        }
    }
    paid
}

/// No algorithm keeps debt beyond twice the capacity, so pending units beyond it are forgiven.
fn is_in_debt(case: &CheckCase<'_>, counter: usize, limit: &Limit, snapshot: &StoreSnapshot) -> bool {
    let recent = |s: &&StoreSnapshot| {
        let span = snapshot.at.since(s.at);
        s.at <= snapshot.at && span <= limit.per().plus(limit.per())
    };
    let mut recent = case.history.snapshots.iter().filter(recent);
    recent.any(|s| s.used[counter] >= 2 * limit.capacity())
}

/// Units that a bucket drains twice. A node that has not seen the counter does not know that the store's own
/// level is still draining, and drains its pending units in parallel.
fn double_drained(case: &CheckCase<'_>, counter: usize, limit: &Limit, snapshot: &StoreSnapshot) -> u64 {
    let buckets = limit.algorithm().takes_burst() && snapshot.at > case.scenario.fault_begins;
    let clear = case.scenario.fault.is_outage()
        || (case.scenario.fault.is_lateness() && case.scenario.fault != SimFault::LateAndLost)
        || matches!(case.scenario.fault, SimFault::Restart | SimFault::Failover);
    let known = clear && case.scenario.reaches_all_nodes(counter);
    match (buckets, known) {
        (false, _) => 0,
        // Nodes differ in the last state that they saw.
        (true, true) => 2 * case.scenario.nodes as u64 + unseen_admissions(case, counter),
        // A node that is cut off while others are not cannot know how full the store stays.
        (true, false) if case.scenario.fault == SimFault::Gray => limit.capacity(),
        (true, false) => limit.capacity() * 4 / 5 + 1,
    }
}

/// Units that nodes admitted by lenient counting or drew as leases before the fault, and that not all other
/// nodes know of. A node with a lease does not read the store for up to the lifetime of the lease.
fn unseen_admissions(case: &CheckCase<'_>, counter: usize) -> u64 {
    let begins = case.scenario.fault_begins;
    let since = |at: Nanos, span: Nanos| begins.since(span) <= at && at <= begins.plus(MAX_SYNC_DELAY);
    let lenient = case.records_of(counter).filter(|r| {
        let own = r.admitted && r.source == Source::Lenient;
        own && since(r.done, MAX_SYNC_DELAY.plus(MAX_SYNC_DELAY))
    });
    let lease = case.scenario.limit(counter).lease_ttl();
    let drawn = case.ops_of(counter).map(|entry| match (entry.kind, lease) {
        (OpKind::Drawn(units), Some(lease)) if since(entry.sent, lease) => units,
        _ => 0,
    });
    lenient.count() as u64 + drawn.sum::<u64>()
}

/// Units that may be missing: those that a dead node had not written back, and those that a loss hid.
fn lost_units(case: &CheckCase<'_>, counter: usize, snapshot: &StoreSnapshot) -> u64 {
    let fault = case.scenario.fault;
    if snapshot.at < case.scenario.fault_begins {
        return 0;
    }
    let window = case.scenario.spec.window.length();
    let recent = |r: &&DecisionRecord| snapshot.at.since(r.done) <= window.plus(window);
    let near = |r: &&DecisionRecord| {
        let mut losses = case.history.losses.iter();
        losses.any(|at| r.done >= *at && r.done <= at.plus(Nanos::from_millis(230)))
    };
    let dead = |r: &&DecisionRecord| case.history.deaths.iter().any(|(_, node)| *node == r.node);
    let admitted = case.records_of(counter).filter(|r| r.admitted).filter(recent);
    match fault {
        // Plus a unit or two per node at the instant of the loss.
        SimFault::Flush if case.scenario.counts_ahead() => {
            unseen_charges(case, counter) + 2 * case.scenario.nodes as u64
        }
        SimFault::Flush => admitted.filter(near).filter(|r| r.source == Source::Exact).count() as u64,
        SimFault::DeathWithStore | SimFault::NodeDeath => admitted.filter(dead).count() as u64,
        // A node paused for longer than the others wait counts as dead.
        SimFault::Pause => {
            let paused = |r: &&DecisionRecord| case.history.pauses.iter().any(|(_, _, n)| *n == r.node);
            admitted.filter(paused).count() as u64
        }
        _ => 0,
    }
}

/// Units charged for requests that a wider limit denied. Their refund is in flight; after a fault it may
/// never arrive.
fn pending_refunds(case: &CheckCase<'_>, counter: usize, limit: &Limit, snapshot: &StoreSnapshot) -> u64 {
    if case.scenario.shards == 1 {
        return 0;
    }
    let denied = case.records_of(counter).filter(|r| !r.admitted);
    let wrong = |r: &&DecisionRecord| {
        let since = case.scenario.fault_begins.since(case.budget()) <= r.done && r.done <= case.recovered_at();
        since && case.scenario.fault != SimFault::None && r.is_local()
    };
    let recent = |r: &&DecisionRecord| snapshot.at.since(r.sent) <= limit.per().plus(case.budget());
    let in_flight = |r: &&DecisionRecord| r.done.plus(case.budget()) >= snapshot.at && r.sent <= snapshot.at;
    let pending = denied.filter(|r| recent(r) && (wrong(r) || in_flight(r)));
    pending.count() as u64
}

/// Units that may have been charged without a reply that counted: every decision that waited in vain, and
/// everything in flight.
fn unconfirmed(case: &CheckCase<'_>, counter: usize, limit: &Limit, snapshot: &StoreSnapshot) -> u64 {
    let window = limit.per();
    let recent = |r: &&DecisionRecord| snapshot.at.since(r.sent) <= window.plus(case.budget()).plus(case.budget());
    let before = |r: &&DecisionRecord| r.sent <= snapshot.at;
    let late = |r: &&DecisionRecord| r.is_local() && r.done > r.sent;
    let in_flight = |r: &&DecisionRecord| r.done > snapshot.at;
    let records = || case.records_of(counter).filter(before).filter(recent);
    let in_vain = records().filter(late).count();
    let crossing_window = crossing_window(case, counter, limit, snapshot);
    // A write-back to a store that had lost its counts is charged again.
    let mut lost = case.history.events.iter().rev();
    let lost = lost.find(|(_, _, event)| *event == StoreEvent::CountsLost).map(|(at, _, _)| *at);
    let local = |r: &&DecisionRecord| r.is_local() && r.admitted;
    let unsure = records().filter(local).filter(|r| lost.is_some_and(|at| r.done <= at)).count();
    (in_vain + crossing_window + unsure + records().filter(in_flight).count()) as u64 + case.history.unanswered
}

/// A write-back in flight at the end of a window, or at the start of its guard, is charged to the next
/// window.
fn crossing_window(case: &CheckCase<'_>, counter: usize, limit: &Limit, snapshot: &StoreSnapshot) -> usize {
    let Some((start, _)) = limit.window_at(snapshot.store_time) else {
        return 0;
    };
    let began = snapshot.at.since(snapshot.store_time.since(start));
    let began = began.since(limit.guard());
    let pushed = case.history.events.iter().any(|(at, _, event)| {
        let at_the_edge = *at >= began && at.since(began) <= case.budget().plus(limit.guard());
        at_the_edge && matches!(event, StoreEvent::WrittenBack { .. } | StoreEvent::LateWrittenBack { .. })
    });
    let local = case.records_of(counter).filter(|r| r.is_local() && r.admitted);
    let before = local.filter(|r| r.at < start && start.since(r.at) <= limit.per());
    if pushed { before.count() } else { 0 }
}
