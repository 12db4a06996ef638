//! Syncs views with the store: sends what was admitted here and receives what other nodes admitted, in rounds, while
//! there are views.
//!
//! Invariant: admitted units are synced once. If the reply cannot be trusted the view ends, and the store behind holds
//! the units as pending.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use tidegate_core::store::{ChargeSet, Source, Store};
use tidegate_core::units::Nanos;

use super::view::{LenientView, SyncUpdate};
use super::{LenientStoreInner, Overshoot, SYNC_INTERVAL};
use crate::resilience::join_all;
use crate::resilience::within;
use crate::runtime::Runtime;

/// The longest time that a flush may take.
const FLUSH_TIMEOUT: Nanos = Nanos::from_secs(3);
/// How often a flush checks whether all syncs are done.
const FLUSH_POLL_INTERVAL: Nanos = Nanos::from_millis(1);
/// Counters synced at once.
const MAX_SYNC_BATCH: usize = 1_024;

/// Counts one sync that is in flight, for as long as it lives: finished or cancelled.
struct SyncInFlight<'a>(&'a AtomicUsize);

impl<'a> SyncInFlight<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        SyncInFlight(count)
    }
}

impl Drop for SyncInFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<S: Store + 'static, R: Runtime> LenientStoreInner<S, R> {
    /// Starts the sync task, unless it is running. It runs for as long as there are views.
    pub(super) fn start_sync(inner: &Arc<Self>) {
        if !inner.sync_running.swap(true, Ordering::AcqRel) {
            let syncing = run_sync(Arc::downgrade(inner), inner.runtime.clone());
            inner.runtime.spawn(syncing);
        }
    }

    /// Syncs everything, and closes the views.
    pub(super) async fn flush(&self) {
        self.closed.store(true, Ordering::Release);
        let syncing = pin!(async {
            loop {
                self.sync_all().await;
                if self.syncs_in_flight.load(Ordering::Acquire) == 0 && self.is_empty() {
                    return;
                }
                self.runtime.sleep(FLUSH_POLL_INTERVAL).await;
            }
        });
        let _synced_or_late = within(&self.runtime, FLUSH_TIMEOUT, syncing).await;
    }

    fn is_empty(&self) -> bool {
        self.views.stripes().all(|stripe| stripe.is_empty())
    }

    /// Syncs the views of all counters.
    async fn sync_all(&self) {
        let counters: Vec<u128> =
            self.views.stripes().flat_map(|stripe| stripe.keys().copied().collect::<Vec<_>>()).collect();
        for chunk in counters.chunks(MAX_SYNC_BATCH) {
            join_all(chunk.iter().map(|counter| self.sync_counter(*counter))).await;
        }
        self.update_overshoot();
    }

    /// Cancelled, it no longer counts as in flight; the units that it sent may have been charged.
    async fn sync_counter(&self, counter: u128) {
        let _in_flight = SyncInFlight::begin(&self.syncs_in_flight);
        self.sync_once(counter).await;
    }

    async fn sync_once(&self, counter: u128) {
        let closed = self.closed.load(Ordering::Acquire);
        let update = {
            let mut stripe = self.views.stripe(counter);
            let update = stripe.get_mut(&counter).and_then(LenientView::take_sync);
            if update.is_none() {
                stripe.remove(&counter);
            }
            update
        };
        let Some(SyncUpdate { charge, units }) = update else {
            return;
        };
        let sent = self.runtime.now();
        let reply = match units {
            Some(units) => self.store.force(&ChargeSet::of_one(charge.with_cost(units))).await,
            None => self.store.peek(&ChargeSet::of_one(charge.charge())).await,
        };
        let received = self.runtime.now();
        let unsynced = {
            let mut stripe = self.views.stripe(counter);
            let trusted = reply.ok().filter(|o| o.source == Source::Exact && !closed);
            match (trusted, stripe.get_mut(&counter)) {
                (Some(outcome), Some(view)) if outcome.snapshots.len() == 1 => {
                    view.synced(&outcome.snapshots[0], sent, received, outcome.at);
                    None
                }
                // From here on the store behind decides, and holds units that it could not charge as pending.
                _ => stripe.remove(&counter).and_then(|view| view.unsynced_units()),
            }
        };
        if let Some(units) = unsynced {
            let set = ChargeSet::of_one(charge.with_cost(units));
            let _synced_or_pending = self.store.force(&set).await;
        }
    }

    /// Computes by how much each rule may be exceeded.
    fn update_overshoot(&self) {
        let (nodes, now) = ((self.nodes)(), self.runtime.now());
        let mut rules: BTreeMap<Box<str>, Overshoot> = BTreeMap::new();
        for mut stripe in self.views.stripes() {
            for view in stripe.values_mut() {
                let of = view.overshoot(nodes, now);
                let rule = view.charge.rule().as_str();
                let worst = match rules.get_mut(rule) {
                    Some(worst) => worst,
                    None => rules.entry(rule.into()).or_default(),
                };
                worst.worst_case = worst.worst_case.max(of.worst_case);
                worst.at_current_rate = worst.at_current_rate.max(of.at_current_rate);
            }
        }
        *self.overshoot.lock() = rules;
    }
}

/// Syncs every [`SYNC_INTERVAL`], until there are no views.
async fn run_sync<S: Store + 'static, R: Runtime>(inner: Weak<LenientStoreInner<S, R>>, runtime: R) {
    let mut next = runtime.now().plus(SYNC_INTERVAL);
    loop {
        runtime.sleep(next.since(runtime.now())).await;
        let Some(inner) = inner.upgrade() else { return };
        next = runtime.now().plus(SYNC_INTERVAL);
        inner.sync_all().await;
        if inner.is_empty() {
            inner.sync_running.store(false, Ordering::Release);
            // A view may have been created just before that, while the task seemed to be running.
            if inner.is_empty() || inner.sync_running.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{Future, pending};
    use std::task::{Context, Waker};

    /// A flush that ran out of time once left the count raised for ever.
    #[test]
    fn a_cancelled_sync_is_not_in_flight_any_more() {
        let count = AtomicUsize::new(0);
        let mut sync = Box::pin(async {
            let _in_flight = SyncInFlight::begin(&count);
            pending::<()>().await;
        });
        let polled = sync.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        assert_eq!(count.load(Ordering::Acquire), 1);
        drop(sync);
        assert_eq!(count.load(Ordering::Acquire), 0);
    }
}
