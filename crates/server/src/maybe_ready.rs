//! Waiting for a store, where there is something to wait for.
//!
//! What an async function holds across an await is moved with every request. So with a store that
//! never waits a decision is made where it stands, and only the answer is left to be moved; with any
//! other it goes to the heap.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// A decision that is made, or waits for its store.
pub(crate) enum MaybeReady<F: Future> {
    Ready(Option<F::Output>),
    Boxed(Pin<Box<F>>),
}

impl<F: Future> MaybeReady<F> {
    /// Makes it at once, because its store never waits.
    pub(crate) fn poll_now(work: F) -> Self {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(work).poll(&mut context) {
            Poll::Ready(output) => MaybeReady::Ready(Some(output)),
            Poll::Pending => unreachable!("a store that never waits waited"),
        }
    }

    /// Makes it as its store answers.
    pub(crate) fn boxed(work: F) -> Self {
        MaybeReady::Boxed(Box::pin(work))
    }
}

impl<F: Future<Output: Unpin>> Future for MaybeReady<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.get_mut() {
            MaybeReady::Ready(output) => Poll::Ready(output.take().expect("polled once")),
            MaybeReady::Boxed(work) => work.as_mut().poll(context),
        }
    }
}
