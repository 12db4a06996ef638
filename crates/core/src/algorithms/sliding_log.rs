//! Sliding log: every admission is remembered for one window. Exact: never more than the limit in any window, and
//! never less when the window has room.
//!
//! Invariant: at most [`MAX_LOG_ENTRIES`] entries per subject. A limit above that rounds its stamps up to a grain so
//! that they merge: it still never passes more than the limit, and evicts an entry up to one grain late. Debt that
//! would need more entries is counted with the next younger one.

use std::collections::VecDeque;

use super::{Advanced, Meter, Precision, TickWait};
use crate::units::Cost;

/// The maximum length of a log.
pub const MAX_LOG_ENTRIES: u64 = 1_000;

/// The parameters of a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SlidingLog {
    pub(super) limit: u64,
    pub(super) width: u64,
    /// Stamps are rounded up to a multiple of this.
    pub(super) grain: u64,
}

/// The admissions within one window, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogState {
    entries: VecDeque<LogEntry>,
    sum: u64,
}

/// One admission, or several with one stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// The tick it counts from.
    pub stamp: u64,
    /// Units admitted.
    pub units: u32,
}

impl LogState {
    /// The entries, oldest first, with distinct stamps.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = LogEntry> + '_ {
        self.entries.iter().copied()
    }

    /// Builds a log of entries in any order.
    pub fn from_entries(mut entries: Vec<LogEntry>) -> Self {
        entries.sort_by_key(|entry| entry.stamp);
        let mut log = LogState::default();
        for entry in entries {
            log.push(entry);
        }
        log
    }

    fn push(&mut self, new: LogEntry) {
        match self.entries.back_mut() {
            Some(last) if last.stamp == new.stamp => {
                let added = new.units.min(u32::MAX - last.units);
                last.units += added;
                self.sum += u64::from(added);
            }
            _ => {
                if self.is_full() {
                    self.fold_oldest();
                }
                self.entries.push_back(new);
                self.sum += u64::from(new.units);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.entries.len() as u64 >= MAX_LOG_ENTRIES
    }

    /// Makes room: counts the oldest entry with the one after it, which is a little too long. Only debt and merging
    /// ever need it: an admission always finds room.
    fn fold_oldest(&mut self) {
        let (Some(oldest), Some(next)) = (self.entries.pop_front(), self.entries.front_mut()) else { return };
        let sum = next.units.saturating_add(oldest.units);
        self.sum -= u64::from(next.units) + u64::from(oldest.units) - u64::from(sum);
        next.units = sum;
    }

    fn newest(&self) -> Option<u64> {
        self.entries.back().map(|entry| entry.stamp)
    }
}

impl SlidingLog {
    /// `limit` units per `width` ticks; `None` if the end of a window would not be exact.
    pub(crate) fn new(limit: u64, width: u64, precision: Precision) -> Option<Self> {
        let exact = u128::from(width) * 4 < precision.ceiling();
        let grain = if limit <= MAX_LOG_ENTRIES { 1 } else { width.div_ceil(MAX_LOG_ENTRIES - 2).max(1) };
        exact.then_some(SlidingLog { limit, width, grain })
    }

    fn stamp(&self, tick: u64) -> u64 {
        tick.div_ceil(self.grain).saturating_mul(self.grain)
    }

    /// Converts entries of another log, with stamps already in this limit's ticks.
    pub(crate) fn adopt(&self, entries: impl Iterator<Item = LogEntry>) -> LogState {
        let rounded = entries.map(|entry| LogEntry { stamp: self.stamp(entry.stamp), ..entry });
        self.clamped(LogState::from_entries(rounded.collect()))
    }

    /// Keeps at most twice the limit. The newest units stay, so at any later time the units left are the same as if
    /// all had been kept until then.
    fn clamped(&self, mut state: LogState) -> LogState {
        while state.sum > 2 * self.limit {
            let over = state.sum - 2 * self.limit;
            let Some(oldest) = state.entries.front_mut() else { break };
            let cut = oldest.units.min(u32::try_from(over).unwrap_or(u32::MAX));
            oldest.units -= cut;
            state.sum -= u64::from(cut);
            if oldest.units == 0 {
                state.entries.pop_front();
            }
        }
        state
    }
}

impl Meter for SlidingLog {
    type State = LogState;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn fresh(&self, _tick: u64) -> LogState {
        LogState::default()
    }

    fn advance(&self, state: &mut LogState, tick: u64, tolerance: u64) -> Advanced {
        let mut advanced = Advanced::at(tick);
        if let Some(newest) = state.newest() {
            // A rounded stamp lies up to one grain ahead of its charge.
            let seen = newest.saturating_sub(self.grain - 1);
            if seen > tick && seen - tick <= tolerance {
                advanced = Advanced::frozen_at(seen);
            } else if seen > tick {
                let shift = newest - self.stamp(tick);
                let shifted =
                    state.entries().map(|entry| LogEntry { stamp: entry.stamp.saturating_sub(shift), ..entry });
                *state = LogState::from_entries(shifted.collect());
                advanced = Advanced::stepped_to(tick);
            }
        }
        while let Some(oldest) = state.entries.front() {
            if oldest.stamp.saturating_add(self.width) > advanced.tick {
                break;
            }
            state.sum -= u64::from(oldest.units);
            state.entries.pop_front();
        }
        advanced
    }

    fn wait(&self, state: &LogState, _tick: u64, cost: Cost) -> TickWait {
        if cost.get() > self.limit {
            return TickWait::Never;
        }
        let room = self.limit - cost.get();
        let mut used = state.sum;
        for entry in &state.entries {
            if used <= room {
                break;
            }
            used -= u64::from(entry.units);
            if used <= room {
                return TickWait::Until(entry.stamp.saturating_add(self.width));
            }
        }
        TickWait::None
    }

    fn remaining(&self, state: &LogState, _tick: u64) -> u64 {
        self.limit.saturating_sub(state.sum)
    }

    fn fresh_at(&self, state: &LogState, tick: u64) -> u64 {
        let expires_at = |newest: u64| newest.saturating_add(self.width);
        state.newest().map_or(tick, expires_at)
    }

    fn spend(&self, state: &mut LogState, tick: u64, units: u64) {
        let room = (2 * self.limit).saturating_sub(state.sum);
        let units = u32::try_from(units.min(room)).unwrap_or(u32::MAX);
        if units > 0 {
            let stamp = self.stamp(tick);
            state.push(LogEntry { stamp, units });
        }
    }

    fn refund(&self, state: &mut LogState, _tick: u64, charged: u64, units: u64) {
        let stamp = self.stamp(charged);
        let found = state.entries.binary_search_by_key(&stamp, |e| e.stamp);
        let Ok(found) = found else { return };
        let entry = &mut state.entries[found];
        let refunded = u32::try_from(units).unwrap_or(u32::MAX).min(entry.units);
        entry.units -= refunded;
        state.sum -= u64::from(refunded);
        if entry.units == 0 {
            state.entries.remove(found);
        }
    }

    fn used(&self, state: &LogState, _tick: u64) -> u64 {
        state.sum
    }

    fn merge(&self, state: &mut LogState, other: &LogState, _tick: u64) {
        let mut other = other.clone();
        let seen = state.newest().max(other.newest()).unwrap_or(0).saturating_sub(self.grain - 1);
        self.advance(&mut other, seen, u64::MAX);
        self.advance(state, seen, u64::MAX);
        // A full log has folded the entries older than its oldest, and denies for as long as they last. If they were
        // counted again, two merges would give more than one.
        let full = [&*state, &other].into_iter().filter(|log| log.is_full());
        let since = full.filter_map(|log| log.entries.front()).map(|e| e.stamp);
        let since = since.max().unwrap_or(0);
        let mut union: Vec<LogEntry> = state.entries().collect();
        let mine = union.len();
        for theirs in other.entries() {
            match union[..mine].binary_search_by_key(&theirs.stamp, |e| e.stamp) {
                Ok(same) => union[same].units = union[same].units.max(theirs.units),
                Err(_) => union.push(theirs),
            }
        }
        union.retain(|entry| entry.stamp >= since);
        *state = self.clamped(LogState::from_entries(union));
    }
}
