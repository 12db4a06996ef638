//! Waiting for a store, where there is something to wait for.
//!
//! What an async function holds across an await is moved with every request. So with a store that
//! never waits a decision is made where it stands, and only the answer is left to be moved; with any
//! other it goes to the heap.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// A decision that is made, or waits for its store.
pub(crate) enum Waiting<F: Future> {
    Made(Option<F::Output>),
    For(Pin<Box<F>>),
}

impl<F: Future> Waiting<F> {
    /// Makes it at once, because its store never waits.
    pub(crate) fn never(work: F) -> Self {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(work).poll(&mut context) {
            Poll::Ready(output) => Waiting::Made(Some(output)),
            Poll::Pending => unreachable!("a store that never waits waited"),
        }
    }

    /// Makes it as its store answers.
    pub(crate) fn perhaps(work: F) -> Self {
        Waiting::For(Box::pin(work))
    }
}

impl<F: Future<Output: Unpin>> Future for Waiting<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.get_mut() {
            Waiting::Made(output) => Poll::Ready(output.take().expect("polled once")),
            Waiting::For(work) => work.as_mut().poll(context),
        }
    }
}
