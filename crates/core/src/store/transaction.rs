//! The decision on a charge set: on copies of its counters, which a store reads before and writes after it.
//!
//! Enforced charges and quotas are judged first; shadows after them, when it is known whether the request passes. A
//! denial spends nothing. A counter that occurs twice has one copy: the second charge sees what the first would spend.
//! It defines the result of every store: a short cut for one limit, and a script in Redis whose reply is replayed here,
//! must agree with it. Knows no locks, keys or records.

use std::borrow::Cow;

use smallvec::{SmallVec, smallvec};

use super::{Charge, Inspection, LeaseReply, LimitReading, Outcome, Role, Source, admits};
use crate::algorithms::{CounterState, Figures, Limit, Moment, Verdict};
use crate::units::Nanos;

/// What happens to the charges of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargeIntent {
    /// They are spent if the request is admitted.
    Charge,
    /// Nothing is spent.
    Peek,
    /// They are spent whether they fit or not.
    Force,
}

/// The copy of one counter.
#[derive(Debug)]
pub struct StagedCounter<'c, P> {
    /// Where the store has the counter.
    pub place: P,
    /// The phase of staggered windows, for a counter that several subjects share.
    seed: Option<u64>,
    /// The limit of the state: that of the last charge that was spent.
    limit: &'c Limit,
    state: CounterState,
    /// The initial limit and state, to roll back to.
    found: (&'c Limit, CounterState),
    /// Whether the counter was so far ahead of the clock that it was set back. That must be written even if the
    /// request is denied, or the next one finds it just as far ahead.
    stepped: bool,
    changed: bool,
}

impl<'c, P> StagedCounter<'c, P> {
    /// Whether there is anything to write.
    pub fn is_changed(&self) -> bool {
        self.changed
    }

    /// The limit that the state is under, as this counter applies it.
    pub fn limit(&self) -> Cow<'c, Limit> {
        self.limit.in_phase(self.seed)
    }

    /// A copy of the state, advanced to `now` under `limit`. Reading does not change the limit of the state.
    #[inline]
    pub fn state_under(&self, limit: &Limit, now: Nanos) -> (CounterState, Moment) {
        let mut state = self.state.clone();
        if !std::ptr::eq(limit, self.limit) {
            state = limit.adopt(&self.limit(), state, now);
        }
        let at = limit.advance(&mut state, now);
        (state, at)
    }

    fn roll_back(&mut self) {
        (self.limit, self.state) = self.found.clone();
        self.changed = self.stepped;
    }
}

/// The copies of the counters of some charges. `P` is where the store has a counter.
#[derive(Debug)]
pub struct ChargeTransaction<'c, P> {
    charges: &'c [Charge<'c>],
    now: Nanos,
    counters: SmallVec<[StagedCounter<'c, P>; 4]>,
    /// The index of the counter of each charge.
    counter_of: SmallVec<[usize; 8]>,
}

impl<'c, P: PartialEq> ChargeTransaction<'c, P> {
    /// A transaction for `charges` at `now`. The counter of each is added next, in order.
    pub fn new(charges: &'c [Charge<'c>], now: Nanos) -> Self {
        ChargeTransaction { charges, now, counters: SmallVec::new(), counter_of: SmallVec::new() }
    }

    /// Adds the counter of the next charge, which is at `place`, unless an earlier charge has the same. `seed` is the
    /// phase of its staggered windows if several subjects share it. `read` returns its state under the limit of the
    /// charge, and whether a stored time was set back for that.
    pub fn add(&mut self, place: P, seed: Option<u64>, read: impl FnOnce() -> (CounterState, bool)) {
        let known = self.counters.iter().position(|counter| counter.place == place);
        let limit = self.charges[self.counter_of.len()].limit.as_ref();
        self.counter_of.push(known.unwrap_or(self.counters.len()));
        if known.is_none() {
            let (mut state, stepped) = read();
            let initial = state.clone();
            let stepped_now = limit.in_phase(seed).advance(&mut state, self.now).stepped_back();
            let found = (limit, if stepped_now { state.clone() } else { initial });
            let stepped = stepped || stepped_now;
            self.counters.push(StagedCounter { place, seed, limit, state, found, stepped, changed: stepped });
        }
    }
}

impl<'c, P> ChargeTransaction<'c, P> {
    /// All counters.
    pub fn counters(&self) -> &[StagedCounter<'c, P>] {
        &self.counters
    }

    /// The counter of a charge.
    pub fn counter(&self, charge: usize) -> &StagedCounter<'c, P> {
        &self.counters[self.counter_of[charge]]
    }

    /// Whether a stored time had to be set back.
    pub fn clock_stepped(&self) -> bool {
        self.counters.iter().any(|counter| counter.stepped)
    }

    /// A copy of the counter of a charge, under the limit of the charge and advanced to now.
    pub fn state_of(&self, charge: usize) -> (CounterState, Moment) {
        self.counter(charge).state_under(&self.limit_of(charge), self.now)
    }

    /// The limit of a charge, as its counter applies it.
    #[inline]
    fn limit_of(&self, charge: usize) -> Cow<'c, Limit> {
        let charges = self.charges;
        charges[charge].limit.in_phase(self.counter(charge).seed)
    }

    fn set_state(&mut self, charge: usize, state: CounterState) {
        let counter = &mut self.counters[self.counter_of[charge]];
        counter.limit = self.charges[charge].limit.as_ref();
        counter.state = state;
        counter.changed = true;
    }

    /// Judges a charge and, if it fits or is forced, spends it.
    fn judge(&mut self, charge: usize, intent: ChargeIntent) -> Verdict {
        let (limit, cost) = (self.limit_of(charge), self.charges[charge].cost);
        let (mut state, at) = self.counter(charge).state_under(&limit, self.now);
        let verdict = limit.judge(&state, at, cost);
        if verdict.allows() || intent == ChargeIntent::Force {
            limit.spend(&mut state, at, cost);
            self.set_state(charge, state);
        }
        verdict
    }

    /// The decision on all charges. Afterwards the changed counters are to be written, unless it was a peek. The
    /// outcome has no snapshots, and its source is the authoritative counter.
    pub fn decide(&mut self, intent: ChargeIntent) -> Outcome {
        let charges = self.charges;
        let is_shadow = |i: &usize| charges[*i].role == Role::Shadow;
        let all = 0..charges.len();
        let mut verdicts: SmallVec<[Verdict; 8]> = smallvec![Verdict::Allow { delay: Nanos::ZERO }; charges.len()];
        for i in all.clone().filter(|i| !is_shadow(i)) {
            verdicts[i] = self.judge(i, intent);
        }
        let admitted = intent == ChargeIntent::Force || admits(charges, |i| verdicts[i].allows());
        if !admitted {
            self.counters.iter_mut().for_each(StagedCounter::roll_back);
        }
        for i in all.clone().filter(is_shadow) {
            verdicts[i] = self.judge(i, intent);
            if !admitted {
                self.counters[self.counter_of[i]].roll_back();
            }
        }
        if intent == ChargeIntent::Peek {
            self.counters.iter_mut().for_each(StagedCounter::roll_back);
        }
        Outcome {
            admitted,
            readings: all.map(|i| LimitReading { verdict: verdicts[i], figures: self.figures(i) }).collect(),
            snapshots: Vec::new(),
            at: self.now,
            source: Source::Exact,
            degraded: None,
            clock_stepped: self.clock_stepped(),
        }
    }

    /// Draws a lease for the only charge.
    pub fn draw(&mut self) -> LeaseReply {
        let limit = self.limit_of(0);
        let (mut state, at) = self.counter(0).state_under(&limit, self.now);
        let units = limit.draw(&mut state, at, self.charges[0].cost);
        if units > 0 {
            self.set_state(0, state);
        }
        LeaseReply { units, figures: self.figures(0), snapshot: None, at: self.now }
    }

    /// Merges a known state of the only charge, unless the result is as good as fresh.
    pub fn restore(&mut self, known: &CounterState) {
        let (mut state, _) = self.state_of(0);
        let limit = self.limit_of(0);
        limit.merge(&mut state, known, self.now);
        let at = limit.advance(&mut state, self.now);
        if limit.fresh_at(&state, at) > self.now {
            self.set_state(0, state);
        }
    }

    /// The usage of the counter of a charge, unless it is as good as fresh.
    pub fn inspection(&self, charge: usize) -> Option<Inspection> {
        let ((state, at), limit) = (self.state_of(charge), self.limit_of(charge));
        let figures = limit.figures(&state, at);
        let used = limit.used(&state, at);
        (figures.reset_after > Nanos::ZERO).then_some(Inspection { used, figures, source: Source::Exact })
    }

    fn figures(&self, charge: usize) -> Figures {
        let limit = self.limit_of(charge);
        let (state, at) = self.counter(charge).state_under(&limit, self.now);
        limit.figures(&state, at)
    }
}
