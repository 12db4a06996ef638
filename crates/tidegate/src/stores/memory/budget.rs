//! The memory budget of the counters, and the pool of unused blocks.
//!
//! A block once allocated stays with the store: returned, it waits here for any table that grows. So memory freed in
//! one thread's allocator arena is never allocated a second time from another's, and the process never holds more than
//! was counted here.
//!
//! Lock order: the pool is locked last, under any shards.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::block::Block;

/// A budget of bytes.
pub(super) struct Budget {
    cap: u64,
    /// Bytes beyond the cap that only permits may use: counters cannot fill them.
    spare: u64,
    used: AtomicU64,
    pool: Mutex<Vec<Block>>,
}

impl Budget {
    pub(super) fn new(cap: u64) -> Self {
        Self::with_spare(cap, 0)
    }

    /// A budget of `cap` bytes, and of `spare` more for permits.
    pub(super) fn with_spare(cap: u64, spare: u64) -> Self {
        Budget { cap, spare, used: AtomicU64::new(0), pool: Mutex::new(Vec::new()) }
    }

    /// Maximum of bytes that may be used.
    pub(super) fn cap(&self) -> u64 {
        self.cap + self.spare
    }

    /// Bytes in use, including pooled blocks.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `count` blocks, or none at all.
    pub(super) fn take_blocks(&self, count: usize) -> Option<Vec<Block>> {
        let mut blocks = self.pooled(count);
        let missing = count - blocks.len();
        if missing > 0 && !self.try_take(missing as u64 * Block::BYTES) {
            self.return_blocks(blocks);
            return None;
        }
        blocks.extend((0..missing).map(|_| Block::new()));
        Some(blocks)
    }

    /// Whether `count` blocks are available now.
    pub(super) fn has_blocks(&self, count: usize) -> bool {
        let missing = count.saturating_sub(self.pool.lock().len());
        self.used().saturating_add(missing as u64 * Block::BYTES) <= self.cap
    }

    /// Takes a block, even beyond the cap: for the few that a rebuild needs temporarily and for a counter that must not
    /// be lost.
    pub(super) fn force_block(&self) -> Block {
        if let Some(block) = self.pooled(1).pop() {
            return block;
        }
        self.force_take(Block::BYTES);
        Block::new()
    }

    /// Returns blocks, whatever their contents. Blocks beyond the cap are freed, otherwise the next table to grow would
    /// use them.
    pub(super) fn return_blocks(&self, blocks: impl IntoIterator<Item = Block>) {
        let mut pool = self.pool.lock();
        for block in blocks {
            if self.used() > self.cap {
                self.release(Block::BYTES);
            } else {
                pool.push(block);
            }
        }
    }

    fn pooled(&self, count: usize) -> Vec<Block> {
        let mut pool = self.pool.lock();
        let left = pool.len().saturating_sub(count);
        pool.split_off(left)
    }

    /// Counts `bytes` of other memory, unless they exceed the cap.
    pub(super) fn try_take(&self, bytes: u64) -> bool {
        self.try_take_within(bytes, self.cap)
    }

    /// The same for permits.
    pub(super) fn try_take_for_permits(&self, bytes: u64) -> bool {
        self.try_take_within(bytes, self.cap())
    }

    /// Whether permits may use `bytes` that are forced.
    pub(super) fn fits_permits(&self, bytes: u64) -> bool {
        self.spare > 0 && self.used().saturating_add(bytes) <= self.cap()
    }

    fn try_take_within(&self, bytes: u64, cap: u64) -> bool {
        let fits = |used: u64| Some(used.saturating_add(bytes)).filter(|sum| *sum <= cap);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.is_ok()
    }

    /// Counts `bytes` of memory that is used even beyond the cap.
    pub(super) fn force_take(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts `bytes` of other memory as free again.
    pub(super) fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_block_is_used_again_before_another_is_made() {
        let budget = Budget::new(2 * Block::BYTES);
        let blocks = budget.take_blocks(2);
        assert!(blocks.is_some());
        assert!(budget.take_blocks(1).is_none());
        budget.return_blocks(blocks.into_iter().flatten());
        assert!(budget.take_blocks(3).is_none());
        assert!(budget.take_blocks(2).is_some());
        assert_eq!(budget.used(), 2 * Block::BYTES);
    }

    #[test]
    fn permits_find_room_that_counters_cannot_take() {
        let budget = Budget::with_spare(1_000, 100);
        assert!(budget.try_take(1_000) && !budget.try_take(1));
        assert!(budget.fits_permits(100) && !budget.fits_permits(101));
        assert!(budget.try_take_for_permits(100) && !budget.try_take_for_permits(1));
        budget.release(50);
        assert!(!budget.try_take(1), "freed bytes are for permits");
        assert!(budget.try_take_for_permits(50));
    }

    #[test]
    fn a_block_beyond_the_cap_is_not_pooled() {
        let budget = Budget::new(Block::BYTES);
        let blocks = [budget.force_block(), budget.force_block()];
        assert_eq!(budget.used(), 2 * Block::BYTES);
        budget.return_blocks(blocks);
        assert_eq!(budget.used(), Block::BYTES);
        assert!(budget.take_blocks(2).is_none());
    }
}
