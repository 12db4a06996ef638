//! The limiters under measurement, each behind the same trait.
//!
//! A subject is called as its own documentation shows, with the key in its preferred form; nothing is
//! emulated for it. Harnesses are generic over [`LimiterSubject`], so that the call is inlined and the
//! harness adds the same to every subject.

mod allowance;
mod governor;
mod harness;
mod key;
mod limitador;
mod rules;
mod throttlecrab;
mod tidegate;

pub use allowance::Allowance;
pub use governor::Governor;
pub use harness::Harness;
pub use key::Key;
pub use limitador::{Limitador, LimitadorRules};
pub use rules::{RuleRequest, RuleSubject};
pub use throttlecrab::Throttlecrab;
pub use tidegate::{Tidegate, TidegateRules, TidegateStrict};

/// The number of keys in a batch.
pub const BATCH: usize = 16;

/// A keyed limiter with one allowance for every key.
pub trait LimiterSubject: Sized + Send + Sync {
    /// The name in tables.
    const NAME: &'static str;

    /// Reusable state of a caller between batches, such as a buffer for the verdicts.
    type Scratch: Default;

    /// A fresh limiter. `keys` is the number of keys it must be able to hold; only a limiter that requires a
    /// bound may use it, and none may preallocate by it: growth is part of the measurement.
    fn new(allowance: Allowance, keys: usize) -> Self;

    /// Charges one unit to `key`; true when it was admitted.
    fn decide(&self, key: &Key) -> bool;

    /// Charges one unit to each of at most [`BATCH`] keys; returns how many were admitted.
    /// A limiter without a batch call decides them one after another.
    #[inline]
    fn decide_batch(&self, keys: &[&Key], _scratch: &mut Self::Scratch) -> usize {
        keys.iter().filter(|key| self.decide(key)).count()
    }
}
