//! How a state is stored: in the two words of an entry, and out of line if it does not fit.
//!
//! A bucket, a fixed and a sliding window always fit the words. So do a strict window with one sub-window in use and a
//! log with one admission. Larger states are out of line, in slabs. If there is no memory for that, a state is
//! compacted: counts move to the newest sub-window, admissions to the next newer stamp. That counts too much for a
//! while, never too little, and expires no later.

use tidegate_core::algorithms::{
    BucketState, CounterState, FixedState, LogEntry, LogState, SlidingState, StrictState, TRACKED_SUB_WINDOWS,
    TwoWordState,
};
use tidegate_core::units::Nanos;

use super::block::{EntryKind, TableEntry};
use super::budget::Budget;
use super::object_slab::ObjectSlab;
use super::permit_list::PermitList;

/// Set in the second word if its low half is an index in a slab. The first word then is the newest sub-window of a
/// strict window, or otherwise the bytes that were counted for the object there.
const OUT_OF_LINE: u64 = 1 << 63;

/// The out-of-line states of one shard.
#[derive(Default)]
pub(super) struct OutOfLineStates {
    counts: ObjectSlab<[u32; TRACKED_SUB_WINDOWS]>,
    logs: ObjectSlab<LogState>,
    permits: ObjectSlab<PermitList>,
}

impl OutOfLineStates {
    /// The state of an entry. Not for refunds and permits, which have none.
    #[inline]
    pub(super) fn state(&self, entry: &TableEntry) -> CounterState {
        match entry.kind {
            EntryKind::Bucket | EntryKind::Refund | EntryKind::Permits => {
                CounterState::Bucket(BucketState::from_words(entry.words))
            }
            EntryKind::Fixed => CounterState::Fixed(FixedState::from_words(entry.words)),
            EntryKind::Sliding => CounterState::Sliding(SlidingState::from_words(entry.words)),
            EntryKind::Strict => CounterState::Strict(self.strict(entry)),
            EntryKind::Log => CounterState::Log(self.log(entry)),
        }
    }

    fn strict(&self, entry: &TableEntry) -> StrictState {
        let [index, count] = entry.words;
        let mut counts = [0; TRACKED_SUB_WINDOWS];
        counts[0] = count as u32;
        if let Some(number) = out_of_line_index(entry) {
            counts = *self.counts.get(number);
        }
        StrictState { index, counts }
    }

    fn log(&self, entry: &TableEntry) -> LogState {
        let [stamp, units] = entry.words;
        match out_of_line_index(entry) {
            Some(number) => self.logs.get(number).clone(),
            None if units == 0 => LogState::default(),
            None => LogState::from_entries(vec![LogEntry { stamp, units: units as u32 }]),
        }
    }

    /// The words of `state` for an entry that is new, or was `was`. The out-of-line memory of `was` is reused or freed.
    #[inline]
    pub(super) fn words(&mut self, was: Option<&TableEntry>, state: CounterState, budget: &Budget) -> [u64; 2] {
        let words = match state {
            CounterState::Bucket(bucket) => bucket.to_words(),
            CounterState::Fixed(fixed) => fixed.to_words(),
            CounterState::Sliding(sliding) => sliding.to_words(),
            CounterState::Strict(strict) => {
                let reused = self.reuse(was, EntryKind::Strict, budget);
                return self.strict_words(reused.map(|(number, _)| number), &strict, budget);
            }
            CounterState::Log(log) => {
                let reused = self.reuse(was, EntryKind::Log, budget);
                return self.log_words(reused, log, budget);
            }
        };
        if let Some(was) = was {
            self.release(was, budget);
        }
        words
    }

    /// The index of the out-of-line object of an entry of the same kind, and the bytes that were counted for it. The
    /// object of an entry of another kind is freed.
    fn reuse(&mut self, was: Option<&TableEntry>, kind: EntryKind, budget: &Budget) -> Option<(u32, u64)> {
        let was = was?;
        if was.kind == kind {
            return Some((out_of_line_index(was)?, was.words[0]));
        }
        self.release(was, budget);
        None
    }

    /// Frees the out-of-line object of an entry.
    #[inline]
    pub(super) fn release(&mut self, entry: &TableEntry, budget: &Budget) {
        if !matches!(entry.kind, EntryKind::Strict | EntryKind::Log | EntryKind::Permits) {
            return;
        }
        if let Some(number) = out_of_line_index(entry) {
            self.free(entry, number, budget);
        }
    }

    fn free(&mut self, entry: &TableEntry, number: u32, budget: &Budget) {
        let release = |bytes| budget.release(bytes);
        match entry.kind {
            EntryKind::Strict => {
                self.counts.remove(number, release);
                return;
            }
            EntryKind::Log => drop(self.logs.remove(number, release)),
            _ => drop(self.permits.remove(number, release)),
        }
        budget.release(entry.words[0]);
    }

    fn strict_words(&mut self, reused: Option<u32>, state: &StrictState, budget: &Budget) -> [u64; 2] {
        let StrictState { index, counts } = state;
        if counts[1..].iter().all(|count| *count == 0) {
            if let Some(number) = reused {
                self.counts.remove(number, |bytes| budget.release(bytes));
            }
            return [*index, u64::from(counts[0])];
        }
        let place = reused.or_else(|| self.counts.allocate(|bytes| budget.try_take(bytes)));
        if let Some(number) = place {
            *self.counts.get_mut(number) = *counts;
            return [*index, OUT_OF_LINE | u64::from(number)];
        }
        let newest = counts.iter().position(|count| *count > 0).unwrap_or(0);
        let sum = counts.iter().fold(0_u32, |sum, count| sum.saturating_add(*count));
        [index.saturating_sub(newest as u64), u64::from(sum)]
    }

    fn log_words(&mut self, reused: Option<(u32, u64)>, mut log: LogState, budget: &Budget) -> [u64; 2] {
        let mut counted = reused.map_or(0, |(_, bytes)| bytes);
        let mut place = reused.map(|(number, _)| number);
        while log.entries().len() > 1 {
            let bytes = log_bytes(&log);
            if bytes <= counted || budget.try_take(bytes - counted) {
                budget.release(counted.saturating_sub(bytes));
                counted = bytes;
                place = place.or_else(|| self.logs.allocate(|bytes| budget.try_take(bytes)));
                if let Some(number) = place {
                    *self.logs.get_mut(number) = log;
                    return [counted, OUT_OF_LINE | u64::from(number)];
                }
            }
            log = compacted(&log);
        }
        budget.release(counted);
        if let Some(number) = place {
            self.logs.remove(number, |bytes| budget.release(bytes));
        }
        let only = log.entries().next();
        only.map_or([0, 0], |entry| [entry.stamp, u64::from(entry.units)])
    }

    /// The permit list of an entry; `None` if its permits are only counted.
    pub(super) fn permits(&mut self, entry: &TableEntry) -> Option<&mut PermitList> {
        out_of_line_index(entry).map(|number| self.permits.get_mut(number))
    }

    /// The words of an entry with an empty list of permits, if there is memory for it.
    pub(super) fn permit_words(&mut self, budget: &Budget) -> Option<[u64; 2]> {
        let number = self.permits.allocate(|bytes| budget.try_take_for_permits(bytes))?;
        Some([0, OUT_OF_LINE | u64::from(number)])
    }

    /// Adds a permit to an entry. Returns whether there was memory for it.
    pub(super) fn put_permit(&mut self, entry: &mut TableEntry, holder: u128, until: Nanos, budget: &Budget) -> bool {
        let counted = entry.words[0];
        let Some(list) = self.permits(entry) else {
            return false;
        };
        let bytes = list.bytes_with_one_more();
        if bytes > counted && !budget.try_take_for_permits(bytes - counted) {
            return false;
        }
        list.put(holder, until);
        entry.words[0] = bytes.max(counted);
        true
    }

    /// Releases the bytes that the permits of an entry no longer need. Returns the expiry of the last permit.
    pub(super) fn count_permits(&mut self, entry: &mut TableEntry, budget: &Budget) -> Nanos {
        let Some(list) = self.permits(entry) else {
            return Nanos::ZERO;
        };
        let (bytes, last) = (list.bytes(), list.last_end());
        budget.release(entry.words[0].saturating_sub(bytes));
        entry.words[0] = entry.words[0].min(bytes);
        last
    }
}

fn out_of_line_index(entry: &TableEntry) -> Option<u32> {
    (entry.words[1] & OUT_OF_LINE != 0).then_some(entry.words[1] as u32)
}

/// The memory of a log: a queue doubles as it grows.
fn log_bytes(log: &LogState) -> u64 {
    let room = log.entries().len().next_power_of_two().max(4) * 2;
    (room * size_of::<LogEntry>()) as u64 + 16
}

/// A log of half as many entries: each pair becomes one entry with the newer stamp.
fn compacted(log: &LogState) -> LogState {
    let mut entries: Vec<LogEntry> = log.entries().collect();
    for pair in entries.chunks_mut(2) {
        if let [older, newer] = pair {
            older.stamp = newer.stamp;
        }
    }
    LogState::from_entries(entries)
}
