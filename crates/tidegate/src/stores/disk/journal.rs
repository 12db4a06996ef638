//! The writer of a journal: one thread that takes all queued writes, commits them together, waits once for the disk,
//! and then completes all of them.
//!
//! A counter is written in its state at the time of the write, not at the time it was queued. So of two charges the
//! earlier never overwrites the later, and a counter charged a thousand times meanwhile is written once. A counter that
//! could not be written stays due, and is written by the next attempt. After a failure the thread backs off for a
//! second; until then every write fails at once.
//!
//! A refund is recorded before its counters change in memory, and recorded refunds are collected after the counters
//! were read: so no write has the effect of a refund without its id, and no crash makes it possible twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidegate_core::units::Nanos;
use tokio::sync::oneshot;

use super::entry::{JournaledCounter, is_expired, refund_change};
use super::file::{Batch, JournalFile, StorageFactory};
use crate::clock::Clock;
use crate::stores::memory::MemoryStore;

/// Back-off after a failure of the disk.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Records that one write checks for expiry: more than it usually adds, so that the file cannot grow for ever.
const EXPIRY_CHECKS_PER_WRITE: usize = 64;
/// Maximum of counters that stay due while the disk fails. Counters queued beyond that are written only when they are
/// charged again.
const MAX_DUE: usize = 1 << 20;
/// Maximum of queued writes. More means a disk that has not responded for seconds.
const MAX_QUEUED: usize = 1 << 16;

/// Maximum of refunds that wait to be written while the disk fails. Beyond that refunds fail until it works again.
const MAX_PENDING_REFUNDS: usize = 1 << 16;

/// Why a count is not on the disk.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk is slower than the decision may wait.
    #[error("the journal did not write in time")]
    Late,
    /// The disk failed.
    #[error("{0}")]
    Failed(Arc<str>),
    /// Too many refunds wait for the disk; another one could be forgotten.
    #[error("{MAX_PENDING_REFUNDS} refunds wait for the journal")]
    TooManyRefunds,
}

/// A change of state of a journal, reported once.
#[derive(Clone, Debug)]
pub enum JournalEvent {
    /// Counts are no longer written to the disk.
    Failing(Arc<str>),
    /// Counts are written again, including those made meanwhile.
    Recovered,
}

/// Receives the events of a journal.
pub type JournalListener = Box<dyn Fn(JournalEvent) + Send>;

/// Figures since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalStats {
    /// Writes that are on the disk.
    pub commits: u64,
    /// Counters in them.
    pub written: u64,
    /// Decisions whose counts could not be written in time.
    pub lost: u64,
    /// Whether the last attempt failed.
    pub failing: bool,
}

/// The queue of one journal, and its thread.
pub(super) struct Journal {
    shared: Arc<JournalShared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct JournalShared {
    queue: Mutex<JournalQueue>,
    wake: Condvar,
    commits: AtomicU64,
    written: AtomicU64,
    lost: AtomicU64,
    /// Why the last attempt failed, if it did.
    failure: Mutex<Option<Arc<str>>>,
}

#[derive(Default)]
struct JournalQueue {
    writes: Vec<PendingWrite>,
    /// The ids of refunds that are not on the disk yet, and when they may be forgotten.
    refunds: BTreeMap<u128, Nanos>,
    closed: bool,
}

/// Counters to be written, and the channel that reports the result.
struct PendingWrite {
    counters: Vec<JournaledCounter>,
    done: oneshot::Sender<Result<(), JournalError>>,
}

impl Journal {
    /// Starts the writer of the journal at `path`, which is open as `file`.
    pub(super) fn start<C: Clock + 'static>(
        path: PathBuf,
        file: JournalFile,
        medium: impl StorageFactory,
        memory: Arc<MemoryStore<C>>,
        listener: JournalListener,
    ) -> std::io::Result<Self> {
        let shared = Arc::<JournalShared>::default();
        let writer = JournalWriter {
            shared: Arc::clone(&shared),
            memory,
            path,
            medium,
            file: Some(file),
            due: BTreeMap::new(),
            failed: None,
            listener,
        };
        let thread = std::thread::Builder::new().name("journal".to_owned());
        Ok(Journal { shared, writer: Some(thread.spawn(move || writer.run())?) })
    }

    /// Writes the current state of the counters; waits no longer than `max_wait`. They are written later even if the
    /// caller stops waiting.
    pub(super) async fn persist(
        &self,
        counters: Vec<JournaledCounter>,
        max_wait: Duration,
    ) -> Result<(), JournalError> {
        let (done, written) = oneshot::channel();
        let result = if self.enqueue(PendingWrite { counters, done }) {
            match tokio::time::timeout(max_wait, written).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) => Err(JournalError::Failed("the journal is closed".into())),
                Err(_) => Err(JournalError::Late),
            }
        } else {
            Err(JournalError::Late)
        };
        if result.is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// Records a refund, to be written with the counters it changes. Must be called before they change.
    pub(super) fn record_refund(&self, id: u128, until: Nanos) -> Result<(), JournalError> {
        let refunds = &mut self.shared.queue.lock().refunds;
        if refunds.len() >= MAX_PENDING_REFUNDS && !refunds.contains_key(&id) {
            return Err(JournalError::TooManyRefunds);
        }
        refunds.insert(id, until);
        Ok(())
    }

    fn enqueue(&self, write: PendingWrite) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.writes.len() >= MAX_QUEUED {
            return false;
        }
        queue.writes.push(write);
        self.shared.wake.notify_one();
        true
    }

    pub(super) fn stats(&self) -> JournalStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JournalStats {
            commits: read(&self.shared.commits),
            written: read(&self.shared.written),
            lost: read(&self.shared.lost),
            failing: self.shared.failure.lock().is_some(),
        }
    }

    /// Why counts cannot be written, if they cannot. Without the path of the journal.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure.lock().clone()
    }
}

/// Writes all queued counters, and closes the file.
impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_one();
        if let Some(writer) = self.writer.take() {
            let _it_panicked = writer.join();
        }
    }
}

/// The state of the thread.
struct JournalWriter<C, M> {
    shared: Arc<JournalShared>,
    memory: Arc<MemoryStore<C>>,
    path: PathBuf,
    medium: M,
    /// `None` after a failure: redb must then be reopened.
    file: Option<JournalFile>,
    /// Counters to be written, by name.
    due: BTreeMap<Vec<u8>, JournaledCounter>,
    /// When and why the last attempt failed.
    failed: Option<(Instant, Arc<str>)>,
    listener: JournalListener,
}

impl<C: Clock, M: StorageFactory> JournalWriter<C, M> {
    fn run(mut self) {
        while let Some(batch) = self.take_queue() {
            let mut waiters = Vec::with_capacity(batch.len());
            for PendingWrite { counters, done } in batch {
                for counter in counters {
                    let name = counter.name();
                    if self.due.len() < MAX_DUE || self.due.contains_key(&name) {
                        self.due.insert(name, counter);
                    }
                }
                waiters.push(done);
            }
            let result = self.try_write();
            for done in waiters {
                let _caller_stopped_waiting = done.send(result.clone());
            }
        }
    }

    /// Takes all queued writes, as soon as there are any; `None` when the journal is closed. While counters are due it
    /// waits no longer than [`RETRY_PAUSE`].
    fn take_queue(&self) -> Option<Vec<PendingWrite>> {
        let mut queue = self.shared.queue.lock();
        while queue.writes.is_empty() && !queue.closed {
            if self.due.is_empty() {
                self.shared.wake.wait(&mut queue);
            } else if self.shared.wake.wait_for(&mut queue, RETRY_PAUSE).timed_out() {
                break;
            }
        }
        let over = queue.closed && queue.writes.is_empty();
        (!over).then(|| std::mem::take(&mut queue.writes))
    }

    /// Writes all that is due, unless the disk has just failed.
    fn try_write(&mut self) -> Result<(), JournalError> {
        if let Some((at, why)) = &self.failed
            && at.elapsed() < RETRY_PAUSE
        {
            return Err(JournalError::Failed(Arc::clone(why)));
        }
        match self.write() {
            Ok(()) => {
                self.due.clear();
                if self.failed.take().is_some() {
                    *self.shared.failure.lock() = None;
                    (self.listener)(JournalEvent::Recovered);
                }
                Ok(())
            }
            Err(why) => {
                let path = self.path.display().to_string();
                *self.shared.failure.lock() = Some(why.replace(&path, "the journal").into());
                let why: Arc<str> = why.into();
                self.file = None;
                if self.failed.is_none() {
                    (self.listener)(JournalEvent::Failing(Arc::clone(&why)));
                }
                self.failed = Some((Instant::now(), Arc::clone(&why)));
                Err(JournalError::Failed(why))
            }
        }
    }

    fn write(&mut self) -> Result<(), String> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(self.reopen()?),
        };
        let now = self.memory.clock().now();
        let record = |counter: &JournaledCounter| {
            let snapshot = self.memory.snapshot_at(&counter.charge(), now);
            snapshot.map(|(state, fresh_at)| counter.record(&state, fresh_at))
        };
        let due = self.due.iter();
        let counts = due.map(|(name, counter)| (name.clone(), record(counter)));
        let counts = counts.collect();
        // After the counters were read: a refund is recorded before it changes any of them.
        let refunds = self.shared.queue.lock().refunds.clone();
        let batch = Batch { counts, refunds: refunds.iter().map(|(id, until)| refund_change(*id, *until)).collect() };
        let expired = |bytes: &[u8]| is_expired(bytes, now);
        let written = file.write(&batch, EXPIRY_CHECKS_PER_WRITE, expired);
        written.map_err(|error| format!("{}: {error}", self.path.display()))?;
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        let counters = batch.counts.len() as u64;
        self.shared.written.fetch_add(counters, Ordering::Relaxed);
        let mut queue = self.shared.queue.lock();
        queue.refunds.retain(|id, _| !refunds.contains_key(id));
        Ok(())
    }

    fn reopen(&self) -> Result<JournalFile, String> {
        JournalFile::open(&self.path, &self.medium).map_err(|error| error.to_string())
    }
}
