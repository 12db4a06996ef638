//! Heartbeats: the status of the store, and the membership of the nodes that share it.
//!
//! An epoch ends when counts may have been lost: the server restarted, a replica took over, or the data is gone. A
//! new connection shows the first two by its `run`. The data epoch in the register of nodes shows the third: it is
//! drawn anew when the register is gone, or is older than the writes that a node knows of. Each primary of a cluster
//! has a register of its own, in one of its hash slots, and a replica that takes over has it too. When that hash slot
//! moves, nodes register in another one and bring the epoch along.

use redis::Value;
use tidegate_core::store::{
    Epoch, FailureCause, HashSlot, Heartbeat, HeartbeatReply, NodeId, Probe, ShardId, Shards, StoreError, StoreStatus,
};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;

use super::cluster::ShardHandle;
use super::connection::RedisReply;
use super::connection_pool::{ConnectionPool, RedisRequest, ScriptCall};
use super::error::RedisStoreError;
use super::redirect::SendMode;
use super::reply_parts::{decimal, list, text, time};
use super::script_reply::ScriptReplyError;
use super::server_state::draw_data_epoch;
use super::transport::Transport;
use super::{RedisStore, rejected, scripts};

/// The register of nodes of a standalone server.
pub(super) const NODES_KEY: &[u8] = b"tg:ctl:nodes";
/// The lifetime of a heartbeat, in milliseconds: many times the interval at which nodes renew it.
const HEARTBEAT_LIFETIME_MS: &[u8] = b"3000";
/// The lifetime of a cluster's register without a heartbeat, in milliseconds: its hash slot may have moved, and
/// nodes register elsewhere.
const REGISTER_LIFETIME_MS: &[u8] = b"3600000";
/// The number of hash slots of a primary to try while it is migrating some away.
const MAX_TRIES: usize = 4;

/// The nodes in a register, and the times of their last heartbeats. `register` is the reply to `HGETALL`, see
/// `heartbeat.lua`.
pub(super) fn registered_nodes(register: &Value) -> Vec<(NodeId, Nanos)> {
    let parse = |pair: &[Value]| {
        let node = text(&pair[0]).filter(|node| node.len() == 16)?;
        let (millis, _restored) = text(&pair[1])?.split_once(' ')?;
        Some((NodeId(u64::from_str_radix(node, 16).ok()?), Nanos::from_millis(millis.parse().ok()?)))
    };
    let fields = list(register).unwrap_or_default();
    fields.chunks_exact(2).filter_map(parse).collect()
}

impl Probe for RedisStore {
    async fn heartbeat(&self, heartbeat: Heartbeat) -> Result<StoreStatus, StoreError> {
        let began = std::time::Instant::now();
        let (reply, run) = match &self.transport {
            Transport::SingleServer(pool) => {
                let (key, new_data_epoch) = (NODES_KEY.to_vec(), draw_data_epoch());
                let register = KnownRegister { key, new_data_epoch, ..KnownRegister::default() };
                self.register(heartbeat, pool, &register).await
            }
            Transport::ClusterShard(shard) => self.register_at_primary(shard, heartbeat).await,
        };
        let waited = Nanos::from(began.elapsed());
        let value = reply.map_err(|error| error.into_store_error(scripts::HEARTBEAT.name, waited))?;
        let script_reply =
            HeartbeatScriptReply::read(&value).ok_or_else(|| rejected(scripts::HEARTBEAT, ScriptReplyError::Shape))?;
        self.server_state.note_data_epoch(script_reply.data_epoch);
        self.server_state.raise_since(script_reply.since);
        self.server_state.note_heartbeat(run, &script_reply.run, script_reply.at);
        let epoch = epoch_of(run, script_reply.data_epoch);
        let reply = HeartbeatReply {
            epoch,
            data_epoch: script_reply.data_epoch,
            at: script_reply.at,
            last_saved_heartbeat: script_reply.found,
        };
        let complete_until = self.server_state.restore_point.lock().record(heartbeat.restored, &reply);
        Ok(StoreStatus { epoch, at: script_reply.at, complete_until, heartbeats: script_reply.heartbeats })
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(epoch_of(self.run_of_server()?, self.server_state.data_epoch()?))
    }

    fn take_incomplete_hash_slots(&self) -> Vec<HashSlot> {
        self.server_state.take_incomplete_hash_slots()
    }

    fn failure_cause(&self, error: &StoreError) -> FailureCause {
        let (StoreError::Unavailable { source, .. } | StoreError::Rejected { source, .. }) = error;
        match source.downcast_ref::<RedisStoreError>() {
            Some(error) => error.cause(),
            None => FailureCause::of(error),
        }
    }

    fn hash_slot(&self, subject: Fingerprint) -> Option<HashSlot> {
        self.transport.hash_slot(subject)
    }
}

impl RedisStore {
    /// Sends the heartbeat to the register in a hash slot that the primary serves and is not migrating: a reply of
    /// another primary would report another epoch.
    async fn register_at_primary(&self, shard: &ShardHandle, heartbeat: Heartbeat) -> (RedisReply, u64) {
        let mut leaving = Vec::new();
        loop {
            let Some(found) = shard.register(&leaving) else {
                return (Err(RedisStoreError::NOT_SERVED), 0);
            };
            let known = self.server_state.data_epoch();
            let registered_in = *self.server_state.registered_in.lock();
            let register = KnownRegister {
                key: found.key(),
                // The hash slots have moved here, and no node has registered yet: nothing was lost.
                new_data_epoch: known
                    .filter(|_| registered_in != Some(found.hash_slot))
                    .unwrap_or_else(draw_data_epoch),
                known_data_epoch: known.map_or_else(String::new, hex),
                primary: found.id,
                lifetime_ms: REGISTER_LIFETIME_MS,
            };
            let (reply, run) = self.register(heartbeat, &found.primary.pool, &register).await;
            match &reply {
                Ok(_) => *self.server_state.registered_in.lock() = Some(found.hash_slot),
                Err(error) => {
                    shard.note_error(error, &found.primary);
                    leaving.push(found.hash_slot);
                    if error.redirect().is_some() && leaving.len() < MAX_TRIES {
                        continue;
                    }
                }
            }
            return (reply, run);
        }
    }

    /// Writes a heartbeat to a register. Returns the reply and the run of the server.
    async fn register(
        &self,
        heartbeat: Heartbeat,
        pool: &ConnectionPool,
        register: &KnownRegister,
    ) -> (RedisReply, u64) {
        let known = self.server_state.acknowledged.lock().clone();
        let arguments: [Vec<u8>; 10] = [
            hex(heartbeat.node.0).into(),
            heartbeat.restored.map_or_else(String::new, |epoch| hex(epoch.0)).into(),
            hex(register.new_data_epoch).into(),
            HEARTBEAT_LIFETIME_MS.into(),
            register.lifetime_ms.into(),
            known.run.clone(),
            known.millis().to_string().into(),
            register.known_data_epoch.clone().into(),
            register.primary.clone().into(),
            self.server_state.raised_since().millis_up().to_string().into(),
        ];
        let call = ScriptCall {
            script: scripts::HEARTBEAT,
            keys: std::slice::from_ref(&register.key),
            arguments: arguments.iter().map(Vec::as_slice).collect(),
        };
        pool.send(RedisRequest::Script(&call), SendMode::Plain).await
    }
}

/// The register of a server, as far as this node knows it.
#[derive(Default)]
struct KnownRegister {
    key: Vec<u8>,
    /// The epoch to write if there is no register.
    new_data_epoch: u64,
    /// Empty if it is unknown, or the server is standalone.
    known_data_epoch: String,
    /// The server's id in its cluster. Empty if it is standalone.
    primary: String,
    /// The lifetime of the register without a heartbeat, in milliseconds. Empty: it never expires.
    lifetime_ms: &'static [u8],
}

/// One server is one shard.
impl Shards for RedisStore {
    type Shard = RedisStore;

    fn shard_of(&self, _: Fingerprint) -> ShardId {
        ShardId(0)
    }

    fn shard(&self, id: ShardId) -> Option<RedisStore> {
        (id == ShardId(0)).then(|| self.clone())
    }

    fn shard_ids(&self) -> Vec<ShardId> {
        vec![ShardId(0)]
    }
}

fn epoch_of(run: u64, data_epoch: u64) -> Epoch {
    Epoch(crate::runtime::mix(run ^ crate::runtime::mix(data_epoch)))
}

fn hex(number: u64) -> String {
    format!("{number:016x}")
}

/// The reply of `scripts/heartbeat.lua`.
struct HeartbeatScriptReply {
    at: Nanos,
    data_epoch: u64,
    /// The name of the server's run.
    run: Vec<u8>,
    since: Nanos,
    /// The last heartbeat that the run found in its data.
    found: Nanos,
    heartbeats: Vec<Heartbeat>,
}

impl HeartbeatScriptReply {
    fn read(value: &Value) -> Option<HeartbeatScriptReply> {
        let [secs, micros, epoch, run, since, found, heartbeats @ ..] = list(value)? else {
            return None;
        };
        let hex = |value: &Value| u64::from_str_radix(text(value)?, 16).ok();
        let heartbeat =
            |pair: &[Value]| Some(Heartbeat { node: NodeId(hex(&pair[0])?), restored: hex(&pair[1]).map(Epoch) });
        Some(HeartbeatScriptReply {
            at: time([secs, micros])?,
            data_epoch: hex(epoch)?,
            run: text(run)?.into(),
            since: Nanos::from_millis(decimal(since)?),
            found: Nanos::from_millis(decimal(found)?),
            heartbeats: heartbeats.chunks_exact(2).filter_map(heartbeat).collect(),
        })
    }
}
