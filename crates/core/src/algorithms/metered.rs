//! A meter with the tick it counts in and what it keeps back: the same steps for every algorithm, in
//! nanoseconds.
//!
//! Units are kept back by asking a meter for so many more than are spent. What is used and a cost then
//! come to the ceiling at most, exactly so for every algorithm, and no meter need know.

use super::{Figures, Meter, Moment, PATIENCE, Retry, Verdict, Wait};
use crate::units::{Cost, Nanos, Tick};

/// One kind of meter. Compiled once per kind, so that a decision chooses among them once.
pub(super) struct Metered<'l, M> {
    pub(super) meter: &'l M,
    tick: Tick,
    kept_back: u64,
}

impl<'l, M: Meter> Metered<'l, M> {
    #[inline]
    pub(super) fn new(meter: &'l M, tick: Tick, kept_back: u64) -> Self {
        Metered {
            meter,
            tick,
            kept_back,
        }
    }

    #[inline]
    pub(super) fn advance(&self, state: &mut M::State, now: Nanos) -> Moment {
        let (tick, patience) = (self.tick.floor(now), self.tick.floor(PATIENCE));
        Moment {
            now,
            settled: self.meter.advance(state, tick, patience),
        }
    }

    #[inline]
    pub(super) fn judge(&self, state: &M::State, at: Moment, cost: Cost) -> Verdict {
        self.verdict(at, self.wait(state, at, cost))
    }

    #[inline]
    pub(super) fn wait(&self, state: &M::State, at: Moment, cost: Cost) -> Wait {
        let asked = cost.plus(self.kept_back);
        self.meter.wait(state, at.settled.tick, asked)
    }

    #[inline]
    pub(super) fn remaining(&self, state: &M::State, at: Moment) -> u64 {
        let left = self.meter.remaining(state, at.settled.tick);
        left.saturating_sub(self.kept_back)
    }

    #[inline]
    pub(super) fn verdict(&self, at: Moment, wait: Wait) -> Verdict {
        match wait {
            Wait::None => Verdict::Allow { delay: Nanos::ZERO },
            Wait::NoneButDelayed(until) => Verdict::Allow {
                delay: self.delay(at, until),
            },
            Wait::Until(until) => Verdict::Deny {
                retry: Retry::After(self.until(at, until)),
            },
            Wait::Never => Verdict::Deny {
                retry: Retry::Never,
            },
        }
    }

    #[inline]
    fn until(&self, at: Moment, tick: u64) -> Nanos {
        self.tick.start(tick).since(at.now)
    }

    /// While time stands still for a queue it stands still for those who wait in it too: the gap to
    /// the clock is no part of their delay, or it could exceed the longest one permitted.
    fn delay(&self, at: Moment, tick: u64) -> Nanos {
        let from = self.tick.start(at.settled.tick).max(at.now);
        self.tick.start(tick).since(from)
    }

    #[inline]
    pub(super) fn spend(&self, state: &mut M::State, at: Moment, cost: Cost) {
        self.meter.spend(state, at.settled.tick, cost.get());
    }

    #[inline]
    pub(super) fn figures(&self, state: &M::State, at: Moment) -> Figures {
        let remaining = self.remaining(state, at);
        let more_after = match self.wait(state, at, Cost::ONE.plus(remaining)) {
            Wait::Until(until) => self.until(at, until),
            _ => Nanos::ZERO,
        };
        Figures {
            remaining,
            reset_after: self.fresh_at(state, at).since(at.now),
            more_after,
        }
    }

    #[inline]
    pub(super) fn fresh_at(&self, state: &M::State, at: Moment) -> Nanos {
        self.tick.start(self.meter.fresh_at(state, at.settled.tick))
    }
}
