//! The way to one server, or to the primary of several: a few connections that many callers share.
//!
//! Each connection is kept by a task of its own, which connects, loads the scripts, and connects anew
//! when the connection breaks, with growing and jittered pauses. A call never waits for that: without
//! a connection it fails at once. A call that failed is not sent again, with one exception: a server
//! that does not have a script ran nothing, and is sent the text.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{AsyncConnectionConfig, Cmd, Pipeline, Value};
use tokio::task::JoinHandle;

use super::call_id::CallIds;
use super::durable::SafeLanes;
use super::fault::{Action, Fault};
use super::gate::Gate;
use super::lane::{Lane, Live, SentCall, keep};
use super::redirect::Entry;
use super::reign::Reign;
use super::route::Route;
use super::scripts::{self, Loaded, Script};

/// How a store is reached.
#[derive(Clone)]
pub struct RedisConfig {
    /// `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]`, `unix:PATH[?db=..&user=..&pass=..]`,
    /// `redis+sentinel://[USER:PASSWORD@]HOST[:PORT],../NAME[/DATABASE]` or
    /// `redis+cluster://[USER:PASSWORD@]HOST[:PORT],..`; `rediss` for TLS.
    pub url: String,
    /// Connections to each server, 1 to 4. More do not help: commands of many callers share one anyway.
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

    /// How long a connection waits for what.
    pub(super) fn waits(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect_timeout))
            .set_response_timeout(Some(self.reply_timeout))
            .set_pipeline_buffer_size(1_024)
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

/// What a server is asked to do.
#[derive(Clone, Copy)]
pub(super) enum Errand<'c> {
    /// To run a script.
    Script(&'c Call<'c>),
    /// A plain command, which is always let through.
    Command(&'c Cmd),
}

/// A server and the connections to it.
pub(super) struct Link {
    lanes: Vec<Arc<Lane>>,
    keepers: Vec<JoinHandle<()>>,
    reign: Arc<Reign>,
    next: AtomicUsize,
    scripts: Arc<[Loaded]>,
    ids: CallIds,
    /// For charges that must be safe elsewhere.
    pub(super) safe: SafeLanes,
    gate: Arc<Gate>,
}

impl Link {
    /// Begins to connect along `route` to a server that is to run `scripts`. Must be called within a
    /// tokio runtime.
    pub(super) fn open(
        route: &Route,
        config: &RedisConfig,
        scripts: &Arc<[Loaded]>,
        gate: &Arc<Gate>,
    ) -> Result<Link, Fault> {
        route.check()?;
        let waits = config.waits();
        let (reign, ids) = (Arc::<Reign>::default(), CallIds::new());
        let lane = |_| {
            let (scripts, gate) = (Arc::clone(scripts), Arc::clone(gate));
            let (route, reign) = (route.clone(), Arc::clone(&reign));
            let (waits, ids) = (waits.clone(), ids.clone());
            Arc::new(Lane::new(route, reign, waits, scripts, gate, ids))
        };
        let lanes: Vec<Arc<Lane>> = (0..config.connections.clamp(1, 4)).map(lane).collect();
        let keeper = |lane: &Arc<Lane>| tokio::spawn(keep(Arc::clone(lane)));
        Ok(Link {
            safe: SafeLanes::new(|| lane(0), gate, config.reply_timeout),
            keepers: lanes.iter().map(keeper).chain(route.lookout()).collect(),
            lanes,
            reign,
            ids: ids.clone(),
            next: AtomicUsize::new(0),
            scripts: Arc::clone(scripts),
            gate: Arc::clone(gate),
        })
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Waits until one connection stands.
    pub(super) async fn ready(&self) {
        self.gate.until(|| self.stands()).await;
    }

    /// Whether a connection stands.
    pub(super) fn stands(&self) -> bool {
        self.lanes.iter().any(|lane| lane.live().is_some())
    }

    /// Runs an errand; and tells the run of the server that it was sent to, or 0 if to none.
    pub(super) async fn send(
        &self,
        errand: Errand<'_>,
        entry: Entry,
    ) -> (Result<Value, Fault>, u64) {
        let lane = match errand {
            Errand::Script(_) => self.working_lane(),
            Errand::Command(_) => self.lane(),
        };
        let (lane, live) = match lane {
            Ok(found) => found,
            Err(fault) => return (Err(fault), 0),
        };
        let answer = match errand {
            Errand::Command(command) => lane.send(&live, command, entry).await,
            Errand::Script(call) => {
                let by_hash = self.by_hash(call, live.read_only);
                match lane.send_call(&live, &by_hash, entry).await {
                    Err(fault) if fault.action() == Action::SendText => {
                        let by_text = self.by_text(call, live.read_only);
                        lane.send_call(&live, &by_text, entry).await
                    }
                    answer => answer,
                }
            }
        };
        (answer, live.run)
    }

    /// The run that counts: the only one that answers come from.
    pub(super) fn run(&self) -> Option<u64> {
        self.reign.run()
    }

    /// Runs several scripts one after another, on one connection and in one go.
    pub(super) async fn call_each(&self, calls: &[Call<'_>]) -> Vec<Result<Value, Fault>> {
        let (lane, live) = match self.working_lane() {
            Ok(found) => found,
            Err(fault) => return calls.iter().map(|_| Err(fault.clone())).collect(),
        };
        let all: Vec<&Call<'_>> = calls.iter().collect();
        let mut answers = self.pass_each(lane, &live, &all).await;
        let lacks = |answer: &Result<Value, Fault>| {
            let fault = answer.as_ref().err();
            fault.is_some_and(|fault| fault.action() == Action::SendText)
        };
        let missed: Vec<usize> = (0..calls.len()).filter(|i| lacks(&answers[*i])).collect();
        if let Some(first) = missed.first() {
            // All are calls of one script: it is sent once, not with each of them.
            let text = self.by_text(&calls[*first], live.read_only);
            answers[*first] = lane.send_call(&live, &text, Entry::Plain).await;
            let rest: Vec<&Call<'_>> = missed[1..].iter().map(|i| &calls[*i]).collect();
            let again = self.pass_each(lane, &live, &rest).await;
            for (i, answer) in missed[1..].iter().zip(again) {
                answers[*i] = match lacks(&answer) {
                    // It was lost again in between.
                    true => {
                        let text = self.by_text(&calls[*i], live.read_only);
                        lane.send_call(&live, &text, Entry::Plain).await
                    }
                    false => answer,
                };
            }
        }
        answers
    }

    async fn pass_each(
        &self,
        lane: &Lane,
        live: &Arc<Live>,
        calls: &[&Call<'_>],
    ) -> Vec<Result<Value, Fault>> {
        if calls.is_empty() {
            return Vec::new();
        }
        let mut pipeline = Pipeline::with_capacity(calls.len());
        let mut ids = Vec::with_capacity(calls.len());
        for call in calls {
            let sent = self.by_hash(call, live.read_only);
            pipeline.add_command(sent.command);
            ids.push(sent.id);
        }
        pipeline.ignore_errors();
        match lane.send_all(live, &pipeline).await {
            Ok(replies) => ids
                .into_iter()
                .zip(replies)
                .map(|(id, reply)| lane.own_reply(live, id, reply?))
                .collect(),
            Err(fault) => calls.iter().map(|_| Err(fault.clone())).collect(),
        }
    }

    /// Why no connection stands, if none does.
    pub(super) fn last_fault(&self) -> Option<Fault> {
        let last = self.lanes.iter().find_map(|lane| lane.last_fault());
        last.filter(|_| !self.stands())
            .map(|fault| Fault::clone(&fault))
    }

    fn working_lane(&self) -> Result<(&Lane, Arc<Live>), Fault> {
        if self.gate.is_open() {
            return self.lane();
        }
        Err(match self.last_fault() {
            // Without a connection, the reason for that is what matters.
            Some(fault) => fault,
            None if self.gate.is_joining() => Fault::not_joined(),
            None => Fault::not_connected(None),
        })
    }

    /// A connection that stands, in turn.
    fn lane(&self) -> Result<(&Lane, Arc<Live>), Fault> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        for i in 0..self.lanes.len() {
            let lane = &self.lanes[first.wrapping_add(i) % self.lanes.len()];
            if let Some(live) = lane.live() {
                return Ok((lane, live));
            }
        }
        let last = self.lanes.first().and_then(|lane| lane.last_fault());
        Err(Fault::not_connected(last.as_deref()))
    }

    pub(super) fn by_hash(&self, call: &Call<'_>, read_only: bool) -> SentCall {
        let verb = match read_only && call.script == scripts::READ {
            true => "EVALSHA_RO",
            false => "EVALSHA",
        };
        let loaded = self.loaded(call.script);
        self.sent(verb, loaded.map_or("", |loaded| &loaded.hash), call)
    }

    pub(super) fn by_text(&self, call: &Call<'_>, read_only: bool) -> SentCall {
        let verb = match read_only && call.script == scripts::READ {
            true => "EVAL_RO",
            false => "EVAL",
        };
        let loaded = self.loaded(call.script);
        self.sent(verb, loaded.map_or("", |loaded| &loaded.text), call)
    }

    fn sent(&self, verb: &str, script: &str, call: &Call<'_>) -> SentCall {
        let id = self.ids.next();
        let mut command = redis::cmd(verb);
        command.arg(script).arg(call.keys.len());
        let keys = call.keys.iter().map(Vec::as_slice);
        for part in keys.chain(call.arguments.iter().copied()) {
            command.arg(part);
        }
        command.arg(id.bytes());
        SentCall { command, id }
    }

    fn loaded(&self, script: Script) -> Option<&Loaded> {
        let mut scripts = self.scripts.iter();
        scripts.find(|loaded| loaded.script.name == script.name)
    }
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
        let standing = self.lanes.iter().filter(|lane| lane.live().is_some());
        f.debug_struct("Link")
            .field("connections", &self.lanes.len())
            .field("standing", &standing.count())
            .finish_non_exhaustive()
    }
}
