//! Units charged before they are used: a hot key costs a round trip for many requests, and admits not
//! one too many.
//!
//! A node that is asked often enough for a counter draws some of it in advance (`place`, `tenant`, `pace`) and
//! decides by that until it is used up, at most for the life that the limit gives to a lease. The next
//! ones are asked for when half is used, beside the requests; whoever finds nothing meanwhile waits for
//! them a little (`refill`). What is left at the end, or when nobody asks any more, is given back once
//! (`keeper`). Everything that is not held here is decided by the store behind. When it has said that
//! nothing is left, that stands for as long as a deny cache would hold a refusal.
//!
//! Kept true: every unit admitted here was charged before, and not longer ago than a lease lives. Lost
//! answers and lost refunds leave units charged that nobody used, never the other way round. It knows
//! neither rules nor which store it is; of stores that fail it knows what [`Lender`] tells.
//!
//! Cancel-safety: a request that is dropped while the rest of it is decided has used its units; one that is
//! dropped while it waits for more has taken none.

mod deadlines;
mod keeper;
mod newcomer;
mod pace;
mod place;
mod port;
mod refill;
mod tenant;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use tidegate_core::store::{
    Charge, ChargeSet, Counting, Life, Outcome, Reading, Role, Source, Store, StoreError,
};
use tidegate_core::units::{Cost, Nanos};

use self::keeper::Tended;
use self::place::{Ask, Place, Short, Taken, Visit};
use self::refill::Refill;
use super::split::Split;
use crate::runtime::{Runtime, mix};

/// A store that units can be drawn from in advance.
pub trait Lender: Store {
    /// The life of the store that keeps the counter of `charge`; nothing while it cannot be believed. A
    /// store that does not tell has one life, whichever. Units drawn in one life are not given back to
    /// another: it may have lost their charge.
    fn life_of(&self, charge: &Charge<'_>) -> Option<Life>;

    /// How long a decision on `set` may take.
    fn budget_of(&self, set: &ChargeSet<'_>) -> Nanos;

    /// Charges `set`, for which there is time only until `until`, by the local clock: some of its budget
    /// has gone already.
    fn charge_by(
        &self,
        until: Nanos,
        set: &ChargeSet<'_>,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;
}

/// Draws from a store in advance. Clones are the same.
pub struct Lease<S, R>(Arc<Inner<S, R>>);

struct Inner<S, R> {
    store: S,
    runtime: R,
    places: Box<[Mutex<Place>]>,
    tended: Mutex<Tended>,
    /// Questions for more units, refunds, and requests that may yet put units back.
    under_way: AtomicUsize,
    /// Whether nothing is drawn or used any more. Read by who is under way already, so that who sets it
    /// and then finds nothing under way has missed nothing.
    drained: AtomicBool,
    tally: Tally,
}

/// What has become of units so far.
#[derive(Default)]
struct Tally {
    grants: AtomicU64,
    granted: AtomicU64,
    returned: AtomicU64,
    lapsed: AtomicU64,
}

/// What leases say of themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseFacts {
    /// How often units were drawn in advance.
    pub grants: u64,
    /// How many units.
    pub granted: u64,
    /// Units given back unused.
    pub returned: u64,
    /// Units that were neither used nor given back.
    pub lapsed: u64,
    /// Units held now.
    pub held: u64,
}

/// Something that giving everything back waits for, until this is dropped.
struct UnderWay<S, R>(Arc<Inner<S, R>>);

impl<S, R> UnderWay<S, R> {
    fn begin(inner: &Arc<Inner<S, R>>) -> Self {
        inner.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(Arc::clone(inner))
    }
}

impl<S, R> Drop for UnderWay<S, R> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Units taken for the charges of one set that are decided here, in order, and from which places.
type Takings = SmallVec<[(usize, Taken); 2]>;

/// How far a set is decided by what is held here.
enum Decided<'a, S, R> {
    /// Not at all: it goes to the store as it is.
    Nowhere,
    /// Not now: of all that is missing more is under way, of this first.
    Soon(Arc<Refill>),
    /// As far as it can be; the rest goes to the store.
    Partly(Box<Part<'a, S, R>>),
    /// Entirely.
    Here(Outcome),
}

/// What of a set cannot be taken.
enum Missing {
    Nothing,
    /// Something, and of all of it more is under way.
    Soon(Arc<Refill>),
    /// Something that only the store can tell about.
    Something,
}

impl Missing {
    /// One more thing is missing, of which there is a refill under way or not.
    fn and(self, refill: Option<Arc<Refill>>) -> Self {
        match (self, refill) {
            (Missing::Nothing, Some(refill)) => Missing::Soon(refill),
            (Missing::Soon(first), Some(_)) => Missing::Soon(first),
            _ => Missing::Something,
        }
    }
}

/// A set that is decided here in part: what was taken for that goes back if the rest is refused.
struct Part<'a, S, R> {
    split: Split<'a>,
    takings: Takings,
    under_way: UnderWay<S, R>,
}

impl<S, R> Clone for Lease<S, R> {
    fn clone(&self) -> Self {
        Lease(Arc::clone(&self.0))
    }
}

impl<S: Lender + 'static, R: Runtime> Lease<S, R> {
    /// Draws from `store` in advance, of `most` counters at a time.
    pub fn new(store: S, runtime: R, most: usize) -> Self {
        Lease(Arc::new(Inner {
            store,
            runtime,
            places: (0..most.max(1)).map(|_| Mutex::default()).collect(),
            tended: Mutex::default(),
            under_way: AtomicUsize::new(0),
            drained: AtomicBool::new(false),
            tally: Tally::default(),
        }))
    }

    /// The store behind it.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Gives back everything that is held and draws nothing more from now on. Done when the store has
    /// answered, or after a few seconds.
    pub async fn give_back_all(&self) {
        self.0.give_back_all().await;
    }

    /// What became of units, and how many are held.
    pub fn facts(&self) -> LeaseFacts {
        let tally = &self.0.tally;
        LeaseFacts {
            grants: tally.grants.load(Ordering::Relaxed),
            granted: tally.granted.load(Ordering::Relaxed),
            returned: tally.returned.load(Ordering::Relaxed),
            lapsed: tally.lapsed.load(Ordering::Relaxed),
            held: self.0.held(),
        }
    }
}

/// Whether units may be drawn in advance for a charge. What only watches and what is one budget of
/// several may be refused without the request being: it is for the store to say.
fn is_leased(charge: &Charge<'_>) -> bool {
    charge.role == Role::Enforce
        && charge.terms.counting == Counting::Leased
        && charge.limit.lease().is_some()
}

impl<S: Lender + 'static, R: Runtime> Inner<S, R> {
    /// The place of a counter under a limit. One counter under two limits, as two priorities have it,
    /// has two.
    fn place(&self, charge: &Charge<'_>) -> usize {
        let counter = charge.counter();
        let limit = u64::from(charge.limit.tag()) ^ charge.limit.capacity().rotate_left(32);
        let bits = (counter ^ (counter >> 64)) as u64 ^ mix(limit);
        (bits % self.places.len() as u64) as usize
    }

    /// Decides what can be decided by what is held. All leased charges of a set are, or none.
    fn decide<'a>(self: &Arc<Self>, set: &ChargeSet<'a>, visit: Visit) -> Decided<'a, S, R> {
        if !set.charges.iter().any(is_leased) {
            return Decided::Nowhere;
        }
        // What is taken for the only charge of a set never goes back.
        let under_way = (set.charges.len() > 1).then(|| UnderWay::begin(self));
        if self.drained.load(Ordering::SeqCst) {
            return Decided::Nowhere;
        }
        let now = self.runtime.now();
        let (mut takings, mut missing) = (Takings::new(), Missing::Nothing);
        let mut refusal = None;
        for charge in set.charges.iter().filter(|charge| is_leased(charge)) {
            let place = self.place(charge);
            match self.visit(place, charge, visit, &missing, now) {
                Ok(taken) => takings.extend(taken.map(|taken| (place, taken))),
                Err(short) => {
                    missing = missing.and(short.refill);
                    refusal = short.refusal;
                }
            }
        }
        if !matches!(missing, Missing::Nothing) {
            self.put_back(takings);
            return match (refusal.and_then(|said| refuse(set, said)), missing) {
                (Some(refusal), _) => Decided::Here(refusal),
                (None, Missing::Soon(refill)) if self.can_wait(set, &refill) => {
                    Decided::Soon(refill)
                }
                (None, _) => Decided::Nowhere,
            };
        }
        match under_way.filter(|_| takings.len() < set.charges.len()) {
            None => Decided::Here(outcome(&takings, |_, taken| taken.reading)),
            Some(under_way) => Decided::Partly(Box::new(Part {
                split: Split::of(set, is_leased),
                takings,
                under_way,
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
    fn visit(
        self: &Arc<Self>,
        at: usize,
        charge: &Charge<'_>,
        visit: Visit,
        missing: &Missing,
        now: Nanos,
    ) -> Result<Option<Taken>, Short> {
        let (visited, ask) = {
            let mut place = self.places[at].lock();
            if !place.arrive(charge, visit, now) {
                return Err(Short::default());
            }
            let taken = match missing {
                Missing::Nothing => place.take(charge.cost, now).map(Some),
                _ => (place.ready(charge, now) >= charge.cost.get()).then_some(None),
            };
            let ask = place.ask(charge, now);
            (taken.ok_or_else(|| place.short(charge, now)), ask)
        };
        if let Some(ask) = ask {
            self.draw_soon(at, ask);
        }
        visited
    }

    /// The request did not pass.
    fn put_back(self: &Arc<Self>, takings: Takings) {
        for (at, taken) in takings {
            let lapsed = self.places[at].lock().put_back(taken);
            self.lapsed(lapsed);
            self.tend(at);
        }
    }

    /// The store has decided the rest of a request: what was taken for it is used, or goes back.
    fn settle(
        self: &Arc<Self>,
        set: &ChargeSet<'_>,
        part: Part<'_, S, R>,
        rest: Outcome,
    ) -> Outcome {
        let Part {
            split,
            takings,
            under_way: _until_they_are_back,
        } = part;
        if rest.admitted {
            return split.merge(outcome(&takings, |_, taken| taken.reading), rest);
        }
        let leased: SmallVec<[&Charge<'_>; 2]> =
            set.charges.iter().filter(|c| is_leased(c)).collect();
        let here = outcome(&takings, |i, taken| taken.untouched(leased[i]));
        self.put_back(takings);
        split.merge(here, rest)
    }

    /// Asks for more units, beside the requests.
    fn draw_soon(self: &Arc<Self>, at: usize, ask: Ask) {
        let under_way = UnderWay::begin(self);
        if self.drained.load(Ordering::SeqCst) {
            return; // and is not asked again: nobody draws any more
        }
        self.runtime.spawn(async move {
            under_way.0.draw(at, ask).await;
        });
    }

    async fn draw(self: &Arc<Self>, at: usize, ask: Ask) {
        let charge = ask.charge.owing(ask.refill.units);
        let sent = self.runtime.now();
        let granted = match self.store.life_of(&charge) {
            Some(life) => {
                let granted = self.store.grant(&charge).await;
                granted.ok().map(|granted| (granted, life))
            }
            None => None,
        };
        let units = granted.as_ref().map_or(0, |(granted, _)| granted.units);
        let now = self.runtime.now();
        let lapsed = self.places[at].lock().answered(&ask, granted, sent, now);
        drop(ask); // who waits may go on
        if units > 0 {
            self.tally.grants.fetch_add(1, Ordering::Relaxed);
            self.tally.granted.fetch_add(units, Ordering::Relaxed);
            self.lapsed(lapsed);
            self.tend(at);
        }
    }

    fn lapsed(&self, units: u64) {
        self.tally.lapsed.fetch_add(units, Ordering::Relaxed);
    }
}

/// Refuses a set of one unit that the store would refuse: it has said a moment ago that nothing is left.
/// Of other sets more must be told than is known here, and of more units a longer wait.
fn refuse(set: &ChargeSet<'_>, (at, reading): (Nanos, Reading)) -> Option<Outcome> {
    let alone = set.charges.len() == 1 && set.charges[0].cost == Cost::ONE;
    alone.then(|| Outcome {
        admitted: false,
        readings: smallvec![reading],
        seen: Vec::new(),
        at,
        source: Source::DenyCache,
        clock_stepped: false,
    })
}

/// What is told of the charges that are decided here.
fn outcome(takings: &Takings, reading: impl Fn(usize, &Taken) -> Reading) -> Outcome {
    let charged = takings.iter().map(|(_, taken)| taken.at());
    let each = takings.iter().enumerate();
    Outcome {
        admitted: true,
        readings: each.map(|(i, (_, taken))| reading(i, taken)).collect(),
        seen: Vec::new(),
        at: charged.min().unwrap_or(Nanos::ZERO),
        source: Source::Lease,
        clock_stepped: false,
    }
}
