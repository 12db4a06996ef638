//! A draw in flight, for requests that would rather wait for it than call the store themselves.
//!
//! Invariants: a waiting request holds nothing, so dropping it loses nothing; a refill ends once, for all requests that
//! wait and all that come later.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use tidegate_core::units::{Cost, Nanos};

/// One draw.
#[derive(Debug)]
pub(super) struct Refill {
    /// How many units are drawn.
    pub(super) units: Cost,
    /// When it was sent, by the local clock.
    pub(super) sent: Nanos,
    /// The round trip of the draw before, if there was one.
    last_round_trip: Option<Nanos>,
    /// The waiting requests, until it has ended. Abandoned ones stay: it ends soon.
    wakers: Mutex<Option<Vec<Waker>>>,
}

impl Refill {
    pub(super) fn new(units: Cost, sent: Nanos, last_round_trip: Option<Nanos>) -> Self {
        Refill { units, sent, last_round_trip, wakers: Mutex::new(Some(Vec::new())) }
    }

    /// Whether it takes so little of a budget that the store can still be called afterwards. False for the first draw
    /// of a counter, whose round trip is unknown.
    pub(super) fn is_quick(&self, budget: Nanos) -> bool {
        let round_trip = self.last_round_trip.map(|round_trip| round_trip.get().saturating_mul(3));
        round_trip.is_some_and(|thrice| thrice <= budget.get())
    }

    /// The draw has a reply, or will have none.
    pub(super) fn end(&self) {
        let wakers = self.wakers.lock().take();
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    pub(super) fn is_ended(&self) -> bool {
        self.wakers.lock().is_none()
    }

    /// Waits until it has ended. Cancel-safe.
    pub(super) async fn ended(&self) {
        let mut position = None;
        poll_fn(|context| {
            let mut wakers = self.wakers.lock();
            let Some(wakers) = wakers.as_mut() else {
                return Poll::Ready(());
            };
            let at = *position.get_or_insert(wakers.len());
            match wakers.get_mut(at) {
                Some(waker) => waker.clone_from(context.waker()),
                None => wakers.push(context.waker().clone()),
            }
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    /// Counts how often it is woken.
    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_refill_is_quick_within_a_third_of_the_budget() {
        let budget = Nanos::from_millis(6);
        let quick = |last_round_trip| Refill::new(Cost::ONE, Nanos::ZERO, last_round_trip).is_quick(budget);
        assert!(quick(Some(Nanos::ZERO)));
        assert!(quick(Some(Nanos::from_millis(2))));
        assert!(!quick(Some(Nanos::new(2_000_001))));
        assert!(!quick(Some(Nanos::MAX)));
        assert!(!quick(None));
    }

    #[test]
    fn all_waiting_requests_are_woken_once_and_later_ones_do_not_wait() {
        let counters = [Arc::<WakeCounter>::default(), Arc::default()];
        let wakers = counters.each_ref().map(|counter| Waker::from(Arc::clone(counter)));
        let refill = Refill::new(Cost::ONE, Nanos::ZERO, None);
        let (mut first, mut second) = (pin!(refill.ended()), pin!(refill.ended()));
        // A future that is polled again in between keeps its place, with its latest waker.
        for waker in [&wakers[1], &wakers[0]] {
            let polled = first.as_mut().poll(&mut Context::from_waker(waker));
            assert!(polled.is_pending());
        }
        let mut context = Context::from_waker(&wakers[1]);
        assert!(second.as_mut().poll(&mut context).is_pending());
        refill.end();
        refill.end();
        assert_eq!(counters.map(|counter| counter.0.load(Ordering::Relaxed)), [1, 1]);
        assert!(first.as_mut().poll(&mut context).is_ready());
        assert!(pin!(refill.ended()).poll(&mut context).is_ready());
    }
}
