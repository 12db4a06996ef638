//! Leases: units are charged before they are used, used in time, and returned only if unused and only once. A
//! node holds at most the inflow of one lease lifetime.
//!
//! The store's log has every lease and when its reply arrived. The history has the admissions. Each admission
//! by a lease is paid from the lease that expires first: in this order no admission stays unpaid that could
//! be paid.

use std::collections::BTreeSet;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Counting, Source};
use tidegate_core::units::Nanos;

use super::{BrokenPromise, CheckCase};
use crate::model::{OpKind, StoreOp};

const UNPAID: &str = "every unit was charged before it was used";
const LATE: &str = "a lease expires at its deadline, counted from the request";
const AFTER_EXPIRY: &str = "no unit is used after the end of its window or lease";
const RETURNED_TWICE: &str = "only unused units are returned, and once";
const HELD_TOO_MUCH: &str = "a node holds at most the inflow of one lease lifetime";
const NOT_RETURNED: &str = "a drained node has returned all leases";

pub(super) fn judge(case: &CheckCase<'_>, findings: &mut Vec<BrokenPromise>) {
    for counter in case.counters() {
        if case.scenario.counting(counter) != Counting::Leased {
            continue;
        }
        for node in 0..case.scenario.nodes {
            let violation = NodeLeases::of(case, counter, node).replay(&events(case, counter, node));
            findings.extend(violation.map(|(promise, detail)| {
                let detail = format!("counter {counter}, node {node}: {detail}");
                BrokenPromise { promise, detail }
            }));
        }
    }
}

/// The units that all nodes together had drawn and not used at each of these moments, summed up.
pub(super) fn outstanding_at(case: &CheckCase<'_>, counter: usize, moments: &[Nanos]) -> u64 {
    let of_node = |node| {
        let mut leases = NodeLeases::of(case, counter, node);
        let events = events(case, counter, node);
        let (mut upto, mut sum) = (0, 0);
        for moment in moments {
            let before = events.partition_point(|(at, _)| at < moment);
            leases.replay(&events[upto..before.max(upto)]);
            upto = before;
            sum += leases.unexpired_units(*moment);
        }
        sum
    };
    let in_transit = moments.iter().map(|moment| in_transit(case, counter, *moment));
    (0..case.scenario.nodes).map(of_node).sum::<u64>() + in_transit.sum::<u64>()
}

/// Units that the store had charged for leases whose replies had not arrived, and units whose return was in
/// flight.
fn in_transit(case: &CheckCase<'_>, counter: usize, moment: Nanos) -> u64 {
    let units = case.ops_of(counter).filter_map(|entry| {
        let leg = case.scenario.extra_latency_of(entry.node).plus(Nanos::from_millis(1));
        let (units, until) = match entry.kind {
            OpKind::Drawn(units) => (units, entry.replied_at?),
            OpKind::Returned(units, _) => (units, entry.sent.plus(leg)),
            OpKind::Charged(_) => return None,
        };
        (entry.sent <= moment && moment < until).then_some(units)
    });
    units.sum()
}

/// An event of a node's leases. The variants are in the order that matters within one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LeaseEvent {
    Died,
    Drawn(StoreOp),
    Returned(u64, Nanos),
    /// The store's true time, and the time of the charge as the node reports it.
    Used(Nanos, Nanos),
    Drained,
}

impl LeaseEvent {
    fn order(&self) -> u8 {
        match self {
            LeaseEvent::Died => 0,
            LeaseEvent::Drawn(_) => 1,
            LeaseEvent::Returned(..) => 2,
            LeaseEvent::Used(..) => 3,
            LeaseEvent::Drained => 4,
        }
    }
}

fn events(case: &CheckCase<'_>, counter: usize, node: usize) -> Vec<(Nanos, LeaseEvent)> {
    let of_node = case.ops_of(counter).filter(|entry| entry.node == node);
    let of_log = of_node.filter_map(|entry| match entry.kind {
        OpKind::Drawn(_) => Some((entry.replied_at?, LeaseEvent::Drawn(*entry))),
        OpKind::Returned(units, charged) => Some((entry.sent, LeaseEvent::Returned(units, charged))),
        OpKind::Charged(_) => None,
    });
    let leased = case.records_of(counter).filter(|r| r.admitted && r.source == Source::Lease);
    let uses = leased.filter(|r| r.node == node);
    let uses = uses.map(|r| {
        let (now, truth) = case.lease_taken_at(r);
        (now, LeaseEvent::Used(truth, r.at))
    });
    let deaths = case.history.deaths.iter().filter(|(_, dead)| *dead == node);
    let drained = case.history.drained.iter().filter(|(_, drained)| *drained == node);
    let mut events: Vec<(Nanos, LeaseEvent)> = of_log
        .chain(uses)
        .chain(deaths.map(|(at, _)| (*at, LeaseEvent::Died)))
        .chain(drained.map(|(at, _)| (*at, LeaseEvent::Drained)))
        .collect();
    events.sort_by_key(|(at, event)| (*at, event.order()));
    events
}

/// Units that were drawn together.
#[derive(Clone, Copy, Debug)]
struct NodeLease {
    /// The store's time of the charge.
    at: Nanos,
    /// The store's time until which they may be used.
    until: Nanos,
    /// When the node must have stopped using them.
    deadline: Nanos,
    remaining: u64,
}

/// The leases of a node on one counter.
struct NodeLeases<'a> {
    case: &'a CheckCase<'a>,
    limit: Limit,
    leases: Vec<NodeLease>,
    /// The store's times of charges for single requests: their refunds are logged, too, if their replies are
    /// late.
    charged: BTreeSet<Nanos>,
    /// When requests were sent and answered here.
    requests: Vec<(Nanos, Nanos)>,
}

type LeaseViolation = Option<(&'static str, String)>;

impl<'a> NodeLeases<'a> {
    fn of(case: &'a CheckCase<'a>, counter: usize, node: usize) -> Self {
        let here = case.records_of(counter).filter(|record| record.node == node);
        let charged = case.ops_of(counter).filter(|entry| {
            let charged = matches!(entry.kind, OpKind::Charged(_));
            charged && entry.node == node
        });
        NodeLeases {
            charged: charged.filter_map(|entry| entry.at).collect(),
            case,
            limit: case.scenario.limit(counter),
            leases: Vec::new(),
            requests: here.map(|record| (record.sent, record.done)).collect(),
        }
    }

    fn replay(&mut self, events: &[(Nanos, LeaseEvent)]) -> LeaseViolation {
        events.iter().find_map(|(now, event)| match *event {
            LeaseEvent::Died => {
                self.leases.clear();
                None
            }
            LeaseEvent::Drawn(entry) => self.on_drawn(&entry, *now),
            LeaseEvent::Returned(units, charged) => self.on_returned(units, charged, *now),
            LeaseEvent::Used(truth, charged) => self.on_used(*now, truth, charged),
            LeaseEvent::Drained => self.on_drained(*now),
        })
    }

    fn on_drawn(&mut self, entry: &StoreOp, now: Nanos) -> LeaseViolation {
        let (OpKind::Drawn(units), Some(at)) = (entry.kind, entry.at) else {
            return None;
        };
        // A lease that expired long ago is neither used nor held.
        let far = Nanos::from_secs(70);
        self.leases.retain(|lease| lease.deadline.plus(far) > now);
        let until = self.limit.lease_until(at);
        self.leases.push(NodeLease { at, until, deadline: entry.sent.plus(until.since(at)), remaining: units });
        let outstanding = self.unexpired_units(now);
        let max = self.max_units() + self.in_flight(entry.sent, now);
        // A node may not have used leases that arrived while it did not trust its store.
        let calm = now < self.case.scenario.fault_begins || entry.sent > self.case.recovered_at();
        (outstanding > max && calm).then(|| (HELD_TOO_MUCH, format!("{outstanding} at {now}, the maximum is {max}")))
    }

    /// Requests that had taken units from the node while a lease was drawn. Those that another limit then
    /// denied have returned their units.
    fn in_flight(&self, from: Nanos, to: Nanos) -> u64 {
        let first = self.requests.partition_point(|(_, done)| *done < from);
        let since = self.requests[first..].iter();
        let before = since.take_while(|(_, done)| done.since(to) <= self.case.budget());
        before.filter(|(sent, _)| *sent <= to).count() as u64
    }

    fn unexpired_units(&self, now: Nanos) -> u64 {
        let live = self.leases.iter().filter(|lease| lease.deadline > now);
        live.map(|lease| lease.remaining).sum()
    }

    /// The inflow of one lease lifetime.
    fn max_units(&self) -> u64 {
        let lease = self.limit.lease_ttl().unwrap_or(Nanos::ZERO);
        let units = u128::from(self.limit.count()) * u128::from(lease.get());
        let units = units / u128::from(self.limit.per().get());
        u64::try_from(units).unwrap_or(u64::MAX).max(1)
    }

    /// A refund of a charge for a single request is not a return of a lease.
    fn on_returned(&mut self, units: u64, charged: Nanos, now: Nanos) -> LeaseViolation {
        let lease = self.leases.iter_mut().find(|lease| lease.at == charged)?;
        if lease.remaining < units {
            let remaining = lease.remaining;
            if self.charged.contains(&charged) {
                return None; // a refund of a single charge that a paused node made at the same instant
            }
            return Some((RETURNED_TWICE, format!("{units} at {now} of {remaining}, drawn at {charged}")));
        }
        lease.remaining -= units;
        None
    }

    /// Paid from the lease that the node names, where it can only be one of this counter; else from the lease
    /// that expires first.
    fn on_used(&mut self, now: Nanos, truth: Nanos, charged: Nanos) -> LeaseViolation {
        let live = |lease: &NodeLease| lease.remaining > 0 && now <= lease.deadline;
        let leases = &self.leases;
        let named = leases.iter().position(|lease| lease.at == charged);
        let named = named.filter(|i| live(&leases[*i]));
        let first = || {
            let live = (0..leases.len()).filter(|i| live(&leases[*i]));
            live.min_by_key(|i| leases[*i].deadline)
        };
        let Some(lease) = named.or_else(first) else {
            return self.unpaid(now);
        };
        let lease = &mut self.leases[lease];
        lease.remaining -= 1;
        // With a clock that steps or drifts, the time of expiry is uncertain.
        let fault = self.case.scenario.fault;
        let by_the_clock = !fault.steps_clock() && fault != crate::scenario::SimFault::Drift;
        let over = truth > lease.until && by_the_clock;
        over.then(|| (AFTER_EXPIRY, format!("{lease:?} at {truth}")))
    }

    fn unpaid(&self, now: Nanos) -> LeaseViolation {
        let expired = self.leases.iter().filter(|lease| lease.remaining > 0);
        match expired.max_by_key(|lease| lease.deadline) {
            Some(lease) => Some((LATE, format!("at {now}: {lease:?}"))),
            None => Some((UNPAID, format!("at {now} no unit was left"))),
        }
    }

    fn on_drained(&self, now: Nanos) -> LeaseViolation {
        let held = self.unexpired_units(now);
        (held > 0).then(|| (NOT_RETURNED, format!("{held} units at {now}")))
    }
}
