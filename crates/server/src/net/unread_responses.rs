//! Responses that a peer has not read, counted in bytes per connection and per listener.
//!
//! A peer that sends requests and does not read makes the service hold the responses: over HTTP/2 those of all streams
//! of a connection, while the peer's windows are closed or the socket is full. A connection that has ended its turn has
//! written all it can, so the bytes it still holds are unread. A connection with at least [`MIN_TRACKED_BYTES`] of them
//! is in the table of its listener.
//!
//! Invariant: the connections of the table hold no more than a bound together. A connection that exceeds it evicts
//! those that have gone longest without sending anything, and an evicted connection is closed. So peers that do not
//! read cannot keep out peers that do, and no connection waits for them. A connection whose responses are read takes no
//! lock. Knows no protocol.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::task::Waker;

use parking_lot::Mutex;
use tidegate::observe::Metrics;
use tokio::sync::Notify;
use tracing::warn;

use crate::config::EndpointAddress;
use crate::logging::RateLimitedLog;

/// Maximum memory of the unread responses of one listener.
pub(crate) const MAX_LISTENER_BYTES: usize = 32 << 20;

/// Maximum memory of the unread responses of one connection before its lists wait: some dozen large responses.
pub(crate) const MAX_CONNECTION_BYTES: usize = 4 << 20;

/// Memory of a response besides its body: its head, and its stream in the HTTP/2 library.
pub(super) const RESPONSE_BYTES: usize = 2 << 10;

/// A connection with less than this is not in the table. Every connection takes as much anyway.
const MIN_TRACKED_BYTES: usize = 8 << 10;

/// Maximum number of responses without a body that a connection holds: HTTP/2 allows no more open streams.
const MAX_BODILESS: usize = super::connection::MAX_STREAMS as usize;

/// Why a connection with unread responses was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnreadCause {
    /// Other connections needed its memory.
    Memory,
    /// It read nothing for the idle time.
    Idle,
}

/// The connections of one listener with unread responses.
pub(crate) struct UnreadResponses {
    max_bytes: usize,
    metrics: Arc<Metrics>,
    closed_log: RateLimitedLog,
    table: Mutex<UnreadTable>,
}

#[derive(Default)]
struct UnreadTable {
    bytes: usize,
    /// Entries so far. Their numbers order connections by when they last sent something.
    entered: u64,
    connections: BTreeMap<u64, UnreadEntry>,
}

struct UnreadEntry {
    bytes: usize,
    connection: Arc<ConnectionUnread>,
    waker: Waker,
}

/// The unread responses of one connection.
#[derive(Debug, Default)]
pub(crate) struct ConnectionUnread {
    /// Bytes of responses that have a body, and of lists that are being decided.
    held: AtomicUsize,
    /// Responses without a body since the socket last accepted all bytes.
    bodiless: AtomicUsize,
    /// Whether the socket accepted no more bytes at the last write.
    is_blocked: AtomicBool,
    /// Bytes sent so far. It may wrap: only a change matters.
    sent: AtomicUsize,
    is_evicted: AtomicBool,
    /// Lists that wait for room.
    waiting: AtomicUsize,
    released: Notify,
}

/// Bytes of a response that a connection holds, until this is dropped.
#[derive(Debug)]
pub(super) struct HeldBytes {
    connection: Arc<ConnectionUnread>,
    bytes: usize,
}

/// Bytes reserved for a response that is being built, until this is dropped.
#[derive(Debug)]
pub(crate) struct ReservedBytes<'a> {
    connection: &'a ConnectionUnread,
    bytes: usize,
}

impl ConnectionUnread {
    pub(crate) fn bytes(&self) -> usize {
        let bodiless = if self.is_blocked.load(Relaxed) { self.bodiless.load(Relaxed).min(MAX_BODILESS) } else { 0 };
        self.held.load(Relaxed) + bodiless * RESPONSE_BYTES
    }

    /// Changes whenever something was sent.
    pub(super) fn progress(&self) -> usize {
        self.sent.load(Relaxed)
    }

    /// Counts a response with a body of `body_bytes`.
    pub(super) fn hold_response(self: &Arc<Self>, body_bytes: usize) -> HeldBytes {
        let bytes = RESPONSE_BYTES + body_bytes;
        self.held.fetch_add(bytes, Relaxed);
        HeldBytes { connection: Arc::clone(self), bytes }
    }

    /// Counts a response without a body. The HTTP/2 library does not report when it is sent.
    pub(super) fn count_bodiless(&self) {
        self.bodiless.fetch_add(1, Relaxed);
    }

    /// Counts bytes that the edge itself keeps for the peer, from `hold` to `release`.
    pub(crate) fn hold(&self, bytes: usize) {
        self.held.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn release(&self, bytes: usize) {
        self.held.fetch_sub(bytes, SeqCst);
        if self.waiting.load(SeqCst) > 0 {
            self.released.notify_waiters();
        }
    }

    pub(crate) fn record_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes, Relaxed);
    }

    /// Records whether the last write was blocked.
    pub(super) fn set_blocked(&self, is_blocked: bool) {
        if self.is_blocked.load(Relaxed) != is_blocked {
            self.is_blocked.store(is_blocked, Relaxed);
        }
    }

    /// Reserves about `bytes` for a response, once enough other responses are read.
    pub(crate) async fn reserve(&self, bytes: usize) -> ReservedBytes<'_> {
        if let Some(reserved) = self.try_reserve(bytes) {
            return reserved;
        }
        self.waiting.fetch_add(1, SeqCst);
        let _waits = CountedWaiter(self);
        loop {
            let released = self.released.notified();
            if let Some(reserved) = self.try_reserve(bytes) {
                return reserved;
            }
            released.await;
        }
    }

    fn try_reserve(&self, bytes: usize) -> Option<ReservedBytes<'_>> {
        // The first response is never too large.
        let fits = |held: usize| {
            let is_room = held == 0 || held + bytes <= MAX_CONNECTION_BYTES;
            is_room.then_some(held + bytes)
        };
        self.held.fetch_update(SeqCst, SeqCst, fits).ok()?;
        Some(ReservedBytes { connection: self, bytes })
    }
}

/// A waiting list. One that is dropped stops waiting too.
struct CountedWaiter<'a>(&'a ConnectionUnread);

impl Drop for CountedWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, SeqCst);
    }
}

impl HeldBytes {
    /// Counts a part that was sent. Its memory is held until the rest is sent too.
    pub(super) fn record_sent(&self, bytes: usize) {
        self.connection.record_sent(bytes);
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.connection.record_sent(self.bytes);
        self.connection.release(self.bytes);
    }
}

impl Drop for ReservedBytes<'_> {
    fn drop(&mut self) {
        self.connection.release(self.bytes);
    }
}

impl UnreadResponses {
    pub(crate) fn new(max_bytes: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(UnreadResponses { max_bytes, metrics, closed_log: RateLimitedLog::new(), table: Mutex::default() })
    }

    /// Counts and logs a connection that is closed with `bytes` unread.
    pub(crate) fn record_closed(&self, cause: UnreadCause, peer: &EndpointAddress, bytes: usize) {
        let network = &self.metrics.network;
        let (counter, cause) = match cause {
            UnreadCause::Memory => (&network.unread_evicted, "others needed the memory"),
            UnreadCause::Idle => (&network.unread_timed_out, "nothing was read for too long"),
        };
        counter.inc();
        if let Some(closed) = self.closed_log.count() {
            warn!(%peer, bytes, closed, cause, "connection closed, its responses were not read or its commands not finished");
        }
    }
}

impl UnreadTable {
    fn remove(&mut self, number: u64) {
        if let Some(entry) = self.connections.remove(&number) {
            self.bytes -= entry.bytes;
        }
    }

    fn insert(&mut self, number: u64, entry: UnreadEntry) {
        self.bytes += entry.bytes;
        self.connections.insert(number, entry);
    }

    /// Removes the entries that have gone longest without progress until the rest is within `max_bytes`.
    fn evict(&mut self, max_bytes: usize) -> Vec<UnreadEntry> {
        let mut evicted = Vec::new();
        while self.bytes > max_bytes
            && let Some((_, entry)) = self.connections.pop_first()
        {
            self.bytes -= entry.bytes;
            evicted.push(entry);
        }
        evicted
    }
}

/// What happens after a turn of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TurnEnd {
    Continue,
    /// The connection has to be closed.
    Evicted,
}

/// The entry of one connection in the table of its listener. Dropping it removes the entry.
pub(super) struct UnreadGuard<'a> {
    listener: &'a UnreadResponses,
    connection: &'a Arc<ConnectionUnread>,
    registration: Option<UnreadRegistration>,
}

#[derive(Clone, Copy)]
struct UnreadRegistration {
    number: u64,
    bytes: usize,
    progress: usize,
}

impl<'a> UnreadGuard<'a> {
    pub(super) fn new(listener: &'a UnreadResponses, connection: &'a Arc<ConnectionUnread>) -> Self {
        UnreadGuard { listener, connection, registration: None }
    }

    /// Called when the connection can do nothing more for now. `waker` wakes it when it is evicted.
    pub(super) fn end_turn(&mut self, waker: &Waker) -> TurnEnd {
        let connection = self.connection;
        if connection.is_evicted.load(Relaxed) {
            return TurnEnd::Evicted;
        }
        if connection.bodiless.load(Relaxed) > 0 && !connection.is_blocked.load(Relaxed) {
            connection.bodiless.store(0, Relaxed);
        }
        let (bytes, progress) = (connection.bytes(), connection.progress());
        if bytes < MIN_TRACKED_BYTES {
            self.leave();
        } else if self
            .registration
            .is_none_or(|registration| registration.bytes != bytes || registration.progress != progress)
        {
            self.register(bytes, progress, waker);
        }
        TurnEnd::Continue
    }

    fn register(&mut self, bytes: usize, progress: usize, waker: &Waker) {
        let mut table = self.listener.table.lock();
        let (bytes_before, before) = (table.bytes, self.registration);
        let number = match before {
            // Without progress the entry keeps its place.
            Some(registration) if registration.progress == progress => registration.number,
            _ => {
                table.entered += 1;
                table.entered
            }
        };
        if let Some(registration) = before {
            table.remove(registration.number);
        }
        let entry = UnreadEntry { bytes, connection: Arc::clone(self.connection), waker: waker.clone() };
        table.insert(number, entry);
        let evicted = table.evict(self.listener.max_bytes);
        self.update_gauge(bytes_before, table.bytes);
        drop(table);
        self.registration = Some(UnreadRegistration { number, bytes, progress });
        for entry in evicted {
            entry.connection.is_evicted.store(true, Relaxed);
            entry.waker.wake();
        }
    }

    fn leave(&mut self) {
        if let Some(registration) = self.registration.take() {
            let mut table = self.listener.table.lock();
            let bytes_before = table.bytes;
            table.remove(registration.number);
            self.update_gauge(bytes_before, table.bytes);
        }
    }

    /// The gauge is the sum over all listeners.
    fn update_gauge(&self, before: usize, now: usize) {
        let gauge = &self.listener.metrics.network.unread_bytes;
        gauge.change(before as u64, now as u64);
    }
}

impl Drop for UnreadGuard<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll};

    const KIB: usize = 1 << 10;

    struct Peer {
        connection: Arc<ConnectionUnread>,
        responses: Vec<HeldBytes>,
    }

    /// A peer of a connection that has built one response of `bytes` in all.
    fn peer(bytes: usize) -> Peer {
        let connection = Arc::new(ConnectionUnread::default());
        let responses = vec![connection.hold_response(bytes - RESPONSE_BYTES)];
        Peer { connection, responses }
    }

    fn is_evicted(guard: &mut UnreadGuard<'_>) -> bool {
        guard.end_turn(Waker::noop()) == TurnEnd::Evicted
    }

    #[test]
    fn a_connection_without_progress_is_evicted_for_newer_ones() {
        let listener = UnreadResponses::new(100 * KIB, Arc::default());
        let gauge = || listener.metrics.network.unread_bytes.get();
        let (stalls, mut reads, newer) = (peer(40 * KIB), peer(40 * KIB), peer(40 * KIB));
        reads.responses.push(reads.connection.hold_response(0));
        let guard = |peer| UnreadGuard::new(&listener, peer);
        let mut first = guard(&reads.connection);
        let mut second = guard(&stalls.connection);
        assert!(!is_evicted(&mut first) && !is_evicted(&mut second));
        assert_eq!(gauge(), 82 << 10);
        // The older connection sends something, so now the other has waited longer.
        reads.responses.pop();
        assert!(!is_evicted(&mut first));
        let mut third = guard(&newer.connection);
        assert!(!is_evicted(&mut third));
        assert!(is_evicted(&mut second) && !is_evicted(&mut first));
        assert_eq!(gauge(), 80 << 10);
        drop(second);
        reads.responses.clear();
        assert!(!is_evicted(&mut first));
        assert_eq!(gauge(), 40 << 10);
        drop((first, third));
        let table = listener.table.lock();
        assert!(gauge() == 0 && table.bytes == 0 && table.connections.is_empty());
    }

    #[test]
    fn responses_without_a_body_count_while_the_socket_is_full() {
        let listener = UnreadResponses::new(100 * KIB, Arc::default());
        let connection = Arc::new(ConnectionUnread::default());
        let mut guard = UnreadGuard::new(&listener, &connection);
        let respond_and_end_turn = |place: &mut UnreadGuard<'_>| {
            (0..10).for_each(|_| connection.count_bodiless());
            assert!(!is_evicted(place));
            listener.table.lock().bytes
        };
        assert_eq!(respond_and_end_turn(&mut guard), 0);
        connection.set_blocked(true);
        assert_eq!(respond_and_end_turn(&mut guard), 10 * RESPONSE_BYTES);
        connection.set_blocked(false);
        assert_eq!(respond_and_end_turn(&mut guard), 0);
    }

    #[test]
    fn lists_wait_while_a_connection_holds_too_much() {
        let connection = Arc::new(ConnectionUnread::default());
        let mut no_waker = Context::from_waker(Waker::noop());
        let unread = connection.hold_response(MAX_CONNECTION_BYTES);
        let progress = connection.progress();
        let mut list = pin!(connection.reserve(KIB));
        assert!(list.as_mut().poll(&mut no_waker).is_pending());
        drop(unread);
        let Poll::Ready(reserved) = list.as_mut().poll(&mut no_waker) else {
            panic!("the list must wait");
        };
        assert_ne!(connection.progress(), progress);
        assert_eq!(connection.bytes(), KIB);
        let progress = connection.progress();
        drop(reserved);
        assert_eq!(connection.bytes(), 0);
        assert_eq!(connection.progress(), progress, "nothing was sent");
        assert_eq!(connection.waiting.load(Relaxed), 0);
    }
}
