//! One connection for an operator's questions, apart from those that count.
//!
//! What `tidegate doctor` looks through. It asks what it is told to ask, waits no longer than it was
//! told, and reads what only this store can read: its secret, its register of nodes, its scripts. It
//! judges nothing. No error it gives tells a password.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, NodeId, Role, RuleOptions, StoreError};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::call_id::CallIds;
use super::closing_error::or_closing_error;
use super::connection_pool::RedisConfig;
use super::decision_replay::ReplayIntent;
use super::error::RedisStoreError;
use super::plan::{ScriptPlan, Spending};
use super::script_reply::{ScriptReply, ScriptReplyError};
use super::scripts::{self, LoadedScript};
use super::secret::{self, StoredSecret};
use super::tls_detection::or_no_tls;
use super::topology::{RedisServer, ServerKeys};
use super::{heartbeat, port, rejected};
use crate::secret::Secret;

/// A connection to one server.
pub struct AdminConnection {
    connection: MultiplexedConnection,
    password: Option<String>,
    address: String,
    database: i64,
    keys: ServerKeys,
}

/// What a server answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RespValue {
    /// That there is nothing.
    Nil,
    /// A number.
    Number(i64),
    /// Text, or bytes.
    Text(Vec<u8>),
    /// Several answers.
    List(Vec<RespValue>),
}

/// A script of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScriptText {
    /// What it does.
    pub name: &'static str,
    /// What the server knows it by.
    pub hash: String,
    /// What it is loaded from.
    pub text: &'static str,
}

/// A node in the register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisteredNode {
    /// Which.
    pub node: NodeId,
    /// How long ago it last gave a sign of life, by the server's clock.
    pub ago: Nanos,
}

impl AdminConnection {
    pub(super) async fn open(
        server: &RedisServer,
        config: &RedisConfig,
    ) -> Result<Self, RedisStoreError> {
        let client = server.access.client(&server.address)?;
        let login = client.get_connection_info().redis_settings();
        let password = login.password().map(str::to_owned);
        let database = login.db();
        let connection_config = config.connection_config();
        let connected = client.get_multiplexed_async_connection_with_config(&connection_config);
        let connection = match connected.await {
            Ok(connection) => connection,
            Err(error) => {
                let error = RedisStoreError::from_redis(&error, password.as_deref());
                let error = or_closing_error(error, &server.address, &server.access).await;
                return Err(or_no_tls(error, &server.address, &server.access).await);
            }
        };
        let admin = AdminConnection {
            connection,
            password,
            address: server.address(),
            database,
            keys: server.keys.clone(),
        };
        match admin.query(&[b"PING"]).await {
            Ok(_) => Ok(admin),
            Err(error) => Err(or_closing_error(error, &server.address, &server.access).await),
        }
    }

    /// Where the server is, without user and password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The number of the database.
    pub fn database(&self) -> i64 {
        self.database
    }

    /// What a key must have between braces for this primary of a cluster to have it; nothing where the
    /// server has every key.
    pub fn tag(&self) -> Option<&str> {
        self.keys.tag.as_deref()
    }

    /// Whether the secret of the store is kept here.
    pub fn has_secret(&self) -> bool {
        self.keys.has_secret
    }

    /// Asks one command.
    ///
    /// # Errors
    /// When it is refused, or nothing comes back.
    pub async fn query(&self, words: &[&[u8]]) -> Result<RespValue, RedisStoreError> {
        self.query_value(&command(words)).await.map(RespValue::from)
    }

    /// Asks several in one go; each is answered or refused on its own.
    ///
    /// # Errors
    /// When nothing comes back.
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
        let replies: RedisResult<Vec<RedisResult<Value>>> =
            pipeline.query_async(&mut connection).await;
        let replies = replies.map_err(|error| self.to_error(&error))?.into_iter();
        Ok(replies
            .map(|one| {
                one.map(RespValue::from)
                    .map_err(|error| self.to_error(&error))
            })
            .collect())
    }

    /// What the store keeps of the secret, compared with the one this node was given.
    ///
    /// # Errors
    /// When it is refused, or nothing comes back.
    pub async fn secret(&self, own: Option<&Secret>) -> Result<StoredSecret, RedisStoreError> {
        let found = self.query(&[b"GET", secret::KEY.as_bytes()]).await?;
        Ok(match found {
            RespValue::Nil => StoredSecret::None,
            RespValue::Text(found) => StoredSecret::of(&found, own),
            RespValue::Number(_) | RespValue::List(_) => StoredSecret::Unreadable,
        })
    }

    /// The nodes that have signed in, those that have gone silent too.
    ///
    /// # Errors
    /// When it is refused, or nothing comes back.
    pub async fn nodes(&self) -> Result<Vec<RegisteredNode>, RedisStoreError> {
        let now = self.time().await?;
        let found = self.query(&[b"HGETALL", &self.keys.register]).await?;
        let (Some(now), RespValue::List(fields)) = (now, found) else {
            return Ok(Vec::new());
        };
        let pairs = fields.chunks_exact(2);
        let nodes = pairs.filter_map(|pair| {
            let (node, at) = heartbeat::parse_heartbeat(pair[0].text()?, pair[1].text()?)?;
            let ago = now.since(at);
            Some(RegisteredNode { node, ago })
        });
        Ok(nodes.collect())
    }

    /// The server's time, if what it answers is one.
    ///
    /// # Errors
    /// When it is refused, or nothing comes back.
    pub async fn time(&self) -> Result<Option<Nanos>, RedisStoreError> {
        let RespValue::List(parts) = self.query(&[b"TIME"]).await? else {
            return Ok(None);
        };
        let part = |at: usize| parts.get(at)?.text()?.parse::<u64>().ok();
        let (secs, micros) = (part(0), part(1));
        let micros = micros.map(|micros| Nanos::new(micros.saturating_mul(1_000)));
        let time = secs.zip(micros);
        Ok(time.map(|(secs, micros)| Nanos::from_secs(secs).plus(micros)))
    }

    /// The scripts that the store runs.
    pub fn scripts() -> Vec<ScriptText> {
        let each = scripts::ALL.into_iter().map(|script| ScriptText {
            name: script.name,
            hash: LoadedScript::new(script, script.text).hash,
            text: script.text,
        });
        each.collect()
    }

    /// Charges a limit of one twice, in a record under `key`, by the script that decides. Whether the
    /// first passed and the second did not, as it should be.
    ///
    /// # Errors
    /// When the script cannot be run, or decides otherwise than the library.
    pub async fn self_test(&self, key: &[u8]) -> Result<bool, StoreError> {
        // A bucket: no window ends between the two.
        let spec = Spec::new(Algorithm::TokenBucket, 1, Nanos::from_secs(3_600));
        let limit = Limit::compile(&spec, Precision::Script);
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
        let plan = ScriptPlan::new(&set.charges, Spending::Charge, Nanos::ZERO);
        let plan = plan.map_err(|error| rejected(script, error))?;
        let mut call = redis::cmd("EVALSHA");
        call.arg(LoadedScript::new(script, script.text).hash)
            .arg(1)
            .arg(key);
        for argument in plan.arguments(&[]) {
            call.arg(argument);
        }
        let id = CallIds::new().next();
        call.arg(id.bytes());
        let reply = self.query_value(&call).await;
        let reply =
            reply.and_then(|reply| id.strip(reply).ok_or_else(RedisStoreError::reply_mismatch));
        let value = reply.map_err(|error| error.into_store_error(script.name, Nanos::ZERO))?;
        let reply = ScriptReply::read(value).map_err(|error| rejected(script, error))?;
        if reply.is_only_time() {
            return Err(rejected(script, ScriptReplyError::Shape));
        }
        Ok(port::decide_from_reply(script, set, &plan, &reply, ReplayIntent::Charge)?.admitted)
    }

    async fn query_value(&self, command: &Cmd) -> Result<Value, RedisStoreError> {
        let mut connection = self.connection.clone();
        let reply = command.query_async(&mut connection).await;
        reply.map_err(|error| self.to_error(&error))
    }

    fn to_error(&self, error: &RedisError) -> RedisStoreError {
        let error = RedisStoreError::from_redis(error, self.password.as_deref());
        match self.tag() {
            // A cluster that we know to be one sends us on only while slots move.
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
    /// As text, if it is.
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
            Value::Array(values) => {
                RespValue::List(values.into_iter().map(RespValue::from).collect())
            }
            // The rest is of a protocol that is not spoken here.
            _ => RespValue::Nil,
        }
    }
}

/// Never prints an address or a password.
impl std::fmt::Debug for AdminConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").finish_non_exhaustive()
    }
}
