//! Units drawn in advance: charged before they are used, used in time, given back only if unused and
//! only once, and never more of them in one hand than flow in during one life.
//!
//! The store's books say what each node was given and when it heard of it; the history says what it
//! admitted. Each admission by a lease is paid from the grant that ends first, which is the order that
//! leaves no admission unpaid that could be paid.

use std::collections::BTreeSet;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Counting, Source};
use tidegate_core::units::Nanos;

use super::{Case, Finding};
use crate::model::{Deed, Entry};

const UNPAID: &str = "every unit was charged before it was used";
const LATE: &str = "a lease ends at its deadline, counted from the question";
const AFTER_THE_END: &str = "no unit is used after the window or the life it was charged for";
const TWICE: &str = "only what was not used is given back, and once";
const HOARD: &str = "a node holds no more than flows in during one life";
const FORGOTTEN: &str = "who leaves in peace gives everything back";

pub(super) fn judge(case: &Case<'_>, findings: &mut Vec<Finding>) {
    for counter in case.counters() {
        if case.scenario.counting(counter) != Counting::Leased {
            continue;
        }
        for node in 0..case.scenario.nodes {
            let fault = Hand::of(case, counter, node).play(&events(case, counter, node));
            findings.extend(fault.map(|(promise, detail)| {
                let detail = format!("counter {counter}, node {node}: {detail}");
                Finding { promise, detail }
            }));
        }
    }
}

/// What all nodes together had drawn and not used at each of these moments, summed up.
pub(super) fn in_hands(case: &Case<'_>, counter: usize, moments: &[Nanos]) -> u64 {
    let of_node = |node| {
        let mut hand = Hand::of(case, counter, node);
        let events = events(case, counter, node);
        let (mut upto, mut sum) = (0, 0);
        for moment in moments {
            let before = events.partition_point(|(at, _)| at < moment);
            hand.play(&events[upto..before.max(upto)]);
            upto = before;
            sum += hand.live(*moment);
        }
        sum
    };
    let on_the_way = moments
        .iter()
        .map(|moment| on_the_way(case, counter, *moment));
    (0..case.scenario.nodes).map(of_node).sum::<u64>() + on_the_way.sum::<u64>()
}

/// What the store had charged in advance and nobody had heard of yet, and what was on its way back.
fn on_the_way(case: &Case<'_>, counter: usize, moment: Nanos) -> u64 {
    let units = case.entries(counter).filter_map(|entry| {
        let leg = case.scenario.far(entry.node).plus(Nanos::from_millis(1));
        let (units, until) = match entry.deed {
            Deed::Drawn(units) => (units, entry.heard?),
            Deed::Returned(units, _) => (units, entry.sent.plus(leg)),
            Deed::Charged(_) => return None,
        };
        (entry.sent <= moment && moment < until).then_some(units)
    });
    units.sum()
}

/// What happens to the units in a node's hand, in the order in which it matters at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Died,
    Heard(Entry),
    GaveBack(u64, Nanos),
    /// With the store's true time, and the time at which the node says that it was charged.
    Used(Nanos, Nanos),
    Left,
}

impl What {
    fn order(&self) -> u8 {
        match self {
            What::Died => 0,
            What::Heard(_) => 1,
            What::GaveBack(..) => 2,
            What::Used(..) => 3,
            What::Left => 4,
        }
    }
}

fn events(case: &Case<'_>, counter: usize, node: usize) -> Vec<(Nanos, What)> {
    let of_node = case.entries(counter).filter(|entry| entry.node == node);
    let of_books = of_node.filter_map(|entry| match entry.deed {
        Deed::Drawn(_) => Some((entry.heard?, What::Heard(*entry))),
        Deed::Returned(units, charged) => Some((entry.sent, What::GaveBack(units, charged))),
        Deed::Charged(_) => None,
    });
    let leased = case
        .of(counter)
        .filter(|r| r.admitted && r.source == Source::Lease);
    let uses = leased.filter(|r| r.node == node);
    let uses = uses.map(|r| {
        let (now, truth) = case.taken(r);
        (now, What::Used(truth, r.at))
    });
    let deaths = case.history.deaths.iter().filter(|(_, dead)| *dead == node);
    let left = case
        .history
        .drained
        .iter()
        .filter(|(_, left)| *left == node);
    let mut events: Vec<(Nanos, What)> = of_books
        .chain(uses)
        .chain(deaths.map(|(at, _)| (*at, What::Died)))
        .chain(left.map(|(at, _)| (*at, What::Left)))
        .collect();
    events.sort_by_key(|(at, what)| (*at, what.order()));
    events
}

/// Units that were drawn together.
#[derive(Clone, Copy, Debug)]
struct Grant {
    /// The store's time.
    at: Nanos,
    /// The store's time until which they may be used.
    until: Nanos,
    /// When the node must have stopped using them.
    deadline: Nanos,
    left: u64,
}

/// What a node holds of a counter.
struct Hand<'a> {
    case: &'a Case<'a>,
    limit: Limit,
    grants: Vec<Grant>,
    /// The store's times of charges for single requests: they are given back too, if their answers are
    /// late.
    charged: BTreeSet<Nanos>,
    /// When requests were asked and answered here.
    requests: Vec<(Nanos, Nanos)>,
}

type Fault = Option<(&'static str, String)>;

impl<'a> Hand<'a> {
    fn of(case: &'a Case<'a>, counter: usize, node: usize) -> Self {
        let here = case.of(counter).filter(|record| record.node == node);
        let charged = case.entries(counter).filter(|entry| {
            let charged = matches!(entry.deed, Deed::Charged(_));
            charged && entry.node == node
        });
        Hand {
            charged: charged.filter_map(|entry| entry.at).collect(),
            case,
            limit: case.scenario.limit(counter),
            grants: Vec::new(),
            requests: here.map(|record| (record.sent, record.done)).collect(),
        }
    }

    fn play(&mut self, events: &[(Nanos, What)]) -> Fault {
        events.iter().find_map(|(now, what)| match *what {
            What::Died => {
                self.grants.clear();
                None
            }
            What::Heard(entry) => self.heard(&entry, *now),
            What::GaveBack(units, charged) => self.gave_back(units, charged, *now),
            What::Used(truth, charged) => self.used(*now, truth, charged),
            What::Left => self.left(*now),
        })
    }

    fn heard(&mut self, entry: &Entry, now: Nanos) -> Fault {
        let (Deed::Drawn(units), Some(at)) = (entry.deed, entry.at) else {
            return None;
        };
        // What is long over can neither be used nor counts as held.
        let far = Nanos::from_secs(70);
        self.grants.retain(|grant| grant.deadline.plus(far) > now);
        let until = self.limit.lease_until(at);
        self.grants.push(Grant {
            at,
            until,
            deadline: entry.sent.plus(until.since(at)),
            left: units,
        });
        let held = self.live(now);
        let most = self.most() + self.under_way(entry.sent, now);
        // What a node heard while its store could not be believed, it may have left lying.
        let calm = now < self.case.scenario.begins || entry.sent > self.case.settled();
        (held > most && calm).then(|| (HOARD, format!("{held} at {now}, at most {most}")))
    }

    /// Requests whose units were in neither hand while more were asked for: those that another limit
    /// then refused have put them back.
    fn under_way(&self, from: Nanos, to: Nanos) -> u64 {
        let first = self.requests.partition_point(|(_, done)| *done < from);
        let since = self.requests[first..].iter();
        let before = since.take_while(|(_, done)| done.since(to) <= self.case.budget());
        before.filter(|(sent, _)| *sent <= to).count() as u64
    }

    fn live(&self, now: Nanos) -> u64 {
        let live = self.grants.iter().filter(|grant| grant.deadline > now);
        live.map(|grant| grant.left).sum()
    }

    /// What flows in during one life.
    fn most(&self) -> u64 {
        let lease = self.limit.lease().unwrap_or(Nanos::ZERO);
        let units = u128::from(self.limit.count()) * u128::from(lease.get());
        let units = units / u128::from(self.limit.per().get());
        u64::try_from(units).unwrap_or(u64::MAX).max(1)
    }

    /// What was charged for a single request is not in this hand.
    fn gave_back(&mut self, units: u64, charged: Nanos, now: Nanos) -> Fault {
        let grant = self.grants.iter_mut().find(|grant| grant.at == charged)?;
        if grant.left < units {
            let left = grant.left;
            if self.charged.contains(&charged) {
                return None; // by a node that stood still, at the very same instant
            }
            return Some((
                TWICE,
                format!("{units} at {now} of {left}, drawn at {charged}"),
            ));
        }
        grant.left -= units;
        None
    }

    /// Paid from the grant that the node names, where it can only mean one of this counter; else from
    /// the one that ends first.
    fn used(&mut self, now: Nanos, truth: Nanos, charged: Nanos) -> Fault {
        let live = |grant: &Grant| grant.left > 0 && now <= grant.deadline;
        let grants = &self.grants;
        let named = grants.iter().position(|grant| grant.at == charged);
        let named = named.filter(|i| live(&grants[*i]));
        let first = || {
            let live = (0..grants.len()).filter(|i| live(&grants[*i]));
            live.min_by_key(|i| grants[*i].deadline)
        };
        let Some(grant) = named.or_else(first) else {
            return self.unpaid(now);
        };
        let grant = &mut self.grants[grant];
        grant.left -= 1;
        // By a clock that jumps or drifts nobody can tell when it is over.
        let fault = self.case.scenario.fault;
        let by_the_clock = !fault.steps_clock() && fault != crate::scenario::Fault::Drift;
        let over = truth > grant.until && by_the_clock;
        over.then(|| (AFTER_THE_END, format!("{grant:?} at {truth}")))
    }

    fn unpaid(&self, now: Nanos) -> Fault {
        let expired = self.grants.iter().filter(|grant| grant.left > 0);
        match expired.max_by_key(|grant| grant.deadline) {
            Some(grant) => Some((LATE, format!("at {now}: {grant:?}"))),
            None => Some((UNPAID, format!("at {now} there was nothing left"))),
        }
    }

    fn left(&self, now: Nanos) -> Fault {
        let kept = self.live(now);
        (kept > 0).then(|| (FORGOTTEN, format!("{kept} units at {now}")))
    }
}
