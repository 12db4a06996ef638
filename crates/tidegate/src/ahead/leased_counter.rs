//! The leases of one counter under one limit, and its request rate. Pure: times go in, draws to send and leases to
//! return come out.
//!
//! Events: `record_request`, `take`, `put_back`, `next_draw`, `complete_draw`, `remove_leases`. A draw is worth it
//! only for a counter with enough requests; a colder one has no leases and costs an evictable entry.
//!
//! Invariants: a unit is in one lease or taken, never both; no unit is taken from an expired lease; all outstanding
//! units together never exceed what flows into the limit during the TTL of one lease.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Figures, Verdict};
use tidegate_core::store::{Charge, Epoch, LeaseReply, LimitReading};
use tidegate_core::units::{Cost, Nanos};

use super::rate_estimate::RateEstimate;
use super::refill::Refill;
use crate::owned_charge::OwnedCharge;

/// Leases are drawn only where at least this many requests come within the planning horizon. With fewer, the units
/// that lie idle in leases are worth more than the round trips they save.
const MIN_REQUESTS: u64 = 8;

/// Whether a request is new, or has waited for a refill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseAttempt {
    First,
    Retry,
}

/// Units of one lease.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) units: u64,
    /// When the store charged them, by its clock.
    pub(super) at: Nanos,
    /// When the draw was sent, by the local clock. It identifies the lease: one draw is in flight at a time.
    sent: Nanos,
    /// When they expire, by the local clock. The TTL starts when the draw was sent: the store charged them then or
    /// later.
    expires_at: Nanos,
    /// The figures of the limit in the reply.
    figures: Figures,
    /// The epoch of the store that charged them.
    pub(super) epoch: Epoch,
}

/// A draw to send. Requests that wait for it are woken when it is dropped, whatever its result.
#[derive(Debug)]
pub(super) struct DrawRequest {
    /// The [`LeasedCounter::id`] of its counter.
    pub(super) id: u64,
    pub(super) charge: Arc<OwnedCharge>,
    pub(super) refill: Arc<Refill>,
}

impl Drop for DrawRequest {
    fn drop(&mut self) {
        self.refill.end();
    }
}

/// A lease to return.
#[derive(Debug)]
pub(super) struct UnusedLease {
    pub(super) charge: Arc<OwnedCharge>,
    pub(super) lease: Lease,
}

/// Units taken for one charge, from one lease or several.
#[derive(Clone, Debug)]
pub(super) struct TakenUnits {
    /// The [`LeasedCounter::id`] of their counter.
    pub(super) id: u64,
    from: SmallVec<[Lease; 1]>,
}

impl TakenUnits {
    /// The earliest time at which any of the units was charged: a refund as of that time refunds no more than is there.
    pub(super) fn at(&self) -> Nanos {
        let charged = self.from.iter().map(|lease| lease.at);
        charged.min().unwrap_or(Nanos::ZERO)
    }

    pub(super) fn units(&self) -> u64 {
        self.from.iter().map(|lease| lease.units).sum()
    }
}

/// One counter under one limit.
pub(super) struct LeasedCounter {
    /// Unique: units taken or drawn before a reset do not belong to the counter that takes its place.
    pub(super) id: u64,
    pub(super) charge: Arc<OwnedCharge>,
    /// How far ahead it plans: half the TTL of a lease.
    horizon: Nanos,
    /// The maximum number of outstanding units: what flows in during one TTL, so that the store makes up for a node
    /// that died within one.
    pub(super) max_outstanding: u64,
    rate: RateEstimate,
    /// When it was last requested.
    last_used: Nanos,
    /// The lease that expires first is first.
    leases: SmallVec<[Lease; 2]>,
    /// The units of the latest lease.
    last_units: u64,
    /// The draw in flight.
    refill: Option<Arc<Refill>>,
    /// The round trip of the last draw with a reply.
    round_trip: Option<Nanos>,
    /// Nothing is drawn before.
    no_draw_before: Nanos,
}

impl LeasedCounter {
    /// A counter without leases; `None` if none may be drawn from its limit.
    pub(super) fn new(charge: &Charge<'_>, id: u64, now: Nanos) -> Option<Self> {
        let (limit, lease_ttl) = (&charge.limit, charge.limit.lease_ttl()?.get());
        let flows_in = u128::from(limit.count()) * u128::from(lease_ttl) / u128::from(limit.per().get().max(1));
        let horizon = Nanos::new(lease_ttl / 2);
        Some(LeasedCounter {
            id,
            charge: Arc::new(OwnedCharge::of(charge)),
            horizon,
            max_outstanding: u64::try_from(flows_in).unwrap_or(u64::MAX),
            rate: RateEstimate::new(horizon, now),
            last_used: now,
            leases: SmallVec::new(),
            last_units: 0,
            refill: None,
            round_trip: None,
            no_draw_before: Nanos::ZERO,
        })
    }

    pub(super) fn record_request(&mut self, units: u64, attempt: LeaseAttempt, now: Nanos) {
        self.last_used = now;
        if attempt == LeaseAttempt::First {
            self.rate.record(units, now);
        }
    }

    /// When it is idle: not requested within the planning horizon.
    pub(super) fn idle_at(&self) -> Nanos {
        self.last_used.plus(self.horizon)
    }

    /// The draw in flight. Its task may have ended without a reply, with the runtime that it ran on.
    fn refill_in_flight(&self) -> Option<&Arc<Refill>> {
        self.refill.as_ref().filter(|refill| !refill.is_ended())
    }

    /// Whether another counter may have its entry. A counter with too few requests for a draw is replaced at once.
    pub(super) fn is_evictable(&self, now: Nanos) -> bool {
        let has_none = self.leases.is_empty() && self.refill_in_flight().is_none();
        has_none && (now >= self.idle_at() || !self.is_busy())
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

    /// Takes `cost` units from the leases that expire first, if there are enough. The reading is that of a request
    /// that passes.
    pub(super) fn take(&mut self, cost: u64, now: Nanos) -> Option<(LimitReading, TakenUnits)> {
        if self.available(now) < cost {
            return None;
        }
        let (mut from, mut missing) = (SmallVec::<[Lease; 1]>::new(), cost);
        for lease in self.leases.iter_mut().filter(|lease| now < lease.expires_at) {
            let units = lease.units.min(missing);
            if units > 0 {
                lease.units -= units;
                missing -= units;
                from.push(Lease { units, ..*lease });
            }
        }
        self.leases.retain(|lease| lease.units > 0);
        let figures = self.figures(from.last()?, now);
        let reading = LimitReading { verdict: Verdict::Allow { delay: Nanos::ZERO }, figures };
        Some((reading, TakenUnits { id: self.id, from }))
    }

    /// The figures of the limit, as far as they are known here: those of the lease, plus the available units.
    fn figures(&self, lease: &Lease, now: Nanos) -> Figures {
        let passed = now.since(lease.sent);
        let remaining = lease.figures.remaining.saturating_add(self.available(now));
        Figures {
            remaining: remaining.min(self.charge.limit.capacity()),
            reset_after: lease.figures.reset_after.since(passed),
            more_after: lease.figures.more_after.since(passed),
        }
    }

    /// The refill in flight, if `cost` units are there when it ends.
    pub(super) fn sufficient_refill(&self, cost: u64, now: Nanos) -> Option<Arc<Refill>> {
        let available = self.available(now);
        let suffices = |refill: &&Arc<Refill>| available.saturating_add(refill.units.get()) >= cost;
        self.refill_in_flight().filter(suffices).cloned()
    }

    /// The request did not pass: its units are in their leases again.
    pub(super) fn put_back(&mut self, taken: TakenUnits) {
        taken.from.into_iter().for_each(|lease| self.add(lease));
    }

    /// Adds a lease, or units to the lease they came from.
    fn add(&mut self, lease: Lease) {
        let mut known = self.leases.iter_mut();
        if let Some(same) = known.find(|known| known.sent == lease.sent) {
            same.units += lease.units;
            return;
        }
        let at = self.leases.partition_point(|known| known.expires_at <= lease.expires_at);
        self.leases.insert(at, lease);
    }

    /// The next draw, once half of the latest lease is used or fewer units are available than a request costs.
    pub(super) fn next_draw(&mut self, cost: u64, now: Nanos) -> Option<DrawRequest> {
        let available = self.available(now);
        let is_low = available <= self.last_units / 2 || available < cost;
        if !self.is_busy() || !is_low || now < self.no_draw_before || self.refill_in_flight().is_some() {
            return None;
        }
        let room = self.max_outstanding.saturating_sub(self.outstanding());
        let units = Cost::new(self.rate.units().min(room))?;
        let refill = Arc::new(Refill::new(units, now, self.round_trip));
        self.refill = Some(Arc::clone(&refill));
        Some(DrawRequest { id: self.id, charge: Arc::clone(&self.charge), refill })
    }

    /// The draw sent at `sent` has a reply, or failed. Nothing is drawn before `exhausted_until`.
    pub(super) fn complete_draw(
        &mut self,
        drawn: Option<(LeaseReply, Epoch)>,
        sent: Nanos,
        now: Nanos,
        exhausted_until: Option<Nanos>,
    ) {
        self.refill = None;
        let Some((drawn, epoch)) = drawn else {
            // The store is failing: a draw with every request would cost more than it saves.
            self.no_draw_before = now.plus(Nanos::new(self.horizon.get() / 4));
            return;
        };
        self.round_trip = Some(now.since(sent));
        self.no_draw_before = self.no_draw_before.max(exhausted_until.unwrap_or(Nanos::ZERO));
        if drawn.units > 0 {
            self.last_units = drawn.units;
            self.add(Lease {
                units: drawn.units,
                at: drawn.at,
                sent,
                expires_at: sent.plus(self.charge.limit.lease_until(drawn.at).since(drawn.at)),
                figures: drawn.figures,
                epoch,
            });
        }
    }

    /// Removes the leases that have expired by `now`, or all if the counter is idle then.
    pub(super) fn remove_leases(&mut self, now: Nanos) -> impl Iterator<Item = UnusedLease> + use<> {
        let is_idle = now >= self.idle_at();
        let expired = self.leases.partition_point(|lease| is_idle || lease.expires_at <= now);
        let (removed, charge) = (self.leases.drain(..expired).collect::<SmallVec<[_; 2]>>(), Arc::clone(&self.charge));
        removed.into_iter().map(move |lease| UnusedLease { charge: Arc::clone(&charge), lease })
    }

    /// When leases are next to be removed.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let first = self.leases.first()?;
        Some(first.expires_at.min(self.idle_at()))
    }
}
