//! The units that a node has admitted and the store does not count yet, saved over a restart.
//!
//! These are the units of the write-back queue and the units whose reply is outstanding: a restarted node receives
//! no such reply, so they become pending. The node's share counts them too, so a restart during an outage gives no
//! fresh share.

use std::collections::BTreeMap;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::RuleOptions;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::node_state::NodeState;
use super::owned_charge::OwnedCharge;

/// Units of one counter that were admitted and are not charged to the store yet.
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
    /// The number of units.
    pub units: u64,
    /// The store's time at which they are counted.
    pub at: Nanos,
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
        let limit = Limit::compile(&spec, Precision::Script).ok()?;
        (limit.tag() == self.tag).then_some(limit)
    }
}

impl NodeState {
    /// All units that are pending at the store's time `at`, by counter.
    pub(super) fn pending(&self, at: Nanos) -> Vec<PendingUnits> {
        let mut all: BTreeMap<u128, PendingUnits> = BTreeMap::new();
        let mut add = |charge: &OwnedCharge, units: u64| {
            let known = all.entry(charge.counter()).or_insert_with(|| PendingUnits {
                subject: charge.subject,
                rule: charge.rule().clone(),
                rate: charge.rate(),
                limit: PendingLimit::new(&charge.limit),
                units: 0,
                at,
            });
            known.units = known.units.saturating_add(units);
        };
        self.local_fallback.write_back.for_each(at, &mut add);
        if self.late.is_active() {
            let waiting: Vec<OwnedCharge> = self.late.update(|l| l.all_waiting().collect());
            waiting.iter().for_each(|charge| add(charge, charge.units()));
        }
        all.into_values().collect()
    }

    /// Restores units that were pending before a restart.
    pub(super) fn restore_pending(&self, pending: &PendingUnits, limit: &Limit, options: RuleOptions) {
        let Some(cost) = Cost::new(pending.units) else {
            return;
        };
        let charge =
            OwnedCharge::new(pending.subject, pending.rule.clone(), pending.rate, limit.clone(), cost, options);
        self.local_fallback.write_back.restore(charge, pending.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_limit_compiles_again_and_a_guarded_one_does_not() {
        let hour = Nanos::from_secs(3_600);
        let plain = |spec: &Spec| Limit::compile(spec, Precision::Script).unwrap();
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
