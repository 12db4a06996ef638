//! Sends the calls of a store to its counters.

use std::fmt;
use std::sync::Arc;

use tidegate_core::store::HashSlot;
use tidegate_core::subject::Fingerprint;

use super::cluster::ShardHandle;
use super::connection::RedisReply;
use super::connection_gate::ConnectionGate;
use super::connection_pool::{ConnectionPool, RedisRequest, ScriptCall};
use super::durable::{DurabilityRequirement, DurableReplies};
use super::redirect::SendMode;

/// The kinds of transport.
#[derive(Clone)]
pub(super) enum Transport {
    /// To the server that has all keys.
    SingleServer(Arc<ConnectionPool>),
    /// To a primary of a cluster, following its redirects.
    ClusterShard(ShardHandle),
}

impl Transport {
    pub(super) async fn call(&self, call: &ScriptCall<'_>) -> RedisReply {
        match self {
            Transport::SingleServer(pool) => pool.send(RedisRequest::Script(call), SendMode::Plain).await.0,
            Transport::ClusterShard(shard) => shard.call(call).await,
        }
    }

    /// Runs several scripts one after another, in one pipeline, and waits until the writes are as durable as `need`
    /// requires.
    ///
    /// # Errors
    /// When nothing was sent, because earlier writes are not durable yet.
    pub(super) async fn call_each(
        &self,
        calls: &[ScriptCall<'_>],
        need: Option<DurabilityRequirement>,
    ) -> DurableReplies {
        match self {
            Transport::SingleServer(pool) => pool.call_each(calls, need).await,
            Transport::ClusterShard(shard) => shard.call_each(calls, need).await,
        }
    }

    /// The connections to the server. None for a shard that has left the cluster.
    pub(super) fn pool(&self) -> Option<Arc<ConnectionPool>> {
        match self {
            Transport::SingleServer(pool) => Some(Arc::clone(pool)),
            Transport::ClusterShard(shard) => shard.primary().map(|primary| Arc::clone(&primary.pool)),
        }
    }

    pub(super) fn gate(&self) -> &ConnectionGate {
        match self {
            Transport::SingleServer(pool) => pool.gate(),
            Transport::ClusterShard(shard) => &shard.cluster.gate,
        }
    }

    /// The hash slot of a subject's counters, if they are in this shard.
    pub(super) fn hash_slot(&self, subject: Fingerprint) -> Option<HashSlot> {
        match self {
            Transport::SingleServer(_) => Some(HashSlot(0)),
            Transport::ClusterShard(shard) => shard.hash_slot(subject),
        }
    }
}

/// Never prints an address or a password.
impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::SingleServer(pool) => pool.fmt(f),
            Transport::ClusterShard(shard) => shard.shard_id.fmt(f),
        }
    }
}
