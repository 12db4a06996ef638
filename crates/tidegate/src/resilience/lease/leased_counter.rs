//! The counter that an entry is assigned to: one counter under one limit, its leases, and its request rate.
//!
//! Invariants: no unit is taken from an expired lease; all outstanding units together never exceed what flows into the
//! limit during the TTL of one lease.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Figures, Limit, Retry, Verdict};
use tidegate_core::store::{Charge, Epoch, LeaseReply, LimitReading};
use tidegate_core::units::{Cost, Nanos};

use super::hot_key::HotKeyDetector;
use super::rate_estimate::RateEstimate;
use super::refill::Refill;
use crate::resilience::OwnedCharge;
use crate::resilience::deny_cache::{MAX_DENIAL_HOLD, denial_hold};

/// Leases are drawn only where at least this many requests come within the planning horizon. With fewer, the units
/// that lie idle in leases are worth more than the round trips they save.
pub(super) const MIN_REQUESTS: u64 = 8;

/// How far ahead units of a limit are planned: half the TTL of a lease.
pub(super) fn planning_horizon(charge: &Charge<'_>) -> Nanos {
    let lease = charge.limit.lease_ttl().unwrap_or(Nanos::ZERO);
    Nanos::new(lease.get() / 2)
}

/// The maximum number of outstanding units: no more than flow in during the TTL of one lease.
fn max_outstanding(limit: &Limit) -> Option<u64> {
    let flows_in = u128::from(limit.count()) * u128::from(limit.lease_ttl()?.get());
    let max = flows_in / u128::from(limit.per().get().max(1));
    Some(u64::try_from(max).unwrap_or(u64::MAX))
}

/// Whether units for the cost may be leased. Computed for every request, so without a division.
pub(super) fn fits_in_lease(charge: &Charge<'_>) -> bool {
    let limit = charge.limit.as_ref();
    let wide = |a: u64, b: u64| u128::from(a) * u128::from(b);
    limit
        .lease_ttl()
        .is_some_and(|lease| wide(charge.cost.get(), limit.per().get()) <= wide(limit.count(), lease.get()))
}

/// Units of one lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLease {
    /// Identifies the lease within its entry.
    number: u64,
    pub(super) units: u64,
    /// When the store charged them, by its clock.
    pub(super) at: Nanos,
    /// When the draw was sent, by the local clock.
    sent: Nanos,
    /// When they expire, by the local clock. The TTL starts when the draw was sent: the store charged them then or
    /// later.
    pub(super) expires_at: Nanos,
    /// The figures of the limit in the reply.
    figures: Figures,
    /// The epoch of the store that charged them.
    pub(super) epoch: Epoch,
}

/// The last draw found nothing left at the store. That is as good as a denial of every cost. It is valid for as long as
/// the deny cache would hold a denial, or until more units arrive if that is soon.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseExhausted {
    /// When the draw was sent and when this ends, by the local clock.
    sent: Nanos,
    pub(super) until: Nanos,
    /// When the store replied, by its own clock.
    at: Nanos,
    figures: Figures,
}

/// One counter under one limit.
pub(super) struct LeasedCounter {
    pub(super) counter: u128,
    pub(super) limit: Limit,
    /// How far ahead it plans: half the TTL of a lease.
    pub(super) horizon: Nanos,
    /// The maximum number of outstanding units: what flows in during one TTL, so that the store makes up for a node
    /// that died within one.
    pub(super) max_outstanding: u64,
    pub(super) rate: RateEstimate,
    /// When it was last requested.
    pub(super) last_used: Nanos,
    /// The lease that expires first is first.
    pub(super) leases: SmallVec<[HeldLease; 2]>,
    /// The number of the latest lease.
    last_number: u64,
    /// The units of the latest lease.
    last_units: u64,
    /// The draw in flight.
    pub(super) refill: Option<Arc<Refill>>,
    /// The round trip of the last draw with a reply.
    pub(super) round_trip: Option<Nanos>,
    pub(super) exhausted: Option<LeaseExhausted>,
    /// Nothing is drawn before.
    pub(super) no_draw_before: Nanos,
    /// Created for the first draw.
    pub(super) charge: Option<Arc<OwnedCharge>>,
}

impl LeasedCounter {
    /// A counter that has just got its entry, with the requests that the detector has counted.
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

    /// Whether it was not requested within the planning horizon.
    pub(super) fn is_idle(&self, now: Nanos) -> bool {
        now >= self.last_used.plus(self.horizon)
    }

    /// The draw in flight. Its task may have ended without a reply, with the runtime that it ran on.
    pub(super) fn refill_in_flight(&self) -> Option<&Arc<Refill>> {
        self.refill.as_ref().filter(|refill| !refill.is_ended())
    }

    /// Whether another counter may have its entry. A counter with too few requests for a draw is replaced at once.
    pub(super) fn is_replaceable(&self, now: Nanos) -> bool {
        let has_none = self.leases.is_empty() && self.refill_in_flight().is_none();
        has_none && (self.is_idle(now) || !self.is_busy())
    }

    fn is_busy(&self) -> bool {
        self.rate.requests() >= MIN_REQUESTS
    }

    /// Units of all leases, including expired ones.
    pub(super) fn outstanding(&self) -> u64 {
        self.leases.iter().map(|lease| lease.units).sum()
    }

    /// Units of leases that have not expired.
    pub(super) fn available(&self, now: Nanos) -> u64 {
        let live = self.leases.iter().filter(|lease| now < lease.expires_at);
        live.map(|lease| lease.units).sum()
    }

    /// Takes `cost` units from the leases that expire first, if there are enough.
    pub(super) fn take(&mut self, cost: u64, now: Nanos) -> Option<SmallVec<[HeldLease; 1]>> {
        if self.available(now) < cost {
            return None;
        }
        let (mut taken, mut missing) = (SmallVec::new(), cost);
        for lease in self.leases.iter_mut().filter(|lease| now < lease.expires_at) {
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

    /// Adds a lease, or returns units to the lease they came from.
    pub(super) fn add(&mut self, lease: HeldLease) {
        let mut known = self.leases.iter_mut();
        if let Some(same) = known.find(|known| known.number == lease.number) {
            same.units += lease.units;
            return;
        }
        let at = self.leases.partition_point(|known| known.expires_at <= lease.expires_at);
        self.leases.insert(at, lease);
    }

    /// Applies the reply to a draw that was sent at `sent`.
    pub(super) fn receive(&mut self, drawn: &LeaseReply, epoch: Epoch, sent: Nanos) {
        if drawn.figures.remaining == 0 {
            let wait = drawn.figures.more_after.min(MAX_DENIAL_HOLD);
            let until = sent.plus(wait.max(denial_hold(&self.limit)));
            self.no_draw_before = self.no_draw_before.max(until);
            self.exhausted = Some(LeaseExhausted { sent, until, at: drawn.at, figures: drawn.figures });
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

    /// How many units to draw, once half of the latest lease is used or fewer are available than a request costs.
    pub(super) fn units_to_draw(&self, cost: u64, now: Nanos) -> Option<Cost> {
        let available = self.available(now);
        let low = available <= self.last_units / 2 || available < cost;
        if !self.is_busy() || !low || now < self.no_draw_before || self.refill_in_flight().is_some() {
            return None;
        }
        let room = self.max_outstanding.saturating_sub(self.outstanding());
        Cost::new(self.rate.units().min(room))
    }

    /// The figures of the limit, as far as they are known here: those of the lease, plus the available units.
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
    /// The time of the denial by the store's clock, and its reading.
    pub(super) fn denial(&self, now: Nanos) -> (Nanos, LimitReading) {
        let passed = now.since(self.sent);
        let wait = self.figures.more_after.since(passed);
        let wait = wait.max(self.until.since(now));
        let reading = LimitReading {
            verdict: Verdict::Deny { retry: Retry::After(wait) },
            figures: Figures { remaining: 0, reset_after: self.figures.reset_after.since(passed), more_after: wait },
        };
        (self.at.plus(passed), reading)
    }
}
