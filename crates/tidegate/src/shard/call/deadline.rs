//! Budgets: how long a call waits for a reply; and waiting, for one call or for several.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use futures_util::stream::{Collect, FuturesOrdered, StreamExt};
use tidegate_core::store::{ChargeSet, WorkKind};
use tidegate_core::units::Nanos;

use crate::runtime::Runtime;
use crate::shard::refund::ChargeKind;
use crate::shard::settings::ResilienceSettings;

impl ResilienceSettings {
    /// The budget of an acquire or a reserve whose rule sets none.
    pub(crate) fn long_work(&self) -> Nanos {
        self.budget.max(self.long_work_budget)
    }

    /// The budget of a call that follows a decision, where the rule sets the budget `own`.
    pub(crate) fn follow_up(&self, own: Option<Nanos>) -> Nanos {
        self.budget.max(self.follow_up_budget).max(own.unwrap_or(Nanos::ZERO))
    }

    /// How long a decision on `sets` may wait: the shortest budget of any rule. A rule without one has the budget of
    /// these settings; beside a durable charge it waits as long as the durable one, because a set has one result, and an
    /// acknowledgement takes longer.
    pub(crate) fn budget_of(&self, sets: &[&ChargeSet<'_>], kind: ChargeKind) -> Nanos {
        // A batch that contains an ordinary request has the budget of that request.
        let is_long = kind != ChargeKind::Charge || sets.iter().all(|set| set.work == WorkKind::LongWork);
        let usual = if is_long { self.long_work() } else { self.budget };
        let budgets = || sets.iter().flat_map(|set| &set.charges).map(|charge| charge.options.budget);
        let any_unset = budgets().any(|budget| budget.is_none());
        match budgets().flatten().min() {
            Some(shortest) if any_unset && !sets.iter().any(|set| set.requires_durability()) => shortest.min(usual),
            shortest => shortest.unwrap_or(usual),
        }
    }
}

/// The longest that the callers of `sets` wait. A batch waits no longer than its most impatient caller.
pub(crate) fn max_wait_of(sets: &[&ChargeSet<'_>]) -> Nanos {
    let waits = sets.iter().filter_map(|set| set.max_wait);
    waits.min().unwrap_or(Nanos::MAX)
}

/// The output of `call` if it is ready before `budget` has passed. Otherwise `call` is left as it was, and another
/// task may go on waiting for it.
pub(crate) async fn within<R: Runtime, F: Future + ?Sized>(
    runtime: &R,
    budget: Nanos,
    mut call: Pin<&mut F>,
) -> Option<F::Output> {
    let mut timeout = pin!(runtime.sleep(budget));
    poll_fn(|context| {
        if let Poll::Ready(output) = call.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        timeout.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// The outputs of all `futures`, in order. The futures are in flight at the same time, and a wake polls only its own.
/// Dropping it drops the unfinished ones.
pub fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Collect<FuturesOrdered<F>, Vec<F::Output>> {
    futures.into_iter().collect::<FuturesOrdered<F>>().collect()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use parking_lot::Mutex;

    use super::*;

    /// Futures that finish when their gate opens, and how often any of them was polled.
    #[derive(Default)]
    struct Gates {
        polls: AtomicUsize,
        gates: Mutex<Vec<(bool, Option<Waker>)>>,
    }

    impl Gates {
        fn new(futures: usize) -> Arc<Gates> {
            let gates = Gates::default();
            gates.gates.lock().resize(futures, (false, None));
            Arc::new(gates)
        }

        async fn pass(self: Arc<Self>, index: usize) -> usize {
            poll_fn(|context| {
                self.polls.fetch_add(1, Ordering::Relaxed);
                let (open, waker) = &mut self.gates.lock()[index];
                if *open {
                    return Poll::Ready(index);
                }
                *waker = Some(context.waker().clone());
                Poll::Pending
            })
            .await
        }

        fn open(&self, index: usize) {
            let waker = {
                let (open, waker) = &mut self.gates.lock()[index];
                *open = true;
                waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn poll<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Each wake once polled every unfinished future: half a million polls for 1,024.
    #[test]
    fn each_future_is_polled_once_and_once_for_each_wake() {
        const FUTURES: usize = 1_024;
        let gates = Gates::new(FUTURES);
        let all = (0..FUTURES).map(|index| Arc::clone(&gates).pass(index));
        let mut joined = Box::pin(join_all(all));
        assert!(poll(&mut joined).is_pending());
        for index in (1..FUTURES).rev() {
            gates.open(index);
            assert!(poll(&mut joined).is_pending());
        }
        gates.open(0);
        let Poll::Ready(outputs) = poll(&mut joined) else {
            panic!("all are open");
        };
        assert_eq!(outputs, (0..FUTURES).collect::<Vec<_>>(), "in order");
        assert_eq!(gates.polls.load(Ordering::Relaxed), 2 * FUTURES);
    }

    #[test]
    fn a_wake_during_a_poll_is_not_lost() {
        let mut polls = [0, 0];
        let [first, second] = &mut polls;
        let again = |polls: &mut u32, context: &mut Context<'_>| {
            *polls += 1;
            context.waker().wake_by_ref();
            if *polls == 3 { Poll::Ready(()) } else { Poll::Pending }
        };
        let futures: [Pin<Box<dyn Future<Output = ()>>>; 2] = [
            Box::pin(poll_fn(move |context| again(first, context))),
            Box::pin(poll_fn(move |context| again(second, context))),
        ];
        let mut joined = Box::pin(join_all(futures));
        assert!(poll(&mut joined).is_pending());
        assert!(poll(&mut joined).is_pending());
        assert!(poll(&mut joined).is_ready());
    }

    #[test]
    fn none_and_one_are_finished_at_once() {
        let mut none = Box::pin(join_all(Vec::<std::future::Ready<u8>>::new()));
        assert_eq!(poll(&mut none), Poll::Ready(Vec::new()));
        let mut one = Box::pin(join_all([std::future::ready(7)]));
        assert_eq!(poll(&mut one), Poll::Ready(vec![7]));
    }
}
