//! The limiters we measure, each behind the same few verbs.
//!
//! A subject is called the way its own documentation calls it, with the key in the form it likes best;
//! nothing is emulated on its behalf. Harnesses are generic over [`LimiterSubject`], so that the call is
//! inlined and the harness adds the same to everybody.

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

/// How many keys a batch holds.
pub const BATCH: usize = 16;

/// A keyed limiter with one allowance for every key.
pub trait LimiterSubject: Sized + Send + Sync {
    /// The name in tables.
    const NAME: &'static str;

    /// What a caller keeps between batches, such as a buffer for the verdicts.
    type Scratch: Default;

    /// A fresh limiter. `keys` is how many it must be able to hold; only a limiter that needs a bound
    /// to be told may use it, and none may allocate by it: growth is part of what we measure.
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
