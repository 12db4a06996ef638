//! Leases: units that are charged before they are used. A hot key costs one round trip for many requests, and not one
//! request too many is admitted.
//!
//! A node with enough requests for a counter draws a lease (`hot_key`, `entry`, `leased_counter`, `rate_estimate`) and
//! decides by it until it is used up or expires; the limit sets its TTL. The next lease is drawn in the background when
//! half is used; a request that finds no units meanwhile waits for it a little (`refill`). Units that are left when the
//! lease expires or the counter is idle are returned once (`reclaim`, `deadlines`). The store behind decides everything
//! else. A reply that nothing is left is valid for as long as the deny cache would hold a denial.
//!
//! Invariant: every unit admitted here was charged before, no longer ago than the TTL of a lease. Lost replies and lost
//! refunds leave units charged that were never used, never the other way round. Knows neither rules nor which store is
//! behind it; about stores that fail it knows what [`Lender`] reports.
//!
//! Cancel-safety: a request that is dropped while the rest of it is decided has used its units; one that is dropped
//! while it waits for a refill has taken none.

mod deadlines;
mod entry;
mod hot_key;
mod leased_counter;
mod port;
mod rate_estimate;
mod reclaim;
mod refill;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tidegate_core::store::{
    Charge, ChargeSet, Counting, Epoch, LimitReading, Outcome, Role, Source, Store, StoreError,
};
use tidegate_core::units::{Cost, Nanos};

use self::entry::{DrawRequest, LeaseAttempt, LeaseEntry, Shortage, TakenUnits};
use self::reclaim::ReclaimQueue;
use self::refill::Refill;
use super::split_set::SplitSet;
use crate::runtime::{Runtime, mix};

/// A store from which leases can be drawn.
pub trait Lender: Store {
    /// The epoch of the store that holds the counter of `charge`; `None` while it is not trusted. A store that reports
    /// no epoch has a constant one. Units drawn in one epoch are not returned to another: it may have lost their
    /// charge.
    fn epoch_of(&self, charge: &Charge<'_>) -> Option<Epoch>;

    /// How long a decision on `set` may take.
    fn budget_of(&self, set: &ChargeSet<'_>) -> Nanos;

    /// Charges `set` by `until`, by the local clock: some of its budget is used already.
    fn charge_with_deadline(
        &self,
        until: Nanos,
        set: &ChargeSet<'_>,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;
}

/// Draws leases from a store. Clones share their state.
pub struct LeasingStore<S, R>(Arc<LeasingStoreInner<S, R>>);

struct LeasingStoreInner<S, R> {
    store: S,
    runtime: R,
    entries: Box<[Mutex<LeaseEntry>]>,
    reclaim_queue: Mutex<ReclaimQueue>,
    /// Draws, returns, and requests that may yet return taken units.
    in_flight: AtomicUsize,
    /// Set when nothing is drawn or used any more. Read after `in_flight` is raised, so that a drain that sets it and
    /// then finds nothing in flight has missed nothing.
    drained: AtomicBool,
    counters: LeaseCounters,
}

/// Totals of units so far.
#[derive(Default)]
struct LeaseCounters {
    leases_drawn: AtomicU64,
    units_drawn: AtomicU64,
    units_returned: AtomicU64,
    units_lapsed: AtomicU64,
}

/// The totals of units, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseStats {
    /// Leases drawn.
    pub leases_drawn: u64,
    /// Units drawn.
    pub units_drawn: u64,
    /// Units returned unused.
    pub units_returned: u64,
    /// Units neither used nor returned.
    pub units_lapsed: u64,
    /// Units in leases now.
    pub units_outstanding: u64,
}

/// Work that `return_all` waits for, until this is dropped.
struct LeaseInFlight<S, R>(Arc<LeasingStoreInner<S, R>>);

impl<S, R> LeaseInFlight<S, R> {
    fn begin(inner: &Arc<LeasingStoreInner<S, R>>) -> Self {
        inner.in_flight.fetch_add(1, Ordering::SeqCst);
        LeaseInFlight(Arc::clone(inner))
    }
}

impl<S, R> Drop for LeaseInFlight<S, R> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Units taken for the local charges of one set, in order, with the index of their entry.
type TakenLeases = SmallVec<[(usize, TakenUnits); 2]>;

/// How far the leases decide a set.
enum LeaseDecision<'a, S, R> {
    /// Not at all: the store decides the whole set.
    Remote,
    /// Not now: refills for all missing units are in flight. This is the first of them.
    AwaitRefill(Arc<Refill>),
    /// In part: the store decides the rest.
    Partial(Box<PartialDecision<'a, S, R>>),
    /// Entirely.
    Local(Outcome),
}

/// What is missing for a set.
enum MissingUnits {
    Nothing,
    /// Units are missing, and refills for all of them are in flight.
    Refilling(Arc<Refill>),
    /// Units are missing for which no refill is in flight.
    Unavailable,
}

impl MissingUnits {
    /// Adds a charge whose units are missing, with its refill if one is in flight.
    fn add(self, refill: Option<Arc<Refill>>) -> Self {
        match (self, refill) {
            (MissingUnits::Nothing, Some(refill)) => MissingUnits::Refilling(refill),
            (MissingUnits::Refilling(first), Some(_)) => MissingUnits::Refilling(first),
            _ => MissingUnits::Unavailable,
        }
    }
}

/// A set that leases decide in part: its units are returned if the rest is denied.
struct PartialDecision<'a, S, R> {
    split: SplitSet<'a>,
    taken_leases: TakenLeases,
    in_flight: LeaseInFlight<S, R>,
}

impl<S, R> Clone for LeasingStore<S, R> {
    fn clone(&self) -> Self {
        LeasingStore(Arc::clone(&self.0))
    }
}

impl<S: Lender + 'static, R: Runtime> LeasingStore<S, R> {
    /// Draws leases from `store`, for up to `max_entries` counters at a time.
    pub fn new(store: S, runtime: R, max_entries: usize) -> Self {
        LeasingStore(Arc::new(LeasingStoreInner {
            store,
            runtime,
            entries: (0..max_entries.max(1)).map(|_| Mutex::default()).collect(),
            reclaim_queue: Mutex::default(),
            in_flight: AtomicUsize::new(0),
            drained: AtomicBool::new(false),
            counters: LeaseCounters::default(),
        }))
    }

    /// The store behind it.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Returns all leases and draws nothing from now on. Done when the store has replied, or after a few seconds.
    pub async fn return_all(&self) {
        self.0.return_all().await;
    }

    /// The totals of units, and how many are outstanding.
    pub fn stats(&self) -> LeaseStats {
        let counters = &self.0.counters;
        LeaseStats {
            leases_drawn: counters.leases_drawn.load(Ordering::Relaxed),
            units_drawn: counters.units_drawn.load(Ordering::Relaxed),
            units_returned: counters.units_returned.load(Ordering::Relaxed),
            units_lapsed: counters.units_lapsed.load(Ordering::Relaxed),
            units_outstanding: self.0.outstanding(),
        }
    }
}

/// Whether leases may be drawn for a charge. A shadow limit and one of several quotas may deny without the request
/// being denied: the store decides about those.
fn is_leased(charge: &Charge<'_>) -> bool {
    charge.role == Role::Enforce && charge.options.counting == Counting::Leased && charge.limit.lease_ttl().is_some()
}

impl<S: Lender + 'static, R: Runtime> LeasingStoreInner<S, R> {
    /// The entry of a counter under a limit. A counter under two limits, as two priorities have it, has two entries.
    fn entry_index(&self, charge: &Charge<'_>) -> usize {
        let counter = charge.counter();
        let limit = u64::from(charge.limit.tag()) ^ charge.limit.capacity().rotate_left(32);
        let bits = (counter ^ (counter >> 64)) as u64 ^ mix(limit);
        (bits % self.entries.len() as u64) as usize
    }

    /// Decides by leases what can be. Either all leased charges of a set are decided here, or none.
    fn decide<'a>(self: &Arc<Self>, set: &ChargeSet<'a>, attempt: LeaseAttempt) -> LeaseDecision<'a, S, R> {
        if !set.charges.iter().any(is_leased) {
            return LeaseDecision::Remote;
        }
        // Units taken for the only charge of a set are never returned.
        let in_flight = (set.charges.len() > 1).then(|| LeaseInFlight::begin(self));
        if self.drained.load(Ordering::SeqCst) {
            return LeaseDecision::Remote;
        }
        let now = self.runtime.now();
        let (mut taken_leases, mut missing) = (TakenLeases::new(), MissingUnits::Nothing);
        let mut denial = None;
        for charge in set.charges.iter().filter(|charge| is_leased(charge)) {
            let index = self.entry_index(charge);
            match self.take_or_draw(index, charge, attempt, &missing, now) {
                Ok(taken) => taken_leases.extend(taken.map(|taken| (index, taken))),
                Err(shortage) => {
                    missing = missing.add(shortage.refill);
                    denial = shortage.denial;
                }
            }
        }
        if !matches!(missing, MissingUnits::Nothing) {
            self.return_taken(taken_leases);
            return match (denial.and_then(|denial| deny(set, denial)), missing) {
                (Some(denied), _) => LeaseDecision::Local(denied),
                (None, MissingUnits::Refilling(refill)) if self.can_wait(set, &refill) => {
                    LeaseDecision::AwaitRefill(refill)
                }
                (None, _) => LeaseDecision::Remote,
            };
        }
        match in_flight.filter(|_| taken_leases.len() < set.charges.len()) {
            None => LeaseDecision::Local(outcome(&taken_leases, |_, taken| taken.reading)),
            Some(in_flight) => LeaseDecision::Partial(Box::new(PartialDecision {
                split: SplitSet::of(set, is_leased),
                taken_leases,
                in_flight,
            })),
        }
    }

    /// Whether a set may wait for a refill: not if the store must be called anyway, nor if the refill takes so long
    /// that no time might be left for that call.
    fn can_wait(&self, set: &ChargeSet<'_>, refill: &Refill) -> bool {
        set.charges.iter().all(is_leased) && refill.is_quick(self.store.budget_of(set))
    }

    /// One request of a counter: takes units if nothing is missing so far, and starts a draw if more are needed.
    fn take_or_draw(
        self: &Arc<Self>,
        index: usize,
        charge: &Charge<'_>,
        attempt: LeaseAttempt,
        missing: &MissingUnits,
        now: Nanos,
    ) -> Result<Option<TakenUnits>, Shortage> {
        let (result, draw) = {
            let mut entry = self.entries[index].lock();
            if !entry.record_request(charge, attempt, now) {
                return Err(Shortage::default());
            }
            let taken = match missing {
                MissingUnits::Nothing => entry.take(charge.cost, now).map(Some),
                _ => (entry.available(charge, now) >= charge.cost.get()).then_some(None),
            };
            let draw = entry.next_draw(charge, now);
            (taken.ok_or_else(|| entry.shortage(charge, now)), draw)
        };
        if let Some(draw) = draw {
            self.spawn_draw(index, draw);
        }
        result
    }

    /// The request did not pass: returns its units to their leases.
    fn return_taken(self: &Arc<Self>, taken_leases: TakenLeases) {
        for (index, taken) in taken_leases {
            let lapsed = self.entries[index].lock().return_taken(taken);
            self.record_lapsed(lapsed);
            self.schedule_reclaim(index);
        }
    }

    /// The store has decided the rest of a request: its units are used, or returned.
    fn finish_partial(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        partial: PartialDecision<'_, S, R>,
        rest: Outcome,
    ) -> Outcome {
        let PartialDecision { split, taken_leases, in_flight: _until_returned } = partial;
        if rest.admitted {
            return split.merge(outcome(&taken_leases, |_, taken| taken.reading), rest);
        }
        let leased: SmallVec<[&Charge<'_>; 2]> = set.charges.iter().filter(|c| is_leased(c)).collect();
        let local = outcome(&taken_leases, |i, taken| taken.reading_if_returned(leased[i]));
        self.return_taken(taken_leases);
        split.merge(local, rest)
    }

    /// Draws a lease in the background.
    fn spawn_draw(self: &Arc<Self>, index: usize, request: DrawRequest) {
        let in_flight = LeaseInFlight::begin(self);
        if self.drained.load(Ordering::SeqCst) {
            return; // and is not tried again: nothing is drawn any more
        }
        self.runtime.spawn(async move {
            in_flight.0.draw(index, request).await;
        });
    }

    async fn draw(self: &Arc<Self>, index: usize, request: DrawRequest) {
        let charge = request.charge.with_cost(request.refill.units);
        let sent = self.runtime.now();
        let drawn = match self.store.epoch_of(&charge) {
            Some(epoch) => {
                let lease = self.store.draw(&charge).await;
                lease.ok().map(|lease| (lease, epoch))
            }
            None => None,
        };
        let units = drawn.as_ref().map_or(0, |(lease, _)| lease.units);
        let now = self.runtime.now();
        let lapsed = self.entries[index].lock().complete_draw(&request, drawn, sent, now);
        drop(request); // wakes the requests that wait for it
        if units > 0 {
            self.counters.leases_drawn.fetch_add(1, Ordering::Relaxed);
            self.counters.units_drawn.fetch_add(units, Ordering::Relaxed);
            self.record_lapsed(lapsed);
            self.schedule_reclaim(index);
        }
    }

    fn record_lapsed(&self, units: u64) {
        self.counters.units_lapsed.fetch_add(units, Ordering::Relaxed);
    }
}

/// Denies a set of one unit that the store would deny: its last reply was that nothing is left. For other sets more
/// readings are needed than are known here, and for more units a longer wait.
fn deny(set: &ChargeSet<'_>, (at, reading): (Nanos, LimitReading)) -> Option<Outcome> {
    let alone = set.charges.len() == 1 && set.charges[0].cost == Cost::ONE;
    alone.then(|| Outcome {
        admitted: false,
        readings: smallvec![reading],
        snapshots: Vec::new(),
        at,
        source: Source::DenyCache,
        degraded: None,
        clock_stepped: false,
    })
}

/// The outcome of the charges that leases decide.
fn outcome(taken_leases: &TakenLeases, reading: impl Fn(usize, &TakenUnits) -> LimitReading) -> Outcome {
    let charged = taken_leases.iter().map(|(_, taken)| taken.at());
    let each = taken_leases.iter().enumerate();
    Outcome {
        admitted: true,
        readings: each.map(|(i, (_, taken))| reading(i, taken)).collect(),
        snapshots: Vec::new(),
        at: charged.min().unwrap_or(Nanos::ZERO),
        source: Source::Lease,
        degraded: None,
        clock_stepped: false,
    }
}
