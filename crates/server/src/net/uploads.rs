//! The large bodies that are being received, bounded so that they cannot fill the memory between them.
//!
//! Who finds no room gets that of another who does not use it: of those that received less than
//! [`STEP`] in the last [`PATIENCE`], the one that has for longest. So those who stall or trickle
//! cannot keep out those who send, and who sends at more than that pace is never cut off.

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

/// Large bodies under way.
pub(crate) struct Uploads {
    most: usize,
    under_way: Mutex<Vec<Arc<Progress>>>,
    ended: Notify,
}

struct Progress {
    begun: Instant,
    /// When the last step was made, in milliseconds since it began.
    stepped_ms: AtomicU64,
    outpaced: Notify,
}

impl Progress {
    fn idle(&self, now: Instant) -> Duration {
        let stepped = Duration::from_millis(self.stepped_ms.load(Relaxed));
        now.duration_since(self.begun).saturating_sub(stepped)
    }
}

/// One of them, until it is dropped or outpaced.
pub(crate) struct Upload<'a> {
    uploads: &'a Uploads,
    progress: Arc<Progress>,
    /// Bytes at the last step.
    counted: usize,
}

impl Uploads {
    pub(crate) const fn new(most: usize) -> Self {
        Uploads {
            most,
            under_way: Mutex::new(Vec::new()),
            ended: Notify::const_new(),
        }
    }

    /// Room for a body of which so many bytes are there already.
    pub(crate) async fn begin(&self, bytes: usize) -> Upload<'_> {
        loop {
            let ended = self.ended.notified();
            if let Some(upload) = self.try_begin(bytes) {
                return upload;
            }
            // Look again when one has ended, and when one may have run out of patience.
            let _ = timeout(PATIENCE / 4, ended).await;
        }
    }

    fn try_begin(&self, bytes: usize) -> Option<Upload<'_>> {
        let mut under_way = self.under_way.lock();
        let now = Instant::now();
        if under_way.len() >= self.most {
            let (at, slowest) = under_way
                .iter()
                .enumerate()
                .max_by_key(|(_, progress)| progress.idle(now))?;
            if slowest.idle(now) < PATIENCE {
                return None;
            }
            slowest.outpaced.notify_one();
            under_way.swap_remove(at);
        }
        let progress = Arc::new(Progress {
            begun: now,
            stepped_ms: AtomicU64::new(0),
            outpaced: Notify::new(),
        });
        under_way.push(Arc::clone(&progress));
        Some(Upload {
            uploads: self,
            progress,
            counted: bytes,
        })
    }
}

impl Upload<'_> {
    /// Tells how much has arrived by now.
    pub(crate) fn received(&mut self, bytes: usize) {
        if bytes - self.counted >= STEP {
            self.counted = bytes;
            let since = self.progress.begun.elapsed().as_millis();
            let since = u64::try_from(since).unwrap_or(u64::MAX);
            self.progress.stepped_ms.store(since, Relaxed);
        }
    }

    /// Ends when another got its room.
    pub(crate) async fn outpaced(&self) {
        self.progress.outpaced.notified().await;
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        let mut under_way = self.uploads.under_way.lock();
        let own = |progress: &Arc<Progress>| Arc::ptr_eq(progress, &self.progress);
        if let Some(at) = under_way.iter().position(own) {
            under_way.swap_remove(at);
            self.uploads.ended.notify_one();
        }
    }
}
