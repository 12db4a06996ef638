//! The requests of one listener that wait, and the memory they hold: HTTP/2 streams that wait for a body,
//! for the store or for their response to be read, and large responses over HTTP/1.
//!
//! Invariant: what requests hold before their response is made, and what responses hold, each stays below
//! a bound as counted here. One that finds its bound reached evicts those of its kind that have waited
//! longest since they last made progress. So clients that let requests wait cannot keep out clients that
//! finish theirs, responses that nobody reads cannot evict requests, and nobody waits for room. The
//! stream of an evicted request is reset; over HTTP/1 its connection ends.
//!
//! Lock order: the tables before a request's response. Nothing is dropped or woken under the tables' lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tidegate::observe::Metrics;
use tokio::sync::Notify;

/// What is given to a connection at once of a response. It is taken back only with its stream.
pub(crate) const PIECE: usize = 16 << 10;

/// The waiting requests of one listener.
pub(crate) struct WaitingStreams {
    max_bytes: usize,
    metrics: Arc<Metrics>,
    tables: Mutex<WaitingTables>,
}

#[derive(Default)]
struct WaitingTables {
    /// Entries so far. Their numbers order them by their last progress.
    entered: u64,
    requests: WaitingTable,
    responses: WaitingTable,
}

#[derive(Default)]
struct WaitingTable {
    bytes: usize,
    streams: BTreeMap<u64, (usize, Weak<StreamMemory>)>,
}

/// The memory of one request. It is counted while the request waits, until this is dropped.
pub(crate) struct StreamMemory {
    waiting: Arc<WaitingStreams>,
    bytes: AtomicUsize,
    /// Its place in the table; 0 before it waits.
    number: AtomicU64,
    has_response: AtomicBool,
    evicted: Notify,
    unsent: Mutex<UnsentResponse>,
}

/// What is left to send. It is here and not in the response's body, because a body whose client does not
/// read is never polled, and could not let go of it.
#[derive(Default)]
struct UnsentResponse {
    rest: Bytes,
    state: SendState,
    sender: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum SendState {
    #[default]
    Ready,
    /// The connection has a piece.
    InFlight,
    Evicted,
}

/// Newer requests needed the room of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the response was not read while others waited")]
pub(crate) struct EvictedResponse;

impl WaitingStreams {
    /// What a waiting stream takes beside its head: its task, and its state in hyper and h2.
    pub(super) const STREAM_BYTES: usize = 8 << 10;

    /// What the waiting requests of one listener may take, and its waiting responses. With small heads that
    /// is 4,096 streams.
    pub(crate) const MAX_BYTES: usize = 32 << 20;

    pub(crate) fn new(max_bytes: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(WaitingStreams {
            max_bytes,
            metrics,
            tables: Mutex::default(),
        })
    }

    /// A request whose head takes `head_bytes`. It does not wait yet.
    pub(crate) fn request(this: &Arc<Self>, head_bytes: usize) -> Arc<StreamMemory> {
        Arc::new(StreamMemory {
            waiting: Arc::clone(this),
            bytes: AtomicUsize::new(Self::STREAM_BYTES + head_bytes),
            number: AtomicU64::new(0),
            has_response: AtomicBool::new(false),
            evicted: Notify::new(),
            unsent: Mutex::default(),
        })
    }
}

impl WaitingTables {
    fn remove(&mut self, number: u64) {
        self.requests.remove(number);
        self.responses.remove(number);
    }
}

impl WaitingTable {
    fn remove(&mut self, number: u64) {
        if let Some((bytes, _)) = self.streams.remove(&number) {
            self.bytes -= bytes;
        }
    }

    /// Takes out the oldest until `bytes` more fit.
    fn make_room(&mut self, bytes: usize, max_bytes: usize) -> Vec<Arc<StreamMemory>> {
        let mut evicted = Vec::new();
        while self.bytes + bytes > max_bytes
            && let Some((_, (freed, stream))) = self.streams.pop_first()
        {
            self.bytes -= freed;
            evicted.extend(stream.upgrade());
        }
        evicted
    }
}

impl StreamMemory {
    /// The request waits from now on, or has made progress.
    pub(super) fn enter(self: &Arc<Self>) {
        if self.unsent.lock().state == SendState::Evicted {
            return;
        }
        let bytes = self.bytes.load(Relaxed);
        let mut tables = self.waiting.tables.lock();
        tables.remove(self.number.load(Relaxed));
        tables.entered += 1;
        let number = tables.entered;
        let table = if self.has_response.load(Relaxed) {
            &mut tables.responses
        } else {
            &mut tables.requests
        };
        let evicted = table.make_room(bytes, self.waiting.max_bytes);
        table.bytes += bytes;
        table.streams.insert(number, (bytes, Arc::downgrade(self)));
        self.number.store(number, Relaxed);
        drop(tables);
        for stream in evicted {
            self.waiting.metrics.network.streams_evicted.inc();
            stream.evict();
        }
    }

    /// Completes when newer requests need the room.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }

    fn evict(&self) {
        let mut unsent = self.unsent.lock();
        unsent.state = SendState::Evicted;
        let (rest, sender) = (std::mem::take(&mut unsent.rest), unsent.sender.take());
        drop(unsent);
        drop(rest);
        self.evicted.notify_one();
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    fn is_waiting(&self) -> bool {
        self.number.load(Relaxed) > 0
    }

    /// Takes over the response.
    pub(super) fn send(self: &Arc<Self>, whole: Bytes) {
        self.bytes.fetch_add(whole.len(), Relaxed);
        self.unsent.lock().rest = whole;
        self.has_response.store(true, Relaxed);
        if self.is_waiting() {
            self.enter();
        }
    }

    /// The bytes that no connection has been given yet.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent.lock().rest.len()
    }

    pub(super) fn is_sent(&self) -> bool {
        let unsent = self.unsent.lock();
        unsent.rest.is_empty() && unsent.state == SendState::Ready
    }

    /// The next piece of the response, once the connection has sent the one before. It is a copy: a slice
    /// would keep the whole response in memory while it waits to be read.
    pub(super) fn poll_piece(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, EvictedResponse>>> {
        let mut unsent = self.unsent.lock();
        match unsent.state {
            SendState::Evicted => return Poll::Ready(Some(Err(EvictedResponse))),
            SendState::InFlight => {
                unsent.sender = Some(cx.waker().clone());
                return Poll::Pending;
            }
            SendState::Ready if unsent.rest.is_empty() => return Poll::Ready(None),
            SendState::Ready => {}
        }
        let length = unsent.rest.len().min(PIECE);
        let piece = PieceInFlight {
            bytes: unsent.rest[..length].into(),
            memory: Arc::clone(self),
        };
        unsent.rest.advance(length);
        unsent.state = SendState::InFlight;
        drop(unsent);
        Poll::Ready(Some(Ok(Bytes::from_owner(piece))))
    }

    /// The connection has sent a piece, or dropped it.
    fn piece_done(self: &Arc<Self>, bytes: usize) {
        self.bytes.fetch_sub(bytes, Relaxed);
        let mut unsent = self.unsent.lock();
        if unsent.state == SendState::InFlight {
            unsent.state = SendState::Ready;
        }
        let sender = unsent.sender.take();
        drop(unsent);
        if self.is_waiting() {
            self.enter();
        }
        if let Some(sender) = sender {
            sender.wake();
        }
    }
}

impl Drop for StreamMemory {
    fn drop(&mut self) {
        if self.is_waiting() {
            let mut tables = self.waiting.tables.lock();
            tables.remove(self.number.load(Relaxed));
        }
    }
}

/// A piece that a connection has. It is dropped when it is sent, or with its stream.
struct PieceInFlight {
    bytes: Box<[u8]>,
    memory: Arc<StreamMemory>,
}

impl AsRef<[u8]> for PieceInFlight {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PieceInFlight {
    fn drop(&mut self) {
        self.memory.piece_done(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: usize = WaitingStreams::STREAM_BYTES;

    fn waiting(streams: usize) -> Arc<WaitingStreams> {
        WaitingStreams::new(streams * STREAM, Arc::default())
    }

    fn enter(waiting: &Arc<WaitingStreams>, bytes: usize) -> Arc<StreamMemory> {
        let stream = WaitingStreams::request(waiting, bytes);
        stream.enter();
        stream
    }

    fn is_evicted(stream: &Arc<StreamMemory>) -> bool {
        stream.unsent.lock().state == SendState::Evicted
    }

    fn piece(stream: &Arc<StreamMemory>) -> Poll<Option<Result<Bytes, EvictedResponse>>> {
        stream.poll_piece(&mut Context::from_waker(Waker::noop()))
    }

    fn assert_empty(waiting: &WaitingStreams) {
        let tables = waiting.tables.lock();
        for table in [&tables.requests, &tables.responses] {
            assert!(table.bytes == 0 && table.streams.is_empty());
        }
    }

    #[test]
    fn the_oldest_make_room_and_those_that_finish_leave_it() {
        let waiting = waiting(3);
        let [first, second, third] = [0; 3].map(|bytes| enter(&waiting, bytes));
        drop(second);
        let fourth = enter(&waiting, 0);
        assert!(!is_evicted(&first), "there was room");
        let fifth = enter(&waiting, 0);
        assert!(is_evicted(&first) && !is_evicted(&third));
        assert!(!is_evicted(&fourth) && !is_evicted(&fifth));
        // A large head takes the room of several.
        let large = enter(&waiting, STREAM);
        assert!(is_evicted(&third) && is_evicted(&fourth) && !is_evicted(&fifth));
        assert_eq!(waiting.metrics.network.streams_evicted.get(), 3);
        drop((first, third, fourth, fifth, large));
        assert_empty(&waiting);
    }

    #[test]
    fn a_response_is_counted_until_it_is_sent_and_who_reads_is_not_the_oldest() {
        let waiting = waiting(100);
        let [reads, stalls] = [0; 2].map(|bytes| enter(&waiting, bytes));
        for stream in [&reads, &stalls] {
            stream.send(vec![7; 3 * PIECE].into());
        }
        let held = |waiting: &WaitingStreams| waiting.tables.lock().responses.bytes;
        assert_eq!(held(&waiting), 2 * (STREAM + 3 * PIECE));
        let stuck = piece(&stalls);
        assert!(piece(&stalls).is_pending(), "one piece at a time");
        let Poll::Ready(Some(Ok(first))) = piece(&reads) else {
            panic!("no piece")
        };
        assert_eq!(*first, [7; PIECE]);
        drop(first);
        assert_eq!(held(&waiting), 2 * (STREAM + 3 * PIECE) - PIECE);
        // A request takes no room of a response. A large response takes that of the one that waited longer.
        let large = enter(&waiting, 99 * STREAM - held(&waiting));
        assert!(!is_evicted(&stalls));
        large.send(vec![7; STREAM].into());
        assert!(is_evicted(&stalls) && !is_evicted(&reads));
        assert_eq!(piece(&stalls), Poll::Ready(Some(Err(EvictedResponse))));
        drop(stuck);
        drop((0..2).map(|_| piece(&reads)).collect::<Vec<_>>());
        assert_eq!(stalls.unsent_bytes(), 0);
        drop((large, stalls));
        for _ in 0..2 {
            drop(piece(&reads));
        }
        assert!(reads.is_sent());
        assert_eq!(piece(&reads), Poll::Ready(None));
        drop(reads);
        assert_empty(&waiting);
    }
}
