//! Sliding window of two counters: the count of this window plus the part of the previous one still in view.
//!
//! Cheap and smooth, not exact: an adversary that charges a full window at its end can pass up to `2 * limit - 1` in
//! one window. `strict_window` never passes more than the limit.

use super::{Advanced, Meter, Precision, TickWait};
use crate::units::Cost;

/// The parameters of a two-counter window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SlidingWindow {
    pub(super) limit: u64,
    pub(super) width: u64,
}

/// Two neighbouring windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlidingState {
    /// The index of the window of `current`: `tick / width`.
    pub index: u64,
    /// Units admitted in that window.
    pub current: u32,
    /// Units admitted in the window before.
    pub previous: u32,
}

impl SlidingWindow {
    /// `limit` units per `width` ticks; `None` if the weighting would not be exact.
    pub(crate) fn new(limit: u64, width: u64, precision: Precision) -> Option<Self> {
        // The largest sum ever weighted: a debt of twice the limit in both windows and a cost.
        let max_product = u128::from(limit) * u128::from(width) * 5;
        (max_product < precision.ceiling()).then_some(SlidingWindow { limit, width })
    }

    /// The first tick of the window `ahead` windows after the current one, or the end of time.
    fn start_of(&self, state: &SlidingState, ahead: u64) -> u64 {
        let index = state.index.saturating_add(ahead);
        index.saturating_mul(self.width)
    }

    /// The weight of the previous window at `tick`, times `width`.
    fn weighted_previous(&self, state: &SlidingState, tick: u64) -> u64 {
        let left = self.width - (tick - state.index * self.width);
        u64::from(state.previous) * left
    }

    fn add(&self, count: u32, units: u64) -> u32 {
        super::add_clamped(count, units, self.limit)
    }

    /// Converts counts of another width, both in this limit's ticks: each goes to the latest window it overlaps, which
    /// over-counts rather than under-counts.
    pub(crate) fn adopt(&self, old_start: u64, old_state: &SlidingState, tick: u64) -> SlidingState {
        let mut state = self.fresh(tick);
        let start = state.index * self.width;
        state.current = self.add(0, u64::from(old_state.current));
        if old_start > start {
            state.current = self.add(state.current, u64::from(old_state.previous));
        } else if old_start.saturating_add(self.width) > start {
            state.previous = self.add(0, u64::from(old_state.previous));
        }
        state
    }
}

impl Meter for SlidingWindow {
    type State = SlidingState;

    #[inline]
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self, tick: u64) -> SlidingState {
        SlidingState { index: tick / self.width, current: 0, previous: 0 }
    }

    #[inline]
    fn advance(&self, state: &mut SlidingState, tick: u64, tolerance: u64) -> Advanced {
        let index = tick / self.width;
        if index < state.index {
            let began = state.index * self.width;
            if began - tick <= tolerance {
                return Advanced::frozen_at(began);
            }
            state.index = index;
            return Advanced::stepped_to(tick);
        }
        match index - state.index {
            0 => {}
            1 => (state.previous, state.current) = (state.current, 0),
            _ => (state.previous, state.current) = (0, 0),
        }
        state.index = index;
        Advanced::at(tick)
    }

    #[inline]
    fn wait(&self, state: &SlidingState, tick: u64, cost: Cost) -> TickWait {
        let (limit, width, cost) = (self.limit, self.width, cost.get());
        if cost > limit {
            return TickWait::Never;
        }
        let (current, previous) = (u64::from(state.current), u64::from(state.previous));
        if (current + cost) * width + self.weighted_previous(state, tick) <= limit * width {
            return TickWait::None;
        }
        let next = self.start_of(state, 1);
        if current + cost <= limit {
            // Wait for enough of the previous window to leave while this one lasts.
            TickWait::Until(next - (limit - current - cost) * width / previous)
        } else {
            // Wait into the next window, where the present count is the part that leaves.
            let room = (limit - cost) * width / current;
            TickWait::Until(next.saturating_add(width - room))
        }
    }

    #[inline]
    fn remaining(&self, state: &SlidingState, tick: u64) -> u64 {
        self.limit.saturating_sub(self.used(state, tick))
    }

    #[inline]
    fn fresh_at(&self, state: &SlidingState, tick: u64) -> u64 {
        match (state.current, state.previous) {
            (0, 0) => tick,
            (0, _) => self.start_of(state, 1),
            _ => self.start_of(state, 2),
        }
    }

    #[inline]
    fn spend(&self, state: &mut SlidingState, _tick: u64, units: u64) {
        state.current = self.add(state.current, units);
    }

    fn refund(&self, state: &mut SlidingState, _tick: u64, charged: u64, units: u64) {
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        match state.index.checked_sub(charged / self.width) {
            Some(0) => state.current = state.current.saturating_sub(units),
            Some(1) => state.previous = state.previous.saturating_sub(units),
            _ => {}
        }
    }

    fn used(&self, state: &SlidingState, tick: u64) -> u64 {
        u64::from(state.current) + self.weighted_previous(state, tick).div_ceil(self.width)
    }

    fn merge(&self, state: &mut SlidingState, other: &SlidingState, _tick: u64) {
        let newest = state.index.max(other.index) * self.width;
        let mut other = *other;
        self.advance(&mut other, newest, u64::MAX);
        self.advance(state, newest, u64::MAX);
        state.current = self.add(0, u64::from(state.current.max(other.current)));
        state.previous = self.add(0, u64::from(state.previous.max(other.previous)));
    }
}
