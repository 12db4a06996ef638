//! A meter with the tick it counts in: the same steps for every algorithm, in nanoseconds.

use super::{Figures, Meter, Moment, PATIENCE, Retry, Verdict, Wait};
use crate::units::{Cost, Nanos, Tick};

/// One kind of meter. Compiled once per kind, so that a decision chooses among them once.
pub(super) struct Metered<'l, M> {
    pub(super) meter: &'l M,
    tick: Tick,
}

impl<'l, M: Meter> Metered<'l, M> {
    #[inline]
    pub(super) fn new(meter: &'l M, tick: Tick) -> Self {
        Metered { meter, tick }
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
        self.meter.wait(state, at.settled.tick, cost)
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
        let tick = at.settled.tick;
        let remaining = self.meter.remaining(state, tick);
        let more = Cost::new(remaining.saturating_add(1));
        let more_after = match more.map(|cost| self.meter.wait(state, tick, cost)) {
            Some(Wait::Until(until)) => self.until(at, until),
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
