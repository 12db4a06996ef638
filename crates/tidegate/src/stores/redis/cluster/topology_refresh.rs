//! Asks for the map of a cluster: when something tells that it has changed, and now and then.
//!
//! Any server may be asked, also those that serve nothing; one that does not answer is given up after a
//! moment. A server that was cut off tells of the past: each answer comes with the highest epoch that
//! the server has heard of, and one behind what was known is used only when there has been no other for
//! a while. At most one survey in 100 ms, however many calls are sent elsewhere.

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

/// How often to ask although nothing tells of a change: a primary that hangs says nothing.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// How soon after one survey the next may be; longer and longer while nothing new is told.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_millis(800);
/// How long a server may take to answer. A connection may never be refused nor made.
const QUERY_TIMEOUT: Duration = Duration::from_millis(500);
/// When only servers with a lower epoch have answered for so long, the cluster was made anew.
const ACCEPT_OLDER_AFTER: Duration = Duration::from_secs(5);

/// Keeps the map of a cluster, as long as there is one.
pub(super) async fn run_refresh(cluster: Weak<RedisCluster>, refresh_needed: Arc<Notify>) {
    let mut known = KnownTopology {
        cluster_epoch: 0,
        received_at: Instant::now(),
    };
    let (mut pause, mut notified) = (MIN_PAUSE, true);
    loop {
        let found = match cluster.upgrade() {
            Some(cluster) => cluster.refresh_topology(&mut known).await,
            None => return,
        };
        pause = match found {
            RefreshResult::Unchanged | RefreshResult::Failed if notified => {
                (pause * 2).min(MAX_PAUSE)
            }
            _ => MIN_PAUSE,
        };
        sleep(pause).await;
        notified = match found {
            RefreshResult::Failed => true,
            _ => timeout(jittered(REFRESH_INTERVAL), refresh_needed.notified())
                .await
                .is_ok(),
        };
    }
}

/// How new the map is.
struct KnownTopology {
    cluster_epoch: u64,
    /// When it was last told.
    received_at: Instant,
}

impl KnownTopology {
    /// Whether a map of this epoch is used, the newest of all that were told `now`.
    fn accept(&mut self, epoch: u64, now: Instant) -> bool {
        let accepts = epoch >= self.cluster_epoch
            || now.duration_since(self.received_at) > ACCEPT_OLDER_AFTER;
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

/// Who is asked.
enum TopologySource {
    Connected(Arc<ConnectedPrimary>),
    /// To be connected to, for this question only.
    Address(RedisAddress),
}

/// What a server answered.
pub(super) struct TopologyReply {
    pub(super) map: HashSlotMap,
    pub(super) cluster_epoch: u64,
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
                Err(_) => continue,
            };
            if best
                .as_ref()
                .is_none_or(|best| best.cluster_epoch < reply.cluster_epoch)
            {
                best = Some(reply);
            }
            if best
                .as_ref()
                .is_some_and(|best| best.cluster_epoch >= known.cluster_epoch)
            {
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

    /// The primaries that are connected, each first in its turn; then all others that are known.
    fn sources(&self, round: u64) -> Vec<TopologySource> {
        let mut sources = Vec::new();
        let mut others: Vec<RedisAddress> = Vec::new();
        if let Some(view) = self.view.load().as_ref() {
            let first = usize::try_from(round).unwrap_or(0) % view.primaries.len().max(1);
            let (after, before) = view.primaries.split_at(first);
            for primary in before.iter().chain(after) {
                match primary.pool.is_connected() {
                    true => sources.push(TopologySource::Connected(Arc::clone(primary))),
                    false => others.push(primary.address.clone()),
                }
            }
            others.splice(0..0, view.map.replicas.iter().cloned());
        }
        let mut seen = HashSet::new();
        let others = others
            .into_iter()
            .chain(self.seed_addresses.iter().cloned());
        sources.extend(
            others
                .filter(|address| seen.insert(address.clone()))
                .map(TopologySource::Address),
        );
        sources
    }

    async fn query(&self, source: &TopologySource) -> Result<TopologyReply, RedisStoreError> {
        match source {
            TopologySource::Connected(primary) => {
                let (info, hash_slots) = (command("INFO"), command("SLOTS"));
                let send = |command| {
                    primary
                        .pool
                        .send(RedisRequest::Command(command), SendMode::Plain)
                };
                let info = send(&info).await.0?;
                parse_topology(&info, &send(&hash_slots).await.0?, &primary.address)
            }
            TopologySource::Address(address) => query_at(address, &self.access, &self.config).await,
        }
    }

    /// Takes a map: keeps the ways to whom it still has, makes those to whom it has now.
    pub(super) fn adopt(&self, map: HashSlotMap) -> RefreshResult {
        let view = self.view.load_full();
        if view.as_ref().is_some_and(|view| view.map == map) {
            return RefreshResult::Unchanged;
        }
        let known = view.as_ref().map_or(&[][..], |view| &view.primaries[..]);
        let before = |shard_id| known.iter().find(|primary| primary.shard_id == shard_id);
        let state = |server_state: &Arc<ServerState>| {
            let primary = known
                .iter()
                .find(|primary| Arc::ptr_eq(&primary.server_state, server_state));
            primary.map_or(SourceState::Unverified, |primary| primary.source_state())
        };
        let server_state_before = |shard_id| before(shard_id).map(|primary| &primary.server_state);
        let mut server_states = self.hash_slot_states.lock();
        let server_states = server_states.take_over(&map, server_state_before, state);
        let primaries = map.primaries.iter().zip(server_states);
        let primaries = primaries
            .map(|(now, server_state)| self.primary_at(now, before(now.shard_id), server_state));
        match primaries.collect() {
            Ok(primaries) => {
                self.view
                    .store(Some(Arc::new(ClusterView { map, primaries })));
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
        let target = ConnectTarget::Fixed {
            address: now.address.clone(),
            access: self.access.clone(),
        };
        let pool = ConnectionPool::open(&target, &self.config, &self.scripts, &self.gate)?;
        Ok(Arc::new(ConnectedPrimary {
            shard_id: now.shard_id,
            address: now.address.clone(),
            pool,
            server_state,
        }))
    }
}

/// Asks the server at `address` over a connection that is for this question only.
pub(super) async fn query_at(
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

/// What the server at `address` says of its cluster.
fn parse_topology(
    info: &Value,
    hash_slots: &Value,
    address: &RedisAddress,
) -> Result<TopologyReply, RedisStoreError> {
    let info: String = redis::from_redis_value_ref(info).unwrap_or_default();
    let epoch = info
        .lines()
        .find_map(|line| line.strip_prefix("cluster_current_epoch:"))
        .and_then(|epoch| epoch.trim().parse().ok());
    let map = HashSlotMap::parse(hash_slots, host(address));
    Ok(TopologyReply {
        map: map.map_err(|error| RedisStoreError::no_topology(&error.to_string()))?,
        cluster_epoch: epoch.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A primary that was cut off answers as if nothing had happened; one that was made anew has
    /// forgotten how far the others were.
    #[test]
    fn an_older_map_is_used_only_when_there_has_been_no_other() {
        let began = Instant::now();
        let after = |secs| began + Duration::from_secs(secs);
        let mut known = KnownTopology {
            cluster_epoch: 7,
            received_at: began,
        };
        assert!(!known.accept(6, after(1)), "cut off");
        assert!(known.accept(7, after(4)));
        assert!(!known.accept(6, after(8)), "7 was told 4 s ago");
        assert!(known.accept(9, after(9)));
        assert!(!known.accept(3, after(14)));
        assert!(known.accept(3, after(15)), "made anew");
        assert!(known.accept(4, after(15)));
    }
}
