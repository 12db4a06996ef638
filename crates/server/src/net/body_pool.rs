//! A bounded number of bodies that are being received, so that they cannot exhaust the memory.
//!
//! A body without a permit gets the permit of a stalled one: of the bodies that moved less than [`PROGRESS_BYTES`] in
//! the last [`STALL_TIMEOUT`], the one that has stalled longest is evicted. So clients that stall or trickle cannot
//! keep out clients that send, and an upload that is faster than that is never evicted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Fewer bytes than this are no progress.
const PROGRESS_BYTES: usize = 16 << 10;
/// Maximum time of a step. Together 80 KiB a second: slower than that, the largest body would not arrive before its
/// timeout anyway.
const STALL_TIMEOUT: Duration = Duration::from_millis(200);

/// The permits of one kind of body.
pub(crate) struct BodyPool {
    max: usize,
    in_flight: Mutex<Vec<Arc<BodyProgress>>>,
    released: Notify,
}

struct BodyProgress {
    begun: Instant,
    /// When the last step was made, in milliseconds since `begun`.
    progressed_ms: AtomicU64,
    evicted: Notify,
}

impl BodyProgress {
    fn idle(&self, now: Instant) -> Duration {
        let stepped = Duration::from_millis(self.progressed_ms.load(Relaxed));
        now.duration_since(self.begun).saturating_sub(stepped)
    }
}

/// Permits one body, until it is dropped or evicted.
pub(crate) struct BodyPermit {
    pool: &'static BodyPool,
    progress: Arc<BodyProgress>,
    /// Bytes received, and their number at the last step.
    received: usize,
    counted: usize,
}

impl BodyPool {
    pub(crate) const fn new(max: usize) -> Self {
        BodyPool { max, in_flight: Mutex::new(Vec::new()), released: Notify::const_new() }
    }

    /// Waits for a permit.
    pub(crate) async fn acquire(&'static self) -> BodyPermit {
        loop {
            let released = self.released.notified();
            if let Some(permit) = self.try_acquire(STALL_TIMEOUT) {
                return permit;
            }
            // Checks again when a permit is released, and when a body may have stalled.
            let _ = timeout(STALL_TIMEOUT / 4, released).await;
        }
    }

    /// A permit for a body that is in memory already: that of the slowest body, if no other is free.
    pub(crate) fn acquire_now(&'static self) -> Option<BodyPermit> {
        self.try_acquire(Duration::ZERO)
    }

    fn try_acquire(&'static self, stall_timeout: Duration) -> Option<BodyPermit> {
        let mut in_flight = self.in_flight.lock();
        let now = Instant::now();
        if in_flight.len() >= self.max {
            let (at, slowest) = in_flight.iter().enumerate().max_by_key(|(_, progress)| progress.idle(now))?;
            if slowest.idle(now) < stall_timeout {
                return None;
            }
            slowest.evicted.notify_one();
            in_flight.swap_remove(at);
        }
        let progress = Arc::new(BodyProgress { begun: now, progressed_ms: AtomicU64::new(0), evicted: Notify::new() });
        in_flight.push(Arc::clone(&progress));
        Some(BodyPermit { pool: self, progress, received: 0, counted: 0 })
    }
}

impl BodyPermit {
    /// Records `bytes` received.
    pub(crate) fn record_received(&mut self, bytes: usize) {
        self.received += bytes;
        if self.received - self.counted >= PROGRESS_BYTES {
            self.counted = self.received;
            self.record_progress();
        }
    }

    fn record_progress(&self) {
        let since = self.progress.begun.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.progress.progressed_ms.store(since, Relaxed);
    }

    /// Completes when the body is evicted.
    pub(crate) async fn evicted(&self) {
        self.progress.evicted.notified().await;
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        let mut in_flight = self.pool.in_flight.lock();
        let own = |progress: &Arc<BodyProgress>| Arc::ptr_eq(progress, &self.progress);
        if let Some(at) = in_flight.iter().position(own) {
            in_flight.swap_remove(at);
            self.pool.released.notify_one();
        }
    }
}
