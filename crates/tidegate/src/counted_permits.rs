//! Permits that are counted without their holders, for lack of memory.
//!
//! Two generations in two words, each a count and the expiry of its last permit. A permit expires with its
//! generation: at the latest after twice its TTL, never before its own expiry. No permit can be released or
//! renewed by name, so the count is too high for a while, never too low. Time is in milliseconds.

/// Bits for the expiry of a generation, 34 years; the rest is the count. The highest bit stays free: the memory
/// store uses it to mark a permit list that is stored elsewhere.
const END_BITS: u32 = 40;
const MAX_END: u64 = (1 << END_BITS) - 1;
const MAX_COUNT: u32 = (1 << (63 - END_BITS)) - 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Generation {
    count: u32,
    end_ms: u64,
}

impl Generation {
    fn read(word: u64) -> Self {
        Generation { count: (word >> END_BITS) as u32, end_ms: word & MAX_END }
    }

    fn word(self) -> u64 {
        (u64::from(self.count) << END_BITS) | self.end_ms
    }
}

/// Permits without holders.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct CountedPermits {
    first: Generation,
    second: Generation,
}

impl CountedPermits {
    /// Reads the words of an entry at `now_ms`.
    pub(crate) fn read(words: [u64; 2], now_ms: u64) -> Self {
        let [first, second] = words.map(Generation::read);
        let mut permits = CountedPermits { first, second };
        for _ in 0..2 {
            if permits.first.end_ms <= now_ms {
                permits.first = std::mem::take(&mut permits.second);
            }
        }
        permits
    }

    pub(crate) fn words(self) -> [u64; 2] {
        [self.first.word(), self.second.word()]
    }

    /// Permits that may be open.
    pub(crate) fn count(self) -> u32 {
        self.first.count + self.second.count
    }

    /// When the last of them expires.
    pub(crate) fn end_ms(self) -> u64 {
        self.first.end_ms.max(self.second.end_ms)
    }

    /// Counts one more permit, which lasts until `until_ms`.
    pub(crate) fn add(&mut self, until_ms: u64) {
        let until_ms = until_ms.min(MAX_END);
        let joins_first = self.first.count == 0 || until_ms <= self.first.end_ms;
        let generation = if joins_first { &mut self.first } else { &mut self.second };
        generation.count = (generation.count + 1).min(MAX_COUNT);
        generation.end_ms = generation.end_ms.max(until_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_counts_until_it_expires_and_no_longer_than_twice_its_ttl() {
        let mut words = [0; 2];
        let mut open: Vec<u64> = Vec::new();
        for now in (0..20_000).step_by(7) {
            let mut permits = CountedPermits::read(words, now);
            open.retain(|until| *until > now);
            assert!(permits.count() as usize >= open.len(), "at {now}");
            let lately = now / 7 - (now.saturating_sub(2_000)).div_ceil(7);
            assert!(u64::from(permits.count()) <= lately, "at {now}");
            permits.add(now + 1_000);
            open.push(now + 1_000);
            words = permits.words();
            assert_eq!(words[1] >> 63, 0);
        }
        let after = CountedPermits::read(words, 23_000);
        assert_eq!(after, CountedPermits::default());
    }
}
