//! A connection for an operator's queries, apart from those that decide requests.
//!
//! `tidegate doctor` uses it. It sends the commands it is given, within the configured timeouts, and decodes the data
//! that only this store can decode: its secret, its register of nodes, its scripts. It judges nothing. None of its
//! errors contains a password.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, NodeId, Role, RuleOptions, StoreError};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::call_id::CallIds;
use super::connect_error::explained;
use super::connection::{RedisReply, SentCall};
use super::connection_pool::{RedisConfig, ScriptCall};
use super::error::RedisStoreError;
use super::heartbeat::registered_nodes;
use super::plan::ScriptPlan;
use super::reply_parts::time_of;
use super::script_reply::{ScriptReply, ScriptReplyError};
use super::scripts::{self, LoadedScript};
use super::secret::{self, StoredSecret};
use super::topology::RedisServer;
use super::{port, rejected};
use crate::secret::Secret;

/// A connection to one server.
pub struct AdminConnection {
    connection: MultiplexedConnection,
    password: Option<String>,
    address: String,
    database: i64,
    server: RedisServer,
}

/// A reply of a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RespValue {
    /// No value.
    Nil,
    /// A number.
    Number(i64),
    /// Text, or bytes.
    Text(Vec<u8>),
    /// Several values.
    List(Vec<RespValue>),
}

/// A node in the register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisteredNode {
    /// The id of the node.
    pub node: NodeId,
    /// The age of its last heartbeat, by the server's clock.
    pub ago: Nanos,
}

impl AdminConnection {
    pub(super) async fn open(server: &RedisServer, config: &RedisConfig) -> Result<Self, RedisStoreError> {
        let client = server.access.client(&server.address)?;
        let login = client.get_connection_info().redis_settings();
        let password = login.password().map(str::to_owned);
        let database = login.db();
        let connection_config = config.connection_config();
        let connected = client.get_multiplexed_async_connection_with_config(&connection_config);
        let pinged = async {
            let mut connection = connected.await?;
            redis::cmd("PING").exec_async(&mut connection).await?;
            Ok(connection)
        };
        let (server, address) = (server.clone(), server.address());
        match pinged.await {
            Ok(connection) => Ok(AdminConnection { connection, password, address, database, server }),
            Err(error) => {
                let error = RedisStoreError::from_redis(&error, password.as_deref());
                Err(explained(error, &server.address, &server.access).await)
            }
        }
    }

    /// The address of the server, without user and password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The number of the database.
    pub fn database(&self) -> i64 {
        self.database
    }

    /// The hash tag that a key must have to be on this primary of a cluster; none where the server has every key.
    pub fn tag(&self) -> Option<&str> {
        self.server.tag.as_deref()
    }

    /// Whether the store's secret is on this server.
    pub fn has_secret(&self) -> bool {
        self.server.has_secret
    }

    /// Sends one command.
    ///
    /// # Errors
    /// When the server replies with an error, or does not reply.
    pub async fn query(&self, words: &[&[u8]]) -> Result<RespValue, RedisStoreError> {
        self.query_value(&command(words)).await.map(RespValue::from)
    }

    /// Sends several commands in one pipeline; each has its own result.
    ///
    /// # Errors
    /// When the server does not reply.
    pub async fn query_each(
        &self,
        commands: &[Vec<&[u8]>],
    ) -> Result<Vec<Result<RespValue, RedisStoreError>>, RedisStoreError> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for words in commands {
            pipeline.add_command(command(words));
        }
        pipeline.ignore_errors();
        let mut connection = self.connection.clone();
        let replies: RedisResult<Vec<RedisResult<Value>>> = pipeline.query_async(&mut connection).await;
        let replies = replies.map_err(|error| self.to_error(&error))?.into_iter();
        Ok(replies.map(|one| one.map(RespValue::from).map_err(|error| self.to_error(&error))).collect())
    }

    /// The stored form of the secret, compared with the secret of this node.
    ///
    /// # Errors
    /// When the server replies with an error, or does not reply.
    pub async fn secret(&self, own: Option<&Secret>) -> Result<StoredSecret, RedisStoreError> {
        let found = self.query(&[b"GET", secret::KEY.as_bytes()]).await?;
        Ok(match found {
            RespValue::Nil => StoredSecret::None,
            RespValue::Text(found) => StoredSecret::of(&found, own),
            RespValue::Number(_) | RespValue::List(_) => StoredSecret::Unreadable,
        })
    }

    /// The registered nodes, including those that have gone silent.
    ///
    /// # Errors
    /// When the server replies with an error, or does not reply.
    pub async fn nodes(&self) -> Result<Vec<RegisteredNode>, RedisStoreError> {
        let Some(now) = self.time().await? else {
            return Ok(Vec::new());
        };
        let register = self.query_value(&command(&[b"HGETALL", &self.server.register])).await?;
        let nodes = registered_nodes(&register).into_iter();
        Ok(nodes.map(|(node, at)| RegisteredNode { node, ago: now.since(at) }).collect())
    }

    /// The server's time, if the reply is a valid one.
    ///
    /// # Errors
    /// When the server replies with an error, or does not reply.
    pub async fn time(&self) -> Result<Option<Nanos>, RedisStoreError> {
        Ok(time_of(&self.query_value(&redis::cmd("TIME")).await?))
    }

    /// The scripts that the store runs.
    pub fn scripts() -> Vec<LoadedScript> {
        scripts::ALL.map(LoadedScript::shipped).into()
    }

    /// Charges a limit of 1 twice, in a record under `key`, with the charge script. True if the first charge was
    /// allowed and the second denied, as it should be.
    ///
    /// # Errors
    /// When the script cannot be run, or its decision differs from the library's.
    pub async fn self_test(&self, key: &[u8]) -> Result<bool, StoreError> {
        // A bucket, because no window can end between the two charges.
        let spec = Spec::new(Algorithm::TokenBucket, 1, Nanos::from_secs(3_600));
        let limit = Limit::compile(&spec, Precision::Double);
        let limit = limit.map_err(|error| rejected(scripts::CHARGE, error))?;
        let rule = RuleName::new("doctor");
        let set = ChargeSet::of([Charge {
            subject: Fingerprint::new(0),
            rule: &rule,
            rate: 0,
            limit: std::borrow::Cow::Borrowed(&limit),
            cost: Cost::ONE,
            role: Role::Enforce,
            options: &RuleOptions::DEFAULT,
        }]);
        let first = self.charge(&set, key).await?;
        let second = self.charge(&set, key).await?;
        Ok(first && !second)
    }

    async fn charge(&self, set: &ChargeSet<'_>, key: &[u8]) -> Result<bool, StoreError> {
        let script = scripts::CHARGE;
        let plan = ScriptPlan::new(&set.charges, ChargeIntent::Charge, Nanos::ZERO);
        let plan = plan.map_err(|error| rejected(script, error))?;
        let call = ScriptCall { script, keys: &[key.to_vec()], arguments: plan.arguments(&[]) };
        let sent = SentCall::new(CallIds::new().next(), "EVALSHA", &LoadedScript::shipped(script).hash, &call);
        let reply = self.query_value(&sent.command).await;
        let reply = reply.and_then(|reply| sent.id.strip(reply).ok_or(RedisStoreError::REPLY_MISMATCH));
        let value = reply.map_err(|error| error.into_store_error(script.name, Nanos::ZERO))?;
        let reply = ScriptReply::read(value).map_err(|error| rejected(script, error))?;
        if reply.is_only_time() {
            return Err(rejected(script, ScriptReplyError::Shape));
        }
        Ok(port::decide_from_reply(script, set, &plan, &reply, ChargeIntent::Charge)?.admitted)
    }

    async fn query_value(&self, command: &Cmd) -> RedisReply {
        let mut connection = self.connection.clone();
        let reply = command.query_async(&mut connection).await;
        reply.map_err(|error| self.to_error(&error))
    }

    fn to_error(&self, error: &RedisError) -> RedisStoreError {
        let error = RedisStoreError::from_redis(error, self.password.as_deref());
        match self.tag() {
            // A store configured as a cluster redirects only while hash slots move.
            Some(_) => error.while_resharding(),
            None => error,
        }
    }
}

fn command(words: &[&[u8]]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

impl RespValue {
    /// The text, if it is valid UTF-8.
    pub fn text(&self) -> Option<&str> {
        match self {
            RespValue::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

impl From<Value> for RespValue {
    fn from(value: Value) -> Self {
        match value {
            Value::Int(number) => RespValue::Number(number),
            Value::BulkString(bytes) => RespValue::Text(bytes),
            Value::SimpleString(text) => RespValue::Text(text.into_bytes()),
            Value::Okay => RespValue::Text(b"OK".to_vec()),
            Value::Array(values) => RespValue::List(values.into_iter().map(RespValue::from).collect()),
            // The other variants belong to RESP3, which this connection does not use.
            _ => RespValue::Nil,
        }
    }
}

/// Never prints an address or a password.
impl std::fmt::Debug for AdminConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminConnection").finish_non_exhaustive()
    }
}
