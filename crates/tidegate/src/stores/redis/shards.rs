//! The whole store: one server, the primary that sentinels know, or a cluster whose primaries are its shards.

use std::fmt;
use std::sync::Arc;

use redis::Cmd;
use tidegate_core::store::{FailureCause, FailureKind, ShardId, Shards, UnacknowledgedError};
use tidegate_core::subject::Fingerprint;

use super::RedisStore;
use super::cluster::{RedisCluster, ShardHandle, hash_slot_of_subject};
use super::connect_target::ConnectTarget;
use super::connection::RedisReply;
use super::connection_gate::ConnectionGate;
use super::connection_pool::{ConnectionPool, RedisConfig, RedisRequest};
use super::error::RedisStoreError;
use super::heartbeat::NODES_KEY;
use super::redirect::SendMode;
use super::redis_url::RedisUrl;
use super::scripts::{self, LoadedScript};
use super::sentinel::Sentinels;
use super::transport::Transport;

/// Counters in Redis or Valkey. Clones are handles to the same store.
#[derive(Clone)]
pub struct Redis(RedisDeployment);

#[derive(Clone)]
enum RedisDeployment {
    SingleServer { pool: Arc<ConnectionPool>, store: RedisStore },
    Cluster(Arc<RedisCluster>),
}

impl Redis {
    /// Opens a store. It connects in the background and retries until it is connected. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub fn open(config: &RedisConfig) -> Result<Self, RedisStoreError> {
        Self::open_with_scripts(config, scripts::ALL.map(LoadedScript::shipped))
    }

    pub(super) fn open_with_scripts(
        config: &RedisConfig,
        scripts: impl Into<Arc<[LoadedScript]>>,
    ) -> Result<Self, RedisStoreError> {
        let scripts = scripts.into();
        let target = match RedisUrl::parse(&config.url)? {
            RedisUrl::Cluster { addresses, access } => {
                for address in &addresses {
                    access.client(address)?; // rejects what could never connect
                }
                let cluster = RedisCluster::open(addresses, access, config, scripts);
                return Ok(Redis(RedisDeployment::Cluster(cluster)));
            }
            RedisUrl::SingleServer { address, access } => ConnectTarget::Fixed { address, access },
            RedisUrl::Sentinels { addresses, name, sentinels, servers } => {
                let patience = config.connect_timeout;
                let sentinel_group = Sentinels::new(&addresses, &name, &sentinels, &servers, patience);
                ConnectTarget::Sentinel(Arc::new(sentinel_group))
            }
        };
        let pool = ConnectionPool::open(target, config, &scripts, &Arc::new(ConnectionGate::new()))?;
        let store = RedisStore::new(Transport::SingleServer(Arc::clone(&pool)), Arc::default());
        Ok(Redis(RedisDeployment::SingleServer { pool, store }))
    }

    /// The only shard of a store that is one server.
    pub(super) fn into_single_store(self) -> Result<RedisStore, RedisStoreError> {
        match self.0 {
            RedisDeployment::SingleServer { store, .. } => Ok(store),
            RedisDeployment::Cluster(_) => {
                let cure = "write redis://HOST:PORT or unix:PATH";
                Err(RedisStoreError::needs_operator("several servers", "", cure))
            }
        }
    }

    /// Waits until a server is connected. For start-up and tests: no verb waits for it.
    pub async fn ready(&self) {
        self.gate().wait_until(|| self.pools().iter().any(|pool| pool.is_connected())).await;
    }

    /// Runs no script until [`Redis::unlock`]: a node that does not know the secret of the others would count
    /// their clients under other names.
    pub fn lock(&self) {
        self.gate().lock();
    }

    /// Allows scripts from now on.
    pub fn unlock(&self) {
        self.gate().unlock();
    }

    /// Whether scripts are forbidden, see [`Redis::lock`].
    pub fn is_locked(&self) -> bool {
        !self.gate().is_open()
    }

    /// The last connection error of a server that has no connection.
    pub fn last_error(&self) -> Option<RedisStoreError> {
        let map_error = match &self.0 {
            RedisDeployment::SingleServer { .. } => None,
            RedisDeployment::Cluster(cluster) => cluster.map_error(),
        };
        map_error.or_else(|| self.pools().iter().find_map(|pool| pool.last_error()))
    }

    /// Why durable charges are not acknowledged at present, by any server.
    pub fn unacknowledged(&self) -> Option<UnacknowledgedError> {
        self.pools().iter().find_map(|pool| pool.unacknowledged())
    }

    /// Why some counters have no server, if so: hash slots of the cluster that no primary serves.
    pub fn unserved(&self) -> Option<FailureCause> {
        let RedisDeployment::Cluster(cluster) = &self.0 else { return None };
        let count = cluster.unserved_hash_slots();
        (count > 0).then(|| {
            let text = format!(
                "{count} hash slots of the cluster have no primary: bring theirs back, or assign them \
                 (`redis-cli --cluster fix HOST:PORT`)"
            );
            FailureCause::new(FailureKind::Clusterdown, text)
        })
    }

    /// The policy by which any connected server evicts counters when it is full, if one does.
    pub fn eviction_policy(&self) -> Option<String> {
        self.pools().iter().find_map(|pool| pool.eviction_policy())
    }

    /// The number of refreshes of a cluster's hash slot map.
    pub fn topology_refreshes(&self) -> u64 {
        match &self.0 {
            RedisDeployment::SingleServer { .. } => 0,
            RedisDeployment::Cluster(cluster) => cluster.refreshes(),
        }
    }

    /// Runs a plain command on the server that has its only key.
    pub(super) async fn command(&self, key: &[u8], command: &Cmd) -> RedisReply {
        match &self.0 {
            RedisDeployment::SingleServer { pool, .. } => {
                pool.send(RedisRequest::Command(command), SendMode::Plain).await.0
            }
            RedisDeployment::Cluster(cluster) => cluster.command(key, command).await,
        }
    }

    /// The keys of the registers of nodes, one for each primary.
    pub(super) fn registers(&self) -> Vec<Vec<u8>> {
        match &self.0 {
            RedisDeployment::SingleServer { .. } => vec![NODES_KEY.to_vec()],
            RedisDeployment::Cluster(cluster) => cluster.registers(),
        }
    }

    /// The connections to each server.
    fn pools(&self) -> Vec<Arc<ConnectionPool>> {
        match &self.0 {
            RedisDeployment::SingleServer { pool, .. } => vec![Arc::clone(pool)],
            RedisDeployment::Cluster(cluster) => {
                cluster.primaries().iter().map(|primary| Arc::clone(&primary.pool)).collect()
            }
        }
    }

    fn gate(&self) -> &ConnectionGate {
        match &self.0 {
            RedisDeployment::SingleServer { pool, .. } => pool.gate(),
            RedisDeployment::Cluster(cluster) => &cluster.gate,
        }
    }
}

impl Shards for Redis {
    type Shard = RedisStore;

    fn shard_of(&self, subject: Fingerprint) -> ShardId {
        match &self.0 {
            RedisDeployment::SingleServer { store, .. } => store.shard_of(subject),
            RedisDeployment::Cluster(cluster) => cluster.shard_of(hash_slot_of_subject(subject)),
        }
    }

    fn shard(&self, id: ShardId) -> Option<RedisStore> {
        match &self.0 {
            RedisDeployment::SingleServer { store, .. } => store.shard(id),
            RedisDeployment::Cluster(cluster) => {
                let server_state = Arc::clone(&cluster.primary(id)?.server_state);
                let shard = ShardHandle { cluster: Arc::clone(cluster), shard_id: id };
                Some(RedisStore::new(Transport::ClusterShard(shard), server_state))
            }
        }
    }

    fn shard_ids(&self) -> Vec<ShardId> {
        match &self.0 {
            RedisDeployment::SingleServer { store, .. } => store.shard_ids(),
            RedisDeployment::Cluster(cluster) => cluster.shard_ids(),
        }
    }
}

/// Never prints an address or a password.
impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}
