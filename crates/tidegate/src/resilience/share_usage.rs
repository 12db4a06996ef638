//! The units that this node's shares have admitted of each counter, until they have drained.
//!
//! They count toward the share also after the store has charged them: in one window all outages together get one
//! share. The shares themselves know this while the process lives. This table is what a restarted node needs of it:
//! it holds no part of the mirror, and is saved.
//!
//! Events: `add` and `refund` (a decision of the share), `restore` (after a restart) and `take_restored` (the share
//! counts restored units from then on). Bounded: when it is full, the counter whose units drain first is evicted.
//! Knows no store; time is injected.

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::Charge;
use tidegate_core::units::{Cost, Nanos};

use super::owned_charge::OwnedCharge;
use super::striped_map::{Stripe, StripedMap};

/// Units admitted by this node's shares, by counter.
pub(super) struct ShareUsage {
    counters: StripedMap<CounterUsage>,
    /// Whether units were ever restored.
    has_restored: AtomicBool,
}

struct CounterUsage {
    charge: OwnedCharge,
    share: Limit,
    state: CounterState,
    /// When the state last changed.
    at: Nanos,
    /// When the units have drained.
    fresh_at: Nanos,
    /// They are from before a restart, and the share does not count them yet.
    restored: bool,
}

impl CounterUsage {
    fn new(charge: OwnedCharge, share: &Limit, state: CounterState, at: Nanos) -> Self {
        let mut usage = CounterUsage { charge, share: share.clone(), state, at, fresh_at: at, restored: false };
        usage.changed(at);
        usage
    }

    fn changed(&mut self, at: Nanos) {
        self.at = self.at.max(at);
        let moment = self.share.advance(&mut self.state, self.at);
        self.fresh_at = self.share.fresh_at(&self.state, moment);
    }

    /// The units in use when the state last changed.
    fn units(&mut self) -> u64 {
        let moment = self.share.advance(&mut self.state, self.at);
        self.share.used(&self.state, moment)
    }
}

impl ShareUsage {
    pub(super) fn new(max: usize) -> Self {
        ShareUsage { counters: StripedMap::new(max), has_restored: AtomicBool::new(false) }
    }

    /// How often it changed otherwise than by time.
    pub(super) fn changes(&self) -> u64 {
        self.counters.changes()
    }

    /// The share has admitted `cost` units.
    pub(super) fn add(&self, charge: &Charge<'_>, share: &Limit, cost: Cost, at: Nanos) {
        let counter = charge.counter();
        let mut stripe = self.counters.change(counter);
        if !stripe.contains_key(&counter) {
            let usage = CounterUsage::new(OwnedCharge::of(charge), share, share.fresh(at), at);
            self.insert(&mut stripe, usage);
        }
        let Some(usage) = stripe.get_mut(&counter) else {
            return; // no room
        };
        if usage.share.tag() != share.tag() {
            usage.state = share.adopt(&usage.share, usage.state.clone(), at);
            (usage.share, usage.charge) = (share.clone(), OwnedCharge::of(charge));
        }
        let moment = usage.share.advance(&mut usage.state, at);
        usage.share.spend(&mut usage.state, moment, cost);
        usage.changed(at);
    }

    fn insert(&self, stripe: &mut Stripe<CounterUsage>, usage: CounterUsage) {
        let end_of = |usage: &CounterUsage| usage.fresh_at;
        if self.counters.has_room(stripe) || stripe.evict(end_of) {
            stripe.insert_evictable(usage.charge.counter(), usage, end_of);
        }
    }

    /// A charge that the share had admitted was refunded.
    pub(super) fn refund(&self, charge: &Charge<'_>, charged: Nanos, at: Nanos) {
        let counter = charge.counter();
        if let Some(usage) = self.counters.change(counter).get_mut(&counter) {
            let moment = usage.share.advance(&mut usage.state, at);
            usage.share.refund(&mut usage.state, moment, charged, charge.cost);
            usage.changed(at);
        }
    }

    /// Restores the units of a charge, as they were at `at`. Which share will count them is not known yet.
    pub(super) fn restore(&self, charge: OwnedCharge, at: Nanos) {
        let counter = charge.counter();
        let (limit, units) = (charge.limit.clone(), charge.units());
        let mut usage = CounterUsage::new(charge, &limit, limit.with_used(units, at), at);
        usage.restored = true;
        // A share drains no later than this, whatever its size.
        usage.fresh_at = usage.fresh_at.plus(Nanos::new(2 * limit.full_window().get()));
        let mut stripe = self.counters.change(counter);
        stripe.remove(&counter);
        self.insert(&mut stripe, usage);
        self.has_restored.store(true, Ordering::Release);
    }

    /// The units of a counter from before a restart, as a state of `share`, if it does not count them yet.
    pub(super) fn take_restored(&self, counter: u128, share: &Limit) -> Option<CounterState> {
        if !self.has_restored.load(Ordering::Acquire) {
            return None;
        }
        let mut stripe = self.counters.stripe(counter);
        let usage = stripe.get_mut(&counter).filter(|usage| usage.restored)?;
        let state = share.with_used(usage.units(), usage.at);
        (usage.share, usage.state, usage.restored) = (share.clone(), state.clone(), false);
        usage.changed(usage.at);
        Some(state)
    }

    /// Visits every counter whose units have not drained by `at`: its charge, the units, and when they were counted.
    /// Removes the others.
    pub(super) fn for_each(&self, at: Nanos, mut visit: impl FnMut(&OwnedCharge, u64, Nanos)) {
        for mut stripe in self.counters.stripes() {
            stripe.retain(|_, usage| {
                if usage.fresh_at > at {
                    let units = usage.units();
                    visit(&usage.charge, units, usage.at);
                }
                usage.fresh_at > at
            });
        }
    }

    /// Removes a counter that was reset on purpose.
    pub(super) fn forget(&self, counter: u128) {
        self.counters.change(counter).remove(&counter);
    }
}
