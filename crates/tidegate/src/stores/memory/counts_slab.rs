//! The eleven counts of a strict window, which do not fit an entry: 48 bytes each, in blocks like any other.

use tidegate_core::algorithms::TRACKED_SUB_WINDOWS;

use super::block::Block;
use super::budget::Budget;

/// Words of one set of counts, two counts to a word.
const WORDS: usize = TRACKED_SUB_WINDOWS.div_ceil(2);
/// Sets in a block. Its first word is a bit set of those in use.
const PER_BLOCK: usize = 53;

/// Sets of counts, by number.
#[derive(Default)]
pub(super) struct CountsSlab {
    blocks: Vec<Option<Block>>,
    /// No block before this one has room.
    open: usize,
}

impl CountsSlab {
    /// Adds a set, if there is memory.
    pub(super) fn add(&mut self, counts: &[u32; TRACKED_SUB_WINDOWS], budget: &Budget) -> Option<u32> {
        let full = |block: &Option<Block>| {
            let taken = block.as_ref().map_or(0, |block| block.words()[0]);
            taken == (1 << PER_BLOCK) - 1
        };
        while self.blocks.get(self.open).is_some_and(full) {
            self.open += 1;
        }
        if self.open == self.blocks.len() {
            self.blocks.push(None);
        }
        let place = &mut self.blocks[self.open];
        if place.is_none() {
            let mut block = budget.take_blocks(1)?.pop()?;
            block.words_mut()[0] = 0;
            *place = Some(block);
        }
        let taken = &mut place.as_mut()?.words_mut()[0];
        let within = taken.trailing_ones() as usize;
        *taken |= 1 << within;
        let number = (self.open * PER_BLOCK + within) as u32;
        self.set(number, counts);
        Some(number)
    }

    pub(super) fn get(&self, number: u32) -> [u32; TRACKED_SUB_WINDOWS] {
        let (block, at) = place(number);
        let words = &self.block(block).words()[at..at + WORDS];
        std::array::from_fn(|i| (words[i / 2] >> (i % 2 * 32)) as u32)
    }

    pub(super) fn set(&mut self, number: u32, counts: &[u32; TRACKED_SUB_WINDOWS]) {
        let (block, at) = place(number);
        let taken = self.blocks[block].as_mut().expect(SET_IS_TAKEN);
        for (word, pair) in taken.words_mut()[at..at + WORDS].iter_mut().zip(counts.chunks(2)) {
            let high = pair.get(1).copied().unwrap_or(0);
            *word = u64::from(pair[0]) | (u64::from(high) << 32);
        }
    }

    /// Frees a set, and its block with the last set.
    pub(super) fn remove(&mut self, number: u32, budget: &Budget) {
        let (block, _) = place(number);
        let slot = &mut self.blocks[block];
        let taken = &mut slot.as_mut().expect(SET_IS_TAKEN).words_mut()[0];
        *taken &= !(1 << (number as usize % PER_BLOCK));
        if *taken == 0 {
            budget.return_blocks(slot.take());
        }
        self.open = self.open.min(block);
    }

    fn block(&self, block: usize) -> &Block {
        self.blocks[block].as_ref().expect(SET_IS_TAKEN)
    }
}

const SET_IS_TAKEN: &str = "an index in an entry refers to a set in use";

fn place(number: u32) -> (usize, usize) {
    let number = number as usize;
    (number / PER_BLOCK, 1 + number % PER_BLOCK * WORDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_as_written_and_their_room_is_used_again() {
        let budget = Budget::new(10 * Block::BYTES);
        let mut slab = CountsSlab::default();
        let counts = |i: u32| std::array::from_fn(|k| i * 100 + k as u32);
        let numbers: Vec<u32> = (0..530).map_while(|i| slab.add(&counts(i), &budget)).collect();
        assert_eq!(numbers.len(), 530);
        assert_eq!(slab.add(&counts(0), &budget), None);
        for (i, number) in numbers.iter().enumerate() {
            assert_eq!(slab.get(*number), counts(i as u32));
        }
        for number in &numbers[100..] {
            slab.remove(*number, &budget);
        }
        assert_eq!(slab.add(&counts(9), &budget), Some(100));
        assert!(budget.take_blocks(7).is_some(), "empty blocks were returned");
    }
}
