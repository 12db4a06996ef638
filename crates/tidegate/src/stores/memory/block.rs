//! The one size in which the store allocates memory, and the entry that 40 bytes of it hold.
//!
//! Every table consists of these blocks, so a block returned by one can be used by any other, and the allocator has
//! nothing to fragment.

use tidegate_core::algorithms::{Algorithm, Limit};
use tidegate_core::units::Nanos;

use super::key::Key;

/// Entries in a block. Small enough that a store of few counters is small, large enough that the list of blocks of a
/// million counters stays in the second-level cache.
pub(super) const SLOTS_PER_BLOCK: usize = 64;
/// Words of an entry.
const WORDS: usize = 5;

/// An entry as it is stored.
type RawEntry = [u64; WORDS];

/// A block of memory: 64 entries.
pub(super) struct Block(Box<[RawEntry; SLOTS_PER_BLOCK]>);

impl Block {
    /// The memory of one block: itself, the allocator's header, and its place in a list that may be half empty.
    pub(super) const BYTES: u64 = (size_of::<[RawEntry; SLOTS_PER_BLOCK]>() + 16 + 2 * size_of::<Block>()) as u64;

    pub(super) fn new() -> Block {
        Block(Box::new([TableEntry::NONE; SLOTS_PER_BLOCK]))
    }

    #[inline]
    pub(super) fn key(&self, slot: usize) -> Key {
        let raw = &self.0[slot % SLOTS_PER_BLOCK];
        Key { hi: raw[0], lo: raw[1] }
    }

    #[inline]
    pub(super) fn entry(&self, slot: usize) -> TableEntry {
        TableEntry::unpack(&self.0[slot % SLOTS_PER_BLOCK])
    }

    /// The entry at `slot` in place, in a table whose soonest expiry is `soonest`.
    #[inline]
    pub(super) fn entry_mut<'t>(&'t mut self, slot: usize, soonest: &'t mut Secs) -> EntryMut<'t> {
        EntryMut { raw: &mut self.0[slot % SLOTS_PER_BLOCK], soonest }
    }

    pub(super) fn expires(&self, slot: usize) -> Secs {
        KindAndExpiry((self.0[slot % SLOTS_PER_BLOCK][4] >> 32) as u32).expires()
    }

    #[inline]
    pub(super) fn set(&mut self, slot: usize, entry: &TableEntry) {
        self.0[slot % SLOTS_PER_BLOCK] = entry.pack();
    }

    pub(super) fn clear(&mut self, slot: usize) {
        self.0[slot % SLOTS_PER_BLOCK] = TableEntry::NONE;
    }

    /// Every entry, in order.
    pub(super) fn entries(&self) -> impl Iterator<Item = TableEntry> + '_ {
        let taken = self.0.iter().filter(|raw| **raw != TableEntry::NONE);
        taken.map(TableEntry::unpack)
    }

    /// Moves the entries of `from..gap` one to the right.
    pub(super) fn shift_right(&mut self, from: usize, gap: usize) {
        self.0.copy_within(from..gap, from + 1);
    }
}

/// Whole seconds since the store was created, at most 17 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Secs(u32);

impl Secs {
    pub(super) const ZERO: Secs = Secs(0);
    /// Later than any current time.
    pub(super) const NEVER: Secs = Secs(KindAndExpiry::MAX_SECS);

    /// The second that contains `now`.
    pub(super) fn present(began: Nanos, now: Nanos) -> Secs {
        let secs = now.since(began).get() / 1_000_000_000;
        Secs(secs.min(u64::from(KindAndExpiry::MAX_SECS - 1)) as u32)
    }

    /// The first whole second by which `at` has passed. Never the first second: a clock set back before the creation
    /// of the store expires nothing.
    pub(super) fn expiry(began: Nanos, at: Nanos) -> Secs {
        let secs = at.since(began).secs_up();
        Secs(secs.clamp(1, u64::from(KindAndExpiry::MAX_SECS)) as u32)
    }
}

/// The kind of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryKind {
    Bucket,
    Fixed,
    Sliding,
    Strict,
    Log,
    /// The id of a refund that was made.
    Refund,
    /// Permits: a list, or counted permits.
    Permits,
}

impl EntryKind {
    const ALL: [EntryKind; 8] = [
        EntryKind::Bucket,
        EntryKind::Fixed,
        EntryKind::Sliding,
        EntryKind::Strict,
        EntryKind::Log,
        EntryKind::Refund,
        EntryKind::Permits,
        EntryKind::Permits, // three bits have eight values; the eighth is never written
    ];

    /// The kind of the states of `limit`.
    pub(super) fn of(limit: &Limit) -> EntryKind {
        match limit.algorithm() {
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => EntryKind::Bucket,
            Algorithm::FixedWindow => EntryKind::Fixed,
            Algorithm::SlidingWindow => EntryKind::Sliding,
            Algorithm::SlidingWindowStrict => EntryKind::Strict,
            Algorithm::SlidingLog => EntryKind::Log,
        }
    }
}

/// Kind and expiry in 32 bits. The kind is stored in addition to the tag because two limits of different shape may
/// share a tag, by chance or by design of an attacker who supplies limits by value.
#[derive(Clone, Copy)]
struct KindAndExpiry(u32);

impl KindAndExpiry {
    const MAX_SECS: u32 = (1 << 29) - 1;

    fn new(kind: EntryKind, expires: Secs) -> KindAndExpiry {
        KindAndExpiry(((kind as u32) << 29) | expires.0)
    }

    fn kind(self) -> EntryKind {
        EntryKind::ALL[(self.0 >> 29) as usize]
    }

    fn expires(self) -> Secs {
        Secs(self.0 & KindAndExpiry::MAX_SECS)
    }
}

/// A counter in place, whose state can be changed without touching the rest.
pub(super) struct EntryMut<'t> {
    raw: &'t mut RawEntry,
    soonest: &'t mut Secs,
}

impl EntryMut<'_> {
    /// Whether its state was made under `limit` and has not expired.
    #[inline]
    pub(super) fn is_live_under(&self, limit: &Limit, now: Secs) -> bool {
        let packed = KindAndExpiry((self.raw[4] >> 32) as u32);
        self.raw[4] as u32 == limit.tag() && packed.expires() > now && packed.0 >> 29 == EntryKind::of(limit) as u32
    }

    #[inline]
    pub(super) fn words(&self) -> [u64; 2] {
        [self.raw[2], self.raw[3]]
    }

    /// Writes a new state under the same limit.
    #[inline]
    pub(super) fn update(&mut self, words: [u64; 2], expires: Secs) {
        // Compared first: its cache line then stays shared by all threads that only read it.
        if expires < *self.soonest {
            *self.soonest = expires;
        }
        [self.raw[2], self.raw[3]] = words;
        let rest = self.raw[4] & !(u64::from(KindAndExpiry::MAX_SECS) << 32);
        self.raw[4] = rest | (u64::from(expires.0) << 32);
    }
}

/// One counter: 40 bytes in a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableEntry {
    pub(super) key: Key,
    /// The state, or the index of the rest of it; see `out_of_line`.
    pub(super) words: [u64; 2],
    pub(super) kind: EntryKind,
    /// When the entry becomes equivalent to a fresh one. Known without its limit, so that a sweep needs no rules.
    pub(super) expires: Secs,
    /// The tag of the limit the state was made under.
    pub(super) tag: u32,
}

impl TableEntry {
    const NONE: RawEntry = [Key::NONE.hi, Key::NONE.lo, 0, 0, 0];

    #[inline]
    fn pack(&self) -> RawEntry {
        let packed = KindAndExpiry::new(self.kind, self.expires);
        let meta = (u64::from(packed.0) << 32) | u64::from(self.tag);
        [self.key.hi, self.key.lo, self.words[0], self.words[1], meta]
    }

    #[inline]
    fn unpack(raw: &RawEntry) -> TableEntry {
        let packed = KindAndExpiry((raw[4] >> 32) as u32);
        TableEntry {
            key: Key { hi: raw[0], lo: raw[1] },
            words: [raw[2], raw[3]],
            kind: packed.kind(),
            expires: packed.expires(),
            tag: raw[4] as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_forty_bytes_and_is_read_as_it_was_written() {
        assert_eq!(size_of::<RawEntry>(), 40);
        let mut block = Block::new();
        let entry = TableEntry {
            key: Key { hi: 1, lo: 2 },
            words: [3, u64::MAX],
            kind: EntryKind::Permits,
            expires: Secs::NEVER,
            tag: u32::MAX,
        };
        block.set(7, &entry);
        assert_eq!(format!("{:?}", block.entry(7)), format!("{entry:?}"));
        assert_eq!(block.key(8), Key::NONE);
    }

    #[test]
    fn an_expiry_is_never_early() {
        let began = Nanos::from_secs(100);
        let at = Nanos::new(105_000_000_001);
        assert_eq!(Secs::expiry(began, at), Secs(6));
        assert_eq!(Secs::present(began, Nanos::new(105_999_999_999)), Secs(5));
        assert_eq!(Secs::expiry(began, Nanos::ZERO), Secs(1));
        assert_eq!(Secs::expiry(began, Nanos::MAX), Secs::NEVER);
        assert!(Secs::present(began, Nanos::MAX) < Secs::NEVER);
    }
}
