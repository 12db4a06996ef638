//! The writer of a journal: one thread that takes all that is queued, writes it in one step, waits once
//! for the disk, and then answers all.
//!
//! A counter is written as it stands when its turn comes, not as it stood when it was queued: so of two
//! charges the later one is never written over by the earlier, and a counter charged a thousand times
//! meanwhile is written once. What could not be written stays due, and goes with the next attempt. After
//! a failure the disk is left alone for a second; until then every answer is a failure at once.
//!
//! A refund is noted before its counters change in memory, and the notes are collected after the counters
//! were read: so no write has the effect of a refund without its id, and no crash makes it possible twice.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::entry::{Journaled, RefundNote, is_past};
use super::file::{BadJournal, Batch, JournalFile, Medium};
use crate::clock::Clock;
use crate::stores::memory::MemoryStore;

/// How long a disk that failed is left alone.
const PAUSE: Duration = Duration::from_secs(1);
/// Records that one write looks at, to drop such as are past: more than it usually adds, so that the
/// file cannot grow for ever.
const GLANCES: usize = 64;
/// Counters that stay due while the disk fails. Beyond that the ones queued last are written only when
/// they are charged again.
const MOST_DUE: usize = 1 << 20;
/// Entries in the queue. More means a disk that has not moved for seconds.
const MOST_QUEUED: usize = 1 << 16;

/// Refunds that wait to be written while the disk fails. More cannot be made until it works.
const MAX_PENDING_REFUNDS: usize = 1 << 16;

/// Why a count is not on the disk.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unkept {
    /// The disk is slower than the decision may wait.
    #[error("the journal did not answer in time")]
    Late,
    /// The disk failed.
    #[error("{0}")]
    Failed(Arc<str>),
    /// So many refunds wait for the disk that another could be forgotten.
    #[error("{MAX_PENDING_REFUNDS} refunds wait for the journal")]
    TooManyRefunds,
}

/// What a journal has to say, once for each change.
#[derive(Clone, Debug)]
pub enum JournalNews {
    /// Counts are not kept on disk any more.
    Fails(Arc<str>),
    /// They are again, those of meanwhile too.
    Works,
}

/// Who hears of it.
pub type JournalListener = Box<dyn Fn(JournalNews) + Send>;

/// What happened since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalStats {
    /// Writes that are on the disk.
    pub commits: u64,
    /// Counters in them.
    pub written: u64,
    /// Decisions whose counts could not be kept.
    pub unkept: u64,
    /// Whether the last attempt failed.
    pub failing: bool,
}

/// The queue of one journal, and its thread.
pub(super) struct Journal {
    shared: Arc<Shared>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    rung: Condvar,
    commits: AtomicU64,
    written: AtomicU64,
    unkept: AtomicU64,
    /// Why the last attempt failed, if it did.
    failure: Mutex<Option<Arc<str>>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Refunds that are not on the disk yet.
    refunds: BTreeMap<u128, RefundNote>,
    closed: bool,
}

/// Counters to be written, and who waits for it.
struct Waiting {
    counters: Vec<Journaled>,
    done: oneshot::Sender<Result<(), Unkept>>,
}

impl Journal {
    /// Starts the writer of the journal at `path`, which is open as `file`.
    pub(super) fn start<C: Clock + 'static>(
        path: PathBuf,
        file: JournalFile,
        medium: impl Medium,
        memory: Arc<MemoryStore<C>>,
        listener: JournalListener,
    ) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let writer = Writer {
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
        Ok(Journal {
            shared,
            writer: Some(thread.spawn(move || writer.run())?),
        })
    }

    /// Writes the counters as they stand; waits no longer than `patience`. They are written later even if
    /// nobody waits any more.
    pub(super) async fn keep(
        &self,
        counters: Vec<Journaled>,
        patience: Duration,
    ) -> Result<(), Unkept> {
        let (done, kept) = oneshot::channel();
        let queued = self.queue(Waiting { counters, done });
        let answer = match queued {
            false => Err(Unkept::Late),
            true => match tokio::time::timeout(patience, kept).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(_)) => Err(Unkept::Failed("the journal is closed".into())),
                Err(_) => Err(Unkept::Late),
            },
        };
        if answer.is_err() {
            self.shared.unkept.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    /// Notes a refund, to be written with the counters it changes. To be called before they change.
    pub(super) fn note(&self, refund: RefundNote) -> Result<(), Unkept> {
        let refunds = &mut self.shared.queue.lock().refunds;
        if refunds.len() >= MAX_PENDING_REFUNDS && !refunds.contains_key(&refund.id) {
            return Err(Unkept::TooManyRefunds);
        }
        refunds.insert(refund.id, refund);
        Ok(())
    }

    fn queue(&self, waiting: Waiting) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.waiting.len() >= MOST_QUEUED {
            return false;
        }
        queue.waiting.push(waiting);
        self.shared.rung.notify_one();
        true
    }

    pub(super) fn stats(&self) -> JournalStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JournalStats {
            commits: read(&self.shared.commits),
            written: read(&self.shared.written),
            unkept: read(&self.shared.unkept),
            failing: self.shared.failure.lock().is_some(),
        }
    }

    /// Why counts cannot be written, if they cannot. Without the path of the journal.
    pub(super) fn failure(&self) -> Option<Arc<str>> {
        self.shared.failure.lock().clone()
    }
}

/// Writes what is queued, and closes the file.
impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.rung.notify_one();
        if let Some(writer) = self.writer.take() {
            let _it_panicked = writer.join();
        }
    }
}

/// What the thread has.
struct Writer<C, M> {
    shared: Arc<Shared>,
    memory: Arc<MemoryStore<C>>,
    path: PathBuf,
    medium: M,
    /// Nothing after a failure: redb wants to be opened anew then.
    file: Option<JournalFile>,
    /// Counters to be written, by name.
    due: BTreeMap<Vec<u8>, Journaled>,
    /// When and why the last attempt failed.
    failed: Option<(Instant, Arc<str>)>,
    listener: JournalListener,
}

impl<C: Clock, M: Medium> Writer<C, M> {
    fn run(mut self) {
        while let Some(batch) = self.take() {
            let mut waiting = Vec::with_capacity(batch.len());
            for Waiting { counters, done } in batch {
                for counter in counters {
                    let name = counter.name();
                    if self.due.len() < MOST_DUE || self.due.contains_key(&name) {
                        self.due.insert(name, counter);
                    }
                }
                waiting.push(done);
            }
            let kept = self.attempt();
            for done in waiting {
                let _nobody_waits_any_more = done.send(kept.clone());
            }
        }
    }

    /// All that is queued, as soon as there is any; nothing when the journal is closed. While something
    /// stays due it does not wait for more than that.
    fn take(&self) -> Option<Vec<Waiting>> {
        let mut queue = self.shared.queue.lock();
        while queue.waiting.is_empty() && !queue.closed {
            if self.due.is_empty() {
                self.shared.rung.wait(&mut queue);
            } else if self.shared.rung.wait_for(&mut queue, PAUSE).timed_out() {
                break;
            }
        }
        let over = queue.closed && queue.waiting.is_empty();
        (!over).then(|| std::mem::take(&mut queue.waiting))
    }

    /// Writes all that is due, unless the disk has just failed.
    fn attempt(&mut self) -> Result<(), Unkept> {
        if let Some((at, why)) = &self.failed
            && at.elapsed() < PAUSE
        {
            return Err(Unkept::Failed(Arc::clone(why)));
        }
        match self.write() {
            Ok(()) => {
                self.due.clear();
                if self.failed.take().is_some() {
                    *self.shared.failure.lock() = None;
                    (self.listener)(JournalNews::Works);
                }
                Ok(())
            }
            Err(why) => {
                let path = self.path.display().to_string();
                *self.shared.failure.lock() = Some(why.replace(&path, "the journal").into());
                let why: Arc<str> = why.into();
                self.file = None;
                if self.failed.is_none() {
                    (self.listener)(JournalNews::Fails(Arc::clone(&why)));
                }
                self.failed = Some((Instant::now(), Arc::clone(&why)));
                Err(Unkept::Failed(why))
            }
        }
    }

    fn write(&mut self) -> Result<(), String> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(self.reopened()?),
        };
        let now = self.memory.clock().now();
        let record = |kept: &Journaled| {
            let standing = self.memory.standing_at(&kept.charge(), now);
            standing.map(|standing| kept.record(&standing.state, standing.fresh_at))
        };
        let due = self.due.iter();
        let counts = due.map(|(name, kept)| (name.clone(), record(kept)));
        let counts = counts.collect();
        // After the counters were read: a refund was noted before it changed any of them.
        let refunds: Vec<RefundNote> = self.shared.queue.lock().refunds.values().copied().collect();
        let batch = Batch {
            counts,
            refunds: refunds.iter().map(|refund| refund.change()).collect(),
        };
        let past = |bytes: &[u8]| is_past(bytes, now);
        let written = file.write(&batch, GLANCES, past);
        written.map_err(|error| format!("{}: {error}", self.path.display()))?;
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        let counters = batch.counts.len() as u64;
        self.shared.written.fetch_add(counters, Ordering::Relaxed);
        let mut queue = self.shared.queue.lock();
        for refund in &refunds {
            queue.refunds.remove(&refund.id);
        }
        Ok(())
    }

    fn reopened(&self) -> Result<JournalFile, String> {
        let opened: Result<_, BadJournal> = JournalFile::open(&self.path, &self.medium);
        opened.map_err(|error| error.to_string())
    }
}
