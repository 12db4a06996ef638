//! What asynchronous code needs of its surroundings: time, waiting, tasks, chance.
//!
//! Injected, so that the simulator runs the same code on a virtual clock with a seeded scheduler.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tidegate_core::units::Nanos;

/// Time, waiting, tasks and chance. Clones are handles to the same.
pub trait Runtime: Clone + Send + Sync + 'static {
    /// A clock that never runs backwards and begins anywhere.
    fn now(&self) -> Nanos;

    /// Waits.
    fn sleep(&self, span: Nanos) -> impl Future<Output = ()> + Send + 'static;

    /// Lets a task run beside its maker.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);

    /// Any number, to spread things. Not a secret.
    fn random(&self) -> u64;

    /// Anything from 0 to `most`.
    fn jitter(&self, most: Nanos) -> Nanos {
        let part = (u128::from(most.get()) * u128::from(self.random())) >> 64;
        Nanos::new(u64::try_from(part).unwrap_or(0))
    }
}

/// The machine's clock and tokio's tasks. Needs a tokio runtime around it.
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    started: Instant,
    drawn: Arc<AtomicU64>,
}

impl TokioRuntime {
    /// A runtime with randomness of its own.
    ///
    /// # Errors
    /// When the operating system has no randomness.
    pub fn new() -> Result<Self, getrandom::Error> {
        Ok(TokioRuntime {
            started: Instant::now(),
            drawn: Arc::new(AtomicU64::new(getrandom::u64()?)),
        })
    }
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Nanos {
        self.started.elapsed().into()
    }

    fn sleep(&self, span: Nanos) -> impl Future<Output = ()> + Send + 'static {
        tokio::time::sleep(span.duration())
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }

    fn random(&self) -> u64 {
        mix(self.drawn.fetch_add(GOLDEN, Ordering::Relaxed))
    }
}

/// The step of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finisher of SplitMix64: every bit of the input changes half of the output.
pub(crate) fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_beside_their_maker_and_sleep_no_less_than_told() {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let runtime = TokioRuntime::new().unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let slept = tokio.block_on(async {
            let (began, own) = (runtime.now(), runtime.clone());
            runtime.spawn(async move {
                own.sleep(Nanos::from_millis(2)).await;
                sender.send(own.now()).unwrap();
            });
            receiver.await.unwrap().since(began)
        });
        assert!(slept >= Nanos::from_millis(2));
        assert_ne!(runtime.random(), runtime.random());
    }
}
