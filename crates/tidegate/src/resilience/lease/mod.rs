//! Units charged before they are used: a hot key costs a round trip for many requests, and admits not
//! one too many.
//!
//! A node that is asked often enough for a counter draws some of it in advance (`place`, `leased_counter`, `rate_estimate`) and
//! decides by that until it is used up, at most for the life that the limit gives to a lease. The next
//! ones are asked for when half is used, beside the requests; whoever finds nothing meanwhile waits for
//! them a little (`refill`). What is left at the end, or when nobody asks any more, is given back once
//! (`reclaim`). Everything that is not held here is decided by the store behind. When it has said that
//! nothing is left, that stands for as long as a deny cache would hold a refusal.
//!
//! Kept true: every unit admitted here was charged before, and not longer ago than a lease lives. Lost
//! answers and lost refunds leave units charged that nobody used, never the other way round. It knows
//! neither rules nor which store it is; of stores that fail it knows what [`Lender`] tells.
//!
//! Cancel-safety: a request that is dropped while the rest of it is decided has used its units; one that is
//! dropped while it waits for more has taken none.

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

/// A store that units can be drawn from in advance.
pub trait Lender: Store {
    /// The life of the store that keeps the counter of `charge`; nothing while it cannot be believed. A
    /// store that does not tell has one life, whichever. Units drawn in one life are not given back to
    /// another: it may have lost their charge.
    fn epoch_of(&self, charge: &Charge<'_>) -> Option<Epoch>;

    /// How long a decision on `set` may take.
    fn budget_of(&self, set: &ChargeSet<'_>) -> Nanos;

    /// Charges `set`, for which there is time only until `until`, by the local clock: some of its budget
    /// has gone already.
    fn charge_with_deadline(
        &self,
        until: Nanos,
        set: &ChargeSet<'_>,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;
}

/// Draws from a store in advance. Clones are the same.
pub struct LeasingStore<S, R>(Arc<LeasingStoreInner<S, R>>);

struct LeasingStoreInner<S, R> {
    store: S,
    runtime: R,
    entries: Box<[Mutex<LeaseEntry>]>,
    reclaim_queue: Mutex<ReclaimQueue>,
    /// Questions for more units, refunds, and requests that may yet put units back.
    in_flight: AtomicUsize,
    /// Whether nothing is drawn or used any more. Read by who is under way already, so that who sets it
    /// and then finds nothing under way has missed nothing.
    drained: AtomicBool,
    counters: LeaseCounters,
}

/// What has become of units so far.
#[derive(Default)]
struct LeaseCounters {
    leases_drawn: AtomicU64,
    units_drawn: AtomicU64,
    units_returned: AtomicU64,
    units_lapsed: AtomicU64,
}

/// What leases say of themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseStats {
    /// How often units were drawn in advance.
    pub leases_drawn: u64,
    /// How many units.
    pub units_drawn: u64,
    /// Units given back unused.
    pub units_returned: u64,
    /// Units that were neither used nor given back.
    pub units_lapsed: u64,
    /// Units held now.
    pub units_outstanding: u64,
}

/// Something that giving everything back waits for, until this is dropped.
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

/// Units taken for the charges of one set that are decided here, in order, and from which places.
type TakenLeases = SmallVec<[(usize, TakenUnits); 2]>;

/// How far a set is decided by what is held here.
enum LeaseDecision<'a, S, R> {
    /// Not at all: it goes to the store as it is.
    Remote,
    /// Not now: of all that is missing more is under way, of this first.
    AwaitRefill(Arc<Refill>),
    /// As far as it can be; the rest goes to the store.
    Partial(Box<PartialDecision<'a, S, R>>),
    /// Entirely.
    Local(Outcome),
}

/// What of a set cannot be taken.
enum MissingUnits {
    Nothing,
    /// Something, and of all of it more is under way.
    Refilling(Arc<Refill>),
    /// Something that only the store can tell about.
    Unavailable,
}

impl MissingUnits {
    /// One more thing is missing, of which there is a refill under way or not.
    fn add(self, refill: Option<Arc<Refill>>) -> Self {
        match (self, refill) {
            (MissingUnits::Nothing, Some(refill)) => MissingUnits::Refilling(refill),
            (MissingUnits::Refilling(first), Some(_)) => MissingUnits::Refilling(first),
            _ => MissingUnits::Unavailable,
        }
    }
}

/// A set that is decided here in part: what was taken for that goes back if the rest is refused.
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
    /// Draws from `store` in advance, of `max_entries` counters at a time.
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

    /// Gives back everything that is held and draws nothing more from now on. Done when the store has
    /// answered, or after a few seconds.
    pub async fn return_all(&self) {
        self.0.return_all().await;
    }

    /// What became of units, and how many are held.
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

/// Whether units may be drawn in advance for a charge. What only watches and what is one budget of
/// several may be refused without the request being: it is for the store to say.
fn is_leased(charge: &Charge<'_>) -> bool {
    charge.role == Role::Enforce
        && charge.options.counting == Counting::Leased
        && charge.limit.lease_ttl().is_some()
}

impl<S: Lender + 'static, R: Runtime> LeasingStoreInner<S, R> {
    /// The place of a counter under a limit. One counter under two limits, as two priorities have it,
    /// has two.
    fn entry_index(&self, charge: &Charge<'_>) -> usize {
        let counter = charge.counter();
        let limit = u64::from(charge.limit.tag()) ^ charge.limit.capacity().rotate_left(32);
        let bits = (counter ^ (counter >> 64)) as u64 ^ mix(limit);
        (bits % self.entries.len() as u64) as usize
    }

    /// Decides what can be decided by what is held. All leased charges of a set are, or none.
    fn decide<'a>(
        self: &Arc<Self>,
        set: &ChargeSet<'a>,
        attempt: LeaseAttempt,
    ) -> LeaseDecision<'a, S, R> {
        if !set.charges.iter().any(is_leased) {
            return LeaseDecision::Remote;
        }
        // What is taken for the only charge of a set never goes back.
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

    /// Whether a set may wait for more units: not if the store must be asked about it anyway, nor if it takes
    /// so long that there might be no time left to ask it then.
    fn can_wait(&self, set: &ChargeSet<'_>, refill: &Refill) -> bool {
        set.charges.iter().all(is_leased) && refill.is_quick(self.store.budget_of(set))
    }

    /// One request of a counter: takes units if nothing is missing so far, and sees to it that there are
    /// more for the next.
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

    /// The request did not pass.
    fn return_taken(self: &Arc<Self>, taken_leases: TakenLeases) {
        for (index, taken) in taken_leases {
            let lapsed = self.entries[index].lock().return_taken(taken);
            self.record_lapsed(lapsed);
            self.schedule_reclaim(index);
        }
    }

    /// The store has decided the rest of a request: what was taken for it is used, or goes back.
    fn finish_partial(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        partial: PartialDecision<'_, S, R>,
        rest: Outcome,
    ) -> Outcome {
        let PartialDecision {
            split,
            taken_leases: takings,
            in_flight: _until_they_are_back,
        } = partial;
        if rest.admitted {
            return split.merge(outcome(&takings, |_, taken| taken.reading), rest);
        }
        let leased: SmallVec<[&Charge<'_>; 2]> =
            set.charges.iter().filter(|c| is_leased(c)).collect();
        let local = outcome(&takings, |i, taken| taken.reading_if_returned(leased[i]));
        self.return_taken(takings);
        split.merge(local, rest)
    }

    /// Asks for more units, beside the requests.
    fn spawn_draw(self: &Arc<Self>, index: usize, request: DrawRequest) {
        let in_flight = LeaseInFlight::begin(self);
        if self.drained.load(Ordering::SeqCst) {
            return; // and is not asked again: nobody draws any more
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
        let lapsed = self.entries[index]
            .lock()
            .complete_draw(&request, drawn, sent, now);
        drop(request); // who waits may go on
        if units > 0 {
            self.counters.leases_drawn.fetch_add(1, Ordering::Relaxed);
            self.counters
                .units_drawn
                .fetch_add(units, Ordering::Relaxed);
            self.record_lapsed(lapsed);
            self.schedule_reclaim(index);
        }
    }

    fn record_lapsed(&self, units: u64) {
        self.counters
            .units_lapsed
            .fetch_add(units, Ordering::Relaxed);
    }
}

/// Refuses a set of one unit that the store would refuse: it has said a moment ago that nothing is left.
/// Of other sets more must be told than is known here, and of more units a longer wait.
fn deny(set: &ChargeSet<'_>, (at, reading): (Nanos, LimitReading)) -> Option<Outcome> {
    let alone = set.charges.len() == 1 && set.charges[0].cost == Cost::ONE;
    alone.then(|| Outcome {
        admitted: false,
        readings: smallvec![reading],
        snapshots: Vec::new(),
        at,
        source: Source::DenyCache,
        clock_stepped: false,
    })
}

/// What is told of the charges that are decided here.
fn outcome(
    taken_leases: &TakenLeases,
    reading: impl Fn(usize, &TakenUnits) -> LimitReading,
) -> Outcome {
    let charged = taken_leases.iter().map(|(_, taken)| taken.at());
    let each = taken_leases.iter().enumerate();
    Outcome {
        admitted: true,
        readings: each.map(|(i, (_, taken))| reading(i, taken)).collect(),
        snapshots: Vec::new(),
        at: charged.min().unwrap_or(Nanos::ZERO),
        source: Source::Lease,
        clock_stepped: false,
    }
}
