//! Sliding window of sub-windows: never more than the limit in any window, whatever the traffic.
//!
//! The window is divided into ten sub-windows. Eleven counts are kept, so that the oldest, partly in view, counts in
//! full. That conservative edge is the whole proof. The price: a client with constant demand gets at least 10/11 of
//! the limit.

use super::{Advanced, Meter, Precision, TickWait};
use crate::units::Cost;

/// Sub-windows of a window.
const SUB_WINDOWS: u64 = 10;
/// Counts kept: all sub-windows in view, and the one that is leaving.
pub const TRACKED_SUB_WINDOWS: usize = 11;

/// The parameters of a window of sub-windows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StrictWindow {
    pub(super) limit: u64,
    pub(super) sub_window: u64,
}

/// The newest sub-window and the ten before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StrictState {
    /// The index of the sub-window of `counts[0]`: `tick / sub_window`.
    pub index: u64,
    /// Units admitted in each sub-window, newest first.
    pub counts: [u32; TRACKED_SUB_WINDOWS],
}

impl StrictWindow {
    /// `limit` units per `width` ticks; `None` if the end of a window would not be exact.
    pub(crate) fn new(limit: u64, width: u64, precision: Precision) -> Option<Self> {
        let exact = u128::from(width) * 4 < precision.ceiling();
        exact.then_some(StrictWindow { limit, sub_window: width.div_ceil(SUB_WINDOWS) })
    }

    /// The first tick of the sub-window `ahead` sub-windows after the newest one, or the end of time.
    fn start_of(&self, state: &StrictState, ahead: u64) -> u64 {
        let index = state.index.saturating_add(ahead);
        index.saturating_mul(self.sub_window)
    }

    fn sum(&self, counts: &[u32]) -> u64 {
        counts.iter().copied().map(u64::from).sum()
    }

    fn add(&self, count: u32, units: u64) -> u32 {
        super::add_clamped(count, units, self.limit)
    }

    /// Converts counts of other sub-windows, each `(last tick of the sub-window, units)` in this limit's ticks: each
    /// goes to the latest sub-window it overlaps.
    pub(crate) fn adopt(&self, sub_windows: impl Iterator<Item = (u64, u32)>, tick: u64) -> StrictState {
        let mut state = self.fresh(tick);
        for (last, units) in sub_windows {
            let age = state.index.saturating_sub(last / self.sub_window);
            let age = usize::try_from(age).unwrap_or(TRACKED_SUB_WINDOWS);
            if let Some(count) = state.counts.get_mut(age) {
                *count = self.add(*count, u64::from(units));
            }
        }
        self.clamp_debt(&mut state);
        state
    }

    /// Keeps at most twice the limit. The newest units stay, so at any later time the units left are the same as if
    /// all had been kept until then.
    fn clamp_debt(&self, state: &mut StrictState) {
        let mut room = u32::try_from(2 * self.limit).unwrap_or(u32::MAX);
        for count in &mut state.counts {
            *count = room.min(*count);
            room -= *count;
        }
    }
}

impl Meter for StrictWindow {
    type State = StrictState;

    #[inline]
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self, tick: u64) -> StrictState {
        StrictState { index: tick / self.sub_window, counts: [0; TRACKED_SUB_WINDOWS] }
    }

    #[inline]
    fn advance(&self, state: &mut StrictState, tick: u64, tolerance: u64) -> Advanced {
        let index = tick / self.sub_window;
        if index < state.index {
            let began = state.index * self.sub_window;
            if began - tick <= tolerance {
                return Advanced::frozen_at(began);
            }
            state.index = index;
            return Advanced::stepped_to(tick);
        }
        let elapsed = usize::try_from(index - state.index).map_or(TRACKED_SUB_WINDOWS, |n| n.min(TRACKED_SUB_WINDOWS));
        state.counts.copy_within(..TRACKED_SUB_WINDOWS - elapsed, elapsed);
        state.counts[..elapsed].fill(0);
        state.index = index;
        Advanced::at(tick)
    }

    #[inline]
    fn wait(&self, state: &StrictState, _tick: u64, cost: Cost) -> TickWait {
        if cost.get() > self.limit {
            return TickWait::Never;
        }
        let room = self.limit - cost.get();
        let mut used = self.sum(&state.counts);
        if used <= room {
            return TickWait::None;
        }
        // With every sub-window of time that passes, the oldest count leaves.
        let mut sub_windows = 0;
        for count in state.counts.iter().rev() {
            sub_windows += 1;
            used -= u64::from(*count);
            if used <= room {
                break;
            }
        }
        TickWait::Until(self.start_of(state, sub_windows))
    }

    #[inline]
    fn remaining(&self, state: &StrictState, tick: u64) -> u64 {
        self.limit.saturating_sub(self.used(state, tick))
    }

    #[inline]
    fn fresh_at(&self, state: &StrictState, tick: u64) -> u64 {
        match state.counts.iter().position(|count| *count > 0) {
            Some(age) => self.start_of(state, SUB_WINDOWS + 1 - age as u64),
            None => tick,
        }
    }

    #[inline]
    fn spend(&self, state: &mut StrictState, _tick: u64, units: u64) {
        let room = (2 * self.limit).saturating_sub(self.sum(&state.counts));
        state.counts[0] = self.add(state.counts[0], units.min(room));
    }

    fn refund(&self, state: &mut StrictState, _tick: u64, charged: u64, units: u64) {
        let age = state.index.checked_sub(charged / self.sub_window);
        let count = age.and_then(|age| usize::try_from(age).ok()).and_then(|age| state.counts.get_mut(age));
        if let Some(count) = count {
            *count = count.saturating_sub(u32::try_from(units).unwrap_or(u32::MAX));
        }
    }

    fn used(&self, state: &StrictState, _tick: u64) -> u64 {
        self.sum(&state.counts)
    }

    fn merge(&self, state: &mut StrictState, other: &StrictState, _tick: u64) {
        let newest = state.index.max(other.index) * self.sub_window;
        let mut other = *other;
        self.advance(&mut other, newest, u64::MAX);
        self.advance(state, newest, u64::MAX);
        for (mine, theirs) in state.counts.iter_mut().zip(other.counts) {
            *mine = theirs.max(*mine);
        }
        self.clamp_debt(state);
    }
}
