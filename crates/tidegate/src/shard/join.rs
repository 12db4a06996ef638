//! Waits for several futures at once.
//!
//! Each future has its own waker, so a wake polls only its own future: the work grows with the number of futures,
//! not with its square. Wakers only record which future is ready, so any executor will do, and the order of polling
//! follows from the order of wakes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// The outputs of all `futures`, in order. The futures are in flight at the same time. Dropping it drops the
/// unfinished ones.
pub(crate) fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Joined<F> {
    let ready = Arc::<ReadyQueue>::default();
    let task = |(index, future)| {
        let wakes = Arc::new(WakeOne { index, is_queued: AtomicBool::new(true), ready: Arc::clone(&ready) });
        Joining { state: JoinState::Running(Box::pin(future)), waker: Waker::from(Arc::clone(&wakes)), wakes }
    };
    let tasks: Vec<_> = futures.into_iter().enumerate().map(task).collect();
    *ready.queue.lock() = (0..tasks.len()).collect();
    Joined { unfinished: tasks.len(), tasks, ready }
}

/// Futures in flight, and the outputs of the finished ones.
pub(crate) struct Joined<F: Future> {
    tasks: Vec<Joining<F>>,
    unfinished: usize,
    ready: Arc<ReadyQueue>,
}

struct Joining<F: Future> {
    state: JoinState<F>,
    wakes: Arc<WakeOne>,
    waker: Waker,
}

enum JoinState<F: Future> {
    Running(Pin<Box<F>>),
    Finished(Option<F::Output>),
}

/// The futures to poll next, and the waker of the task that awaits all of them.
#[derive(Default)]
struct ReadyQueue {
    queue: Mutex<Vec<usize>>,
    parent: Mutex<Option<Waker>>,
}

/// Wakes one of the futures.
struct WakeOne {
    index: usize,
    is_queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl Wake for WakeOne {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_queued.swap(true, Ordering::AcqRel) {
            return;
        }
        self.ready.queue.lock().push(self.index);
        let parent = self.ready.parent.lock().clone();
        if let Some(parent) = parent {
            parent.wake();
        }
    }
}

impl<F: Future> Joining<F> {
    /// Polls the future; true if that finished it.
    fn poll(&mut self) -> bool {
        // Unset first: a wake while it is polled must queue it again.
        self.wakes.is_queued.store(false, Ordering::Release);
        let JoinState::Running(future) = &mut self.state else {
            return false;
        };
        let mut context = Context::from_waker(&self.waker);
        let Poll::Ready(output) = future.as_mut().poll(&mut context) else {
            return false;
        };
        self.state = JoinState::Finished(Some(output));
        true
    }
}

// Only the boxed futures are pinned.
impl<F: Future> Unpin for Joined<F> {}

impl<F: Future> Future for Joined<F> {
    type Output = Vec<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<F::Output>> {
        self.ready.parent.lock().replace(context.waker().clone());
        let queue = std::mem::take(&mut *self.ready.queue.lock());
        for index in queue {
            let finished = self.tasks[index].poll();
            self.unfinished -= usize::from(finished);
        }
        if self.unfinished > 0 {
            return Poll::Pending;
        }
        let outputs = self.tasks.iter_mut().filter_map(|task| match &mut task.state {
            JoinState::Finished(output) => output.take(),
            JoinState::Running(_) => None,
        });
        Poll::Ready(outputs.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

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
