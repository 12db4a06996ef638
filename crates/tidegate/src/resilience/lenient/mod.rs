//! Counting by hearsay: a node admits by what it last heard of a counter, and tells the store what it
//! admitted a moment later.
//!
//! For rules that would rather exceed their limit a little than wait for a store, or that many nodes ask
//! about all the time. Every [`SYNC_INTERVAL`] what was admitted is charged as it is, fitting or not, and the
//! answer says what the others have admitted. A request decides by a word no older than [`MAX_STALENESS`]; without
//! one it asks the store, as exact counting does. So what one node admits is known to all within 100 ms.
//!
//! What is not told within FRESH ends it too, until it is. `view` is what is known of one counter, `sync`
//! what goes to the store and back.
//!
//! Bound: beyond the limit pass at most `(N - 1) * min(what was left, what the busiest node admits in
//! UNKNOWN)`; [`Lenient::overshoot`] tells how that stands. A store that does not answer ends a view, and the
//! store behind decides. What was admitted and not told is lost only with the node.

mod sync;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::delegate_store;
use tidegate_core::store::{
    Charge, ChargeSet, Counting, Epoch, LimitReading, Outcome, Role, Source, Store, StoreResult,
};
use tidegate_core::units::Nanos;

use self::view::LenientView;
use super::lease::Lender;
use super::split_set::SplitSet;
use super::striped_map::StripedMap;
use crate::runtime::Runtime;

/// How often the store is told and asked.
const SYNC_INTERVAL: Nanos = Nanos::from_millis(45);
/// How old a word may be that decides: a pause and the time a store has to answer.
const MAX_STALENESS: Nanos = Nanos::from_millis(50);
/// How long a request may be unknown to another node: until it is told, and until that node asks.
const MAX_PROPAGATION_DELAY: Nanos = Nanos::from_millis(100);
/// How long the answer to what was admitted is waited for: no decision waits for it, and what is taken for
/// lost would be charged once more.
const SYNC_TIMEOUT: Nanos = Nanos::from_secs(1);

/// By how many units a limit may be exceeded, as of a moment ago.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overshoot {
    /// Whatever happens: every other node admits all that is left before it hears of the others.
    pub worst_case: u64,
    /// If no node gets busier than the busiest was between the last two words.
    pub at_current_rate: u64,
}

/// Says how many nodes share the store.
pub type NodeCountFn = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Counts rules that say `lenient` by what was last heard. Clones are the same.
pub struct LenientStore<S, R>(Arc<LenientStoreInner<S, R>>);

impl<S, R> Clone for LenientStore<S, R> {
    fn clone(&self) -> Self {
        LenientStore(Arc::clone(&self.0))
    }
}

struct LenientStoreInner<S, R> {
    store: S,
    runtime: R,
    views: StripedMap<LenientView>,
    nodes: NodeCountFn,
    /// Whether the keeper is awake.
    sync_running: AtomicBool,
    /// Set when nothing is to be counted here any more.
    closed: AtomicBool,
    /// Counters that the store is being told of.
    syncs_in_flight: AtomicUsize,
    /// By how much each rule may be exceeded, as of the last round.
    overshoot: Mutex<BTreeMap<Box<str>, Overshoot>>,
}

/// What is known here of a set.
enum LenientDecision {
    /// Not all of it: the store must be asked.
    Unknown,
    /// Every lenient charge fits and has been counted.
    Admitted(LocalReadings),
    /// One of them does not fit; nothing has been counted.
    Denied(LocalReadings),
}

/// What the lenient charges of a set said, in order, each with the time it was decided by.
type LocalReadings = SmallVec<[(LimitReading, Nanos); 4]>;

fn is_lenient(charge: &Charge<'_>) -> bool {
    charge.options.counting == Counting::Lenient && charge.role == Role::Enforce
}

fn lenient_charges<'s, 'c>(set: &'s ChargeSet<'c>) -> impl Iterator<Item = &'s Charge<'c>> {
    set.charges.iter().filter(|charge| is_lenient(charge))
}

impl<S: Store + 'static, R: Runtime> LenientStore<S, R> {
    /// Counts for `store`, views of about `most` counters at a time.
    pub fn new(store: S, runtime: R, max_views: usize, nodes: NodeCountFn) -> Self {
        LenientStore(Arc::new(LenientStoreInner {
            store,
            runtime,
            views: StripedMap::new(max_views),
            nodes,
            sync_running: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            syncs_in_flight: AtomicUsize::new(0),
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

    fn decide_locally(&self, set: &ChargeSet<'_>) -> LenientDecision {
        let inner = &self.0;
        let now = inner.runtime.now();
        if inner.closed.load(Ordering::Acquire) {
            return LenientDecision::Unknown;
        }
        let (mut local, mut denied) = (LocalReadings::new(), false);
        for charge in lenient_charges(set) {
            let mut stripe = inner.views.stripe(charge.counter());
            let view = stripe.get_mut(&charge.counter());
            let Some(view) = view.filter(|view| view.is_fresh(&charge.limit, now)) else {
                drop(stripe);
                if !denied {
                    self.refund_local(set, &local);
                }
                return LenientDecision::Unknown;
            };
            // Once one has refused, the others are only looked at.
            let reading = match denied {
                true => view.peek(charge, now),
                false => view.try_charge(charge, now),
            };
            drop(stripe);
            if !denied && !reading.0.verdict.allows() {
                denied = true;
                self.refund_local(set, &local);
            }
            local.push(reading);
        }
        match denied {
            true => LenientDecision::Denied(local),
            false => LenientDecision::Admitted(local),
        }
    }

    /// Takes back the charges of a set that were counted, as far as `local` tells of them.
    fn refund_local(&self, set: &ChargeSet<'_>, local: &LocalReadings) {
        let now = self.0.runtime.now();
        for (charge, (_, time)) in lenient_charges(set).zip(local) {
            let mut stripe = self.0.views.stripe(charge.counter());
            if let Some(view) = stripe.get_mut(&charge.counter()) {
                view.refund(charge, *time, now);
            }
        }
    }

    /// Remembers what the store said of the lenient charges of a set.
    fn record(&self, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos) {
        let inner = &self.0;
        let is_usable =
            outcome.snapshots.len() == set.charges.len() && outcome.source == Source::Exact;
        if !is_usable || inner.closed.load(Ordering::Acquire) {
            return;
        }
        let (received, at, mut new) = (inner.runtime.now(), outcome.at, false);
        for (charge, seen) in set.charges.iter().zip(&outcome.snapshots) {
            if !is_lenient(charge) {
                continue;
            }
            let mut stripe = inner.views.stripe(charge.counter());
            let room = inner.views.has_room(&stripe);
            match stripe.get_mut(&charge.counter()) {
                Some(view) if view.has_limit(&charge.limit) => {
                    view.update(seen, sent, received, at)
                }
                Some(_) => {} // under another limit, until what it holds has been told
                None if room => {
                    let view = LenientView::new(charge, seen, sent, received, at);
                    stripe.insert(charge.counter(), view);
                    new = true;
                }
                None => {}
            }
        }
        if new {
            LenientStoreInner::start_sync(inner);
        }
    }

    /// Decides a set that has something lenient about it.
    ///
    /// Dropped while the store decides the rest of the set, it leaves the lenient units counted here. They
    /// are synced like admitted ones, which denies too much rather than too little.
    async fn decide(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let store = &self.0.store;
        let local = match self.decide_locally(set) {
            LenientDecision::Unknown => {
                let sent = self.0.runtime.now();
                let outcome = store.charge(set).await?;
                self.record(set, &outcome, sent);
                return Ok(outcome);
            }
            LenientDecision::Denied(local) => outcome(&local),
            LenientDecision::Admitted(local) => {
                let split = SplitSet::of(set, is_lenient);
                let Some(rest) = split.remote() else {
                    return Ok(outcome(&local));
                };
                let reply = store.charge(rest).await;
                if !reply.as_ref().is_ok_and(|outcome| outcome.admitted) {
                    self.refund_local(set, &local);
                }
                return Ok(split.merge(outcome(&local), reply?));
            }
        };
        let split = SplitSet::of(set, is_lenient);
        match split.remote() {
            Some(rest) => Ok(split.merge(local, store.peek(rest).await?)),
            None => Ok(local),
        }
    }
}

/// What was decided here, as one outcome.
fn outcome(local: &LocalReadings) -> Outcome {
    let times = local.iter().map(|(_, time)| *time);
    Outcome {
        admitted: local.iter().all(|(reading, _)| reading.verdict.allows()),
        readings: local.iter().map(|(reading, _)| *reading).collect(),
        snapshots: Vec::new(),
        at: times.min().unwrap_or(Nanos::MAX),
        source: Source::Lenient,
        clock_stepped: false,
    }
}

impl<S: Lender + 'static, R: Runtime> Lender for LenientStore<S, R> {
    fn epoch_of(&self, charge: &Charge<'_>) -> Option<Epoch> {
        self.0.store.epoch_of(charge)
    }

    fn budget_of(&self, set: &ChargeSet<'_>) -> Nanos {
        self.0.store.budget_of(set)
    }

    async fn charge_with_deadline(
        &self,
        until: Nanos,
        set: &ChargeSet<'_>,
    ) -> StoreResult<Outcome> {
        match lenient_charges(set).next().is_some() {
            true => self.decide(set).await,
            false => self.0.store.charge_with_deadline(until, set).await,
        }
    }
}

impl<S: Store + 'static, R: Runtime> Store for LenientStore<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        match lenient_charges(set).next().is_some() {
            true => self.decide(set).await,
            false => self.0.store.charge(set).await,
        }
    }

    /// Those that have nothing lenient about them are asked about together.
    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let any = |set: &&ChargeSet<'_>| lenient_charges(set).next().is_some();
        let plain: Vec<&ChargeSet<'_>> = sets.iter().copied().filter(|s| !any(s)).collect();
        let mut plain = match plain.is_empty() {
            true => Vec::new(),
            false => self.0.store.charge_each(&plain).await,
        }
        .into_iter();
        let mut replies = Vec::with_capacity(sets.len());
        for set in sets {
            match any(set) {
                true => replies.push(self.decide(set).await),
                false => replies.extend(plain.next()),
            }
        }
        replies
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let now = self.0.runtime.now();
        let looks = set.charges.iter().map(|charge| {
            let stripe = self.0.views.stripe(charge.counter());
            let view = stripe.get(&charge.counter()).filter(|_| is_lenient(charge));
            let view = view.filter(|view| view.is_fresh(&charge.limit, now))?;
            Some(view.peek(charge, now))
        });
        match looks.collect::<Option<LocalReadings>>() {
            Some(local) if !local.is_empty() => Ok(outcome(&local)),
            _ => self.0.store.peek(set).await,
        }
    }

    delegate_store!(self => self.0.store; refund, draw, force, reserve, settle, restore, acquire, renew, release, inspect);

    /// What was admitted here and not told is forgotten with it.
    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        for charge in &set.charges {
            self.0
                .views
                .stripe(charge.counter())
                .remove(&charge.counter());
        }
        self.0.store.reset(set).await
    }
}
