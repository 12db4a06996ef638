//! Large bodies that are being received, bounded so that they cannot fill the memory between them.
//!
//! A body that finds no room gets that of another that does not use it: of those that moved less than
//! [`STEP`] in the last [`PATIENCE`], the one that has for longest. So clients that stall or trickle
//! cannot keep out clients that send, and one that sends at more than that pace is never cut off.
//!
//! A body holds its first piece while it waits for room. So the bodies that wait are bounded too: beyond
//! [`MAX_QUEUED`] the one that has waited longest is cut off.

use std::collections::VecDeque;
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

/// Bodies that wait for room, each with a piece of 16 KiB (HTTP/2) or 32 KiB (HTTP/1).
pub(crate) const MAX_QUEUED: usize = 512;

/// A number of large bodies.
pub(crate) struct Transfers {
    most: usize,
    under_way: Mutex<Vec<Arc<Progress>>>,
    /// Those that wait for room, the oldest first.
    queue: Mutex<VecDeque<Arc<Notify>>>,
    ended: Notify,
}

/// Others got the room of a body, or its place in the queue.
#[derive(Debug)]
pub(crate) struct Outpaced;

/// A place in the queue for room, until it is dropped.
struct QueuePlace {
    transfers: &'static Transfers,
    cut: Arc<Notify>,
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
            queue: Mutex::new(VecDeque::new()),
            ended: Notify::const_new(),
        }
    }

    /// Room for one.
    pub(crate) async fn begin(&'static self) -> Result<Transfer, Outpaced> {
        if let Some(transfer) = self.try_begin(PATIENCE) {
            return Ok(transfer);
        }
        let place = self.enqueue();
        loop {
            let ended = self.ended.notified();
            if let Some(transfer) = self.try_begin(PATIENCE) {
                return Ok(transfer);
            }
            // Look again when one has ended, and when one may have run out of patience.
            tokio::select! {
                biased;
                () = place.cut.notified() => return Err(Outpaced),
                _ = timeout(PATIENCE / 4, ended) => {}
            }
        }
    }

    /// A place in the queue. The one that has waited longest is cut off if there are too many.
    fn enqueue(&'static self) -> QueuePlace {
        let cut = Arc::new(Notify::new());
        let mut queue = self.queue.lock();
        queue.push_back(Arc::clone(&cut));
        if queue.len() > MAX_QUEUED
            && let Some(oldest) = queue.pop_front()
        {
            oldest.notify_one();
        }
        QueuePlace {
            transfers: self,
            cut,
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

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut queue = self.transfers.queue.lock();
        if let Some(at) = queue.iter().position(|cut| Arc::ptr_eq(cut, &self.cut)) {
            queue.remove(at);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::task::Poll;

    static TRANSFERS: Transfers = Transfers::new(1);

    /// Each held a piece of 16 KiB, and there was no end to them.
    #[tokio::test(start_paused = true)]
    async fn one_more_in_the_queue_cuts_off_the_one_that_has_waited_longest() {
        let room = TRANSFERS.begin().await.unwrap();
        let queued = (0..=MAX_QUEUED).map(|_| Box::pin(TRANSFERS.begin()));
        let mut queued: Vec<_> = queued.collect();
        let cut = poll_fn(|cx| {
            // No time passes, so that nobody runs out of patience.
            for place in &mut queued {
                assert!(place.as_mut().poll(cx).is_pending());
            }
            let polled = queued.iter_mut().map(|place| Pin::new(place).poll(cx));
            Poll::Ready(polled.map(|polled| polled.is_ready()).collect::<Vec<_>>())
        });
        let cut = cut.await;
        assert_eq!(cut.iter().position(|is_cut| *is_cut), Some(0));
        assert_eq!(cut.iter().filter(|is_cut| **is_cut).count(), 1);
        drop(queued);
        assert!(TRANSFERS.queue.lock().is_empty());
        drop(room);
        assert!(TRANSFERS.begin().await.is_ok());
    }
}
