//! The write-back queue: units that were admitted locally and are not charged to the store yet.
//!
//! Per counter, units are pending or in flight, and either this node's share or the store decides. Events: `add`
//! (admitted by the share, which decides from then on), `add_late` (admitted while a reply was late; the store still
//! decides), `begin_push` (pending to in flight), then `push_done` (removed; the store decides), `push_partly_lost`,
//! `push_failed` or `push_rejected` (pending again). `cancel` and `refund` remove pending units.
//!
//! The queue is separate from the state of the shares: that state started from the mirror, and charging it would
//! charge the units of other nodes again. Pending units expire at the rate of the share, and may exceed it: forced
//! units are limited as the store limits them. Units of a bucket start to drain when the store's own level has drained:
//! one rate cannot drain both. Knows no store; time is injected.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Charge, HashSlot};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};

use crate::owned_charge::OwnedCharge;
use crate::shard::node::local_units::LocalUnits;
use crate::shard::node::striped_map::StripedMap;

/// How long a counter is left alone whose record the store cannot use.
const RETRY_RECORD_AFTER: Nanos = Nanos::from_secs(5);

/// Pending units by counter. Bounded: units that find no room are never charged, and are reported as dropped.
pub(crate) struct WriteBackQueue {
    pending: StripedMap<PendingCharge>,
    count: AtomicUsize,
    /// Units that found no room and are not reported yet.
    dropped: AtomicU64,
}

struct PendingCharge {
    /// The units, under the limit at the rate at which they drain.
    counted: LocalUnits,
    /// For a bucket: when the store's own level has drained.
    drains_from: Nanos,
    /// Units of a push in flight.
    in_flight: u64,
    /// The store decides: the bulk has been charged, or only late replies added units.
    store_decides: bool,
    /// Units that this node's share does not count yet.
    unshared: u64,
    /// It is not pushed before this, because the store cannot use its record.
    not_before: Nanos,
}

impl PendingCharge {
    /// Units are counted as of then.
    fn counted_at(&self, at: Nanos) -> Nanos {
        at.max(self.drains_from)
    }

    fn units(&mut self, at: Nanos) -> u64 {
        self.counted.units(self.counted_at(at))
    }

    fn set_units(&mut self, units: u64, at: Nanos) {
        self.counted.state = self.counted.limit.with_used(units, self.counted_at(at));
    }

    /// The units of a bucket do not drain before `drains_from`.
    fn hold_until(&mut self, drains_from: Nanos, at: Nanos) {
        if drains_from > self.counted_at(at) {
            let units = self.units(at);
            self.drains_from = drains_from;
            self.set_units(units, at);
        }
        self.drains_from = self.drains_from.max(drains_from);
    }

    fn spend(&mut self, cost: Cost, at: Nanos) {
        self.counted.spend(cost, self.counted_at(at));
    }
}

/// Pending units of one counter in a push.
pub(crate) struct OutgoingCharge {
    pub(crate) counter: u128,
    pub(crate) charge: OwnedCharge,
    pub(crate) cost: Cost,
    pub(crate) cause: PendingCause,
}

/// Why units were admitted that the store does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PendingCause {
    /// The store was down.
    Outage,
    /// Its reply was late.
    Late,
}

impl WriteBackQueue {
    pub(crate) fn new(max: usize) -> Self {
        WriteBackQueue { pending: StripedMap::new(max), count: AtomicUsize::new(0), dropped: AtomicU64::new(0) }
    }

    /// How often it changed otherwise than by time.
    pub(crate) fn changes(&self) -> u64 {
        self.pending.changes()
    }

    /// Whether no counter has pending units.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Units that found no room since the last call of this method: the store will never count them.
    pub(crate) fn take_dropped(&self) -> u64 {
        if self.dropped.load(Ordering::Acquire) == 0 {
            return 0;
        }
        self.dropped.swap(0, Ordering::AcqRel)
    }

    /// Whether this node's share decides for a counter because the store does not count its pending units yet.
    pub(crate) fn must_decide_locally(&self, counter: u128) -> bool {
        !self.is_empty() && self.pending.stripe(counter).get(&counter).is_some_and(|pending| !pending.store_decides)
    }

    /// A charge was admitted locally under `share`. By the last known state, the store's own level has drained at
    /// `empty_at`.
    pub(crate) fn add(&self, charge: &Charge<'_>, share: &Limit, at: Nanos, empty_at: Nanos) {
        let (limit, drains_from) = (charge.limit.at_rate_of(share), drains_from(share, empty_at));
        self.add_units(charge, &limit, drains_from, at, |pending| {
            pending.counted.change_limit(charge, &limit, pending.counted_at(at));
            pending.store_decides = false;
            pending.hold_until(drains_from, at);
        });
    }

    /// A charge was admitted at the store's time `admitted` because its reply was late, and the store does not count
    /// it. Its units that still count at `at` are pending. The store still decides for the counter. This node's share
    /// does not count `unshared` of the units.
    pub(crate) fn add_late(&self, charge: &OwnedCharge, admitted: Nanos, at: Nanos, empty_at: Nanos, unshared: u64) {
        let (limit, drains_from) = (&charge.limit, drains_from(&charge.limit, empty_at));
        if let Some(cost) = remaining_cost(charge, admitted, at, empty_at) {
            self.add_units(&charge.with_cost(cost), limit, drains_from, at, |pending| {
                pending.unshared = pending.unshared.saturating_add(unshared);
            });
        }
    }

    /// Adds units to a counter after `change`. A counter without pending units is inserted if there is room; its units
    /// are dropped otherwise.
    fn add_units(
        &self,
        charge: &Charge<'_>,
        limit: &Limit,
        drains_from: Nanos,
        at: Nanos,
        change: impl FnOnce(&mut PendingCharge),
    ) {
        let counter = charge.counter();
        let mut stripe = self.pending.change(counter);
        let has_room = self.pending.has_room(&stripe);
        let pending = match stripe.entry(counter) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if !has_room => {
                self.dropped.fetch_add(charge.cost.get(), Ordering::AcqRel);
                return;
            }
            Entry::Vacant(free) => {
                self.count.fetch_add(1, Ordering::AcqRel);
                free.insert(PendingCharge {
                    counted: LocalUnits {
                        charge: OwnedCharge::of(charge),
                        limit: limit.clone(),
                        state: limit.fresh(at),
                    },
                    drains_from,
                    in_flight: 0,
                    store_decides: true,
                    unshared: 0,
                    not_before: Nanos::ZERO,
                })
            }
        };
        change(pending);
        pending.spend(charge.cost, at);
    }

    /// Visits every counter with units that the store does not count at its time `at`: its charge, these units, and
    /// how many of them this node's share does not count.
    pub(crate) fn for_each(&self, at: Nanos, mut visit: impl FnMut(&OwnedCharge, u64, u64)) {
        if self.is_empty() {
            return;
        }
        for mut stripe in self.pending.stripes() {
            for pending in stripe.values_mut() {
                let units = pending.units(at).saturating_add(pending.in_flight);
                if units > 0 {
                    visit(&pending.counted.charge, units, pending.unshared.min(units));
                }
            }
        }
    }

    /// Restores pending units from before a restart, as they were at the store's time `at`. This node's share decides
    /// until the store has charged them.
    pub(crate) fn restore(&self, charge: &OwnedCharge, at: Nanos) {
        self.add(&charge.charge(), &charge.limit, at, at);
    }

    /// Units of a counter that the store does not count, including those of a push in flight.
    pub(crate) fn units(&self, counter: u128, at: Nanos) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut stripe = self.pending.stripe(counter);
        stripe.get_mut(&counter).map_or(0, |pending| pending.units(at).saturating_add(pending.in_flight))
    }

    /// The store counts units for which no request was admitted: they pay for as many pending units. False if fewer
    /// are pending and not in flight.
    pub(crate) fn cancel(&self, charge: &OwnedCharge, at: Nanos) -> bool {
        if self.is_empty() {
            return false;
        }
        let counter = charge.counter();
        let mut stripe = self.pending.change(counter);
        let Some(pending) = stripe.get_mut(&counter) else {
            return false;
        };
        let (units, cost) = (pending.units(at), charge.units());
        if units < cost {
            return false;
        }
        pending.set_units(units - cost, at);
        pending.unshared = pending.unshared.min(units - cost);
        if units == cost && pending.in_flight == 0 {
            stripe.remove(&counter);
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        true
    }

    /// Units that this node's share does not count yet. The caller counts them from now on.
    pub(crate) fn take_unshared(&self, counter: u128) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let mut stripe = self.pending.stripe(counter);
        stripe.get_mut(&counter).map_or(0, |pending| std::mem::take(&mut pending.unshared))
    }

    /// A locally admitted charge was refunded.
    pub(crate) fn refund(&self, charge: &Charge<'_>, charged: Nanos, at: Nanos) {
        let counter = charge.counter();
        if let Some(pending) = self.pending.change(counter).get_mut(&counter) {
            // Nothing of it has drained before it is counted.
            let (charged, at) = (pending.counted_at(charged), pending.counted_at(at));
            pending.counted.refund(charge.cost, charged, at);
        }
    }

    /// All counters of one store with pending units at its time `at`, with their hash slots, most units first. The
    /// store holds a subject if `hash_slot_of` returns its hash slot. Counters whose units have expired are removed.
    pub(crate) fn list_ready(
        &self,
        hash_slot_of: impl Fn(Fingerprint) -> Option<HashSlot>,
        at: Nanos,
    ) -> Vec<(HashSlot, u128)> {
        let mut ready = Vec::new();
        for mut stripe in self.pending.stripes() {
            let before = stripe.len();
            stripe.retain(|counter, pending| {
                let Some(hash_slot) = hash_slot_of(pending.counted.charge.subject) else {
                    return true; // held by another store, which has its own time
                };
                let units = pending.units(at);
                if units > 0 && pending.in_flight == 0 && pending.not_before <= at {
                    ready.push((units, *counter, hash_slot));
                }
                units > 0 || pending.in_flight > 0
            });
            self.count.fetch_sub(before - stripe.len(), Ordering::AcqRel);
        }
        ready.sort_unstable_by(|a, b| b.cmp(a));
        ready.into_iter().map(|(_, counter, hash_slot)| (hash_slot, counter)).collect()
    }

    /// Starts a push of a counter. Units that are added from now on wait for the next push.
    pub(crate) fn begin_push(&self, counter: u128, at: Nanos) -> Option<OutgoingCharge> {
        let mut stripe = self.pending.stripe(counter);
        let pending = stripe.get_mut(&counter)?;
        let cost = Cost::new(pending.units(at))?;
        pending.in_flight = cost.get();
        pending.counted.state = pending.counted.limit.fresh(at);
        Some(OutgoingCharge {
            counter,
            charge: pending.counted.charge.clone(),
            cost,
            cause: if pending.store_decides { PendingCause::Late } else { PendingCause::Outage },
        })
    }

    /// The store has charged the units.
    pub(crate) fn push_done(&self, counter: u128, at: Nanos) {
        let mut stripe = self.pending.change(counter);
        let Some(pending) = stripe.get_mut(&counter) else {
            return;
        };
        pending.in_flight = 0;
        pending.store_decides = true;
        if pending.units(at) == 0 {
            stripe.remove(&counter);
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The store has charged the units, but restoring its record will lose `units` of them: those are pushed once
    /// more.
    pub(crate) fn push_partly_lost(&self, counter: u128, units: u64, at: Nanos) {
        if units == 0 {
            return self.push_done(counter, at);
        }
        if let Some(pending) = self.pending.stripe(counter).get_mut(&counter) {
            pending.in_flight = pending.in_flight.min(units);
        }
        self.push_failed(counter, at);
    }

    /// It is unknown whether the store has charged the units: they are pushed again, rather twice than not at all.
    pub(crate) fn push_failed(&self, counter: u128, at: Nanos) {
        let mut stripe = self.pending.change(counter);
        let Some(pending) = stripe.get_mut(&counter) else {
            return;
        };
        if let Some(units) = Cost::new(std::mem::take(&mut pending.in_flight)) {
            pending.spend(units, at);
        }
    }

    /// The store cannot use the record: the units are pushed later.
    pub(crate) fn push_rejected(&self, counter: u128, at: Nanos) {
        self.push_failed(counter, at);
        if let Some(pending) = self.pending.stripe(counter).get_mut(&counter) {
            pending.not_before = at.plus(RETRY_RECORD_AFTER);
        }
    }

    /// Removes a counter that was reset on purpose.
    pub(crate) fn forget(&self, counter: u128) {
        if self.pending.change(counter).remove(&counter).is_some() {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// When pending units begin to drain: those of a bucket, when the store's own level has drained.
fn drains_from(limit: &Limit, empty_at: Nanos) -> Nanos {
    if limit.algorithm().takes_burst() { empty_at } else { Nanos::ZERO }
}

/// The units of an earlier charge that still count at `at`. Windows end. A bucket drains one charge after another,
/// and what else drains in the meantime is unknown here, so its units count until a full bucket would have drained:
/// rather too long than too short.
fn remaining_cost(charge: &OwnedCharge, admitted: Nanos, at: Nanos, empty_at: Nanos) -> Option<Cost> {
    let limit = &charge.limit;
    let from = drains_from(limit, empty_at).max(admitted).min(at);
    if limit.algorithm().takes_burst() {
        let drained = at.since(from) >= limit.full_window();
        return if drained { None } else { Cost::new(charge.units()) };
    }
    let mut state = limit.with_used(charge.units(), from);
    let moment = limit.advance(&mut state, at);
    Cost::new(limit.used(&state, moment).min(charge.units()))
}

#[cfg(test)]
mod tests {
    use tidegate_core::algorithms::{Algorithm, Division, Precision, Spec};
    use tidegate_core::store::RuleOptions;
    use tidegate_core::subject::RuleName;

    use super::*;

    const NOW: Nanos = Nanos::from_secs(1_000);

    fn charge(algorithm: Algorithm, subject: u128, units: u64) -> OwnedCharge {
        charge_under(&Spec::new(algorithm, 10, Nanos::from_secs(10)), subject, units)
    }

    fn charge_under(spec: &Spec, subject: u128, units: u64) -> OwnedCharge {
        OwnedCharge::new(
            Fingerprint::new(subject),
            RuleName::new("rule"),
            0,
            Limit::compile(spec, Precision::Memory).expect("a valid rate"),
            Cost::new(units).expect("a cost above zero"),
            RuleOptions::DEFAULT,
        )
    }

    /// Units that found no room were dropped without a report.
    #[test]
    fn units_that_find_no_room_are_reported_once() {
        let queue = WriteBackQueue::new(16);
        let counters = 4_000;
        for subject in 0..counters {
            let charge = charge(Algorithm::FixedWindow, subject, 2);
            if subject % 2 == 0 {
                queue.add(&charge.charge(), &charge.limit, NOW, NOW);
            } else {
                queue.add_late(&charge, NOW, NOW, NOW, 0);
            }
        }
        let mut pending_units = 0;
        queue.for_each(NOW, |_, units, _| pending_units += units);
        assert!(pending_units > 0);
        assert_eq!(queue.take_dropped() + pending_units, 2 * counters as u64);
        assert_eq!(queue.take_dropped(), 0);
    }

    /// Bucket units of several requests drained in parallel, each as if it were alone.
    #[test]
    fn bucket_units_of_a_lost_connection_do_not_drain_in_parallel() {
        let queue = WriteBackQueue::new(16);
        let later = |secs| NOW.plus(Nanos::from_secs(secs));
        for _ in 0..5 {
            let unit = charge(Algorithm::TokenBucket, 7, 1);
            queue.add_late(&unit, NOW, later(2), NOW, 0);
        }
        let counter = charge(Algorithm::TokenBucket, 7, 1).counter();
        assert_eq!(queue.units(counter, later(2)), 5);
        queue.add_late(&charge(Algorithm::TokenBucket, 8, 1), NOW, later(10), NOW, 0);
        let drained = charge(Algorithm::TokenBucket, 8, 1).counter();
        assert_eq!(queue.units(drained, later(10)), 0, "a full bucket has drained");
    }
    /// The units of a bucket were refunded as if they had been draining since their charge, while they still waited for
    /// the store's own level to drain. So most of them stayed, and were charged after the outage.
    #[test]
    fn a_refund_removes_all_units_that_have_not_begun_to_drain() {
        for algorithm in Algorithm::ALL {
            let queue = WriteBackQueue::new(16);
            let (charge, counter) = (charge(algorithm, 7, 5), charge(algorithm, 7, 5).counter());
            let later = |secs| NOW.plus(Nanos::from_secs(secs));
            queue.add(&charge.charge(), &charge.limit, NOW, later(8));
            queue.refund(&charge.charge(), NOW, later(1));
            assert_eq!(queue.units(counter, later(1)), 0, "{algorithm}");
        }
    }

    /// Units above twice this node's share were lost, although the store counts up to twice the limit.
    #[test]
    fn units_beyond_the_share_are_pending_and_drain_at_its_rate() {
        let division = Division { percent: 80, nodes: 4, rank: Some(0) };
        for algorithm in Algorithm::ALL {
            let (queue, charge) = (WriteBackQueue::new(16), charge(algorithm, 7, 15));
            let share = charge.limit.share(division).expect("two units");
            queue.add(&charge.charge(), &share, NOW, NOW);
            assert_eq!(queue.units(charge.counter(), NOW), 15, "{algorithm}");
            if algorithm.takes_burst() {
                // The share refills a fifth of a unit a second.
                let later = NOW.plus(Nanos::from_secs(25));
                assert_eq!(queue.units(charge.counter(), later), 10, "{algorithm}");
            }
        }
    }

    /// Units that still waited drained all at once when the store's own level turned out to drain later, or when their
    /// limit changed.
    #[test]
    fn units_that_wait_to_drain_do_not_drain_when_the_wait_or_the_limit_changes() {
        let later = |secs| NOW.plus(Nanos::from_secs(secs));
        let (queue, first) = (WriteBackQueue::new(16), charge(Algorithm::TokenBucket, 7, 5));
        let (counter, one) = (first.counter(), charge(Algorithm::TokenBucket, 7, 1));
        queue.add(&first.charge(), &first.limit, NOW, later(2));
        queue.add(&one.charge(), &one.limit, later(1), later(8));
        assert_eq!(queue.units(counter, later(8)), 6);
        let wider = charge_under(&Spec::new(Algorithm::TokenBucket, 20, Nanos::from_secs(20)), 7, 1);
        queue.add(&wider.charge(), &wider.limit, later(3), later(8));
        assert_eq!(queue.units(counter, later(8)), 7);
        assert_eq!(queue.units(counter, later(10)), 5);
    }
}
