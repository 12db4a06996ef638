//! Fixed window: one count per aligned window.
//!
//! Stores the window's end, not its index: the end is also the expiry, and it makes a change of the window decidable.
//! In any interval at most `limit * (ceil(D / W) + 1)` pass: twice the limit can pass in an instant around an edge.
//! `guard` prevents that.

use super::{Advanced, Meter, TickWait, window_grid::WindowGrid};
use crate::units::Cost;

/// The parameters of a fixed window.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) grid: WindowGrid,
    /// Units admitted in the last `guard` ticks of a window are charged to the next window too.
    pub(crate) guard: u64,
}

/// The count of one window, and the units that the guard has already charged to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixedState {
    /// First tick after the window.
    pub end: u64,
    /// Units admitted in the window.
    pub count: u32,
    /// Units of the next window that are already charged.
    pub next: u32,
}

impl FixedWindow {
    /// The latest tick that a state is known to have seen: the start of its window, or of its guard if units were
    /// admitted there.
    fn reached(&self, state: &FixedState) -> u64 {
        let began = self.grid.start_of(state.end);
        match state.next {
            0 => began,
            _ => began.max(state.end.saturating_sub(self.guard)),
        }
    }

    fn guarded(&self, end: u64, tick: u64) -> bool {
        self.guard > 0 && end - tick <= self.guard
    }

    fn add(&self, count: u32, units: u64) -> u32 {
        super::add_clamped(count, units, self.limit)
    }

    /// Moves the count of another window, which ended at `old_end` in this limit's ticks, into the window that
    /// contains `tick`. The part to carry over by this guard is known only if the edge is the same and the old guard
    /// was no narrower; otherwise all of it is carried over, which over-counts rather than under-counts.
    pub(crate) fn adopt(&self, old_state: &FixedState, old_end: u64, guard_known: bool, tick: u64) -> FixedState {
        let mut state = self.with_used(tick, u64::from(old_state.count));
        if self.guarded(state.end, tick) {
            let known = guard_known && old_end == state.end;
            let next = if known { old_state.next } else { old_state.count };
            state.next = self.add(0, u64::from(next));
        }
        state
    }
}

impl Meter for FixedWindow {
    type State = FixedState;

    #[inline]
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self, tick: u64) -> FixedState {
        FixedState { end: self.grid.bounds(tick).1, count: 0, next: 0 }
    }

    #[inline]
    fn advance(&self, state: &mut FixedState, tick: u64, tolerance: u64) -> Advanced {
        let (start, end) = self.grid.bounds(tick);
        if state.end == end && state.next == 0 {
            return Advanced::at(tick); // nearly always
        }
        if state.end >= end {
            let reached = self.reached(state);
            if reached <= tick {
                return Advanced::at(tick);
            }
            if reached - tick <= tolerance {
                return Advanced::frozen_at(reached);
            }
            state.end = end;
            if !self.guarded(end, tick) {
                state.next = 0;
            }
            return Advanced::stepped_to(tick);
        }
        state.count = if state.end == start { state.next } else { 0 };
        state.next = 0;
        state.end = end;
        Advanced::at(tick)
    }

    #[inline]
    fn wait(&self, state: &FixedState, _tick: u64, cost: Cost) -> TickWait {
        if cost.get() > self.limit {
            TickWait::Never
        } else if u64::from(state.count) + cost.get() <= self.limit {
            TickWait::None
        } else if u64::from(state.next) + cost.get() <= self.limit {
            TickWait::Until(state.end)
        } else {
            TickWait::Until(self.grid.end_of(state.end))
        }
    }

    #[inline]
    fn remaining(&self, state: &FixedState, _tick: u64) -> u64 {
        self.limit.saturating_sub(u64::from(state.count))
    }

    #[inline]
    fn fresh_at(&self, state: &FixedState, tick: u64) -> u64 {
        match (state.count, state.next) {
            (0, 0) => tick,
            (_, 0) => state.end,
            _ => self.grid.end_of(state.end),
        }
    }

    #[inline]
    fn spend(&self, state: &mut FixedState, tick: u64, units: u64) {
        state.count = self.add(state.count, units);
        if self.guarded(state.end, tick) {
            state.next = self.add(state.next, units);
        }
    }

    fn refund(&self, state: &mut FixedState, _tick: u64, charged: u64, units: u64) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        let (_, end) = self.grid.bounds(charged);
        if end == state.end {
            state.count = state.count.saturating_sub(units);
            if self.guarded(end, charged) {
                state.next = state.next.saturating_sub(units);
            }
        } else if self.guarded(end, charged) && self.grid.end_of(end) == state.end {
            state.count = state.count.saturating_sub(units);
        }
    }

    fn used(&self, state: &FixedState, _tick: u64) -> u64 {
        u64::from(state.count)
    }

    fn with_used(&self, tick: u64, used: u64) -> FixedState {
        let fresh = self.fresh(tick);
        FixedState { count: self.add(0, used), ..fresh }
    }

    fn merge(&self, state: &mut FixedState, other: &FixedState, _tick: u64) {
        // The older state may have carried the units of its guard over to the newer window.
        let newest = self.grid.start_of(state.end.max(other.end));
        let mut other = *other;
        self.advance(&mut other, newest, u64::MAX);
        self.advance(state, newest, u64::MAX);
        state.count = self.add(0, u64::from(state.count.max(other.count)));
        state.next = self.add(0, u64::from(state.next.max(other.next)));
    }
}
