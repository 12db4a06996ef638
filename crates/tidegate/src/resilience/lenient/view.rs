//! What a node knows of one counter between two words from the store: how the store held it, what was
//! admitted here since, and how far off that may be.

use tidegate_core::algorithms::{Limit, State};
use tidegate_core::store::{Charge, Reading, Seen};
use tidegate_core::units::{Cost, Nanos};

use super::{FRESH, Overshoot, PAUSE, TELLING, UNKNOWN};
use crate::resilience::owned::OwnedCharge;

/// A counter as this node sees it.
pub(super) struct View {
    /// Whose, under which limit.
    pub(super) charge: OwnedCharge,
    /// As the store held it, and what was admitted here since.
    state: State,
    /// When the store was asked, by the local clock; when it answered; and what time it was there.
    sent: Nanos,
    heard: Nanos,
    at: Nanos,
    /// Admitted here and not told yet.
    untold: u64,
    /// Being told.
    telling: u64,
    /// When the oldest was admitted of what is not told, and of what is being told.
    untold_since: Option<Nanos>,
    telling_since: Option<Nanos>,
    /// Whether anybody has asked since the store was last told.
    asked: bool,
    /// The most that any one node may have admitted between the last two words.
    busiest: u64,
}

/// What to tell the store of a counter.
pub(super) struct News {
    pub(super) charge: OwnedCharge,
    /// What was admitted; nothing if only the others' word is wanted.
    pub(super) units: Option<Cost>,
}

impl View {
    /// What the store said of a counter, in answer to what was sent at `sent` and heard at `heard`.
    pub(super) fn new(
        charge: &Charge<'_>,
        seen: &Seen,
        sent: Nanos,
        heard: Nanos,
        at: Nanos,
    ) -> Self {
        View {
            charge: OwnedCharge::of(charge).patient(TELLING),
            state: seen.state.clone(),
            sent,
            heard,
            at,
            untold: 0,
            telling: 0,
            untold_since: None,
            telling_since: None,
            asked: false,
            busiest: 0,
        }
    }

    /// Whether it is of this very limit, whatever its ceiling.
    pub(super) fn is_under(&self, limit: &Limit) -> bool {
        self.charge.limit.tag() == limit.tag()
    }

    /// Whether it is of this limit and may decide: neither is the last word too old, nor have the others
    /// been kept waiting for ours.
    pub(super) fn serves(&self, limit: &Limit, now: Nanos) -> bool {
        let recent = |then: Nanos| now.since(then) <= FRESH;
        self.is_under(limit)
            && recent(self.sent)
            && self.untold_since.is_none_or(recent)
            && self.telling_since.is_none_or(recent)
    }

    /// The store's time, or a little less.
    fn time(&self, now: Nanos) -> Nanos {
        self.at.plus(now.since(self.heard))
    }

    /// Counts a charge if it fits. The reading, and the store's time.
    pub(super) fn take(&mut self, charge: &Charge<'_>, now: Nanos) -> (Reading, Nanos) {
        let (limit, time) = (charge.limit.as_ref(), self.time(now));
        self.asked = true;
        let moment = limit.advance(&mut self.state, time);
        let verdict = limit.judge(&self.state, moment, charge.cost);
        if verdict.allows() {
            limit.spend(&mut self.state, moment, charge.cost);
            self.untold += charge.cost.get();
            self.untold_since.get_or_insert(now);
        }
        let figures = limit.figures(&self.state, moment);
        (Reading { verdict, figures }, time)
    }

    /// Takes back a charge that was counted at `time`, unless the store has been told already: then it
    /// stays, which refuses too much rather than too little.
    pub(super) fn put_back(&mut self, charge: &Charge<'_>, time: Nanos, now: Nanos) {
        let Some(rest) = self.untold.checked_sub(charge.cost.get()) else {
            return;
        };
        self.untold = rest;
        let (limit, present) = (charge.limit.as_ref(), self.time(now));
        let moment = limit.advance(&mut self.state, present);
        limit.refund(&mut self.state, moment, time, charge.cost);
    }

    /// What a charge would say.
    pub(super) fn look(&self, charge: &Charge<'_>, now: Nanos) -> (Reading, Nanos) {
        let (limit, time, mut state) = (charge.limit.as_ref(), self.time(now), self.state.clone());
        let moment = limit.advance(&mut state, time);
        let verdict = limit.judge(&state, moment, charge.cost);
        let figures = limit.figures(&state, moment);
        (Reading { verdict, figures }, time)
    }

    /// What the store should hear, unless nobody has asked since it last did.
    pub(super) fn news(&mut self) -> Option<News> {
        if self.untold == 0 && !self.asked {
            return None;
        }
        self.asked = false;
        self.telling = std::mem::take(&mut self.untold);
        self.telling_since = self.untold_since.take();
        Some(News {
            charge: self.charge.clone(),
            units: Cost::new(self.telling),
        })
    }

    /// What was admitted here and will not be told by anybody else.
    pub(super) fn leftover(&self) -> Option<Cost> {
        Cost::new(self.untold)
    }

    /// The store has been told, and said this.
    pub(super) fn told(&mut self, seen: &Seen, sent: Nanos, heard: Nanos, at: Nanos) {
        let told = std::mem::take(&mut self.telling);
        self.telling_since = None;
        self.busiest = told.max(self.by_others(seen, at));
        self.hear(seen, sent, heard, at);
    }

    /// The store said this to somebody else here. What is being told may not be in it, so it counts twice
    /// until it is.
    pub(super) fn hear(&mut self, seen: &Seen, sent: Nanos, heard: Nanos, at: Nanos) {
        if sent < self.sent {
            return;
        }
        (self.sent, self.heard, self.at) = (sent, heard, at);
        self.state = seen.state.clone();
        if let Some(units) = Cost::new(self.untold + self.telling) {
            let limit = &self.charge.limit;
            let moment = limit.advance(&mut self.state, at);
            limit.spend(&mut self.state, moment, units);
        }
    }

    /// What all other nodes admitted together since the word before, as far as it shows.
    fn by_others(&self, seen: &Seen, at: Nanos) -> u64 {
        let limit = &self.charge.limit;
        let used = |state: &State| {
            let mut state = state.clone();
            let moment = limit.advance(&mut state, at);
            limit.used(&state, moment)
        };
        let (there, here) = (used(&seen.state), used(&self.state));
        there.saturating_sub(here.saturating_sub(self.untold))
    }

    /// By how much all of `nodes` may exceed the limit before they hear of each other. Every view is asked
    /// in every round, so its state goes on as by a charge instead of being copied.
    pub(super) fn overshoot(&mut self, nodes: u64, now: Nanos) -> Overshoot {
        let (limit, time) = (&self.charge.limit, self.time(now));
        let moment = limit.advance(&mut self.state, time);
        let left = limit
            .whole()
            .saturating_sub(limit.used(&self.state, moment));
        let meanwhile = u128::from(self.busiest) * u128::from(UNKNOWN.get());
        let meanwhile = meanwhile.div_ceil(u128::from(PAUSE.get()));
        let meanwhile = u64::try_from(meanwhile).unwrap_or(u64::MAX);
        let others = nodes.saturating_sub(1);
        Overshoot {
            most: others.saturating_mul(left),
            at_this_pace: others.saturating_mul(left.min(meanwhile)),
        }
    }
}
