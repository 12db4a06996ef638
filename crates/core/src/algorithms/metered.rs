//! A meter with its tick and its headroom: the same steps for every algorithm, in nanoseconds.
//!
//! Headroom: the meter checks whether the cost plus the headroom fits, and only the cost is charged. The units used
//! plus a cost then reach at most the ceiling, exactly so for every algorithm, and no meter needs to know of it.

use super::{CLOCK_TOLERANCE, Figures, Meter, Moment, Retry, TickWait, Verdict};
use crate::units::{Cost, Nanos, Tick};

/// One kind of meter. Monomorphized per kind, so that a decision dispatches once.
pub(super) struct Metered<'l, M> {
    pub(super) meter: &'l M,
    tick: Tick,
    headroom: u64,
}

impl<'l, M: Meter> Metered<'l, M> {
    #[inline]
    pub(super) fn new(meter: &'l M, tick: Tick, headroom: u64) -> Self {
        Metered { meter, tick, headroom }
    }

    #[inline]
    pub(super) fn advance(&self, state: &mut M::State, now: Nanos) -> Moment {
        let (tick, tolerance) = (self.tick.floor(now), self.tick.floor(CLOCK_TOLERANCE));
        Moment { now, advanced: self.meter.advance(state, tick, tolerance) }
    }

    #[inline]
    pub(super) fn judge(&self, state: &M::State, at: Moment, cost: Cost) -> Verdict {
        self.verdict(at, self.wait(state, at, cost))
    }

    #[inline]
    pub(super) fn wait(&self, state: &M::State, at: Moment, cost: Cost) -> TickWait {
        let wanted = cost.plus(self.headroom);
        self.meter.wait(state, at.advanced.tick, wanted)
    }

    #[inline]
    pub(super) fn remaining(&self, state: &M::State, at: Moment) -> u64 {
        let left = self.meter.remaining(state, at.advanced.tick);
        left.saturating_sub(self.headroom)
    }

    #[inline]
    pub(super) fn verdict(&self, at: Moment, wait: TickWait) -> Verdict {
        match wait {
            TickWait::None => Verdict::Allow { delay: Nanos::ZERO },
            TickWait::Delayed(until) => Verdict::Allow { delay: self.delay(at, until) },
            TickWait::Until(until) => Verdict::Deny { retry: Retry::After(self.until(at, until)) },
            TickWait::Never => Verdict::Deny { retry: Retry::Never },
        }
    }

    #[inline]
    fn until(&self, at: Moment, tick: u64) -> Nanos {
        self.tick.start(tick).since(at.now)
    }

    /// While time stands still for a queue, it stands still for the requests in it too. The gap to the clock is no
    /// part of their delay, or the delay could exceed the maximum.
    fn delay(&self, at: Moment, tick: u64) -> Nanos {
        let from = self.tick.start(at.advanced.tick).max(at.now);
        self.tick.start(tick).since(from)
    }

    #[inline]
    pub(super) fn spend(&self, state: &mut M::State, at: Moment, cost: Cost) {
        self.meter.spend(state, at.advanced.tick, cost.get());
    }

    #[inline]
    pub(super) fn figures(&self, state: &M::State, at: Moment) -> Figures {
        let remaining = self.remaining(state, at);
        let more_after = match self.wait(state, at, Cost::ONE.plus(remaining)) {
            TickWait::Until(until) => self.until(at, until),
            _ => Nanos::ZERO,
        };
        Figures { remaining, reset_after: self.fresh_at(state, at).since(at.now), more_after }
    }

    #[inline]
    pub(super) fn fresh_at(&self, state: &M::State, at: Moment) -> Nanos {
        self.tick.start(self.meter.fresh_at(state, at.advanced.tick))
    }
}
