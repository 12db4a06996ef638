//! What a counter must hold that estimates are charged to: the algorithms on every step that the store took,
//! in its order, and beside them what is open.
//!
//! Knows how a reservation lives: it is settled once; an estimate that nobody settles is back by the next
//! reservation after its end; who settles later is charged what was used, for as long again. Says where the
//! store decided or held anything else.

use std::collections::BTreeMap;

use tidegate_core::algorithms::{Limit, State};
use tidegate_core::store::Settled;
use tidegate_core::units::{Cost, Nanos};

use super::Case;
use crate::model::{Posting, Step, Touched};
use crate::scenario::Estimates;

/// A reservation of one counter.
struct Open {
    id: u128,
    estimate: u64,
    charged: Nanos,
    lasts: Nanos,
    /// Whether the estimate has come back.
    back: bool,
}

impl Open {
    fn until(&self) -> Nanos {
        self.charged.plus(self.lasts)
    }

    fn forgotten(&self) -> Nanos {
        self.until().plus(self.lasts)
    }
}

/// A counter as it must be.
struct Counter {
    limit: Limit,
    state: State,
    open: Vec<Open>,
}

impl Counter {
    fn fresh(limit: Limit, now: Nanos) -> Self {
        Counter {
            state: limit.fresh(now),
            limit,
            open: Vec::new(),
        }
    }

    fn spend(&mut self, units: u64, now: Nanos) {
        if let Some(cost) = Cost::new(units) {
            let at = self.limit.advance(&mut self.state, now);
            self.limit.spend(&mut self.state, at, cost);
        }
    }

    fn give_back(&mut self, units: u64, charged: Nanos, now: Nanos) {
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

    /// Whatever nobody settled in time is back.
    fn bring_back(&mut self, now: Nanos) {
        let over = |open: &&mut Open| !open.back && open.until() <= now;
        let mut back = Vec::new();
        for open in self.open.iter_mut().filter(over) {
            open.back = true;
            back.push((open.estimate, open.charged));
        }
        for (estimate, charged) in back {
            self.give_back(estimate, charged, now);
        }
    }

    /// Settles one; what that is called. One whose time is over by the date of its charge may still be settled by the
    /// dates that its node gave it, if nobody has removed it: `late` says that it was.
    fn settle(&mut self, id: u128, used: Option<u64>, late: bool, now: Nanos) -> Option<Settled> {
        let at = self.open.iter().position(|open| open.id == id)?;
        if used.is_some() && self.open[at].forgotten() <= now && !late {
            return None;
        }
        let (estimate, charged) = (self.open[at].estimate, self.open[at].charged);
        match (used, self.open[at].back) {
            (None, true) => None,
            (None, false) => {
                self.open[at].back = true;
                self.give_back(estimate, charged, now);
                Some(Settled::Done)
            }
            (Some(used), false) => {
                self.open.remove(at);
                self.spend(used.saturating_sub(estimate), now);
                self.give_back(estimate.saturating_sub(used), charged, now);
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

/// All counters, for as long as it is known what they must hold.
struct Oracle<'a> {
    case: &'a Case<'a>,
    estimates: Estimates,
    counters: BTreeMap<u128, Counter>,
    /// Since when the store may hold anything.
    unknown: Option<Nanos>,
}

/// The first step at which the store did or held anything else than it must.
pub(super) fn astray(case: &Case<'_>, estimates: Estimates) -> Option<String> {
    let mut oracle = Oracle {
        case,
        estimates,
        counters: BTreeMap::new(),
        unknown: None,
    };
    let mut newest = Nanos::ZERO;
    let mut losses = case.history.losses.iter().peekable();
    for posting in &case.history.postings {
        while let Some(lost) = losses.next_if(|lost| **lost <= posting.now) {
            oracle.unknown = Some(*lost);
        }
        // What had drained before a clock was set back may have been forgotten or not.
        if posting.step == Step::Seeded || posting.at < newest {
            oracle.unknown = Some(posting.now);
        }
        newest = posting.at;
        oracle.look_around(posting.now);
        if oracle.unknown.is_some() {
            continue;
        }
        let wrong = oracle.follow(posting);
        if let Some(wrong) = wrong {
            return Some(format!("{wrong}: {posting:?}"));
        }
    }
    None
}

impl Oracle<'_> {
    /// After a rest in which all has drained, it is known again what there is: nothing.
    fn look_around(&mut self, now: Nanos) {
        let Some(since) = self.unknown else {
            return;
        };
        let scenario = self.case.scenario;
        let calm = scenario.clears.max(since);
        let mut bouts = scenario.bouts.iter();
        let rested = bouts.any(|(from, _)| *from > calm && *from <= now);
        if rested && self.estimates.lasting.is_none() {
            (self.unknown, self.counters) = (None, BTreeMap::new());
        }
    }

    fn counter(&mut self, touched: &Touched, now: Nanos) -> &mut Counter {
        let case = self.case;
        self.counters.entry(touched.counter).or_insert_with(|| {
            let mut known = case.history.counters.iter();
            let at = known.position(|bits| *bits == touched.counter);
            Counter::fresh(case.scenario.limit(at.unwrap_or(0)), now)
        })
    }

    fn follow(&mut self, posting: &Posting) -> Option<String> {
        let now = posting.at;
        match posting.step {
            Step::Reserved {
                id,
                lasts,
                admitted,
            } => {
                let mut fits = true;
                for touched in &posting.touched {
                    let counter = self.counter(touched, now);
                    counter.bring_back(now);
                    fits &= counter.admits(touched.units, now);
                }
                if fits != admitted {
                    let must = if fits { "admitted" } else { "refused" };
                    return Some(format!("must be {must}"));
                }
                for touched in posting.touched.iter().filter(|_| fits) {
                    let counter = self.counter(touched, now);
                    counter.spend(touched.units, now);
                    counter.open.push(Open {
                        id,
                        estimate: touched.units,
                        charged: now,
                        lasts,
                        back: false,
                    });
                }
            }
            Step::Settled {
                id,
                used,
                too_late,
                settled,
            } => {
                let mut all = None;
                for touched in posting.touched.iter().filter(|_| !too_late) {
                    let late = settled == Settled::Late;
                    let one = self.counter(touched, now).settle(id, used, late, now);
                    all = either(all, one);
                }
                let same = match settled {
                    Settled::Done | Settled::Late => all == Some(settled),
                    Settled::Already | Settled::Lapsed => all.is_none(),
                };
                if !same {
                    return Some(format!("must be {all:?}"));
                }
            }
            Step::Charged => {
                for touched in &posting.touched {
                    self.counter(touched, now).spend(touched.units, now);
                }
            }
            Step::Returned(charged) => {
                for touched in &posting.touched {
                    let counter = self.counter(touched, now);
                    counter.give_back(touched.units, charged, now);
                }
            }
            Step::Seeded => {}
        }
        self.holds(posting)
    }

    fn holds(&mut self, posting: &Posting) -> Option<String> {
        for touched in &posting.touched {
            let used = self.counter(touched, posting.at).used(posting.at);
            if used != touched.after {
                return Some(format!("must hold {used}"));
            }
        }
        None
    }
}

/// Of a settlement of several counters: it is done if any of them was open.
fn either(one: Option<Settled>, other: Option<Settled>) -> Option<Settled> {
    match (one, other) {
        (Some(Settled::Done), _) | (_, Some(Settled::Done)) => Some(Settled::Done),
        (one, other) => one.or(other),
    }
}
