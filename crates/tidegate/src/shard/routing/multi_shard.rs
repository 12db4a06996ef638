//! Charges limits that cannot be charged in one step.
//!
//! The steps run one after another, from narrow to wide. A denial refunds the steps before it: once, in the background,
//! and if the refund is lost, too little is admitted and never too much. All steps share one budget: a step that finds
//! nothing left of it is decided without its shard.

use tidegate_core::store::{ChargeSet, Epoch, Outcome, Probe, Shards, Store};
use tidegate_core::units::Nanos;

use crate::runtime::{Runtime, join_all};
use crate::shard::call::deadline::max_wait_of;
use crate::shard::decisions::ShardDecision;
use crate::shard::refund::ChargeKind;
use crate::shard::routing::groups::{ChargeGroup, ChargeSteps, LocationIndices, by_location};
use crate::shard::routing::outcome_merge::OutcomeMerge;
use crate::shard::routing::{ShardLocation, ShardedStoreInner, subjects};

impl<P: Shards + 'static, R: Runtime> ShardedStoreInner<P, R> {
    /// Charges a set.
    pub(crate) async fn charge(&self, set: &ChargeSet<'_>, kind: ChargeKind) -> Outcome {
        let (locations, indices) = self.locate_all(subjects(set));
        match locations.as_slice() {
            [] => self.empty_outcome(),
            [only] => only.shard.charge(Nanos::MAX, set, kind).await.outcome,
            _ => self.charge_in_steps(set, &locations, &indices, kind).await,
        }
    }

    /// Charges a set whose charges are in several locations.
    ///
    /// Dropped between two steps, it leaves the earlier ones charged, which denies too much rather than too little.
    async fn charge_in_steps(
        &self,
        set: &ChargeSet<'_>,
        locations: &[ShardLocation<P::Shard, R>],
        indices: &LocationIndices,
        kind: ChargeKind,
    ) -> Outcome {
        let steps = ChargeSteps::of(set, indices);
        let mut charging = MultiShardCharge {
            locations,
            kind,
            until: self.deadline_of(set, kind),
            merge: OutcomeMerge::new(set.charges.len()),
            charged: Vec::new(),
        };
        let mut passes = true;
        for group in &steps.enforced {
            passes = passes && charging.charge(group).await;
        }
        if passes && !steps.quotas.is_empty() {
            passes = false;
            for group in &steps.quotas {
                passes |= charging.charge(group).await;
            }
        }
        if passes {
            charging.charge_shadows(&steps.shadows).await;
        } else {
            charging.refund_charged();
            charging.peek_remaining(&steps).await;
        }
        charging.merge.outcome(passes)
    }

    /// What charging a set would return.
    pub(crate) async fn peek(&self, set: &ChargeSet<'_>) -> Outcome {
        let (locations, indices) = self.locate_all(subjects(set));
        match locations.as_slice() {
            [] => return self.empty_outcome(),
            [only] => return only.shard.peek(Nanos::MAX, set).await,
            _ => {}
        }
        let until = self.deadline_of(set, ChargeKind::Charge);
        let groups = by_location(set, &indices);
        let peeking = groups.iter().map(|group| {
            let shard = &locations[group.location].shard;
            shard.peek(until, &group.set)
        });
        let mut merge = OutcomeMerge::new(set.charges.len());
        for (group, outcome) in groups.iter().zip(join_all(peeking).await) {
            merge.add(group, &outcome);
        }
        let admitted = set.admits(|i| merge.allows(i));
        merge.outcome(admitted)
    }

    /// When a decision is due.
    fn deadline_of(&self, set: &ChargeSet<'_>, kind: ChargeKind) -> Nanos {
        self.runtime.now().plus(self.budget_of(set, kind))
    }

    /// How long the decision on a charge may take.
    pub(crate) fn charge_budget_of(&self, set: &ChargeSet<'_>) -> Nanos {
        self.budget_of(set, ChargeKind::Charge)
    }

    fn budget_of(&self, set: &ChargeSet<'_>, kind: ChargeKind) -> Nanos {
        self.settings.budget_of(&[set], kind).min(max_wait_of(&[set]))
    }
}

/// One decision in progress.
struct MultiShardCharge<'t, 'a, S, R> {
    locations: &'t [ShardLocation<S, R>],
    kind: ChargeKind,
    until: Nanos,
    merge: OutcomeMerge,
    /// The groups charged so far, each with the epoch of its shard before the charge.
    charged: Vec<(&'t ChargeGroup<'a>, ShardDecision, Option<Epoch>)>,
}

impl<'t, 'a, S: Store + Probe + 'static, R: Runtime> MultiShardCharge<'t, 'a, S, R> {
    /// Charges one step; true if it admits.
    async fn charge(&mut self, group: &'t ChargeGroup<'a>) -> bool {
        let shard = &self.locations[group.location].shard;
        let epoch = shard.epoch();
        let decided = shard.charge(self.until, &group.set, self.kind).await;
        self.merge.add(group, &decided.outcome);
        let admitted = decided.outcome.admitted;
        if admitted {
            self.charged.push((group, decided, epoch));
        }
        admitted
    }

    /// The request is admitted: charges the shadow limits, all at once.
    async fn charge_shadows(&mut self, shadows: &[ChargeGroup<'_>]) {
        let (locations, until, kind) = (self.locations, self.until, self.kind);
        let charging = shadows.iter().map(|group| {
            let shard = &locations[group.location].shard;
            shard.charge(until, &group.set, kind)
        });
        for (group, decided) in shadows.iter().zip(join_all(charging).await) {
            self.merge.add(group, &decided.outcome);
        }
    }

    /// The request is denied: refunds its charges.
    fn refund_charged(&mut self) {
        for (group, decided, epoch) in std::mem::take(&mut self.charged) {
            let shard = &self.locations[group.location].shard;
            let before = shard.refund_decided(&group.set, decided, epoch, self.kind);
            self.merge.set_readings(group, &before);
        }
    }

    /// Peeks at the steps that were not taken, for the readings of the denial. The decision does not depend on it.
    async fn peek_remaining(&mut self, steps: &ChargeSteps<'_>) {
        let (locations, until) = (self.locations, self.until);
        let rest: Vec<&ChargeGroup<'_>> = steps.all().filter(|g| !self.merge.has_readings(g)).collect();
        let peeking = rest.iter().map(|group| {
            let shard = &locations[group.location].shard;
            shard.peek(until, &group.set)
        });
        for (group, outcome) in rest.iter().zip(join_all(peeking).await) {
            self.merge.add_peek(group, &outcome);
        }
    }
}
