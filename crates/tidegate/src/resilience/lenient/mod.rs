//! Lenient counting: a node admits by the last synced state of a counter, and syncs what it admitted a moment later.
//!
//! For rules that would rather exceed their limit a little than wait for the store, or whose counters are hot on many
//! nodes. Every [`SYNC_INTERVAL`] the admitted units are charged by force, and the reply contains what the other nodes
//! have admitted. A view decides by a state no older than [`MAX_STALENESS`]; without one the store decides, as for
//! exact counting. So all nodes know what one node admits within 100 ms ([`MAX_PROPAGATION_DELAY`]).
//!
//! A view (`view`) is fresh or stale. It is stale while its state or its oldest unsynced unit is older than
//! [`MAX_STALENESS`], and does not decide until the next sync (`sync`). It ends when a sync fails, when it is not used
//! between two syncs, and by a reset.
//!
//! Bound: beyond the limit at most `(N - 1) * min(what was left, what the busiest node admits in
//! MAX_PROPAGATION_DELAY)` pass; [`LenientStore::overshoot`] returns the present value. After a failed sync the store
//! behind decides. Unsynced units are lost only with the node.

mod sync;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Counting, Epoch, Inspection, LeaseReply, LimitReading, Outcome, PermitReply,
    PermitRequest, Permits, Refund, Refunded, Reservations, Reserve, Restore, Role, Settle, Settled, Source, Store,
    StoreResult,
};
use tidegate_core::units::Nanos;

use self::view::LenientView;
use super::lease::Lender;
use super::split_set::SplitSet;
use crate::runtime::Runtime;
use crate::shard::StripedMap;

/// How often a view is synced.
const SYNC_INTERVAL: Nanos = Nanos::from_millis(45);
/// The maximum age of a state that decides: a sync interval and the time for a reply.
const MAX_STALENESS: Nanos = Nanos::from_millis(50);
/// How long a request may be unknown to another node: until it is synced, and until that node syncs.
const MAX_PROPAGATION_DELAY: Nanos = Nanos::from_millis(100);
/// How long the reply to a sync is awaited: no decision waits for it, and units whose reply is taken for lost would
/// be charged once more.
const SYNC_TIMEOUT: Nanos = Nanos::from_secs(1);

/// By how many units a limit may be exceeded, as of the last sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overshoot {
    /// In any case: every other node admits all that is left before it syncs.
    pub worst_case: u64,
    /// If no node gets busier than the busiest was between the last two syncs.
    pub at_current_rate: u64,
}

/// Returns how many nodes share the store.
pub type NodeCountFn = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Decides `lenient` rules by their last synced state. Clones share their state.
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
    /// Whether the sync task is running.
    sync_running: AtomicBool,
    /// Set by `flush`: views decide nothing any more.
    closed: AtomicBool,
    /// Counters with a sync in flight.
    syncs_in_flight: AtomicUsize,
    /// By how much each rule may be exceeded, as of the last sync.
    overshoot: Mutex<BTreeMap<Box<str>, Overshoot>>,
}

/// What the views decide about a set.
enum LenientDecision {
    /// At least one fresh view is missing: the store decides.
    Unknown,
    /// Every lenient charge fits and has been counted.
    Admitted(LocalReadings),
    /// One of them does not fit; nothing has been counted.
    Denied(LocalReadings),
}

/// The readings of the lenient charges of a set, in order, each with the store's time of its decision.
type LocalReadings = SmallVec<[(LimitReading, Nanos); 4]>;

fn is_lenient(charge: &Charge<'_>) -> bool {
    charge.options.counting == Counting::Lenient && charge.role == Role::Enforce
}

fn lenient_charges<'s, 'c>(set: &'s ChargeSet<'c>) -> impl Iterator<Item = &'s Charge<'c>> {
    set.charges.iter().filter(|charge| is_lenient(charge))
}

impl<S: Store + 'static, R: Runtime> LenientStore<S, R> {
    /// Counts in front of `store`, with views of about `max_views` counters at a time.
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

    /// By how many units each rule with views may be exceeded: the largest value of its counters.
    pub fn overshoot(&self) -> BTreeMap<Box<str>, Overshoot> {
        self.0.overshoot.lock().clone()
    }

    /// Syncs all units that were admitted here, and closes the views. Done when the store has replied to all syncs,
    /// including those already in flight, or after a few seconds.
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
            // After the first denial, the other views are only peeked at.
            let reading = if denied { view.peek(charge, now) } else { view.try_charge(charge, now) };
            drop(stripe);
            if !denied && !reading.0.verdict.allows() {
                denied = true;
                self.refund_local(set, &local);
            }
            local.push(reading);
        }
        if denied { LenientDecision::Denied(local) } else { LenientDecision::Admitted(local) }
    }

    /// Refunds the counted charges of a set, those with a reading in `local`.
    fn refund_local(&self, set: &ChargeSet<'_>, local: &LocalReadings) {
        let now = self.0.runtime.now();
        for (charge, (_, time)) in lenient_charges(set).zip(local) {
            let mut stripe = self.0.views.stripe(charge.counter());
            if let Some(view) = stripe.get_mut(&charge.counter()) {
                view.refund(charge, *time, now);
            }
        }
    }

    /// Updates or creates the views of the lenient charges of a set from a reply of the store.
    fn record(&self, set: &ChargeSet<'_>, outcome: &Outcome, sent: Nanos) {
        let inner = &self.0;
        let is_usable = outcome.snapshots.len() == set.charges.len() && outcome.source == Source::Exact;
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
                Some(view) if view.has_limit(&charge.limit) => view.update(seen, sent, received, at),
                Some(_) => {} // of another limit, until its units are synced
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

    /// Decides a set with lenient charges.
    ///
    /// Dropped while the store decides the rest of the set, it leaves the lenient units counted here. They are synced
    /// like admitted ones, which denies too much rather than too little.
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

/// One outcome of the local readings.
fn outcome(local: &LocalReadings) -> Outcome {
    let times = local.iter().map(|(_, time)| *time);
    Outcome {
        admitted: local.iter().all(|(reading, _)| reading.verdict.allows()),
        readings: local.iter().map(|(reading, _)| *reading).collect(),
        snapshots: Vec::new(),
        at: times.min().unwrap_or(Nanos::MAX),
        source: Source::Lenient,
        degraded: None,
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

    async fn charge_with_deadline(&self, until: Nanos, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        if lenient_charges(set).next().is_some() {
            self.decide(set).await
        } else {
            self.0.store.charge_with_deadline(until, set).await
        }
    }
}

impl<S: Store + 'static, R: Runtime> Counters for LenientStore<S, R> {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        if lenient_charges(set).next().is_some() { self.decide(set).await } else { self.0.store.charge(set).await }
    }

    /// Charges the sets without lenient charges in one call.
    async fn charge_batch(&self, sets: &[&ChargeSet<'_>]) -> Vec<StoreResult<Outcome>> {
        let any = |set: &&ChargeSet<'_>| lenient_charges(set).next().is_some();
        let plain: Vec<&ChargeSet<'_>> = sets.iter().copied().filter(|s| !any(s)).collect();
        let plain = if plain.is_empty() { Vec::new() } else { self.0.store.charge_each(&plain).await };
        let mut plain = plain.into_iter();
        let mut replies = Vec::with_capacity(sets.len());
        for set in sets {
            if any(set) {
                replies.push(self.decide(set).await);
            } else {
                replies.extend(plain.next());
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

    async fn refund(&self, refund: &Refund<'_>) -> StoreResult<Refunded> {
        self.0.store.refund(refund).await
    }

    async fn draw(&self, charge: &Charge<'_>) -> StoreResult<LeaseReply> {
        self.0.store.draw(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        self.0.store.force(set).await
    }

    async fn restore(&self, restores: &[Restore<'_>]) -> StoreResult<()> {
        self.0.store.restore(restores).await
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> StoreResult<Vec<Option<Inspection>>> {
        self.0.store.inspect(set).await
    }

    /// Unsynced units of these counters are dropped with their views.
    async fn reset(&self, set: &ChargeSet<'_>) -> StoreResult<u64> {
        for charge in &set.charges {
            self.0.views.stripe(charge.counter()).remove(&charge.counter());
        }
        self.0.store.reset(set).await
    }
}

impl<S: Store + 'static, R: Runtime> Permits for LenientStore<S, R> {
    async fn acquire(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.0.store.acquire(permit).await
    }

    async fn renew(&self, permit: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        self.0.store.renew(permit).await
    }

    async fn release(&self, permit: &PermitRequest<'_>) -> StoreResult<()> {
        self.0.store.release(permit).await
    }
}

impl<S: Store + 'static, R: Runtime> Reservations for LenientStore<S, R> {
    async fn reserve(&self, reserve: &Reserve<'_>) -> StoreResult<Outcome> {
        self.0.store.reserve(reserve).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> StoreResult<Settled> {
        self.0.store.settle(settle).await
    }
}
