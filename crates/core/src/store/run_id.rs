//! Which run of a process counts live in, for stores whose counts end with the process.

use std::num::NonZeroU64;

/// One run of one store in the memory of a process. Drawn at random when the store is made, so that
/// a receipt from an earlier run or from another node can be recognized.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunId(NonZeroU64);

impl RunId {
    /// A run of these bits; zero is not one.
    pub const fn new(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(RunId(bits)),
            None => None,
        }
    }

    /// The bits it was made of, never zero.
    pub const fn bits(self) -> u64 {
        self.0.get()
    }
}
