//! One connection to a server, and the task that keeps it standing.
//!
//! The task connects, loads the scripts, asks an idle connection every second whether it still stands,
//! and connects anew when it does not, with growing and jittered pauses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, RedisResult, Value};
use tidegate_core::subject::FingerprintKey;
use tokio::sync::Notify;

use super::fault::{Action, Fault};
use super::gate::Gate;
use super::scripts::Loaded;

/// A connection, or its absence.
pub(super) struct Lane {
    client: Client,
    scripts: Arc<[Loaded]>,
    config: AsyncConnectionConfig,
    secret: Option<String>,
    live: ArcSwapOption<Live>,
    /// Why there is no connection.
    last: ArcSwapOption<Fault>,
    broken: Notify,
    gate: Arc<Gate>,
}

/// A connection that stands.
pub(super) struct Live {
    pub(super) connection: MultiplexedConnection,
    /// Whether scripts can be run as such that write nothing.
    pub(super) read_only: bool,
    /// Tells one run of one server from any other, and a primary from the one before it.
    pub(super) run: u64,
}

impl Lane {
    /// A lane to the server of `client`; `gate` is told whenever it is connected.
    pub(super) fn new(
        client: Client,
        config: AsyncConnectionConfig,
        scripts: Arc<[Loaded]>,
        gate: Arc<Gate>,
    ) -> Self {
        let settings = client.get_connection_info().redis_settings();
        Lane {
            secret: settings.password().map(str::to_owned),
            client,
            scripts,
            config,
            live: ArcSwapOption::empty(),
            last: ArcSwapOption::empty(),
            broken: Notify::new(),
            gate,
        }
    }

    /// The connection, if it stands.
    pub(super) fn live(&self) -> Option<Arc<Live>> {
        self.live.load_full()
    }

    /// Why it does not.
    pub(super) fn last_fault(&self) -> Option<Arc<Fault>> {
        self.last.load_full()
    }

    pub(super) async fn send(&self, live: &Arc<Live>, command: &Cmd) -> Result<Value, Fault> {
        let mut connection = live.connection.clone();
        let answer = command.query_async(&mut connection).await;
        answer.map_err(|error| self.fault(live, &error))
    }

    /// Sends a command, and before it, with nothing in between, that a slot is asked for which is only
    /// being taken over.
    pub(super) async fn send_asking(
        &self,
        live: &Arc<Live>,
        command: &Cmd,
    ) -> Result<Value, Fault> {
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.cmd("ASKING").add_command(command.clone());
        pipeline.ignore_errors();
        let mut connection = live.connection.clone();
        let both: RedisResult<[RedisResult<Value>; 2]> =
            pipeline.query_async(&mut connection).await;
        let answer = both.and_then(|[asking, answer]| asking.and(answer));
        answer.map_err(|error| self.fault(live, &error))
    }

    /// Reads an error; a connection that is of no more use is given up.
    pub(super) fn fault(&self, live: &Arc<Live>, error: &RedisError) -> Fault {
        let fault = Fault::of(error, self.secret.as_deref());
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
            self.broken.notify_one();
        }
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

    /// Watches a connection until it is given up.
    async fn watch(&self, live: &Arc<Live>) {
        let mut missed = 0;
        while self.live.load().is_some() {
            let broken = tokio::time::timeout(ASK_EVERY, self.broken.notified());
            if broken.await.is_ok() {
                continue;
            }
            match self.send(live, &redis::cmd("PING")).await {
                Ok(_) => missed = 0,
                Err(fault) => {
                    missed += 1;
                    if missed == MOST_MISSED {
                        self.give_up(live, fault);
                    }
                }
            }
        }
    }
}

/// How often an idle connection is asked whether it still stands.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// After so many questions without an answer it counts as lost: a peer that vanished says nothing.
const MOST_MISSED: u32 = 3;
/// A connection that stood as long as that was a good one.
const STANDS: Duration = Duration::from_secs(1);
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// For what no retry cures: credentials, permissions, names.
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// Keeps one connection standing.
pub(super) async fn keep(lane: Arc<Lane>) {
    let mut pause = SHORTEST_PAUSE;
    loop {
        match lane.connect().await {
            Ok(live) => {
                let live = Arc::new(live);
                lane.live.store(Some(Arc::clone(&live)));
                lane.gate.connected.notify_waiters();
                let stood = Instant::now();
                lane.watch(&live).await;
                // One that lets us in and then refuses to work, as a replica does, is not asked at once.
                if stood.elapsed() >= STANDS {
                    pause = SHORTEST_PAUSE;
                } else {
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
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
}
