//! The HTTP/2 streams of one listener that wait: for a body, for the store, or for their response to be read.
//!
//! Invariant: the memory of all of them, as counted here, stays below a bound. A stream that exceeds the bound evicts
//! those that have waited longest. So clients that open streams and let them wait cannot keep out clients that finish
//! theirs. An evicted stream is reset.
//!
//! The work of an evicted stream is dropped at once, by the stream that needs its room. If its own task dropped it, the
//! work of all evicted streams would stay in memory until the runtime has polled every connection that has something to
//! read.
//!
//! Memory that the HTTP/2 library has allocated for the streams of a connection stays allocated until the connection
//! ends. So a connection of which [`ConnectionStreams::MAX_EVICTED`] streams were evicted has to end. While more than
//! [`MAX_LEAVING`] such connections have not ended yet, all others take turns: each waits until one of them has.
//! Otherwise the runtime would first read all input that has arrived on thousands of connections.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tidegate::observe::Metrics;
use tokio::sync::Notify;

/// The remaining work of a stream.
pub(super) type StreamWork = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The waiting streams of one listener.
pub(crate) struct WaitingStreams {
    max_bytes: usize,
    metrics: Arc<Metrics>,
    table: Mutex<WaitingTable>,
    /// Connections that have to end and have not ended.
    leaving: AtomicUsize,
    /// Wakes one connection that waits for its turn.
    turns: Notify,
}

#[derive(Default)]
struct WaitingTable {
    bytes: usize,
    /// Streams registered so far. Their numbers order them by age.
    entered: u64,
    streams: BTreeMap<u64, (usize, Arc<WaitingWork>)>,
}

/// The work of one waiting stream, shared by its task and the table.
///
/// Lock order: code that holds the lock of a work neither locks the table nor another work.
struct WaitingWork {
    state: Mutex<WorkState>,
    connection: Arc<ConnectionStreams>,
}

struct WorkState {
    /// `None` once the stream is evicted.
    work: Option<StreamWork>,
    /// Wakes the task of the stream.
    waker: Waker,
}

/// Connections that have to end and may still run: a megabyte of memory or two.
const MAX_LEAVING: usize = 8;

/// Counts of the streams of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionStreams {
    /// Evicted streams.
    evicted: AtomicUsize,
    turn: Mutex<ConnectionTurn>,
    /// Streams that wait now.
    waiting: AtomicUsize,
    /// Maximum of streams open at the same time so far.
    max_open: AtomicUsize,
    /// Blocks that its header table may hold.
    held_blocks: AtomicU32,
}

/// Whether a connection runs or waits for its turn.
#[derive(Debug, Default)]
enum ConnectionTurn {
    /// It runs, and an evicted stream wakes it.
    #[default]
    Runs,
    /// It waits for its turn. Meanwhile nothing else wakes it.
    Waits(Waker),
    Ended,
}

impl ConnectionStreams {
    /// Evicted streams after which a connection ends. An honest client seldom loses one.
    pub(crate) const MAX_EVICTED: usize = 16;

    /// Whether the connection has to end.
    pub(super) fn must_close(&self) -> bool {
        self.evicted.load(Relaxed) >= Self::MAX_EVICTED
    }

    /// Records that `queued` streams are about to run beside those that wait.
    pub(super) fn record_open(&self, queued: usize) {
        let open = queued + self.waiting.load(Relaxed);
        if open > self.max_open.load(Relaxed) {
            self.max_open.store(open, Relaxed);
        }
    }

    /// Maximum of streams open at the same time so far.
    pub(super) fn max_open(&self) -> usize {
        self.max_open.load(Relaxed)
    }

    pub(super) fn record_held_blocks(&self, blocks: u32) {
        self.held_blocks.store(blocks, Relaxed);
    }

    /// Blocks that the connection's header table may hold, see [`HeaderBlocks`](super::header_blocks::HeaderBlocks).
    pub(super) fn held_blocks(&self) -> u32 {
        self.held_blocks.load(Relaxed)
    }

    fn count_evicted(&self, listener: &WaitingStreams) {
        let turn = self.turn.lock();
        let count = self.evicted.fetch_add(1, Relaxed) + 1;
        if count != Self::MAX_EVICTED {
            return;
        }
        match &*turn {
            ConnectionTurn::Runs => {}
            ConnectionTurn::Waits(waker) => waker.wake_by_ref(),
            ConnectionTurn::Ended => return,
        }
        listener.leaving.fetch_add(1, Relaxed);
    }

    /// Waits for a turn. `waker` wakes the connection.
    pub(super) fn wait(&self, waker: &Waker) {
        *self.turn.lock() = ConnectionTurn::Waits(waker.clone());
    }

    /// Called when the connection has ended.
    pub(super) fn end(&self, listener: &WaitingStreams) {
        let mut turn = self.turn.lock();
        *turn = ConnectionTurn::Ended;
        if self.must_close() {
            listener.leaving.fetch_sub(1, Relaxed);
            listener.turns.notify_one();
        }
    }
}

/// One waiting stream. It completes when its work is done or dropped. Dropping it removes it from the table.
pub(super) struct WaitingStream {
    table: Arc<WaitingStreams>,
    number: u64,
    work: Arc<WaitingWork>,
}

impl WaitingStreams {
    /// Memory of a waiting stream beside its head: its task, and its state in hyper and h2.
    pub(super) const STREAM_BYTES: usize = 8 << 10;

    /// Maximum memory of the waiting streams of one listener. With small heads that is 8,192 streams.
    pub(crate) const MAX_BYTES: usize = 64 << 20;

    pub(crate) fn new(max_bytes: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(WaitingStreams {
            max_bytes,
            metrics,
            table: Mutex::default(),
            leaving: AtomicUsize::new(0),
            turns: Notify::new(),
        })
    }

    /// Adds a stream whose head takes `head_bytes`, and evicts the oldest ones if it must. Its own eviction is counted
    /// in its `connection`.
    pub(super) fn register(
        this: &Arc<Self>,
        work: StreamWork,
        head_bytes: usize,
        connection: &Arc<ConnectionStreams>,
    ) -> WaitingStream {
        let bytes = Self::STREAM_BYTES + head_bytes;
        let state = WorkState { work: Some(work), waker: Waker::noop().clone() };
        let work = Arc::new(WaitingWork { state: Mutex::new(state), connection: Arc::clone(connection) });
        connection.waiting.fetch_add(1, Relaxed);
        let mut evicted = Vec::new();
        let mut table = this.table.lock();
        table.bytes += bytes;
        while table.bytes > this.max_bytes
            && let Some((_, (bytes, work))) = table.streams.pop_first()
        {
            table.bytes -= bytes;
            evicted.push(work);
        }
        table.entered += 1;
        let number = table.entered;
        table.streams.insert(number, (bytes, Arc::clone(&work)));
        drop(table);
        for evicted in evicted {
            this.metrics.network.streams_evicted.inc();
            evicted.connection.count_evicted(this);
            evicted.evict();
        }
        WaitingStream { table: Arc::clone(this), number, work }
    }

    /// Whether so many connections still have to end that other connections must not be read.
    pub(super) fn has_backlog(&self) -> bool {
        self.leaving.load(Relaxed) > MAX_LEAVING
    }

    /// Completes when a connection may be read. It then has to call [`end_turn`](Self::end_turn).
    pub(super) async fn turn(self: Arc<Self>) {
        while self.has_backlog() {
            self.turns.notified().await;
        }
    }

    /// Passes the turn to the next waiting connection, if any.
    pub(super) fn end_turn(&self) {
        if !self.has_backlog() {
            self.turns.notify_one();
        }
    }
}

impl WaitingWork {
    /// Drops the work, which resets the stream. Its task then completes.
    fn evict(&self) {
        let mut state = self.state.lock();
        let (work, waker) = (state.work.take(), state.waker.clone());
        drop(state);
        drop(work);
        waker.wake();
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        let Some(work) = &mut state.work else {
            return Poll::Ready(());
        };
        if work.as_mut().poll(cx).is_ready() {
            let done = state.work.take();
            drop(state);
            drop(done);
            return Poll::Ready(());
        }
        state.waker.clone_from(cx.waker());
        Poll::Pending
    }
}

impl Future for WaitingStream {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.work.poll(cx)
    }
}

impl Drop for WaitingStream {
    fn drop(&mut self) {
        self.work.connection.waiting.fetch_sub(1, Relaxed);
        let mut table = self.table.table.lock();
        if let Some((bytes, _)) = table.streams.remove(&self.number) {
            table.bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use std::sync::Weak;

    /// A stream that waits for ever, and a weak reference that lives as long as its work.
    fn enter(streams: &Arc<WaitingStreams>, head_bytes: usize) -> (WaitingStream, Weak<()>) {
        let held = Arc::new(());
        let weak = Arc::downgrade(&held);
        let work = Box::pin(async move {
            pending::<()>().await;
            drop(held);
        });
        let entered = WaitingStreams::register(streams, work, head_bytes, &Arc::default());
        (entered, weak)
    }

    /// Only the new stream runs here: the tasks of evicted streams used to free their memory later, after all input
    /// that had arrived was read, when there was half a gigabyte of them.
    #[test]
    fn the_oldest_are_evicted_at_once_and_finished_streams_free_memory() {
        let streams = WaitingStreams::new(3 * WaitingStreams::STREAM_BYTES, Arc::default());
        let enter = |head_bytes| enter(&streams, head_bytes);
        let is_evicted = |(_, held): &(WaitingStream, Weak<()>)| held.strong_count() == 0;
        let (first, second, third) = (enter(0), enter(0), enter(0));
        drop(second);
        let fourth = enter(0);
        assert!(!is_evicted(&first), "both fit");
        let fifth = enter(0);
        assert!(is_evicted(&first) && !is_evicted(&third));
        assert!(!is_evicted(&fourth) && !is_evicted(&fifth));
        // A large head evicts several streams.
        let large = enter(WaitingStreams::STREAM_BYTES);
        assert!(is_evicted(&third) && is_evicted(&fourth) && !is_evicted(&fifth));
        drop((first, third, fourth, fifth, large));
        assert_eq!(streams.metrics.network.streams_evicted.get(), 3);
        let table = streams.table.lock();
        assert!(table.bytes == 0 && table.streams.is_empty());
    }

    /// `leaving` returns to its initial value, in whatever order streams are evicted and connections end.
    #[tokio::test]
    async fn others_wait_while_many_connections_have_to_end() {
        let streams = WaitingStreams::new(0, Arc::default());
        let lose_all = |connection: &ConnectionStreams| {
            (0..2 * ConnectionStreams::MAX_EVICTED).for_each(|_| connection.count_evicted(&streams));
        };
        let connections: Vec<ConnectionStreams> = (0..=MAX_LEAVING).map(|_| ConnectionStreams::default()).collect();
        connections.iter().for_each(&lose_all);
        assert!(connections.iter().all(ConnectionStreams::must_close) && streams.has_backlog());
        let turns: Vec<_> = (0..3)
            .map(|_| {
                let streams = Arc::clone(&streams);
                tokio::spawn(async move {
                    Arc::clone(&streams).turn().await;
                    streams.end_turn();
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(turns.iter().all(|turn| !turn.is_finished()));
        connections[0].end(&streams);
        for turn in turns {
            turn.await.unwrap();
        }
        let late = ConnectionStreams::default();
        late.end(&streams);
        lose_all(&late);
        connections[1..].iter().for_each(|connection| connection.end(&streams));
        assert_eq!(streams.leaving.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn the_task_of_an_evicted_stream_ends() {
        let streams = WaitingStreams::new(WaitingStreams::STREAM_BYTES, Arc::default());
        let task = tokio::spawn(enter(&streams, 0).0);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        let _newcomer = enter(&streams, 0);
        task.await.unwrap();
    }
}
