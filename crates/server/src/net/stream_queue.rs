//! The streams of one HTTP/2 connection: work that arrives in one turn is done together.
//!
//! Work runs in the connection's own task as far as it goes, because a task costs more than most
//! decisions. Only work that has to wait becomes a task. Work runs when the connection has nothing more
//! to read, so that the responses to requests that arrive together leave together. One after another,
//! each would be a write of its own, and its client would send one by one from then on.
//!
//! Ownership: the connection owns the queue, and hyper's executors only refer to it. Every stream contains an executor.
//! An executor that owned the queue would keep itself and all queued requests in memory once the connection has ended.
//! This way a connection drops its queue however it ends. Knows no protocol.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};

use hyper::rt::Executor;
use parking_lot::Mutex;

use super::waiting_streams::{ConnectionStreams, StreamWork, WaitingStreams};

/// The streams of a connection whose work has not begun.
pub(super) struct StreamQueue {
    /// Each with the bytes of its request's head.
    queued: Arc<Mutex<QueuedStreams>>,
    waiting: Arc<WaitingStreams>,
    connection: Arc<ConnectionStreams>,
}

#[derive(Default)]
struct QueuedStreams {
    works: Vec<(StreamWork, usize)>,
    /// The bytes of the last head read.
    head_bytes: usize,
}

/// Adds the work of streams to the queue of their connection, while the connection exists.
#[derive(Clone)]
pub(super) struct StreamExecutor(Weak<Mutex<QueuedStreams>>);

/// Sets the memory that the head of the next stream takes.
pub(super) struct NextHeadSize(Weak<Mutex<QueuedStreams>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, work: F) {
        if let Some(queued) = self.0.upgrade() {
            let mut queued = queued.lock();
            let head_bytes = std::mem::take(&mut queued.head_bytes);
            queued.works.push((Box::pin(work), head_bytes));
        }
    }
}

impl NextHeadSize {
    /// hyper calls the service with a request and hands the stream's work to the executor right after.
    pub(super) fn set(&self, bytes: usize) {
        if let Some(queued) = self.0.upgrade() {
            queued.lock().head_bytes = bytes;
        }
    }
}

impl StreamQueue {
    /// A queue whose streams join `waiting` when they have to wait, and are counted in `connection`.
    pub(super) fn new(waiting: Arc<WaitingStreams>, connection: Arc<ConnectionStreams>) -> Self {
        StreamQueue { queued: Arc::default(), waiting, connection }
    }

    pub(super) fn executor(&self) -> StreamExecutor {
        StreamExecutor(Arc::downgrade(&self.queued))
    }

    pub(super) fn head_size(&self) -> NextHeadSize {
        NextHeadSize(Arc::downgrade(&self.queued))
    }

    /// Runs the queued work. Returns whether there was any.
    fn run_queued(&self) -> bool {
        let works = std::mem::take(&mut self.queued.lock().works);
        let any = !works.is_empty();
        self.connection.record_open(works.len());
        // No waker is needed: a task polls its work again.
        let mut no_waker = Context::from_waker(Waker::noop());
        for (mut work, head_bytes) in works {
            if work.as_mut().poll(&mut no_waker).is_pending() {
                let (waiting, connection) = (&self.waiting, &self.connection);
                tokio::spawn(WaitingStreams::register(waiting, work, head_bytes, connection));
            }
        }
        any
    }
}

impl Drop for StreamQueue {
    fn drop(&mut self) {
        self.connection.end(&self.waiting);
    }
}

/// A connection with its streams.
pub(super) struct ConnectionWithStreams<'c, C> {
    connection: Pin<&'c mut C>,
    streams: StreamQueue,
    /// Exists while the connection waits for its turn.
    turn: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl<'c, C> ConnectionWithStreams<'c, C> {
    pub(super) fn new(connection: Pin<&'c mut C>, streams: StreamQueue) -> Self {
        ConnectionWithStreams { connection, streams, turn: None }
    }

    pub(super) fn connection(self: Pin<&mut Self>) -> Pin<&mut C> {
        self.get_mut().connection.as_mut()
    }
}

impl<C: Future> Future for ConnectionWithStreams<'_, C> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = self.get_mut();
        let waiting = &this.streams.waiting;
        if this.turn.is_none() && waiting.has_backlog() {
            this.turn = Some(Box::pin(Arc::clone(waiting).turn()));
        }
        if let Some(turn) = &mut this.turn {
            // Before the turn is polled: the caller checks the evicted streams next.
            this.streams.connection.wait(cx.waker());
            ready!(turn.as_mut().poll(cx));
        }
        let polled = loop {
            let polled = this.connection.as_mut().poll(cx);
            if polled.is_ready() || !this.streams.run_queued() {
                break polled;
            }
        };
        if this.turn.take().is_some() {
            this.streams.waiting.end_turn();
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn queue() -> StreamQueue {
        let waiting = WaitingStreams::new(1 << 20, Arc::default());
        StreamQueue::new(waiting, Arc::default())
    }

    /// A stream as hyper builds it: its work holds an executor, and here also something to count.
    fn stream(executor: &StreamExecutor, held: &Arc<()>) -> impl Future<Output = ()> + Send + use<> {
        let (executor, held) = (executor.clone(), Arc::clone(held));
        async move {
            pending::<()>().await;
            drop((executor, held));
        }
    }

    /// The executor owned the queue, the queue the work and the work an executor: the requests of a connection that
    /// ended before they began stayed in memory for ever.
    #[test]
    fn a_connection_that_ends_drops_the_streams_that_have_not_begun() {
        let (streams, held) = (queue(), Arc::new(()));
        let executor = streams.executor();
        (0..100).for_each(|_| executor.execute(stream(&executor, &held)));
        assert_eq!(Arc::strong_count(&held), 101, "all streams are queued");
        let connection = &mut ready(());
        let mut ended = ConnectionWithStreams::new(Pin::new(connection), streams);
        let polled = Pin::new(&mut ended).poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_ready());
        drop(ended);
        assert_eq!(Arc::strong_count(&held), 1);
        // A task of the connection that outlives it can start nothing.
        executor.execute(stream(&executor, &held));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn the_oldest_waiting_stream_is_dropped_when_there_are_too_many() {
        let waiting = WaitingStreams::new(2 * WaitingStreams::STREAM_BYTES, Arc::default());
        let streams = StreamQueue::new(waiting, Arc::default());
        let executor = streams.executor();
        let held: Vec<Arc<()>> = (0..4).map(|_| Arc::new(())).collect();
        for held in &held {
            executor.execute(stream(&executor, held));
        }
        assert!(streams.run_queued() && !streams.run_queued());
        let counts: Vec<usize> = held.iter().map(Arc::strong_count).collect();
        assert_eq!(counts, [1, 1, 2, 2], "the oldest go first");
    }
}
