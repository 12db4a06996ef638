//! The counters under one lock: a directory of tables, each for a range of keys.
//!
//! The bits of a key after those that choose the shard choose the table. A table that exceeds its size is split by one
//! more bit, and only the directory doubles. So making room never moves more than one table's entries, however many
//! counters there are. Knows nothing of limits or clocks: the current time is an argument.

use super::block::{Block, EntryMut, Secs, TableEntry};
use super::budget::Budget;
use super::key::{Key, SHARD_BITS};
use super::out_of_line::OutOfLineStates;
use super::rebuild::{SpareBlocks, half_index};
use super::registry::RecentTags;
use super::table::{CounterTable, MAX_ENTRIES};

/// Counters under one lock. The fields that every decision reads are small enough to share a cache line with the lock;
/// the rest is boxed.
pub(super) struct Shard {
    /// The index of the table for each value of the next bits of a key.
    directory: Box<[u16]>,
    tables: Vec<CounterTable>,
    /// The number of bits that the directory reads.
    depth: u32,
    pub(super) out_of_line: Box<OutOfLineStates>,
    pub(super) recent_tags: Box<RecentTags>,
}

/// The position of an entry. Valid until the shard is unlocked or room is made in it.
#[derive(Clone, Copy)]
pub(super) struct Position {
    table: usize,
    slot: usize,
}

/// Only live counters are left, and the budget allows no more.
pub(super) struct ShardFull;

impl Shard {
    pub(super) fn new() -> Shard {
        Shard {
            directory: Box::new([0]),
            tables: vec![CounterTable::empty(SHARD_BITS)],
            depth: 0,
            out_of_line: Box::default(),
            recent_tags: Box::default(),
        }
    }

    #[inline]
    fn route(&self, key: Key) -> usize {
        if self.depth == 0 {
            return 0;
        }
        let next = ((key.hi << SHARD_BITS) >> 1) >> (63 - self.depth);
        usize::from(self.directory[next as usize])
    }

    /// The position of `key`.
    #[inline]
    pub(super) fn find(&self, key: Key) -> Option<Position> {
        let table = self.route(key);
        let slot = self.tables[table].locate(key).ok()?;
        Some(Position { table, slot })
    }

    #[inline]
    pub(super) fn entry(&self, place: Position) -> TableEntry {
        self.tables[place.table].entry(place.slot)
    }

    /// The entry of `key`.
    pub(super) fn get(&self, key: Key) -> Option<TableEntry> {
        self.find(key).map(|place| self.entry(place))
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, place: Position) -> EntryMut<'_> {
        self.tables[place.table].entry_mut(place.slot)
    }

    /// Overwrites an entry. Its out-of-line object is already in the new words or freed.
    #[inline]
    pub(super) fn set(&mut self, place: Position, entry: &TableEntry) {
        self.tables[place.table].set(place.slot, entry);
    }

    /// Inserts an entry whose key is not here, beyond the budget if there is no room.
    pub(super) fn insert(&mut self, entry: &TableEntry, now: Secs, budget: &Budget) {
        loop {
            let table = self.route(entry.key);
            let slot = match self.tables[table].locate(entry.key) {
                Ok(slot) | Err(slot) => slot,
            };
            if !self.tables[table].is_full() && self.tables[table].insert(slot, entry).is_ok() {
                return;
            }
            if self.make_room(table, now, budget).is_err() {
                self.force_grow(table, budget);
            }
        }
    }

    /// Overwrites the entry with the same key, or inserts it, beyond the budget if there is no room.
    pub(super) fn put(&mut self, entry: &TableEntry, now: Secs, budget: &Budget) {
        match self.find(entry.key) {
            Some(place) => self.set(place, entry),
            None => self.insert(entry, now, budget),
        }
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, place: Position, budget: &Budget) {
        let entry = self.tables[place.table].remove(place.slot);
        self.out_of_line.release(&entry, budget);
    }

    /// Makes room for `key` if necessary. Fails if it would not fit.
    pub(super) fn ensure_room(&mut self, key: Key, now: Secs, budget: &Budget) -> Result<(), ShardFull> {
        let table = self.route(key);
        if self.tables[table].is_full() {
            self.make_room(table, now, budget)?;
        }
        Ok(())
    }

    /// Drops expired entries of a table; splits or grows it if that is not enough.
    fn make_room(&mut self, table: usize, now: Secs, budget: &Budget) -> Result<(), ShardFull> {
        let expired = self.tables[table].count_expired(now);
        let found = &self.tables[table];
        let (live, have) = (found.len - expired, found.blocks.len());
        if found.can_split() && live >= MAX_ENTRIES - MAX_ENTRIES / 8 {
            // A flood of new subjects gets here in vain when memory is used up: then no entry is read.
            let more = CounterTable::blocks_for_halves(live).saturating_sub(have);
            let split =
                if more == 0 || budget.has_blocks(more) { self.split(table, now, budget) } else { Err(ShardFull) };
            return split.or_else(|full| self.purge(table, expired, now, budget).ok_or(full));
        }
        // A run at the end may be in the way although the table is not full: then one block more.
        let at_least = if found.is_full() { have } else { have + 1 };
        let want = CounterTable::blocks_for(live + 1).max(at_least);
        if want <= have {
            return self.purge(table, expired, now, budget).ok_or(ShardFull);
        }
        let spare = budget.take_blocks(want - have).map(|spare| (want, spare));
        let spare = spare.or_else(|| Some((have + 1, budget.take_blocks(1)?)));
        match spare {
            Some((want, spare)) => {
                self.rebuild_table(table, want, spare, now, budget);
                Ok(())
            }
            None => self.purge(table, expired, now, budget).ok_or(ShardFull),
        }
    }

    /// Drops expired entries, if there are any.
    fn purge(&mut self, table: usize, expired: u32, now: Secs, budget: &Budget) -> Option<()> {
        let have = self.tables[table].blocks.len();
        (expired > 0).then(|| self.rebuild_table(table, have, Vec::new(), now, budget))
    }

    fn force_grow(&mut self, table: usize, budget: &Budget) {
        let want = self.tables[table].blocks.len() + 1;
        self.rebuild_table(table, want, vec![budget.force_block()], Secs::ZERO, budget);
    }

    fn rebuild_table(&mut self, table: usize, blocks: usize, spare: Vec<Block>, now: Secs, budget: &Budget) {
        let (table, out_of_line) = (&mut self.tables[table], &mut self.out_of_line);
        let spare_blocks = SpareBlocks::new(spare, budget);
        table.rebuild(blocks, spare_blocks, |entry| keep_or_free(entry, now, out_of_line, budget));
    }

    /// Splits a table by its next bit.
    fn split(&mut self, table: usize, now: Secs, budget: &Budget) -> Result<(), ShardFull> {
        let found = &self.tables[table];
        let (shift, have) = (found.shift, found.blocks.len());
        let mut halves = [0; 2];
        for entry in found.entries().filter(|entry| entry.expires > now) {
            halves[half_index(entry.key, shift)] += 1;
        }
        let want = halves.map(|entries| CounterTable::blocks_for(entries + 1));
        let more = (want[0] + want[1]).saturating_sub(have);
        let spare = budget.take_blocks(more).ok_or(ShardFull)?;
        let (low, out_of_line) = (&mut self.tables[table], &mut self.out_of_line);
        let spare_blocks = SpareBlocks::new(spare, budget);
        let high = low.split(want, spare_blocks, |entry| keep_or_free(entry, now, out_of_line, budget));
        self.insert_in_directory(table, high, budget);
        Ok(())
    }

    /// Enters the upper half of `table` in the directory.
    fn insert_in_directory(&mut self, table: usize, high: CounterTable, budget: &Budget) {
        if high.shift - SHARD_BITS > self.depth {
            budget.force_take((self.directory.len() * size_of::<u16>()) as u64);
            let doubled = self.directory.iter().flat_map(|table| [*table, *table]);
            self.directory = doubled.collect();
            self.depth += 1;
        }
        let own = |entry: &u16| usize::from(*entry) == table;
        let first = self.directory.iter().position(own).unwrap_or(0);
        let span = 1 << (self.depth - (high.shift - SHARD_BITS));
        self.directory[first + span..first + 2 * span].fill(self.tables.len() as u16);
        self.tables.push(high);
    }

    /// Entries, live or not.
    pub(super) fn len(&self) -> u64 {
        self.tables.iter().map(|table| u64::from(table.len)).sum()
    }

    /// Number of tables.
    pub(super) fn tables(&self) -> usize {
        self.tables.len()
    }

    /// The tags of the live entries of one table.
    pub(super) fn tags(&self, table: usize, now: Secs) -> impl Iterator<Item = u32> {
        let entries = self.tables.get(table).into_iter().flat_map(CounterTable::entries);
        entries.filter(move |entry| entry.expires > now).map(|entry| entry.tag)
    }

    /// Drops expired entries of one table and returns the blocks it no longer needs. Returns the number of dropped
    /// entries.
    pub(super) fn sweep(&mut self, table: usize, now: Secs, budget: &Budget) -> u32 {
        let Some(found) = self.tables.get_mut(table) else {
            return 0;
        };
        let expired = found.count_expired(now);
        let (want, have) = (CounterTable::blocks_for(found.len - expired), found.blocks.len());
        // Shrinks only by a quarter or more, or a table of varying size would be rebuilt at every change.
        let shrinks = want < have - have / 4;
        if expired > 0 || shrinks {
            let blocks = if shrinks { want } else { have };
            self.rebuild_table(table, blocks, Vec::new(), now, budget);
        }
        expired
    }
}

/// Whether an entry is live. If not, its out-of-line object is freed.
fn keep_or_free(entry: &TableEntry, now: Secs, out_of_line: &mut OutOfLineStates, budget: &Budget) -> bool {
    let live = entry.expires > now;
    if !live {
        out_of_line.release(entry, budget);
    }
    live
}
