//! A table of entries in ascending order of their keys, with gaps: ordered linear probing.
//!
//! A key's home is its position in the table's range, scaled to the number of slots, so homes ascend with keys. Every
//! entry is at its home or after it, with no gap between: a search starts at home and ends at the first key that is not
//! smaller. Because order is kept, growing, dropping expired entries and splitting are each one pass from front to back
//! (`rebuild`); nothing is hashed again. A few slots past the last home catch entries pushed over the end. The very
//! last slot is always empty, so that no search has to check for the end and none wraps.

use super::block::{Block, EntryMut, SLOTS_PER_BLOCK, Secs, TableEntry};
use super::key::{Key, SHARD_BITS};

/// Maximum of entries that one pass may move while its shard is locked.
pub(super) const MAX_ENTRIES: u32 = 4_096;
/// Maximum of bits by which a shard's tables are distinguished. Keys that still cluster in one table then were not made
/// by a hash; the table grows past [`MAX_ENTRIES`].
const MAX_SPLIT_BITS: u32 = 12;
/// Slots past the last home. Even at the maximum fill a run past the end is hardly ever longer; if one is, the table
/// grows.
const SLACK: usize = 24;

/// A table of at most [`MAX_ENTRIES`] entries, as long as it can be split.
pub(super) struct CounterTable {
    pub(super) blocks: Vec<Block>,
    /// Leading bits that all keys of this table share.
    pub(super) shift: u32,
    homes: u32,
    pub(super) len: u32,
    /// The size at which room must be made.
    full_at: u32,
    /// No entry expires before this. May be earlier than the first expiry.
    pub(super) soonest: Secs,
}

/// No slot is left near the end.
pub(super) struct TableFull;

impl CounterTable {
    /// A table without memory.
    pub(super) fn empty(shift: u32) -> CounterTable {
        CounterTable::sized(shift, 0)
    }

    /// A table that will have `blocks` blocks, to be filled by `rebuild`.
    pub(super) fn sized(shift: u32, blocks: usize) -> CounterTable {
        let homes = (blocks * SLOTS_PER_BLOCK).saturating_sub(SLACK) as u32;
        let mut table = CounterTable {
            blocks: Vec::with_capacity(blocks),
            shift,
            homes,
            len: 0,
            full_at: homes / 64 * 55 + homes % 64 * 55 / 64,
            soonest: Secs::NEVER,
        };
        if table.can_split() {
            table.full_at = table.full_at.min(MAX_ENTRIES);
        }
        table
    }

    /// Blocks for `entries` entries at 77% fill, from where the table may grow to 86%.
    pub(super) fn blocks_for(entries: u32) -> usize {
        match entries as usize {
            0 => 0,
            n => (n * 100 / 77 + SLACK).div_ceil(SLOTS_PER_BLOCK),
        }
    }

    /// Minimum of blocks for two tables with `entries` entries in total, and room for one more in each.
    pub(super) fn blocks_for_halves(entries: u32) -> usize {
        ((entries as usize + 2) * 100 / 77 - 1 + 2 * SLACK).div_ceil(SLOTS_PER_BLOCK)
    }

    /// Whether its keys have bits left to split it by.
    pub(super) fn can_split(&self) -> bool {
        self.shift < SHARD_BITS + MAX_SPLIT_BITS
    }

    pub(super) fn is_full(&self) -> bool {
        self.len >= self.full_at
    }

    #[inline]
    pub(super) fn home(&self, key: Key) -> usize {
        let within = u128::from(key.hi << self.shift);
        ((within * u128::from(self.homes)) >> 64) as usize
    }

    /// The slot of `key`, or the slot where it would be inserted.
    #[inline]
    pub(super) fn locate(&self, key: Key) -> Result<usize, usize> {
        if self.blocks.is_empty() {
            return Err(0);
        }
        let mut slot = self.home(key);
        let mut found = self.key(slot);
        // Two keys almost never agree in their first halves; then the second halves decide.
        while found.hi < key.hi || (found.hi == key.hi && found.lo < key.lo) {
            slot += 1;
            found = self.key(slot);
        }
        if found == key { Ok(slot) } else { Err(slot) }
    }

    #[inline]
    fn key(&self, slot: usize) -> Key {
        self.blocks[slot / SLOTS_PER_BLOCK].key(slot)
    }

    #[inline]
    pub(super) fn entry(&self, slot: usize) -> TableEntry {
        self.blocks[slot / SLOTS_PER_BLOCK].entry(slot)
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, slot: usize) -> EntryMut<'_> {
        self.blocks[slot / SLOTS_PER_BLOCK].entry_mut(slot, &mut self.soonest)
    }

    /// Overwrites the entry at `slot`, which has the same key.
    #[inline]
    pub(super) fn set(&mut self, slot: usize, entry: &TableEntry) {
        self.soonest = self.soonest.min(entry.expires);
        self.blocks[slot / SLOTS_PER_BLOCK].set(slot, entry);
    }

    /// Inserts `entry` at the slot that [`CounterTable::locate`] returned.
    pub(super) fn insert(&mut self, slot: usize, entry: &TableEntry) -> Result<(), TableFull> {
        let last = self.blocks.len() * SLOTS_PER_BLOCK;
        let mut gap = slot;
        while gap < last && self.key(gap) != Key::NONE {
            gap += 1;
        }
        if gap + 1 >= last {
            return Err(TableFull);
        }
        self.shift_right(slot, gap);
        self.set(slot, entry);
        self.len += 1;
        Ok(())
    }

    /// Moves the entries of `slot..gap` one to the right, into the gap.
    fn shift_right(&mut self, slot: usize, mut gap: usize) {
        while gap > slot {
            let (block, within) = (gap / SLOTS_PER_BLOCK, gap % SLOTS_PER_BLOCK);
            if within == 0 {
                let entry = self.blocks[block - 1].entry(SLOTS_PER_BLOCK - 1);
                self.blocks[block].set(0, &entry);
                gap -= 1;
            } else {
                let from = slot.max(gap - within);
                self.blocks[block].shift_right(from % SLOTS_PER_BLOCK, within);
                gap = from;
            }
        }
    }

    /// Removes the entry at `slot` and closes the gap.
    pub(super) fn remove(&mut self, slot: usize) -> TableEntry {
        let removed = self.entry(slot);
        let mut gap = slot;
        loop {
            let next = gap + 1;
            let key = self.key(next);
            if key == Key::NONE || self.home(key) > gap {
                break;
            }
            let entry = self.entry(next);
            self.blocks[gap / SLOTS_PER_BLOCK].set(gap, &entry);
            gap = next;
        }
        self.blocks[gap / SLOTS_PER_BLOCK].clear(gap);
        self.len -= 1;
        removed
    }

    /// Every entry, in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = TableEntry> + '_ {
        let blocks = self.blocks.iter();
        blocks.flat_map(|block| block.entries())
    }

    /// Counts the entries that have expired by `now`. If there are none, updates the soonest expiry.
    pub(super) fn count_expired(&mut self, now: Secs) -> u32 {
        if now < self.soonest {
            return 0;
        }
        let (mut expired, mut soonest) = (0, Secs::NEVER);
        for block in &self.blocks {
            for slot in 0..SLOTS_PER_BLOCK {
                if block.key(slot) == Key::NONE {
                    continue;
                }
                match block.expires(slot) {
                    expires if expires <= now => expired += 1,
                    expires => soonest = soonest.min(expires),
                }
            }
        }
        if expired == 0 {
            self.soonest = soonest;
        }
        expired
    }
}
