//! How the calls of a store reach its counters.

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

/// One of the ways there are.
#[derive(Clone)]
pub(super) enum Transport {
    /// To a server that has everything.
    SingleServer(Arc<ConnectionPool>),
    /// To a primary of a cluster, and on to where it sends us.
    ClusterShard(ShardHandle),
}

impl Transport {
    /// Runs a script.
    pub(super) async fn call(&self, call: &ScriptCall<'_>) -> Result<Value, RedisStoreError> {
        match self {
            Transport::SingleServer(pool) => {
                pool.send(RedisRequest::Script(call), SendMode::Plain)
                    .await
                    .0
            }
            Transport::ClusterShard(shard) => shard.call(call).await,
        }
    }

    /// Runs several scripts one after another, in one go.
    pub(super) async fn call_each(
        &self,
        calls: &[ScriptCall<'_>],
    ) -> Vec<Result<Value, RedisStoreError>> {
        match self {
            Transport::SingleServer(pool) => pool.call_each(calls).await,
            Transport::ClusterShard(shard) => shard.call_each(calls).await,
        }
    }

    /// The same, and waits until they are as safe as `need` says.
    ///
    /// # Errors
    /// When nothing was sent, because what was sent before is not safe yet.
    pub(super) async fn call_durably(
        &self,
        calls: &[ScriptCall<'_>],
        need: DurabilityRequirement,
    ) -> DurableReplies {
        match self {
            Transport::SingleServer(pool) => pool.call_durably(calls, need, SendMode::Plain).await,
            Transport::ClusterShard(shard) => shard.call_durably(calls, need).await,
        }
    }

    /// Waits until the server can be asked; a part of a cluster that is none any more never can.
    pub(super) async fn ready(&self) {
        match self {
            Transport::SingleServer(pool) => pool.ready().await,
            Transport::ClusterShard(shard) => shard.ready().await,
        }
    }

    /// Why there is no connection, if there is none.
    pub(super) fn last_error(&self) -> Option<RedisStoreError> {
        match self {
            Transport::SingleServer(pool) => pool.last_error(),
            Transport::ClusterShard(shard) => {
                shard.cluster.primary(shard.shard_id)?.pool.last_error()
            }
        }
    }

    /// Why durable charges are not acknowledged at present.
    pub(super) fn unacknowledged(&self) -> Option<UnacknowledgedError> {
        match self {
            Transport::SingleServer(pool) => pool.durable.unacknowledged(),
            Transport::ClusterShard(shard) => shard
                .cluster
                .primary(shard.shard_id)?
                .pool
                .durable
                .unacknowledged(),
        }
    }

    /// The run of the server that is connected.
    pub(super) fn run(&self) -> Option<u64> {
        match self {
            Transport::SingleServer(pool) => pool.run(),
            Transport::ClusterShard(shard) => shard.cluster.primary(shard.shard_id)?.pool.run(),
        }
    }

    /// The slot of a subject's counters, if this way leads to them.
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
