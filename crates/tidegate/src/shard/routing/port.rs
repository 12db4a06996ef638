//! The `Store` verbs, each divided among the shards that it concerns.

use std::collections::BTreeMap;
use std::pin::Pin;

use smallvec::SmallVec;
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Inspection, LeaseReply, Outcome, PermitReply, PermitRequest, Permits, Refund,
    Refunded, Reservations, Reserve, Restore, RuleOptions, Settle, Settled, Shards, StoreResult,
};
use tidegate_core::units::Nanos;

use crate::runtime::{Runtime, join_all};
use crate::shard::refund::{ChargeKind, id_of_part, part_of};
use crate::shard::routing::groups::by_location;
use crate::shard::routing::outcome_merge::OutcomeMerge;
use crate::shard::routing::{ShardedStore, subjects};

/// Charges in flight, with the indices of their sets.
type ShardChargeFuture<'c> = Pin<Box<dyn Future<Output = Vec<(usize, StoreResult<Outcome>)>> + Send + 'c>>;

impl<P: Shards + 'static, R: Runtime> Counters for ShardedStore<P, R> {
    fn evict_expired(&self) {
        self.0.evict_expired();
    }

    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        Ok(self.0.charge(set, ChargeKind::Charge).await)
    }

    /// Charges the sets with a single location in one call per shard. All shards and all other sets are in flight at
    /// once.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let mut batches = BTreeMap::new();
        let mut charging: Vec<ShardChargeFuture<'_>> = Vec::new();
        for (i, set) in sets.iter().enumerate() {
            let (mut locations, _) = self.0.locate_all(subjects(set));
            match (locations.len(), locations.pop()) {
                (1, Some(only)) => {
                    let new = || (only.shard, Vec::new());
                    let (_, indices) = batches.entry(only.shard_id).or_insert_with(new);
                    indices.push(i);
                }
                _ => charging.push(Box::pin(async move { vec![(i, self.charge(set).await)] })),
            }
        }
        for (shard, indices) in batches.into_values() {
            charging.push(Box::pin(async move {
                let batch: Vec<&ChargeSet<'_>> = indices.iter().map(|i| sets[*i]).collect();
                let decided = shard.charge_batch(&batch).await;
                indices.into_iter().zip(decided.into_iter().map(Ok)).collect()
            }));
        }
        let mut replies: Vec<_> = join_all(charging).await.into_iter().flatten().collect();
        replies.sort_by_key(|(i, _)| *i);
        replies.into_iter().map(|(_, reply)| reply).collect()
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        Ok(self.0.peek(set).await)
    }

    /// Refunds the charges of each subject by themselves, under an id that depends on nothing else: the store remembers a
    /// refund beside its subject, and a repeated refund must be recognised although some of its limits have changed
    /// since and are left out. The result is that of one subject, see `one_result`.
    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let mut by_subject: SmallVec<[ChargeSet<'_>; 2]> = SmallVec::new();
        for charge in &refund.set.charges {
            let same = |set: &&mut ChargeSet<'_>| set.charges[0].subject == charge.subject;
            match by_subject.iter_mut().find(same) {
                Some(set) => set.charges.push(charge.clone()),
                None => by_subject.push(refund.set.subset([charge.clone()])),
            }
        }
        let refunding = by_subject.into_iter().map(async |set| {
            let subject = set.charges[0].subject;
            let own = Refund { id: id_of_part(refund.id, subject), set, ..*refund };
            self.0.locate(subject).shard.refund(&own).await
        });
        let done = join_all(refunding).await.into_iter();
        let done: Vec<Refunded> = done.collect::<StoreResult<_>>()?;
        Ok(one_result(&done, &Refunded::Lapsed))
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        self.0.locate(charge.subject).shard.draw(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let (locations, indices) = self.0.locate_all(subjects(set));
        let groups = by_location(set, &indices);
        let forcing = groups.iter().map(|g| locations[g.location].shard.force(&g.set));
        let mut merge = OutcomeMerge::new(set.charges.len());
        for (group, outcome) in groups.iter().zip(join_all(forcing).await) {
            merge.add(group, &outcome?);
        }
        Ok(merge.outcome(true))
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        let (locations, indices) = self.0.locate_all(restores.iter().map(|restore| restore.charge.subject));
        let restoring = locations.iter().enumerate().map(async |(i, location)| {
            let here = indices.iter().zip(restores).filter(|(location_index, _)| **location_index == i);
            let here: Vec<Restore<'_>> = here.map(|(_, restore)| restore.clone()).collect();
            location.shard.restore(&here).await
        });
        join_all(restoring).await.into_iter().collect()
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        let (locations, indices) = self.0.locate_all(subjects(set));
        let groups = by_location(set, &indices);
        let inspecting = groups.iter().map(|g| locations[g.location].shard.inspect(&g.set));
        let mut inspections: Vec<Option<Inspection>> = vec![None; set.charges.len()];
        for (group, found) in groups.iter().zip(join_all(inspecting).await) {
            for (i, inspection) in group.indices.iter().zip(found?) {
                inspections[*i] = inspection;
            }
        }
        Ok(inspections)
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        let (locations, indices) = self.0.locate_all(subjects(set));
        let groups = by_location(set, &indices);
        let resetting = groups.iter().map(|g| locations[g.location].shard.reset(&g.set));
        join_all(resetting).await.into_iter().sum()
    }
}

impl<P: Shards + 'static, R: Runtime> Permits for ShardedStore<P, R> {
    fn acquire_budget<'o>(&self, rules: impl Iterator<Item = &'o RuleOptions> + Clone) -> Option<Nanos> {
        Some(self.0.settings.acquire_budget(rules))
    }

    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.0.locate(permit.subject).shard.acquire(permit).await
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.0.locate(permit.subject).shard.renew(permit).await
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        self.0.locate(permit.subject).shard.release(permit).await
    }
}

impl<P: Shards + 'static, R: Runtime> Reservations for ShardedStore<P, R> {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        Ok(self.0.charge(&reserve.set, ChargeKind::of(reserve)).await)
    }

    /// Each location settles its own charges. If one of them fails, the whole settle may be sent again. The result is
    /// that of one location, see `one_result`.
    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        let (locations, indices) = self.0.locate_all(subjects(&settle.set));
        if let [only] = locations.as_slice() {
            return only.shard.settle(settle).await;
        }
        let groups = by_location(&settle.set, &indices);
        let settling = groups.iter().map(async |group| {
            let own = part_of(settle, &group.indices);
            locations[group.location].shard.settle(&own).await
        });
        let done = join_all(settling).await.into_iter();
        let done: Vec<Settled> = done.collect::<StoreResult<_>>()?;
        Ok(one_result(&done, &Settled::Lapsed))
    }
}

/// The result of a verb that each part of a set does once, from one result per part: that of the first part that has not
/// lapsed. Parts are in the order of the charges, the same on every node. So when several nodes send one id at the same
/// moment, one part decides which of them was first, and only that one gets `Done`.
fn one_result<T: Copy + PartialEq>(results: &[T], lapsed: &T) -> T {
    let first = results.iter().find(|result| *result != lapsed);
    *first.unwrap_or(lapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes that sent one receipt at the same moment were each first in one location, and both reported `Done`.
    #[test]
    fn of_nodes_that_are_each_first_in_one_location_only_one_is_done() {
        use Refunded::{Already, Done, Lapsed};
        for (results, want) in [
            ([Done, Already], Done),
            ([Already, Done], Already),
            ([Done, Done], Done),
            ([Already, Already], Already),
            ([Lapsed, Done], Done),
            ([Lapsed, Already], Already),
            ([Done, Lapsed], Done),
            ([Lapsed, Lapsed], Lapsed),
        ] {
            assert_eq!(one_result(&results, &Lapsed), want, "{results:?}");
        }
    }
}
