//! Reads a counter under a limit, and writes it.
//!
//! A counter made under other parameters is converted from the limit it was made with. If that limit is no longer
//! known, the counter is read as fully used: never as too little. Nothing here decides.

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::Charge;
use tidegate_core::units::Nanos;

use super::block::{EntryKind, Secs, TableEntry};
use super::budget::Budget;
use super::key::Key;
use super::shard::{Position, Shard};
use super::{MemoryStore, count};

/// The current time, in the two forms that a decision needs.
#[derive(Clone, Copy)]
pub(super) struct TimePoint {
    pub(super) now: Nanos,
    pub(super) secs: Secs,
}

/// A counter to be written.
pub(super) struct CounterWrite<'a> {
    pub(super) key: Key,
    pub(super) limit: &'a Limit,
    pub(super) state: CounterState,
    /// When it becomes equivalent to a fresh counter.
    pub(super) fresh_at: Nanos,
}

impl<C> MemoryStore<C> {
    pub(super) fn time_point(&self, now: Nanos) -> TimePoint {
        TimePoint { now, secs: Secs::present(self.began, now) }
    }

    /// The state of `entry` under the limit of `charge`.
    #[inline]
    pub(super) fn read(&self, shard: &Shard, entry: &TableEntry, charge: &Charge<'_>, at: TimePoint) -> CounterState {
        if entry.expires <= at.secs {
            return charge.limit.fresh(at.now);
        }
        if entry.tag == charge.limit.tag() && entry.kind == EntryKind::of(&charge.limit) {
            return shard.out_of_line.state(entry);
        }
        self.converted(shard, entry, charge, at.now)
    }

    #[cold]
    fn converted(&self, shard: &Shard, entry: &TableEntry, charge: &Charge<'_>, now: Nanos) -> CounterState {
        let limit = &charge.limit;
        let known = self.registry.get(entry.tag);
        match known.filter(|old| EntryKind::of(old) == entry.kind && old.tag() != limit.tag()) {
            // The registry has the limit of some subject; a staggered window differs for each subject.
            Some(old) => {
                let old = old.for_subject(charge.subject.seed());
                limit.adopt(&old, shard.out_of_line.state(entry), now)
            }
            None => limit.with_used(limit.full_capacity(), now),
        }
    }

    /// Overwrites the entry at `place`, of which `was` is the current value.
    #[inline]
    pub(super) fn rewrite(
        &self,
        shard: &mut Shard,
        place: Position,
        was: &TableEntry,
        write: CounterWrite<'_>,
        now: Secs,
        budget: &Budget,
    ) {
        if was.tag != write.limit.tag() {
            self.registry.note(write.limit, &mut shard.recent_tags);
            if was.expires > now {
                count(&self.events.converted);
            }
        }
        let words = shard.out_of_line.words(Some(was), write.state, budget);
        shard.set(place, &self.entry(write.key, write.limit, words, write.fresh_at));
    }

    /// Overwrites a counter, or inserts it.
    pub(super) fn write(&self, shard: &mut Shard, write: CounterWrite<'_>, now: Secs, budget: &Budget) {
        if let Some(place) = shard.find(write.key) {
            let was = shard.entry(place);
            return self.rewrite(shard, place, &was, write, now, budget);
        }
        self.registry.note(write.limit, &mut shard.recent_tags);
        let words = shard.out_of_line.words(None, write.state, budget);
        let entry = self.entry(write.key, write.limit, words, write.fresh_at);
        shard.insert(&entry, now, budget);
    }

    fn entry(&self, key: Key, limit: &Limit, words: [u64; 2], fresh_at: Nanos) -> TableEntry {
        TableEntry {
            key,
            words,
            kind: EntryKind::of(limit),
            expires: Secs::expiry(self.began, fresh_at),
            tag: limit.tag(),
        }
    }
}
