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

use redis::{AsyncConnectionConfig, Cmd, Pipeline};
use tidegate_core::store::UnacknowledgedError;
use tokio::task::JoinHandle;

use super::call_id::CallIds;
use super::connect_target::ConnectTarget;
use super::connection::{
    ActiveConnection, ManagedConnection, RedisReply, SentCall, ServerContext, maintain, or_missing,
};
use super::connection_gate::ConnectionGate;
use super::durable::{DurabilityRequirement, DurableConnections, DurableReplies};
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
        f.debug_struct("RedisConfig").field("connections", &self.connections).finish_non_exhaustive()
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
    server: Arc<ServerContext>,
    connections: Vec<Arc<ManagedConnection>>,
    tasks: Vec<JoinHandle<()>>,
    next: AtomicUsize,
    /// For durable charges.
    durable: DurableConnections,
}

impl ConnectionPool {
    /// Begins to connect to `target`, a server that will run `scripts`. Must be called within a tokio runtime.
    pub(super) fn open(
        target: ConnectTarget,
        config: &RedisConfig,
        scripts: &Arc<[LoadedScript]>,
        gate: &Arc<ConnectionGate>,
    ) -> Result<Arc<ConnectionPool>, RedisStoreError> {
        target.check()?;
        let server = Arc::new(ServerContext {
            target,
            config: config.connection_config(),
            fence: PrimaryFence::default(),
            scripts: Arc::clone(scripts),
            gate: Arc::clone(gate),
            call_ids: CallIds::new(),
        });
        let connections = (0..config.connections.clamp(1, 4)).map(|_| ManagedConnection::new(&server));
        let connections: Vec<Arc<ManagedConnection>> = connections.collect();
        let task = |connection: &Arc<ManagedConnection>| tokio::spawn(maintain(Arc::clone(connection)));
        Ok(Arc::new(ConnectionPool {
            durable: DurableConnections::new(&server, config.reply_timeout),
            tasks: connections.iter().map(task).chain(server.target.spawn_watch()).collect(),
            connections,
            next: AtomicUsize::new(0),
            server,
        }))
    }

    pub(super) fn gate(&self) -> &ConnectionGate {
        &self.server.gate
    }

    /// Whether there is a connection.
    pub(super) fn is_connected(&self) -> bool {
        self.connections.iter().any(|connection| connection.active().is_some())
    }

    /// Sends a request. Returns the reply and the run of the server that it was sent to, or 0 if to none.
    pub(super) async fn send(&self, request: RedisRequest<'_>, mode: SendMode) -> (RedisReply, u64) {
        let connection = match request {
            RedisRequest::Script(_) => self.script_connection(),
            RedisRequest::Command(_) => self.next_connection(),
        };
        let active = match connection {
            Ok(active) => active,
            Err(error) => return (Err(error), 0),
        };
        let reply = match request {
            RedisRequest::Command(command) => active.send(command, mode).await,
            RedisRequest::Script(call) => {
                let by_hash = self.by_hash(call, active.read_only);
                match active.send_call(&by_hash, mode).await {
                    reply if lacks_script(&reply) => {
                        active.send_call(&self.by_text(call, active.read_only), mode).await
                    }
                    reply => reply,
                }
            }
        };
        (reply, active.run)
    }

    /// The current run: replies come only from it.
    pub(super) fn run(&self) -> Option<u64> {
        self.server.fence.current_run()
    }

    /// Runs several scripts one after another, on one connection and in one pipeline, and waits until they are as
    /// durable as `need` requires.
    ///
    /// # Errors
    /// When nothing was sent, because earlier writes are not durable yet.
    pub(super) async fn call_each(
        &self,
        calls: &[ScriptCall<'_>],
        need: Option<DurabilityRequirement>,
    ) -> DurableReplies {
        match need {
            None => Ok((self.call_in_pipeline(calls).await, Ok(()))),
            Some(need) => self.call_durably(calls, need, SendMode::Plain).await,
        }
    }

    async fn call_in_pipeline(&self, calls: &[ScriptCall<'_>]) -> Vec<RedisReply> {
        let active = match self.script_connection() {
            Ok(active) => active,
            Err(error) => return vec![Err(error); calls.len()],
        };
        let mut replies = self.send_each(&active, calls.iter()).await;
        let missed: Vec<usize> = (0..calls.len()).filter(|i| lacks_script(&replies[*i])).collect();
        if let Some((first, rest)) = missed.split_first() {
            // All are calls of one script, so its text is sent once and not with each call.
            let text = self.by_text(&calls[*first], active.read_only);
            replies[*first] = active.send_call(&text, SendMode::Plain).await;
            let again = self.send_each(&active, rest.iter().map(|i| &calls[*i])).await;
            for (i, reply) in rest.iter().zip(again) {
                replies[*i] = if lacks_script(&reply) {
                    // The script was lost again in between.
                    active.send_call(&self.by_text(&calls[*i], active.read_only), SendMode::Plain).await
                } else {
                    reply
                };
            }
        }
        replies
    }

    async fn send_each<'c>(
        &self,
        active: &ActiveConnection,
        calls: impl Iterator<Item = &'c ScriptCall<'c>>,
    ) -> Vec<RedisReply> {
        let (mut pipeline, mut ids) = (Pipeline::new(), Vec::new());
        for call in calls {
            let sent = self.by_hash(call, active.read_only);
            pipeline.add_command(sent.command);
            ids.push(sent.id);
        }
        if ids.is_empty() {
            return Vec::new();
        }
        pipeline.ignore_errors();
        match active.send_all(&pipeline).await {
            Ok(replies) => ids.into_iter().zip(replies).map(|(id, reply)| active.matching_reply(id, reply?)).collect(),
            Err(error) => vec![Err(error); ids.len()],
        }
    }

    /// The same on the connection for durable charges.
    pub(super) async fn call_durably(
        &self,
        calls: &[ScriptCall<'_>],
        need: DurabilityRequirement,
        mode: SendMode,
    ) -> DurableReplies {
        if !self.server.gate.is_open() {
            return Ok((vec![Err(RedisStoreError::NOT_CONNECTED); calls.len()], Ok(())));
        }
        let sent = calls.iter().map(|call| self.by_hash(call, false));
        let (mut replies, mut durability) = self.durable.send(sent.collect(), need, mode).await?;
        for (call, reply) in calls.iter().zip(&mut replies) {
            if lacks_script(reply) {
                let text = vec![self.by_text(call, false)];
                let (mut again, durability_again) = self.durable.send(text, need, mode).await?;
                *reply = or_missing(again.pop());
                durability = durability.and(durability_again);
            }
        }
        Ok((replies, durability))
    }

    /// Why durable charges are not acknowledged at present.
    pub(super) fn unacknowledged(&self) -> Option<UnacknowledgedError> {
        self.durable.unacknowledged()
    }

    /// The policy by which the server evicts counters, if it does.
    pub(super) fn eviction_policy(&self) -> Option<String> {
        self.connections.iter().find_map(|connection| connection.eviction_policy())
    }

    /// The last connection error, if there is no connection.
    pub(super) fn last_error(&self) -> Option<RedisStoreError> {
        let last = self.connections.iter().find_map(|connection| connection.last_error());
        last.filter(|_| !self.is_connected())
    }

    fn script_connection(&self) -> Result<Arc<ActiveConnection>, RedisStoreError> {
        if self.server.gate.is_open() {
            return self.next_connection();
        }
        Err(match self.last_error() {
            // Without a connection, its error is the cause.
            Some(error) => error,
            None if self.server.gate.is_joining() => RedisStoreError::NOT_JOINED,
            None => RedisStoreError::NOT_CONNECTED,
        })
    }

    /// The next established connection, round robin.
    fn next_connection(&self) -> Result<Arc<ActiveConnection>, RedisStoreError> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for i in 0..self.connections.len() {
            let connection = &self.connections[first.wrapping_add(i) % self.connections.len()];
            if let Some(active) = connection.active() {
                return Ok(active);
            }
        }
        let last = self.connections.first().and_then(|connection| connection.last_error());
        Err(last.unwrap_or(RedisStoreError::NOT_CONNECTED))
    }

    fn by_hash(&self, call: &ScriptCall<'_>, read_only: bool) -> SentCall {
        let verb = if read_only && call.script == scripts::READ { "EVALSHA_RO" } else { "EVALSHA" };
        let loaded = self.loaded_script(call.script);
        SentCall::new(self.server.call_ids.next(), verb, loaded.map_or("", |loaded| &loaded.hash), call)
    }

    fn by_text(&self, call: &ScriptCall<'_>, read_only: bool) -> SentCall {
        let verb = if read_only && call.script == scripts::READ { "EVAL_RO" } else { "EVAL" };
        let loaded = self.loaded_script(call.script);
        SentCall::new(self.server.call_ids.next(), verb, loaded.map_or("", |loaded| &loaded.text), call)
    }

    fn loaded_script(&self, script: Script) -> Option<&LoadedScript> {
        let mut scripts = self.server.scripts.iter();
        scripts.find(|loaded| loaded.name == script.name)
    }
}

fn lacks_script(reply: &RedisReply) -> bool {
    reply.as_ref().is_err_and(|error| error.action() == Action::SendText)
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
