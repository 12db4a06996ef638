//! The production runtime: the machine's clock and tokio.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tidegate_core::units::Nanos;
use tokio::runtime::Handle;

use super::{Runtime, mix};

/// The machine's clock and tokio's tasks. Must be used within a tokio runtime.
#[derive(Clone, Debug)]
pub struct TokioRuntime {
    started: Instant,
    rng_state: Arc<AtomicU64>,
    /// The tokio runtime of the first task: a value dropped outside of tokio must be able to spawn its cleanup.
    handle: Arc<OnceLock<Handle>>,
}

impl TokioRuntime {
    /// A runtime with its own random state.
    ///
    /// # Errors
    /// When the operating system has no randomness.
    pub fn new() -> Result<Self, getrandom::Error> {
        Ok(TokioRuntime {
            started: Instant::now(),
            rng_state: Arc::new(AtomicU64::new(getrandom::u64()?)),
            handle: Arc::default(),
        })
    }
}

impl Runtime for TokioRuntime {
    fn now(&self) -> Nanos {
        self.started.elapsed().into()
    }

    fn wall(&self) -> Nanos {
        crate::clock::wall()
    }

    fn sleep(&self, span: Nanos) -> impl Future<Output = ()> + Send + 'static {
        tokio::time::sleep(span.duration())
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match Handle::try_current() {
            Ok(current) => {
                let _handle = self.handle.get_or_init(|| current.clone());
                current.spawn(task);
            }
            Err(_) => {
                let handle = self.handle.get();
                handle.expect("the first task is spawned within a tokio runtime").spawn(task);
            }
        }
    }

    fn random(&self) -> u64 {
        mix(self.rng_state.fetch_add(GOLDEN, Ordering::Relaxed))
    }
}

/// The step of SplitMix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use super::*;

    /// A value dropped outside of tokio must be able to spawn its cleanup.
    #[test]
    fn a_task_may_be_spawned_outside_of_tokio_once_its_runtime_is_known() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let runtime = TokioRuntime::new().unwrap();
        tokio.block_on(async { runtime.spawn(async {}) });
        let (sender, receiver) = tokio::sync::oneshot::channel();
        runtime.spawn(async move { sender.send(7).unwrap() });
        assert_eq!(tokio.block_on(receiver), Ok(7));
    }

    #[test]
    fn tasks_run_beside_their_spawner_and_sleep_no_less_than_requested() {
        let tokio = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
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
