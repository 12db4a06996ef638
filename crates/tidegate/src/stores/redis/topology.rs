//! The servers of a store, for tools that check them one by one, such as `tidegate doctor`.
//!
//! Queries once: sentinels for their primary, servers of a cluster for the hash slot map. Waits for every one of
//! them, because the report lists the silent ones. Judges nothing, refreshes nothing, and does not connect to the
//! servers that hold counters: [`AdminConnection`] does that.

use super::access::{Access, RedisAddress};
use super::admin_connection::AdminConnection;
use super::cluster::{HashSlotMap, TopologyReply, hash_slot_of, query_at, register_key, tag_for};
use super::connection_pool::RedisConfig;
use super::error::RedisStoreError;
use super::heartbeat;
use super::redis_url::RedisUrl;
use super::secret;
use super::sentinel::{SentinelReply, Sentinels};

/// The servers of a store.
#[derive(Clone, Debug)]
pub enum RedisTopology {
    /// One server.
    SingleServer(RedisServer),
    /// A primary that sentinels watch.
    Sentinel {
        /// The primary that most sentinels name, or why there is none.
        primary: Result<RedisServer, RedisStoreError>,
        /// The reply of each sentinel, in configuration order.
        sentinels: Vec<SentinelReport>,
    },
    /// A cluster.
    Cluster {
        /// The primaries that serve hash slots.
        primaries: Vec<RedisServer>,
        /// The number of hash slots that no primary serves.
        unowned: usize,
        /// Configured servers that returned no hash slot map, and why.
        unreachable: Vec<(String, RedisStoreError)>,
    },
}

/// The reply of a sentinel.
#[derive(Clone, Debug)]
pub struct SentinelReport {
    /// The address of the sentinel.
    pub sentinel: String,
    /// The address of the primary that it names; none if it knows none of that name.
    pub primary: Result<Option<String>, RedisStoreError>,
}

/// A server of a store: its address and its keys.
#[derive(Clone, Debug)]
pub struct RedisServer {
    pub(super) address: RedisAddress,
    pub(super) access: Access,
    /// A hash tag of keys on this server; none if it has all keys.
    pub(super) tag: Option<String>,
    /// The number of hash slots it serves; 0 for a standalone server.
    pub(super) hash_slots: usize,
    /// The key of the register of nodes.
    pub(super) register: Vec<u8>,
    /// Whether the key of the secret is on this server.
    pub(super) has_secret: bool,
}

impl RedisTopology {
    /// Finds the servers of the store.
    ///
    /// # Errors
    /// When the URL is invalid, or no server of a cluster returns the hash slot map.
    pub async fn find(config: &RedisConfig) -> Result<RedisTopology, RedisStoreError> {
        match RedisUrl::parse(&config.url)? {
            RedisUrl::SingleServer { address, access } => {
                Ok(RedisTopology::SingleServer(RedisServer::standalone(address, access)))
            }
            RedisUrl::Sentinels { addresses, name, sentinels, servers } => {
                let patience = config.connect_timeout;
                let sentinel_group = Sentinels::new(&addresses, &name, &sentinels, &servers, patience);
                Ok(sentinel_topology(&sentinel_group).await)
            }
            RedisUrl::Cluster { addresses, access } => cluster_topology(&addresses, &access, config).await,
        }
    }
}

async fn sentinel_topology(sentinel_group: &Sentinels) -> RedisTopology {
    let (replies, primary) = sentinel_group.query_each().await;
    let report = |(sentinel, reply): (RedisAddress, SentinelReply)| SentinelReport {
        sentinel: sentinel.to_string(),
        primary: reply.map(|address| address.map(|address| address.to_string())),
    };
    RedisTopology::Sentinel {
        primary: primary.map(|address| RedisServer::standalone(address, sentinel_group.servers().clone())),
        sentinels: replies.into_iter().map(report).collect(),
    }
}

/// Queries all `seeds` at once for the hash slot map. The map of the highest cluster epoch wins: a server that was cut
/// off has an old map.
async fn cluster_topology(
    seeds: &[RedisAddress],
    access: &Access,
    config: &RedisConfig,
) -> Result<RedisTopology, RedisStoreError> {
    let query = |seed: &RedisAddress| {
        let (seed, access, config) = (seed.clone(), access.clone(), config.clone());
        tokio::spawn(async move { query_at(&seed, &access, &config).await })
    };
    let queries: Vec<_> = seeds.iter().map(query).collect();
    let (mut best, mut unreachable): (Option<TopologyReply>, _) = (None, Vec::new());
    for (seed, query) in seeds.iter().zip(queries) {
        match query.await.unwrap_or(Err(RedisStoreError::NOT_CONNECTED)) {
            Ok(reply) if best.as_ref().is_none_or(|best| best.cluster_epoch < reply.cluster_epoch) => {
                best = Some(reply);
            }
            Ok(_) => {}
            Err(error) => unreachable.push((seed.to_string(), error)),
        }
    }
    match (best, unreachable.first()) {
        (Some(reply), _) => Ok(build_topology(&reply.map, access, unreachable)),
        (None, Some((_, error))) => Err(error.clone()),
        (None, None) => Err(RedisStoreError::NOT_CONNECTED),
    }
}

fn build_topology(map: &HashSlotMap, access: &Access, unreachable: Vec<(String, RedisStoreError)>) -> RedisTopology {
    let secret = map.owner(hash_slot_of(secret::KEY.as_bytes()));
    let primaries = map.primaries.iter().enumerate();
    let servers = primaries.filter_map(|(index, primary)| {
        // Keys of the tool go to the hash slot of the register, which is as good as any other.
        let hash_slot = map.register_hash_slot(index, &[])?;
        Some(RedisServer {
            address: primary.address.clone(),
            access: access.clone(),
            tag: Some(tag_for(hash_slot)),
            hash_slots: map.count(Some(index)),
            register: register_key(hash_slot),
            has_secret: secret == Some(index),
        })
    });
    let mut primaries: Vec<RedisServer> = servers.collect();
    primaries.sort_by_key(RedisServer::address);
    RedisTopology::Cluster { primaries, unowned: map.count(None), unreachable }
}

impl RedisServer {
    fn standalone(address: RedisAddress, access: Access) -> RedisServer {
        let register = heartbeat::NODES_KEY.to_vec();
        RedisServer { address, access, tag: None, hash_slots: 0, register, has_secret: true }
    }

    /// The address, without user and password.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The number of hash slots of a cluster that it serves.
    pub fn hash_slots(&self) -> usize {
        self.hash_slots
    }

    /// Connects, and checks that the server replies.
    ///
    /// # Errors
    /// When the server does not reply, or rejects the login.
    pub async fn open(&self, config: &RedisConfig) -> Result<AdminConnection, RedisStoreError> {
        AdminConnection::open(self, config).await
    }
}
