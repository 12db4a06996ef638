//! What asynchronous code needs of its surroundings: time, waiting, tasks, chance.
//!
//! Injected, so that the simulator runs the same code on a virtual clock with a seeded scheduler.

#[cfg(feature = "redis")]
mod tokio_runtime;

use std::future::Future;

use tidegate_core::units::Nanos;

#[cfg(feature = "redis")]
pub use tokio_runtime::TokioRuntime;

/// Time, waiting, tasks and chance. Clones are handles to the same.
pub trait Runtime: Clone + Send + Sync + 'static {
    /// A clock that never runs backwards and begins anywhere.
    fn now(&self) -> Nanos;

    /// The time of day. It may be set at any moment, so nothing is ever measured by it.
    fn wall(&self) -> Nanos;

    /// Waits.
    fn sleep(&self, span: Nanos) -> impl Future<Output = ()> + Send + 'static;

    /// Lets a task run beside its maker.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// Any number, to spread things. Not a secret.
    fn random(&self) -> u64;

    /// Anything from 0 to `max`.
    fn jitter(&self, max: Nanos) -> Nanos {
        let part = (u128::from(max.get()) * u128::from(self.random())) >> 64;
        Nanos::new(u64::try_from(part).unwrap_or(0))
    }
}

/// The finisher of SplitMix64: every bit of the input changes half of the output.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
