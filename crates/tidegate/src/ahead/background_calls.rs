//! The calls that follow from the state of the table: draws, returns and syncs, and the shutdown of all of them.
//!
//! One task serves all counters, and none runs while there are neither leases nor views. Invariants: a refund is sent
//! once. One that may have arrived is never sent again, and one that may no longer be sent leaves its units charged.
//! Admitted units are synced once.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::store::{ChargeSet, Refund, Refunded, Source};
use tidegate_core::units::{Cost, Nanos};

use super::leased_counter::{DrawRequest, UnusedLease};
use super::lenient_view::SyncRequest;
use super::table::Effect;
use super::{AheadInner, BackingStore};
use crate::runtime::{InFlightGuard, Runtime, join_all, random_id, within};

/// The longest time between two rounds: a lease drawn in between may expire before those that were there.
const MAX_ROUND_INTERVAL: Nanos = Nanos::from_millis(5);
/// The shortest time between two rounds: what is due within it is done together.
const MIN_ROUND_INTERVAL: Nanos = Nanos::from_millis(1);
/// Calls made at once.
const MAX_CALLS: usize = 1_024;
/// How long the store remembers the id of a refund. It is sent once and soon.
const REFUND_ID_TTL: Nanos = Nanos::from_secs(10);
/// The longest time that a drain may take.
const DRAIN_TIMEOUT: Nanos = Nanos::from_secs(3);

impl<S: BackingStore + 'static, R: Runtime> AheadInner<S, R> {
    /// Draws leases in the background. Not after a drain has begun: then nothing is drawn any more.
    pub(super) fn spawn_draws(self: &Arc<Self>, draws: Vec<Effect>) {
        let in_flight = InFlightGuard::begin(&self.in_flight);
        if !self.draining.load(Ordering::SeqCst) {
            self.spawn_calls(draws, in_flight);
        }
    }

    fn spawn_calls(self: &Arc<Self>, effects: Vec<Effect>, in_flight: InFlightGuard) {
        if effects.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            let _in_flight = in_flight;
            inner.call_all(effects).await;
        });
    }

    /// Starts the task if there is anything for it to do.
    pub(super) fn start_task(self: &Arc<Self>) {
        if self.claim_task() {
            self.runtime.spawn(Arc::clone(self).run());
        }
    }

    /// Whether the caller is to run the task: something will be due, and nobody runs it.
    fn claim_task(&self) -> bool {
        self.table.next_due().is_some() && !self.task_running.swap(true, Ordering::SeqCst)
    }

    /// Runs until there are neither leases nor views. What becomes due as the task ends is seen by the task or by
    /// whoever scheduled it, because each of them looks after its own change.
    async fn run(self: Arc<Self>) {
        loop {
            self.run_rounds().await;
            self.task_running.store(false, Ordering::SeqCst);
            if !self.claim_task() {
                return;
            }
        }
    }

    async fn run_rounds(self: &Arc<Self>) {
        while let Some(due) = self.table.next_due() {
            let wait = due.since(self.runtime.now());
            self.runtime.sleep(wait.clamp(MIN_ROUND_INTERVAL, MAX_ROUND_INTERVAL)).await;
            // Begun before leases are removed: in between they would be neither outstanding nor in flight.
            let in_flight = InFlightGuard::begin(&self.in_flight);
            self.spawn_calls(self.table.take_due(self.runtime.now()), in_flight);
        }
    }

    async fn call_all(self: &Arc<Self>, effects: Vec<Effect>) {
        let mut effects = effects.into_iter().peekable();
        while effects.peek().is_some() {
            join_all(effects.by_ref().take(MAX_CALLS).map(|effect| self.call(effect))).await;
        }
    }

    async fn call(self: &Arc<Self>, effect: Effect) {
        match effect {
            Effect::Draw(request) => self.draw(request).await,
            Effect::Return(unused) => self.return_lease(unused).await,
            Effect::Sync(request) => self.sync(request).await,
        }
        self.start_task();
    }

    async fn draw(&self, request: DrawRequest) {
        let charge = request.charge.with_cost(request.refill.units);
        let sent = self.runtime.now();
        let drawn = match self.store.epoch_of(&charge) {
            Some(epoch) => self.store.draw(&charge).await.ok().map(|lease| (lease, epoch)),
            None => None,
        };
        self.table.complete_draw(&request, drawn, sent, self.runtime.now());
    }

    /// Returns a lease, once.
    async fn return_lease(&self, UnusedLease { charge, lease }: UnusedLease) {
        let Some(units) = Cost::new(lease.units) else {
            return;
        };
        let charge = charge.with_cost(units);
        let same_epoch = self.store.epoch_of(&charge) == Some(lease.epoch);
        let refund = Refund {
            id: random_id(&self.runtime),
            charged_at: lease.at,
            expires_at: charge.limit.lease_until(lease.at).plus(REFUND_ID_TTL),
            set: ChargeSet::of_one(charge),
        };
        // Any other result has changed nothing.
        if same_epoch && matches!(self.store.refund(&refund).await, Ok(Refunded::Done)) {
            self.table.add_returned(lease.units);
        } else {
            self.table.add_lapsed(lease.units);
        }
    }

    /// Syncs a view: sends what was admitted here and receives what other nodes admitted.
    async fn sync(&self, SyncRequest { charge, units }: SyncRequest) {
        let sent = self.runtime.now();
        let reply = match units {
            Some(units) => self.store.force(&ChargeSet::of_one(charge.with_cost(units))).await,
            None => self.store.peek(&ChargeSet::of_one(charge.charge())).await,
        };
        let trusted = reply.ok().filter(|outcome| outcome.source == Source::Exact && outcome.snapshots.len() == 1);
        let seen = trusted.as_ref().map(|outcome| (&outcome.snapshots[0], outcome.at));
        if let Some(units) = self.table.complete_sync(charge.counter(), seen, sent, self.runtime.now()) {
            let _synced_or_pending = self.store.force(&ChargeSet::of_one(charge.with_cost(units))).await;
        }
    }

    /// Returns all leases and syncs all views, including those of draws and syncs in flight and units that undecided
    /// requests return.
    pub(super) async fn drain(self: &Arc<Self>) {
        self.draining.store(true, Ordering::SeqCst);
        let draining = pin!(async {
            loop {
                self.call_all(self.table.take_all()).await;
                // In this order: units that were in flight may be in leases now.
                if self.in_flight.load(Ordering::SeqCst) == 0 && self.table.is_drained() {
                    return;
                }
                self.runtime.sleep(MIN_ROUND_INTERVAL).await;
            }
        });
        // Leases without a reply by then stay charged.
        let _done_or_late = within(&self.runtime, DRAIN_TIMEOUT, draining).await;
    }
}
