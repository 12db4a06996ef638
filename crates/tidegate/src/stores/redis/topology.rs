//! What a store is made of, for whoever looks at its servers one by one, such as `tidegate doctor`.
//!
//! Asks once, those who know: sentinels where their primary is, servers of a cluster who serves what.
//! Every one is waited for, because here it matters who is silent. Judges nothing, keeps nothing up to
//! date, and enters no server that counts: that is for a [`AdminConnection`].

use super::access::{Access, RedisAddress};
use super::admin_connection::AdminConnection;
use super::cluster::topology_report;
use super::connection_pool::RedisConfig;
use super::error::RedisStoreError;
use super::heartbeat;
use super::redis_url::RedisUrl;
use super::sentinel::{SentinelReply, Sentinels};

/// The servers of a store, and what is known of them from outside.
#[derive(Clone, Debug)]
pub enum RedisTopology {
    /// One server.
    SingleServer(RedisServer),
    /// A primary that sentinels watch.
    Sentinel {
        /// The one that most of them name, or why there is none.
        primary: Result<RedisServer, RedisStoreError>,
        /// What each says, in the order they were written.
        sentinels: Vec<SentinelReport>,
    },
    /// A cluster.
    Cluster {
        /// Those that serve slots.
        primaries: Vec<RedisServer>,
        /// How many slots belong to nobody.
        unowned: usize,
        /// Servers that were written and do not tell of the cluster, and why.
        unreachable: Vec<(String, RedisStoreError)>,
    },
}

/// What a sentinel says.
#[derive(Clone, Debug)]
pub struct SentinelReport {
    /// Where it is.
    pub sentinel: String,
    /// Where it says the primary is; nothing if it knows none of that name.
    pub primary: Result<Option<String>, RedisStoreError>,
}

/// A server of a store: where it is, and which keys it has.
#[derive(Clone, Debug)]
pub struct RedisServer {
    pub(super) address: RedisAddress,
    pub(super) access: Access,
    pub(super) keys: ServerKeys,
}

/// The keys that a server has.
#[derive(Clone, Debug)]
pub(super) struct ServerKeys {
    /// What is between braces in keys that it has; nothing where it has all.
    pub(super) tag: Option<String>,
    /// How many slots it serves; of a server that is alone, none.
    pub(super) hash_slots: usize,
    /// Where nodes sign in.
    pub(super) register: Vec<u8>,
    /// Whether the secret is here.
    pub(super) has_secret: bool,
}

impl RedisTopology {
    /// Finds out what the store is made of.
    ///
    /// # Errors
    /// When the address cannot be read, or no server of a cluster tells who serves what.
    pub async fn find(config: &RedisConfig) -> Result<RedisTopology, RedisStoreError> {
        match RedisUrl::parse(&config.url)? {
            RedisUrl::SingleServer { address, access } => Ok(RedisTopology::SingleServer(
                RedisServer::standalone(address, access),
            )),
            RedisUrl::Sentinels {
                addresses,
                name,
                sentinels,
                servers,
            } => {
                let patience = config.connect_timeout;
                let sentinel_group =
                    Sentinels::new(&addresses, &name, &sentinels, &servers, patience);
                Ok(sentinel_topology(&sentinel_group).await)
            }
            RedisUrl::Cluster { addresses, access } => {
                topology_report::report(&addresses, &access, config).await
            }
        }
    }
}

async fn sentinel_topology(sentinel_group: &Sentinels) -> RedisTopology {
    let (replies, primary) = sentinel_group.query_each().await;
    let report = |(sentinel, names): (RedisAddress, SentinelReply)| SentinelReport {
        sentinel: sentinel.to_string(),
        primary: names.map(|address| address.map(|address| address.to_string())),
    };
    RedisTopology::Sentinel {
        primary: primary
            .map(|address| RedisServer::standalone(address, sentinel_group.servers().clone())),
        sentinels: replies.into_iter().map(report).collect(),
    }
}

impl RedisServer {
    fn standalone(address: RedisAddress, access: Access) -> RedisServer {
        let keys = ServerKeys {
            tag: None,
            hash_slots: 0,
            register: heartbeat::NODES_KEY.to_vec(),
            has_secret: true,
        };
        RedisServer {
            address,
            access,
            keys,
        }
    }

    /// Where it is, without user and password.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// How many slots of a cluster it serves.
    pub fn hash_slots(&self) -> usize {
        self.keys.hash_slots
    }

    /// Connects, and makes sure that somebody answers.
    ///
    /// # Errors
    /// When nobody does, or we are not let in.
    pub async fn open(&self, config: &RedisConfig) -> Result<AdminConnection, RedisStoreError> {
        AdminConnection::open(self, config).await
    }
}
