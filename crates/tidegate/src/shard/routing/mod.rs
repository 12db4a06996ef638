//! A store made of shards, each of which may fail on its own.
//!
//! A shard that fails affects only its own counters; the others stay exact. All shards share one `NodeState`, because
//! counters move between them. A request whose limits are in one hash slot is one call to one shard. Otherwise it is
//! charged in steps (`groups`, `multi_shard`).
//!
//! Shards are added as soon as they are discovered. The list is refreshed at every ping interval, and whenever a
//! subject is in none of the known shards. This node's share decides for subjects in no shard at all.

mod groups;
mod multi_shard;
mod observer;
mod outcome_merge;
mod port;

use std::fmt;
use std::sync::{Arc, Weak};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeSet, Epoch, HashSlot, NodeId, Outcome, ShardId, Shards, Source};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use self::groups::LocationIndices;
pub(crate) use self::observer::AggregateObserver;
pub use self::observer::ShardObserver;
use crate::runtime::Runtime;
use crate::shard::event::Watcher;
use crate::shard::node::NodeState;
use crate::shard::recovery::clock_watch::ClockReading;
use crate::shard::recovery::store_clock::StoreClock;
use crate::shard::refund::Readings;
use crate::shard::settings::{DEFAULT_NODES, ResilienceSettings};
use crate::shard::shared_shard::{ShardState, SharedShard};

/// The shards of a store, each with its fallback. Clones share their state.
pub struct ShardedStore<P: Shards, R>(pub(crate) Arc<ShardedStoreInner<P, R>>);

impl<P: Shards, R> Clone for ShardedStore<P, R> {
    fn clone(&self) -> Self {
        ShardedStore(Arc::clone(&self.0))
    }
}

impl<P: Shards, R> fmt::Debug for ShardedStore<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedStore").finish_non_exhaustive()
    }
}

pub(crate) struct ShardedStoreInner<P: Shards, R> {
    shards: P,
    known: ArcSwap<Vec<KnownShard<P::Shard, R>>>,
    /// Decides for subjects that are in no shard. Created for the first of them.
    no_shard: ArcSwapOption<SharedShard<P::Shard, R>>,
    /// Held while shards are added or removed.
    refresh_lock: Mutex<()>,
    pub(crate) node_state: Arc<NodeState>,
    pub(crate) runtime: R,
    me: NodeId,
    /// The wall-clock time, for use while no shard has reported its time.
    clock: StoreClock,
    pub(crate) settings: ResilienceSettings,
    observer: Arc<dyn ShardObserver>,
}

/// A shard that was discovered.
type KnownShard<S, R> = (ShardId, Arc<SharedShard<S, R>>);

/// The location of counters that can be charged in one step: a hash slot of a shard.
struct ShardLocation<S, R> {
    shard_id: ShardId,
    hash_slot: Option<HashSlot>,
    shard: Arc<SharedShard<S, R>>,
}

/// The locations of a request, each once.
type ShardLocations<S, R> = SmallVec<[ShardLocation<S, R>; 2]>;

impl<P: Shards + 'static, R: Runtime> ShardedStore<P, R> {
    /// A fallback for each of `shards`, as the node `me`. Starts without any of them.
    pub fn new(
        shards: P,
        runtime: R,
        me: NodeId,
        settings: ResilienceSettings,
        observer: Arc<dyn ShardObserver>,
    ) -> Self {
        // The wall clock has to do until a shard reports its time.
        let wall = runtime.wall();
        let inner = Arc::new(ShardedStoreInner {
            shards,
            known: ArcSwap::default(),
            no_shard: ArcSwapOption::empty(),
            refresh_lock: Mutex::new(()),
            node_state: Arc::new(NodeState::new(wall, &settings)),
            clock: StoreClock::new(runtime.now(), wall),
            runtime: runtime.clone(),
            me,
            settings,
            observer,
        });
        inner.refresh();
        runtime.spawn(run_refresh(Arc::downgrade(&inner), runtime.clone()));
        ShardedStore(inner)
    }
}

/// Adds and removes shards until the store is dropped.
async fn run_refresh<P: Shards + 'static, R: Runtime>(weak: Weak<ShardedStoreInner<P, R>>, runtime: R) {
    while let Some(inner) = weak.upgrade() {
        inner.refresh();
        let every = inner.settings.ping_interval;
        drop(inner);
        runtime.sleep(every).await;
    }
}

impl<P: Shards + 'static, R: Runtime> ShardedStoreInner<P, R> {
    /// Adds new shards and removes those that are gone.
    fn refresh(&self) {
        let _one_at_a_time = self.refresh_lock.lock();
        let known = self.known.load_full();
        let ids = self.shards.shard_ids();
        let (stay, gone): (Vec<_>, Vec<_>) =
            known.iter().cloned().partition(|(id, _)| ids.contains(id) || self.shards.shard(*id).is_some());
        // A new shard takes over from one that is gone: the old one's time is the best guess.
        let time = gone.first().map_or_else(|| self.store_time(), |(_, shard)| shard.store_time());
        let is_known = |id: &ShardId| stay.iter().any(|(known, _)| known == id);
        let new: Vec<KnownShard<P::Shard, R>> =
            ids.into_iter().filter(|id| !is_known(id)).filter_map(|id| self.add_shard(id, time)).collect();
        if new.is_empty() && gone.is_empty() {
            return;
        }
        // No new shard took over: the counters have moved to other shards. If the old one was down, they are lost.
        if new.is_empty() && gone.iter().any(|(_, shard)| shard.state() != ShardState::Exact) {
            stay.iter().for_each(|(_, shard)| shard.mark_counts_missing());
        }
        gone.iter().for_each(|(id, _)| self.observer.removed(*id));
        self.no_shard.store(None);
        self.known.store(Arc::new(stay.into_iter().chain(new).collect()));
    }

    fn add_shard(&self, id: ShardId, time: Nanos) -> Option<KnownShard<P::Shard, R>> {
        let store = self.shards.shard(id)?;
        self.observer.discovered(id);
        let observer = Arc::clone(&self.observer);
        let watcher: Watcher = Arc::new(move |event| observer.changed(id, event));
        Some((id, self.new_shard(Some(store), time, watcher)))
    }

    /// A new shard, or none. It starts with the members that the other shards know.
    fn new_shard(&self, store: Option<P::Shard>, time: Nanos, watcher: Watcher) -> Arc<SharedShard<P::Shard, R>> {
        let (node_state, runtime) = (Arc::clone(&self.node_state), self.runtime.clone());
        let settings = ResilienceSettings { members: self.members(), ..self.settings.clone() };
        SharedShard::new(store, node_state, runtime, self.me, time, settings, watcher)
    }

    /// Whether every known shard is trusted.
    pub(crate) fn is_exact(&self) -> bool {
        let known = self.known.load();
        !known.is_empty() && known.iter().all(|(_, shard)| shard.state() == ShardState::Exact)
    }

    /// The time of any shard, or the wall-clock time.
    pub(crate) fn store_time(&self) -> Nanos {
        let known = self.known.load();
        let time = known.first().map(|(_, shard)| shard.store_time());
        time.unwrap_or_else(|| self.clock.at(self.runtime.now()))
    }

    /// Evicts some expired counters of this node's shares. The shards' clocks differ: a counter has expired when it has
    /// by all of them.
    pub(crate) fn evict_expired(&self) {
        let known = self.known.load();
        let earliest = known.iter().map(|(_, shard)| shard.store_time()).min();
        self.node_state.evict_expired(earliest.unwrap_or_else(|| self.store_time()));
    }

    fn find_shard(&self, id: ShardId) -> Option<Arc<SharedShard<P::Shard, R>>> {
        let known = self.known.load();
        known.iter().find(|(known, _)| *known == id).map(|(_, shard)| Arc::clone(shard))
    }

    fn locate(&self, subject: Fingerprint) -> ShardLocation<P::Shard, R> {
        let shard_id = self.shards.shard_of(subject);
        let found = self.find_shard(shard_id).or_else(|| {
            self.shards.shard(shard_id)?;
            self.refresh();
            self.find_shard(shard_id)
        });
        let shard = found.unwrap_or_else(|| self.no_shard());
        ShardLocation { shard_id, hash_slot: shard.hash_slot(subject), shard }
    }

    /// The locations of some subjects, and the index of each subject's location.
    fn locate_all(
        &self,
        subjects: impl Iterator<Item = Fingerprint>,
    ) -> (ShardLocations<P::Shard, R>, LocationIndices) {
        let mut locations = ShardLocations::new();
        let mut indices = LocationIndices::new();
        let mut last = None;
        for subject in subjects {
            if let Some((same, at)) = last
                && same == subject
            {
                indices.push(at);
                continue;
            }
            let location = self.locate(subject);
            let same = |known: &ShardLocation<_, _>| {
                (known.shard_id, known.hash_slot) == (location.shard_id, location.hash_slot)
            };
            let at = locations.iter().position(same).unwrap_or(locations.len());
            if at == locations.len() {
                locations.push(location);
            }
            indices.push(at);
            last = Some((subject, at));
        }
        (locations, indices)
    }

    /// The outcome of an empty set: admitted.
    fn empty_outcome(&self) -> Outcome {
        Outcome::new(true, Readings::new(), self.store_time(), Source::Exact)
    }

    /// The offset between the clocks of this node and of a shard: that of the worst shard.
    pub(crate) fn clock_reading(&self) -> Option<ClockReading> {
        let known = self.known.load();
        let readings = known.iter().filter_map(|(_, shard)| shard.clock_reading());
        readings.max_by_key(|reading| (reading.level, reading.offset.nanos.unsigned_abs()))
    }

    /// Decides for subjects that are in no shard.
    fn no_shard(&self) -> Arc<SharedShard<P::Shard, R>> {
        if let Some(known) = self.no_shard.load_full() {
            return known;
        }
        let without_store = self.new_shard(None, self.store_time(), Arc::new(|_| {}));
        self.no_shard.store(Some(Arc::clone(&without_store)));
        without_store
    }

    /// The epoch of the shard of a charge; `None` while it is not trusted.
    pub(crate) fn epoch_of(&self, charge: &Charge<'_>) -> Option<Epoch> {
        self.locate(charge.subject).shard.epoch_of(charge)
    }

    /// The number of nodes to assume: those listed, or the configured number if that is larger.
    pub(crate) fn nodes(&self) -> u64 {
        let listed = self.members().len() as u64;
        let expected = self.settings.nodes.map_or(0, u64::from);
        match listed.max(expected) {
            0 => u64::from(DEFAULT_NODES),
            known => known,
        }
    }

    /// The longest list of members that a shard knows, or the configured one.
    pub(crate) fn members(&self) -> Vec<NodeId> {
        let known = self.known.load();
        let lists = known.iter().map(|(_, shard)| shard.members());
        let longest = lists.max_by_key(Vec::len);
        longest.unwrap_or_else(|| self.settings.members.clone())
    }
}

fn subjects(set: &ChargeSet<'_>) -> impl Iterator<Item = Fingerprint> {
    set.charges.iter().map(|charge| charge.subject)
}
