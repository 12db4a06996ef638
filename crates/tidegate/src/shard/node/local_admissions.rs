//! What a node has admitted without the store, saved over a restart.
//!
//! Units: those that the store does not count yet are charged after the restart. They are the units of the write-back
//! queue and those whose reply is outstanding, because a restarted node receives no such reply. Those that the node's
//! share counts stay with it until they have drained, also when the store has charged them: otherwise every outage
//! after a restart would bring a fresh share. Permits that were granted or renewed without the store count toward the
//! share until they expire.

use std::collections::BTreeMap;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::RuleOptions;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use crate::owned_charge::OwnedCharge;
use crate::shard::node::NodeState;
use crate::shard::node::open_permits::PermitSync;

/// What a node has admitted without the store, and what counts toward its shares.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LocalAdmissions {
    /// The units of each counter.
    pub units: Vec<PendingUnits>,
    /// The permits of all counters.
    pub permits: Vec<LocalPermit>,
    /// Whether the node is without a store that it trusts.
    pub without_store: bool,
}

/// A permit that was granted or renewed without the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalPermit {
    /// The subject of the permit.
    pub subject: Fingerprint,
    /// The rule of the permit.
    pub rule: RuleName,
    /// The holder of the permit.
    pub holder: u128,
    /// When it expires, by the wall clock.
    pub until: Nanos,
    /// What the store knows of it.
    pub sync: PermitSync,
}

/// Units of one counter that were admitted without the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingUnits {
    /// The subject of the counter.
    pub subject: Fingerprint,
    /// The rule of the counter.
    pub rule: RuleName,
    /// The index of the rate within its rule.
    pub rate: u8,
    /// The limit under which they were admitted.
    pub limit: PendingLimit,
    /// The number of units that the store does not count yet.
    pub units: u64,
    /// The store's time at which they are counted.
    pub at: Nanos,
    /// The number of units that count toward this node's share.
    pub shared: u64,
    /// The store's time at which those are counted.
    pub shared_at: Nanos,
}

/// A limit as it is saved on disk. Not every limit belongs to a rule: Envoy and clients of `CL.THROTTLE` send theirs
/// with each request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingLimit {
    /// The tag of its parameters.
    pub tag: u32,
    /// How it counts.
    pub algorithm: Algorithm,
    /// Units per window.
    pub count: u64,
    /// The length of the window.
    pub per: Nanos,
    /// Its capacity: the count, or the burst.
    pub capacity: u64,
}

impl PendingLimit {
    fn new(limit: &Limit) -> Self {
        PendingLimit {
            tag: limit.tag(),
            algorithm: limit.algorithm(),
            count: limit.count(),
            per: limit.per(),
            capacity: limit.full_capacity(),
        }
    }

    /// The same limit, unless it depends on more than is saved: on a calendar, for example.
    pub fn compile(&self) -> Option<Limit> {
        let mut spec = Spec::new(self.algorithm, self.count, self.per);
        if self.algorithm.takes_burst() {
            spec = spec.burst(self.capacity);
        }
        let limit = Limit::compile(&spec, Precision::Double).ok()?;
        (limit.tag() == self.tag).then_some(limit)
    }
}

impl NodeState {
    /// How often `local_admissions` changed otherwise than by time.
    pub(crate) fn admission_changes(&self) -> u64 {
        self.write_back.changes() + self.usage.changes() + self.late.events() + self.permits.changes()
    }

    /// The units and permits to be saved. The store's time is `at`, the local time `now` and the wall-clock time
    /// `wall`.
    pub(crate) fn local_admissions(&self, at: Nanos, now: Nanos, wall: Nanos) -> LocalAdmissions {
        let mut all: BTreeMap<u128, PendingUnits> = BTreeMap::new();
        let mut visit = |charge: &OwnedCharge, units: u64, shared: u64, shared_at: Nanos| {
            let known = all.entry(charge.counter()).or_insert_with(|| PendingUnits {
                subject: charge.subject,
                rule: charge.rule.clone(),
                rate: charge.rate,
                limit: PendingLimit::new(&charge.limit),
                units: 0,
                at,
                shared: 0,
                shared_at: Nanos::ZERO,
            });
            known.units = known.units.saturating_add(units);
            known.shared = known.shared.saturating_add(shared);
            known.shared_at = known.shared_at.max(shared_at);
        };
        // A restarted share counts all units that are pending, also those that this one has not counted yet.
        self.write_back.for_each(at, |charge, units, unshared| visit(charge, units, unshared, at));
        self.late.read(|ledger| {
            let waiting: BTreeMap<u128, OwnedCharge> = ledger.all_waiting().map(|c| (c.counter(), c)).collect();
            for (counter, charge) in waiting {
                visit(&charge, ledger.waiting(counter), ledger.unshared(counter), at);
            }
        });
        self.usage.for_each(at, |charge, units, counted_at| visit(charge, 0, units, counted_at));
        let units = all.into_values();
        // What the store does not count, the share counts in any case.
        let units = units.map(|units| PendingUnits { shared: units.shared.max(units.units), ..units });
        let wall_time = |until: Nanos| wall.plus(until.since(now));
        let permits = self.permits.local_permits(now, wall_time);
        LocalAdmissions { units: units.collect(), permits, without_store: false }
    }

    /// Restores the units of a counter from before a restart.
    pub(crate) fn restore_units(&self, saved: &PendingUnits, limit: &Limit, options: RuleOptions) {
        let charge = |units| {
            let (rule, cost) = (saved.rule.clone(), Cost::new(units)?);
            Some(OwnedCharge::new(saved.subject, rule, saved.rate, limit.clone(), cost, options))
        };
        if let Some(pending) = charge(saved.units) {
            self.write_back.restore(&pending, saved.at);
        }
        if let Some(shared) = charge(saved.shared) {
            self.usage.restore(shared, saved.shared_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_limit_compiles_again_and_a_guarded_one_does_not() {
        let hour = Nanos::from_secs(3_600);
        let plain = |spec: &Spec| Limit::compile(spec, Precision::Double).unwrap();
        for algorithm in Algorithm::ALL {
            let limit = plain(&Spec::new(algorithm, 10, hour));
            assert_eq!(PendingLimit::new(&limit).compile(), Some(limit));
        }
        let burst = plain(&Spec::new(Algorithm::TokenBucket, 10, hour).burst(15));
        assert_eq!(PendingLimit::new(&burst).compile(), Some(burst));
        let guarded = plain(&Spec { guard: Nanos::from_secs(1), ..Spec::new(Algorithm::FixedWindow, 10, hour) });
        assert_eq!(PendingLimit::new(&guarded).compile(), None);
    }
}
