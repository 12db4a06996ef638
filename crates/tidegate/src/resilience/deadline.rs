//! Waiting for an answer no longer than a budget.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use tidegate_core::store::ChargeSet;
use tidegate_core::units::Nanos;

use crate::runtime::Runtime;

/// How long a decision on `sets` may wait: the shortest that any rule allows, `usual` where one does not
/// say. Beside a durable one, a rule that does not say waits with it: a set is answered as a whole, and an
/// acknowledgement takes longer than is usual.
pub(super) fn budget_of(sets: &[&ChargeSet<'_>], usual: Nanos) -> Nanos {
    let charges = || sets.iter().flat_map(|set| &set.charges);
    let said = charges().filter_map(|charge| charge.terms.budget).min();
    let silent = charges().any(|charge| charge.terms.budget.is_none());
    match said {
        Some(said) if silent && !sets.iter().any(|set| set.waits()) => said.min(usual),
        Some(said) => said,
        None => usual,
    }
}

/// The longest that the callers of `sets` wait. A batch waits no longer than its most hurried caller.
pub(super) fn max_wait_of(sets: &[&ChargeSet<'_>]) -> Nanos {
    let waits = sets.iter().filter_map(|set| set.max_wait);
    waits.min().unwrap_or(Nanos::MAX)
}

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
