//! Large bodies that are being received, bounded so that they cannot fill the memory between them.
//!
//! A body that finds no room gets that of another that does not use it: of those that moved less than
//! [`PROGRESS_BYTES`] in the last [`STALL_TIMEOUT`], the one that has for longest. So clients that stall or trickle
//! cannot keep out clients that send, and one that sends at more than that pace is never cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Less than this is no progress.
const PROGRESS_BYTES: usize = 16 << 10;
/// How long one may take for a step. Together 80 KiB a second: slower than that, the largest body
/// would not arrive by its deadline anyway.
const STALL_TIMEOUT: Duration = Duration::from_millis(200);

/// A number of large bodies.
pub(crate) struct BodyPool {
    max: usize,
    in_flight: Mutex<Vec<Arc<BodyProgress>>>,
    released: Notify,
}

struct BodyProgress {
    begun: Instant,
    /// When the last step was made, in milliseconds since it began.
    progressed_ms: AtomicU64,
    evicted: Notify,
}

impl BodyProgress {
    fn idle(&self, now: Instant) -> Duration {
        let stepped = Duration::from_millis(self.progressed_ms.load(Relaxed));
        now.duration_since(self.begun).saturating_sub(stepped)
    }
}

/// One of them, until it is dropped or outpaced by another.
pub(crate) struct BodyPermit {
    pool: &'static BodyPool,
    progress: Arc<BodyProgress>,
    /// Bytes moved, and how many they were at the last step.
    received: usize,
    counted: usize,
}

impl BodyPool {
    pub(crate) const fn new(max: usize) -> Self {
        BodyPool {
            max,
            in_flight: Mutex::new(Vec::new()),
            released: Notify::const_new(),
        }
    }

    /// Room for one.
    pub(crate) async fn acquire(&'static self) -> BodyPermit {
        loop {
            let released = self.released.notified();
            if let Some(permit) = self.try_acquire(STALL_TIMEOUT) {
                return permit;
            }
            // Look again when one has ended, and when one may have run out of patience.
            let _ = timeout(STALL_TIMEOUT / 4, released).await;
        }
    }

    /// Room for a body that is there already, and takes memory from now on: that of the slowest, if there
    /// is no other.
    pub(crate) fn acquire_now(&'static self) -> Option<BodyPermit> {
        self.try_acquire(Duration::ZERO)
    }

    fn try_acquire(&'static self, stall_timeout: Duration) -> Option<BodyPermit> {
        let mut in_flight = self.in_flight.lock();
        let now = Instant::now();
        if in_flight.len() >= self.max {
            let (at, slowest) = in_flight
                .iter()
                .enumerate()
                .max_by_key(|(_, progress)| progress.idle(now))?;
            if slowest.idle(now) < stall_timeout {
                return None;
            }
            slowest.evicted.notify_one();
            in_flight.swap_remove(at);
        }
        let progress = Arc::new(BodyProgress {
            begun: now,
            progressed_ms: AtomicU64::new(0),
            evicted: Notify::new(),
        });
        in_flight.push(Arc::clone(&progress));
        Some(BodyPermit {
            pool: self,
            progress,
            received: 0,
            counted: 0,
        })
    }
}

impl BodyPermit {
    /// Tells that so many bytes more have moved.
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

    /// Ends when another got its room.
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
