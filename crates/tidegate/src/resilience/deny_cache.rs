//! Remembers denials until they can change: a flood of denied requests stays away from the store.
//!
//! An entry is valid for the same limit and the same cost or more, and no longer than the store's `retry`: without a
//! refund in between the store would have denied too. It ends when its wait is over, when a refund, a settle, a reserve
//! or a reset of its counter passes by, and when the limit changes. Only denials by the store itself or by a synced
//! lenient view are remembered. Bounded: counters share a fixed number of entries, and the latest denial wins.
//!
//! Where a rule counts leased or leniently, a short wait is extended a little: see [`denial_hold`].

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::algorithms::{Algorithm, Figures, Limit, Retry, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Counting, Inspection, LeaseReply, LimitReading, Outcome, PermitReply, PermitRequest,
    Permits, Refund, Refunded, Reservations, Reserve, Restore, Role, Settle, Settled, Source, Store, StoreResult,
};
use tidegate_core::units::{Cost, Nanos};

use crate::runtime::Runtime;

/// The longest time for which a denial of a leased or lenient rule is remembered: units that other nodes hold may
/// come back at any moment, and lenient views deny by a state no older than this.
const MAX_AGE_AHEAD: Nanos = Nanos::from_millis(50);

/// The longest denial hold. Clients would notice a longer one.
pub(super) const MAX_DENIAL_HOLD: Nanos = Nanos::from_millis(20);

/// Remembers the denials of a store.
pub struct DenyCache<S, R> {
    store: S,
    runtime: R,
    entries: Box<[Mutex<Option<DenyCacheEntry>>]>,
    max_age: Nanos,
    has_late_charges: Option<HasLateCharges>,
}

/// Whether a late reply may still change what can be admitted of a counter.
pub(super) type HasLateCharges = Arc<dyn Fn(u128) -> bool + Send + Sync>;

struct DenyCacheEntry {
    counter: u128,
    /// The limit as it was, including the longest delay that the caller accepts.
    limit: Limit,
    /// The smallest cost that was denied.
    cost: Cost,
    /// When the request was sent, by the local clock.
    sent: Nanos,
    /// When it was denied, by the store's clock.
    at: Nanos,
    until: Nanos,
    /// The readings of all limits of the request, by counter and limit.
    readings: SmallVec<[(u128, LimitVersion, LimitReading); 2]>,
}

/// Identifies the limit of a reading: its tag and capacity.
type LimitVersion = (u32, u64);

fn limit_version(limit: &Limit) -> LimitVersion {
    (limit.tag(), limit.capacity())
}

impl<S: Store, R: Runtime> DenyCache<S, R> {
    /// Remembers up to `max_entries` denials of `store`, each for at most `max_age`.
    pub fn new(store: S, runtime: R, max_entries: usize, max_age: Nanos) -> Self {
        DenyCache {
            store,
            runtime,
            entries: (0..max_entries.max(1)).map(|_| Mutex::default()).collect(),
            max_age,
            has_late_charges: None,
        }
    }

    /// Denials of a counter with late charges are neither remembered nor repeated.
    pub(super) fn bypass_when(mut self, has_late_charges: HasLateCharges) -> Self {
        self.has_late_charges = Some(has_late_charges);
        self
    }

    fn has_late_charges(&self, counter: u128) -> bool {
        let predicate = self.has_late_charges.as_ref();
        predicate.is_some_and(|predicate| predicate(counter))
    }

    /// The store behind it.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn entry(&self, counter: u128) -> &Mutex<Option<DenyCacheEntry>> {
        let at = (counter ^ (counter >> 64)) as u64 % self.entries.len() as u64;
        &self.entries[at as usize]
    }

    /// A valid denial, if one is remembered with readings for all limits of the request.
    fn find(&self, set: &ChargeSet<'_>, now: Nanos) -> Option<Outcome> {
        let enforced = set.charges.iter().filter(|c| c.role == Role::Enforce);
        enforced.into_iter().find_map(|charge| {
            let entry = self.entry(charge.counter()).lock();
            let found = entry.as_ref()?;
            let is_valid = found.counter == charge.counter()
                && now < found.until
                && charge.cost >= found.cost
                && *charge.limit == found.limit;
            if !is_valid || self.has_late_charges(charge.counter()) {
                return None;
            }
            found.replay(set, now.since(found.sent))
        })
    }

    fn record_denial(&self, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos) {
        let is_cacheable = matches!(outcome.source, Source::Exact | Source::Lenient);
        if outcome.admitted || !is_cacheable {
            return;
        }
        let readings = || {
            let each = set.charges.iter().zip(&outcome.readings);
            each.map(|(charge, reading)| {
                let held_reading = extend_to_hold(*reading, denial_hold_of(charge));
                (charge.counter(), limit_version(&charge.limit), held_reading)
            })
        };
        for (charge, reading) in set.charges.iter().zip(&outcome.readings) {
            let Verdict::Deny { retry: Retry::After(wait) } = reading.verdict else {
                continue;
            };
            // A counter that is named twice in one set denies the sum, not the cost.
            let named = set.charges.iter().filter(|c| c.counter() == charge.counter());
            let several = named.count() > 1;
            if charge.role != Role::Enforce || several || self.has_late_charges(charge.counter()) {
                continue;
            }
            let entry = DenyCacheEntry {
                counter: charge.counter(),
                limit: charge.limit.as_ref().clone(),
                cost: charge.cost,
                sent,
                at: outcome.at,
                until: sent.plus(wait.min(self.max_age(charge)).max(denial_hold_of(charge))),
                readings: readings().collect(),
            };
            *self.entry(charge.counter()).lock() = Some(entry);
        }
    }

    /// The longest time for which a denial is remembered.
    fn max_age(&self, charge: &Charge<'_>) -> Nanos {
        match charge.options.counting {
            Counting::Exact => self.max_age,
            Counting::Leased | Counting::Lenient => self.max_age.min(MAX_AGE_AHEAD),
        }
    }

    fn invalidate(&self, set: &ChargeSet<'_>) {
        for charge in &set.charges {
            let mut entry = self.entry(charge.counter()).lock();
            if entry.as_ref().is_some_and(|d| d.counter == charge.counter()) {
                *entry = None;
            }
        }
    }
}

/// The shortest time for which a denial is valid. At a high rate the next unit arrives within a millisecond, and
/// under overload every node would call the store with every request. Units that flow in during the hold are not
/// lost: they wait in the bucket, as long as they are few compared with its capacity. Exact counting promises the
/// shortest possible wait, so it has no hold. A window frees its units all at once at an edge, so it needs none.
pub(super) fn denial_hold(limit: &Limit) -> Nanos {
    let quarter = Nanos::new(limit.full_window().get() / 4);
    match limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindowStrict => Nanos::ZERO,
        _ => quarter.min(MAX_DENIAL_HOLD),
    }
}

fn denial_hold_of(charge: &Charge<'_>) -> Nanos {
    match charge.options.counting {
        Counting::Exact => Nanos::ZERO,
        Counting::Leased | Counting::Lenient => denial_hold(&charge.limit),
    }
}

/// The reading of a denial that is valid for at least `hold`.
fn extend_to_hold(mut reading: LimitReading, hold: Nanos) -> LimitReading {
    if let Verdict::Deny { retry: Retry::After(wait) } = &mut reading.verdict {
        *wait = (*wait).max(hold);
        let more_after = &mut reading.figures.more_after;
        *more_after = (*more_after).max(hold);
    }
    reading
}

impl DenyCacheEntry {
    /// The same denial, `passed` later.
    fn replay(&self, set: &ChargeSet<'_>, passed: Nanos) -> Option<Outcome> {
        let readings = set.charges.iter().map(|charge| {
            let mut known = self.readings.iter();
            let found = known
                .find(|(counter, version, _)| *counter == charge.counter() && *version == limit_version(&charge.limit));
            found.map(|(_, _, reading)| aged(*reading, passed))
        });
        Some(Outcome {
            admitted: false,
            readings: readings.collect::<Option<_>>()?,
            snapshots: Vec::new(),
            at: self.at.plus(passed),
            source: Source::DenyCache,
            degraded: None,
            clock_stepped: false,
        })
    }
}

fn aged(reading: LimitReading, passed: Nanos) -> LimitReading {
    let verdict = match reading.verdict {
        Verdict::Deny { retry: Retry::After(wait) } => Verdict::Deny { retry: Retry::After(wait.since(passed)) },
        same => same,
    };
    LimitReading {
        verdict,
        figures: Figures {
            remaining: reading.figures.remaining,
            reset_after: reading.figures.reset_after.since(passed),
            more_after: reading.figures.more_after.since(passed),
        },
    }
}

impl<S: Store, R: Runtime> Counters for DenyCache<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let sent = self.runtime.now();
        if let Some(cached) = self.find(set, sent) {
            return Ok(cached);
        }
        let outcome = self.store.charge(set).await?;
        self.record_denial(set, &outcome, sent);
        Ok(outcome)
    }

    /// Charges the sets without a remembered denial in one call.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let sent = self.runtime.now();
        let mut outcomes: Vec<Option<StoreResult<Outcome>>> = Vec::with_capacity(sets.len());
        outcomes.extend(sets.iter().map(|set| self.find(set, sent).map(Ok)));
        let unknown = |i: &usize| outcomes[*i].is_none();
        let unknown: Vec<usize> = (0..sets.len()).filter(unknown).collect();
        let uncached: Vec<&ChargeSet<'_>> = unknown.iter().map(|i| sets[*i]).collect();
        let replies = if uncached.is_empty() { Vec::new() } else { self.store.charge_each(&uncached).await };
        for (i, reply) in unknown.into_iter().zip(replies) {
            if let Ok(outcome) = &reply {
                self.record_denial(sets[i], outcome, sent);
            }
            outcomes[i] = Some(reply);
        }
        outcomes.into_iter().flatten().collect()
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.store.peek(set).await
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        self.store.draw(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.store.force(set).await
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        self.store.restore(restores).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.store.inspect(set).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        let refunded = self.store.refund(refund).await;
        self.invalidate(&refund.set);
        refunded
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        let forgotten = self.store.reset(set).await;
        self.invalidate(set);
        forgotten
    }
}

impl<S: Store, R: Runtime> Permits for DenyCache<S, R> {
    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.store.acquire(permit).await
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.store.renew(permit).await
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        self.store.release(permit).await
    }
}

impl<S: Store, R: Runtime> Reservations for DenyCache<S, R> {
    /// A remembered denial applies to a reservation too. A reserve that reached the store may have refunded expired
    /// reservations, so the denials of its counters are invalidated.
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        let sent = self.runtime.now();
        if let Some(cached) = self.find(&reserve.set, sent) {
            return Ok(cached);
        }
        let outcome = self.store.reserve(reserve).await?;
        self.invalidate(&reserve.set);
        self.record_denial(&reserve.set, &outcome, sent);
        Ok(outcome)
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        let settled = self.store.settle(settle).await;
        self.invalidate(&settle.set);
        settled
    }
}
