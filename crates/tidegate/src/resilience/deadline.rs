//! Waiting for an answer no longer than a budget.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use tidegate_core::units::Nanos;

use crate::runtime::Runtime;

/// The answer of `call` if it comes before `budget` has passed. If not, `call` is as it was and may
/// be waited for elsewhere.
pub(super) async fn within<R: Runtime, F: Future + ?Sized>(
    runtime: &R,
    budget: Nanos,
    mut call: Pin<&mut F>,
) -> Option<F::Output> {
    let mut over = pin!(runtime.sleep(budget));
    poll_fn(|context| {
        if let Poll::Ready(answer) = call.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        over.as_mut().poll(context).map(|()| None)
    })
    .await
}
