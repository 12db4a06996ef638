//! Sliding window of sub-buckets: never more than the limit in any window, whoever asks.
//!
//! The window is cut into ten parts; eleven counts are kept, so that the oldest, partly in view,
//! weighs in full. That conservative edge is the whole proof. The price: a client that always asks
//! gets at least 10/11 of the limit.

use super::{Meter, Precision, Settled, Wait};
use crate::units::Cost;

/// Parts of a window.
const PARTS: u64 = 10;
/// Counts kept: all parts in view, and the one that is leaving.
pub const KEPT: usize = 11;

/// The parameters of a window of sub-buckets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct StrictWindow {
    pub(super) limit: u64,
    pub(super) part: u64,
}

/// The newest part and the ten before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StrictState {
    /// Which part `counts[0]` is: `tick / part`.
    pub index: u64,
    /// Units admitted in each part, newest first.
    pub counts: [u32; KEPT],
}

impl StrictWindow {
    /// `limit` units per `width` ticks; nothing if the end of a window would not be exact.
    pub(crate) fn new(limit: u64, width: u64, precision: Precision) -> Option<Self> {
        let exact = u128::from(width) * 4 < precision.ceiling();
        exact.then_some(StrictWindow {
            limit,
            part: width.div_ceil(PARTS),
        })
    }

    /// The first tick of the part `ahead` of the newest one, or the end of time.
    fn start_of(&self, state: &StrictState, ahead: u64) -> u64 {
        let index = state.index.saturating_add(ahead);
        index.saturating_mul(self.part)
    }

    fn sum(&self, counts: &[u32]) -> u64 {
        counts.iter().copied().map(u64::from).sum()
    }

    fn add(&self, count: u32, units: u64) -> u32 {
        super::add_clamped(count, units, self.limit)
    }

    pub(crate) fn part(&self) -> u64 {
        self.part
    }
}

impl Meter for StrictWindow {
    type State = StrictState;

    #[inline]
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self, tick: u64) -> StrictState {
        StrictState {
            index: tick / self.part,
            counts: [0; KEPT],
        }
    }

    #[inline]
    fn advance(&self, state: &mut StrictState, tick: u64, patience: u64) -> Settled {
        let index = tick / self.part;
        if index < state.index {
            let began = state.index * self.part;
            if began - tick <= patience {
                return Settled::frozen_at(began);
            }
            state.index = index;
            return Settled::stepped_to(tick);
        }
        let passed = usize::try_from(index - state.index).map_or(KEPT, |n| n.min(KEPT));
        state.counts.copy_within(..KEPT - passed, passed);
        state.counts[..passed].fill(0);
        state.index = index;
        Settled::at(tick)
    }

    #[inline]
    fn wait(&self, state: &StrictState, _tick: u64, cost: Cost) -> Wait {
        if cost.get() > self.limit {
            return Wait::Never;
        }
        let room = self.limit - cost.get();
        let mut held = self.sum(&state.counts);
        if held <= room {
            return Wait::None;
        }
        // One part leaves with every part of time that passes, the oldest first.
        let mut waited = 0;
        for count in state.counts.iter().rev() {
            waited += 1;
            held -= u64::from(*count);
            if held <= room {
                break;
            }
        }
        Wait::Until(self.start_of(state, waited))
    }

    #[inline]
    fn remaining(&self, state: &StrictState, tick: u64) -> u64 {
        self.limit.saturating_sub(self.used(state, tick))
    }

    #[inline]
    fn fresh_at(&self, state: &StrictState, tick: u64) -> u64 {
        match state.counts.iter().position(|count| *count > 0) {
            Some(age) => self.start_of(state, PARTS + 1 - age as u64),
            None => tick,
        }
    }

    #[inline]
    fn spend(&self, state: &mut StrictState, _tick: u64, units: u64) {
        let room = (2 * self.limit).saturating_sub(self.sum(&state.counts));
        state.counts[0] = self.add(state.counts[0], units.min(room));
    }

    fn refund(&self, state: &mut StrictState, _tick: u64, charged: u64, units: u64) {
        let age = state.index.checked_sub(charged / self.part);
        let count = age
            .and_then(|age| usize::try_from(age).ok())
            .and_then(|age| state.counts.get_mut(age));
        if let Some(count) = count {
            *count = count.saturating_sub(u32::try_from(units).unwrap_or(u32::MAX));
        }
    }

    fn used(&self, state: &StrictState, _tick: u64) -> u64 {
        self.sum(&state.counts)
    }

    fn holding(&self, tick: u64, used: u64) -> StrictState {
        let mut state = self.fresh(tick);
        self.spend(&mut state, tick, used);
        state
    }

    fn merge(&self, state: &mut StrictState, other: &StrictState, _tick: u64) {
        let newest = state.index.max(other.index) * self.part;
        let mut other = *other;
        self.advance(&mut other, newest, u64::MAX);
        self.advance(state, newest, u64::MAX);
        for (mine, theirs) in state.counts.iter_mut().zip(other.counts) {
            *mine = theirs.max(*mine);
        }
        self.clamp_debt(state);
    }
}

impl StrictWindow {
    /// Counts of other parts, each `(last tick of the part, units)` in this limit's ticks: each goes
    /// to the latest part it overlaps.
    pub(crate) fn adopt(&self, parts: impl Iterator<Item = (u64, u32)>, tick: u64) -> StrictState {
        let mut state = self.fresh(tick);
        for (last, units) in parts {
            let age = state.index.saturating_sub(last / self.part);
            let age = usize::try_from(age).unwrap_or(KEPT);
            if let Some(count) = state.counts.get_mut(age) {
                *count = self.add(*count, u64::from(units));
            }
        }
        self.clamp_debt(&mut state);
        state
    }

    /// Keeps no more than twice the limit. The newest stay: so at any later time there is as much left
    /// as if all had been kept until then.
    fn clamp_debt(&self, state: &mut StrictState) {
        let mut room = u32::try_from(2 * self.limit).unwrap_or(u32::MAX);
        for count in &mut state.counts {
            *count = room.min(*count);
            room -= *count;
        }
    }
}

impl StrictWindow {
    /// The same window for another number of units.
    pub(crate) fn with_limit(self, limit: u64) -> Self {
        StrictWindow { limit, ..self }
    }
}
