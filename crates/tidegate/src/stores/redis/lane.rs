//! One connection to a server, and the task that keeps it standing.
//!
//! The task connects, loads the scripts, pings the connection, and connects anew when the connection
//! breaks, with growing and jittered pauses. A connection that goes silent is replaced by a second one
//! as `liveness` decides. Where to is asked anew each time. What a connection answers counts only while
//! its server reigns.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Value,
};
use tidegate_core::subject::FingerprintKey;
use tokio::sync::Notify;

use super::access::Place;
use super::call_id::{CallId, CallIds};
use super::closing_error::or_closing_error;
use super::fault::{Action, Fault};
use super::gate::Gate;
use super::liveness::{Liveness, LivenessEffect};
use super::plain::or_no_tls;
use super::redirect::Entry;
use super::reign::Reign;
use super::route::Route;
use super::scripts::Loaded;

/// A connection, or its absence.
pub(super) struct Lane {
    route: Route,
    reign: Arc<Reign>,
    scripts: Arc<[Loaded]>,
    config: AsyncConnectionConfig,
    live: ArcSwapOption<Live>,
    /// Why there is no connection.
    last: ArcSwapOption<Fault>,
    broken: Notify,
    gate: Arc<Gate>,
    ids: CallIds,
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

/// A connection that stands.
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    /// Whether scripts can be run as such that write nothing.
    pub(super) read_only: bool,
    /// Tells one run of one server from any other, and a primary from the one before it.
    pub(super) run: u64,
    /// Where it leads.
    place: Place,
    /// The password that it was opened with.
    secret: Option<String>,
    /// Notifies those who wait for a reply that nobody but them needs.
    ended: Notify,
}

impl Lane {
    /// A lane along `route`; `gate` is told whenever it is connected.
    pub(super) fn new(
        route: Route,
        reign: Arc<Reign>,
        config: AsyncConnectionConfig,
        scripts: Arc<[Loaded]>,
        gate: Arc<Gate>,
        ids: CallIds,
    ) -> Self {
        Lane {
            route,
            reign,
            scripts,
            config,
            live: ArcSwapOption::empty(),
            last: ArcSwapOption::empty(),
            broken: Notify::new(),
            gate,
            ids,
            blocked_until: Mutex::new(None),
        }
    }

    /// A command is about to be sent that blocks the connection for up to `span`.
    pub(super) fn blocks_for(&self, span: Duration) {
        *self.blocked_until.lock() = Some(Instant::now() + span);
    }

    /// The connection, if it stands and its server reigns.
    pub(super) fn live(&self) -> Option<Arc<Live>> {
        let live = self.live.load_full();
        live.filter(|live| self.reign.is_of(live.run))
    }

    /// Why it does not.
    pub(super) fn last_fault(&self) -> Option<Arc<Fault>> {
        self.last.load_full()
    }

    /// Sends a plain command. Its reply has no id, so a ping that returns one is sent behind it: the ping's
    /// reply is in its place only if the command's reply is too. Not waited for longer than the connection
    /// stands: unlike a charge, a plain command is simply sent again.
    pub(super) async fn send(
        &self,
        live: &Arc<Live>,
        command: &Cmd,
        entry: Entry,
    ) -> Result<Value, Fault> {
        let id = self.ids.next();
        let mut pipeline = entered(command, entry);
        pipeline.add_command(id.ping());
        let ended = live.ended.notified();
        let mut replies = tokio::select! {
            biased;
            replies = self.send_all(live, &pipeline) => replies?,
            () = ended => return Err(Fault::not_connected(self.last_fault().as_deref())),
        };
        let echo = replies.pop().unwrap_or(Err(Fault::not_connected(None)));
        let none = Err(Fault::not_connected(None));
        let reply = replies.into_iter().reduce(Result::and).unwrap_or(none);
        self.before_ping(live, id, echo, reply)
    }

    /// The reply to a plain command, of which the ping with this id was sent directly behind it.
    pub(super) fn before_ping(
        &self,
        live: &Arc<Live>,
        id: CallId,
        echo: Result<Value, Fault>,
        reply: Result<Value, Fault>,
    ) -> Result<Value, Fault> {
        match echo {
            Ok(echo) if id.is_echoed_by(&echo) => reply,
            Ok(_) => Err(self.out_of_step(live)),
            // A server that refuses the ping refuses the command too. If it did not, nothing shows whose
            // reply that was.
            Err(fault) => reply.and(Err(fault)),
        }
    }

    /// The id of the next call on this connection.
    pub(super) fn next_id(&self) -> CallId {
        self.ids.next()
    }

    /// Sends a script call; its reply without the call id.
    pub(super) async fn send_call(
        &self,
        live: &Arc<Live>,
        call: &SentCall,
        entry: Entry,
    ) -> Result<Value, Fault> {
        let reply = match entry {
            Entry::Plain => {
                let mut connection = live.connection.clone();
                let reply = call.command.query_async(&mut connection).await;
                let reply = reply.map_err(|error| self.fault(live, &error))?;
                self.counted(live, reply)?
            }
            Entry::Asking => {
                let replies = self.send_all(live, &entered(&call.command, entry)).await?;
                let none = Err(Fault::not_connected(None));
                replies.into_iter().reduce(Result::and).unwrap_or(none)?
            }
        };
        self.own_reply(live, call.id, reply)
    }

    /// Sends several commands in one go; one reply for each.
    pub(super) async fn send_all(
        &self,
        live: &Arc<Live>,
        pipeline: &Pipeline,
    ) -> Result<Vec<Result<Value, Fault>>, Fault> {
        let mut connection = live.connection.clone();
        let replies: RedisResult<Vec<RedisResult<Value>>> =
            pipeline.query_async(&mut connection).await;
        let replies = replies.map_err(|error| self.fault(live, &error))?;
        let replies = self.counted(live, replies)?.into_iter();
        let read = |reply: RedisResult<Value>| reply.map_err(|error| self.fault(live, &error));
        Ok(replies.map(read).collect())
    }

    /// The reply of the script call with this id, without the id. Any other reply ends the connection.
    pub(super) fn own_reply(
        &self,
        live: &Arc<Live>,
        id: CallId,
        reply: Value,
    ) -> Result<Value, Fault> {
        id.strip(reply).ok_or_else(|| self.out_of_step(live))
    }

    /// Gives up a connection on which a reply belonged to another call.
    pub(super) fn out_of_step(&self, live: &Arc<Live>) -> Fault {
        let fault = Fault::out_of_step();
        self.give_up(live, fault.clone());
        fault
    }

    /// An answer, if its server still reigns.
    pub(super) fn counted<T>(&self, live: &Arc<Live>, answer: T) -> Result<T, Fault> {
        if self.reign.is_of(live.run) {
            Ok(answer)
        } else {
            Err(Fault::no_primary())
        }
    }

    /// Reads an error; a connection that is of no more use is given up.
    pub(super) fn fault(&self, live: &Arc<Live>, error: &RedisError) -> Fault {
        let fault = Fault::of(error, live.secret.as_deref());
        if fault.action() == Action::FindPrimary {
            self.reign.end(live.run);
        }
        if fault.ends_connection() {
            self.give_up(live, fault.clone());
        }
        fault
    }

    fn give_up(&self, live: &Arc<Live>, fault: Fault) {
        let held = self.live.load();
        if held.as_ref().is_some_and(|held| Arc::ptr_eq(held, live)) {
            self.last.store(Some(Arc::new(fault)));
            self.live.store(None);
            live.ended.notify_waiters();
            self.broken.notify_one();
        }
    }

    /// Finds the server and connects to it.
    async fn connect(&self) -> Result<Live, Fault> {
        let place = self.route.find().await?;
        let client = self.route.access().client(&place)?;
        let secret = client.get_connection_info().redis_settings().password();
        let secret = secret.map(str::to_owned);
        // Whatever happens on the way, a lane is never stuck.
        let greeted = tokio::time::timeout(HANDSHAKE_TIMEOUT, self.greet(&client)).await;
        let greeted = greeted.unwrap_or_else(|_| Err(io::Error::from(ErrorKind::TimedOut).into()));
        let (connection, read_only, info) = match greeted {
            Ok(greeted) => greeted,
            Err(error) => {
                let fault = Fault::of(&error, secret.as_deref());
                let access = self.route.access();
                let fault = or_closing_error(fault, &place, access).await;
                return Err(or_no_tls(fault, &place, access).await);
            }
        };
        let is_primary = info.lines().any(|line| line == "role:master");
        if !self.route.accepts(&place, is_primary) {
            return Err(Fault::no_primary());
        }
        Ok(Live {
            connection,
            read_only,
            run: run_of(&info),
            place,
            secret,
            ended: Notify::new(),
        })
    }

    /// Connects, finds out what the server can, and loads the scripts.
    async fn greet(&self, client: &Client) -> RedisResult<(MultiplexedConnection, bool, String)> {
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&self.config)
            .await?;
        // What speaks against us is said in answer to this: a script is too long for a server that
        // wants a password first, and it would speak of that.
        greeting::<Value>(&mut connection, &redis::cmd("PING")).await?;
        let mut probe = redis::cmd("EVAL_RO");
        probe.arg("return 1").arg(0);
        let read_only = greeting::<Value>(&mut connection, &probe).await.is_ok();
        let info: String = greeting(&mut connection, &redis::cmd("INFO")).await?;
        for loaded in &*self.scripts {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&*loaded.text);
            greeting::<Value>(&mut connection, &load).await?;
        }
        Ok((connection, read_only, info))
    }

    /// Lets a new connection reign until it is given up or replaced. The replacement, if there is one.
    async fn stand(&self, live: Live) -> Option<Live> {
        let live = Arc::new(live);
        self.reign.begin(live.run);
        if let Some(replaced) = self.live.swap(Some(Arc::clone(&live))) {
            replaced.ended.notify_waiters();
        }
        self.gate.connected.notify_waiters();
        self.watch(&live).await
    }

    /// Watches a connection until it is given up or replaced: it broke, it went silent, or it leads where
    /// the primary is no more. The replacement, if there is one.
    async fn watch(&self, live: &Arc<Live>) -> Option<Live> {
        let mut liveness = Liveness::new(Instant::now());
        let mut ping: PolledFuture<'_, Result<Value, Fault>> = None;
        let mut second: PolledFuture<'_, Result<Live, Fault>> = None;
        loop {
            let turned = self.reign.turned();
            if self.live.load().is_none() {
                return None;
            }
            if !self.reign.is_of(live.run) {
                self.give_up(live, Fault::no_primary());
                return None;
            }
            let effect = tokio::select! {
                // A reply of the first connection counts before the second one.
                biased;
                () = self.broken.notified() => LivenessEffect::None,
                () = turned => LivenessEffect::None,
                () = self.route.left(Some(&live.place)) => {
                    self.reign.end(live.run);
                    LivenessEffect::None
                }
                reply = next(&mut ping) => match reply {
                    Err(fault) if fault.is_silence() => liveness.ping_expired(),
                    Ok(_) | Err(_) => liveness.replied(Instant::now()),
                },
                connected = next(&mut second) => match connected {
                    Ok(replacement) => return Some(replacement),
                    Err(fault) => {
                        let effect = liveness.connect_failed(Instant::now(), fault.evidence());
                        self.last.store(Some(Arc::new(fault)));
                        effect
                    }
                },
                () = sleep_until(liveness.wakes_at()) => {
                    liveness.timer(Instant::now(), *self.blocked_until.lock())
                }
            };
            match effect {
                LivenessEffect::None => {}
                LivenessEffect::Ping => ping = Some(Box::pin(self.ping(live))),
                LivenessEffect::Connect => second = Some(Box::pin(self.connect())),
                LivenessEffect::StopConnecting => second = None,
                LivenessEffect::GiveUp => {
                    let fault = Fault::not_connected(self.last_fault().as_deref());
                    self.give_up(live, fault);
                }
            }
        }
    }

    async fn ping(&self, live: &Arc<Live>) -> Result<Value, Fault> {
        let id = self.ids.next();
        let mut connection = live.connection.clone();
        let echo = id.ping().query_async(&mut connection).await;
        let echo: Value = echo.map_err(|error| self.fault(live, &error))?;
        if id.is_echoed_by(&echo) {
            Ok(echo)
        } else {
            Err(self.out_of_step(live))
        }
    }
}

/// A command as it is sent: `ASKING` goes directly before it where a slot of a cluster is only being taken
/// over.
fn entered(command: &Cmd, entry: Entry) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(3);
    pipeline.ignore_errors();
    if entry == Entry::Asking {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(command.clone());
    pipeline
}

/// Sends one command of the handshake. It has a timeout of its own: a new connection can be lost as
/// silently as an old one.
async fn greeting<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> RedisResult<T> {
    let reply = tokio::time::timeout(GREETING_TIMEOUT, command.query_async(connection));
    let lost = |_| Err(io::Error::from(ErrorKind::TimedOut).into());
    reply.await.unwrap_or_else(lost)
}

/// The result of a future, which is over then; nothing ever if there is none.
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

/// How long the server may take for one command of the handshake.
const GREETING_TIMEOUT: Duration = Duration::from_secs(1);
/// How long all of the handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that stood as long as that was a good one.
const STANDS: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// So short that a server which is back is found before the good pings that are asked of it are over:
/// a refused connection costs nobody anything.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// For what only somebody can put right, here or at the server: credentials, permissions, names.
const OPERATOR_PAUSE: Duration = Duration::from_secs(2);

/// Keeps one connection standing.
pub(super) async fn keep(lane: Arc<Lane>) {
    let mut pause = SHORTEST_PAUSE;
    let mut replacement = None;
    loop {
        let known = lane.route.known();
        let connected = match replacement.take() {
            Some(live) => Ok(live),
            None => lane.connect().await,
        };
        let longest = match connected {
            Ok(live) => {
                let stood = Instant::now();
                replacement = lane.stand(live).await;
                if replacement.is_some() || stood.elapsed() >= STANDS {
                    pause = SHORTEST_PAUSE;
                    continue;
                }
                // One that lets us in and then refuses to work, as a replica does, is not asked at once.
                LONGEST_PAUSE
            }
            Err(fault) => {
                let waits_for_operator = fault.action() == Action::AskOperator;
                lane.last.store(Some(Arc::new(fault)));
                if waits_for_operator {
                    OPERATOR_PAUSE
                } else {
                    LONGEST_PAUSE
                }
            }
        };
        tokio::select! {
            () = lane.route.left(known.as_ref()) => pause = SHORTEST_PAUSE,
            () = tokio::time::sleep(jittered(pause)) => pause = (pause * 2).min(longest),
        }
    }
}

/// Half of it to all of it, so that nodes that lost a server together do not return together.
pub(super) fn jittered(pause: Duration) -> Duration {
    let mut byte = [128];
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause * u32::from(byte[0]) / 512
}

/// The run that the answer to `INFO` tells of: a new one for every start, and for every primary that
/// takes over. Nodes compare it, so it is the same in every build.
fn run_of(info: &str) -> u64 {
    let lines = info.lines();
    let telling = lines.filter(|l| l.starts_with("run_id:") || l.starts_with("master_replid:"));
    let telling: Vec<&str> = telling.collect();
    FingerprintKey::new([0; 16])
        .only(telling.concat().as_bytes())
        .seed()
        .max(1)
}
