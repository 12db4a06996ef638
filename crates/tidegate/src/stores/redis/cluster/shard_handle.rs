//! Sends the calls of one shard to its primary, and follows redirects.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tidegate_core::store::{HashSlot, ShardId};
use tidegate_core::subject::Fingerprint;

use super::hash_slots::{common_hash_slot, hash_slot_of_subject, tag_for};
use super::{ConnectedPrimary, RedisCluster};
use crate::stores::redis::connection::RedisReply;
use crate::stores::redis::connection_pool::{RedisRequest, ScriptCall};
use crate::stores::redis::durable::{DurabilityRequirement, DurabilityResult, DurableReplies};
use crate::stores::redis::error::RedisStoreError;
use crate::stores::redis::redirect::SendMode;

/// More redirects in a row than this are a loop.
const MAX_HOPS: u32 = 3;
/// The number of retries while the keys of one call are on two servers, and the pause before each: a hash slot moves
/// within milliseconds, and a decision has few of them.
const MAX_RETRIES: u32 = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// A handle to one shard of a cluster.
#[derive(Clone)]
pub(in crate::stores::redis) struct ShardHandle {
    pub(in crate::stores::redis) cluster: Arc<RedisCluster>,
    pub(in crate::stores::redis) shard_id: ShardId,
}

/// The register of a primary's nodes.
pub(in crate::stores::redis) struct NodeRegister {
    pub(in crate::stores::redis) primary: Arc<ConnectedPrimary>,
    pub(in crate::stores::redis) hash_slot: HashSlot,
    /// The name of the primary in the cluster.
    pub(in crate::stores::redis) id: String,
}

impl NodeRegister {
    /// The key, with the hash tag of its hash slot.
    pub(in crate::stores::redis) fn key(&self) -> Vec<u8> {
        register_key(self.hash_slot)
    }
}

/// The key of the register in `hash_slot`.
pub(in crate::stores::redis) fn register_key(hash_slot: HashSlot) -> Vec<u8> {
    format!("tg:ctl:{{{}}}:nodes", tag_for(hash_slot)).into_bytes()
}

impl ShardHandle {
    /// The hash slot of a subject, if its counters are in this shard.
    pub(in crate::stores::redis) fn hash_slot(&self, subject: Fingerprint) -> Option<HashSlot> {
        let hash_slot = hash_slot_of_subject(subject);
        (self.cluster.shard_of(hash_slot) == self.shard_id).then_some(hash_slot)
    }

    /// The primary, unless the shard has left the cluster.
    pub(in crate::stores::redis) fn primary(&self) -> Option<Arc<ConnectedPrimary>> {
        self.cluster.primary(self.shard_id)
    }

    /// Runs a script on keys of one hash slot.
    pub(in crate::stores::redis) async fn call(&self, call: &ScriptCall<'_>) -> RedisReply {
        let primary = self.primary_for(std::slice::from_ref(call))?;
        let request = RedisRequest::Script(call);
        let (first, _) = primary.pool.send(request, SendMode::Plain).await;
        self.cluster.follow(request, None, primary, first).await.map(|(value, _)| value)
    }

    /// Runs several scripts, in one pipeline as far as the primary has their keys, and waits until each is as durable
    /// as `need` requires, on the server that ran it.
    ///
    /// # Errors
    /// When nothing was sent, because earlier writes are not durable yet.
    pub(in crate::stores::redis) async fn call_each(
        &self,
        calls: &[ScriptCall<'_>],
        need: Option<DurabilityRequirement>,
    ) -> DurableReplies {
        let primary = match self.primary_for(calls) {
            Ok(primary) => primary,
            Err(error) => return Ok((vec![Err(error); calls.len()], Ok(()))),
        };
        let (firsts, mut durability) = primary.pool.call_each(calls, need).await?;
        let mut replies = Vec::with_capacity(calls.len());
        for (call, first) in calls.iter().zip(firsts) {
            let followed = self.cluster.follow(RedisRequest::Script(call), need, Arc::clone(&primary), first);
            replies.push(followed.await.map(|(value, durability_there)| {
                durability = durability.clone().and(durability_there);
                value
            }));
        }
        Ok((replies, durability))
    }

    /// The register of the shard's nodes, not in a hash slot of `without`.
    pub(in crate::stores::redis) fn register(&self, without: &[HashSlot]) -> Option<NodeRegister> {
        let view = self.cluster.view.load();
        let view = view.as_ref()?;
        let primary = view.primaries.iter().position(|primary| primary.shard_id == self.shard_id)?;
        Some(NodeRegister {
            primary: Arc::clone(&view.primaries[primary]),
            hash_slot: view.map.register_hash_slot(primary, without)?,
            id: view.map.primaries[primary].id.clone(),
        })
    }

    /// Applies an error to the map: a hash slot that moved no longer belongs to this shard.
    pub(in crate::stores::redis) fn note_error(&self, error: &RedisStoreError, from: &ConnectedPrimary) {
        self.cluster.note_error(error);
        if let Some(redirect) = error.redirect() {
            self.cluster.redirect_target(redirect, from);
        }
    }

    /// The primary, if each call has keys of one hash slot only.
    fn primary_for(&self, calls: &[ScriptCall<'_>]) -> Result<Arc<ConnectedPrimary>, RedisStoreError> {
        let mut hash_slots = calls.iter().map(|call| common_hash_slot(call.keys));
        if !hash_slots.all(|hash_slot| hash_slot.is_some()) {
            return Err(RedisStoreError::ACROSS_HASH_SLOTS);
        }
        self.primary().ok_or(RedisStoreError::NOT_SERVED)
    }
}

impl RedisCluster {
    /// Follows redirects from the first reply of `primary` to the server that runs the request. Returns also whether
    /// its writes there are as durable as `need` requires. A call that is rejected on its path is run nowhere.
    pub(super) async fn follow(
        &self,
        request: RedisRequest<'_>,
        need: Option<DurabilityRequirement>,
        primary: Arc<ConnectedPrimary>,
        mut reply: RedisReply,
    ) -> Result<(Value, DurabilityResult), RedisStoreError> {
        let (mut path, mut durability) = (RedirectPath::from(primary), Ok(()));
        loop {
            let error = match reply {
                Ok(value) => return Ok((value, durability)),
                Err(error) => error,
            };
            path.advance(self, error.clone()).await?;
            let pool = &path.primary.pool;
            (reply, durability) = match (request, need) {
                (RedisRequest::Script(call), Some(need)) => {
                    let sent = pool.call_durably(std::slice::from_ref(call), need, path.mode);
                    let Ok((mut replies, durability_there)) = sent.await else {
                        return Err(error.while_resharding());
                    };
                    (replies.pop().unwrap_or(Err(error)), durability_there)
                }
                _ => (pool.send(request, path.mode).await.0, Ok(())),
            };
        }
    }
}

/// A path of redirects. A redirecting server has done nothing, so nothing is done twice.
struct RedirectPath {
    primary: Arc<ConnectedPrimary>,
    mode: SendMode,
    hops: u32,
    retries: u32,
}

impl RedirectPath {
    fn from(primary: Arc<ConnectedPrimary>) -> Self {
        RedirectPath { primary, mode: SendMode::Plain, hops: 0, retries: 0 }
    }

    /// Moves on to the server of the next try, or returns the error if there is none.
    async fn advance(&mut self, cluster: &RedisCluster, error: RedisStoreError) -> Result<(), RedisStoreError> {
        cluster.note_error(&error);
        if let Some(redirect) = error.redirect() {
            let next = cluster.redirect_target(redirect, &self.primary);
            let Some(next) = next.filter(|_| self.hops < MAX_HOPS) else {
                return Err(error.while_resharding());
            };
            (self.primary, self.mode) = (next, redirect.mode);
            self.hops += 1;
        } else if error.code() == "TRYAGAIN" && self.retries < MAX_RETRIES {
            tokio::time::sleep(RETRY_PAUSE).await;
            self.retries += 1;
        } else {
            return Err(error);
        }
        Ok(())
    }
}
