//! The units that this node's shares have admitted of each counter, until they have drained.
//!
//! They count toward the share also after the store has charged them: in one window all outages together get one
//! share. The shares themselves know this while the process lives. This table is what a restarted node needs of it:
//! it holds no part of the mirror, and is saved.
//!
//! Events: `add` and `refund` (a decision of the share), `restore` (after a restart) and `take_restored` (the share
//! counts restored units from then on). Bounded: when it is full, the counter that matters least is evicted
//! (`eviction`).
//! Knows no store; time is injected.

use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::algorithms::{CounterState, Limit};
use tidegate_core::store::Charge;
use tidegate_core::units::{Cost, Nanos};

use crate::owned_charge::OwnedCharge;
use crate::shard::node::eviction::evictable_at;
use crate::shard::node::local_units::LocalUnits;
use crate::shard::node::striped_map::{Stripe, StripedMap};

/// Units admitted by this node's shares, by counter.
pub(crate) struct ShareUsage {
    counters: StripedMap<CounterUsage>,
    /// Whether units were ever restored.
    has_restored: AtomicBool,
}

struct CounterUsage {
    counted: LocalUnits,
    /// When the state last changed.
    at: Nanos,
    /// When the units have drained.
    fresh_at: Nanos,
    /// They are from before a restart, and the share does not count them yet.
    restored: bool,
}

impl CounterUsage {
    fn new(charge: OwnedCharge, share: &Limit, state: CounterState, at: Nanos) -> Self {
        let counted = LocalUnits { charge, limit: share.clone(), state };
        let mut usage = CounterUsage { counted, at, fresh_at: at, restored: false };
        usage.changed(at);
        usage
    }

    fn changed(&mut self, at: Nanos) {
        self.at = self.at.max(at);
        let moment = self.counted.advance(self.at);
        self.fresh_at = self.counted.limit.fresh_at(&self.counted.state, moment);
    }

    /// The units in use when the state last changed.
    fn units(&mut self) -> u64 {
        self.counted.units(self.at)
    }
}

impl ShareUsage {
    pub(crate) fn new(max: usize) -> Self {
        ShareUsage { counters: StripedMap::new(max), has_restored: AtomicBool::new(false) }
    }

    /// How often it changed otherwise than by time.
    pub(crate) fn changes(&self) -> u64 {
        self.counters.changes()
    }

    /// The share has admitted `cost` units.
    pub(crate) fn add(&self, charge: &Charge<'_>, share: &Limit, cost: Cost, at: Nanos) {
        let counter = charge.counter();
        let mut stripe = self.counters.change(counter);
        let Some(usage) = stripe.get_mut(&counter) else {
            let state = share.with_used(cost.get(), at);
            return self.insert(&mut stripe, CounterUsage::new(OwnedCharge::of(charge), share, state, at));
        };
        usage.counted.change_limit(charge, share, at);
        usage.counted.spend(cost, at);
        usage.changed(at);
    }

    fn insert(&self, stripe: &mut Stripe<CounterUsage>, usage: CounterUsage) {
        let end_of = |usage: &CounterUsage| {
            let LocalUnits { limit, state, .. } = &usage.counted;
            evictable_at(limit, state, usage.at, usage.fresh_at)
        };
        self.counters.insert_evicting(stripe, usage.counted.charge.counter(), usage, end_of);
    }

    /// A charge that the share had admitted was refunded.
    pub(crate) fn refund(&self, charge: &Charge<'_>, charged: Nanos, at: Nanos) {
        let counter = charge.counter();
        if let Some(usage) = self.counters.change(counter).get_mut(&counter) {
            usage.counted.refund(charge.cost, charged, at);
            usage.changed(at);
        }
    }

    /// Restores the units of a charge, as they were at `at`. Which share will count them is not known yet.
    pub(crate) fn restore(&self, charge: OwnedCharge, at: Nanos) {
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
    pub(crate) fn take_restored(&self, counter: u128, share: &Limit) -> Option<CounterState> {
        if !self.has_restored.load(Ordering::Acquire) {
            return None;
        }
        let mut stripe = self.counters.stripe(counter);
        let usage = stripe.get_mut(&counter).filter(|usage| usage.restored)?;
        let state = share.with_used(usage.units(), usage.at);
        (usage.counted.limit, usage.counted.state, usage.restored) = (share.clone(), state.clone(), false);
        usage.changed(usage.at);
        Some(state)
    }

    /// Visits every counter whose units have not drained by `at`: its charge, the units, and when they were counted.
    /// Removes the others.
    pub(crate) fn for_each(&self, at: Nanos, mut visit: impl FnMut(&OwnedCharge, u64, Nanos)) {
        for mut stripe in self.counters.stripes() {
            stripe.retain(|_, usage| {
                if usage.fresh_at > at {
                    let units = usage.units();
                    visit(&usage.counted.charge, units, usage.at);
                }
                usage.fresh_at > at
            });
        }
    }

    /// Removes a counter that was reset on purpose.
    pub(crate) fn forget(&self, counter: u128) {
        self.counters.change(counter).remove(&counter);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::algorithms::{Algorithm, Division, Precision, Spec};
    use tidegate_core::store::RuleOptions;
    use tidegate_core::subject::{Fingerprint, RuleName};

    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_secs;

    fn charge(algorithm: Algorithm, subject: u128, units: u64) -> OwnedCharge {
        let limit = Limit::compile(&Spec::new(algorithm, 100, AT(10)), Precision::Memory).expect("a valid rate");
        let (rule, cost) = (RuleName::new("rule"), Cost::new(units).expect("a cost above zero"));
        OwnedCharge::new(Fingerprint::new(subject), rule, 0, limit, cost, RuleOptions::DEFAULT)
    }

    fn share_of(charge: &OwnedCharge) -> Limit {
        let division = Division { percent: 80, nodes: 4, rank: Some(0) };
        charge.limit.share(division).expect("twenty units")
    }

    /// Units and when they were counted, of all counters in use at `at`.
    fn usage_at(usage: &ShareUsage, at: Nanos) -> Vec<(u64, Nanos)> {
        let mut all = Vec::new();
        usage.for_each(at, |_, units, at| all.push((units, at)));
        all
    }

    #[test]
    fn units_stay_until_they_have_drained_and_no_longer() {
        for algorithm in Algorithm::ALL {
            let (usage, charge) = (ShareUsage::new(100), charge(algorithm, 1, 1));
            for _ in 0..20 {
                usage.add(&charge.charge(), &share_of(&charge), Cost::ONE, AT(1_000));
            }
            assert_eq!(usage_at(&usage, AT(1_005)), [(20, AT(1_000))], "{algorithm}");
            // Twice a window covers a sliding one too; a bucket of a share drains at 0.8 of its part of the rate.
            assert_eq!(usage_at(&usage, AT(1_020)), [], "{algorithm}");
        }
    }

    #[test]
    fn a_restored_share_has_what_was_used_of_it_and_drains_like_one_that_never_stopped() {
        for algorithm in Algorithm::ALL {
            let (usage, charge) = (ShareUsage::new(100), charge(algorithm, 1, 20));
            let (counter, share) = (charge.counter(), share_of(&charge));
            assert_eq!(usage.take_restored(counter, &share), None);
            usage.restore(charge.clone(), AT(1_000));
            assert_eq!(usage_at(&usage, AT(1_001)), [(20, AT(1_000))], "{algorithm}");
            let mut state = usage.take_restored(counter, &share).expect("twenty units");
            let left = |state: &mut CounterState, at| {
                let moment = share.advance(state, at);
                share.remaining(state, moment)
            };
            assert_eq!(left(&mut state, AT(1_000)), 0, "{algorithm}");
            assert_eq!(left(&mut state, AT(1_020)), 20, "{algorithm}");
            assert_eq!(usage.take_restored(counter, &share), None, "counted once");
        }
    }

    #[test]
    fn a_refund_and_a_reset_take_units_away() {
        let (usage, charge) = (ShareUsage::new(100), charge(Algorithm::FixedWindow, 1, 5));
        usage.add(&charge.charge(), &share_of(&charge), Cost::new(9).unwrap(), AT(1_000));
        usage.refund(&charge.charge(), AT(1_000), AT(1_001));
        assert_eq!(usage_at(&usage, AT(1_001)), [(4, AT(1_001))]);
        usage.forget(charge.counter());
        assert_eq!(usage_at(&usage, AT(1_001)), []);
    }

    #[test]
    fn a_full_table_evicts_and_time_is_no_change() {
        let usage = ShareUsage::new(16);
        for subject in 0..1_000 {
            let charge = charge(Algorithm::TokenBucket, subject, 1);
            usage.add(&charge.charge(), &share_of(&charge), Cost::ONE, AT(1_000));
        }
        let changes = usage.changes();
        assert!(usage_at(&usage, AT(1_000)).len() <= 16);
        assert_eq!(usage_at(&usage, AT(2_000)), []);
        assert_eq!(usage.changes(), changes);
    }
}
