//! A map by counter, in parts with a lock each.
//!
//! Counters are keyed fingerprints, spread evenly by their making: they need no further hashing, and
//! iteration depends on nothing but what was inserted, so that a simulated run replays.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use parking_lot::{Mutex, MutexGuard};

const PARTS: usize = 16;

/// Takes a counter's own bits for a hash.
#[derive(Clone, Copy, Default)]
pub(super) struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0 ^= u64::from_ne_bytes(word);
        }
    }

    fn write_u128(&mut self, bits: u128) {
        self.0 = (bits ^ (bits >> 64)) as u64;
    }
}

/// One part of the map.
pub(super) type Part<T> = HashMap<u128, T, BuildHasherDefault<AsIs>>;

/// A map by counter.
pub(super) struct Counters<T> {
    parts: [Mutex<Part<T>>; PARTS],
    /// The most entries of a part.
    most: usize,
}

impl<T> Counters<T> {
    /// A map of about `most` entries.
    pub(super) fn new(most: usize) -> Self {
        Counters {
            parts: std::array::from_fn(|_| Mutex::default()),
            most: most.div_ceil(PARTS).max(1),
        }
    }

    /// The part that holds `counter`, locked.
    pub(super) fn part(&self, counter: u128) -> MutexGuard<'_, Part<T>> {
        let at = (counter >> 64) as usize % PARTS;
        self.parts[at].lock()
    }

    /// Each part in turn, locked.
    pub(super) fn parts(&self) -> impl Iterator<Item = MutexGuard<'_, Part<T>>> {
        self.parts.iter().map(Mutex::lock)
    }

    /// Whether a part has room for one more.
    pub(super) fn has_room(&self, part: &Part<T>) -> bool {
        part.len() < self.most
    }
}
