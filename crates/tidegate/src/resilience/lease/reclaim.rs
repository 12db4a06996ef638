//! Returns unused leases: when they expire, when their counter is idle, or all of them.
//!
//! One task serves all counters, and none runs while there are no leases. Invariant: a refund is sent once. One that
//! may have arrived is never sent again, and one that may no longer be sent leaves its units charged.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{ChargeSet, Refund, Refunded};
use tidegate_core::units::{Cost, Nanos};

use super::deadlines::Deadlines;
use super::entry::UnusedLease;
use super::{LeaseInFlight, LeasingStoreInner, Lender};
use crate::resilience::join_all;
use crate::resilience::within;
use crate::runtime::Runtime;

/// The longest time between two rounds: a lease drawn in between may expire before those that were there.
const MAX_RECLAIM_INTERVAL: Nanos = Nanos::from_millis(5);
/// The shortest time between two rounds: leases that expire within it are returned together.
const MIN_RECLAIM_INTERVAL: Nanos = Nanos::from_millis(1);
/// How long the store remembers the id of a refund. It is sent once and soon.
const REFUND_ID_TTL: Nanos = Nanos::from_secs(10);
/// The longest time that `return_all` may take.
const RETURN_ALL_TIMEOUT: Nanos = Nanos::from_secs(3);

/// Entries that may have leases. Lock order: locked before an entry, never after.
#[derive(Default)]
pub(super) struct ReclaimQueue {
    deadlines: Deadlines,
    /// Whether the task is running.
    is_running: bool,
}

impl<S: Lender + 'static, R: Runtime> LeasingStoreInner<S, R> {
    /// Updates the deadline of an entry that may have new leases, or one that expires sooner.
    pub(super) fn schedule_reclaim(self: &Arc<Self>, index: usize) {
        let mut queue = self.reclaim_queue.lock();
        let due = self.entries[index].lock().next_deadline();
        queue.deadlines.set(index, due);
        let has_leases = queue.deadlines.next().is_some();
        if has_leases && !std::mem::replace(&mut queue.is_running, true) {
            self.runtime.spawn(Arc::clone(self).run_reclaim());
        }
    }

    /// Runs until there are no leases.
    async fn run_reclaim(self: Arc<Self>) {
        while let Some(due) = self.next_due() {
            let now = self.runtime.now();
            self.runtime.sleep(due.since(now).clamp(MIN_RECLAIM_INTERVAL, MAX_RECLAIM_INTERVAL)).await;
            self.return_unused();
        }
    }

    /// When the next entry is due. If there are no leases, the task ends.
    fn next_due(&self) -> Option<Nanos> {
        let mut queue = self.reclaim_queue.lock();
        let next = queue.deadlines.next();
        queue.is_running = next.is_some();
        next
    }

    /// Removes unused leases from their entries. Only due entries are locked.
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
        indices.flat_map(|index| self.entries[index].lock().remove_all()).collect()
    }

    /// Units in leases.
    pub(super) fn outstanding(&self) -> u64 {
        let queue = self.reclaim_queue.lock();
        let indices = queue.deadlines.entries();
        indices.map(|index| self.entries[index].lock().outstanding()).sum()
    }

    /// Returns unused leases, in a task of its own.
    fn return_unused(self: &Arc<Self>) {
        // Begun before they are removed: in between they would be neither outstanding nor in flight.
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

    /// Returns one lease, once.
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
        // Any other result has changed nothing.
        let done = same_epoch && matches!(self.store.refund(&refund).await, Ok(Refunded::Done));
        let counters = &self.counters;
        let total = if done { &counters.units_returned } else { &counters.units_lapsed };
        total.fetch_add(lease.units, Ordering::Relaxed);
    }

    /// Returns all leases, including those of draws in flight and units that undecided requests return.
    pub(super) async fn return_all(self: &Arc<Self>) {
        self.drained.store(true, Ordering::SeqCst);
        let returning = pin!(async {
            loop {
                self.return_leases(self.remove_all()).await;
                // In this order: units that were in flight may be in leases now.
                if self.in_flight.load(Ordering::SeqCst) == 0 && self.outstanding() == 0 {
                    return;
                }
                self.runtime.sleep(MIN_RECLAIM_INTERVAL).await;
            }
        });
        // Units without a reply by then stay charged.
        let _done_or_late = within(&self.runtime, RETURN_ALL_TIMEOUT, returning).await;
    }
}
