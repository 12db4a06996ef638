//! The key by which a counter is found, with well-distributed bits.
//!
//! Counter ids are keyed hashes already. They are mixed once more, one to one, so that ids made by hand (by a test, or
//! by a caller that numbers its subjects) are well distributed, too.

/// Leading bits of a key that choose its shard; all keys of one shard share them.
pub(super) const SHARD_BITS: u32 = 8;
/// Number of shards, without the overflow shards.
pub(super) const SHARDS: usize = 1 << SHARD_BITS;

/// A counter's position in the order of all counters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub(super) hi: u64,
    pub(super) lo: u64,
}

impl Key {
    /// No counter: marks an empty slot. It comes after every counter, so that a search in ascending order stops at it
    /// without an extra check.
    pub(super) const NONE: Key = Key { hi: u64::MAX, lo: u64::MAX };

    /// The key of counter `id`.
    pub(super) fn of(id: u128) -> Key {
        let lo = id as u64;
        let hi = (id >> 64) as u64 ^ lo.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let key = Key { hi, lo };
        if key == Key::NONE {
            return Key { hi, lo: lo - 1 };
        }
        key
    }

    /// The shard of the counter.
    pub(super) fn shard(self) -> usize {
        (self.hi >> (u64::BITS - SHARD_BITS)) as usize
    }

    /// The key of a counter in a shard that is chosen by other means.
    pub(super) fn within_shard(id: u128) -> Key {
        let Key { hi, lo } = Key::of(id);
        Key { hi: hi >> SHARD_BITS, lo }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ids_spread_over_the_shards() {
        let mut per_shard = [0_u32; SHARDS];
        for id in 0..25_600_u128 {
            per_shard[Key::of(id).shard()] += 1;
        }
        let max = per_shard.iter().max();
        assert!(max.is_some_and(|max| *max < 150), "{max:?} of 100");
    }

    #[test]
    fn no_id_has_the_key_of_an_empty_slot() {
        let lo = u64::MAX;
        let hi = u64::MAX ^ lo.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let id = (u128::from(hi) << 64) | u128::from(lo);
        assert_ne!(Key::of(id), Key::NONE);
    }
}
