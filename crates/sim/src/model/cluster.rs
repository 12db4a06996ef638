//! A cluster of model stores. Counters are distributed over shards by hash slot.
//!
//! [`ModelCluster`] has the true assignment of hash slots. Each node has a map of its own, which it refreshes
//! periodically. A store that no longer owns a hash slot replies with a redirect, which corrects the map.
//! [`ModelShards`] is one node's connection to the cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::store::{HashSlot, ShardId, Shards};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use super::{ModelLink, SharedModel};
use crate::executor::Sim;

/// The number of hash slots.
const HASH_SLOTS: u128 = 16_384;

/// How often a node refreshes its map.
const MAP_REFRESH_INTERVAL: Nanos = Nanos::from_millis(100);

/// The hash slot of a subject.
pub fn hash_slot_of(subject: Fingerprint) -> HashSlot {
    HashSlot((subject.bits() % HASH_SLOTS) as u16)
}

/// One store of a cluster. A promoted replica has a new `id` and keeps the `shard` index.
struct ClusterMember {
    id: ShardId,
    shard: usize,
    model: SharedModel,
}

/// The true assignment of hash slots to shards.
pub struct ModelCluster {
    members: Mutex<Vec<ClusterMember>>,
    /// The shard of each hash slot; the first shard for hash slots without an entry.
    slot_owners: Mutex<BTreeMap<HashSlot, usize>>,
    /// Calls that named several hash slots.
    cross_slot_calls: AtomicU64,
}

/// A node's map: the known shards, and the owner of each hash slot.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardMap {
    ids: Vec<ShardId>,
    owners: BTreeMap<HashSlot, ShardId>,
}

impl ModelCluster {
    /// A cluster with one shard per model.
    pub fn new(models: impl IntoIterator<Item = SharedModel>) -> Self {
        let member = |(shard, model)| ClusterMember { id: ShardId(shard as u64), shard, model };
        ModelCluster {
            members: Mutex::new(models.into_iter().enumerate().map(member).collect()),
            slot_owners: Mutex::default(),
            cross_slot_calls: AtomicU64::new(0),
        }
    }

    /// The number of shards.
    pub fn shard_count(&self) -> usize {
        self.members.lock().len()
    }

    /// The current primary of a shard.
    pub fn model(&self, shard: usize) -> SharedModel {
        let members = self.members.lock();
        let member = members.iter().find(|member| member.shard == shard);
        Arc::clone(&member.expect("every shard has a primary").model)
    }

    /// The index of the shard that owns a subject.
    pub fn shard_of(&self, subject: Fingerprint) -> usize {
        let owners = self.slot_owners.lock();
        owners.get(&hash_slot_of(subject)).copied().unwrap_or(0)
    }

    /// The index of the shard with this id, if it is still a member.
    pub fn shard_index(&self, id: ShardId) -> Option<usize> {
        let members = self.members.lock();
        let member = members.iter().find(|member| member.id == id)?;
        Some(member.shard)
    }

    /// Assigns the hash slot of a subject to a shard.
    pub fn assign(&self, subject: Fingerprint, shard: usize) {
        self.slot_owners.lock().insert(hash_slot_of(subject), shard);
    }

    /// Assigns all hash slots to the shards, round robin.
    pub fn assign_all_slots(&self) {
        let shards = self.shard_count();
        let hash_slots = (0..HASH_SLOTS as u16).map(|hash_slot| (HashSlot(hash_slot), usize::from(hash_slot) % shards));
        self.slot_owners.lock().extend(hash_slots);
    }

    /// Replaces the primary of a shard. The new one has an id of its own.
    pub fn promote(&self, shard: usize, id: ShardId, model: SharedModel) {
        let mut members = self.members.lock();
        members.retain(|member| member.shard != shard);
        members.push(ClusterMember { id, shard, model });
    }

    /// The number of calls that named several hash slots.
    pub fn cross_slot_calls(&self) -> u64 {
        self.cross_slot_calls.load(Ordering::Relaxed)
    }

    /// The id of the shard that owns a hash slot.
    fn owner_of(&self, hash_slot: HashSlot) -> Option<ShardId> {
        let shard = self.slot_owners.lock().get(&hash_slot).copied().unwrap_or(0);
        let members = self.members.lock();
        let member = members.iter().find(|member| member.shard == shard)?;
        Some(member.id)
    }

    fn shard_map(&self) -> ShardMap {
        let hash_slots: Vec<HashSlot> = self.slot_owners.lock().keys().copied().collect();
        let owner = |hash_slot: HashSlot| Some((hash_slot, self.owner_of(hash_slot)?));
        ShardMap {
            owners: hash_slots.into_iter().filter_map(owner).collect(),
            ids: self.members.lock().iter().map(|member| member.id).collect(),
        }
    }
}

/// The position of a link in a cluster.
#[derive(Clone)]
pub(super) struct ShardView {
    cluster: Arc<ModelCluster>,
    map: Arc<Mutex<ShardMap>>,
    id: ShardId,
}

/// The error reply to a call that a store cannot serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ModelRedirect {
    Moved(HashSlot),
    CrossSlot,
}

impl ShardView {
    /// The hash slot of a subject, if the node's map has it on this shard.
    pub(super) fn hash_slot(&self, subject: Fingerprint) -> Option<HashSlot> {
        let hash_slot = hash_slot_of(subject);
        let here = self.map.lock().owner_of(hash_slot) == Some(self.id);
        here.then_some(hash_slot)
    }

    /// Whether this shard really owns all these subjects, in one hash slot.
    pub(super) fn serves(&self, subjects: &[Fingerprint]) -> Result<(), ModelRedirect> {
        let mut hash_slots = subjects.iter().map(|subject| hash_slot_of(*subject));
        let Some(first) = hash_slots.next() else {
            return Ok(());
        };
        if hash_slots.any(|hash_slot| hash_slot != first) {
            self.cluster.cross_slot_calls.fetch_add(1, Ordering::Relaxed);
            return Err(ModelRedirect::CrossSlot);
        }
        if self.cluster.owner_of(first) == Some(self.id) { Ok(()) } else { Err(ModelRedirect::Moved(first)) }
    }

    /// Corrects the node's map after a redirect.
    pub(super) fn learn_moved(&self, hash_slot: HashSlot) {
        let Some(owner) = self.cluster.owner_of(hash_slot) else {
            return;
        };
        let mut map = self.map.lock();
        map.owners.insert(hash_slot, owner);
        if !map.ids.contains(&owner) {
            map.ids.push(owner);
        }
    }
}

impl ShardMap {
    fn owner_of(&self, hash_slot: HashSlot) -> Option<ShardId> {
        self.owners.get(&hash_slot).or(self.ids.first()).copied()
    }
}

/// One node's connection to a cluster.
#[derive(Clone)]
pub struct ModelShards {
    cluster: Arc<ModelCluster>,
    map: Arc<Mutex<ShardMap>>,
    /// The link from which the others are cloned.
    template: ModelLink,
    links: Arc<Mutex<BTreeMap<ShardId, ModelLink>>>,
}

impl ModelShards {
    /// The connection of a node. Its links are clones of `template`.
    pub fn new(cluster: &Arc<ModelCluster>, template: ModelLink) -> Self {
        ModelShards {
            cluster: Arc::clone(cluster),
            map: Arc::new(Mutex::new(cluster.shard_map())),
            template,
            links: Arc::default(),
        }
    }

    /// Refreshes the map periodically while the node lives.
    pub async fn run_map_refresh(self, sim: Sim) {
        loop {
            let jitter = sim.with_rng(|rng| rng.below(MAP_REFRESH_INTERVAL.get() / 2));
            sim.sleep(MAP_REFRESH_INTERVAL.plus(Nanos::new(jitter))).await;
            self.refresh_map();
        }
    }

    /// Refreshes the map.
    pub fn refresh_map(&self) {
        *self.map.lock() = self.cluster.shard_map();
    }

    /// A single store is not sharded: its link serves all subjects in one call.
    fn link(&self, id: ShardId) -> Option<ModelLink> {
        let shard = self.cluster.shard_index(id)?;
        let model = self.cluster.model(shard);
        let view = (self.cluster.shard_count() > 1).then(|| ShardView {
            cluster: Arc::clone(&self.cluster),
            map: Arc::clone(&self.map),
            id,
        });
        Some(self.template.connect_to(&model, shard, view))
    }
}

impl Shards for ModelShards {
    type Shard = ModelLink;

    fn shard_of(&self, subject: Fingerprint) -> ShardId {
        let owner = self.map.lock().owner_of(hash_slot_of(subject));
        owner.unwrap_or(ShardId(0))
    }

    /// A replaced shard stays in the map until the next refresh.
    fn shard(&self, id: ShardId) -> Option<ModelLink> {
        if !self.map.lock().ids.contains(&id) {
            return None;
        }
        let mut links = self.links.lock();
        if let Some(link) = links.get(&id) {
            return Some(link.clone());
        }
        let link = self.link(id)?;
        links.insert(id, link.clone());
        Some(link)
    }

    fn shard_ids(&self) -> Vec<ShardId> {
        self.map.lock().ids.clone()
    }
}
