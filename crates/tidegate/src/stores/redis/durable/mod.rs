//! Durable charges: acknowledged elsewhere before the client receives the decision.
//!
//! `WAIT` and `WAITAOF` cover the writes of the connection they are sent on, and block it. So durable charges use a
//! connection of their own, opened for the first of them. A task takes all queued charges, sends them in one
//! pipeline with one wait behind them, and replies to all. When too few servers acknowledge, the charges stay: too
//! strict, never too lax. Then nothing more is sent: new charges fail at once, uncharged, and the task checks again
//! and again whether the writes have arrived since.

mod sender;
mod wait;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use redis::Value;
use tidegate_core::store::{Charge, ChargeSet, Durability, StoreError, UnacknowledgedError};
use tidegate_core::units::Nanos;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use self::sender::{DurableSender, Job};
use self::wait::WaitKind;
use super::connection::{ManagedConnection, SentCall, maintain};
use super::connection_gate::ConnectionGate;
use super::connection_pool::{ConnectionPool, ScriptCall};
use super::error::{Action, RedisStoreError};
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
pub(super) type DurableReplies = Result<(Vec<Result<Value, RedisStoreError>>, DurabilityResult), UnacknowledgedError>;

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
        let waits = |charge: &&Charge<'_>| charge.options.durability.is_required();
        let mut need: Option<DurabilityRequirement> = None;
        for charge in charges.into_iter().filter(waits) {
            let patience = charge.options.budget.unwrap_or(DEFAULT_WAIT).duration();
            let aof = charge.options.durability == Durability::ReplicaAof
                || need.is_some_and(|need| need.wait == WaitKind::Aof);
            need = Some(DurabilityRequirement {
                wait: if aof { WaitKind::Aof } else { WaitKind::Replica },
                patience: need.map_or(patience, |need| need.patience.min(patience)),
            });
        }
        need.filter(|_| script != scripts::RESTORE)
    }

    /// The durability of several sets that are sent in one pipeline.
    pub(super) fn of_each(script: Script, sets: &[&ChargeSet<'_>]) -> Option<DurabilityRequirement> {
        DurabilityRequirement::of(script, sets.iter().flat_map(|set| &set.charges))
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

/// A connection for each kind of wait.
pub(super) struct DurableConnections {
    replica: DurableConnection,
    aof: DurableConnection,
}

impl DurableConnections {
    /// Uses connections that nothing else uses and that no task maintains yet. No wait lasts longer than 4/5 of
    /// `reply_timeout`.
    pub(super) fn new(
        connection: impl Fn() -> Arc<ManagedConnection>,
        gate: &Arc<ConnectionGate>,
        reply_timeout: Duration,
    ) -> Self {
        let of = |wait| DurableConnection {
            connection: connection(),
            wait,
            gate: Arc::clone(gate),
            max_wait: reply_timeout * 4 / 5,
            unacknowledged: Arc::default(),
            tasks: OnceLock::new(),
        };
        DurableConnections { replica: of(WaitKind::Replica), aof: of(WaitKind::Aof) }
    }

    /// Why charges are not acknowledged at present.
    pub(super) fn unacknowledged(&self) -> Option<UnacknowledgedError> {
        let of = |connection: &DurableConnection| connection.unacknowledged.load().as_deref().cloned();
        of(&self.replica).or_else(|| of(&self.aof))
    }
}

impl ConnectionPool {
    /// Runs scripts one after another in one pipeline, and waits until they are as durable as `need` requires.
    ///
    /// # Errors
    /// When nothing was sent, because earlier writes are not durable yet.
    pub(super) async fn call_durably(
        &self,
        calls: &[ScriptCall<'_>],
        need: DurabilityRequirement,
        mode: SendMode,
    ) -> DurableReplies {
        if !self.gate().is_open() {
            let locked = |_: &ScriptCall<'_>| Err(RedisStoreError::not_connected(None));
            return Ok((calls.iter().map(locked).collect(), Ok(())));
        }
        let connection = match need.wait {
            WaitKind::Replica => &self.durable.replica,
            WaitKind::Aof => &self.durable.aof,
        };
        let sent = calls.iter().map(|call| self.by_hash(call, false));
        let (mut replies, mut durability) = connection.send(sent.collect(), need.patience, mode).await?;
        for (call, reply) in calls.iter().zip(&mut replies) {
            let unknown = |error: &RedisStoreError| error.action() == Action::SendText;
            if reply.as_ref().err().is_some_and(unknown) {
                let text = vec![self.by_text(call, false)];
                let (mut again, durability_again) = connection.send(text, need.patience, mode).await?;
                *reply = again.pop().unwrap_or(Err(RedisStoreError::not_connected(None)));
                durability = durability.and(durability_again);
            }
        }
        Ok((replies, durability))
    }
}

/// One connection and its queue.
struct DurableConnection {
    connection: Arc<ManagedConnection>,
    wait: WaitKind,
    gate: Arc<ConnectionGate>,
    max_wait: Duration,
    unacknowledged: Arc<ArcSwapOption<UnacknowledgedError>>,
    tasks: OnceLock<DurableTasks>,
}

struct DurableTasks {
    jobs: mpsc::Sender<Job>,
    tasks: [JoinHandle<()>; 2],
}

impl DurableConnection {
    async fn send(&self, calls: Vec<SentCall>, patience: Duration, mode: SendMode) -> DurableReplies {
        let running = self.tasks.get_or_init(|| self.start());
        let (reply_to, reply) = oneshot::channel();
        let job = Job { calls, mode, queued: Instant::now(), patience, reply_to };
        match running.jobs.try_send(job) {
            Ok(()) => reply.await.unwrap_or_else(|_| Err(queue_full())),
            Err(_) => Err(queue_full()),
        }
    }

    fn start(&self) -> DurableTasks {
        let (jobs, queue) = mpsc::channel(MAX_QUEUED);
        let sender = DurableSender {
            connection: Arc::clone(&self.connection),
            wait: self.wait,
            gate: Arc::clone(&self.gate),
            max_wait: self.max_wait,
            unacknowledged: Arc::clone(&self.unacknowledged),
            queue,
            checked: None,
        };
        let tasks = [tokio::spawn(maintain(Arc::clone(&self.connection))), tokio::spawn(sender.run())];
        DurableTasks { jobs, tasks }
    }
}

impl Drop for DurableTasks {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn queue_full() -> UnacknowledgedError {
    UnacknowledgedError("too many durable charges are waiting".to_owned())
}
