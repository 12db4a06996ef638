//! One subject under one limit, as a store would hold it: the shipped code behind the few verbs of a trace, so that a
//! broken limiter can replace it.

use tidegate_core::algorithms::{CounterState, Figures, Limit, Moment, Verdict};
use tidegate_core::units::{Cost, Nanos};

pub(crate) trait LimiterUnderTest {
    /// The verdict and figures, without a change.
    fn peek(&self, now: Nanos, cost: Cost) -> PeekResult;
    /// Charges a cost that was allowed.
    fn spend(&mut self, now: Nanos, cost: Cost);
    /// Records that a cost was denied.
    fn record_denial(&mut self, _now: Nanos, _cost: Cost) {}
    /// Persists a state that had to be set back, whether or not the request is allowed. Returns whether it did.
    fn persist_step_back(&mut self, now: Nanos) -> bool;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PeekResult {
    pub(crate) verdict: Verdict,
    pub(crate) figures: Figures,
    pub(crate) fresh_at: Nanos,
}

/// The shipped limiter.
#[derive(Clone)]
pub(crate) struct ShippedLimiter {
    pub(crate) limit: Limit,
    pub(crate) state: Option<CounterState>,
}

impl ShippedLimiter {
    pub(crate) fn new(limit: &Limit) -> Self {
        ShippedLimiter { limit: limit.clone(), state: None }
    }

    /// The state at `now`, on a copy.
    pub(crate) fn at(&self, now: Nanos) -> (CounterState, Moment) {
        let fresh = || self.limit.fresh(now);
        let mut state = self.state.clone().unwrap_or_else(fresh);
        let at = self.limit.advance(&mut state, now);
        (state, at)
    }

    pub(crate) fn remaining(&self, now: Nanos) -> u64 {
        let (state, at) = self.at(now);
        self.limit.remaining(&state, at)
    }

    pub(crate) fn refund(&mut self, now: Nanos, charged: Nanos, cost: Cost) {
        let (mut state, at) = self.at(now);
        self.limit.refund(&mut state, at, charged, cost);
        self.state = Some(state);
    }
}

impl LimiterUnderTest for ShippedLimiter {
    fn peek(&self, now: Nanos, cost: Cost) -> PeekResult {
        let (state, at) = self.at(now);
        PeekResult {
            verdict: self.limit.judge(&state, at, cost),
            figures: self.limit.figures(&state, at),
            fresh_at: self.limit.fresh_at(&state, at),
        }
    }

    fn spend(&mut self, now: Nanos, cost: Cost) {
        let (mut state, at) = self.at(now);
        self.limit.spend(&mut state, at, cost);
        self.state = Some(state);
    }

    fn persist_step_back(&mut self, now: Nanos) -> bool {
        let (state, at) = self.at(now);
        if at.stepped_back() {
            self.state = Some(state);
        }
        at.stepped_back()
    }
}

pub(crate) fn cost(units: u64) -> Cost {
    Cost::new(units).expect("the cost of a test is never zero")
}
