//! Chance that can be had again.

/// xorshift64*: the same seed gives the same run.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// For one of the inputs of a seed.
    pub fn of(seed: u64, number: u32) -> Self {
        // Neighbours must not look alike, and a state of 0 would stay there.
        let mixed = (seed ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut dice = Dice((mixed ^ mixed >> 29) | 1);
        dice.any();
        dice
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 up to `most`, which is not among them. 0 if none is.
    pub fn below(&mut self, most: usize) -> usize {
        (self.any() >> 33) as usize % most.max(1)
    }

    /// One of `all`.
    ///
    /// # Panics
    /// If there is none.
    pub fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    /// A part of `length` bytes, at most `most` long.
    pub fn part(&mut self, length: usize, most: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let end = start + self.below((length - start).min(most) + 1);
        start..end
    }
}
