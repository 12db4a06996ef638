//! One pass over a table that makes it larger, smaller or two, and drops what has expired.
//!
//! Entries are read in order and written in order into other blocks; a block that has been read is
//! the next to be written. So a pass needs hardly more memory than the table, and its cost is that
//! of copying at most 4,096 entries.

use super::block::{Block, Entry, SLOTS};
use super::budget::Budget;
use super::key::Key;
use super::table::Table;

/// Blocks at hand during a pass.
pub(super) struct Stock<'a> {
    spare: Vec<Block>,
    budget: &'a Budget,
}

impl<'a> Stock<'a> {
    /// A stock that begins with `spare`.
    pub(super) fn new(spare: Vec<Block>, budget: &'a Budget) -> Self {
        Stock { spare, budget }
    }

    fn next(&mut self) -> Block {
        self.spare.pop().unwrap_or_else(|| self.budget.forced())
    }

    fn give_back(self) {
        if !self.spare.is_empty() {
            self.budget.give_back(self.spare);
        }
    }
}

impl Table {
    /// Lays the entries that `keep` wants out over so many blocks.
    pub(super) fn rebuild(
        &mut self,
        blocks: usize,
        mut stock: Stock<'_>,
        mut keep: impl FnMut(&Entry) -> bool,
    ) {
        let mut layer = Layer::new(self.shift, blocks);
        drain(self, &mut stock, |entry, stock| {
            if keep(entry) {
                layer.push(entry, stock);
            }
        });
        *self = layer.finish(blocks, &mut stock);
        stock.give_back();
    }

    /// Splits off the upper half of the keys, over so many blocks each.
    pub(super) fn split(
        &mut self,
        blocks: [usize; 2],
        mut stock: Stock<'_>,
        mut keep: impl FnMut(&Entry) -> bool,
    ) -> Table {
        let shift = self.shift;
        let mut layers = blocks.map(|blocks| Layer::new(shift + 1, blocks));
        drain(self, &mut stock, |entry, stock| {
            if keep(entry) {
                layers[upper(entry.key, shift)].push(entry, stock);
            }
        });
        let [low, high] = layers;
        *self = low.finish(blocks[0], &mut stock);
        let split_off = high.finish(blocks[1], &mut stock);
        stock.give_back();
        split_off
    }
}

/// Which half of a table with `shift` leading bits in common `key` is in: 0 or 1.
pub(super) fn upper(key: Key, shift: u32) -> usize {
    ((key.hi << shift) >> 63) as usize
}

fn drain(table: &mut Table, stock: &mut Stock<'_>, mut each: impl FnMut(&Entry, &mut Stock<'_>)) {
    for block in std::mem::take(&mut table.blocks) {
        for entry in block.entries() {
            each(&entry, stock);
        }
        stock.spare.push(block);
    }
}

/// A table being written from front to back. Slots from `next` on are not written yet.
struct Layer {
    table: Table,
    next: usize,
}

impl Layer {
    fn new(shift: u32, blocks: usize) -> Layer {
        Layer {
            table: Table::sized(shift, blocks),
            next: 0,
        }
    }

    fn push(&mut self, entry: &Entry, stock: &mut Stock<'_>) {
        let slot = self.table.home(entry.key).max(self.next);
        self.clear_to(slot, stock);
        if slot == self.table.blocks.len() * SLOTS {
            self.table.blocks.push(stock.next());
        }
        self.table.set(slot, entry);
        self.table.len += 1;
        self.next = slot + 1;
    }

    fn clear_to(&mut self, slot: usize, stock: &mut Stock<'_>) {
        for gap in self.next..slot {
            if gap == self.table.blocks.len() * SLOTS {
                self.table.blocks.push(stock.next());
            }
            self.table.blocks[gap / SLOTS].clear(gap);
        }
        self.next = slot;
    }

    /// Clears the rest of so many blocks, or of as many as it takes to end with an empty slot after
    /// room for one more entry.
    fn finish(mut self, blocks: usize, stock: &mut Stock<'_>) -> Table {
        let needed = match self.next {
            0 => 0,
            next => (next + 2).div_ceil(SLOTS),
        };
        self.clear_to(blocks.max(needed) * SLOTS, stock);
        self.table
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{Kind, Secs};
    use super::*;

    fn entry(hi: u64) -> Entry {
        Entry {
            key: Key { hi, lo: hi },
            words: [hi, 1],
            kind: Kind::Bucket,
            expires: Secs::NEVER,
            tag: 7,
        }
    }

    fn insert(table: &mut Table, budget: &Budget, hi: u64) {
        loop {
            let slot = table.locate(entry(hi).key).expect_err("a new key");
            if !table.crowded() && table.insert(slot, &entry(hi)).is_ok() {
                return;
            }
            let blocks = Table::blocks_for(table.len + 1).max(table.blocks.len() + 1);
            table.rebuild(blocks, Stock::new(Vec::new(), budget), |_| true);
        }
    }

    fn check(keys: &[u64]) {
        let budget = Budget::new(u64::MAX);
        let mut table = Table::empty(0);
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
        let mut high = table.split([1, 1], Stock::new(Vec::new(), &budget), |_| true);
        assert_eq!(
            table.len as usize,
            keys.iter().filter(|hi| **hi >> 63 == 0).count()
        );
        for hi in keys {
            let half = if *hi >> 63 == 0 {
                &mut table
            } else {
                &mut high
            };
            let slot = half.locate(entry(*hi).key).expect("a key in its half");
            half.remove(slot);
        }
        assert_eq!(table.len + high.len, 0);
        assert_eq!(table.entries().count() + high.entries().count(), 0);
    }

    #[test]
    fn keys_come_back_in_order_through_growth_split_and_removal() {
        let spread = |n: u64| (0..n).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        check(&spread(3_000).collect::<Vec<_>>());
        check(&[]);
    }

    #[test]
    fn keys_that_crowd_at_either_end_still_fit() {
        check(&(0..500).collect::<Vec<_>>());
        check(&(0..500).map(|i| u64::MAX - 1 - i).collect::<Vec<_>>());
    }
}
