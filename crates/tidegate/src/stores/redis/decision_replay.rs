//! Replays a script's decision from the records that the script found.
//!
//! A script replies with the records as it found them and the time. The algorithms of the library compute the same
//! decision from these, with every figure for the client. So a script computes only what to write, and its reply
//! cannot differ from the stored records.

use tidegate_core::algorithms::{CounterState, Figures, Limit, Moment, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, CounterSnapshot, Inspection, LeaseReply, LimitReading, Outcome, Role, Source,
};
use tidegate_core::units::Nanos;

use super::plan::ScriptPlan;
use super::record::{self, RecordCounter, RecordError, RecordHeader};

/// What happens to the charges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReplayIntent {
    /// They are spent if the request is admitted.
    Charge,
    /// Nothing is spent.
    Peek,
    /// They are spent whether they fit or not.
    Force,
}

/// One counter of a request.
pub(super) struct ReplayedCounter<'c> {
    /// The index of its record.
    pub(super) key: usize,
    /// The counter as stored in its record.
    pub(super) stored: Option<RecordCounter>,
    pub(super) current: LimitedState<'c>,
    /// The state as found, to roll back to.
    initial: LimitedState<'c>,
}

/// A state and its limit.
#[derive(Clone)]
pub(super) struct LimitedState<'c> {
    pub(super) header: &'c RecordHeader,
    pub(super) limit: &'c Limit,
    pub(super) state: CounterState,
    /// Whether it must be written.
    #[cfg_attr(not(test), expect(dead_code, reason = "scripts write; only tests compare it"))]
    pub(super) changed: bool,
}

/// The counters of a request.
pub(super) struct DecisionReplay<'c> {
    charges: &'c [Charge<'c>],
    plan: &'c ScriptPlan,
    now: Nanos,
    pub(super) counters: Vec<ReplayedCounter<'c>>,
    /// The index of the counter of each charge.
    counter_of: Vec<usize>,
    /// Whether a stored time was so far ahead that it was set back.
    clock_stepped: bool,
}

impl<'c> DecisionReplay<'c> {
    /// Decodes the counters of `charges` from `records`, which are in the plan's order.
    pub(super) fn open(
        charges: &'c [Charge<'c>],
        plan: &'c ScriptPlan,
        records: &[Option<impl AsRef<[u8]>>],
        now: Nanos,
    ) -> Result<Self, RecordError> {
        let mut decoded = Vec::with_capacity(records.len());
        for bytes in records {
            let found = bytes.as_ref().map(|bytes| record::read(bytes.as_ref()));
            decoded.push(found.transpose()?.unwrap_or_default());
        }
        let mut replay = DecisionReplay {
            charges,
            plan,
            now,
            counters: Vec::with_capacity(charges.len()),
            counter_of: Vec::with_capacity(charges.len()),
            clock_stepped: false,
        };
        for (i, charge) in charges.iter().enumerate() {
            let key = plan.key_of[i];
            let rate = charge.rate;
            let known =
                replay.counters.iter().position(|counter| counter.key == key && counter.current.header.rate() == rate);
            let counter = known.unwrap_or_else(|| {
                let stored = decoded.get(key).into_iter().flatten();
                let stored = stored.clone().find(|counter| counter.header.rate() == rate);
                replay.add_counter(key, &plan.headers[i], &charge.limit, stored.cloned())
            });
            replay.counter_of.push(counter);
        }
        Ok(replay)
    }

    fn add_counter(
        &mut self,
        key: usize,
        header: &'c RecordHeader,
        limit: &'c Limit,
        stored: Option<RecordCounter>,
    ) -> usize {
        let mut changed = false;
        let mut state = match &stored {
            None => limit.fresh(self.now),
            Some(counter) if counter.header == *header => counter.state.clone(),
            Some(counter) => {
                let mut moved = counter.state.clone();
                changed = counter.limit.advance(&mut moved, self.now).stepped_back();
                limit.adopt(&counter.limit, counter.state.clone(), self.now)
            }
        };
        let mut moved = state.clone();
        if limit.advance(&mut moved, self.now).stepped_back() {
            (state, changed) = (moved, true);
        }
        self.clock_stepped |= changed;
        let current = LimitedState { header, limit, state, changed };
        self.counters.push(ReplayedCounter { key, stored, initial: current.clone(), current });
        self.counters.len() - 1
    }

    /// A copy of the counter of a charge, under the charge's limit and advanced to now.
    pub(super) fn state_of(&self, charge: usize) -> (CounterState, Moment) {
        let current = &self.counters[self.counter_of[charge]].current;
        let limit = self.charges[charge].limit.as_ref();
        let mut state = current.state.clone();
        if *current.header != self.plan.headers[charge] {
            state = limit.adopt(current.limit, state, self.now);
        }
        let at = limit.advance(&mut state, self.now);
        (state, at)
    }

    pub(super) fn set_state(&mut self, charge: usize, state: CounterState) {
        self.counters[self.counter_of[charge]].current = LimitedState {
            header: &self.plan.headers[charge],
            limit: &self.charges[charge].limit,
            state,
            changed: true,
        };
    }

    fn roll_back(&mut self) {
        for counter in &mut self.counters {
            counter.current = counter.initial.clone();
        }
    }

    /// Judges a charge and, if it fits or is forced, spends it.
    fn judge(&mut self, charge: usize, intent: ReplayIntent) -> Verdict {
        let (mut state, at) = self.state_of(charge);
        let (limit, cost) = (&self.charges[charge].limit, self.charges[charge].cost);
        let verdict = limit.judge(&state, at, cost);
        if verdict.allows() || intent == ReplayIntent::Force {
            limit.spend(&mut state, at, cost);
            self.set_state(charge, state);
        }
        verdict
    }

    /// The decision on the whole set.
    pub(super) fn decide(&mut self, set: &ChargeSet<'_>, intent: ReplayIntent) -> Outcome {
        let count = self.charges.len();
        let is_shadow = |charge: &Charge<'_>| charge.role == Role::Shadow;
        let mut verdicts = vec![Verdict::Allow { delay: Nanos::ZERO }; count];
        for i in (0..count).filter(|i| !is_shadow(&self.charges[*i])) {
            verdicts[i] = self.judge(i, intent);
        }
        let admitted = intent == ReplayIntent::Force || set.admits(|i| verdicts[i].allows());
        if !admitted {
            self.roll_back();
        }
        for i in (0..count).filter(|i| is_shadow(&self.charges[*i])) {
            verdicts[i] = self.judge(i, intent);
            if !admitted {
                self.roll_back();
            }
        }
        if intent == ReplayIntent::Peek {
            self.roll_back();
        }
        let readings = verdicts
            .iter()
            .enumerate()
            .map(|(i, verdict)| LimitReading { verdict: *verdict, figures: self.figures(i) });
        Outcome {
            admitted,
            readings: readings.collect(),
            snapshots: (0..count).map(|i| self.snapshot(i)).collect(),
            at: self.now,
            source: Source::Exact,
            degraded: None,
            clock_stepped: self.clock_stepped,
        }
    }

    /// Draws a lease for the only charge.
    pub(super) fn draw(&mut self) -> LeaseReply {
        let (mut state, at) = self.state_of(0);
        let (limit, cost) = (&self.charges[0].limit, self.charges[0].cost);
        let units = limit.draw(&mut state, at, cost);
        if units > 0 {
            self.set_state(0, state);
        }
        LeaseReply { units, figures: self.figures(0), snapshot: Some(self.snapshot(0)), at: self.now }
    }

    /// The usage of a counter, unless it is as good as fresh.
    pub(super) fn inspection(&self, charge: usize) -> Option<Inspection> {
        let limit = &self.charges[charge].limit;
        let (state, at) = self.state_of(charge);
        let figures = limit.figures(&state, at);
        (figures.reset_after > Nanos::ZERO).then(|| Inspection {
            used: limit.used(&state, at),
            figures,
            source: Source::Exact,
        })
    }

    fn figures(&self, charge: usize) -> Figures {
        let (state, at) = self.state_of(charge);
        self.charges[charge].limit.figures(&state, at)
    }

    fn snapshot(&self, charge: usize) -> CounterSnapshot {
        let (state, _) = self.state_of(charge);
        let existed = self.counters[self.counter_of[charge]].stored.is_some();
        CounterSnapshot { state, existed }
    }
}
