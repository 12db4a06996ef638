//! What this node holds in advance of one counter: a pure state machine, times go in.
//!
//! Kept true: a unit is in one grant or taken, never both, and what was taken or asked for before a reset
//! is void. A place belongs to one counter under one limit (`leased`) while that holds something, or is
//! asked for often enough to.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{Charge, Epoch, LeaseReply, LimitReading};
use tidegate_core::units::{Cost, Nanos};

use super::hot_key::HotKeyDetector;
use super::leased_counter::{HeldLease, LeasedCounter, fits_in_lease};
use super::refill::Refill;
use crate::resilience::owned_charge::OwnedCharge;

/// Units taken for one charge, from one grant or several.
#[derive(Clone, Debug)]
pub(super) struct TakenUnits {
    generation: u64,
    from: SmallVec<[HeldLease; 1]>,
    /// What is told of the limit if the request passes.
    pub(super) reading: LimitReading,
}

/// More units to be asked for. Whoever waits for them is woken when this is dropped, whatever became of
/// it.
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

/// Units to be given back, and whose they are.
pub(super) type UnusedLease = (Arc<OwnedCharge>, HeldLease);

/// Whether a request comes for the first time, or has waited for more units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseAttempt {
    First,
    Retry,
}

/// Why units were not taken.
#[derive(Default)]
pub(super) struct Shortage {
    /// More are under way.
    pub(super) refill: Option<Arc<Refill>>,
    /// The store would refuse: when, by its clock, and what is told.
    pub(super) denial: Option<(Nanos, LimitReading)>,
}

/// A place for one counter.
#[derive(Default)]
pub(super) struct LeaseEntry {
    /// Who asks for it. Most counters come and go here, so that it costs little.
    detector: HotKeyDetector,
    leased: Option<Box<LeasedCounter>>,
    /// Changes whenever what was taken or asked for before is void.
    generation: u64,
}

impl LeaseEntry {
    /// Takes note of a request. Whether it may be decided here: if another counter has the place, if it is not
    /// asked for often enough, or if the cost is more than may be held, it is simply for the store.
    pub(super) fn record_request(
        &mut self,
        charge: &Charge<'_>,
        attempt: LeaseAttempt,
        now: Nanos,
    ) -> bool {
        // To draw for what could never be held would keep units from others for nothing.
        if !fits_in_lease(charge)
            || (!self.belongs_to(charge) && !self.try_assign(charge, attempt, now))
        {
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

    /// Whether a counter gets the place that does not have it: if it is asked for often, and whoever has it
    /// gives way.
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
        leased.is_some_and(|t| t.counter == charge.counter() && t.limit == *charge.limit)
    }

    /// Takes units for a charge of the counter that has the place, if there are enough.
    pub(super) fn take(&mut self, cost: Cost, now: Nanos) -> Option<TakenUnits> {
        let generation = self.generation;
        let leased = self.leased.as_mut()?;
        let from = leased.take(cost.get(), now)?;
        let newest = from.last()?;
        let reading = LimitReading {
            verdict: Verdict::Allow { delay: Nanos::ZERO },
            figures: leased.figures(newest, now),
        };
        Some(TakenUnits {
            generation,
            from,
            reading,
        })
    }

    /// What there is to be said of a charge that cannot be taken.
    pub(super) fn shortage(&self, charge: &Charge<'_>, now: Nanos) -> Shortage {
        let Some(leased) = &self.leased else {
            return Shortage::default();
        };
        let exhausted = leased.exhausted.filter(|exhausted| now < exhausted.until);
        let ready = leased.available(now);
        // Units under way may suffice, with what is held.
        let suffices = |refill: &&Arc<Refill>| {
            let then = ready.saturating_add(refill.units.get());
            then >= charge.cost.get()
        };
        Shortage {
            refill: leased.refill_in_flight().filter(suffices).cloned(),
            denial: exhausted.map(|exhausted| exhausted.denial(now)),
        }
    }

    /// Something was given back: that nothing is left may no longer be true.
    pub(super) fn clear_exhausted(&mut self, charge: &Charge<'_>) {
        let belongs = self.belongs_to(charge);
        if let Some(leased) = self.leased.as_mut().filter(|_| belongs) {
            leased.exhausted = None;
        }
    }

    /// The request did not pass. What of it cannot go back any more stays charged: how much that is.
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

    /// What is to be asked for, if anything.
    pub(super) fn next_draw(&mut self, charge: &Charge<'_>, now: Nanos) -> Option<DrawRequest> {
        let generation = self.generation;
        let leased = self.leased.as_mut()?;
        let units = leased.units_to_draw(charge.cost.get(), now)?;
        let refill = Arc::new(Refill::new(units, now, leased.round_trip));
        leased.refill = Some(Arc::clone(&refill));
        let owned = leased.charge.get_or_insert_with(|| {
            // What it says of cost and role is not looked at.
            Arc::new(OwnedCharge::of(charge))
        });
        let charge = Arc::clone(owned);
        Some(DrawRequest {
            generation,
            charge,
            refill,
        })
    }

    /// What was asked for at `sent` has been answered, or not. Units that nobody may use any more: they
    /// stay charged.
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
            // The store is not well: to ask it with every request would cost more than it spares.
            None => leased.no_draw_before = now.plus(Nanos::new(leased.horizon.get() / 4)),
        }
        0
    }

    /// Takes out what is over, and everything if nobody asks for it any more.
    pub(super) fn remove_unused(&mut self, now: Nanos) -> SmallVec<[UnusedLease; 2]> {
        let is_unused = |leased: &LeasedCounter, lease: &HeldLease| {
            leased.is_idle(now) || lease.expires_at <= now
        };
        self.remove_leases(is_unused)
    }

    /// Takes out everything.
    pub(super) fn remove_all(&mut self) -> SmallVec<[UnusedLease; 2]> {
        self.remove_leases(|_, _| true)
    }

    fn remove_leases(
        &mut self,
        which: impl Fn(&LeasedCounter, &HeldLease) -> bool,
    ) -> SmallVec<[UnusedLease; 2]> {
        let Some(leased) = &mut self.leased else {
            return SmallVec::new();
        };
        let leases = std::mem::take(&mut leased.leases);
        let (removed, stay) = leases.into_iter().partition(|lease| which(leased, lease));
        leased.leases = stay;
        let removed: SmallVec<[HeldLease; 2]> = removed;
        let charge = leased.charge.clone();
        let whose = charge.into_iter().cycle();
        whose
            .zip(removed)
            .filter(|(_, lease)| lease.units > 0)
            .collect()
    }

    /// Forgets what is held of these counters, and what is under way. How many units that are.
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

    /// Units held, those that have ended among them.
    pub(super) fn outstanding(&self) -> u64 {
        self.leased
            .as_ref()
            .map_or(0, |leased| leased.outstanding())
    }

    /// When something is to be taken out.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let leased = self.leased.as_ref()?;
        let first = leased.leases.iter().map(|lease| lease.expires_at).min()?;
        Some(first.min(leased.last_used.plus(leased.horizon)))
    }
}

impl TakenUnits {
    /// The earliest time at which any of it was charged: a refund reckoned from it gives back no more
    /// than there is.
    pub(super) fn at(&self) -> Nanos {
        let charged = self.from.iter().map(|lease| lease.at);
        charged.min().unwrap_or(Nanos::ZERO)
    }

    fn units(&self) -> u64 {
        self.from.iter().map(|lease| lease.units).sum()
    }

    /// What is told of the limit if the request does not pass and the units go back.
    pub(super) fn reading_if_returned(&self, charge: &Charge<'_>) -> LimitReading {
        let mut reading = self.reading;
        let remaining = reading.figures.remaining.saturating_add(self.units());
        reading.figures.remaining = remaining.min(charge.limit.capacity());
        reading
    }
}
