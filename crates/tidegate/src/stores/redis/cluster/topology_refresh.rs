//! Refreshes the hash slot map: when an error suggests a change, and at an interval.
//!
//! Any server may be queried, also a replica; a server that does not reply is given up after `QUERY_TIMEOUT`. A server
//! that was cut off has an old map: each reply has the highest cluster epoch that the server knows, and a map with an
//! older epoch than the known one is accepted only when there has been no other for `ACCEPT_OLDER_AFTER`. At most one
//! refresh in 100 ms, however many calls are redirected.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::hash_slot_map::{HashSlotMap, Primary};
use super::{ClusterView, ConnectedPrimary, RedisCluster, host};
use crate::stores::redis::access::{Access, RedisAddress};
use crate::stores::redis::connect_target::ConnectTarget;
use crate::stores::redis::connection::jittered;
use crate::stores::redis::connection_pool::{ConnectionPool, RedisConfig, RedisRequest};
use crate::stores::redis::error::RedisStoreError;
use crate::stores::redis::redirect::SendMode;
use crate::stores::redis::server_state::{ServerState, SourceState};

/// The interval of refreshes without a sign of a change: a primary that hangs sends no redirects.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest pause between two refreshes; it doubles up to `MAX_PAUSE` while the map does not change.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_millis(800);
/// The time for a server's reply. A connection may be neither refused nor established.
const QUERY_TIMEOUT: Duration = Duration::from_millis(500);
/// When all replies have had a lower epoch for longer than this, the cluster was created anew.
const ACCEPT_OLDER_AFTER: Duration = Duration::from_secs(5);

/// Refreshes the map of a cluster until the cluster is dropped.
pub(super) async fn run_refresh(cluster: Weak<RedisCluster>, refresh_needed: Arc<Notify>) {
    let mut known = KnownTopology { cluster_epoch: 0, received_at: Instant::now() };
    let (mut pause, mut notified) = (MIN_PAUSE, true);
    loop {
        let found = match cluster.upgrade() {
            Some(cluster) => cluster.refresh_topology(&mut known).await,
            None => return,
        };
        pause = match found {
            RefreshResult::Unchanged | RefreshResult::Failed if notified => (pause * 2).min(MAX_PAUSE),
            _ => MIN_PAUSE,
        };
        sleep(pause).await;
        notified = match found {
            RefreshResult::Failed => true,
            _ => timeout(jittered(REFRESH_INTERVAL), refresh_needed.notified()).await.is_ok(),
        };
    }
}

/// The age of the map.
struct KnownTopology {
    cluster_epoch: u64,
    /// When the last map was received.
    received_at: Instant,
}

impl KnownTopology {
    /// Whether to accept a map of this epoch, the newest of all received at `now`.
    fn accept(&mut self, epoch: u64, now: Instant) -> bool {
        let accepts = epoch >= self.cluster_epoch || now.duration_since(self.received_at) > ACCEPT_OLDER_AFTER;
        if accepts {
            (self.cluster_epoch, self.received_at) = (epoch, now);
        }
        accepts
    }
}

#[derive(PartialEq, Eq, Debug)]
pub(super) enum RefreshResult {
    Changed,
    Unchanged,
    Failed,
}

/// A server to query.
enum TopologySource {
    Connected(Arc<ConnectedPrimary>),
    /// To be connected to for this query only.
    Address(RedisAddress),
}

/// The reply of a server.
pub(in crate::stores::redis) struct TopologyReply {
    pub(in crate::stores::redis) map: HashSlotMap,
    pub(in crate::stores::redis) cluster_epoch: u64,
}

impl RedisCluster {
    async fn refresh_topology(&self, known: &mut KnownTopology) -> RefreshResult {
        let round = self.refreshes.fetch_add(1, Ordering::Relaxed);
        let mut best: Option<TopologyReply> = None;
        for source in self.sources(round) {
            let reply = match timeout(QUERY_TIMEOUT, self.query(&source)).await {
                Ok(Ok(reply)) => reply,
                Ok(Err(error)) => {
                    self.last_error.store(Some(Arc::new(error)));
                    continue;
                }
                Err(_) => {
                    self.last_error.store(Some(Arc::new(RedisStoreError::NO_TOPOLOGY_REPLY)));
                    continue;
                }
            };
            if best.as_ref().is_none_or(|best| best.cluster_epoch < reply.cluster_epoch) {
                best = Some(reply);
            }
            if best.as_ref().is_some_and(|best| best.cluster_epoch >= known.cluster_epoch) {
                break;
            }
        }
        match best {
            Some(reply) if known.accept(reply.cluster_epoch, Instant::now()) => {
                self.last_error.store(None);
                self.adopt(reply.map)
            }
            _ => RefreshResult::Failed,
        }
    }

    /// The connected primaries, starting with another one each round; then all other known servers.
    fn sources(&self, round: u64) -> Vec<TopologySource> {
        let mut sources = Vec::new();
        let mut others: Vec<RedisAddress> = Vec::new();
        if let Some(view) = self.view.load().as_ref() {
            let first = usize::try_from(round).unwrap_or(0) % view.primaries.len().max(1);
            let (after, before) = view.primaries.split_at(first);
            for primary in before.iter().chain(after) {
                if primary.pool.is_connected() {
                    sources.push(TopologySource::Connected(Arc::clone(primary)));
                } else {
                    others.push(primary.address.clone());
                }
            }
            others.splice(0..0, view.map.replicas.iter().cloned());
        }
        let mut seen = HashSet::new();
        let others = others.into_iter().chain(self.seed_addresses.iter().cloned());
        sources.extend(others.filter(|address| seen.insert(address.clone())).map(TopologySource::Address));
        sources
    }

    async fn query(&self, source: &TopologySource) -> Result<TopologyReply, RedisStoreError> {
        match source {
            TopologySource::Connected(primary) => {
                let (info, hash_slots) = (command("INFO"), command("SLOTS"));
                let send = |command| primary.pool.send(RedisRequest::Command(command), SendMode::Plain);
                let info = send(&info).await.0?;
                parse_topology(&info, &send(&hash_slots).await.0?, &primary.address)
            }
            TopologySource::Address(address) => query_at(address, &self.access, &self.config).await,
        }
    }

    /// Applies a map: keeps the connections to primaries that are still on it, and connects to new ones.
    pub(super) fn adopt(&self, map: HashSlotMap) -> RefreshResult {
        let view = self.view.load_full();
        if view.as_ref().is_some_and(|view| view.map == map) {
            return RefreshResult::Unchanged;
        }
        let known = view.as_ref().map_or(&[][..], |view| &view.primaries[..]);
        let before = |shard_id| known.iter().find(|primary| primary.shard_id == shard_id);
        let state = |server_state: &Arc<ServerState>| {
            let primary = known.iter().find(|primary| Arc::ptr_eq(&primary.server_state, server_state));
            primary.map_or(SourceState::Unverified, |primary| primary.source_state())
        };
        let server_state_before = |shard_id| before(shard_id).map(|primary| &primary.server_state);
        let mut hash_slot_states = self.hash_slot_states.lock();
        let server_states = hash_slot_states.take_over(&map, server_state_before, state);
        let primaries = map.primaries.iter().zip(server_states);
        let primaries = primaries.map(|(now, server_state)| self.primary_at(now, before(now.shard_id), server_state));
        match primaries.collect() {
            Ok(primaries) => {
                self.view.store(Some(ClusterView::new(map, primaries)));
                RefreshResult::Changed
            }
            Err(error) => {
                self.last_error.store(Some(Arc::new(error)));
                RefreshResult::Failed
            }
        }
    }

    fn primary_at(
        &self,
        now: &Primary,
        before: Option<&Arc<ConnectedPrimary>>,
        server_state: Arc<ServerState>,
    ) -> Result<Arc<ConnectedPrimary>, RedisStoreError> {
        if let Some(primary) = before.filter(|primary| primary.address == now.address) {
            return Ok(Arc::clone(primary));
        }
        let target = ConnectTarget::Fixed { address: now.address.clone(), access: self.access.clone() };
        let pool = ConnectionPool::open(target, &self.config, &self.scripts, &self.gate)?;
        Ok(Arc::new(ConnectedPrimary { shard_id: now.shard_id, address: now.address.clone(), pool, server_state }))
    }
}

/// Queries the server at `address` over a connection for this query only.
pub(in crate::stores::redis) async fn query_at(
    address: &RedisAddress,
    access: &Access,
    config: &RedisConfig,
) -> Result<TopologyReply, RedisStoreError> {
    let client = access.client(address)?;
    let login = client.get_connection_info().redis_settings();
    let to_error = |error: RedisError| RedisStoreError::from_redis(&error, login.password());
    let connection_config = config.connection_config();
    let connection = client.get_multiplexed_async_connection_with_config(&connection_config);
    let mut connection = connection.await.map_err(to_error)?;
    let info = command("INFO").query_async(&mut connection).await;
    let info: Value = info.map_err(to_error)?;
    let hash_slots = command("SLOTS").query_async(&mut connection).await;
    parse_topology(&info, &hash_slots.map_err(to_error)?, address)
}

fn command(about: &str) -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(about);
    command
}

/// Parses the replies of the server at `address` about its cluster.
fn parse_topology(info: &Value, hash_slots: &Value, address: &RedisAddress) -> Result<TopologyReply, RedisStoreError> {
    let info: String = redis::from_redis_value_ref(info).unwrap_or_default();
    let epoch = info
        .lines()
        .find_map(|line| line.strip_prefix("cluster_current_epoch:"))
        .and_then(|epoch| epoch.trim().parse().ok());
    let map = HashSlotMap::parse(hash_slots, host(address));
    Ok(TopologyReply {
        map: map.map_err(|error| RedisStoreError::no_topology(error.to_string()))?,
        cluster_epoch: epoch.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A primary that was cut off replies as before. A cluster that was created anew has a lower epoch.
    #[test]
    fn an_older_map_is_accepted_only_when_there_has_been_no_other() {
        let began = Instant::now();
        let after = |secs| began + Duration::from_secs(secs);
        let mut known = KnownTopology { cluster_epoch: 7, received_at: began };
        assert!(!known.accept(6, after(1)), "cut off");
        assert!(known.accept(7, after(4)));
        assert!(!known.accept(6, after(8)), "7 was received 4 s ago");
        assert!(known.accept(9, after(9)));
        assert!(!known.accept(3, after(14)));
        assert!(known.accept(3, after(15)), "created anew");
        assert!(known.accept(4, after(15)));
    }
}
