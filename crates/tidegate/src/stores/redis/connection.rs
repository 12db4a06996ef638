//! One connection to a server, and the task that maintains it.
//!
//! The task connects, loads the scripts, pings the connection, and reconnects when the connection breaks, with
//! growing and jittered backoff. `liveness` decides when a silent connection is replaced by a second one. The
//! address is resolved anew for each attempt. Invariant: a reply counts only while `primary_fence` has the run of
//! its server as the current one.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value};
use tidegate_core::subject::FingerprintKey;
use tokio::sync::Notify;

use super::access::RedisAddress;
use super::call_id::{CallId, CallIds};
use super::closing_error::or_closing_error;
use super::connect_target::ConnectTarget;
use super::connection_gate::ConnectionGate;
use super::error::{Action, RedisStoreError};
use super::liveness::{Liveness, LivenessEffect};
use super::primary_fence::PrimaryFence;
use super::redirect::SendMode;
use super::scripts::LoadedScript;
use super::tls_detection::or_no_tls;

/// A connection that may be established or not.
pub(super) struct ManagedConnection {
    target: ConnectTarget,
    fence: Arc<PrimaryFence>,
    scripts: Arc<[LoadedScript]>,
    config: AsyncConnectionConfig,
    active: ArcSwapOption<ActiveConnection>,
    /// Why there is no connection.
    last_error: ArcSwapOption<RedisStoreError>,
    broken: Notify,
    gate: Arc<ConnectionGate>,
    call_ids: CallIds,
    /// When the server has finished a command that blocks the connection on purpose.
    blocked_until: Mutex<Option<Instant>>,
}

/// A future that is polled beside others.
type PolledFuture<'a, T> = Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>;

/// A script call as it is sent: the id is its last argument.
pub(super) struct SentCall {
    pub(super) command: Cmd,
    pub(super) id: CallId,
}

/// An established connection.
pub(super) struct ActiveConnection {
    pub(super) connection: MultiplexedConnection,
    /// Whether the server supports `EVAL_RO`.
    pub(super) read_only: bool,
    /// Identifies one run of one server. A replica that takes over has a run of its own.
    pub(super) run: u64,
    /// The address of the server.
    address: RedisAddress,
    /// The password that it was opened with.
    secret: Option<String>,
    /// Notified when the connection ends, for callers that wait for a reply which they can request again.
    ended: Notify,
}

impl ManagedConnection {
    /// A connection to `target`. `gate` is notified whenever it is established.
    pub(super) fn new(
        target: ConnectTarget,
        fence: Arc<PrimaryFence>,
        config: AsyncConnectionConfig,
        scripts: Arc<[LoadedScript]>,
        gate: Arc<ConnectionGate>,
        call_ids: CallIds,
    ) -> Self {
        ManagedConnection {
            target,
            fence,
            scripts,
            config,
            active: ArcSwapOption::empty(),
            last_error: ArcSwapOption::empty(),
            broken: Notify::new(),
            gate,
            call_ids,
            blocked_until: Mutex::new(None),
        }
    }

    /// Announces a command that blocks the connection for up to `span`.
    pub(super) fn expect_block_for(&self, span: Duration) {
        *self.blocked_until.lock() = Some(Instant::now() + span);
    }

    /// The connection, if it is established and its run is current.
    pub(super) fn active(&self) -> Option<Arc<ActiveConnection>> {
        let active = self.active.load_full();
        active.filter(|active| self.fence.is_current(active.run))
    }

    /// The last connection error.
    pub(super) fn last_error(&self) -> Option<Arc<RedisStoreError>> {
        self.last_error.load_full()
    }

    /// Sends a plain command. Its reply has no id, so a ping that returns one follows it: the ping's reply is in
    /// its place only if the command's reply is too. Stops waiting when the connection ends: unlike a charge, a
    /// plain command can be sent again.
    pub(super) async fn send(
        &self,
        active: &Arc<ActiveConnection>,
        command: &Cmd,
        mode: SendMode,
    ) -> Result<Value, RedisStoreError> {
        let id = self.call_ids.next();
        let mut pipeline = with_mode(command, mode);
        pipeline.add_command(id.ping());
        let ended = active.ended.notified();
        let mut replies = tokio::select! {
            biased;
            replies = self.send_all(active, &pipeline) => replies?,
            () = ended => return Err(RedisStoreError::not_connected(self.last_error().as_deref())),
        };
        let echo = replies.pop().unwrap_or(Err(RedisStoreError::not_connected(None)));
        let none = Err(RedisStoreError::not_connected(None));
        let reply = replies.into_iter().reduce(Result::and).unwrap_or(none);
        self.before_ping(active, id, echo, reply)
    }

    /// Checks the reply to a plain command: the ping with this id directly followed the command.
    pub(super) fn before_ping(
        &self,
        active: &Arc<ActiveConnection>,
        id: CallId,
        echo: Result<Value, RedisStoreError>,
        reply: Result<Value, RedisStoreError>,
    ) -> Result<Value, RedisStoreError> {
        match echo {
            Ok(echo) if id.is_echoed_by(&echo) => reply,
            Ok(_) => Err(self.reply_mismatch(active)),
            // A server that rejects the ping rejects the command too. If it did not, nothing shows to which
            // call the reply belongs.
            Err(error) => reply.and(Err(error)),
        }
    }

    /// The id of the next call on this connection.
    pub(super) fn next_id(&self) -> CallId {
        self.call_ids.next()
    }

    /// Sends a script call. Returns its reply without the call id.
    pub(super) async fn send_call(
        &self,
        active: &Arc<ActiveConnection>,
        call: &SentCall,
        mode: SendMode,
    ) -> Result<Value, RedisStoreError> {
        let reply = match mode {
            SendMode::Plain => {
                let mut connection = active.connection.clone();
                let reply = call.command.query_async(&mut connection).await;
                let reply = reply.map_err(|error| self.handle_error(active, &error))?;
                self.if_current(active, reply)?
            }
            SendMode::Asking => {
                let replies = self.send_all(active, &with_mode(&call.command, mode)).await?;
                let none = Err(RedisStoreError::not_connected(None));
                replies.into_iter().reduce(Result::and).unwrap_or(none)?
            }
        };
        self.matching_reply(active, call.id, reply)
    }

    /// Sends several commands in one pipeline; one reply for each.
    pub(super) async fn send_all(
        &self,
        active: &Arc<ActiveConnection>,
        pipeline: &Pipeline,
    ) -> Result<Vec<Result<Value, RedisStoreError>>, RedisStoreError> {
        let mut connection = active.connection.clone();
        let replies: RedisResult<Vec<RedisResult<Value>>> = pipeline.query_async(&mut connection).await;
        let replies = replies.map_err(|error| self.handle_error(active, &error))?;
        let replies = self.if_current(active, replies)?.into_iter();
        let read = |reply: RedisResult<Value>| reply.map_err(|error| self.handle_error(active, &error));
        Ok(replies.map(read).collect())
    }

    /// The reply of the script call with this id, without the id. Any other reply ends the connection.
    pub(super) fn matching_reply(
        &self,
        active: &Arc<ActiveConnection>,
        id: CallId,
        reply: Value,
    ) -> Result<Value, RedisStoreError> {
        id.strip(reply).ok_or_else(|| self.reply_mismatch(active))
    }

    /// Gives up a connection on which a reply belonged to another call.
    pub(super) fn reply_mismatch(&self, active: &Arc<ActiveConnection>) -> RedisStoreError {
        let error = RedisStoreError::reply_mismatch();
        self.give_up(active, error.clone());
        error
    }

    /// Returns `reply` if its server's run is still current.
    pub(super) fn if_current<T>(&self, active: &Arc<ActiveConnection>, reply: T) -> Result<T, RedisStoreError> {
        if self.fence.is_current(active.run) { Ok(reply) } else { Err(RedisStoreError::no_primary()) }
    }

    /// Converts an error. Gives the connection up if it is of no more use.
    pub(super) fn handle_error(&self, active: &Arc<ActiveConnection>, error: &RedisError) -> RedisStoreError {
        let error = RedisStoreError::from_redis(error, active.secret.as_deref());
        if error.action() == Action::FindPrimary {
            self.fence.clear(active.run);
        }
        if error.ends_connection() {
            self.give_up(active, error.clone());
        }
        error
    }

    fn give_up(&self, active: &Arc<ActiveConnection>, error: RedisStoreError) {
        let current = self.active.load();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, active)) {
            self.last_error.store(Some(Arc::new(error)));
            self.active.store(None);
            active.ended.notify_waiters();
            self.broken.notify_one();
        }
    }

    /// Resolves the address of the server and connects to it.
    async fn connect(&self) -> Result<ActiveConnection, RedisStoreError> {
        let address = self.target.find().await?;
        let client = self.target.access().client(&address)?;
        let secret = client.get_connection_info().redis_settings().password();
        let secret = secret.map(str::to_owned);
        // The timeout bounds every step, so that the task is never stuck.
        let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.handshake(&client)).await;
        let handshake = handshake.unwrap_or_else(|_| Err(io::Error::from(ErrorKind::TimedOut).into()));
        let (connection, read_only, info) = match handshake {
            Ok(handshake) => handshake,
            Err(error) => {
                let error = RedisStoreError::from_redis(&error, secret.as_deref());
                let access = self.target.access();
                let error = or_closing_error(error, &address, access).await;
                return Err(or_no_tls(error, &address, access).await);
            }
        };
        let is_primary = info.lines().any(|line| line == "role:master");
        if !self.target.accepts(&address, is_primary) {
            return Err(RedisStoreError::no_primary());
        }
        Ok(ActiveConnection { connection, read_only, run: run_id(&info), address, secret, ended: Notify::new() })
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

    /// Makes a new connection current until it is given up or replaced. Returns the replacement, if there is one.
    async fn serve(&self, active: ActiveConnection) -> Option<ActiveConnection> {
        let active = Arc::new(active);
        self.fence.set_current(active.run);
        if let Some(replaced) = self.active.swap(Some(Arc::clone(&active))) {
            replaced.ended.notify_waiters();
        }
        self.gate.connected.notify_waiters();
        self.watch(&active).await
    }

    /// Watches a connection until it is given up or replaced: it broke, it went silent, or the primary is
    /// elsewhere. Returns the replacement, if there is one.
    async fn watch(&self, active: &Arc<ActiveConnection>) -> Option<ActiveConnection> {
        let mut liveness = Liveness::new(Instant::now());
        let mut ping: PolledFuture<'_, Result<Value, RedisStoreError>> = None;
        let mut second: PolledFuture<'_, Result<ActiveConnection, RedisStoreError>> = None;
        loop {
            let changed = self.fence.changed();
            if self.active.load().is_none() {
                return None;
            }
            if !self.fence.is_current(active.run) {
                self.give_up(active, RedisStoreError::no_primary());
                return None;
            }
            let effect = tokio::select! {
                // A reply of the first connection counts before the second one.
                biased;
                () = self.broken.notified() => LivenessEffect::None,
                () = changed => LivenessEffect::None,
                () = self.target.changed_from(Some(&active.address)) => {
                    self.fence.clear(active.run);
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
                    liveness.timer(Instant::now(), *self.blocked_until.lock())
                }
            };
            match effect {
                LivenessEffect::None => {}
                LivenessEffect::Ping => ping = Some(Box::pin(self.ping(active))),
                LivenessEffect::Connect => second = Some(Box::pin(self.connect())),
                LivenessEffect::StopConnecting => second = None,
                LivenessEffect::GiveUp => {
                    let error = RedisStoreError::not_connected(self.last_error().as_deref());
                    self.give_up(active, error);
                }
            }
        }
    }

    async fn ping(&self, active: &Arc<ActiveConnection>) -> Result<Value, RedisStoreError> {
        let id = self.call_ids.next();
        let mut connection = active.connection.clone();
        let echo = id.ping().query_async(&mut connection).await;
        let echo: Value = echo.map_err(|error| self.handle_error(active, &error))?;
        if id.is_echoed_by(&echo) { Ok(echo) } else { Err(self.reply_mismatch(active)) }
    }
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
        let known = connection.target.last_known();
        let connected = match replacement.take() {
            Some(active) => Ok(active),
            None => connection.connect().await,
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
            () = connection.target.changed_from(known.as_ref()) => backoff = MIN_BACKOFF,
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

/// The run in the reply to `INFO`: a new one for every start, and for every replica that takes over. Nodes compare
/// it, so it is the same in every build.
fn run_id(info: &str) -> u64 {
    let lines = info.lines();
    let id_lines = lines.filter(|l| l.starts_with("run_id:") || l.starts_with("master_replid:"));
    let id_lines: Vec<&str> = id_lines.collect();
    FingerprintKey::new([0; 16]).fingerprint(id_lines.concat().as_bytes()).seed().max(1)
}
