//! The background work of a limiter.

use std::sync::Arc;

use tidegate_core::store::Store;
use tidegate_core::units::Nanos;

use super::Limiter;
use crate::runtime::Runtime;

const EVICTION_INTERVAL: Nanos = Nanos::from_millis(100);
const SETTLEMENT_RETRY_INTERVAL: Nanos = Nanos::from_millis(250);

impl<S: Store + 'static> Limiter<S> {
    /// Starts the background work of this limiter: it evicts expired counters, refunds the estimates of reservations
    /// that are not settled in time, and retries settlements that the store did not reply to. To be called once. The
    /// tasks end when the limiter is dropped.
    ///
    /// Checks need none of this. Without it memory stays bounded by its cap, and estimates stay charged until the next
    /// reservation of the same client.
    pub fn spawn_background<R: Runtime>(self: &Arc<Self>, runtime: &R) {
        // Two tasks, because retries wait for the store.
        let (limiter, timer) = (Arc::downgrade(self), runtime.clone());
        runtime.spawn(async move {
            while let Some(limiter) = limiter.upgrade() {
                limiter.store.evict_expired();
                drop(limiter);
                timer.sleep(EVICTION_INTERVAL).await;
            }
        });
        let (limiter, timer) = (Arc::downgrade(self), runtime.clone());
        runtime.spawn(async move {
            while let Some(limiter) = limiter.upgrade() {
                limiter.retry_settlements().await;
                drop(limiter);
                timer.sleep(SETTLEMENT_RETRY_INTERVAL).await;
            }
        });
    }
}
