//! The connections to one server, or to the primary of several: a few, shared by many callers.
//!
//! A task maintains each connection: it connects, loads the scripts, and reconnects when the connection breaks,
//! with growing and jittered backoff. Calls never wait for that: without a connection a call fails at once. Failed
//! calls are not sent again, with one exception: a server that does not have a script ran nothing, and receives the
//! text.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, Pipeline, Value};
use tokio::task::JoinHandle;

use super::call_id::CallIds;
use super::connect_target::ConnectTarget;
use super::connection::{ActiveConnection, ManagedConnection, SentCall, maintain};
use super::connection_gate::ConnectionGate;
use super::durable::DurableConnections;
use super::error::{Action, RedisStoreError};
use super::primary_fence::PrimaryFence;
use super::redirect::SendMode;
use super::scripts::{self, LoadedScript, Script};

/// The URL, the number of connections and the timeouts of a store.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, `unix:PATH[?db=..&user=..&pass=..]`,
    /// `redis+sentinel://[USER:PASSWORD@]HOST[:PORT],../NAME[/DATABASE]` or
    /// `redis+cluster://[USER:PASSWORD@]HOST[:PORT],..`; `rediss` for TLS.
    pub url: String,
    /// Connections to each server, 1 to 4. More do not help: the commands of many callers share one anyway.
    pub connections: usize,
    /// The timeout for a connection attempt.
    pub connect_timeout: Duration,
    /// The time after which a reply counts as lost. A decision waits shorter than that.
    pub reply_timeout: Duration,
}

impl RedisConfig {
    /// The server at `url`, with default settings.
    pub fn new(url: &str) -> Self {
        RedisConfig {
            url: url.to_owned(),
            connections: 2,
            connect_timeout: Duration::from_secs(1),
            reply_timeout: Duration::from_millis(500),
        }
    }

    /// The timeouts and the buffer size of one connection.
    pub(super) fn connection_config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.reply_timeout))
            .set_pipeline_buffer_size(1_024)
    }
}

/// Never prints the URL, which may contain a password.
impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisConfig")
            .field("connections", &self.connections)
            .field("connect_timeout", &self.connect_timeout)
            .field("reply_timeout", &self.reply_timeout)
            .finish_non_exhaustive()
    }
}

/// One script call.
pub(super) struct ScriptCall<'c> {
    pub(super) script: Script,
    pub(super) keys: &'c [Vec<u8>],
    pub(super) arguments: Vec<&'c [u8]>,
}

/// A request to a server.
#[derive(Clone, Copy)]
pub(super) enum RedisRequest<'c> {
    /// A script call.
    Script(&'c ScriptCall<'c>),
    /// A plain command, which a locked gate does not stop.
    Command(&'c Cmd),
}

/// The connections to a server.
pub(super) struct ConnectionPool {
    connections: Vec<Arc<ManagedConnection>>,
    tasks: Vec<JoinHandle<()>>,
    fence: Arc<PrimaryFence>,
    next: AtomicUsize,
    scripts: Arc<[LoadedScript]>,
    call_ids: CallIds,
    /// For durable charges.
    pub(super) durable: DurableConnections,
    gate: Arc<ConnectionGate>,
}

impl ConnectionPool {
    /// Begins to connect to `target`, a server that will run `scripts`. Must be called within a tokio runtime.
    pub(super) fn open(
        target: &ConnectTarget,
        config: &RedisConfig,
        scripts: &Arc<[LoadedScript]>,
        gate: &Arc<ConnectionGate>,
    ) -> Result<ConnectionPool, RedisStoreError> {
        target.check()?;
        let connection_config = config.connection_config();
        let (fence, ids) = (Arc::<PrimaryFence>::default(), CallIds::new());
        let connection = |_| {
            let (scripts, gate) = (Arc::clone(scripts), Arc::clone(gate));
            let (target, fence) = (target.clone(), Arc::clone(&fence));
            let (connection_config, ids) = (connection_config.clone(), ids.clone());
            Arc::new(ManagedConnection::new(target, fence, connection_config, scripts, gate, ids))
        };
        let connections: Vec<Arc<ManagedConnection>> = (0..config.connections.clamp(1, 4)).map(connection).collect();
        let task = |connection: &Arc<ManagedConnection>| tokio::spawn(maintain(Arc::clone(connection)));
        Ok(ConnectionPool {
            durable: DurableConnections::new(|| connection(0), gate, config.reply_timeout),
            tasks: connections.iter().map(task).chain(target.spawn_watch()).collect(),
            connections,
            fence,
            call_ids: ids.clone(),
            next: AtomicUsize::new(0),
            scripts: Arc::clone(scripts),
            gate: Arc::clone(gate),
        })
    }

    pub(super) fn gate(&self) -> &ConnectionGate {
        &self.gate
    }

    /// Waits until there is a connection.
    pub(super) async fn ready(&self) {
        self.gate.wait_until(|| self.is_connected()).await;
    }

    /// Whether there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.active().is_some())
    }

    /// Sends a request. Returns the reply and the run of the server that it was sent to, or 0 if to none.
    pub(super) async fn send(
        &self,
        request: RedisRequest<'_>,
        mode: SendMode,
    ) -> (Result<Value, RedisStoreError>, u64) {
        let connection = match request {
            RedisRequest::Script(_) => self.script_connection(),
            RedisRequest::Command(_) => self.next_connection(),
        };
        let (connection, active) = match connection {
            Ok(found) => found,
            Err(error) => return (Err(error), 0),
        };
        let reply = match request {
            RedisRequest::Command(command) => connection.send(&active, command, mode).await,
            RedisRequest::Script(call) => {
                let by_hash = self.by_hash(call, active.read_only);
                match connection.send_call(&active, &by_hash, mode).await {
                    Err(error) if error.action() == Action::SendText => {
                        let by_text = self.by_text(call, active.read_only);
                        connection.send_call(&active, &by_text, mode).await
                    }
                    reply => reply,
                }
            }
        };
        (reply, active.run)
    }

    /// The current run: replies come only from it.
    pub(super) fn run(&self) -> Option<u64> {
        self.fence.current_run()
    }

    /// Runs several scripts one after another, on one connection and in one pipeline.
    pub(super) async fn call_each(&self, calls: &[ScriptCall<'_>]) -> Vec<Result<Value, RedisStoreError>> {
        let (connection, active) = match self.script_connection() {
            Ok(found) => found,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
        let all: Vec<&ScriptCall<'_>> = calls.iter().collect();
        let mut replies = self.send_each(connection, &active, &all).await;
        let lacks_script = |reply: &Result<Value, RedisStoreError>| {
            let error = reply.as_ref().err();
            error.is_some_and(|error| error.action() == Action::SendText)
        };
        let missed: Vec<usize> = (0..calls.len()).filter(|i| lacks_script(&replies[*i])).collect();
        if let Some(first) = missed.first() {
            // All are calls of one script, so its text is sent once and not with each call.
            let text = self.by_text(&calls[*first], active.read_only);
            replies[*first] = connection.send_call(&active, &text, SendMode::Plain).await;
            let rest: Vec<&ScriptCall<'_>> = missed[1..].iter().map(|i| &calls[*i]).collect();
            let again = self.send_each(connection, &active, &rest).await;
            for (i, reply) in missed[1..].iter().zip(again) {
                replies[*i] = if lacks_script(&reply) {
                    // The script was lost again in between.
                    let text = self.by_text(&calls[*i], active.read_only);
                    connection.send_call(&active, &text, SendMode::Plain).await
                } else {
                    reply
                };
            }
        }
        replies
    }

    async fn send_each(
        &self,
        connection: &ManagedConnection,
        active: &Arc<ActiveConnection>,
        calls: &[&ScriptCall<'_>],
    ) -> Vec<Result<Value, RedisStoreError>> {
        if calls.is_empty() {
            return Vec::new();
        }
        let mut pipeline = Pipeline::with_capacity(calls.len());
        let mut ids = Vec::with_capacity(calls.len());
        for call in calls {
            let sent = self.by_hash(call, active.read_only);
            pipeline.add_command(sent.command);
            ids.push(sent.id);
        }
        pipeline.ignore_errors();
        match connection.send_all(active, &pipeline).await {
            Ok(replies) => {
                ids.into_iter().zip(replies).map(|(id, reply)| connection.matching_reply(active, id, reply?)).collect()
            }
            Err(error) => calls.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The last connection error, if there is no connection.
    pub(super) fn last_error(&self) -> Option<RedisStoreError> {
        let last = self.connections.iter().find_map(|connection| connection.last_error());
        last.filter(|_| !self.is_connected()).map(|error| RedisStoreError::clone(&error))
    }

    fn script_connection(&self) -> Result<(&ManagedConnection, Arc<ActiveConnection>), RedisStoreError> {
        if self.gate.is_open() {
            return self.next_connection();
        }
        Err(match self.last_error() {
            // Without a connection, its error is the cause.
            Some(error) => error,
            None if self.gate.is_joining() => RedisStoreError::not_joined(),
            None => RedisStoreError::not_connected(None),
        })
    }

    /// The next established connection, round robin.
    fn next_connection(&self) -> Result<(&ManagedConnection, Arc<ActiveConnection>), RedisStoreError> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for i in 0..self.connections.len() {
            let connection = &self.connections[first.wrapping_add(i) % self.connections.len()];
            if let Some(active) = connection.active() {
                return Ok((connection, active));
            }
        }
        let last = self.connections.first().and_then(|connection| connection.last_error());
        Err(RedisStoreError::not_connected(last.as_deref()))
    }

    pub(super) fn by_hash(&self, call: &ScriptCall<'_>, read_only: bool) -> SentCall {
        let verb = if read_only && call.script == scripts::READ { "EVALSHA_RO" } else { "EVALSHA" };
        let loaded = self.loaded_script(call.script);
        self.build_call(verb, loaded.map_or("", |loaded| &loaded.hash), call)
    }

    pub(super) fn by_text(&self, call: &ScriptCall<'_>, read_only: bool) -> SentCall {
        let verb = if read_only && call.script == scripts::READ { "EVAL_RO" } else { "EVAL" };
        let loaded = self.loaded_script(call.script);
        self.build_call(verb, loaded.map_or("", |loaded| &loaded.text), call)
    }

    fn build_call(&self, verb: &str, script: &str, call: &ScriptCall<'_>) -> SentCall {
        let id = self.call_ids.next();
        let mut command = redis::cmd(verb);
        command.arg(script).arg(call.keys.len());
        let keys = call.keys.iter().map(Vec::as_slice);
        for part in keys.chain(call.arguments.iter().copied()) {
            command.arg(part);
        }
        command.arg(id.bytes());
        SentCall { command, id }
    }

    fn loaded_script(&self, script: Script) -> Option<&LoadedScript> {
        let mut scripts = self.scripts.iter();
        scripts.find(|loaded| loaded.script.name == script.name)
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Prints the number of connections; never the address or a password.
impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let connected = self.connections.iter().filter(|connection| connection.active().is_some());
        f.debug_struct("ConnectionPool")
            .field("connections", &self.connections.len())
            .field("connected", &connected.count())
            .finish_non_exhaustive()
    }
}
