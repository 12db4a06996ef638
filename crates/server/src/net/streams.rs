//! The streams of one HTTP/2 connection: what they want done in one turn is done together.
//!
//! Work is done where it stands as far as it goes, because a task costs more than most decisions; only
//! what has to wait becomes one. And it is done when the connection has nothing more to read, so that
//! the answers to requests that came together leave together: one after another, each would be a write
//! of its own, and its client would ask one by one from then on. Knows no protocol.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;
use parking_lot::Mutex;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The work of streams that has not begun.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<Vec<Work>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, work: F) {
        self.0.lock().push(Box::pin(work));
    }
}

impl Streams {
    /// Does what there is to do; whether there was anything.
    fn advance(&self) -> bool {
        let works = std::mem::take(&mut *self.0.lock());
        let any = !works.is_empty();
        // Whoever is told to wake is nobody: a task asks again.
        let mut nobody = Context::from_waker(Waker::noop());
        for mut work in works {
            if work.as_mut().poll(&mut nobody).is_pending() {
                tokio::spawn(work);
            }
        }
        any
    }
}

/// A connection with its streams.
pub(super) struct Together<'c, C> {
    pub(super) connection: Pin<&'c mut C>,
    pub(super) streams: Streams,
}

impl<C: Future> Future for Together<'_, C> {
    type Output = C::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<C::Output> {
        let this = self.get_mut();
        loop {
            let polled = this.connection.as_mut().poll(cx);
            if polled.is_ready() || !this.streams.advance() {
                return polled;
            }
        }
    }
}
