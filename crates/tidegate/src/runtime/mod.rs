//! The runtime of asynchronous code: time, sleeping, tasks, randomness.
//!
//! It is injected, so that the simulator runs the same code on a virtual clock with a seeded scheduler.

#[cfg(feature = "tokio")]
mod tokio_runtime;
mod waiting;

use std::future::Future;

use tidegate_core::units::Nanos;

#[cfg(feature = "tokio")]
pub use tokio_runtime::TokioRuntime;
#[cfg(feature = "internals")]
pub use waiting::join_all;
#[cfg(not(feature = "internals"))]
pub(crate) use waiting::join_all;
pub(crate) use waiting::{InFlightGuard, within};

/// Time, sleeping, tasks and randomness. Clones are handles to the same runtime.
pub trait Runtime: Clone + Send + Sync + 'static {
    /// A monotonic clock with an arbitrary origin.
    fn now(&self) -> Nanos;

    /// The wall clock. It may be set at any moment, so no duration is measured by it.
    fn wall(&self) -> Nanos;

    /// Waits for `span`.
    fn sleep(&self, span: Nanos) -> impl Future<Output = ()> + Send + 'static;

    /// Runs a task concurrently with its spawner.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// A random number, to spread load. Not for secrets.
    fn random(&self) -> u64;

    /// A random span from 0 to `max`.
    fn jitter(&self, max: Nanos) -> Nanos {
        let span = (u128::from(max.get()) * u128::from(self.random())) >> 64;
        Nanos::new(u64::try_from(span).unwrap_or(0))
    }
}

/// A random number of 128 bits. Not for secrets.
pub(crate) fn random_id(runtime: &impl Runtime) -> u128 {
    u128::from(runtime.random()) << 64 | u128::from(runtime.random())
}

/// The finisher of SplitMix64: every bit of the input changes half of the output.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
