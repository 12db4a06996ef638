//! Refusals remembered until they can change: a flood of refused requests stays away from the store.
//!
//! It only refuses what the store refused, or more of it, and no longer than the store said: with no
//! refund in between the store would have refused too. An entry ends when its wait is over, when a
//! refund of its counter passes by, and when the limit is no longer the same. Only what the one true
//! counter refused is remembered, or a count of it that is synchronised. Bounded: a place for every so
//! many counters, taken by the latest.
//!
//! Where a rule counts in advance or leniently, a short wait is made a little longer: see [`hold`].

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::algorithms::{Algorithm, Figures, Limit, Retry, Verdict};
use tidegate_core::pass_on;
use tidegate_core::store::{
    Charge, ChargeSet, Counting, Outcome, Reading, Refund, Refunded, Reserve, Role, Settle,
    Settled, Source, Store, StoreError,
};
use tidegate_core::units::{Cost, Nanos};

use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

/// The longest a refusal is remembered where nodes decide ahead: what is held elsewhere may come back at
/// any moment, and a word by which others are refused is no older than this.
const AHEAD: Nanos = Nanos::from_millis(50);

/// Longer would be noticed by those who wait.
pub(super) const LONGEST_HOLD: Nanos = Nanos::from_millis(20);

/// Remembers what a store refused.
pub struct DenyCache<S, R> {
    store: S,
    runtime: R,
    places: Box<[Mutex<Option<Denial>>]>,
    at_most: Nanos,
    unsettled: Option<Unsettled>,
}

/// Whether a late reply may still change what can be admitted of a counter.
pub(super) type Unsettled = Arc<dyn Fn(u128) -> bool + Send + Sync>;

struct Denial {
    counter: u128,
    /// The limit as it was, with the longest delay the caller would take.
    limit: Limit,
    /// The least that was refused.
    cost: Cost,
    /// When it was asked, by the local clock, and by the store's.
    sent: Nanos,
    at: Nanos,
    until: Nanos,
    /// What every limit of that request said, by counter and limit.
    said: SmallVec<[(u128, Said, Reading); 2]>,
}

/// Under which limit something was said, and up to how much of it: its tag and capacity.
type Said = (u32, u64);

fn said_under(limit: &Limit) -> Said {
    (limit.tag(), limit.capacity())
}

impl<S: Store, R: Runtime> DenyCache<S, R> {
    /// Remembers `most` refusals of `store`, each for `at_most` at most.
    pub fn new(store: S, runtime: R, most: usize, at_most: Nanos) -> Self {
        DenyCache {
            store,
            runtime,
            places: (0..most.max(1)).map(|_| Mutex::default()).collect(),
            at_most,
            unsettled: None,
        }
    }

    /// Denials of a counter that is `unsettled` are neither remembered nor repeated.
    pub(super) fn unless(mut self, unsettled: Unsettled) -> Self {
        self.unsettled = Some(unsettled);
        self
    }

    fn is_unsettled(&self, counter: u128) -> bool {
        let unsettled = self.unsettled.as_ref();
        unsettled.is_some_and(|unsettled| unsettled(counter))
    }

    /// The store behind it.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn place(&self, counter: u128) -> &Mutex<Option<Denial>> {
        let at = (counter ^ (counter >> 64)) as u64 % self.places.len() as u64;
        &self.places[at as usize]
    }

    /// A refusal that still stands, if one is known and all the request asks about is known with it.
    fn known(&self, set: &ChargeSet<'_>, now: Nanos) -> Option<Outcome> {
        let enforced = set.charges.iter().filter(|c| c.role == Role::Enforce);
        enforced.into_iter().find_map(|charge| {
            let place = self.place(charge.counter()).lock();
            let denial = place.as_ref()?;
            let stands = denial.counter == charge.counter()
                && now < denial.until
                && charge.cost >= denial.cost
                && *charge.limit == denial.limit;
            if !stands || self.is_unsettled(charge.counter()) {
                return None;
            }
            denial.again(set, now.since(denial.sent))
        })
    }

    fn remember(&self, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos) {
        let known = matches!(outcome.source, Source::Exact | Source::Lenient);
        if outcome.admitted || !known {
            return;
        }
        let said = || {
            let each = set.charges.iter().zip(&outcome.readings);
            each.map(|(charge, reading)| {
                let told = held(*reading, hold_of(charge));
                (charge.counter(), said_under(&charge.limit), told)
            })
        };
        for (charge, reading) in set.charges.iter().zip(&outcome.readings) {
            let Verdict::Deny {
                retry: Retry::After(wait),
            } = reading.verdict
            else {
                continue;
            };
            // Named twice in one set, a counter refuses the sum, not the cost.
            let named = set
                .charges
                .iter()
                .filter(|c| c.counter() == charge.counter());
            let several = named.count() > 1;
            if charge.role != Role::Enforce || several || self.is_unsettled(charge.counter()) {
                continue;
            }
            let denial = Denial {
                counter: charge.counter(),
                limit: charge.limit.as_ref().clone(),
                cost: charge.cost,
                sent,
                at: outcome.at,
                until: sent.plus(wait.min(self.at_most(charge)).max(hold_of(charge))),
                said: said().collect(),
            };
            *self.place(charge.counter()).lock() = Some(denial);
        }
    }

    /// The longest a refusal is remembered.
    fn at_most(&self, charge: &Charge<'_>) -> Nanos {
        match charge.terms.counting {
            Counting::Exact => self.at_most,
            Counting::Leased | Counting::Lenient => self.at_most.min(AHEAD),
        }
    }

    fn forget(&self, set: &ChargeSet<'_>) {
        for charge in &set.charges {
            let mut place = self.place(charge.counter()).lock();
            if place
                .as_ref()
                .is_some_and(|d| d.counter == charge.counter())
            {
                *place = None;
            }
        }
    }
}

/// The least time for which a refusal stands. At a high rate the next unit is there within a
/// millisecond, and under overload every node would ask for it with every request: what flows in
/// meanwhile is not lost, it waits in the bucket, as long as it is little of what that holds. Exact
/// counting promises the shortest wait there is, so it has none of this; and what a window gives back
/// comes all at once at an edge, for which nobody asks bit by bit.
pub(super) fn hold(limit: &Limit) -> Nanos {
    let quarter = Nanos::new(limit.full_window().get() / 4);
    match limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindowStrict => Nanos::ZERO,
        _ => quarter.min(LONGEST_HOLD),
    }
}

fn hold_of(charge: &Charge<'_>) -> Nanos {
    match charge.terms.counting {
        Counting::Exact => Nanos::ZERO,
        Counting::Leased | Counting::Lenient => hold(&charge.limit),
    }
}

/// What is told of a refusal that stands for `hold` at least.
fn held(mut reading: Reading, hold: Nanos) -> Reading {
    if let Verdict::Deny {
        retry: Retry::After(wait),
    } = &mut reading.verdict
    {
        *wait = (*wait).max(hold);
        let more_after = &mut reading.figures.more_after;
        *more_after = (*more_after).max(hold);
    }
    reading
}

impl Denial {
    /// The same answer, `passed` later.
    fn again(&self, set: &ChargeSet<'_>, passed: Nanos) -> Option<Outcome> {
        let readings = set.charges.iter().map(|charge| {
            let mut said = self.said.iter();
            let found = said.find(|(counter, under, _)| {
                *counter == charge.counter() && *under == said_under(&charge.limit)
            });
            found.map(|(_, _, reading)| later(*reading, passed))
        });
        Some(Outcome {
            admitted: false,
            readings: readings.collect::<Option<_>>()?,
            seen: Vec::new(),
            at: self.at.plus(passed),
            source: Source::DenyCache,
            clock_stepped: false,
        })
    }
}

fn later(reading: Reading, passed: Nanos) -> Reading {
    let verdict = match reading.verdict {
        Verdict::Deny {
            retry: Retry::After(wait),
        } => Verdict::Deny {
            retry: Retry::After(wait.since(passed)),
        },
        same => same,
    };
    Reading {
        verdict,
        figures: Figures {
            remaining: reading.figures.remaining,
            reset_after: reading.figures.reset_after.since(passed),
            more_after: reading.figures.more_after.since(passed),
        },
    }
}

impl<S: Store, R: Runtime> Store for DenyCache<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let sent = self.runtime.now();
        if let Some(known) = self.known(set, sent) {
            return Ok(known);
        }
        let outcome = self.store.charge(set).await?;
        self.remember(set, &outcome, sent);
        Ok(outcome)
    }

    /// What is not known is asked about together.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let sent = self.runtime.now();
        let mut outcomes: Vec<Option<Answer<Outcome>>> = Vec::with_capacity(sets.len());
        outcomes.extend(sets.iter().map(|set| self.known(set, sent).map(Ok)));
        let unknown = |i: &usize| outcomes[*i].is_none();
        let unknown: Vec<usize> = (0..sets.len()).filter(unknown).collect();
        let asked: Vec<&ChargeSet<'_>> = unknown.iter().map(|i| sets[*i]).collect();
        let answers = match asked.is_empty() {
            true => Vec::new(),
            false => self.store.charge_each(&asked).await,
        };
        for (i, answer) in unknown.into_iter().zip(answers) {
            if let Ok(outcome) = &answer {
                self.remember(sets[i], outcome, sent);
            }
            outcomes[i] = Some(answer);
        }
        outcomes.into_iter().flatten().collect()
    }

    pass_on!(self => self.store; peek, grant, force, seed, hold, renew, release, inspect);

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        let refunded = self.store.refund(refund).await;
        self.forget(&refund.set);
        refunded
    }

    /// A refusal that is known stands for an estimate too. One that passed has perhaps brought others
    /// back: what was refused of the same counters is asked about again.
    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        let sent = self.runtime.now();
        if let Some(known) = self.known(&reserve.set, sent) {
            return Ok(known);
        }
        let outcome = self.store.reserve(reserve).await?;
        self.forget(&reserve.set);
        self.remember(&reserve.set, &outcome, sent);
        Ok(outcome)
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        let settled = self.store.settle(settle).await;
        self.forget(&settle.set);
        settled
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        let forgotten = self.store.reset(set).await;
        self.forget(set);
        forgotten
    }
}
