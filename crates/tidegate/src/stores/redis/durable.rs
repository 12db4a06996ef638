//! Charges that must be safe elsewhere before they are told.
//!
//! `WAIT` and `WAITAOF` speak of the writes of the connection they are sent on, and block it. So such
//! charges travel on a connection of their own, opened when the first of them comes. A task takes all that
//! is queued, sends it in one go with one wait behind it, and answers all. When too few servers have
//! acknowledged, what was sent stays charged: too strict, never too lax. Nothing more is sent then: what
//! comes meanwhile is turned away at once and uncharged, and the connection is asked again and again
//! whether the writes have arrived since.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::{Cmd, Pipeline, RedisResult, Value};
use tidegate_core::store::{Charge, ChargeSet, Durability, StoreError, Unacknowledged};
use tidegate_core::units::Nanos;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use super::fault::{Action, Fault};
use super::lane::{Lane, Live, keep};
use super::link::{Call, Link};
use super::reply::Reply;
use super::scripts::{self, Script};

/// How long a charge may wait that does not say: one that no rule has read.
const USUAL: Nanos = Nanos::from_millis(50);
/// Commands sent in one go.
const MOST_AT_ONCE: usize = 1_024;
/// Calls in the queue. More would be late anyway.
const MOST_QUEUED: usize = 4_096;
/// How long one question lasts whether the writes have arrived since.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// A replica tells how far its file is when it is asked, which is before it has written what it just heard,
/// and by itself once a second. So it is asked again, by waiting anew.
const ASK_FILES: Duration = Duration::from_millis(5);
/// How long to wait before a server that cannot answer it is asked again.
const PAUSE: Duration = Duration::from_secs(1);

/// Whether what was sent is as safe as it must be.
pub(super) type Safe = Result<(), Unacknowledged>;

/// What some charges ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Need {
    wait: Wait,
    patience: Duration,
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    /// A replica has it.
    Replica,
    /// It is on the disk of the server and of a replica.
    Aof,
}

impl Need {
    /// What `charges` ask for, if `script` is one that must be waited for: what is put back after a loss
    /// is not, or a store whose last replica took over could never be believed.
    pub(super) fn of<'c, 'a: 'c>(
        script: Script,
        charges: impl IntoIterator<Item = &'c Charge<'a>>,
    ) -> Option<Need> {
        let waits = |charge: &&Charge<'_>| charge.terms.durability.waits();
        let mut need: Option<Need> = None;
        for charge in charges.into_iter().filter(waits) {
            let patience = charge.terms.budget.unwrap_or(USUAL).duration();
            let aof = charge.terms.durability == Durability::ReplicaAof
                || need.is_some_and(|need| need.wait == Wait::Aof);
            need = Some(Need {
                wait: if aof { Wait::Aof } else { Wait::Replica },
                patience: need.map_or(patience, |need| need.patience.min(patience)),
            });
        }
        need.filter(|_| script != scripts::SEED)
    }

    /// The same of a list, sent in one go.
    pub(super) fn of_each(script: Script, sets: &[&ChargeSet<'_>]) -> Option<Need> {
        Need::of(script, sets.iter().flat_map(|set| &set.charges))
    }
}

/// The error of the port for a charge that is not safe.
pub(super) fn unsafe_after(why: Unacknowledged, waited: Nanos) -> StoreError {
    StoreError::Unavailable {
        waited,
        source: Box::new(why),
    }
}

/// What was not written need not be safe.
pub(super) fn confirm(reply: &Reply, safe: &Safe, began: Instant) -> Result<(), StoreError> {
    let wrote = reply.verdict().is_ok_and(|verdict| verdict > 0);
    match safe {
        Err(why) if wrote => Err(unsafe_after(why.clone(), Nanos::from(began.elapsed()))),
        _ => Ok(()),
    }
}

/// A connection for each kind of wait.
pub(super) struct SafeLanes {
    replica: SafeLane,
    aof: SafeLane,
}

impl SafeLanes {
    /// On lanes that nothing else uses and that are not kept yet. No wait lasts longer than most of
    /// `reply_timeout`.
    pub(super) fn new(
        lane: impl Fn() -> Arc<Lane>,
        ready: &Arc<Notify>,
        reply_timeout: Duration,
    ) -> Self {
        let of = |wait| SafeLane {
            lane: lane(),
            wait,
            ready: Arc::clone(ready),
            longest: reply_timeout * 4 / 5,
            why: Arc::default(),
            running: OnceLock::new(),
        };
        SafeLanes {
            replica: of(Wait::Replica),
            aof: of(Wait::Aof),
        }
    }

    /// Why charges are not acknowledged at present.
    pub(super) fn why(&self) -> Option<Unacknowledged> {
        let of = |lane: &SafeLane| lane.why.load().as_deref().cloned();
        of(&self.replica).or_else(|| of(&self.aof))
    }
}

impl Link {
    /// Runs scripts one after another in one go, and waits until they are as safe as `need` says.
    ///
    /// # Errors
    /// When nothing was sent, because what was sent before is not safe yet.
    pub(super) async fn call_safely(
        &self,
        calls: &[Call<'_>],
        need: Need,
    ) -> Result<(Vec<Result<Value, Fault>>, Safe), Unacknowledged> {
        if !self.is_open() {
            let locked = |_: &Call<'_>| Err(Fault::not_connected(None));
            return Ok((calls.iter().map(locked).collect(), Ok(())));
        }
        let lane = match need.wait {
            Wait::Replica => &self.safe.replica,
            Wait::Aof => &self.safe.aof,
        };
        let commands = calls.iter().map(|call| self.by_hash(call, false));
        let (mut answers, mut safe) = lane.send(commands.collect(), need.patience).await?;
        for (call, answer) in calls.iter().zip(&mut answers) {
            let unknown = |fault: &Fault| fault.action() == Action::SendText;
            if answer.as_ref().err().is_some_and(unknown) {
                let text = vec![self.by_text(call, false)];
                let (mut again, safe_too) = lane.send(text, need.patience).await?;
                *answer = again.pop().unwrap_or(Err(Fault::not_connected(None)));
                safe = safe.and(safe_too);
            }
        }
        Ok((answers, safe))
    }
}

/// One connection and the queue before it.
struct SafeLane {
    lane: Arc<Lane>,
    wait: Wait,
    ready: Arc<Notify>,
    longest: Duration,
    why: Arc<ArcSwapOption<Unacknowledged>>,
    running: OnceLock<Running>,
}

struct Running {
    jobs: mpsc::Sender<Job>,
    tasks: [JoinHandle<()>; 2],
}

/// Commands of one caller.
struct Job {
    commands: Vec<Cmd>,
    queued: Instant,
    patience: Duration,
    answer: oneshot::Sender<Answered>,
}

type Answered = Result<(Vec<Result<Value, Fault>>, Safe), Unacknowledged>;

impl SafeLane {
    async fn send(&self, commands: Vec<Cmd>, patience: Duration) -> Answered {
        let running = self.running.get_or_init(|| self.start());
        let (answer, answered) = oneshot::channel();
        let job = Job {
            commands,
            queued: Instant::now(),
            patience,
            answer,
        };
        match running.jobs.try_send(job) {
            Ok(()) => answered.await.unwrap_or_else(|_| Err(turned_away())),
            Err(_) => Err(turned_away()),
        }
    }

    fn start(&self) -> Running {
        let (jobs, queue) = mpsc::channel(MOST_QUEUED);
        let sender = Sender {
            lane: Arc::clone(&self.lane),
            wait: self.wait,
            ready: Arc::clone(&self.ready),
            longest: self.longest,
            why: Arc::clone(&self.why),
            queue,
            checked: None,
        };
        let tasks = [
            tokio::spawn(keep(Arc::clone(&self.lane))),
            tokio::spawn(sender.run()),
        ];
        Running { jobs, tasks }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn turned_away() -> Unacknowledged {
    Unacknowledged("too many durable charges are waiting".to_owned())
}

/// What the task has.
struct Sender {
    lane: Arc<Lane>,
    wait: Wait,
    ready: Arc<Notify>,
    longest: Duration,
    why: Arc<ArcSwapOption<Unacknowledged>>,
    queue: mpsc::Receiver<Job>,
    /// The connection of which it is known that it can wait.
    checked: Option<Arc<Live>>,
}

impl Sender {
    async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let batch = self.batch(first);
            let patience = batch.iter().map(Job::left).min().unwrap_or_default();
            let Some(live) = self.connection(patience).await else {
                let fault = self.lane.last_fault();
                batch.into_iter().for_each(|job| {
                    job.fail(&Fault::not_connected(fault.as_deref()));
                });
                continue;
            };
            // Nothing is charged on a connection that cannot wait at all.
            let known = self.checked.as_ref().is_some_and(|c| Arc::ptr_eq(c, &live));
            let able = match known {
                true => Ok(()),
                false => acknowledged(&self.lane, &live, self.wait, Duration::from_millis(1)).await,
            };
            let safe = match able {
                Ok(()) => self.send(&live, batch).await,
                Err(why) => {
                    batch.into_iter().for_each(|job| job.turn_away(&why));
                    Err(why)
                }
            };
            if let Err(why) = safe {
                self.catch_up(&live, why).await;
            }
            self.checked = Some(live);
        }
    }

    /// All that is queued behind `first`, as far as it goes at once.
    fn batch(&mut self, first: Job) -> Vec<Job> {
        let mut commands = first.commands.len();
        let mut batch = vec![first];
        while commands < MOST_AT_ONCE
            && let Ok(job) = self.queue.try_recv()
        {
            commands += job.commands.len();
            batch.push(job);
        }
        batch
    }

    /// The connection; the first time it is waited for.
    async fn connection(&self, patience: Duration) -> Option<Arc<Live>> {
        let connected = async {
            loop {
                let changed = self.ready.notified();
                if let Some(live) = self.lane.live() {
                    return live;
                }
                changed.await;
            }
        };
        match self.checked {
            None => tokio::time::timeout(patience, connected).await.ok(),
            Some(_) => self.lane.live(),
        }
    }

    /// Sends a batch and one wait behind it, and answers.
    async fn send(&self, live: &Arc<Live>, batch: Vec<Job>) -> Safe {
        let left = batch.iter().map(Job::left).min().unwrap_or_default();
        // The rest is for the way.
        let wait = (left * 4 / 5).min(self.longest);
        let until = Instant::now() + wait;
        let mut pipeline = Pipeline::new();
        for command in batch.iter().flat_map(|job| &job.commands) {
            pipeline.add_command(command.clone());
        }
        pipeline.add_command(self.wait.command(wait));
        pipeline.ignore_errors();
        let mut connection = live.connection.clone();
        let sent: RedisResult<Vec<RedisResult<Value>>> =
            pipeline.query_async(&mut connection).await;
        let answers = match sent {
            Ok(answers) => answers,
            Err(error) => {
                let fault = self.lane.fault(live, &error);
                batch.into_iter().for_each(|job| job.fail(&fault));
                return Ok(());
            }
        };
        let read = |answer: RedisResult<Value>| answer.map_err(|e| self.lane.fault(live, &e));
        let mut answers: Vec<Result<Value, Fault>> = answers.into_iter().map(read).collect();
        let count = answers.pop().unwrap_or(Err(Fault::not_connected(None)));
        let count = self.wait.go_on(&self.lane, live, count, until).await;
        let safe = judged(&self.lane, live, self.wait, wait, count).await;
        let mut answers = answers.into_iter();
        for job in batch {
            let own = answers.by_ref().take(job.commands.len()).collect();
            let _nobody_waits_any_more = job.answer.send(Ok((own, safe.clone())));
        }
        safe
    }

    /// Turns all away until what was sent is safe, or the connection is another one.
    async fn catch_up(&mut self, live: &Arc<Live>, mut why: Unacknowledged) {
        loop {
            self.why.store(Some(Arc::new(why.clone())));
            let stands = self.lane.live().is_some_and(|now| Arc::ptr_eq(&now, live));
            if !stands {
                break;
            }
            let asking = asked_again(&self.lane, live, self.wait);
            tokio::pin!(asking);
            let answer = loop {
                tokio::select! {
                    answer = &mut asking => break answer,
                    Some(job) = self.queue.recv() => job.turn_away(&why),
                }
            };
            match answer {
                Ok(()) => break,
                Err(still) => why = still,
            }
        }
        self.why.store(None);
    }
}

impl Job {
    fn left(&self) -> Duration {
        self.patience.saturating_sub(self.queued.elapsed())
    }

    fn turn_away(self, why: &Unacknowledged) {
        let _nobody_waits_any_more = self.answer.send(Err(why.clone()));
    }

    fn fail(self, fault: &Fault) {
        let failed = self.commands.iter().map(|_| Err(fault.clone())).collect();
        let _nobody_waits_any_more = self.answer.send(Ok((failed, Ok(()))));
    }
}

impl Wait {
    /// Zero would mean for ever.
    fn command(self, most: Duration) -> Cmd {
        let mut command = match self {
            Wait::Replica => redis::cmd("WAIT"),
            Wait::Aof => redis::cmd("WAITAOF"),
        };
        if self == Wait::Aof {
            command.arg(1);
        }
        let most = match self {
            Wait::Replica => most,
            Wait::Aof => most.min(ASK_FILES),
        };
        command.arg(1).arg(millis(most));
        command
    }

    fn is_enough(self, count: &Value) -> bool {
        match (self, count) {
            (Wait::Replica, Value::Int(replicas)) => *replicas > 0,
            (Wait::Aof, Value::Array(counts)) => {
                matches!(counts[..], [Value::Int(1..), Value::Int(1..)])
            }
            _ => false,
        }
    }

    /// Waits anew until enough have acknowledged or `until` has come; the last count.
    async fn go_on(
        self,
        lane: &Lane,
        live: &Arc<Live>,
        mut count: Result<Value, Fault>,
        until: Instant,
    ) -> Result<Value, Fault> {
        while count.as_ref().is_ok_and(|count| !self.is_enough(count)) {
            let left = until.saturating_duration_since(Instant::now());
            if left < Duration::from_millis(1) {
                break;
            }
            count = lane.send(live, &self.command(left)).await;
        }
        count
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1)
}

async fn acknowledged(lane: &Lane, live: &Arc<Live>, wait: Wait, most: Duration) -> Safe {
    let until = Instant::now() + most;
    let count = lane.send(live, &wait.command(most)).await;
    let count = wait.go_on(lane, live, count, until).await;
    judged(lane, live, wait, most, count).await
}

/// Asks once more, and not at once again if the server cannot say.
async fn asked_again(lane: &Lane, live: &Arc<Live>, wait: Wait) -> Safe {
    let asked = Instant::now();
    let safe = acknowledged(lane, live, wait, ASK_AGAIN).await;
    if safe.is_err() && asked.elapsed() < ASK_AGAIN / 2 {
        tokio::time::sleep(PAUSE).await;
    }
    safe
}

/// What the answer to a wait means, in words.
async fn judged(
    lane: &Lane,
    live: &Arc<Live>,
    wait: Wait,
    waited: Duration,
    count: Result<Value, Fault>,
) -> Safe {
    let within = format!("within {} ms", millis(waited));
    let why = match (wait, count) {
        (_, Err(fault)) => cannot(&fault),
        (_, Ok(count)) if wait.is_enough(&count) => return Ok(()),
        _ if has_no_replica(lane, live).await => NO_REPLICA.to_owned(),
        (Wait::Replica, Ok(_)) => {
            format!("no replica acknowledged {within}; see whether one can keep up")
        }
        (Wait::Aof, Ok(Value::Array(counts))) if matches!(counts[..], [Value::Int(1..), _]) => {
            format!(
                "no replica had it on its disk {within}; see whether one has `appendonly yes` and \
                 `appendfsync always`"
            )
        }
        (Wait::Aof, Ok(_)) => format!(
            "the server had it not on its disk {within}; see whether it has `appendfsync always`"
        ),
    };
    Err(Unacknowledged(why))
}

const NO_REPLICA: &str = "no replica is connected; connect one, or write `durability: none`";

fn cannot(fault: &Fault) -> String {
    let said = fault.to_string();
    if said.contains("unknown command") {
        return "the server does not know WAITAOF, which came with Redis and Valkey 7.2; write \
                `durability: replica`"
            .to_owned();
    }
    if said.contains("appendonly is disabled") {
        return "the server keeps no append-only file; set `appendonly yes` there, or write \
                `durability: replica`"
            .to_owned();
    }
    said
}

async fn has_no_replica(lane: &Lane, live: &Arc<Live>) -> bool {
    let mut ask = redis::cmd("INFO");
    ask.arg("replication");
    let told = lane.send(live, &ask).await.ok();
    let told = told.and_then(|told| redis::from_redis_value::<String>(told).ok());
    told.is_some_and(|told| told.contains("connected_slaves:0"))
}
