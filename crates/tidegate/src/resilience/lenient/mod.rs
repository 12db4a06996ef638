//! Counting by hearsay: a node admits by what it last heard of a counter, and tells the store what it
//! admitted a moment later.
//!
//! For rules that would rather exceed their limit a little than wait for a store, or that many nodes ask
//! about all the time. Every [`PAUSE`] what was admitted is charged as it is, fitting or not, and the
//! answer says what the others have admitted. A request decides by a word no older than [`FRESH`]; without
//! one it asks the store, as exact counting does. So what one node admits is known to all within 100 ms.
//!
//! What is not told within FRESH ends it too, until it is. `view` is what is known of one counter, `telling`
//! what goes to the store and back.
//!
//! Bound: beyond the limit pass at most `(N - 1) * min(what was left, what the busiest node admits in
//! UNKNOWN)`; [`Lenient::overshoot`] tells how that stands. A store that does not answer ends a view, and the
//! store behind decides. What was admitted and not told is lost only with the node.

mod telling;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::pass_on;
use tidegate_core::store::{
    Charge, ChargeSet, Counting, Life, Outcome, Reading, Role, Source, Store, StoreError,
};
use tidegate_core::units::Nanos;

use self::view::View;
use super::counters::Counters;
use super::lease::Lender;
use super::split::Split;
use crate::runtime::Runtime;

type Answer<T> = Result<T, StoreError>;

/// How often the store is told and asked.
const PAUSE: Nanos = Nanos::from_millis(45);
/// How old a word may be that decides: a pause and the time a store has to answer.
const FRESH: Nanos = Nanos::from_millis(50);
/// How long a request may be unknown to another node: until it is told, and until that node asks.
const UNKNOWN: Nanos = Nanos::from_millis(100);
/// How long the answer to what was admitted is waited for: no decision waits for it, and what is taken for
/// lost would be charged once more.
const TELLING: Nanos = Nanos::from_secs(1);

/// By how many units a limit may be exceeded, as of a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overshoot {
    /// Whatever happens: every other node admits all that is left before it hears of the others.
    pub most: u64,
    /// If no node gets busier than the busiest was between the last two words.
    pub at_this_pace: u64,
}

/// Says how many nodes share the store.
pub type Nodes = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Counts rules that say `lenient` by what was last heard. Clones are the same.
pub struct Lenient<S, R>(Arc<Inner<S, R>>);

impl<S, R> Clone for Lenient<S, R> {
    fn clone(&self) -> Self {
        Lenient(Arc::clone(&self.0))
    }
}

struct Inner<S, R> {
    store: S,
    runtime: R,
    views: Counters<View>,
    nodes: Nodes,
    /// Whether the keeper is awake.
    kept: AtomicBool,
    /// Set when nothing is to be counted here any more.
    closed: AtomicBool,
    /// Counters that the store is being told of.
    telling: AtomicUsize,
    /// By how much each rule may be exceeded, as of the last round.
    overshoot: Mutex<BTreeMap<Box<str>, Overshoot>>,
}

/// What is known here of a set.
enum Known {
    /// Not all of it: the store must be asked.
    No,
    /// Every lenient charge fits and has been counted.
    Taken(Here),
    /// One of them does not fit; nothing has been counted.
    Refused(Here),
}

/// What the lenient charges of a set said, in order, each with the time it was decided by.
type Here = SmallVec<[(Reading, Nanos); 4]>;

fn is_lenient(charge: &Charge<'_>) -> bool {
    charge.terms.counting == Counting::Lenient && charge.role == Role::Enforce
}

fn lenient<'s, 'c>(set: &'s ChargeSet<'c>) -> impl Iterator<Item = &'s Charge<'c>> {
    set.charges.iter().filter(|charge| is_lenient(charge))
}

impl<S: Store + 'static, R: Runtime> Lenient<S, R> {
    /// Counts for `store`, views of about `most` counters at a time.
    pub fn new(store: S, runtime: R, most: usize, nodes: Nodes) -> Self {
        Lenient(Arc::new(Inner {
            store,
            runtime,
            views: Counters::new(most),
            nodes,
            kept: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            telling: AtomicUsize::new(0),
            overshoot: Mutex::default(),
        }))
    }

    /// The store behind it.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// By how many units each rule that was lately asked about may be exceeded: the counter of it that may be
    /// exceeded most.
    pub fn overshoot(&self) -> BTreeMap<Box<str>, Overshoot> {
        self.0.overshoot.lock().clone()
    }

    /// Tells the store all that was admitted here, and counts nothing here from then on. Done when the
    /// store has answered, also to what it was being told already, or after a few seconds.
    pub async fn flush(&self) {
        self.0.flush().await;
    }

    fn known(&self, set: &ChargeSet<'_>) -> Known {
        let inner = &self.0;
        let now = inner.runtime.now();
        if inner.closed.load(Ordering::Acquire) {
            return Known::No;
        }
        let (mut here, mut refused) = (Here::new(), false);
        for charge in lenient(set) {
            let mut part = inner.views.part(charge.counter());
            let view = part.get_mut(&charge.counter());
            let Some(view) = view.filter(|view| view.serves(&charge.limit, now)) else {
                drop(part);
                if !refused {
                    self.put_back(set, &here);
                }
                return Known::No;
            };
            // Once one has refused, the others are only looked at.
            let said = match refused {
                true => view.look(charge, now),
                false => view.take(charge, now),
            };
            drop(part);
            if !refused && !said.0.verdict.allows() {
                refused = true;
                self.put_back(set, &here);
            }
            here.push(said);
        }
        match refused {
            true => Known::Refused(here),
            false => Known::Taken(here),
        }
    }

    /// Takes back the charges of a set that were counted, as far as `here` tells of them.
    fn put_back(&self, set: &ChargeSet<'_>, here: &Here) {
        let now = self.0.runtime.now();
        for (charge, (_, time)) in lenient(set).zip(here) {
            let mut part = self.0.views.part(charge.counter());
            if let Some(view) = part.get_mut(&charge.counter()) {
                view.put_back(charge, *time, now);
            }
        }
    }

    /// Remembers what the store said of the lenient charges of a set.
    fn note(&self, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos) {
        let inner = &self.0;
        let told = outcome.seen.len() == set.charges.len() && outcome.source == Source::Exact;
        if !told || inner.closed.load(Ordering::Acquire) {
            return;
        }
        let (heard, at, mut new) = (inner.runtime.now(), outcome.at, false);
        for (charge, seen) in set.charges.iter().zip(&outcome.seen) {
            if !is_lenient(charge) {
                continue;
            }
            let mut part = inner.views.part(charge.counter());
            let room = inner.views.has_room(&part);
            match part.get_mut(&charge.counter()) {
                Some(view) if view.is_under(&charge.limit) => view.hear(seen, sent, heard, at),
                Some(_) => {} // under another limit, until what it holds has been told
                None if room => {
                    let view = View::new(charge, seen, sent, heard, at);
                    part.insert(charge.counter(), view);
                    new = true;
                }
                None => {}
            }
        }
        if new {
            Inner::keep(inner);
        }
    }

    /// Decides a set that has something lenient about it.
    ///
    /// Dropped while the store decides the rest of the set, it leaves the lenient units counted here. They
    /// are synced like admitted ones, which denies too much rather than too little.
    async fn decide(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let store = &self.0.store;
        let here = match self.known(set) {
            Known::No => {
                let sent = self.0.runtime.now();
                let outcome = store.charge(set).await?;
                self.note(set, &outcome, sent);
                return Ok(outcome);
            }
            Known::Refused(here) => outcome(&here),
            Known::Taken(here) => {
                let split = Split::of(set, is_lenient);
                let Some(rest) = split.rest() else {
                    return Ok(outcome(&here));
                };
                let answer = store.charge(rest).await;
                if !answer.as_ref().is_ok_and(|outcome| outcome.admitted) {
                    self.put_back(set, &here);
                }
                return Ok(split.merge(outcome(&here), answer?));
            }
        };
        let split = Split::of(set, is_lenient);
        match split.rest() {
            Some(rest) => Ok(split.merge(here, store.peek(rest).await?)),
            None => Ok(here),
        }
    }
}

/// What was decided here, as one outcome.
fn outcome(here: &Here) -> Outcome {
    let times = here.iter().map(|(_, time)| *time);
    Outcome {
        admitted: here.iter().all(|(reading, _)| reading.verdict.allows()),
        readings: here.iter().map(|(reading, _)| *reading).collect(),
        seen: Vec::new(),
        at: times.min().unwrap_or(Nanos::MAX),
        source: Source::Lenient,
        clock_stepped: false,
    }
}

impl<S: Lender + 'static, R: Runtime> Lender for Lenient<S, R> {
    fn life_of(&self, charge: &Charge<'_>) -> Option<Life> {
        self.0.store.life_of(charge)
    }

    fn budget_of(&self, set: &ChargeSet<'_>) -> Nanos {
        self.0.store.budget_of(set)
    }

    async fn charge_by(&self, until: Nanos, set: &ChargeSet<'_>) -> Answer<Outcome> {
        match lenient(set).next().is_some() {
            true => self.decide(set).await,
            false => self.0.store.charge_by(until, set).await,
        }
    }
}

impl<S: Store + 'static, R: Runtime> Store for Lenient<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        match lenient(set).next().is_some() {
            true => self.decide(set).await,
            false => self.0.store.charge(set).await,
        }
    }

    /// Those that have nothing lenient about them are asked about together.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        let any = |set: &&ChargeSet<'_>| lenient(set).next().is_some();
        let plain: Vec<&ChargeSet<'_>> = sets.iter().copied().filter(|s| !any(s)).collect();
        let mut plain = match plain.is_empty() {
            true => Vec::new(),
            false => self.0.store.charge_each(&plain).await,
        }
        .into_iter();
        let mut answers = Vec::with_capacity(sets.len());
        for set in sets {
            match any(set) {
                true => answers.push(self.decide(set).await),
                false => answers.extend(plain.next()),
            }
        }
        answers
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        let now = self.0.runtime.now();
        let looks = set.charges.iter().map(|charge| {
            let part = self.0.views.part(charge.counter());
            let view = part.get(&charge.counter()).filter(|_| is_lenient(charge));
            let view = view.filter(|view| view.serves(&charge.limit, now))?;
            Some(view.look(charge, now))
        });
        match looks.collect::<Option<Here>>() {
            Some(here) if !here.is_empty() => Ok(outcome(&here)),
            _ => self.0.store.peek(set).await,
        }
    }

    pass_on!(self => self.0.store; refund, grant, force, reserve, settle, seed, hold, renew, release, inspect);

    /// What was admitted here and not told is forgotten with it.
    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        for charge in &set.charges {
            self.0
                .views
                .part(charge.counter())
                .remove(&charge.counter());
        }
        self.0.store.reset(set).await
    }
}
