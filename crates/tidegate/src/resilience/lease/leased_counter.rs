//! Who has a place: one counter under one limit, what is held of it, and how fast it is asked for.
//!
//! Kept true: nothing is taken from a grant that has ended, and all that is held never exceeds what flows
//! into the limit during the life of one lease.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Figures, Limit, Retry, Verdict};
use tidegate_core::store::{Charge, Epoch, LeaseReply, LimitReading};
use tidegate_core::units::{Cost, Nanos};

use super::hot_key::HotKeyDetector;
use super::rate_estimate::RateEstimate;
use super::refill::Refill;
use crate::resilience::deny_cache::{MAX_DENIAL_HOLD, denial_hold};
use crate::resilience::owned_charge::OwnedCharge;

/// Units are drawn in advance only where so many requests come while a node plans ahead. With fewer,
/// what lies idle in leases is worth more than the round trips they spare.
pub(super) const MIN_REQUESTS: u64 = 8;

/// For how far ahead units of a limit are planned: half the life of a lease.
pub(super) fn planning_horizon(charge: &Charge<'_>) -> Nanos {
    let lease = charge.limit.lease_ttl().unwrap_or(Nanos::ZERO);
    Nanos::new(lease.get() / 2)
}

/// How many units may be held: no more than flow in during one lease.
fn max_outstanding(limit: &Limit) -> Option<u64> {
    let flows_in = u128::from(limit.count()) * u128::from(limit.lease_ttl()?.get());
    let max = flows_in / u128::from(limit.per().get().max(1));
    Some(u64::try_from(max).unwrap_or(u64::MAX))
}

/// Whether as many units as it costs may be held. Asked for every request, so without a division.
pub(super) fn fits_in_lease(charge: &Charge<'_>) -> bool {
    let limit = charge.limit.as_ref();
    let wide = |a: u64, b: u64| u128::from(a) * u128::from(b);
    limit.lease_ttl().is_some_and(|lease| {
        wide(charge.cost.get(), limit.per().get()) <= wide(limit.count(), lease.get())
    })
}

/// Units charged in advance.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLease {
    /// Which one of its place.
    number: u64,
    pub(super) units: u64,
    /// When the store charged them, by its clock.
    pub(super) at: Nanos,
    /// When they were asked for, by the local clock.
    sent: Nanos,
    /// When they may no longer be used, by the local clock. Reckoned from when they were asked for: the
    /// store charged them then or later.
    pub(super) expires_at: Nanos,
    /// How the limit stood then.
    figures: Figures,
    /// The life of the store that charged them.
    pub(super) epoch: Epoch,
}

/// The store had nothing left when it was last asked for more. That is as good as a refusal of every
/// cost, and stands as long as a deny cache would hold one, or until there is more if that is soon.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseExhausted {
    /// When it was asked and when this ends, by the local clock.
    sent: Nanos,
    pub(super) until: Nanos,
    /// When it said so, by its own.
    at: Nanos,
    figures: Figures,
}

/// One counter under one limit.
pub(super) struct LeasedCounter {
    pub(super) counter: u128,
    pub(super) limit: Limit,
    /// For how far ahead it plans: half the life of a lease.
    pub(super) horizon: Nanos,
    /// The most it may hold: what flows in during one life, so that the store makes up for a node that died
    /// within one.
    pub(super) max_outstanding: u64,
    pub(super) rate: RateEstimate,
    /// When it was last asked for.
    pub(super) last_used: Nanos,
    /// The one that ends first is first.
    pub(super) leases: SmallVec<[HeldLease; 2]>,
    /// Numbers given to grants so far.
    last_number: u64,
    /// What the last one gave.
    last_units: u64,
    /// What is asked for and not answered yet.
    pub(super) refill: Option<Arc<Refill>>,
    /// How long the store took the last time that it answered.
    pub(super) round_trip: Option<Nanos>,
    pub(super) exhausted: Option<LeaseExhausted>,
    /// Nothing is asked for before.
    pub(super) no_draw_before: Nanos,
    /// Made when it first asks.
    pub(super) charge: Option<Arc<OwnedCharge>>,
}

impl LeasedCounter {
    /// Moves in, as it was asked for before.
    pub(super) fn new(charge: &Charge<'_>, detector: &HotKeyDetector, now: Nanos) -> Option<Self> {
        let limit = charge.limit.as_ref();
        let (max_outstanding, horizon) = (max_outstanding(limit)?, planning_horizon(charge));
        Some(LeasedCounter {
            counter: charge.counter(),
            limit: limit.clone(),
            horizon,
            max_outstanding,
            rate: RateEstimate::new(horizon, detector),
            last_used: now,
            leases: SmallVec::new(),
            last_number: 0,
            last_units: 0,
            refill: None,
            round_trip: None,
            exhausted: None,
            no_draw_before: Nanos::ZERO,
            charge: None,
        })
    }

    /// Whether nobody asks for it any more.
    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        now >= self.last_used.plus(self.horizon)
    }

    /// What is under way. A task that asked may be gone without an answer, with the runtime it was in.
    pub(super) fn refill_in_flight(&self) -> Option<&Arc<Refill>> {
        self.refill.as_ref().filter(|refill| !refill.is_ended())
    }

    /// Whether another may have its place. One that is asked for too seldom to draw anything gives way at
    /// once.
    pub(super) fn is_replaceable(&self, now: Nanos) -> bool {
        let has_none = self.leases.is_empty() && self.refill_in_flight().is_none();
        has_none && (self.is_idle(now) || !self.is_busy())
    }

    fn is_busy(&self) -> bool {
        self.rate.requests() >= MIN_REQUESTS
    }

    /// Units held, those that have ended among them.
    pub(super) fn outstanding(&self) -> u64 {
        self.leases.iter().map(|lease| lease.units).sum()
    }

    /// Units that can be used.
    pub(super) fn available(&self, now: Nanos) -> u64 {
        let live = self.leases.iter().filter(|lease| now < lease.expires_at);
        live.map(|lease| lease.units).sum()
    }

    /// Takes so many, those that end first, if there are enough.
    pub(super) fn take(&mut self, cost: u64, now: Nanos) -> Option<SmallVec<[HeldLease; 1]>> {
        if self.available(now) < cost {
            return None;
        }
        let (mut taken, mut missing) = (SmallVec::new(), cost);
        for lease in self
            .leases
            .iter_mut()
            .filter(|lease| now < lease.expires_at)
        {
            let units = lease.units.min(missing);
            if units > 0 {
                lease.units -= units;
                missing -= units;
                taken.push(HeldLease { units, ..*lease });
            }
        }
        self.leases.retain(|lease| lease.units > 0);
        Some(taken)
    }

    /// Puts units where they came from.
    pub(super) fn add(&mut self, lease: HeldLease) {
        let mut known = self.leases.iter_mut();
        if let Some(same) = known.find(|known| known.number == lease.number) {
            same.units += lease.units;
            return;
        }
        let at = self
            .leases
            .partition_point(|known| known.expires_at <= lease.expires_at);
        self.leases.insert(at, lease);
    }

    /// The store has answered what was asked for at `sent`.
    pub(super) fn receive(&mut self, drawn: &LeaseReply, epoch: Epoch, sent: Nanos) {
        if drawn.figures.remaining == 0 {
            let wait = drawn.figures.more_after.min(MAX_DENIAL_HOLD);
            let until = sent.plus(wait.max(denial_hold(&self.limit)));
            self.no_draw_before = self.no_draw_before.max(until);
            self.exhausted = Some(LeaseExhausted {
                sent,
                until,
                at: drawn.at,
                figures: drawn.figures,
            });
        }
        if drawn.units == 0 {
            return;
        }
        let lasts = self.limit.lease_until(drawn.at).since(drawn.at);
        self.last_number += 1;
        self.last_units = drawn.units;
        self.add(HeldLease {
            number: self.last_number,
            units: drawn.units,
            at: drawn.at,
            sent,
            expires_at: sent.plus(lasts),
            figures: drawn.figures,
            epoch,
        });
    }

    /// How many units more are wanted, once half of the last ones is used or they are fewer than a request
    /// costs.
    pub(super) fn units_to_draw(&self, cost: u64, now: Nanos) -> Option<Cost> {
        let available = self.available(now);
        let low = available <= self.last_units / 2 || available < cost;
        if !self.is_busy() || !low || now < self.no_draw_before || self.refill_in_flight().is_some()
        {
            return None;
        }
        let room = self.max_outstanding.saturating_sub(self.outstanding());
        Cost::new(self.rate.units().min(room))
    }

    /// How the limit stands, as far as it is known here: as it stood then, and what is held.
    pub(super) fn figures(&self, lease: &HeldLease, now: Nanos) -> Figures {
        let passed = now.since(lease.sent);
        let remaining = lease.figures.remaining.saturating_add(self.available(now));
        Figures {
            remaining: remaining.min(self.limit.capacity()),
            reset_after: lease.figures.reset_after.since(passed),
            more_after: lease.figures.more_after.since(passed),
        }
    }
}

impl LeaseExhausted {
    /// When it is refused, by the store's clock, and what is told.
    pub(super) fn denial(&self, now: Nanos) -> (Nanos, LimitReading) {
        let passed = now.since(self.sent);
        let wait = self.figures.more_after.since(passed);
        let wait = wait.max(self.until.since(now));
        let reading = LimitReading {
            verdict: Verdict::Deny {
                retry: Retry::After(wait),
            },
            figures: Figures {
                remaining: 0,
                reset_after: self.figures.reset_after.since(passed),
                more_after: wait,
            },
        };
        (self.at.plus(passed), reading)
    }
}
