//! Large bodies that are being received, bounded so that they cannot fill the memory between them.
//!
//! A body that finds no room gets that of another that does not use it: of those that moved less than
//! [`STEP`] in the last [`PATIENCE`], the one that has for longest. So clients that stall or trickle
//! cannot keep out clients that send, and one that sends at more than that pace is never cut off.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// Less than this is no progress.
const STEP: usize = 16 << 10;
/// How long one may take for a step. Together 80 KiB a second: slower than that, the largest body
/// would not arrive by its deadline anyway.
const PATIENCE: Duration = Duration::from_millis(200);

/// A number of large bodies.
pub(crate) struct Transfers {
    most: usize,
    under_way: Mutex<Vec<Arc<Progress>>>,
    ended: Notify,
}

struct Progress {
    begun: Instant,
    /// When the last step was made, in milliseconds since it began.
    stepped_ms: AtomicU64,
    cut: Notify,
}

impl Progress {
    fn idle(&self, now: Instant) -> Duration {
        let stepped = Duration::from_millis(self.stepped_ms.load(Relaxed));
        now.duration_since(self.begun).saturating_sub(stepped)
    }
}

/// One of them, until it is dropped or outpaced by another.
pub(crate) struct Transfer {
    transfers: &'static Transfers,
    progress: Arc<Progress>,
    /// Bytes moved, and how many they were at the last step.
    moved: usize,
    counted: usize,
}

impl Transfers {
    pub(crate) const fn new(most: usize) -> Self {
        Transfers {
            most,
            under_way: Mutex::new(Vec::new()),
            ended: Notify::const_new(),
        }
    }

    /// Room for one.
    pub(crate) async fn begin(&'static self) -> Transfer {
        loop {
            let ended = self.ended.notified();
            if let Some(transfer) = self.try_begin(PATIENCE) {
                return transfer;
            }
            // Look again when one has ended, and when one may have run out of patience.
            let _ = timeout(PATIENCE / 4, ended).await;
        }
    }

    /// Room for a body that is there already, and takes memory from now on: that of the slowest, if there
    /// is no other.
    pub(crate) fn begin_now(&'static self) -> Option<Transfer> {
        self.try_begin(Duration::ZERO)
    }

    fn try_begin(&'static self, patience: Duration) -> Option<Transfer> {
        let mut under_way = self.under_way.lock();
        let now = Instant::now();
        if under_way.len() >= self.most {
            let (at, slowest) = under_way
                .iter()
                .enumerate()
                .max_by_key(|(_, progress)| progress.idle(now))?;
            if slowest.idle(now) < patience {
                return None;
            }
            slowest.cut.notify_one();
            under_way.swap_remove(at);
        }
        let progress = Arc::new(Progress {
            begun: now,
            stepped_ms: AtomicU64::new(0),
            cut: Notify::new(),
        });
        under_way.push(Arc::clone(&progress));
        Some(Transfer {
            transfers: self,
            progress,
            moved: 0,
            counted: 0,
        })
    }
}

impl Transfer {
    /// Tells that so many bytes more have moved.
    pub(crate) fn moved(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.moved - self.counted >= STEP {
            self.counted = self.moved;
            self.step();
        }
    }

    fn step(&self) {
        let since = self.progress.begun.elapsed().as_millis();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.progress.stepped_ms.store(since, Relaxed);
    }

    /// Ends when another got its room.
    pub(crate) async fn outpaced(&self) {
        self.progress.cut.notified().await;
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        let mut under_way = self.transfers.under_way.lock();
        let own = |progress: &Arc<Progress>| Arc::ptr_eq(progress, &self.progress);
        if let Some(at) = under_way.iter().position(own) {
            under_way.swap_remove(at);
            self.transfers.ended.notify_one();
        }
    }
}
