//! A Redis Cluster: the hash slot map, and the connections to all primaries.
//!
//! Holds the map that `topology_refresh` queries, and one connection pool per primary, opened and dropped as
//! primaries come and go. A redirect is followed for the call that received it, because the redirecting server has
//! done nothing; a MOVED redirect updates the map at once. Each primary is a shard of its own, identified by its
//! name in the cluster. A replica that takes over is another shard, and inherits the state of the data. Knows nothing
//! of counters.

mod hash_slot_map;
mod hash_slot_states;
mod hash_slots;
mod shard_handle;
mod topology_refresh;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::Cmd;
use tidegate_core::store::{HashSlot, ShardId};
use tokio::sync::Notify;

pub(super) use self::hash_slot_map::HashSlotMap;
pub(super) use self::hash_slots::{hash_slot_of, hash_slot_of_subject, tag_for};
pub(super) use self::shard_handle::{ShardHandle, register_key};
pub(super) use self::topology_refresh::{TopologyReply, query_at};

use self::hash_slot_map::parse_address;
use self::hash_slot_states::HashSlotStates;
use super::access::{Access, RedisAddress};
use super::connection::RedisReply;
use super::connection_gate::ConnectionGate;
use super::connection_pool::{ConnectionPool, RedisConfig, RedisRequest};
use super::error::RedisStoreError;
use super::redirect::{Redirect, SendMode};
use super::scripts::LoadedScript;
use super::server_state::{ServerState, SourceState};

/// Stands for the hash slots that no known primary serves. It is not a shard.
const UNASSIGNED_SHARD: ShardId = ShardId(0);

/// A cluster and the connections to it.
pub(super) struct RedisCluster {
    /// None until the first map is received.
    view: ArcSwapOption<ClusterView>,
    hash_slot_states: Mutex<HashSlotStates>,
    seed_addresses: Vec<RedisAddress>,
    access: Access,
    config: RedisConfig,
    scripts: Arc<[LoadedScript]>,
    pub(super) gate: Arc<ConnectionGate>,
    /// Notified when the map may have changed.
    refresh_needed: Arc<Notify>,
    refreshes: AtomicU64,
    /// The last error of a map query.
    last_error: ArcSwapOption<RedisStoreError>,
}

/// The map, and the connected primaries in the same order.
struct ClusterView {
    map: HashSlotMap,
    /// The number of hash slots that no primary serves.
    unserved: usize,
    primaries: Arc<[Arc<ConnectedPrimary>]>,
}

impl ClusterView {
    fn new(map: HashSlotMap, primaries: Arc<[Arc<ConnectedPrimary>]>) -> Arc<ClusterView> {
        Arc::new(ClusterView { unserved: map.count(None), map, primaries })
    }
}

/// A primary at its current address.
pub(super) struct ConnectedPrimary {
    shard_id: ShardId,
    address: RedisAddress,
    pub(super) pool: Arc<ConnectionPool>,
    /// Outlives a change of address, and a failover.
    pub(super) server_state: Arc<ServerState>,
}

impl ConnectedPrimary {
    /// The state of the primary when hash slots leave it.
    fn source_state(&self) -> SourceState {
        let run = self.pool.run();
        if !self.pool.is_connected() || !self.server_state.has_acknowledged(run) {
            SourceState::Unverified
        } else if self.server_state.is_complete(run) {
            SourceState::Whole
        } else {
            SourceState::Unrestored
        }
    }
}

impl RedisCluster {
    /// Begins to query `seeds` for the map, and retries until it has one. Must be called within a tokio runtime.
    pub(super) fn open(
        seeds: Vec<RedisAddress>,
        access: Access,
        config: &RedisConfig,
        scripts: Arc<[LoadedScript]>,
    ) -> Arc<RedisCluster> {
        LazyLock::force(&hash_slots::TAGS);
        let cluster = Arc::new(RedisCluster::without_map(seeds, access, config, scripts));
        let refresh_needed = Arc::clone(&cluster.refresh_needed);
        tokio::spawn(topology_refresh::run_refresh(Arc::downgrade(&cluster), refresh_needed));
        cluster
    }

    fn without_map(
        seed_addresses: Vec<RedisAddress>,
        access: Access,
        config: &RedisConfig,
        scripts: Arc<[LoadedScript]>,
    ) -> RedisCluster {
        RedisCluster {
            view: ArcSwapOption::empty(),
            hash_slot_states: Mutex::default(),
            seed_addresses,
            access,
            config: config.clone(),
            scripts,
            gate: Arc::new(ConnectionGate::new()),
            refresh_needed: Arc::default(),
            refreshes: AtomicU64::new(0),
            last_error: ArcSwapOption::empty(),
        }
    }

    /// The number of map queries.
    pub(super) fn refreshes(&self) -> u64 {
        self.refreshes.load(Ordering::Relaxed)
    }

    /// Why there is no map yet.
    pub(super) fn map_error(&self) -> Option<RedisStoreError> {
        if self.view.load().is_some() { None } else { self.last_error.load().as_deref().cloned() }
    }

    /// The number of hash slots that no primary serves, by the newest map.
    pub(super) fn unserved_hash_slots(&self) -> usize {
        self.view.load().as_ref().map_or(0, |view| view.unserved)
    }

    /// The primaries that serve hash slots.
    pub(super) fn primaries(&self) -> Arc<[Arc<ConnectedPrimary>]> {
        self.view.load().as_ref().map_or_else(Arc::default, |view| Arc::clone(&view.primaries))
    }

    /// The shards that serve hash slots.
    pub(super) fn shard_ids(&self) -> Vec<ShardId> {
        self.primaries().iter().map(|primary| primary.shard_id).collect()
    }

    /// The keys of the registers of nodes, one for each primary.
    pub(super) fn registers(&self) -> Vec<Vec<u8>> {
        let view = self.view.load();
        let Some(view) = view.as_ref() else {
            return Vec::new();
        };
        let hash_slots = (0..view.primaries.len()).filter_map(|primary| view.map.register_hash_slot(primary, &[]));
        hash_slots.map(register_key).collect()
    }

    /// The shard that serves a hash slot.
    pub(super) fn shard_of(&self, hash_slot: HashSlot) -> ShardId {
        self.primary_of(hash_slot).map_or(UNASSIGNED_SHARD, |primary| primary.shard_id)
    }

    /// The primary of a shard.
    pub(super) fn primary(&self, shard_id: ShardId) -> Option<Arc<ConnectedPrimary>> {
        self.primaries().iter().find(|primary| primary.shard_id == shard_id).cloned()
    }

    fn primary_of(&self, hash_slot: HashSlot) -> Option<Arc<ConnectedPrimary>> {
        let view = self.view.load();
        let view = view.as_ref()?;
        view.primaries.get(view.map.owner(hash_slot)?).cloned()
    }

    /// Runs a plain command on the server that has its only key.
    pub(super) async fn command(&self, key: &[u8], command: &Cmd) -> RedisReply {
        let Some(primary) = self.primary_of(hash_slot_of(key)) else {
            let last = self.last_error.load();
            return Err(last.as_deref().cloned().unwrap_or(RedisStoreError::NOT_SERVED));
        };
        let request = RedisRequest::Command(command);
        let (first, _) = primary.pool.send(request, SendMode::Plain).await;
        self.follow(request, None, primary, first).await.map(|(value, _)| value)
    }

    /// Triggers a refresh if an error suggests that the map has changed.
    fn note_error(&self, error: &RedisStoreError) {
        let is_asking = |redirect: &Redirect| redirect.mode == SendMode::Asking;
        // A hash slot that is being moved still belongs to the primary on the map.
        if error.suggests_topology_change() && !error.redirect().is_some_and(is_asking) {
            self.refresh_needed.notify_one();
        }
    }

    /// The primary that `from` redirects to, if it is known.
    fn redirect_target(&self, redirect: &Redirect, from: &ConnectedPrimary) -> Option<Arc<ConnectedPrimary>> {
        let address = parse_address(&redirect.to, host(&from.address))?;
        if redirect.mode == SendMode::Plain {
            self.note_moved(redirect.hash_slot, &address);
        }
        let found = self.primaries().iter().find(|primary| primary.address == address).cloned();
        if found.is_none() {
            self.refresh_needed.notify_one();
        }
        found
    }

    /// Assigns one hash slot to another primary, without waiting for the next refresh.
    fn note_moved(&self, hash_slot: HashSlot, address: &RedisAddress) {
        self.view.rcu(|view| {
            let view = view.as_ref()?;
            let primary = |map: &HashSlotMap| map.owner(hash_slot).map(|owner| &view.primaries[owner]);
            let owner = primary(&view.map);
            let moved =
                (owner.map(|primary| &primary.address) != Some(address)).then(|| view.map.moved(hash_slot, address));
            Some(match moved.flatten() {
                None => Arc::clone(view),
                Some(map) => {
                    if let (Some(from), Some(to)) = (owner, primary(&map)) {
                        to.server_state.receive_hash_slots(&from.server_state, from.source_state(), &[hash_slot]);
                    }
                    ClusterView::new(map, Arc::clone(&view.primaries))
                }
            })
        });
    }
}

impl Drop for RedisCluster {
    fn drop(&mut self) {
        // Wakes the refresh task, which ends when the cluster is gone.
        self.refresh_needed.notify_one();
    }
}

/// The host of a server of a cluster, which is never on a Unix socket.
fn host(address: &RedisAddress) -> &str {
    match address {
        RedisAddress::Tcp { host, .. } => host,
        RedisAddress::Unix(_) => "",
    }
}

#[cfg(test)]
mod tests;
