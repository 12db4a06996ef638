//! A random number generator that replays.

/// xorshift64*: the same seed gives the same run.
#[derive(Clone, Debug)]
pub struct FuzzRng(u64);

impl FuzzRng {
    /// The generator of one input of a seed.
    pub fn of(seed: u64, number: u32) -> Self {
        // Neighbouring numbers must not give similar states, and a state of 0 would never change.
        let mixed = (seed ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = FuzzRng((mixed ^ mixed >> 29) | 1);
        rng.next_u64();
        rng
    }

    /// A number in the full range.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number from 0 up to `end`, exclusive. 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next_u64() >> 33) as usize % end.max(1)
    }

    /// One of `all`.
    ///
    /// # Panics
    ///
    /// If `all` is empty.
    pub fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }

    /// A range within `length` bytes, at most `max_len` long.
    pub fn subrange(&mut self, length: usize, max_len: usize) -> std::ops::Range<usize> {
        let start = self.below(length + 1);
        let end = start + self.below((length - start).min(max_len) + 1);
        start..end
    }
}
