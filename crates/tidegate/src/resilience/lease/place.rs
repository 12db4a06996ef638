//! What this node holds in advance of one counter: a pure state machine, times go in.
//!
//! Kept true: a unit is in one grant or taken, never both, and what was taken or asked for before a reset
//! is void. A place belongs to one counter under one limit (`tenant`) while that holds something, or is
//! asked for often enough to.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{Charge, Granted, Life, Reading};
use tidegate_core::units::{Cost, Nanos};

use super::newcomer::Newcomer;
use super::refill::Refill;
use super::tenant::{Grant, Tenant, can_be_held};
use crate::resilience::owned::OwnedCharge;

/// Units taken for one charge, from one grant or several.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    era: u64,
    from: SmallVec<[Grant; 1]>,
    /// What is told of the limit if the request passes.
    pub(super) reading: Reading,
}

/// More units to be asked for. Whoever waits for them is woken when this is dropped, whatever became of
/// it.
#[derive(Debug)]
pub(super) struct Ask {
    era: u64,
    pub(super) charge: Arc<OwnedCharge>,
    pub(super) refill: Arc<Refill>,
}

impl Drop for Ask {
    fn drop(&mut self) {
        self.refill.end();
    }
}

/// Units to be given back, and whose they are.
pub(super) type Unused = (Arc<OwnedCharge>, Grant);

/// Whether a request comes for the first time, or has waited for more units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Visit {
    First,
    Again,
}

/// Why units were not taken.
#[derive(Default)]
pub(super) struct Short {
    /// More are under way.
    pub(super) refill: Option<Arc<Refill>>,
    /// The store would refuse: when, by its clock, and what is told.
    pub(super) refusal: Option<(Nanos, Reading)>,
}

/// A place for one counter.
#[derive(Default)]
pub(super) struct Place {
    /// Who asks for it. Most counters come and go here, so that it costs little.
    newcomer: Newcomer,
    tenant: Option<Box<Tenant>>,
    /// Changes whenever what was taken or asked for before is void.
    era: u64,
}

impl Place {
    /// Takes note of a request. Whether it may be decided here: if another counter has the place, if it is not
    /// asked for often enough, or if the cost is more than may be held, it is simply for the store.
    pub(super) fn arrive(&mut self, charge: &Charge<'_>, visit: Visit, now: Nanos) -> bool {
        // To draw for what could never be held would keep units from others for nothing.
        if !can_be_held(charge) || (!self.is_of(charge) && !self.moves_in(charge, visit, now)) {
            return false;
        }
        let Some(tenant) = &mut self.tenant else {
            return false;
        };
        tenant.used = now;
        if visit == Visit::First {
            tenant.pace.note(charge.cost.get(), now);
        }
        true
    }

    /// Whether a counter gets the place that does not have it: if it is asked for often, and whoever has it
    /// gives way.
    fn moves_in(&mut self, charge: &Charge<'_>, visit: Visit, now: Nanos) -> bool {
        if visit == Visit::Again || !self.newcomer.knocks(charge, now) {
            return false;
        }
        let tenant = self.tenant.as_ref();
        if tenant.is_some_and(|tenant| !tenant.gives_way(now)) {
            return false;
        }
        let Some(tenant) = Tenant::new(charge, &self.newcomer, now) else {
            return false;
        };
        self.tenant = Some(Box::new(tenant));
        self.newcomer = Newcomer::default();
        self.era += 1;
        true
    }

    pub(super) fn is_of(&self, charge: &Charge<'_>) -> bool {
        let tenant = self.tenant.as_ref();
        tenant.is_some_and(|t| t.counter == charge.counter() && t.limit == *charge.limit)
    }

    /// Takes units for a charge of the counter that has the place, if there are enough.
    pub(super) fn take(&mut self, cost: Cost, now: Nanos) -> Option<Taken> {
        let era = self.era;
        let tenant = self.tenant.as_mut()?;
        let from = tenant.take(cost.get(), now)?;
        let newest = from.last()?;
        let reading = Reading {
            verdict: Verdict::Allow { delay: Nanos::ZERO },
            figures: tenant.figures(newest, now),
        };
        Some(Taken { era, from, reading })
    }

    /// What there is to be said of a charge that cannot be taken.
    pub(super) fn short(&self, charge: &Charge<'_>, now: Nanos) -> Short {
        let Some(tenant) = &self.tenant else {
            return Short::default();
        };
        let over = tenant.over.filter(|over| now < over.until);
        let ready = tenant.ready(now);
        // Units under way may suffice, with what is held.
        let suffices = |refill: &&Arc<Refill>| {
            let then = ready.saturating_add(refill.units.get());
            then >= charge.cost.get()
        };
        Short {
            refill: tenant.under_way().filter(suffices).cloned(),
            refusal: over.map(|over| over.refusal(now)),
        }
    }

    /// Something was given back: that nothing is left may no longer be true.
    pub(super) fn reconsider(&mut self, charge: &Charge<'_>) {
        let is_of = self.is_of(charge);
        if let Some(tenant) = self.tenant.as_mut().filter(|_| is_of) {
            tenant.over = None;
        }
    }

    /// The request did not pass. What of it cannot go back any more stays charged: how much that is.
    pub(super) fn put_back(&mut self, taken: Taken) -> u64 {
        let units = taken.units();
        match &mut self.tenant {
            Some(tenant) if self.era == taken.era => {
                taken.from.into_iter().for_each(|grant| tenant.add(grant));
                0
            }
            _ => units,
        }
    }

    /// What is to be asked for, if anything.
    pub(super) fn ask(&mut self, charge: &Charge<'_>, now: Nanos) -> Option<Ask> {
        let era = self.era;
        let tenant = self.tenant.as_mut()?;
        let units = tenant.wants(charge.cost.get(), now)?;
        let refill = Arc::new(Refill::new(units, now, tenant.trip));
        tenant.asked = Some(Arc::clone(&refill));
        let owned = tenant.charge.get_or_insert_with(|| {
            // What it says of cost and role is not looked at.
            Arc::new(OwnedCharge::of(charge))
        });
        let charge = Arc::clone(owned);
        Some(Ask {
            era,
            charge,
            refill,
        })
    }

    /// What was asked for at `sent` has been answered, or not. Units that nobody may use any more: they
    /// stay charged.
    pub(super) fn answered(
        &mut self,
        ask: &Ask,
        granted: Option<(Granted, Life)>,
        sent: Nanos,
        now: Nanos,
    ) -> u64 {
        let units = granted.as_ref().map_or(0, |(granted, _)| granted.units);
        let tenant = match &mut self.tenant {
            Some(tenant) if self.era == ask.era => tenant,
            _ => return units,
        };
        tenant.asked = None;
        tenant.over = None;
        match granted {
            Some((granted, life)) => {
                tenant.trip = Some(now.since(sent));
                tenant.receive(&granted, life, sent);
            }
            // The store is not well: to ask it with every request would cost more than it spares.
            None => tenant.rests_until = now.plus(Nanos::new(tenant.ahead.get() / 4)),
        }
        0
    }

    /// Takes out what is over, and everything if nobody asks for it any more.
    pub(super) fn take_unused(&mut self, now: Nanos) -> SmallVec<[Unused; 2]> {
        let over = |tenant: &Tenant, grant: &Grant| tenant.idle(now) || grant.ends <= now;
        self.take_out(over)
    }

    /// Takes out everything.
    pub(super) fn take_all(&mut self) -> SmallVec<[Unused; 2]> {
        self.take_out(|_, _| true)
    }

    fn take_out(&mut self, which: impl Fn(&Tenant, &Grant) -> bool) -> SmallVec<[Unused; 2]> {
        let Some(tenant) = &mut self.tenant else {
            return SmallVec::new();
        };
        let grants = std::mem::take(&mut tenant.grants);
        let (out, stay) = grants.into_iter().partition(|grant| which(tenant, grant));
        tenant.grants = stay;
        let out: SmallVec<[Grant; 2]> = out;
        let charge = tenant.charge.clone();
        let whose = charge.into_iter().cycle();
        whose
            .zip(out)
            .filter(|(_, grant)| grant.units > 0)
            .collect()
    }

    /// Forgets what is held of these counters, and what is under way. How many units that are.
    pub(super) fn drop_all(&mut self, counters: &[u128]) -> u64 {
        match &mut self.tenant {
            Some(tenant) if counters.contains(&tenant.counter) => {
                self.era += 1;
                let held = tenant.held();
                tenant.grants.clear();
                tenant.over = None;
                tenant.asked = None;
                held
            }
            _ => 0,
        }
    }

    /// Units that a request of this counter could take.
    pub(super) fn ready(&self, charge: &Charge<'_>, now: Nanos) -> u64 {
        match &self.tenant {
            Some(tenant) if self.is_of(charge) => tenant.ready(now),
            _ => 0,
        }
    }

    /// Units held, those that have ended among them.
    pub(super) fn held(&self) -> u64 {
        self.tenant.as_ref().map_or(0, |tenant| tenant.held())
    }

    /// When something is to be taken out.
    pub(super) fn due(&self) -> Option<Nanos> {
        let tenant = self.tenant.as_ref()?;
        let first = tenant.grants.iter().map(|grant| grant.ends).min()?;
        Some(first.min(tenant.used.plus(tenant.ahead)))
    }
}

impl Taken {
    /// The earliest time at which any of it was charged: a refund reckoned from it gives back no more
    /// than there is.
    pub(super) fn at(&self) -> Nanos {
        let charged = self.from.iter().map(|grant| grant.at);
        charged.min().unwrap_or(Nanos::ZERO)
    }

    fn units(&self) -> u64 {
        self.from.iter().map(|grant| grant.units).sum()
    }

    /// What is told of the limit if the request does not pass and the units go back.
    pub(super) fn untouched(&self, charge: &Charge<'_>) -> Reading {
        let mut reading = self.reading;
        let remaining = reading.figures.remaining.saturating_add(self.units());
        reading.figures.remaining = remaining.min(charge.limit.capacity());
        reading
    }
}
