//! One connection for an operator's questions, apart from those that count.
//!
//! What `tidegate doctor` looks through. It asks what it is told to ask, waits no longer than it was
//! told, and reads what only this store can read: its secret, its register of nodes, its scripts. It
//! judges nothing. No error it gives tells a password.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, RedisResult, Value};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, NodeId, Role, StoreError, Terms};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::books::Intent;
use super::call_id::CallIds;
use super::closing_error::or_closing_error;
use super::fault::Fault;
use super::layout::{Share, Site};
use super::link::RedisConfig;
use super::plain::or_no_tls;
use super::plan::{Plan, Spending};
use super::reply::{Nonsense, Reply};
use super::scripts::{self, Loaded};
use super::secret::{self, SecretKept};
use super::{port, probe, refused};
use crate::secret::Secret;

/// A connection to one server.
pub struct Console {
    connection: MultiplexedConnection,
    password: Option<String>,
    address: String,
    database: i64,
    share: Share,
}

/// What a server answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    /// That there is nothing.
    Nothing,
    /// A number.
    Number(i64),
    /// Text, or bytes.
    Text(Vec<u8>),
    /// Several answers.
    List(Vec<Said>),
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
pub struct SignedIn {
    /// Which.
    pub node: NodeId,
    /// How long ago it last gave a sign of life, by the server's clock.
    pub ago: Nanos,
}

impl Console {
    pub(super) async fn open(site: &Site, config: &RedisConfig) -> Result<Self, Fault> {
        let client = site.access.client(&site.place)?;
        let login = client.get_connection_info().redis_settings();
        let password = login.password().map(str::to_owned);
        let database = login.db();
        let waits = config.waits();
        let connected = client.get_multiplexed_async_connection_with_config(&waits);
        let connection = match connected.await {
            Ok(connection) => connection,
            Err(error) => {
                let fault = Fault::of(&error, password.as_deref());
                let fault = or_closing_error(fault, &site.place, &site.access).await;
                return Err(or_no_tls(fault, &site.place, &site.access).await);
            }
        };
        let console = Console {
            connection,
            password,
            address: site.address(),
            database,
            share: site.share.clone(),
        };
        match console.ask(&[b"PING"]).await {
            Ok(_) => Ok(console),
            Err(fault) => Err(or_closing_error(fault, &site.place, &site.access).await),
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
        self.share.tag.as_deref()
    }

    /// Whether the secret of the store is kept here.
    pub fn keeps_secret(&self) -> bool {
        self.share.has_secret
    }

    /// Asks one command.
    ///
    /// # Errors
    /// When it is refused, or nothing comes back.
    pub async fn ask(&self, words: &[&[u8]]) -> Result<Said, Fault> {
        self.value(&command(words)).await.map(Said::from)
    }

    /// Asks several in one go; each is answered or refused on its own.
    ///
    /// # Errors
    /// When nothing comes back.
    pub async fn ask_each(
        &self,
        commands: &[Vec<&[u8]>],
    ) -> Result<Vec<Result<Said, Fault>>, Fault> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for words in commands {
            pipeline.add_command(command(words));
        }
        pipeline.ignore_errors();
        let mut connection = self.connection.clone();
        let answers: RedisResult<Vec<RedisResult<Value>>> =
            pipeline.query_async(&mut connection).await;
        let answers = answers.map_err(|error| self.fault(&error))?.into_iter();
        Ok(answers
            .map(|one| one.map(Said::from).map_err(|error| self.fault(&error)))
            .collect())
    }

    /// What the store keeps of the secret, compared with the one this node was given.
    ///
    /// # Errors
    /// When it is refused, or nothing comes back.
    pub async fn secret(&self, own: Option<&Secret>) -> Result<SecretKept, Fault> {
        let found = self.ask(&[b"GET", secret::KEY.as_bytes()]).await?;
        Ok(match found {
            Said::Nothing => SecretKept::None,
            Said::Text(found) => SecretKept::of(&found, own),
            Said::Number(_) | Said::List(_) => SecretKept::Unreadable,
        })
    }

    /// The nodes that have signed in, those that have gone silent too.
    ///
    /// # Errors
    /// When it is refused, or nothing comes back.
    pub async fn nodes(&self) -> Result<Vec<SignedIn>, Fault> {
        let now = self.time().await?;
        let found = self.ask(&[b"HGETALL", &self.share.register]).await?;
        let (Some(now), Said::List(fields)) = (now, found) else {
            return Ok(Vec::new());
        };
        let pairs = fields.chunks_exact(2);
        let signed = pairs.filter_map(|pair| {
            let (node, at) = probe::signed(pair[0].text()?, pair[1].text()?)?;
            let ago = now.since(at);
            Some(SignedIn { node, ago })
        });
        Ok(signed.collect())
    }

    /// The server's time, if what it answers is one.
    ///
    /// # Errors
    /// When it is refused, or nothing comes back.
    pub async fn time(&self) -> Result<Option<Nanos>, Fault> {
        let Said::List(parts) = self.ask(&[b"TIME"]).await? else {
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
            hash: Loaded::new(script, script.text).hash,
            text: script.text,
        });
        each.collect()
    }

    /// Charges a limit of one twice, in a record under `key`, by the script that decides. Whether the
    /// first passed and the second did not, as it should be.
    ///
    /// # Errors
    /// When the script cannot be run, or decides otherwise than the library.
    pub async fn rehearse(&self, key: &[u8]) -> Result<bool, StoreError> {
        // A bucket: no window ends between the two.
        let spec = Spec::new(Algorithm::TokenBucket, 1, Nanos::from_secs(3_600));
        let limit = Limit::compile(&spec, Precision::Script);
        let limit = limit.map_err(|error| refused(scripts::CHARGE, error))?;
        let rule = RuleName::new("doctor");
        let set = ChargeSet::of([Charge {
            subject: Fingerprint::new(0),
            rule: &rule,
            rate: 0,
            limit: std::borrow::Cow::Borrowed(&limit),
            cost: Cost::ONE,
            role: Role::Enforce,
            terms: &Terms::USUAL,
        }]);
        let first = self.charge(&set, key).await?;
        let second = self.charge(&set, key).await?;
        Ok(first && !second)
    }

    async fn charge(&self, set: &ChargeSet<'_>, key: &[u8]) -> Result<bool, StoreError> {
        let script = scripts::CHARGE;
        let plan = Plan::new(&set.charges, Spending::Charge, Nanos::ZERO);
        let plan = plan.map_err(|error| refused(script, error))?;
        let mut call = redis::cmd("EVALSHA");
        call.arg(Loaded::new(script, script.text).hash)
            .arg(1)
            .arg(key);
        for argument in plan.arguments(&[]) {
            call.arg(argument);
        }
        let id = CallIds::new().next();
        call.arg(id.bytes());
        let answer = self.value(&call).await;
        let answer = answer.and_then(|reply| id.strip(reply).ok_or_else(Fault::out_of_step));
        let value = answer.map_err(|fault| fault.into_store_error(script.name, Nanos::ZERO))?;
        let reply = Reply::read(value).map_err(|error| refused(script, error))?;
        if reply.is_only_time() {
            return Err(refused(script, Nonsense::Shape));
        }
        Ok(port::decided(script, set, &plan, &reply, Intent::Charge)?.admitted)
    }

    async fn value(&self, command: &Cmd) -> Result<Value, Fault> {
        let mut connection = self.connection.clone();
        let answer = command.query_async(&mut connection).await;
        answer.map_err(|error| self.fault(&error))
    }

    fn fault(&self, error: &RedisError) -> Fault {
        let fault = Fault::of(error, self.password.as_deref());
        match self.tag() {
            // A cluster that we know to be one sends us on only while slots move.
            Some(_) => fault.on_the_move(),
            None => fault,
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

impl Said {
    /// As text, if it is.
    pub fn text(&self) -> Option<&str> {
        match self {
            Said::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

impl From<Value> for Said {
    fn from(value: Value) -> Self {
        match value {
            Value::Int(number) => Said::Number(number),
            Value::BulkString(bytes) => Said::Text(bytes),
            Value::SimpleString(text) => Said::Text(text.into_bytes()),
            Value::Okay => Said::Text(b"OK".to_vec()),
            Value::Array(values) => Said::List(values.into_iter().map(Said::from).collect()),
            // The rest is of a protocol that is not spoken here.
            _ => Said::Nothing,
        }
    }
}

/// Never prints an address or a password.
impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console").finish_non_exhaustive()
    }
}
