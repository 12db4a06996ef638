//! Sends the calls of a store to its counters.

use std::fmt;
use std::sync::Arc;

use redis::Value;
use tidegate_core::store::{HashSlot, UnacknowledgedError};
use tidegate_core::subject::Fingerprint;

use super::cluster::ShardHandle;
use super::connection_pool::{ConnectionPool, RedisRequest, ScriptCall};
use super::durable::{DurabilityRequirement, DurableReplies};
use super::error::RedisStoreError;
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
    pub(super) async fn call(&self, call: &ScriptCall<'_>) -> Result<Value, RedisStoreError> {
        match self {
            Transport::SingleServer(pool) => pool.send(RedisRequest::Script(call), SendMode::Plain).await.0,
            Transport::ClusterShard(shard) => shard.call(call).await,
        }
    }

    /// Runs several scripts one after another, in one pipeline.
    pub(super) async fn call_each(&self, calls: &[ScriptCall<'_>]) -> Vec<Result<Value, RedisStoreError>> {
        match self {
            Transport::SingleServer(pool) => pool.call_each(calls).await,
            Transport::ClusterShard(shard) => shard.call_each(calls).await,
        }
    }

    /// The same, and waits until the writes are as durable as `need` requires.
    ///
    /// # Errors
    /// When nothing was sent, because earlier writes are not durable yet.
    pub(super) async fn call_durably(&self, calls: &[ScriptCall<'_>], need: DurabilityRequirement) -> DurableReplies {
        match self {
            Transport::SingleServer(pool) => pool.call_durably(calls, need, SendMode::Plain).await,
            Transport::ClusterShard(shard) => shard.call_durably(calls, need).await,
        }
    }

    /// Waits until the server is connected. Never completes for a shard that has left the cluster.
    pub(super) async fn ready(&self) {
        match self {
            Transport::SingleServer(pool) => pool.ready().await,
            Transport::ClusterShard(shard) => shard.ready().await,
        }
    }

    /// The last connection error, if there is no connection.
    pub(super) fn last_error(&self) -> Option<RedisStoreError> {
        match self {
            Transport::SingleServer(pool) => pool.last_error(),
            Transport::ClusterShard(shard) => shard.cluster.primary(shard.shard_id)?.pool.last_error(),
        }
    }

    /// Why durable charges are not acknowledged at present.
    pub(super) fn unacknowledged(&self) -> Option<UnacknowledgedError> {
        match self {
            Transport::SingleServer(pool) => pool.durable.unacknowledged(),
            Transport::ClusterShard(shard) => shard.cluster.primary(shard.shard_id)?.pool.durable.unacknowledged(),
        }
    }

    /// The run of the connected server.
    pub(super) fn run(&self) -> Option<u64> {
        match self {
            Transport::SingleServer(pool) => pool.run(),
            Transport::ClusterShard(shard) => shard.cluster.primary(shard.shard_id)?.pool.run(),
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
