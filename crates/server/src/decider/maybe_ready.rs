//! A future that is either ready or boxed.
//!
//! The state that an async function holds across an await is moved with every request. With a store that never waits a
//! decision is therefore polled to its end in place, and only the output is moved. With any other store the future goes
//! to the heap.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

/// A decision that is complete, or that waits for its store.
pub(crate) enum MaybeReady<F: Future> {
    Ready(Option<F::Output>),
    Boxed(Pin<Box<F>>),
}

impl<F: Future> MaybeReady<F> {
    /// Polls `work` to its end, because its store never waits.
    pub(crate) fn poll_now(work: F) -> Self {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(work).poll(&mut context) {
            Poll::Ready(output) => MaybeReady::Ready(Some(output)),
            Poll::Pending => unreachable!("a store with `never_wait` returned `Pending`"),
        }
    }

    /// Boxes `work`, because its store may wait.
    pub(crate) fn boxed(work: F) -> Self {
        MaybeReady::Boxed(Box::pin(work))
    }
}

impl<F: Future<Output: Unpin>> Future for MaybeReady<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.get_mut() {
            MaybeReady::Ready(output) => Poll::Ready(output.take().expect("not polled again after it was ready")),
            MaybeReady::Boxed(work) => work.as_mut().poll(context),
        }
    }
}
