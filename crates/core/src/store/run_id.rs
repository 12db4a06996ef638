//! The run of a process, for stores whose counts end with the process.

use std::num::NonZeroU64;

/// One run of one in-memory store. Random at the creation of the store, so that a receipt from an earlier run or from
/// another node can be recognized.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunId(NonZeroU64);

impl RunId {
    /// A run with these bits; `None` for zero.
    pub const fn new(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(RunId(bits)),
            None => None,
        }
    }

    /// Its bits, never zero.
    pub const fn bits(self) -> u64 {
        self.0.get()
    }
}
