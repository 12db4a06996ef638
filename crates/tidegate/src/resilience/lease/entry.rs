//! A lease entry: the leases that this node has of one counter. A pure state machine; times go in.
//!
//! States: free, or assigned to one counter under one limit (`LeasedCounter`) while that has leases or enough requests.
//! Events: `record_request` (may assign), `take`, `return_taken`, `next_draw`, `complete_draw`, `clear_exhausted`,
//! `remove_unused`, `remove_all`, `discard` (a reset). Effects: a [`DrawRequest`] to send, [`UnusedLease`]s to return,
//! and counts of lapsed units.
//!
//! Invariants: a unit is in one lease or taken, never both; units taken or drawn before a reset are void
//! (`generation`). Knows no store and no task.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{Charge, Epoch, LeaseReply, LimitReading};
use tidegate_core::units::{Cost, Nanos};

use super::hot_key::HotKeyDetector;
use super::leased_counter::{HeldLease, LeasedCounter, fits_in_lease};
use super::refill::Refill;
use crate::resilience::OwnedCharge;

/// Units taken for one charge, from one lease or several.
#[derive(Clone, Debug)]
pub(super) struct TakenUnits {
    generation: u64,
    from: SmallVec<[HeldLease; 1]>,
    /// The reading of the limit if the request passes.
    pub(super) reading: LimitReading,
}

/// A draw to send. Requests that wait for it are woken when it is dropped, whatever its result.
#[derive(Debug)]
pub(super) struct DrawRequest {
    generation: u64,
    pub(super) charge: Arc<OwnedCharge>,
    pub(super) refill: Arc<Refill>,
}

impl Drop for DrawRequest {
    fn drop(&mut self) {
        self.refill.end();
    }
}

/// Units to return, and the charge of their counter.
pub(super) type UnusedLease = (Arc<OwnedCharge>, HeldLease);

/// Whether a request is new, or has waited for a refill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseAttempt {
    First,
    Retry,
}

/// Why units were not taken.
#[derive(Default)]
pub(super) struct Shortage {
    /// A refill that may suffice is in flight.
    pub(super) refill: Option<Arc<Refill>>,
    /// The store would deny: the time by its clock, and the reading.
    pub(super) denial: Option<(Nanos, LimitReading)>,
}

/// An entry for one counter.
#[derive(Default)]
pub(super) struct LeaseEntry {
    /// Counts requests for a counter that does not have the entry. Most counters come and go here, at little cost.
    detector: HotKeyDetector,
    leased: Option<Box<LeasedCounter>>,
    /// Changes whenever units taken or drawn before become void.
    generation: u64,
}

impl LeaseEntry {
    /// Records a request. True if it may be decided here. The store decides if another counter has the entry, if the
    /// counter has too few requests, or if the cost exceeds what may be leased.
    pub(super) fn record_request(&mut self, charge: &Charge<'_>, attempt: LeaseAttempt, now: Nanos) -> bool {
        // Drawing for a cost that can never be leased would only keep units from other nodes.
        if !fits_in_lease(charge) || (!self.belongs_to(charge) && !self.try_assign(charge, attempt, now)) {
            return false;
        }
        let Some(leased) = &mut self.leased else {
            return false;
        };
        leased.last_used = now;
        if attempt == LeaseAttempt::First {
            leased.rate.record(charge.cost.get(), now);
        }
        true
    }

    /// Assigns the entry to another counter, if that has enough requests and the present one can be replaced.
    fn try_assign(&mut self, charge: &Charge<'_>, attempt: LeaseAttempt, now: Nanos) -> bool {
        if attempt == LeaseAttempt::Retry || !self.detector.record(charge, now) {
            return false;
        }
        let leased = self.leased.as_ref();
        if leased.is_some_and(|leased| !leased.is_replaceable(now)) {
            return false;
        }
        let Some(leased) = LeasedCounter::new(charge, &self.detector, now) else {
            return false;
        };
        self.leased = Some(Box::new(leased));
        self.detector = HotKeyDetector::default();
        self.generation += 1;
        true
    }

    pub(super) fn belongs_to(&self, charge: &Charge<'_>) -> bool {
        let leased = self.leased.as_ref();
        leased.is_some_and(|known| known.counter == charge.counter() && known.limit == *charge.limit)
    }

    /// Takes units for a charge of the assigned counter, if there are enough.
    pub(super) fn take(&mut self, cost: Cost, now: Nanos) -> Option<TakenUnits> {
        let generation = self.generation;
        let leased = self.leased.as_mut()?;
        let from = leased.take(cost.get(), now)?;
        let newest = from.last()?;
        let reading =
            LimitReading { verdict: Verdict::Allow { delay: Nanos::ZERO }, figures: leased.figures(newest, now) };
        Some(TakenUnits { generation, from, reading })
    }

    /// Why a charge cannot take its units.
    pub(super) fn shortage(&self, charge: &Charge<'_>, now: Nanos) -> Shortage {
        let Some(leased) = &self.leased else {
            return Shortage::default();
        };
        let exhausted = leased.exhausted.filter(|exhausted| now < exhausted.until);
        let ready = leased.available(now);
        // Units in flight may suffice, together with the available ones.
        let suffices = |refill: &&Arc<Refill>| {
            let then = ready.saturating_add(refill.units.get());
            then >= charge.cost.get()
        };
        Shortage {
            refill: leased.refill_in_flight().filter(suffices).cloned(),
            denial: exhausted.map(|exhausted| exhausted.denial(now)),
        }
    }

    /// There was a refund: the limit may no longer be exhausted.
    pub(super) fn clear_exhausted(&mut self, charge: &Charge<'_>) {
        let belongs = self.belongs_to(charge);
        if let Some(leased) = self.leased.as_mut().filter(|_| belongs) {
            leased.exhausted = None;
        }
    }

    /// The request did not pass: returns its units to their leases. Returns the units for which that is not
    /// possible; they stay charged.
    pub(super) fn return_taken(&mut self, taken: TakenUnits) -> u64 {
        let units = taken.units();
        match &mut self.leased {
            Some(leased) if self.generation == taken.generation => {
                taken.from.into_iter().for_each(|lease| leased.add(lease));
                0
            }
            _ => units,
        }
    }

    /// The next draw, if more units are needed.
    pub(super) fn next_draw(&mut self, charge: &Charge<'_>, now: Nanos) -> Option<DrawRequest> {
        let generation = self.generation;
        let leased = self.leased.as_mut()?;
        let units = leased.units_to_draw(charge.cost.get(), now)?;
        let refill = Arc::new(Refill::new(units, now, leased.round_trip));
        leased.refill = Some(Arc::clone(&refill));
        let owned = leased.charge.get_or_insert_with(|| {
            // Its cost and role are not used.
            Arc::new(OwnedCharge::of(charge))
        });
        let charge = Arc::clone(owned);
        Some(DrawRequest { generation, charge, refill })
    }

    /// The draw sent at `sent` has a reply, or failed. Returns the units that may not be used any more; they stay
    /// charged.
    pub(super) fn complete_draw(
        &mut self,
        request: &DrawRequest,
        drawn: Option<(LeaseReply, Epoch)>,
        sent: Nanos,
        now: Nanos,
    ) -> u64 {
        let units = drawn.as_ref().map_or(0, |(lease, _)| lease.units);
        let leased = match &mut self.leased {
            Some(leased) if self.generation == request.generation => leased,
            _ => return units,
        };
        leased.refill = None;
        leased.exhausted = None;
        match drawn {
            Some((lease, epoch)) => {
                leased.round_trip = Some(now.since(sent));
                leased.receive(&lease, epoch, sent);
            }
            // The store is failing: a draw with every request would cost more than it saves.
            None => leased.no_draw_before = now.plus(Nanos::new(leased.horizon.get() / 4)),
        }
        0
    }

    /// Removes expired leases, or all leases if the counter is idle.
    pub(super) fn remove_unused(&mut self, now: Nanos) -> SmallVec<[UnusedLease; 2]> {
        let is_unused = |leased: &LeasedCounter, lease: &HeldLease| leased.is_idle(now) || lease.expires_at <= now;
        self.remove_leases(is_unused)
    }

    /// Removes all leases.
    pub(super) fn remove_all(&mut self) -> SmallVec<[UnusedLease; 2]> {
        self.remove_leases(|_, _| true)
    }

    fn remove_leases(&mut self, which: impl Fn(&LeasedCounter, &HeldLease) -> bool) -> SmallVec<[UnusedLease; 2]> {
        let Some(leased) = &mut self.leased else {
            return SmallVec::new();
        };
        let leases = std::mem::take(&mut leased.leases);
        let (removed, stay) = leases.into_iter().partition(|lease| which(leased, lease));
        leased.leases = stay;
        let removed: SmallVec<[HeldLease; 2]> = removed;
        let charge = leased.charge.clone();
        let charges = charge.into_iter().cycle();
        charges.zip(removed).filter(|(_, lease)| lease.units > 0).collect()
    }

    /// Drops the leases of these counters, and the draw in flight. Returns the dropped units.
    pub(super) fn discard(&mut self, counters: &[u128]) -> u64 {
        match &mut self.leased {
            Some(leased) if counters.contains(&leased.counter) => {
                self.generation += 1;
                let outstanding = leased.outstanding();
                leased.leases.clear();
                leased.exhausted = None;
                leased.refill = None;
                outstanding
            }
            _ => 0,
        }
    }

    /// Units that a request of this counter could take.
    pub(super) fn available(&self, charge: &Charge<'_>, now: Nanos) -> u64 {
        match &self.leased {
            Some(leased) if self.belongs_to(charge) => leased.available(now),
            _ => 0,
        }
    }

    /// Units of all leases, including expired ones.
    pub(super) fn outstanding(&self) -> u64 {
        self.leased.as_ref().map_or(0, |leased| leased.outstanding())
    }

    /// When leases are next to be removed.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let leased = self.leased.as_ref()?;
        let first = leased.leases.iter().map(|lease| lease.expires_at).min()?;
        Some(first.min(leased.last_used.plus(leased.horizon)))
    }
}

impl TakenUnits {
    /// The earliest time at which any of the units was charged: a refund as of that time refunds no more than is there.
    pub(super) fn at(&self) -> Nanos {
        let charged = self.from.iter().map(|lease| lease.at);
        charged.min().unwrap_or(Nanos::ZERO)
    }

    fn units(&self) -> u64 {
        self.from.iter().map(|lease| lease.units).sum()
    }

    /// The reading of the limit if the request does not pass and its units are returned.
    pub(super) fn reading_if_returned(&self, charge: &Charge<'_>) -> LimitReading {
        let mut reading = self.reading;
        let remaining = reading.figures.remaining.saturating_add(self.units());
        reading.figures.remaining = remaining.min(charge.limit.capacity());
        reading
    }
}
