//! The servers of a store, for tools that check them one by one, such as `tidegate doctor`.
//!
//! Queries once: sentinels for their primary, servers of a cluster for the hash slot map. Waits for every one of
//! them, because the report lists the silent ones. Judges nothing, refreshes nothing, and does not connect to the
//! servers that hold counters: [`AdminConnection`] does that.

use super::access::{Access, RedisAddress};
use super::admin_connection::AdminConnection;
use super::cluster::topology_report;
use super::connection_pool::RedisConfig;
use super::error::RedisStoreError;
use super::heartbeat;
use super::redis_url::RedisUrl;
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
    pub(super) keys: ServerKeys,
}

/// The keys that a server has.
#[derive(Clone, Debug)]
pub(super) struct ServerKeys {
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
            RedisUrl::Cluster { addresses, access } => topology_report::report(&addresses, &access, config).await,
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

impl RedisServer {
    fn standalone(address: RedisAddress, access: Access) -> RedisServer {
        let keys = ServerKeys { tag: None, hash_slots: 0, register: heartbeat::NODES_KEY.to_vec(), has_secret: true };
        RedisServer { address, access, keys }
    }

    /// The address, without user and password.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// The number of hash slots of a cluster that it serves.
    pub fn hash_slots(&self) -> usize {
        self.keys.hash_slots
    }

    /// Connects, and checks that the server replies.
    ///
    /// # Errors
    /// When the server does not reply, or rejects the login.
    pub async fn open(&self, config: &RedisConfig) -> Result<AdminConnection, RedisStoreError> {
        AdminConnection::open(self, config).await
    }
}
