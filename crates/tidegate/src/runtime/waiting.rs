//! Waiting for futures: for one with a time limit, for several at once; and the count of those in flight.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use futures_util::stream::{Collect, FuturesOrdered, StreamExt};
use tidegate_core::units::Nanos;

use super::Runtime;

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

/// Work in flight, as an atomic number counts it, until this is dropped: finished or cancelled.
pub(crate) struct InFlightGuard {
    count: Arc<AtomicUsize>,
    weight: usize,
}

impl InFlightGuard {
    pub(crate) fn begin(count: &Arc<AtomicUsize>) -> Self {
        InFlightGuard::weighing(1, count).0
    }

    /// The bulkhead: begins work that weighs as much as `weight` calls, unless `max` are in flight.
    pub(crate) fn begin_below(max: usize, weight: usize, count: &Arc<AtomicUsize>) -> Option<Self> {
        let (guard, before) = InFlightGuard::weighing(weight, count);
        (before < max).then_some(guard)
    }

    /// Begins work of this weight. Returns also what was in flight before.
    fn weighing(weight: usize, count: &Arc<AtomicUsize>) -> (Self, usize) {
        let before = count.fetch_add(weight, Ordering::SeqCst);
        (InFlightGuard { count: Arc::clone(count), weight }, before)
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.count.fetch_sub(self.weight, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
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

    #[test]
    fn a_dropped_permit_is_free_again() {
        let calls = Arc::default();
        let enter = || InFlightGuard::begin_below(2, 1, &calls);
        let (first, _second) = (enter(), enter());
        assert!(first.is_some() && enter().is_none());
        drop(first);
        assert!(enter().is_some());
        let heavy = InFlightGuard::begin_below(2, 3, &calls);
        assert!(heavy.is_some() && enter().is_none(), "one more may begin, however heavy");
        drop(heavy);
        assert!(enter().is_some());
    }

    /// A flush that ran out of time once left the count raised for ever.
    #[test]
    fn a_cancelled_sync_is_not_in_flight_any_more() {
        let count = Arc::<AtomicUsize>::default();
        let mut sync = Box::pin(async {
            let _in_flight = InFlightGuard::begin(&count);
            pending::<()>().await;
        });
        let polled = sync.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(count.load(Ordering::Acquire), 1);
        drop(sync);
        assert_eq!(count.load(Ordering::Acquire), 0);
    }
}
