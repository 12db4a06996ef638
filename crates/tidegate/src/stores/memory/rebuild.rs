//! One pass over a table that grows, shrinks or splits it, and drops expired entries.
//!
//! Entries are read in order and written in order into other blocks; a block that has been read is the next to be
//! written. So a pass needs hardly more memory than the table, and its cost is that of copying at most 4,096 entries.

use super::block::{Block, SLOTS_PER_BLOCK, TableEntry};
use super::budget::Budget;
use super::key::Key;
use super::table::CounterTable;

/// Spare blocks of a pass.
pub(super) struct SpareBlocks<'a> {
    blocks: Vec<Block>,
    budget: &'a Budget,
}

impl<'a> SpareBlocks<'a> {
    /// Begins with `blocks`.
    pub(super) fn new(blocks: Vec<Block>, budget: &'a Budget) -> Self {
        SpareBlocks { blocks, budget }
    }

    fn take(&mut self) -> Block {
        self.blocks.pop().unwrap_or_else(|| self.budget.force_block())
    }

    fn return_all(self) {
        if !self.blocks.is_empty() {
            self.budget.return_blocks(self.blocks);
        }
    }
}

impl CounterTable {
    /// Rebuilds the table from the entries for which `is_live` holds, with this number of blocks.
    pub(super) fn rebuild(
        &mut self,
        blocks: usize,
        mut spare: SpareBlocks<'_>,
        mut is_live: impl FnMut(&TableEntry) -> bool,
    ) {
        let mut writer = TableWriter::new(self.shift, blocks);
        drain(self, &mut spare, |entry, spare| {
            if is_live(entry) {
                writer.push(entry, spare);
            }
        });
        *self = writer.finish(blocks, &mut spare);
        spare.return_all();
    }

    /// Splits off the upper half of the keys. `blocks` are the numbers of blocks of the two halves.
    pub(super) fn split(
        &mut self,
        blocks: [usize; 2],
        mut spare: SpareBlocks<'_>,
        mut is_live: impl FnMut(&TableEntry) -> bool,
    ) -> CounterTable {
        let shift = self.shift;
        let mut writers = blocks.map(|blocks| TableWriter::new(shift + 1, blocks));
        drain(self, &mut spare, |entry, spare| {
            if is_live(entry) {
                writers[half_index(entry.key, shift)].push(entry, spare);
            }
        });
        let [low, high] = writers;
        *self = low.finish(blocks[0], &mut spare);
        let split_off = high.finish(blocks[1], &mut spare);
        spare.return_all();
        split_off
    }
}

/// The half that `key` belongs to, 0 or 1, in a table whose keys share `shift` leading bits.
pub(super) fn half_index(key: Key, shift: u32) -> usize {
    ((key.hi << shift) >> 63) as usize
}

fn drain(
    table: &mut CounterTable,
    spare: &mut SpareBlocks<'_>,
    mut each: impl FnMut(&TableEntry, &mut SpareBlocks<'_>),
) {
    for block in std::mem::take(&mut table.blocks) {
        for entry in block.entries() {
            each(&entry, spare);
        }
        spare.blocks.push(block);
    }
}

/// A table being written from front to back. Slots from `next` on are not written yet.
struct TableWriter {
    table: CounterTable,
    next: usize,
}

impl TableWriter {
    fn new(shift: u32, blocks: usize) -> TableWriter {
        TableWriter { table: CounterTable::sized(shift, blocks), next: 0 }
    }

    fn push(&mut self, entry: &TableEntry, spare: &mut SpareBlocks<'_>) {
        let slot = self.table.home(entry.key).max(self.next);
        self.clear_to(slot, spare);
        if slot == self.table.blocks.len() * SLOTS_PER_BLOCK {
            self.table.blocks.push(spare.take());
        }
        self.table.set(slot, entry);
        self.table.len += 1;
        self.next = slot + 1;
    }

    fn clear_to(&mut self, slot: usize, spare: &mut SpareBlocks<'_>) {
        for gap in self.next..slot {
            if gap == self.table.blocks.len() * SLOTS_PER_BLOCK {
                self.table.blocks.push(spare.take());
            }
            self.table.blocks[gap / SLOTS_PER_BLOCK].clear(gap);
        }
        self.next = slot;
    }

    /// Clears the rest of `blocks` blocks, or of as many as are needed to end with an empty slot after room for one
    /// more entry.
    fn finish(mut self, blocks: usize, spare: &mut SpareBlocks<'_>) -> CounterTable {
        let needed = match self.next {
            0 => 0,
            next => (next + 2).div_ceil(SLOTS_PER_BLOCK),
        };
        self.clear_to(blocks.max(needed) * SLOTS_PER_BLOCK, spare);
        self.table
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{EntryKind, Secs};
    use super::*;

    fn entry(hi: u64) -> TableEntry {
        TableEntry { key: Key { hi, lo: hi }, words: [hi, 1], kind: EntryKind::Bucket, expires: Secs::NEVER, tag: 7 }
    }

    fn insert(table: &mut CounterTable, budget: &Budget, hi: u64) {
        loop {
            let slot = table.locate(entry(hi).key).expect_err("a new key");
            if !table.is_full() && table.insert(slot, &entry(hi)).is_ok() {
                return;
            }
            let blocks = CounterTable::blocks_for(table.len + 1).max(table.blocks.len() + 1);
            table.rebuild(blocks, SpareBlocks::new(Vec::new(), budget), |_| true);
        }
    }

    fn check(keys: &[u64]) {
        let budget = Budget::new(u64::MAX);
        let mut table = CounterTable::empty(0);
        for hi in keys {
            insert(&mut table, &budget, *hi);
        }
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        let found: Vec<u64> = table.entries().map(|entry| entry.key.hi).collect();
        assert_eq!(found, sorted);
        for hi in keys {
            let slot = table.locate(entry(*hi).key).expect("an inserted key");
            assert_eq!(table.entry(slot).words, [*hi, 1]);
        }
        let mut high = table.split([1, 1], SpareBlocks::new(Vec::new(), &budget), |_| true);
        assert_eq!(table.len as usize, keys.iter().filter(|hi| **hi >> 63 == 0).count());
        for hi in keys {
            let half = if *hi >> 63 == 0 { &mut table } else { &mut high };
            let slot = half.locate(entry(*hi).key).expect("a key in its half");
            half.remove(slot);
        }
        assert_eq!(table.len + high.len, 0);
        assert_eq!(table.entries().count() + high.entries().count(), 0);
    }

    #[test]
    fn keys_stay_in_order_through_growth_split_and_removal() {
        let spread = |n: u64| (0..n).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        check(&spread(3_000).collect::<Vec<_>>());
        check(&[]);
    }

    #[test]
    fn keys_clustered_at_either_end_still_fit() {
        check(&(0..500).collect::<Vec<_>>());
        check(&(0..500).map(|i| u64::MAX - 1 - i).collect::<Vec<_>>());
    }
}
