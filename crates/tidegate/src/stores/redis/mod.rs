//! Counters in Redis or Valkey, shared by any number of nodes.
//!
//! Every verb is one script call: one atomic step, by the server's clock. A record holds all rates of one rule for
//! one subject, describes itself, and expires when all its counters are as good as fresh. Keys:
//!
//! | key | content |
//! |---|---|
//! | `tg:{SUBJECT}:RULE` | a record |
//! | `tg:{SUBJECT}s:RULE` | permits in use |
//! | `tg:{SUBJECT}r:ID` | a refund that was made |
//! | `tg:{SUBJECT}e:RULE` | reservations that wait to be settled |
//! | `tg:ctl:secret` | the deployment secret, or a check value of it; never expires |
//! | `tg:ctl:nodes` | the register of nodes; never expires |
//! | `tg:ctl:{TAG}:nodes` | the register of one primary of a cluster, in a hash slot that it serves |
//!
//! All counters of a subject are in one hash slot of a cluster, and no call touches two hash slots.
//! A script replies with the records it found and the time; `decision_replay` computes the figures from them.
//! Nothing is sent twice, except a script that the server did not have. Knows nothing of budgets,
//! breakers and fallbacks: other stores wrap this one for them.

mod access;
mod acknowledged_writes;
mod admin_connection;
mod call_id;
mod cluster;
#[cfg(test)]
mod conformance_tests;
mod connect_error;
mod connect_target;
mod connection;
mod connection_gate;
mod connection_pool;
mod decision_replay;
mod durable;
mod error;
mod heartbeat;
mod liveness;
#[cfg(test)]
mod lua_parity_tests;
mod plan;
mod port;
mod primary_fence;
mod redirect;
mod redis_url;
mod reply_parts;
#[cfg(test)]
mod reservation_tests;
mod reservations;
mod script_reply;
mod scripts;
mod secret;
mod sentinel;
mod server_state;
mod shards;
mod topology;
mod transport;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, Outcome, StoreError, UnacknowledgedError};
use tidegate_core::units::Nanos;

use super::record;

pub use self::admin_connection::{AdminConnection, RegisteredNode, RespValue};
pub use self::connection_pool::RedisConfig;
pub use self::error::{Action, MissingPermission, RedisStoreError};
pub use self::scripts::LoadedScript;
pub use self::secret::{SecretError, StoredSecret};
pub use self::shards::Redis;
pub use self::topology::{RedisServer, RedisTopology, SentinelReport};

use self::connection::{RedisReply, or_missing};
use self::connection_pool::ScriptCall;
use self::durable::{DurabilityRequirement, DurabilityResult};
use self::plan::ScriptPlan;
use self::port::decide_from_reply;
use self::script_reply::ScriptReply;
use self::scripts::Script;
use self::server_state::ServerState;
use self::transport::Transport;

/// Counters in one Redis or Valkey server, or in one primary of a cluster. Clones are handles to the same store.
#[derive(Clone)]
pub struct RedisStore {
    transport: Transport,
    server_state: Arc<ServerState>,
}

impl RedisStore {
    /// Opens a store in one server. It connects in the background and retries until it is connected. Must be
    /// called within a tokio runtime.
    ///
    /// # Errors
    /// When the URL is invalid, or is that of a cluster: a cluster is several stores.
    pub fn open(config: &RedisConfig) -> Result<Self, RedisStoreError> {
        Redis::open(config)?.into_single_store()
    }

    fn new(transport: Transport, server_state: Arc<ServerState>) -> Self {
        RedisStore { transport, server_state }
    }

    /// The last connection error, if there is no connection.
    pub fn last_error(&self) -> Option<RedisStoreError> {
        self.transport.pool()?.last_error()
    }

    /// Why durable charges are not acknowledged at present.
    pub fn unacknowledged(&self) -> Option<UnacknowledgedError> {
        self.transport.pool()?.unacknowledged()
    }

    /// Waits until the server is connected. For start-up and tests: no verb waits for it. Never completes for a shard
    /// that has left the cluster.
    pub async fn ready(&self) {
        let is_connected = || self.transport.pool().is_some_and(|pool| pool.is_connected());
        self.transport.gate().wait_until(is_connected).await;
    }

    /// The run of the connected server.
    fn run_of_server(&self) -> Option<u64> {
        self.transport.pool()?.run()
    }

    fn plan(&self, script: Script, charges: &[Charge<'_>], intent: ChargeIntent) -> Result<ScriptPlan, StoreError> {
        let plan = ScriptPlan::new(charges, intent, self.server_state.last_seen());
        plan.map_err(|error| rejected(script, error))
    }

    /// Runs `script` on a plan of `charges` and reads its reply. Fails if what it wrote is not durable.
    async fn run<T>(
        &self,
        script: Script,
        charges: &[Charge<'_>],
        intent: ChargeIntent,
        before: &[Vec<u8>],
        after: &[&[u8]],
        read: impl Fn(&ScriptPlan, ScriptReply) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        let (plan, reply, durability) = self.run_planned(script, charges, intent, before, after).await?;
        durable::confirm(&reply, &durability, began)?;
        read(&plan, reply)
    }

    /// Runs `script`, which charges `set`. What it charged and is not durable is charged all the same: as an error, it
    /// would be charged once more by whoever decides without the store.
    async fn run_decision(
        &self,
        script: Script,
        set: &ChargeSet<'_>,
        intent: ChargeIntent,
        before: &[Vec<u8>],
        after: &[&[u8]],
    ) -> Result<Outcome, StoreError> {
        let (plan, reply, durability) = self.run_planned(script, &set.charges, intent, before, after).await?;
        let outcome = decide_from_reply(script, set, &plan, &reply, intent)?;
        Ok(durable::with_durability(outcome, &durability))
    }

    /// Plans `charges` and runs `script` on the plan. Plans anew if the server replies that its time is outside
    /// the windows of the plan: then the script has done nothing.
    async fn run_planned(
        &self,
        script: Script,
        charges: &[Charge<'_>],
        intent: ChargeIntent,
        before: &[Vec<u8>],
        after: &[&[u8]],
    ) -> Result<(ScriptPlan, ScriptReply, DurabilityResult), StoreError> {
        let (mut tries, need) = (0, DurabilityRequirement::of(script, charges));
        loop {
            let plan = self.plan(script, charges, intent)?;
            let (reply, durability) = self.call_script(script, &plan, before, after, need).await?;
            tries += 1;
            if !reply.is_only_time() || tries == 3 {
                return Ok((plan, reply, durability));
            }
        }
    }

    async fn call_script(
        &self,
        script: Script,
        plan: &ScriptPlan,
        before: &[Vec<u8>],
        after: &[&[u8]],
        need: Option<DurabilityRequirement>,
    ) -> Result<(ScriptReply, DurabilityResult), StoreError> {
        let more: Vec<Vec<u8>>;
        let keys: &[Vec<u8>] = if before.is_empty() {
            &plan.keys
        } else {
            more = before.iter().chain(&plan.keys).cloned().collect();
            &more
        };
        let call = ScriptCall { script, keys, arguments: plan.arguments(after) };
        let began = Instant::now();
        let (reply, durability) = match need {
            None => (self.transport.call(&call).await, Ok(())),
            Some(need) => {
                let sent = self.transport.call_each(&[call], Some(need)).await;
                let waited = Nanos::from(began.elapsed());
                let (mut replies, durability) = sent.map_err(|reason| durable::unacknowledged_error(reason, waited))?;
                (or_missing(replies.pop()), durability)
            }
        };
        Ok((self.decode_reply(script, keys, reply, began)?, durability))
    }

    /// Fails until the first heartbeat of a new run, which shows whether data was lost. Every refund calls it first.
    fn require_heartbeat(&self, script: Script) -> Result<(), StoreError> {
        if self.server_state.has_acknowledged(self.run_of_server()) {
            return Ok(());
        }
        Err(RedisStoreError::HEARTBEAT_PENDING.into_store_error(script.name, Nanos::ZERO))
    }

    fn decode_reply(
        &self,
        script: Script,
        keys: &[Vec<u8>],
        reply: RedisReply,
        began: Instant,
    ) -> Result<ScriptReply, StoreError> {
        let waited = Nanos::from(began.elapsed());
        let value = reply.map_err(|error| error.with_keys(keys).into_store_error(script.name, waited))?;
        let reply = ScriptReply::read(value).map_err(|error| rejected(script, error))?;
        self.server_state.note_seen(reply.at);
        Ok(reply)
    }
}

/// The error for an invalid plan or an invalid reply of `script`.
fn rejected(script: Script, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Rejected { command: script.name, source: Box::new(source) }
}

/// Never prints an address or a password.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("transport", &self.transport).finish_non_exhaustive()
    }
}
