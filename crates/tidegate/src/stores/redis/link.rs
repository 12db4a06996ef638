//! The way to one server: a few connections that many callers share.
//!
//! Each connection is kept by a task of its own, which connects, loads the scripts, and connects anew
//! when the connection breaks, with growing and jittered pauses. A call never waits for that: without
//! a connection it fails at once. A call that failed is not sent again, with one exception: a server
//! that does not have a script ran nothing, and is sent the text.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, RedisResult, Value};
use tidegate_core::subject::FingerprintKey;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::fault::{Action, Fault};
use super::scripts::{self, Script};

/// How a server is reached.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]` or `unix:PATH[?db=..&user=..&pass=..]`.
    pub url: String,
    /// Connections, 1 to 4. More do not help: commands of many callers share one anyway.
    pub connections: usize,
    /// How long to wait for a connection.
    pub connect_timeout: Duration,
    /// How long to wait for a reply before it counts as lost. A decision waits shorter than that.
    pub reply_timeout: Duration,
}

impl RedisConfig {
    /// The server at `url`, all else as usual.
    pub fn new(url: &str) -> Self {
        RedisConfig {
            url: url.to_owned(),
            connections: 2,
            connect_timeout: Duration::from_secs(1),
            reply_timeout: Duration::from_millis(500),
        }
    }
}

/// Never prints the address, which may hold a password.
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
pub(super) struct Call<'c> {
    pub(super) script: Script,
    pub(super) keys: &'c [Vec<u8>],
    pub(super) arguments: Vec<&'c [u8]>,
}

/// A server and the connections to it.
pub(super) struct Link {
    lanes: Vec<Arc<Lane>>,
    keepers: Vec<JoinHandle<()>>,
    next: AtomicUsize,
    scripts: Arc<[Loaded]>,
    secret: Option<String>,
    /// Whether scripts may be run.
    open: AtomicBool,
}

/// A connection, or its absence.
struct Lane {
    client: Client,
    scripts: Arc<[Loaded]>,
    config: AsyncConnectionConfig,
    secret: Option<String>,
    live: ArcSwapOption<Live>,
    /// Why there is no connection.
    last: ArcSwapOption<Fault>,
    broken: Notify,
    ready: Notify,
}

/// A script as the server is given it.
pub(super) struct Loaded {
    script: Script,
    text: Cow<'static, str>,
    hash: String,
}

impl Loaded {
    pub(super) fn new(script: Script, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        Loaded {
            script,
            hash: redis::Script::new(&text).get_hash().to_owned(),
            text,
        }
    }
}

struct Live {
    connection: MultiplexedConnection,
    /// Whether scripts can be run as such that write nothing.
    read_only: bool,
    /// Tells one run of one server from any other, and a primary from the one before it.
    run: u64,
}

impl Link {
    /// Begins to connect to a server that is to run `scripts`. Must be called within a tokio runtime.
    pub(super) fn open(config: &RedisConfig, scripts: Arc<[Loaded]>) -> Result<Link, Fault> {
        let url = match config.url.strip_prefix("unix:") {
            Some(path) if !path.starts_with("//") => format!("unix://{path}"),
            _ => config.url.clone(),
        };
        let info = url.into_connection_info();
        let info = info.map_err(|error| Fault::of(&error, None))?;
        let secret = info.redis_settings().password().map(str::to_owned);
        let settings = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_tcp_settings(settings));
        let client = client.map_err(|error| Fault::of(&error, secret.as_deref()))?;
        let lane = || Lane {
            client: client.clone(),
            scripts: Arc::clone(&scripts),
            config: AsyncConnectionConfig::new()
                .set_connection_timeout(Some(config.connect_timeout))
                .set_response_timeout(Some(config.reply_timeout))
                .set_pipeline_buffer_size(1_024),
            secret: secret.clone(),
            live: ArcSwapOption::empty(),
            last: ArcSwapOption::empty(),
            broken: Notify::new(),
            ready: Notify::new(),
        };
        let count = config.connections.clamp(1, 4);
        let lanes: Vec<Arc<Lane>> = (0..count).map(|_| Arc::new(lane())).collect();
        Ok(Link {
            keepers: lanes
                .iter()
                .map(|lane| tokio::spawn(keep(Arc::clone(lane))))
                .collect(),
            lanes,
            next: AtomicUsize::new(0),
            scripts,
            secret,
            open: AtomicBool::new(true),
        })
    }

    /// Waits until one connection stands.
    pub(super) async fn ready(&self) {
        while self.lanes.iter().all(|lane| lane.live.load().is_none()) {
            let Some(lane) = self.lanes.first() else {
                return;
            };
            lane.ready.notified().await;
        }
    }

    /// Runs a script.
    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Value, Fault> {
        let (lane, live) = self.working_lane()?;
        self.call_on(lane, &live, call).await
    }

    async fn call_on(
        &self,
        lane: &Lane,
        live: &Arc<Live>,
        call: &Call<'_>,
    ) -> Result<Value, Fault> {
        let command = self.by_hash(call, live.read_only);
        match lane.send(live, &command).await {
            Err(fault) if fault.action() == Action::SendText => {
                lane.send(live, &self.by_text(call, live.read_only)).await
            }
            answer => answer,
        }
    }

    /// Runs a script; and tells the run of the server that it was sent to, or 0 if to none.
    pub(super) async fn call_and_run(&self, call: &Call<'_>) -> (Result<Value, Fault>, u64) {
        let (lane, live) = match self.working_lane() {
            Ok(found) => found,
            Err(fault) => return (Err(fault), 0),
        };
        (self.call_on(lane, &live, call).await, live.run)
    }

    /// The run of the server that is connected.
    pub(super) fn run(&self) -> Option<u64> {
        let standing = self.lanes.iter().find_map(|lane| lane.live.load_full());
        standing.map(|live| live.run)
    }

    /// Runs several scripts one after another, on one connection and in one go.
    pub(super) async fn call_each(&self, calls: &[Call<'_>]) -> Vec<Result<Value, Fault>> {
        let (lane, live) = match self.working_lane() {
            Ok(found) => found,
            Err(fault) => return calls.iter().map(|_| Err(fault.clone())).collect(),
        };
        let mut pipeline = Pipeline::with_capacity(calls.len());
        for call in calls {
            pipeline.add_command(self.by_hash(call, live.read_only));
        }
        pipeline.ignore_errors();
        let mut connection = live.connection.clone();
        let answers: RedisResult<Vec<RedisResult<Value>>> =
            pipeline.query_async(&mut connection).await;
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => {
                let fault = lane.fault(&live, &error);
                return calls.iter().map(|_| Err(fault.clone())).collect();
            }
        };
        let mut results = Vec::with_capacity(calls.len());
        for (call, answer) in calls.iter().zip(answers) {
            let answer = answer.map_err(|error| lane.fault(&live, &error));
            results.push(match answer {
                Err(fault) if fault.action() == Action::SendText => {
                    lane.send(&live, &self.by_text(call, live.read_only)).await
                }
                answer => answer,
            });
        }
        results
    }

    /// Runs a plain command.
    pub(super) async fn command(&self, command: &Cmd) -> Result<Value, Fault> {
        let (lane, live) = self.lane()?;
        lane.send(&live, command).await
    }

    /// Whether scripts may be run from now on. Plain commands always may.
    pub(super) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Release);
    }

    fn working_lane(&self) -> Result<(&Lane, Arc<Live>), Fault> {
        match self.open.load(Ordering::Acquire) {
            true => self.lane(),
            false => Err(Fault::not_connected(None)),
        }
    }

    /// A connection that stands, in turn.
    fn lane(&self) -> Result<(&Lane, Arc<Live>), Fault> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for i in 0..self.lanes.len() {
            let lane = &self.lanes[first.wrapping_add(i) % self.lanes.len()];
            if let Some(live) = lane.live.load_full() {
                return Ok((lane, live));
            }
        }
        let last = self.lanes.first().and_then(|lane| lane.last.load_full());
        Err(Fault::not_connected(last.as_deref()))
    }

    fn by_hash(&self, call: &Call<'_>, read_only: bool) -> Cmd {
        let verb = match read_only && call.script == scripts::READ {
            true => "EVALSHA_RO",
            false => "EVALSHA",
        };
        let loaded = self.loaded(call.script);
        with_arguments(verb, loaded.map_or("", |loaded| &loaded.hash), call)
    }

    fn by_text(&self, call: &Call<'_>, read_only: bool) -> Cmd {
        let verb = match read_only && call.script == scripts::READ {
            true => "EVAL_RO",
            false => "EVAL",
        };
        let loaded = self.loaded(call.script);
        with_arguments(verb, loaded.map_or("", |loaded| &loaded.text), call)
    }

    fn loaded(&self, script: Script) -> Option<&Loaded> {
        self.scripts.iter().find(|loaded| loaded.script == script)
    }
}

fn with_arguments(verb: &str, script: &str, call: &Call<'_>) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(script).arg(call.keys.len());
    for part in call
        .keys
        .iter()
        .map(Vec::as_slice)
        .chain(call.arguments.iter().copied())
    {
        command.arg(part);
    }
    command
}

impl Drop for Link {
    fn drop(&mut self) {
        for keeper in &self.keepers {
            keeper.abort();
        }
    }
}

/// Tells how many connections stand; never the address or a password.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standing = self.lanes.iter().filter(|lane| lane.live.load().is_some());
        f.debug_struct("Link")
            .field("connections", &self.lanes.len())
            .field("standing", &standing.count())
            .field("password", &self.secret.as_ref().map(|_| ".."))
            .finish_non_exhaustive()
    }
}

impl Lane {
    async fn send(&self, live: &Arc<Live>, command: &Cmd) -> Result<Value, Fault> {
        let mut connection = live.connection.clone();
        let answer = command.query_async(&mut connection).await;
        answer.map_err(|error| self.fault(live, &error))
    }

    /// Reads an error; a connection that is of no more use is given up.
    fn fault(&self, live: &Arc<Live>, error: &redis::RedisError) -> Fault {
        let fault = Fault::of(error, self.secret.as_deref());
        let useless = fault.ends_connection();
        let mine =
            |held: &Option<Arc<Live>>| held.as_ref().is_some_and(|held| Arc::ptr_eq(held, live));
        if useless && mine(&self.live.load()) {
            self.last.store(Some(Arc::new(fault.clone())));
            self.live.store(None);
            self.broken.notify_one();
        }
        fault
    }

    /// Connects, finds out what the server can, and loads the scripts.
    async fn connect(&self) -> RedisResult<Live> {
        let config = self.config.clone();
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        // What speaks against us is said in answer to this: a script is too long for a server that
        // wants a password first, and it would speak of that.
        let ping = redis::cmd("PING");
        ping.query_async::<Value>(&mut connection).await?;
        let mut probe = redis::cmd("EVAL_RO");
        probe.arg("return 1").arg(0);
        let read_only = probe.query_async::<Value>(&mut connection).await.is_ok();
        let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
        for loaded in &*self.scripts {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&*loaded.text);
            load.query_async::<Value>(&mut connection).await?;
        }
        Ok(Live {
            connection,
            read_only,
            run: run_of(&info),
        })
    }

    async fn answers(&self, live: &Arc<Live>) {
        let _ = self.send(live, &redis::cmd("PING")).await;
    }
}

/// The run that the answer to `INFO` tells of: a new one for every start, and for every primary that
/// takes over.
fn run_of(info: &str) -> u64 {
    let lines = info.lines();
    let telling = lines.filter(|l| l.starts_with("run_id:") || l.starts_with("master_replid:"));
    let telling: Vec<&str> = telling.collect();
    // Nodes compare this, so it is the same in every build.
    FingerprintKey::new([0; 16])
        .only(telling.concat().as_bytes())
        .seed()
}

/// How often an idle connection is asked whether it still stands.
const ASK_EVERY: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// For what no retry cures: credentials, permissions, names.
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// Keeps one connection standing.
async fn keep(lane: Arc<Lane>) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        match lane.connect().await {
            Ok(live) => {
                pause = SHORTEST_PAUSE;
                let live = Arc::new(live);
                lane.live.store(Some(Arc::clone(&live)));
                lane.ready.notify_waiters();
                lane.ready.notify_one();
                while lane.live.load().is_some() {
                    let broken = tokio::time::timeout(ASK_EVERY, lane.broken.notified());
                    if broken.await.is_err() {
                        lane.answers(&live).await;
                    }
                }
            }
            Err(error) => {
                let fault = Fault::of(&error, lane.secret.as_deref());
                let longest = match fault.action() {
                    Action::AskOperator => LONG_PAUSE,
                    _ => LONGEST_PAUSE,
                };
                lane.last.store(Some(Arc::new(fault)));
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(longest);
            }
        }
    }
}

/// Half of it to all of it, so that nodes that lost a server together do not return together.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [128];
    let _ = getrandom::fill(&mut byte);
    pause / 2 + pause * u32::from(byte[0]) / 512
}
