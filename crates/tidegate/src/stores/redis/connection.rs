//! One connection to a server, and the task that maintains it.
//!
//! The task connects, loads the scripts, pings the connection, and reconnects when the connection breaks, with
//! growing and jittered backoff. `liveness` decides when a silent connection is replaced by a second one. The
//! address is resolved anew for each attempt. Invariant: a reply counts only while `primary_fence` has the run of
//! its server as the current one.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value};
use tidegate_core::subject::FingerprintKey;
use tokio::sync::Notify;

use super::access::RedisAddress;
use super::call_id::{CallId, CallIds};
use super::connect_error::explained;
use super::connect_target::ConnectTarget;
use super::connection_gate::ConnectionGate;
use super::connection_pool::ScriptCall;
use super::error::{Action, RedisStoreError};
use super::liveness::{Liveness, LivenessEffect};
use super::primary_fence::PrimaryFence;
use super::redirect::SendMode;
use super::scripts::LoadedScript;

/// The reply to one command.
pub(super) type RedisReply = Result<Value, RedisStoreError>;

/// What all connections to one server share.
pub(super) struct ServerContext {
    pub(super) target: ConnectTarget,
    pub(super) config: AsyncConnectionConfig,
    pub(super) fence: PrimaryFence,
    pub(super) scripts: Arc<[LoadedScript]>,
    pub(super) gate: Arc<ConnectionGate>,
    pub(super) call_ids: CallIds,
}

/// A connection that may be established or not.
pub(super) struct ManagedConnection {
    pub(super) server: Arc<ServerContext>,
    active: ArcSwapOption<ActiveConnection>,
    /// Why there is no connection.
    last_error: ArcSwapOption<RedisStoreError>,
}

/// A future that is polled beside others.
type PolledFuture<'a, T> = Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>;

/// A script call as it is sent: the id is its last argument.
pub(super) struct SentCall {
    pub(super) command: Cmd,
    pub(super) id: CallId,
}

impl SentCall {
    /// `script` is the hash or the text, as `verb` requires.
    pub(super) fn new(id: CallId, verb: &str, script: &str, call: &ScriptCall<'_>) -> SentCall {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(call.keys.len()).arg(call.keys).arg(&call.arguments).arg(id.bytes());
        SentCall { command, id }
    }
}

/// An established connection.
pub(super) struct ActiveConnection {
    server: Arc<ServerContext>,
    connection: MultiplexedConnection,
    /// Whether the server supports `EVAL_RO`.
    pub(super) read_only: bool,
    /// The policy by which the server evicts counters when it is full, if it does.
    eviction_policy: Option<String>,
    /// Identifies one run of one server. A replica that takes over has a run of its own.
    pub(super) run: u64,
    /// The address of the server.
    address: RedisAddress,
    /// The password that it was opened with.
    secret: Option<String>,
    /// Why it was given up.
    failure: OnceLock<RedisStoreError>,
    /// Notified when it is given up, for callers that wait for a reply which they can request again.
    ended: Notify,
    /// When the server has finished a command that blocks the connection on purpose.
    blocked_until: Mutex<Option<Instant>>,
}

impl ManagedConnection {
    pub(super) fn new(server: &Arc<ServerContext>) -> Arc<Self> {
        let (active, last_error) = (ArcSwapOption::empty(), ArcSwapOption::empty());
        Arc::new(ManagedConnection { server: Arc::clone(server), active, last_error })
    }

    /// The connection, if it is established and its run is current.
    pub(super) fn active(&self) -> Option<Arc<ActiveConnection>> {
        let active = self.active.load_full();
        active.filter(|active| active.failure.get().is_none() && active.is_current())
    }

    /// The policy by which the connected server evicts counters, if it does.
    pub(super) fn eviction_policy(&self) -> Option<String> {
        self.active()?.eviction_policy.clone()
    }

    /// The last connection error.
    pub(super) fn last_error(&self) -> Option<RedisStoreError> {
        let active = self.active.load();
        let failure = active.as_ref().and_then(|active| active.failure.get().cloned());
        failure.or_else(|| self.last_error.load().as_deref().cloned())
    }

    /// Makes a new connection current until it is given up or replaced. Returns the replacement, if there is one.
    async fn serve(&self, active: ActiveConnection) -> Option<ActiveConnection> {
        let active = Arc::new(active);
        self.server.fence.set_current(active.run);
        if let Some(replaced) = self.active.swap(Some(Arc::clone(&active))) {
            replaced.give_up(RedisStoreError::NOT_CONNECTED);
        }
        self.server.gate.connected.notify_waiters();
        let replacement = self.watch(&active).await;
        if replacement.is_none() {
            self.last_error.store(active.failure.get().cloned().map(Arc::new));
            self.active.store(None);
        }
        replacement
    }

    /// Watches a connection until it is given up or replaced: it broke, it went silent, or the primary is
    /// elsewhere. Returns the replacement, if there is one.
    async fn watch(&self, active: &ActiveConnection) -> Option<ActiveConnection> {
        let mut liveness = Liveness::new(Instant::now());
        let mut ping: PolledFuture<'_, RedisReply> = None;
        let mut second: PolledFuture<'_, Result<ActiveConnection, RedisStoreError>> = None;
        loop {
            // Registered before the checks, so that nothing that happens during them is missed.
            let (changed, ended) = (self.server.fence.changed(), active.ended.notified());
            if !active.is_current() {
                active.give_up(RedisStoreError::NO_PRIMARY);
            }
            if active.failure.get().is_some() {
                return None;
            }
            let effect = tokio::select! {
                // A reply of the first connection counts before the second one.
                biased;
                () = ended => LivenessEffect::None,
                () = changed => LivenessEffect::None,
                () = self.server.target.changed_from(Some(&active.address)) => {
                    self.server.fence.clear(active.run);
                    LivenessEffect::None
                }
                reply = next(&mut ping) => match reply {
                    Err(error) if error.is_silence() => liveness.ping_expired(),
                    Ok(_) | Err(_) => liveness.replied(Instant::now()),
                },
                connected = next(&mut second) => match connected {
                    Ok(replacement) => return Some(replacement),
                    Err(error) => {
                        let effect = liveness.connect_failed(Instant::now(), error.evidence());
                        self.last_error.store(Some(Arc::new(error)));
                        effect
                    }
                },
                () = sleep_until(liveness.wakes_at()) => {
                    liveness.timer(Instant::now(), *active.blocked_until.lock())
                }
            };
            match effect {
                LivenessEffect::None => {}
                LivenessEffect::Ping => ping = Some(Box::pin(active.ping())),
                LivenessEffect::Connect => second = Some(Box::pin(self.server.connect())),
                LivenessEffect::StopConnecting => second = None,
                LivenessEffect::GiveUp => {
                    active.give_up(self.last_error().unwrap_or(RedisStoreError::NOT_CONNECTED));
                }
            }
        }
    }
}

impl ServerContext {
    /// Resolves the address of the server and connects to it.
    async fn connect(self: &Arc<Self>) -> Result<ActiveConnection, RedisStoreError> {
        let (address, access) = (self.target.find().await?, self.target.access());
        let client = access.client(&address)?;
        let secret = client.get_connection_info().redis_settings().password();
        let secret = secret.map(str::to_owned);
        // The timeout bounds every step, so that the task is never stuck.
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(&client)).await;
        let handshake = handshake.unwrap_or_else(|_| Err(io::Error::from(ErrorKind::TimedOut).into()));
        let (connection, read_only, info) = match handshake {
            Ok(handshake) => handshake,
            Err(error) => {
                let error = RedisStoreError::from_redis(&error, secret.as_deref());
                return Err(explained(error, &address, access).await);
            }
        };
        let is_primary = info.lines().any(|line| line == "role:master");
        if !self.target.accepts(&address, is_primary) {
            return Err(RedisStoreError::NO_PRIMARY);
        }
        Ok(ActiveConnection {
            server: Arc::clone(self),
            connection,
            read_only,
            eviction_policy: eviction_policy(&info),
            run: run_id(&info),
            address,
            secret,
            failure: OnceLock::new(),
            ended: Notify::new(),
            blocked_until: Mutex::new(None),
        })
    }

    /// Connects, detects the server's features, and loads the scripts.
    async fn handshake(&self, client: &Client) -> RedisResult<(MultiplexedConnection, bool, String)> {
        let mut connection = client.get_multiplexed_async_connection_with_config(&self.config).await?;
        // PING comes first, so that the error is the one that matters: a server that requires a password
        // rejects a script as too long before it reports that.
        handshake_command::<Value>(&mut connection, &redis::cmd("PING")).await?;
        let mut probe = redis::cmd("EVAL_RO");
        probe.arg("return 1").arg(0);
        let read_only = handshake_command::<Value>(&mut connection, &probe).await.is_ok();
        let info: String = handshake_command(&mut connection, &redis::cmd("INFO")).await?;
        for loaded in &*self.scripts {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&*loaded.text);
            handshake_command::<Value>(&mut connection, &load).await?;
        }
        Ok((connection, read_only, info))
    }
}

impl ActiveConnection {
    /// Announces a command that blocks the connection for up to `span`.
    pub(super) fn expect_block_for(&self, span: Duration) {
        *self.blocked_until.lock() = Some(Instant::now() + span);
    }

    /// Sends a plain command. Its reply has no id, so a ping that returns one follows it: the ping's reply is in
    /// its place only if the command's reply is too. Stops waiting when the connection ends: unlike a charge, a
    /// plain command can be sent again.
    pub(super) async fn send(&self, command: &Cmd, mode: SendMode) -> RedisReply {
        let id = self.next_id();
        let mut pipeline = with_mode(command, mode);
        pipeline.add_command(id.ping());
        let ended = self.ended.notified();
        let mut replies = tokio::select! {
            biased;
            replies = self.send_all(&pipeline) => replies?,
            () = ended => return Err(self.failure.get().cloned().unwrap_or(RedisStoreError::NOT_CONNECTED)),
        };
        let echo = or_missing(replies.pop());
        let reply = or_missing(replies.into_iter().reduce(Result::and));
        self.before_ping(id, echo, reply)
    }

    /// Checks the reply to a plain command: the ping with this id directly followed the command.
    pub(super) fn before_ping(&self, id: CallId, echo: RedisReply, reply: RedisReply) -> RedisReply {
        match echo {
            Ok(echo) if id.is_echoed_by(&echo) => reply,
            Ok(_) => Err(self.reply_mismatch()),
            // A server that rejects the ping rejects the command too. If it did not, nothing shows to which
            // call the reply belongs.
            Err(error) => reply.and(Err(error)),
        }
    }

    /// The id of the next call on this connection.
    pub(super) fn next_id(&self) -> CallId {
        self.server.call_ids.next()
    }

    /// Sends a script call. Returns its reply without the call id.
    pub(super) async fn send_call(&self, call: &SentCall, mode: SendMode) -> RedisReply {
        let reply = match mode {
            SendMode::Plain => {
                let reply = call.command.query_async(&mut self.connection.clone()).await;
                self.if_current(reply.map_err(|error| self.handle_error(&error))?)?
            }
            SendMode::Asking => {
                let replies = self.send_all(&with_mode(&call.command, mode)).await?;
                or_missing(replies.into_iter().reduce(Result::and))?
            }
        };
        self.matching_reply(call.id, reply)
    }

    /// Sends several commands in one pipeline; one reply for each.
    pub(super) async fn send_all(&self, pipeline: &Pipeline) -> Result<Vec<RedisReply>, RedisStoreError> {
        let replies: RedisResult<Vec<RedisResult<Value>>> = pipeline.query_async(&mut self.connection.clone()).await;
        let replies = self.if_current(replies.map_err(|error| self.handle_error(&error))?)?;
        let read = |reply: RedisResult<Value>| reply.map_err(|error| self.handle_error(&error));
        Ok(replies.into_iter().map(read).collect())
    }

    /// The reply of the script call with this id, without the id. Any other reply ends the connection.
    pub(super) fn matching_reply(&self, id: CallId, reply: Value) -> RedisReply {
        id.strip(reply).ok_or_else(|| self.reply_mismatch())
    }

    async fn ping(&self) -> RedisReply {
        let id = self.next_id();
        let echo: RedisResult<Value> = id.ping().query_async(&mut self.connection.clone()).await;
        let echo = echo.map_err(|error| self.handle_error(&error))?;
        if id.is_echoed_by(&echo) { Ok(echo) } else { Err(self.reply_mismatch()) }
    }

    /// Gives up a connection on which a reply belonged to another call.
    fn reply_mismatch(&self) -> RedisStoreError {
        self.give_up(RedisStoreError::REPLY_MISMATCH);
        RedisStoreError::REPLY_MISMATCH
    }

    /// Whether replies of its run count.
    fn is_current(&self) -> bool {
        self.server.fence.is_current(self.run)
    }

    /// Returns `reply` if its server's run is still current.
    fn if_current<T>(&self, reply: T) -> Result<T, RedisStoreError> {
        if self.is_current() { Ok(reply) } else { Err(RedisStoreError::NO_PRIMARY) }
    }

    /// Converts an error. Gives the connection up if it is of no more use.
    fn handle_error(&self, error: &RedisError) -> RedisStoreError {
        let error = RedisStoreError::from_redis(error, self.secret.as_deref());
        if error.action() == Action::FindPrimary {
            self.server.fence.clear(self.run);
        }
        if error.ends_connection() {
            self.give_up(error.clone());
        }
        error
    }

    /// Ends the connection, unless it has ended.
    fn give_up(&self, error: RedisStoreError) {
        if self.failure.set(error).is_ok() {
            self.ended.notify_waiters();
        }
    }
}

/// The reply, or an error in place of one that the client library did not return.
pub(super) fn or_missing(reply: Option<RedisReply>) -> RedisReply {
    reply.unwrap_or(Err(RedisStoreError::NOT_CONNECTED))
}

/// The pipeline for a command: `ASKING` precedes it where a server is only importing the hash slot.
fn with_mode(command: &Cmd, mode: SendMode) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(3);
    pipeline.ignore_errors();
    if mode == SendMode::Asking {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(command.clone());
    pipeline
}

/// Sends one command of the handshake, with a timeout of its own: a new connection can be lost as silently as an
/// old one.
async fn handshake_command<T: FromRedisValue>(connection: &mut MultiplexedConnection, command: &Cmd) -> RedisResult<T> {
    let reply = tokio::time::timeout(HANDSHAKE_COMMAND_TIMEOUT, command.query_async(connection));
    let lost = |_| Err(io::Error::from(ErrorKind::TimedOut).into());
    reply.await.unwrap_or_else(lost)
}

/// The result of the future, which is removed; never completes if there is none.
async fn next<T>(future: &mut PolledFuture<'_, T>) -> T {
    let Some(running) = future else {
        return pending().await;
    };
    let result = running.await;
    *future = None;
    result
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// The timeout of one command of the handshake.
const HANDSHAKE_COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout of the whole handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that lasted as long as this resets the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(1);
const MIN_BACKOFF: Duration = Duration::from_millis(50);
/// So short that a server which is back is found before the breaker has received its successful pings. A refused
/// connection costs little.
const MAX_BACKOFF: Duration = Duration::from_millis(250);
/// For errors that only an operator can fix, here or at the server: credentials, permissions, names.
const OPERATOR_BACKOFF: Duration = Duration::from_secs(2);

/// Maintains one connection.
pub(super) async fn maintain(connection: Arc<ManagedConnection>) {
    let mut backoff = MIN_BACKOFF;
    let mut replacement = None;
    loop {
        let known = connection.server.target.last_known();
        let connected = match replacement.take() {
            Some(active) => Ok(active),
            None => connection.server.connect().await,
        };
        let max_backoff = match connected {
            Ok(active) => {
                let connected_at = Instant::now();
                replacement = connection.serve(active).await;
                if replacement.is_some() || connected_at.elapsed() >= STABLE_AFTER {
                    backoff = MIN_BACKOFF;
                    continue;
                }
                // A server that accepts a connection and then fails, such as a replica, is not retried at once.
                MAX_BACKOFF
            }
            Err(error) => {
                let waits_for_operator = error.action() == Action::NeedsOperator;
                connection.last_error.store(Some(Arc::new(error)));
                if waits_for_operator { OPERATOR_BACKOFF } else { MAX_BACKOFF }
            }
        };
        tokio::select! {
            () = connection.server.target.changed_from(known.as_ref()) => backoff = MIN_BACKOFF,
            () = tokio::time::sleep(jittered(backoff)) => backoff = (backoff * 2).min(max_backoff),
        }
    }
}

/// Half of `backoff` to all of it, so that nodes that lost a server together do not reconnect together.
pub(super) fn jittered(backoff: Duration) -> Duration {
    let mut byte = [128];
    let _ = getrandom::fill(&mut byte);
    backoff / 2 + backoff * u32::from(byte[0]) / 512
}

/// The policy in the reply to `INFO` by which a server evicts keys when it is full; `None` if it evicts none.
fn eviction_policy(info: &str) -> Option<String> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let is_bounded = field("maxmemory").is_some_and(|max| max != "0");
    let policy = field("maxmemory_policy").filter(|policy| is_bounded && *policy != "noeviction");
    policy.map(str::to_owned)
}

/// The run in the reply to `INFO`: a new one for every start, and for every replica that takes over. Nodes compare
/// it, so it is the same in every build.
fn run_id(info: &str) -> u64 {
    let lines = info.lines();
    let id_lines = lines.filter(|l| l.starts_with("run_id:") || l.starts_with("master_replid:"));
    let id_lines: Vec<&str> = id_lines.collect();
    FingerprintKey::new([0; 16]).fingerprint(id_lines.concat().as_bytes()).seed().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_evicts_only_with_a_bound_and_a_policy() {
        for (max, policy, want) in [
            ("0", "allkeys-lru", None),
            ("1048576", "noeviction", None),
            ("1048576", "allkeys-lru", Some("allkeys-lru")),
            ("1048576", "volatile-ttl", Some("volatile-ttl")),
        ] {
            let info = format!("role:master\r\nmaxmemory:{max}\r\nmaxmemory_human:1M\r\nmaxmemory_policy:{policy}\r\n");
            assert_eq!(eviction_policy(&info).as_deref(), want, "{info}");
        }
        assert_eq!(eviction_policy("role:master"), None);
    }
}
