//! Lenient counting: a node admits by the last synced state of a counter, and syncs what it admitted a moment later.
//!
//! For rules that would rather exceed their limit a little than wait for the store, or whose counters are hot on many
//! nodes. Every [`SYNC_INTERVAL`] the admitted units are charged by force, and the reply contains what the other nodes
//! have admitted. A view decides by a state no older than [`MAX_STALENESS`]; without one the store decides, as for
//! exact counting. So all nodes know what one node admits within 100 ms ([`MAX_PROPAGATION_DELAY`]).
//!
//! A view is fresh or stale. It is stale while its state or its oldest unsynced unit is older than [`MAX_STALENESS`],
//! and does not decide until the next sync. It ends when a sync fails, when it is not used between two syncs, and by a
//! reset. Then the store behind decides, and holds units that it could not charge as pending.
//!
//! States of a unit: unsynced (admitted here), syncing (sent), synced (part of the store's state). Events:
//! `try_charge`, `refund`, `take_sync` (unsynced to syncing), `synced`, `update` (a reply to another request of this
//! node). Pure: times go in. Knows no store.
//!
//! Bound: beyond the limit at most `(N - 1) * min(what was left, what the busiest node admits in
//! MAX_PROPAGATION_DELAY)` pass; [`LenientView::overshoot`] returns the present value. Admitted units are synced once,
//! and unsynced ones are lost only with the node.

use std::sync::Arc;

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::{Charge, CounterSnapshot, LimitReading};
use tidegate_core::units::{Cost, Nanos};

use super::Overshoot;
use crate::owned_charge::OwnedCharge;

/// How often a view is synced.
const SYNC_INTERVAL: Nanos = Nanos::from_millis(45);
/// The maximum age of a state that decides: a sync interval and the time for a reply.
const MAX_STALENESS: Nanos = Nanos::from_millis(50);
/// How long a request may be unknown to another node: until it is synced, and until that node syncs.
const MAX_PROPAGATION_DELAY: Nanos = Nanos::from_millis(100);
/// How long the reply to a sync is awaited: no decision waits for it, and units whose reply is taken for lost would
/// be charged once more.
const SYNC_TIMEOUT: Nanos = Nanos::from_secs(1);

/// A counter as this node sees it.
pub(super) struct LenientView {
    /// The charge that syncs it: subject, rule and limit.
    pub(super) charge: Arc<OwnedCharge>,
    /// When it is synced next; `None` while a sync is in flight.
    pub(super) next_sync: Option<Nanos>,
    last_sync: Nanos,
    /// The store's state, plus the units admitted here since.
    state: CounterState,
    /// When the request for the state was sent and its reply received, by the local clock; and the store's time in it.
    sent: Nanos,
    received: Nanos,
    at: Nanos,
    /// Units admitted here and not sent yet.
    unsynced: u64,
    /// Units of the sync in flight.
    syncing: u64,
    /// When the oldest of the unsynced units was admitted, and the oldest of the syncing ones.
    unsynced_since: Option<Nanos>,
    syncing_since: Option<Nanos>,
    /// Whether a request has used the view since the last sync.
    used: bool,
    /// The most that any one node may have admitted between the last two syncs.
    max_node_units: u64,
}

/// What to send to the store for a counter.
pub(super) struct SyncRequest {
    pub(super) charge: Arc<OwnedCharge>,
    /// The admitted units; `None` if the sync only reads.
    pub(super) units: Option<Cost>,
}

impl LenientView {
    /// A view from the state in a reply, whose request was sent at `sent` and which was received at `received`.
    pub(super) fn new(charge: &Charge<'_>, seen: &CounterSnapshot, sent: Nanos, received: Nanos, at: Nanos) -> Self {
        LenientView {
            charge: Arc::new(OwnedCharge::of(charge).with_min_budget(SYNC_TIMEOUT)),
            next_sync: Some(received.plus(SYNC_INTERVAL)),
            last_sync: received,
            state: seen.state.clone(),
            sent,
            received,
            at,
            unsynced: 0,
            syncing: 0,
            unsynced_since: None,
            syncing_since: None,
            used: false,
            max_node_units: 0,
        }
    }

    /// Whether it is of this limit, whatever its ceiling.
    pub(super) fn has_limit(&self, limit: &Limit) -> bool {
        self.charge.limit.tag() == limit.tag()
    }

    /// Whether it is of this limit and may decide: neither the state nor the oldest unsynced unit is too old.
    pub(super) fn is_fresh(&self, limit: &Limit, now: Nanos) -> bool {
        let recent = |then: Nanos| now.since(then) <= MAX_STALENESS;
        self.has_limit(limit)
            && recent(self.sent)
            && self.unsynced_since.is_none_or(recent)
            && self.syncing_since.is_none_or(recent)
    }

    /// The store's time, or a little less.
    fn store_time(&self, now: Nanos) -> Nanos {
        self.at.plus(now.since(self.received))
    }

    /// Counts a charge if it fits. Returns the reading and the store's time.
    pub(super) fn try_charge(&mut self, charge: &Charge<'_>, now: Nanos) -> (LimitReading, Nanos) {
        let (limit, time) = (charge.limit.as_ref(), self.store_time(now));
        self.used = true;
        let moment = limit.advance(&mut self.state, time);
        let verdict = limit.judge(&self.state, moment, charge.cost);
        if verdict.allows() {
            limit.spend(&mut self.state, moment, charge.cost);
            self.unsynced += charge.cost.get();
            self.unsynced_since.get_or_insert(now);
        }
        let figures = limit.figures(&self.state, moment);
        (LimitReading { verdict, figures }, time)
    }

    /// Refunds a charge that was counted at `time`, if its units have not been sent yet. A charge whose units were sent
    /// stays, which denies too much rather than too little.
    pub(super) fn refund(&mut self, charge: &Charge<'_>, time: Nanos, now: Nanos) {
        let Some(unsynced) = self.unsynced.checked_sub(charge.cost.get()) else {
            return;
        };
        self.unsynced = unsynced;
        let (limit, present) = (charge.limit.as_ref(), self.store_time(now));
        let moment = limit.advance(&mut self.state, present);
        limit.refund(&mut self.state, moment, time, charge.cost);
    }

    /// The reading that a charge would get, and the store's time.
    pub(super) fn peek(&self, charge: &Charge<'_>, now: Nanos) -> (LimitReading, Nanos) {
        let (limit, time, mut state) = (charge.limit.as_ref(), self.store_time(now), self.state.clone());
        let moment = limit.advance(&mut state, time);
        let verdict = limit.judge(&state, moment, charge.cost);
        let figures = limit.figures(&state, moment);
        (LimitReading { verdict, figures }, time)
    }

    /// Starts a sync; `None` if no request has used the view since the last one.
    pub(super) fn take_sync(&mut self, now: Nanos) -> Option<SyncRequest> {
        if self.unsynced == 0 && !self.used {
            return None;
        }
        (self.next_sync, self.last_sync) = (None, now);
        self.used = false;
        self.syncing = std::mem::take(&mut self.unsynced);
        self.syncing_since = self.unsynced_since.take();
        Some(SyncRequest { charge: Arc::clone(&self.charge), units: Cost::new(self.syncing) })
    }

    /// Units admitted here that no sync in flight includes.
    pub(super) fn unsynced_units(&self) -> Option<Cost> {
        Cost::new(self.unsynced)
    }

    /// The reply to the sync in flight.
    pub(super) fn synced(&mut self, seen: &CounterSnapshot, sent: Nanos, received: Nanos, at: Nanos) {
        self.next_sync = Some(self.last_sync.plus(SYNC_INTERVAL));
        let synced_units = std::mem::take(&mut self.syncing);
        self.syncing_since = None;
        self.max_node_units = synced_units.max(self.admitted_by_others(seen, at));
        self.update(seen, sent, received, at);
    }

    /// The state in a reply to another request of this node. The units of a sync in flight are added to it, because it
    /// may lack them. If it has them, they count twice until the sync ends.
    pub(super) fn update(&mut self, seen: &CounterSnapshot, sent: Nanos, received: Nanos, at: Nanos) {
        if sent < self.sent {
            return;
        }
        (self.sent, self.received, self.at) = (sent, received, at);
        self.state = seen.state.clone();
        if let Some(units) = Cost::new(self.unsynced + self.syncing) {
            let limit = &self.charge.limit;
            let moment = limit.advance(&mut self.state, at);
            limit.spend(&mut self.state, moment, units);
        }
    }

    /// What all other nodes together have admitted since the last sync, as far as the state shows it.
    fn admitted_by_others(&self, seen: &CounterSnapshot, at: Nanos) -> u64 {
        let limit = &self.charge.limit;
        let used = |state: &CounterState| {
            let mut state = state.clone();
            let moment = limit.advance(&mut state, at);
            limit.used(&state, moment)
        };
        let (in_store, in_view) = (used(&seen.state), used(&self.state));
        in_store.saturating_sub(in_view.saturating_sub(self.unsynced))
    }

    /// By how much all of `nodes` may exceed the limit before their next syncs. It is computed for every view in every
    /// round, so it advances the state as a charge does instead of copying it.
    pub(super) fn overshoot(&mut self, nodes: u64, now: Nanos) -> Overshoot {
        let (limit, time) = (&self.charge.limit, self.store_time(now));
        let moment = limit.advance(&mut self.state, time);
        let left = limit.full_capacity().saturating_sub(limit.used(&self.state, moment));
        let meanwhile = u128::from(self.max_node_units) * u128::from(MAX_PROPAGATION_DELAY.get());
        let meanwhile = meanwhile.div_ceil(u128::from(SYNC_INTERVAL.get()));
        let meanwhile = u64::try_from(meanwhile).unwrap_or(u64::MAX);
        let others = nodes.saturating_sub(1);
        Overshoot {
            worst_case: others.saturating_mul(left),
            at_current_rate: others.saturating_mul(left.min(meanwhile)),
        }
    }
}
