//! Durable charges: acknowledged elsewhere before the client receives the decision.
//!
//! `WAIT` and `WAITAOF` cover the writes of the connection they are sent on, and block it. So durable charges use a
//! connection of their own, opened for the first of them. A task takes all queued charges, sends them in one
//! pipeline with one wait behind them, and replies to all. When too few servers acknowledge, the charges stay, and their
//! outcome is [`Degraded::NotDurable`]: an error would let a caller charge them again. Then nothing more is sent: new
//! charges fail at once, uncharged, and the task checks again and again whether the writes have arrived since.

mod sender;
mod wait;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use tidegate_core::store::{Charge, Degraded, Durability, Outcome, StoreError, UnacknowledgedError};
use tidegate_core::units::Nanos;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use self::sender::{DurableSender, Job};
use self::wait::WaitKind;
use super::connection::{ManagedConnection, RedisReply, SentCall, ServerContext, maintain};
use super::redirect::SendMode;
use super::script_reply::ScriptReply;
use super::scripts::{self, Script};

/// The wait for a charge without a budget: one that no rule has compiled.
const DEFAULT_WAIT: Nanos = Nanos::from_millis(50);
/// The capacity of the queue, in jobs. More would be late anyway.
const MAX_QUEUED: usize = 4_096;

/// Whether the writes are as durable as required.
pub(super) type DurabilityResult = Result<(), UnacknowledgedError>;

/// The replies to some calls, and whether they are durable; or why nothing was sent.
pub(super) type DurableReplies = Result<(Vec<RedisReply>, DurabilityResult), UnacknowledgedError>;

/// The durability that some charges require.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DurabilityRequirement {
    wait: WaitKind,
    patience: Duration,
}

impl DurabilityRequirement {
    /// The durability that `charges` require of `script`. Restoring requires none: otherwise a store whose last
    /// replica took over could never be restored.
    pub(super) fn of<'c, 'a: 'c>(
        script: Script,
        charges: impl IntoIterator<Item = &'c Charge<'a>>,
    ) -> Option<DurabilityRequirement> {
        let durable = charges.into_iter().filter(|charge| charge.options.durability.is_required());
        let needs = durable.map(|charge| {
            let patience = charge.options.budget.unwrap_or(DEFAULT_WAIT).duration();
            (charge.options.durability == Durability::ReplicaAof, patience)
        });
        let (aof, patience) = needs.reduce(|(aof, least), (also, patience)| (aof || also, least.min(patience)))?;
        let wait = if aof { WaitKind::Aof } else { WaitKind::Replica };
        (script != scripts::RESTORE).then_some(DurabilityRequirement { wait, patience })
    }
}

/// The error of the port for a charge that is not durable.
pub(super) fn unacknowledged_error(reason: UnacknowledgedError, waited: Nanos) -> StoreError {
    StoreError::Unavailable { waited, source: Box::new(reason) }
}

/// Fails if the script wrote something that is not durable.
pub(super) fn confirm(reply: &ScriptReply, durability: &DurabilityResult, began: Instant) -> Result<(), StoreError> {
    let wrote = reply.verdict().is_ok_and(|verdict| verdict > 0);
    match durability {
        Err(reason) if wrote => Err(unacknowledged_error(reason.clone(), Nanos::from(began.elapsed()))),
        _ => Ok(()),
    }
}

/// The outcome of a script, which names it if what was charged is not durable.
pub(super) fn with_durability(outcome: Outcome, durability: &DurabilityResult) -> Outcome {
    let is_lacking = outcome.admitted && durability.is_err();
    Outcome { degraded: is_lacking.then_some(Degraded::NotDurable), ..outcome }
}

/// A connection for each kind of wait.
pub(super) struct DurableConnections {
    replica: DurableConnection,
    aof: DurableConnection,
}

impl DurableConnections {
    /// Uses connections to `server` that nothing else uses. No wait lasts longer than 4/5 of `reply_timeout`.
    pub(super) fn new(server: &Arc<ServerContext>, reply_timeout: Duration) -> Self {
        let of = |wait| {
            let connection = ManagedConnection::new(server);
            let max_wait = reply_timeout * 4 / 5;
            let line = DurableLine { connection, wait, max_wait, unacknowledged: ArcSwapOption::empty() };
            DurableConnection { line: Arc::new(line), tasks: OnceLock::new() }
        };
        DurableConnections { replica: of(WaitKind::Replica), aof: of(WaitKind::Aof) }
    }

    /// Sends calls on the connection that can wait as `need` requires.
    pub(super) async fn send(
        &self,
        calls: Vec<SentCall>,
        need: DurabilityRequirement,
        mode: SendMode,
    ) -> DurableReplies {
        let connection = match need.wait {
            WaitKind::Replica => &self.replica,
            WaitKind::Aof => &self.aof,
        };
        let running = connection.tasks.get_or_init(|| DurableTasks::start(&connection.line));
        let (reply_to, reply) = oneshot::channel();
        let job = Job { calls, mode, queued: Instant::now(), patience: need.patience, reply_to };
        let queue_full = || UnacknowledgedError("too many durable charges are waiting".to_owned());
        running.jobs.try_send(job).map_err(|_| queue_full())?;
        reply.await.unwrap_or_else(|_| Err(queue_full()))
    }

    /// Why charges are not acknowledged at present.
    pub(super) fn unacknowledged(&self) -> Option<UnacknowledgedError> {
        let of = |connection: &DurableConnection| connection.line.unacknowledged.load().as_deref().cloned();
        of(&self.replica).or_else(|| of(&self.aof))
    }
}

/// One connection, and the tasks that maintain it and send on it, once there is a durable charge.
struct DurableConnection {
    line: Arc<DurableLine>,
    tasks: OnceLock<DurableTasks>,
}

/// A connection, and whether the writes on it are acknowledged.
struct DurableLine {
    connection: Arc<ManagedConnection>,
    wait: WaitKind,
    max_wait: Duration,
    unacknowledged: ArcSwapOption<UnacknowledgedError>,
}

struct DurableTasks {
    jobs: mpsc::Sender<Job>,
    tasks: [JoinHandle<()>; 2],
}

impl DurableTasks {
    fn start(line: &Arc<DurableLine>) -> DurableTasks {
        let (jobs, queue) = mpsc::channel(MAX_QUEUED);
        let sender = DurableSender { line: Arc::clone(line), queue, checked: None };
        let tasks = [tokio::spawn(maintain(Arc::clone(&line.connection))), tokio::spawn(sender.run())];
        DurableTasks { jobs, tasks }
    }
}

impl Drop for DurableTasks {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}
