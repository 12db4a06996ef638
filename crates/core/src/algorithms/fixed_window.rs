//! Fixed window: one count per aligned window.
//!
//! Stores the window's end, not its index: the end is also the expiry, and it makes a change of the
//! window decidable. In any interval at most `limit * (ceil(D / W) + 1)` pass: twice the limit can
//! pass in an instant around an edge, which `guard` is there to prevent.

use super::{Meter, Settled, Wait, frame::Frame};
use crate::units::Cost;

/// The parameters of a fixed window.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) frame: Frame,
    /// What is admitted in the last `guard` ticks of a window is charged to the next one too.
    pub(crate) guard: u64,
}

/// The count of one window, and what the guard has already charged to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixedState {
    /// First tick after the window.
    pub end: u64,
    /// Units admitted in the window.
    pub count: u32,
    /// Units of the next window that are spoken for.
    pub next: u32,
}

impl FixedWindow {
    fn guarded(&self, end: u64, tick: u64) -> bool {
        self.guard > 0 && end - tick <= self.guard
    }

    fn add(&self, count: u32, units: u64) -> u32 {
        super::add_clamped(count, units, self.limit)
    }
}

impl Meter for FixedWindow {
    type State = FixedState;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self, tick: u64) -> FixedState {
        FixedState {
            end: self.frame.bounds(tick).1,
            count: 0,
            next: 0,
        }
    }

    fn advance(&self, state: &mut FixedState, tick: u64, patience: u64) -> Settled {
        let (start, end) = self.frame.bounds(tick);
        if state.end == end {
            return Settled::at(tick);
        }
        if state.end > end {
            let began = self.frame.start_of(state.end);
            if began.saturating_sub(tick) <= patience {
                return Settled::frozen_at(began.max(tick));
            }
            state.end = end;
            return Settled::stepped_to(tick);
        }
        state.count = if state.end == start { state.next } else { 0 };
        state.next = 0;
        state.end = end;
        Settled::at(tick)
    }

    fn wait(&self, state: &FixedState, _tick: u64, cost: Cost) -> Wait {
        if cost.get() > self.limit {
            Wait::Never
        } else if u64::from(state.count) + cost.get() <= self.limit {
            Wait::None
        } else if u64::from(state.next) + cost.get() <= self.limit {
            Wait::Until(state.end)
        } else {
            Wait::Until(self.frame.end_of(state.end))
        }
    }

    fn remaining(&self, state: &FixedState, _tick: u64) -> u64 {
        self.limit.saturating_sub(u64::from(state.count))
    }

    fn fresh_at(&self, state: &FixedState, tick: u64) -> u64 {
        match (state.count, state.next) {
            (0, 0) => tick,
            (_, 0) => state.end,
            _ => self.frame.end_of(state.end),
        }
    }

    fn spend(&self, state: &mut FixedState, tick: u64, units: u64) {
        state.count = self.add(state.count, units);
        if self.guarded(state.end, tick) {
            state.next = self.add(state.next, units);
        }
    }

    fn refund(&self, state: &mut FixedState, _tick: u64, charged: u64, units: u64) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let (_, end) = self.frame.bounds(charged);
        if end == state.end {
            state.count = state.count.saturating_sub(units);
            if self.guarded(end, charged) {
                state.next = state.next.saturating_sub(units);
            }
        } else if self.guarded(end, charged) && self.frame.end_of(end) == state.end {
            state.count = state.count.saturating_sub(units);
        }
    }

    fn used(&self, state: &FixedState, _tick: u64) -> u64 {
        u64::from(state.count)
    }

    fn holding(&self, tick: u64, used: u64) -> FixedState {
        let fresh = self.fresh(tick);
        FixedState {
            count: self.add(0, used),
            ..fresh
        }
    }

    fn merge(&self, state: &mut FixedState, other: &FixedState, _tick: u64) {
        if other.end > state.end {
            *state = *other;
        } else if other.end == state.end {
            state.count = self.add(0, u64::from(state.count.max(other.count)));
            state.next = self.add(0, u64::from(state.next.max(other.next)));
        }
    }
}
