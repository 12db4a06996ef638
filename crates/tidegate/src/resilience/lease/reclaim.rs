//! Giving back what is not used: at the end of its life, when nobody asks any more, or all of it.
//!
//! One task for all counters, and none while nothing is held. A refund is sent once: one that may have
//! arrived is never sent again, and one that may no longer be sent leaves its units charged.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{ChargeSet, Refund, Refunded};
use tidegate_core::units::{Cost, Nanos};

use super::deadlines::Deadlines;
use super::entry::UnusedLease;
use super::{LeaseInFlight, LeasingStoreInner, Lender};
use crate::resilience::deadline::within;
use crate::resilience::join::join_all;
use crate::runtime::Runtime;

/// The longest time between two looks: what was drawn meanwhile may end before what was there.
const MAX_RECLAIM_INTERVAL: Nanos = Nanos::from_millis(5);
/// The shortest: what ends within it ends together.
const MIN_RECLAIM_INTERVAL: Nanos = Nanos::from_millis(1);
/// How long the store remembers that something was given back. It is sent once and soon.
const REFUND_ID_TTL: Nanos = Nanos::from_secs(10);
/// The longest that giving back everything may take.
const RETURN_ALL_TIMEOUT: Nanos = Nanos::from_secs(3);

/// Places that may hold something. Locked before a place, never after.
#[derive(Default)]
pub(super) struct ReclaimQueue {
    deadlines: Deadlines,
    /// Whether there is a keeper.
    is_running: bool,
}

impl<S: Lender + 'static, R: Runtime> LeasingStoreInner<S, R> {
    /// Looks after a place that may hold something from now on, or has something that ends sooner.
    pub(super) fn schedule_reclaim(self: &Arc<Self>, index: usize) {
        let mut queue = self.reclaim_queue.lock();
        let due = self.entries[index].lock().next_deadline();
        queue.deadlines.set(index, due);
        let holds = queue.deadlines.next().is_some();
        if holds && !std::mem::replace(&mut queue.is_running, true) {
            self.runtime.spawn(Arc::clone(self).run_reclaim());
        }
    }

    /// Until nothing is held.
    async fn run_reclaim(self: Arc<Self>) {
        while let Some(due) = self.next_due() {
            let now = self.runtime.now();
            self.runtime
                .sleep(
                    due.since(now)
                        .clamp(MIN_RECLAIM_INTERVAL, MAX_RECLAIM_INTERVAL),
                )
                .await;
            self.return_unused();
        }
    }

    /// When the next place is to be looked at. If nothing is held, there is no keeper any more.
    fn next_due(&self) -> Option<Nanos> {
        let mut queue = self.reclaim_queue.lock();
        let next = queue.deadlines.next();
        queue.is_running = next.is_some();
        next
    }

    /// Takes out what is not to be used any more. Only places that are due are locked.
    fn remove_unused(&self) -> Vec<UnusedLease> {
        let now = self.runtime.now();
        let mut queue = self.reclaim_queue.lock();
        let mut unused = Vec::new();
        for index in queue.deadlines.due(now) {
            let mut entry = self.entries[index].lock();
            unused.extend(entry.remove_unused(now));
            queue.deadlines.set(index, entry.next_deadline());
        }
        unused
    }

    fn remove_all(&self) -> Vec<UnusedLease> {
        let queue = self.reclaim_queue.lock();
        let indices = queue.deadlines.entries();
        indices
            .flat_map(|index| self.entries[index].lock().remove_all())
            .collect()
    }

    /// Units held.
    pub(super) fn outstanding(&self) -> u64 {
        let queue = self.reclaim_queue.lock();
        let indices = queue.deadlines.entries();
        indices
            .map(|index| self.entries[index].lock().outstanding())
            .sum()
    }

    /// Gives back what is not to be used any more, beside the keeper.
    fn return_unused(self: &Arc<Self>) {
        // Begun before they are taken out: in between they would be neither held nor under way.
        let in_flight = LeaseInFlight::begin(self);
        let unused = self.remove_unused();
        if unused.is_empty() {
            return;
        }
        self.runtime.spawn(async move {
            in_flight.0.return_leases(unused).await;
        });
    }

    async fn return_leases(&self, unused: Vec<UnusedLease>) {
        join_all(unused.iter().map(|one| self.return_lease(one))).await;
    }

    /// Gives back one grant, once.
    async fn return_lease(&self, (charge, lease): &UnusedLease) {
        let Some(units) = Cost::new(lease.units) else {
            return;
        };
        let charge = charge.with_cost(units);
        let same_epoch = self.store.epoch_of(&charge) == Some(lease.epoch);
        let refund = Refund {
            id: u128::from(self.runtime.random()) << 64 | u128::from(self.runtime.random()),
            charged_at: lease.at,
            expires_at: charge.limit.lease_until(lease.at).plus(REFUND_ID_TTL),
            set: ChargeSet::of_one(charge),
        };
        // Any other answer has changed nothing.
        let done = same_epoch && matches!(self.store.refund(&refund).await, Ok(Refunded::Done));
        let counters = &self.counters;
        match done {
            true => counters
                .units_returned
                .fetch_add(lease.units, Ordering::Relaxed),
            false => counters
                .units_lapsed
                .fetch_add(lease.units, Ordering::Relaxed),
        };
    }

    /// Gives back everything: what is being asked for too, and what requests put back that are not decided
    /// yet.
    pub(super) async fn return_all(self: &Arc<Self>) {
        self.drained.store(true, Ordering::SeqCst);
        let returning = pin!(async {
            loop {
                self.return_leases(self.remove_all()).await;
                // In this order: what was under way may be held now.
                if self.in_flight.load(Ordering::SeqCst) == 0 && self.outstanding() == 0 {
                    return;
                }
                self.runtime.sleep(MIN_RECLAIM_INTERVAL).await;
            }
        });
        // What the store does not answer by then stays charged.
        let _done_or_late = within(&self.runtime, RETURN_ALL_TIMEOUT, returning).await;
    }
}
