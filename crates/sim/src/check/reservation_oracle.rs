//! The oracle of counters with reservations: the algorithms on every operation of the store, in its order,
//! and the open reservations.
//!
//! It knows the life of a reservation: it is settled once; an unsettled estimate is refunded at the latest by
//! the next reservation after its expiry; a later settlement is charged the used units, for as long again. It
//! reports the first operation at which the store decided or held anything else.

use std::collections::BTreeMap;

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::Settled;
use tidegate_core::units::{Cost, Nanos};

use super::CheckCase;
use crate::model::{CounterChange, ReservationEvent, ReservationEventKind};
use crate::scenario::ReservationWork;

/// A reservation of one counter.
struct OracleReservation {
    id: u128,
    estimate: u64,
    charged: Nanos,
    lasts: Nanos,
    /// Whether the estimate is refunded.
    returned: bool,
}

impl OracleReservation {
    fn expires_at(&self) -> Nanos {
        self.charged.plus(self.lasts)
    }

    fn forgotten_at(&self) -> Nanos {
        self.expires_at().plus(self.lasts)
    }
}

/// The required state of a counter.
struct OracleCounter {
    limit: Limit,
    state: CounterState,
    open: Vec<OracleReservation>,
}

impl OracleCounter {
    fn fresh(limit: Limit, now: Nanos) -> Self {
        OracleCounter { state: limit.fresh(now), limit, open: Vec::new() }
    }

    fn spend(&mut self, units: u64, now: Nanos) {
        if let Some(cost) = Cost::new(units) {
            let at = self.limit.advance(&mut self.state, now);
            self.limit.spend(&mut self.state, at, cost);
        }
    }

    fn refund(&mut self, units: u64, charged: Nanos, now: Nanos) {
        if let Some(cost) = Cost::new(units) {
            let at = self.limit.advance(&mut self.state, now);
            self.limit.refund(&mut self.state, at, charged, cost);
        }
    }

    fn used(&mut self, now: Nanos) -> u64 {
        let at = self.limit.advance(&mut self.state, now);
        self.limit.used(&self.state, at)
    }

    fn admits(&mut self, units: u64, now: Nanos) -> bool {
        let at = self.limit.advance(&mut self.state, now);
        Cost::new(units).is_none_or(|cost| self.limit.judge(&self.state, at, cost).allows())
    }

    /// Refunds every estimate that was not settled in time.
    fn return_expired(&mut self, now: Nanos) {
        let is_expired = |open: &&mut OracleReservation| !open.returned && open.expires_at() <= now;
        let mut returned = Vec::new();
        for open in self.open.iter_mut().filter(is_expired) {
            open.returned = true;
            returned.push((open.estimate, open.charged));
        }
        for (estimate, charged) in returned {
            self.refund(estimate, charged, now);
        }
    }

    /// Settles a reservation and returns the required result. A reservation that has expired by the date of
    /// its charge may still be open by the dates that its node gave it, if it has not been removed: `late`
    /// says that the store settled it so.
    fn settle(&mut self, id: u128, used: Option<u64>, late: bool, now: Nanos) -> Option<Settled> {
        let at = self.open.iter().position(|open| open.id == id)?;
        if used.is_some() && self.open[at].forgotten_at() <= now && !late {
            return None;
        }
        let (estimate, charged) = (self.open[at].estimate, self.open[at].charged);
        match (used, self.open[at].returned) {
            (None, true) => None,
            (None, false) => {
                self.open[at].returned = true;
                self.refund(estimate, charged, now);
                Some(Settled::Done)
            }
            (Some(used), false) => {
                self.open.remove(at);
                self.spend(used.saturating_sub(estimate), now);
                self.refund(estimate.saturating_sub(used), charged, now);
                Some(Settled::Done)
            }
            (Some(used), true) => {
                self.open.remove(at);
                self.spend(used, now);
                Some(Settled::Late)
            }
        }
    }
}

/// All counters, for as long as their required state is known.
struct Oracle<'a> {
    case: &'a CheckCase<'a>,
    estimates: ReservationWork,
    counters: BTreeMap<u128, OracleCounter>,
    /// Since when the state of the store is unknown.
    unknown: Option<Nanos>,
}

/// The first operation at which the store decided or held anything else than required.
pub(super) fn first_mismatch(case: &CheckCase<'_>, estimates: ReservationWork) -> Option<String> {
    let mut oracle = Oracle { case, estimates, counters: BTreeMap::new(), unknown: None };
    let mut newest = Nanos::ZERO;
    let mut losses = case.history.losses.iter().peekable();
    for event in &case.history.reservation_events {
        while let Some(lost) = losses.next_if(|lost| **lost <= event.now) {
            oracle.unknown = Some(*lost);
        }
        // Units that had drained before the clock was set back may have been forgotten or not.
        if event.kind == ReservationEventKind::Restored || event.at < newest {
            oracle.unknown = Some(event.now);
        }
        newest = event.at;
        oracle.resync_after_rest(event.now);
        if oracle.unknown.is_some() {
            continue;
        }
        let wrong = oracle.apply(event);
        if let Some(wrong) = wrong {
            return Some(format!("{wrong}: {event:?}"));
        }
    }
    None
}

impl Oracle<'_> {
    /// After a rest in which everything has drained, the state is known again: empty.
    fn resync_after_rest(&mut self, now: Nanos) {
        let Some(since) = self.unknown else {
            return;
        };
        let scenario = self.case.scenario;
        let calm = scenario.fault_ends.max(since);
        let mut periods = scenario.load_periods.iter();
        let rested = periods.any(|(from, _)| *from > calm && *from <= now);
        if rested && self.estimates.max_used_in_long_window.is_none() {
            (self.unknown, self.counters) = (None, BTreeMap::new());
        }
    }

    fn counter(&mut self, change: &CounterChange, now: Nanos) -> &mut OracleCounter {
        let case = self.case;
        self.counters.entry(change.counter).or_insert_with(|| {
            let mut known = case.history.counters.iter();
            let at = known.position(|bits| *bits == change.counter);
            OracleCounter::fresh(case.scenario.limit(at.unwrap_or(0)), now)
        })
    }

    fn apply(&mut self, event: &ReservationEvent) -> Option<String> {
        let now = event.at;
        match event.kind {
            ReservationEventKind::Reserved { id, lasts, admitted } => {
                let mut fits = true;
                for change in &event.changes {
                    let counter = self.counter(change, now);
                    counter.return_expired(now);
                    fits &= counter.admits(change.units, now);
                }
                if fits != admitted {
                    let expected = if fits { "admitted" } else { "denied" };
                    return Some(format!("must be {expected}"));
                }
                for change in event.changes.iter().filter(|_| fits) {
                    let counter = self.counter(change, now);
                    counter.spend(change.units, now);
                    counter.open.push(OracleReservation {
                        id,
                        estimate: change.units,
                        charged: now,
                        lasts,
                        returned: false,
                    });
                }
            }
            ReservationEventKind::Settled { id, used, too_late, settled } => {
                let mut all = None;
                for change in event.changes.iter().filter(|_| !too_late) {
                    let late = settled == Settled::Late;
                    let one = self.counter(change, now).settle(id, used, late, now);
                    all = merge_settled(all, one);
                }
                let same = match settled {
                    Settled::Done | Settled::Late => all == Some(settled),
                    Settled::Already | Settled::Lapsed => all.is_none(),
                };
                if !same {
                    return Some(format!("must be {all:?}"));
                }
            }
            ReservationEventKind::Charged { .. } => {
                for change in &event.changes {
                    self.counter(change, now).spend(change.units, now);
                }
            }
            ReservationEventKind::Returned(charged) => {
                for change in &event.changes {
                    let counter = self.counter(change, now);
                    counter.refund(change.units, charged, now);
                }
            }
            ReservationEventKind::Restored => {}
        }
        self.check_usage(event)
    }

    fn check_usage(&mut self, event: &ReservationEvent) -> Option<String> {
        for change in &event.changes {
            let used = self.counter(change, event.at).used(event.at);
            if used != change.after {
                return Some(format!("must hold {used}"));
            }
        }
        None
    }
}

/// The result for several counters: done if any of them was open.
fn merge_settled(one: Option<Settled>, other: Option<Settled>) -> Option<Settled> {
    match (one, other) {
        (Some(Settled::Done), _) | (_, Some(Settled::Done)) => Some(Settled::Done),
        (one, other) => one.or(other),
    }
}
